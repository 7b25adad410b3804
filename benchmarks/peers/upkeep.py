"""3 to 5. What no driver reads as, and what sampling and importing take."""

import os
import statistics
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from peers.bench import CODECARBON, OURS, POLL_S, ZEUS, Bar, Bench, Table
from wattsmith.sim.nvml import sawtooth


def nothing(bench: Bench) -> Iterator[Table]:
    table = Table(title="3. What one second reads as without any driver", heads=["tool", "joules", "what it says"])
    with bench.running(None) as tools:
        answers = {name: tool.ask("nothing") for name, tool in tools.items()}
    for name, answer in answers.items():
        table.rows.append([name, "None" if answer["energy_j"] is None else answer["energy_j"], answer["says"]])
    ours = answers[OURS]
    table.bars.append(
        Bar(
            what="no driver: the GPU's energy is unknown, with a reason",
            figure=f"{ours['gpu_energy_j']}, {'with' if ours['why'] else 'without'} a reason",
            met=ours["gpu_energy_j"] is None and bool(ours["why"]),
        )
    )
    yield table


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """One way to sample."""

    tool: str
    label: str
    how: str
    period_s: float | None = None
    card: Mapping[str, Any] = field(default_factory=dict)


WAYS = (
    Way(
        tool=OURS,
        label="10 Hz asked for: the driver's own 50 Hz samples fetched at 2 Hz, counter at 1 Hz",
        how="counter",
        period_s=POLL_S,
    ),
    Way(
        tool=OURS,
        label="10 Hz where the driver keeps no samples: power at 10 Hz, counter at 1 Hz",
        how="counter",
        period_s=POLL_S,
        card={"has_samples": False},
    ),
    Way(tool=ZEUS, label="PowerMonitor at 10 Hz", how="polling", period_s=POLL_S),
    Way(tool=CODECARBON, label="tracker at 10 Hz", how="sampling", period_s=POLL_S),
    Way(tool=CODECARBON, label="tracker as it comes: every 15 s", how="sampling"),
)
WITHOUT_COUNTER = tuple(
    Way(tool=tool, label="as it comes, on a P100, which has no counter", how=how, card={"profile": "p100"})
    for tool, how in ((OURS, "counter"), (ZEUS, "counter"), (CODECARBON, "sampling"))
)


def sampling(bench: Bench) -> Iterator[Table]:
    rounds = f"{bench.scale.cpu_rounds} × {bench.scale.cpu_s:g} s"
    table = Table(
        title=f"4. CPU time of sampling, % of one core per GPU, median of {rounds}",
        heads=["tool", "how", "1 GPU", "8 GPUs"],
        notes=[
            "All at the same time, each in a process of its own; helper processes are counted in. A counter read keeps "
            "a core busy for 3 ms, as on an H200, and a fetch of power samples for 0.3 ms."
        ],
    )
    ways = [way for way in WAYS if way.tool in bench.tools]
    shares = core_shares(bench, [(way, gpus) for way in ways for gpus in (1, 8)])
    for way, one, eight in zip(ways, shares[::2], shares[1::2], strict=True):
        table.rows.append([way.tool, way.label, one, eight])
    for gpus, with_samples, without in zip((1, 8), shares[:2], shares[2:4], strict=True):
        for share, which in ((with_samples, "with"), (without, "without")):
            what = f"sampling {gpus} GPU at 10 Hz, {which} the driver's own samples: under 1 % of one core per GPU"
            table.bars.append(Bar(what=what, figure=f"{share:.3g} %", met=share < 1.0))
    others = [way for way in WITHOUT_COUNTER if way.tool in bench.tools]
    for way, share in zip(others, core_shares(bench, [(way, 1) for way in others]), strict=True):
        table.rows.append([way.tool, way.label, share, None])
    yield table


def core_shares(bench: Bench, cases: Sequence[tuple[Way, int]]) -> list[float]:
    """CPU time of tools that only sample, in % of one core per GPU: the median of some stretches."""
    with ExitStack() as stack:
        running = []
        for way, gpus in cases:
            machine = bench.machine(gpus=gpus, **way.card)
            for gpu in range(gpus):
                machine.play(gpu, sawtooth(0.1, 1.0, period_s=0.73))
            alone = replace(bench, tools=(way.tool,))
            tool = stack.enter_context(alone.running(machine))[way.tool]
            tool.ask("open", how=way.how, period_s=way.period_s)  # one by one: Zeus gives its helpers 10 s to start
            running.append(tool)
        time.sleep(1.0)
        rounds = [cores_used([tool.pid for tool in running], bench.scale.cpu_s) for _ in range(bench.scale.cpu_rounds)]
    return [
        100 * statistics.median(used) / gpus for used, (_, gpus) in zip(zip(*rounds, strict=True), cases, strict=True)
    ]


def cores_used(pids: Sequence[int], duration_s: float) -> list[float]:
    begin_s, begin_cpu_s = time.monotonic(), [cpu_time_s(pid) for pid in pids]
    time.sleep(duration_s)
    passed_s = time.monotonic() - begin_s
    return [(cpu_time_s(pid) - before_s) / passed_s for pid, before_s in zip(pids, begin_cpu_s, strict=True)]


def cpu_time_s(pid: int) -> float:
    """CPU time of a process and its descendants, to the nanosecond and with threads that have ended."""
    import psutil

    family = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    return sum(time.clock_gettime(~each << 3 | 2) for each in family)  # how Linux names the CPU clock of a process


def imports(bench: Bench) -> Iterator[Table]:
    statements = {
        "import wattsmith": OURS,
        "from wattsmith.flows.measuring import measure": OURS,
        "from zeus.monitor import ZeusMonitor": ZEUS,
        "from codecarbon import EmissionsTracker": CODECARBON,
    }
    statements = {each: tool for each, tool in statements.items() if tool in bench.tools}
    environment = {**os.environ, **bench.machine().environment()}
    took_s: dict[str, list[float]] = {each: [] for each in statements}
    for turn in range(bench.scale.imports + 1):
        for statement, tool in statements.items():
            program = f"import time; b = time.perf_counter()\n{statement}\nprint(time.perf_counter() - b)"
            command = [bench.python_of(tool), "-c", program]
            done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
            if turn > 0:  # the first one fills the caches of files and of compiled modules
                took_s[statement].append(float(done.stdout.split()[-1]))
    median_s = {each: statistics.median(figures) for each, figures in took_s.items()}
    reference_s = median_s["from wattsmith.flows.measuring import measure"]
    yield Table(
        title="5. Time to import in a fresh interpreter, median s",
        heads=["statement", "s", "÷ measure"],
        rows=[[each, figure_s, figure_s / reference_s] for each, figure_s in median_s.items()],
    )
