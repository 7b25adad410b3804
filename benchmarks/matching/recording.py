"""Telemetry of real networks on this machine's GPU, one file each: power, use, memory, clocks, activity, steps."""

import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattsmith.flows.matching_live import Extra
from wattsmith.flows.measuring import open_session
from wattsmith.flows.telemetry_files import read_telemetry, write_telemetry
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.telemetry import Telemetry

WARM_STEPS = 3


def record_one(step: Callable[[], None], wait: Callable[[], None], seconds_s: float, meters: str = "gpu") -> Telemetry:
    """What the device told while STEP was taken again and again for SECONDS_S; WAIT waits for the device."""
    import os

    for _ in range(WARM_STEPS):
        step()
    wait()
    extra = Extra(os.getpid(), None)
    extra.open()
    stop = threading.Event()

    def look() -> None:
        while not stop.wait(0.1):
            extra.look()

    watcher = threading.Thread(target=look, daemon=True)
    with tempfile.TemporaryDirectory() as folder:
        timeline = Timeline(Path(folder) / "trace.csv")
        steps = 0
        with open_session(meters, timeline=timeline) as session, session.measure("steps"):
            watcher.start()
            begin_s = time.monotonic()
            while time.monotonic() - begin_s < seconds_s:
                step()
                steps += 1
            wait()
            lasted_s = time.monotonic() - begin_s
            stop.set()
            watcher.join()
        extra.close()
        timeline.close()
        read = read_telemetry(timeline.path)
    return replace(read, series={**read.series, **extra.series()}, steps_per_s=steps / lasted_s)


def record_all(folder: Path, seconds_s: float) -> int:
    """Every network of estimate_h200 at its middle batch, in bf16 and fp32; those that are there are passed over."""
    import gc

    import torch

    from estimate_h200.networks import networks, ready

    folder.mkdir(parents=True, exist_ok=True)
    taken = 0
    for network in networks():
        for precision in ("bf16", "fp32"):
            path = folder / f"{network.name}-{network.batches[1]}-{precision}.parquet"
            if path.exists():
                continue
            prepared = ready(network, network.batches[1], precision, "cuda:0")
            write_telemetry(record_one(prepared.step, torch.cuda.synchronize, seconds_s), path)
            taken += 1
            del prepared
            gc.collect()
            torch.cuda.empty_cache()
    return taken
