"""A record with curves, and the telemetry of a client that runs something like it."""

import math

from wattsmith.flows.records import opened
from wattsmith.terms.run import Condition, Consumption, Device, Provenance, Run, Status, StepTimes
from wattsmith.terms.work import Setting, Workload

LIMIT_W = 700.0
LEVELS_W = (350.0, 420.0, 490.0, 560.0, 630.0, 700.0)
H200 = Device(name="NVIDIA H200", kind="cuda", memory_bytes=141 << 30, simulated=True)


def draw_w(load: float, ratio: float = 1.0) -> float:
    """What a card draws at LOAD when its limit is RATIO of the usual one."""
    return 100.0 + 500.0 * load * ratio


def runs_at(load: float) -> list[Run]:
    """A network that keeps a card busy by LOAD, at six power limits: the higher the load, the more each costs it."""
    return [
        Run(
            workload=Workload(
                family="cnn" if load > 0.55 else "mlp", parameters={"width": round(100 * load)}, batch=64
            ),
            device=H200,
            setting=Setting(power_limit_w=limit_w),
            status=Status.MEASURED,
            provenance=Provenance(measured_at="2026-10-01T10:00:00+00:00", session="curves", hostname="rack-1"),
            times=StepTimes(steps=50, mean_s=step_s, median_s=step_s, spread_s=0.001, error_ratio=0.01, first_s=0.2),
            consumption=Consumption(
                window_s=20.0,
                power_w=draw_w(load, ratio),
                step_energy_j=draw_w(load, ratio) * step_s,
                peak_held_bytes=int(load * (100 << 30)),
                simulated=True,
            ),
            condition=Condition(power_limit_w=LIMIT_W, busy_ratio=load, clock_hz=1.98e9),
        )
        for limit_w in LEVELS_W
        for ratio in [limit_w / LIMIT_W]
        for step_s in [0.05 * (1 + 0.4 * load * (1 / ratio - 1))]
    ]


def fill_curves(place: str) -> None:
    """Twelve networks at six limits each."""
    with opened(place) as store:
        for number in range(12):
            for run in runs_at(0.3 + 0.05 * number):
                store.add(run)


ABOUT = {
    "version": "0.1.0",
    "host": "edge-1.lab",
    "devices": [
        {
            "domain": "gpu:0",
            "name": "NVIDIA H200",
            "memory_bytes": 141 << 30,
            "power_limit_w": LIMIT_W,
            "power_limit_range_w": [200.0, LIMIT_W],
            "max_clock_hz": 1.98e9,
            "simulated": True,
        }
    ],
    "knobs": ["gpu:0/power_limit"],
    "simulated": True,
}


def reports(load: float, until_s: float, count: int = 60) -> list[dict[str, object]]:
    """What the agent of a client tells that runs something of LOAD, a report a second."""
    return [
        {
            "boot": "b1",
            "number": number,
            "time_s": until_s - count + number,
            "steps": 20.0 * number,
            "domains": {
                "gpu:0": {
                    "power_w": draw_w(load) + 3 * math.sin(number),
                    "busy_ratio": load,
                    "memory_used_bytes": int(load * (100 << 30)),
                    "clock_hz": 1.98e9,
                    "power_limit_w": LIMIT_W,
                    "temperature_c": 61.0,
                }
            },
        }
        for number in range(1, count + 1)
    ]
