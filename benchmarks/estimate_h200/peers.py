"""What PyTorch's own estimator says of the same steps: `cd benchmarks && python -m estimate_h200.peers OUT`, on a GPU.

`torch.distributed._tools.RuntimeEstimator` in both its ways: a roofline over the data sheet, and every operator run by
itself on the card. Neither runs the step. What it cannot do is written down with its reason.
"""

import argparse
import json
import time
from pathlib import Path

from estimate_h200.measure import cases
from estimate_h200.networks import Network, ready

WAYS = ("operator-level-cost-model", "operator-level-benchmark")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--way", choices=WAYS, help="only this one")
    options = parser.parse_args()
    begin_s = time.monotonic()
    with options.out.open("a") as file:
        for way in [options.way] if options.way else WAYS:
            for network, batch, precision in cases():
                if time.monotonic() - begin_s > options.seconds:
                    return
                line = {"name": network.name, "batch": batch, "precision": precision, "way": way}
                line |= said(network, batch, precision, way)
                print(f"{time.monotonic() - begin_s:6.1f} s {line}", flush=True)
                file.write(json.dumps(line) + "\n")


def said(network: Network, batch: int, precision: str, way: str) -> dict[str, float | str]:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.distributed._tools.runtime_estimator import RuntimeEstimator

    estimator = RuntimeEstimator()
    try:
        with FakeTensorMode():
            step = ready(network, batch, precision, "cuda:0")
            with estimator(estimate_mode_type=way):
                step.step()
    except Exception as refused:  # noqa: BLE001 - a peer that cannot is part of the comparison
        return {"failed": f"{type(refused).__name__}: {refused}"[:200]}
    return {"busy_s": estimator.total_runtime / 1e3}


if __name__ == "__main__":
    main()
