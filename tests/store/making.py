"""Plain runs to count with."""

import dataclasses

from wattsmith.terms.energy import Source
from wattsmith.terms.run import (
    Condition,
    Consumption,
    Device,
    OperatorCount,
    Provenance,
    Run,
    Status,
    StepTimes,
    Structure,
)
from wattsmith.terms.work import Setting, Workload

H200 = Device(name="NVIDIA H200", kind="cuda", memory_bytes=150_754_820_096)
CNN = Workload(family="cnn", parameters={"filters": 8, "layers": 2}, batch=4)


def run_of(number: int = 0, *, session: str = "monday", **changes) -> Run:
    """A measured run whose workload and time are told apart by NUMBER; it took NUMBER + 1 seconds a step."""
    step_s = float(number + 1)
    run = Run(
        workload=dataclasses.replace(CNN, parameters={"filters": 8, "layers": number}),
        device=H200,
        setting=Setting(),
        status=Status.MEASURED,
        provenance=Provenance(
            measured_at=f"2026-11-16T12:{number // 60 % 60:02d}:{number % 60:02d}+00:00",
            session=session,
            hostname="host",
            versions={"torch": "2.13.0"},
        ),
        structure=Structure(
            parameters=1,
            parameter_bytes=4,
            input_bytes=4,
            flops=200.0,
            moved_bytes=100.0,
            launches=1,
            peak_bytes=8,
            operators={
                "conv": OperatorCount(calls=1, flops=150.0, moved_bytes=60.0),
                "norm": OperatorCount(calls=2, flops=50.0, moved_bytes=40.0),
            },
        ),
        times=StepTimes(
            steps=20, mean_s=step_s, median_s=step_s, spread_s=0.0, error_ratio=0.0, first_s=1.0, busy_s=0.1
        ),
        consumption=Consumption(window_s=2.0, step_energy_j=3.0, energy_source=Source.COUNTER),
        condition=Condition(throttled_by=("power cap",)),
        input_shape=(3, 32, 32),
    )
    return dataclasses.replace(run, **changes)


def failed_run(number: int = 0, **changes) -> Run:
    nothing = {"structure": None, "times": None, "consumption": None, "condition": None}
    return run_of(number, **{"status": Status.OUT_OF_MEMORY, "reason": "8 GiB wanted", **nothing, **changes})
