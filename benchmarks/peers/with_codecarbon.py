"""CodeCarbon measures, with no network, no file and no log. It always counts CPU and memory as well."""

import time
from importlib.metadata import version
from typing import Any

from peers.talk import Plan, keep_times, serve, timed_s

J_PER_KWH = 3.6e6
opened: list[Any] = []


def open_tracker(how: str, period_s: float | None = None) -> None:
    """HOW: "tasks" measures when told to, "sampling" all the time, every PERIOD_S; None is its own default."""
    from codecarbon import OfflineEmissionsTracker

    every = {} if period_s is None else {"measure_power_secs": period_s}
    tracker = OfflineEmissionsTracker(country_iso_code="FRA", output_methods=[], log_level="critical", **every)
    opened.append(tracker)
    if how == "sampling":
        tracker.start()
    else:
        tracker.start_task("first")  # it looks for hardware when it first starts
        tracker.stop_task("first")


def cost_s(count: int) -> list[float]:
    tracker = opened[-1]

    def task() -> None:
        tracker.start_task("cost")
        tracker.stop_task()

    return timed_s(task, count)


def measure_windows(plan: Plan) -> list[dict[str, Any]]:
    """One task after another. It gives one sum for all GPUs; its devices know their shares."""
    tracker, energies_j = opened[-1], {}
    devices = next(part.devices.devices for part in tracker._hardware if hasattr(part, "devices"))

    def end(i: int) -> None:
        whole_j = tracker.stop_task().gpu_energy * J_PER_KWH
        energies_j[i] = [device.energy_delta.kWh * J_PER_KWH for device in devices]
        if abs(sum(energies_j[i]) - whole_j) > 0.01:
            raise AssertionError(f"its devices used {energies_j[i]} J, and it says {whole_j} J")

    times_s = keep_times(plan, lambda i: tracker.start_task(f"window {i}"), end)
    return [{"began_s": b, "ended_s": e, "energy_j": energies_j[i]} for i, (b, e) in enumerate(times_s)]


def measure_nothing() -> dict[str, Any]:
    """What a task says where there is no driver."""
    open_tracker("tasks")
    opened[-1].start_task("nothing")
    time.sleep(1.0)
    data = opened[-1].stop_task()
    parts = {"cpu": data.cpu_energy, "gpu": data.gpu_energy, "ram": data.ram_energy}
    shares = ", ".join(f"{name} {energy_kwh * J_PER_KWH:.1f} J" for name, energy_kwh in parts.items())
    energy_j = data.energy_consumed * J_PER_KWH
    return {"energy_j": energy_j, "says": f"energy_consumed={energy_j:.1f} J ({shares})"}


if __name__ == "__main__":
    serve(
        {
            "version": lambda: version("codecarbon"),
            "open": open_tracker,
            "cost": cost_s,
            "windows": measure_windows,
            "nothing": measure_nothing,
        }
    )
