"""Telemetry of programs on this machine's GPU: power, use, memory, clocks, activity, steps. Settings are left alone.

`record_all` takes real networks and strangers (a trace each), then networks of the shipped record (their counters, in
one file) until its time is up. What is there already is passed over, and what fails is told and passed over too.
Layers of real networks are traced meanwhile by another process, which needs no GPU:

    python -m matching.recording DIR
"""

import gc
import gzip
import json
import math
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from wattsmith.flows.matching_live import Extra
from wattsmith.flows.measuring import open_session
from wattsmith.flows.telemetry_files import read_telemetry, write_telemetry
from wattsmith.match.points import KINDS
from wattsmith.measure.gpm import GpmReader
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.facts import as_plain
from wattsmith.terms.run import Run, Status
from wattsmith.terms.telemetry import Telemetry

WARM_STEPS = 3
LOOK_S = 0.1
SYNTHETIC_S = 1.1  # GPM's means need no longer
SLOWEST_S = 0.35  # steps of synthetic networks
SYNTHETIC, LAYERS = "synthetic.jsonl.gz", "layers.json.gz"


def record_one(step: Callable[[], None], wait: Callable[[], None], seconds_s: float, meters: str = "gpu") -> Telemetry:
    """What the device told while STEP was taken again and again for SECONDS_S; WAIT waits for the device."""
    for _ in range(WARM_STEPS):
        step()
    wait()
    extra = Extra(os.getpid(), None)
    extra.open()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(LOOK_S):
            extra.look()

    watcher = threading.Thread(target=look, daemon=True)
    with tempfile.TemporaryDirectory() as folder:
        timeline = Timeline(Path(folder) / "trace.csv")
        with open_session(meters, timeline=timeline) as session, session.measure("steps"):
            watcher.start()
            steps, lasted_s = taken_for(step, wait, seconds_s)
            stop.set()
            watcher.join()
        extra.close()
        timeline.close()
        read = read_telemetry(timeline.path)
    return replace(extra.added_to(read), notes=read.notes, steps_per_s=steps / lasted_s)


def taken_for(step: Callable[[], None], wait: Callable[[], None], seconds_s: float) -> tuple[int, float]:
    """Take STEP for SECONDS_S: how many, and how long they took. Never far ahead of the device."""
    steps, begin_s = 0, time.monotonic()
    while time.monotonic() - begin_s < seconds_s:
        step()
        steps += 1
        if steps % 8 == 0:
            wait()  # else a queue of a thousand launches would be worked off long after time is up
    wait()
    return steps, time.monotonic() - begin_s


def record_all(folder: Path, seconds_s: float, within_s: float = 225.0, device: str = "cuda:0") -> int:
    """How many traces were taken into FOLDER within WITHIN_S, of SECONDS_S each."""
    from matching.programs import held_out, strangers

    until_s = time.monotonic() + within_s
    folder.mkdir(parents=True, exist_ok=True)
    tracer = _start_tracer(folder)
    networks = [(network.name, network.batches[1], "bf16", partial(_step_of, network)) for network, _ in held_out()]
    taken = 0
    for name, batch, precision, make in [*networks, *((name, 1, "none", make) for name, make in strangers())]:
        path = folder / f"{name}-{batch}-{precision}.parquet"
        if not path.exists() and time.monotonic() < until_s - 2 * seconds_s:
            taken += _told(name, until_s, partial(_trace_into, path, make, device, seconds_s))
            _free(device)
    print(f"{taken} traces; counters of synthetic networks follow", flush=True)
    _record_synthetic(folder / SYNTHETIC, until_s, device)
    _end_tracer(tracer, until_s)
    return taken


def _told(name: str, until_s: float, take: Callable[[], str]) -> bool:
    began_s = time.monotonic()
    try:
        said = take()
    except Exception as failed:  # noqa: BLE001  # one that fails should not cost the others
        print(f"{name}: FAILED, {type(failed).__name__}: {str(failed)[:200]}", flush=True)
        return False
    now_s = time.monotonic()
    print(f"{name}: {said} ({now_s - began_s:.1f} s; {until_s - now_s:.0f} s are left)", flush=True)
    return True


def _step_of(network: Any, device: str) -> Callable[[], None]:
    from estimate_h200.networks import ready

    return ready(network, network.batches[1], "bf16", device).step


def _trace_into(path: Path, make: Callable[[str], Any], device: str, seconds_s: float) -> str:
    taken = record_one(make(device), _waiter(device), seconds_s, meters="nvidia")
    write_telemetry(taken, path)
    return f"{taken.steps_per_s:.2f} steps/s, {', '.join(taken.series)}"


def _waiter(device: str) -> Callable[[], None]:
    import torch

    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def _free(device: str) -> None:
    import torch

    gc.collect()
    if device.startswith("cuda"):
        torch.cuda.empty_cache()


# ---- Counters of networks of the shipped record


def in_turns(runs: list[Run]) -> list[Run]:
    """Measured networks of a record: kinds in turn, the commonest oftener, each in the record's own order."""
    fit = [
        run
        for run in runs
        if run.status is Status.MEASURED and run.workload.kind == "network" and not run.workload.compiled
        if run.times is not None and run.times.mean_s < SLOWEST_S
    ]
    by_kind: dict[str, list[Run]] = {}
    for run in fit:
        by_kind.setdefault(KINDS.get(run.workload.family, run.workload.family), []).append(run)
    due = [
        ((place + 0.5) / math.sqrt(len(of_kind)), kind, place, run)
        for kind, of_kind in by_kind.items()
        for place, run in enumerate(of_kind)
    ]
    return [run for *_, run in sorted(due, key=lambda one: one[:3])]


def _record_synthetic(path: Path, until_s: float, device: str) -> None:
    from wattsmith.flows.records import runs_of

    kept = read_lines(path)
    there = {one["key"] for one in kept}
    gpm = GpmReader(0)
    for run in in_turns(runs_of("h200")):
        if run.workload.key in there:
            continue
        if time.monotonic() > until_s - 3.0:
            break
        name = f"{run.workload.family} {run.workload.key[:6]}"
        if _told(name, until_s, partial(_counters_into, kept, run, gpm, device)):
            path.write_bytes(gzip.compress("\n".join(json.dumps(one) for one in kept).encode() + b"\n", mtime=0))
    gpm.close()
    print(f"counters of {len(kept)} synthetic networks", flush=True)


def _counters_into(kept: list[dict[str, Any]], run: Run, gpm: GpmReader, device: str) -> str:
    import pynvml

    from wattsmith.record.families import build

    handle, wait = pynvml.nvmlDeviceGetHandleByIndex(0), _waiter(device)
    with build(run.workload, device) as program:
        for _ in range(WARM_STEPS):
            program.step()
        wait()
        gpm.read()
        before_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
        steps, lasted_s = taken_for(program.step, wait, SYNTHETIC_S)
        seen = gpm.read()
        used_mj = pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before_mj
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
    kept.append(
        {
            "key": run.workload.key,
            "family": run.workload.family,
            "activity": {name: round(value, 5) for name, value in seen.items()},
            "steps_per_s": steps / lasted_s,
            "power_w": used_mj / 1_000 / lasted_s,  # NVML counts millijoules
            "memory_used_ratio": memory.used / memory.total,
        }
    )
    return f"{steps / lasted_s:.1f} steps/s, " + ", ".join(f"{name} {value:.3f}" for name, value in seen.items())


def read_lines(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).decode().splitlines() if line]


# ---- Layers, without a GPU


def _start_tracer(folder: Path) -> subprocess.Popen[bytes]:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "matching.recording", str(folder.resolve())]
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], env=environment)


def _end_tracer(tracer: subprocess.Popen[bytes], until_s: float) -> None:
    try:
        tracer.wait(timeout=max(1.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        print("layers of some networks were not traced in time", flush=True)
        tracer.terminate()
        tracer.wait()


def trace_layers(folder: Path) -> int:
    """What a step of each real network does, by its trace on tensors without values; how many were traced."""
    from estimate_h200.networks import ready
    from matching.programs import held_out
    from wattsmith.record.structure import trace

    path = folder / LAYERS
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes())) if path.exists() else {}
    for network, _ in held_out():
        name = f"{network.name}-{network.batches[1]}-bf16"
        if name in found:
            continue
        try:
            step = ready(network, network.batches[1], "bf16", "meta")
            how = {"parameters": list(step.module.parameters()), "inputs": step.inputs, "precision": "bf16"}
            found[name] = as_plain(trace(step.step, resident=list(step.module.buffers()), **how).structure)
        except Exception as failed:  # noqa: BLE001  # one that fails should not cost the others
            print(f"layers of {name}: FAILED, {type(failed).__name__}: {str(failed)[:200]}", flush=True)
            continue
        path.write_bytes(gzip.compress(json.dumps(found).encode(), mtime=0))
    return len(found)


if __name__ == "__main__":
    print(f"layers of {trace_layers(Path(sys.argv[1]))} networks", flush=True)
