"""Load for a measured session: by LoadGen, or by a small generator of our own that says it is not LoadGen."""

import dataclasses
import importlib.util
import random
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from wattsmith.report.formats.mllog import LogEvent, loadgen_line, log_events
from wattsmith.report.formats.stamps import stamp, stamp_s
from wattsmith.report.window import SAMPLES_OF_MULTISTREAM, Scenario
from wattsmith.terms.errors import BadInput, CommandNotStarted, ExtraNeeded

Work = Callable[[Sequence[int]], None]  # does the samples of these numbers, and comes back when they are done
DETAIL, SUMMARY = "mlperf_log_detail.txt", "mlperf_log_summary.txt"
NOT_LOADGEN = "wattsmith's own generator; this is not LoadGen"
LIBRARY = 1024  # samples to choose from
PROBE_S = (0.25, 2.0)  # how long the rate of Offline work is tried before it is asked for, at least and at most
TRIES = 4  # of a load that turned out too short
SLACK = 1.3  # how much more Offline work is asked for than the rate found would need


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPlan:
    """What load to make."""

    scenario: Scenario
    least_duration_s: float
    batch: int = 1  # samples handed over at once in Offline
    rate_hz: float | None = None  # Server: queries a second; Offline: the rate to expect, None: try it first
    seed: int = 1

    def __post_init__(self) -> None:
        if not 0 < self.least_duration_s <= 86_400:
            raise BadInput(f"a run lasts from 0 s to a day, not {self.least_duration_s:g} s")
        if not 1 <= self.batch <= 1_000_000:
            raise BadInput(f"a batch holds from 1 to a million samples, not {self.batch}")
        if self.rate_hz is not None and not 0 < self.rate_hz < 1e7:
            raise BadInput(f"a rate is positive, not {self.rate_hz:g} a second")
        if self.scenario in (Scenario.SERVER, Scenario.INTERACTIVE) and self.rate_hz is None:
            raise BadInput(f"{self.scenario} needs the rate at which queries come: give --rate")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What load was made."""

    generator: str
    is_loadgen: bool
    valid: bool  # as the generator itself judges
    window_s: float
    samples_hz: float | None  # None: the scenario has no such result


def has_loadgen() -> bool:
    return importlib.util.find_spec("mlperf_loadgen") is not None


def generate(work: Work, plan: LoadPlan, folder: Path, *, use_loadgen: bool) -> Loaded:
    """Put the load of PLAN on WORK and leave its two logs in FOLDER. What WORK raises comes out here."""
    if use_loadgen and not has_loadgen():
        raise ExtraNeeded(
            "LoadGen is not installed: `pip install 'wattsmith[loadgen]'`, or do without it: --no-loadgen"
        )
    folder.mkdir(parents=True, exist_ok=True)
    guarded = _Guarded(work)
    if plan.scenario is Scenario.OFFLINE and plan.rate_hz is None:
        probe_s = min(max(PROBE_S[0], plan.least_duration_s / 30), PROBE_S[1])
        plan = dataclasses.replace(plan, rate_hz=_rate_hz(work, plan.batch, probe_s))
    for _ in range(TRIES):
        (_run_loadgen if use_loadgen else _run_own)(guarded, plan, folder)
        if guarded.failed is not None:
            raise guarded.failed
        loaded = read_load(folder)
        # LoadGen fixes the amount of Offline work beforehand: where the machine got faster, it ends too early.
        if plan.scenario is not Scenario.OFFLINE or loaded.window_s >= plan.least_duration_s or not loaded.samples_hz:
            break
        plan = dataclasses.replace(plan, rate_hz=max(loaded.samples_hz, plan.rate_hz or 0.0))
    return loaded


def read_load(folder: Path) -> Loaded:
    """What the logs in FOLDER say of the load. Raises BadInput when they lack what a session needs."""
    keys = {"loadgen_version", "result_validity", "result_samples_per_second", "result_completed_samples_per_sec"}
    told: dict[str, Any] = {}
    for event in log_events(folder / DETAIL, None, keys | {"power_begin", "power_end"}):
        if isinstance(event, LogEvent):
            told.setdefault(event.key, event.value)
    for key in ("power_begin", "power_end"):
        if key not in told:
            raise BadInput(f"{folder / DETAIL} has no {key}: it is no LoadGen log of a run that ended")
    version = str(told.get("loadgen_version", "unknown"))
    rate = told.get("result_samples_per_second", told.get("result_completed_samples_per_sec"))
    try:
        window_s = stamp_s(str(told["power_end"])) - stamp_s(str(told["power_begin"]))
    except ValueError as odd:
        raise BadInput(f"{folder / DETAIL}: power_begin or power_end is no date: {odd}") from odd
    return Loaded(
        generator=version,
        is_loadgen=version != NOT_LOADGEN,
        valid=told.get("result_validity") == "VALID",
        window_s=window_s,
        samples_hz=float(rate) if isinstance(rate, int | float) else None,
    )


# ---- work


def command_work(command: Sequence[str]) -> Work:
    """COMMAND, started once for every sample. It must end with 0; what it prints is not kept."""

    def work(samples: Sequence[int]) -> None:
        for _ in samples:
            try:
                done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False)
            except OSError as refused:
                code = 127 if isinstance(refused, FileNotFoundError) else 126
                raise CommandNotStarted(f"cannot start {command[0]!r}: {refused.strerror}", code) from refused
            if done.returncode != 0:
                raise CommandNotStarted(
                    f"{command[0]!r} ended with {done.returncode} under load; a session counts only work that was done",
                    done.returncode if 0 < done.returncode < 256 else 1,
                )

    return work


def own_logs(command: Sequence[str], logs: Path, folder: Path) -> Loaded:
    """Run COMMAND, which uses LoadGen itself, once; take the logs that it leaves in LOGS into FOLDER."""
    for name in (DETAIL, SUMMARY):
        with suppress(FileNotFoundError):
            (logs / name).unlink()  # what an earlier run left must not be taken for this one's
    command_work(command)([0])
    folder.mkdir(parents=True, exist_ok=True)
    for name in (DETAIL, SUMMARY):
        if not (logs / name).is_file():
            raise BadInput(f"{command[0]!r} left no {name} in {logs}; give the folder of its LoadGen logs with --logs")
        shutil.copyfile(logs / name, folder / name)
    return read_load(folder)


class _Guarded:
    """Work whose failure is kept: an error cannot pass through LoadGen."""

    def __init__(self, work: Work) -> None:
        self._work = work
        self.failed: BaseException | None = None

    def __call__(self, samples: Sequence[int]) -> None:
        if self.failed is not None:
            time.sleep(0.01)  # the load goes on to its end; nothing is done any more, and not in a hurry
            return
        try:
            self._work(samples)
        except BaseException as failed:  # noqa: BLE001 - Ctrl-C too: raised again when LoadGen has ended
            self.failed = failed


def _rate_hz(work: Work, batch: int, probe_s: float) -> float:
    """How many samples WORK does in a second, tried for a moment."""
    began_s, done = time.monotonic(), 0
    while (passed_s := time.monotonic() - began_s) < probe_s:
        work(list(range(batch)))
        done += batch
    return max(1e-3, done / passed_s)


def _in_batches(work: Work, numbers: Sequence[int], batch: int) -> None:
    for at in range(0, len(numbers), batch):
        work(numbers[at : at + batch])


# ---- LoadGen


def _run_loadgen(work: Work, plan: LoadPlan, folder: Path) -> None:
    import mlperf_loadgen as loadgen

    waiting: SimpleQueue[Any] = SimpleQueue()
    at_once = plan.scenario not in (
        Scenario.SERVER,
        Scenario.INTERACTIVE,
    )  # there, queries come while others are being worked on

    def complete(queries: Sequence[Any]) -> None:
        _in_batches(work, [query.index for query in queries], plan.batch if at_once else 1)
        loadgen.QuerySamplesComplete([loadgen.QuerySampleResponse(query.id, 0, 0) for query in queries])

    def serve() -> None:
        while (queries := waiting.get()) is not None:
            complete(queries)

    def issue(queries: Sequence[Any]) -> None:
        if at_once:
            complete(queries)
        else:
            waiting.put([_Query(query.id, query.index) for query in queries])

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    system = loadgen.ConstructSUT(issue, lambda: None)
    library = loadgen.ConstructQSL(LIBRARY, LIBRARY, lambda _: None, lambda _: None)
    try:
        loadgen.StartTestWithLogSettings(system, library, _settings(loadgen, plan), _logs(loadgen, folder), "")
    finally:
        waiting.put(None)
        server.join()
        loadgen.DestroyQSL(library)
        loadgen.DestroySUT(system)
    for name in ("mlperf_log_accuracy.json", "mlperf_log_trace.json"):
        with suppress(FileNotFoundError):
            (folder / name).unlink()  # nothing of a performance run stands in them


@dataclass(frozen=True, slots=True)
class _Query:
    """A query as it must outlive the call that brought it."""

    id: int
    index: int


def _settings(loadgen: Any, plan: LoadPlan) -> Any:
    settings = loadgen.TestSettings()
    name = Scenario.SERVER if plan.scenario is Scenario.INTERACTIVE else plan.scenario  # the same to LoadGen
    settings.scenario = getattr(loadgen.TestScenario, name.value)
    settings.mode = loadgen.TestMode.PerformanceOnly
    settings.min_duration_ms = round(plan.least_duration_s * 1000)
    settings.min_query_count = 1
    settings.qsl_rng_seed = settings.sample_index_rng_seed = settings.schedule_rng_seed = plan.seed
    settings.multi_stream_samples_per_query = SAMPLES_OF_MULTISTREAM
    if plan.rate_hz is not None:
        settings.offline_expected_qps = plan.rate_hz * SLACK
        settings.server_target_qps = plan.rate_hz
    return settings


def _logs(loadgen: Any, folder: Path) -> Any:
    logs = loadgen.LogSettings()
    logs.enable_trace = False
    logs.log_output.outdir = str(folder)
    logs.log_output.copy_summary_to_stdout = False
    return logs


# ---- our own


def _run_own(work: Work, plan: LoadPlan, folder: Path) -> None:
    """The same scenarios and the same window, in the form of LoadGen's logs, under another name."""
    chance = random.Random(plan.seed)
    began_s, wall_begin_s = time.monotonic(), time.time()
    latencies_s, samples = _OWN[plan.scenario](work, plan, chance)
    passed_s = time.monotonic() - began_s
    wall_end_s = wall_begin_s + passed_s
    enough = passed_s >= plan.least_duration_s
    told: dict[str, Any] = {
        "loadgen_version": NOT_LOADGEN,
        "effective_scenario": plan.scenario.value,
        "effective_test_mode": "PerformanceOnly",
        "effective_min_duration_ms": round(plan.least_duration_s * 1000),
        "power_begin": stamp(wall_begin_s),
        "power_end": stamp(wall_end_s),
        "result_validity": "VALID" if enough else "INVALID",
        "result_min_duration_met": enough,
        "result_query_count": len(latencies_s),
        "result_qps_with_loadgen_overhead": len(latencies_s) / passed_s,
        "result_mean_latency_ns": round(1e9 * sum(latencies_s) / len(latencies_s)),
        "result_90.00_percentile_latency_ns": round(1e9 * sorted(latencies_s)[int(0.9 * len(latencies_s))]),
    }
    if plan.scenario is Scenario.OFFLINE:
        told["result_samples_per_second"] = samples / passed_s
    if plan.scenario is Scenario.SERVER:
        told["result_completed_samples_per_sec"] = samples / passed_s
    lines = [loadgen_line(key, value, passed_s) for key, value in told.items()]
    (folder / DETAIL).write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = [NOT_LOADGEN, f"Scenario : {plan.scenario.value}", f"Result is : {told['result_validity']}"]
    words += [f"{key} : {value}" for key, value in told.items() if key.startswith("result_")]
    (folder / SUMMARY).write_text("\n".join(words) + "\n", encoding="utf-8")


def _stream(work: Work, plan: LoadPlan, chance: random.Random) -> tuple[list[float], int]:
    """One query after another, until the time is over."""
    each = plan.scenario.samples_per_query
    began_s = time.monotonic()
    latencies_s: list[float] = []
    while not latencies_s or time.monotonic() - began_s < plan.least_duration_s:
        asked_s = time.monotonic()
        work([chance.randrange(LIBRARY) for _ in range(each)])
        latencies_s.append(time.monotonic() - asked_s)
    return latencies_s, each * len(latencies_s)


def _offline(work: Work, plan: LoadPlan, chance: random.Random) -> tuple[list[float], int]:
    """All samples at once, as many as the rate needs; more of them where it was too low."""
    count = max(plan.batch, round((plan.rate_hz or 1.0) * plan.least_duration_s * SLACK))
    began_s, done = time.monotonic(), 0
    while done < count or time.monotonic() - began_s < plan.least_duration_s:
        work([chance.randrange(LIBRARY) for _ in range(plan.batch)])
        done += plan.batch
    return [time.monotonic() - began_s], done


def _server(work: Work, plan: LoadPlan, chance: random.Random) -> tuple[list[float], int]:
    """Queries that come by chance at a given rate, worked on in the order in which they come."""
    assert plan.rate_hz is not None
    began_s, due_s = time.monotonic(), 0.0
    latencies_s: list[float] = []
    while due_s < plan.least_duration_s or not latencies_s:
        due_s += chance.expovariate(plan.rate_hz)
        time.sleep(max(0.0, began_s + due_s - time.monotonic()))
        work([chance.randrange(LIBRARY)])
        latencies_s.append(time.monotonic() - began_s - due_s)
    return latencies_s, len(latencies_s)


_OWN: dict[Scenario, Callable[[Work, LoadPlan, random.Random], tuple[list[float], int]]] = {
    Scenario.SINGLE_STREAM: _stream,
    Scenario.MULTI_STREAM: _stream,
    Scenario.OFFLINE: _offline,
    Scenario.SERVER: _server,
    Scenario.INTERACTIVE: _server,
}
