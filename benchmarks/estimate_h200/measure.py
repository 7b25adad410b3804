"""Measure the real networks on a GPU: `cd benchmarks && python -m estimate_h200.measure OUT`.

What is there already is passed over, so it may be stopped and started again.
"""

import argparse
import gc
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from estimate_h200.networks import Network, networks, ready
from wattsmith.flows.measuring import open_session
from wattsmith.flows.record_worker import Desk, domains_of
from wattsmith.record.bench import Effort, bench
from wattsmith.store.lines import LinesStore
from wattsmith.terms.facts import as_plain
from wattsmith.terms.run import Run, Status
from wattsmith.terms.work import Setting, Workload

EFFORT = Effort(window_s=1.5, point_s=4.0)


def cases() -> Iterator[tuple[Network, int, str]]:
    """Networks by batch and precision; the middle batches first, so that stopping early leaves a fair picture."""
    for place in (1, 0, 2):
        for network in networks():
            for precision in ("bf16", "fp32"):
                yield network, network.batches[place], precision


def workload_of(network: Network, batch: int, precision: str) -> Workload:
    return Workload(
        family=network.name,
        parameters={"source": "torchvision or transformers"},
        batch=batch,
        precision=precision,
        optimizer=network.optimizer,
    )


def main() -> None:
    import json

    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    options = parser.parse_args()
    device = "cuda:0"
    desk = Desk(device, "nvidia", "real networks", json.dumps(as_plain(EFFORT)), 0)
    windows = open_session("nvidia")
    domains = domains_of(device, [card.domain for card in windows.cards])
    begin_s = time.monotonic()
    with LinesStore(options.out) as store:
        for network, batch, precision in cases():
            workload = workload_of(network, batch, precision)
            if store.has(workload, desk.host.device, Setting()):
                continue
            if time.monotonic() - begin_s > options.seconds:
                break
            step = ready(network, batch, precision, device)
            step.step()  # the first makes the optimizer's state, and chooses kernels
            measured = bench(
                step,
                device=device,
                domains=domains,
                windows=windows,
                effort=EFFORT,
                look=lambda: windows.look_at(domains[0]),
                by_call=batch == network.batches[1],
            )
            run = Run(
                workload=workload,
                device=desk.host.device,
                setting=Setting(),
                status=Status.MEASURED,
                provenance=replace(desk._now()),
                times=measured.times,
                consumption=measured.consumption,
                condition=measured.condition,
                input_shape=tuple(step.inputs[0].shape[1:]),
                calls=measured.calls,
            )
            store.add(run)
            times = measured.times
            busy_ms = (times.busy_s or 0.0) * 1e3
            print(
                f"{time.monotonic() - begin_s:6.1f} s {network.name} {batch} {precision}: {times.mean_s * 1e3:.2f} ms, "
                f"busy {busy_ms:.2f}, host {(times.host_s or 0.0) * 1e3:.2f}, {len(measured.calls)} calls, "
                f"{sum(one.busy_s or 0.0 for one in measured.calls) * 1e3:.2f} ms by call",
                flush=True,
            )
            del step
            gc.collect()
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
