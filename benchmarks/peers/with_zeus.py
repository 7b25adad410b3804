"""Zeus measures, on GPUs alone and without waiting for a framework's queued work, of which there is none."""

import time
import warnings
from importlib.metadata import version
from typing import Any

from peers.talk import Plan, keep_times, serve, timed_s

opened: dict[str, Any] = {}


def open_monitor(how: str, period_s: float | None = None) -> None:
    """HOW: "counter" is its window monitor, "polling" its power monitor, which reads every PERIOD_S."""
    from zeus.monitor import PowerMonitor, ZeusMonitor

    warnings.simplefilter("ignore")  # it warns of windows in which the counter did not move
    if how == "counter":
        opened["windows"] = ZeusMonitor(cpu_indices=[])
    else:
        opened["power"] = PowerMonitor(update_period=period_s)


def cost_s(count: int) -> list[float]:
    monitor = opened["windows"]

    def window() -> None:
        monitor.begin_window("cost", sync_execution=False)
        monitor.end_window("cost", sync_execution=False)

    return timed_s(window, count)


def measure_windows(plan: Plan) -> list[dict[str, Any]]:
    return polled_windows(plan) if "power" in opened else counted_windows(plan)


def counted_windows(plan: Plan) -> list[dict[str, Any]]:
    monitor, energies_j = opened["windows"], {}

    def end(i: int) -> None:
        energies_j[i] = list(monitor.end_window(f"window {i}", sync_execution=False).gpu_energy.values())

    times_s = keep_times(plan, lambda i: monitor.begin_window(f"window {i}", sync_execution=False), end)
    return [{"began_s": b, "ended_s": e, "energy_j": energies_j[i]} for i, (b, e) in enumerate(times_s)]


def polled_windows(plan: Plan) -> list[dict[str, Any]]:
    """It takes wall-clock times. Asked at every end, so that its queues run empty, and again when all is over."""
    monitor, began, ended = opened["power"], {}, {}

    def end(i: int) -> None:
        ended[i] = time.time()
        monitor.get_energy(began[i], ended[i])

    times_s = keep_times(plan, lambda i: began.update({i: time.time()}), end)
    for _ in range(5):
        time.sleep(0.1)
        monitor.get_energy(began[0], ended[0])
    figures = []
    for i, (began_s, ended_s) in enumerate(times_s):
        energies_j = list(monitor.get_energy(began[i], ended[i]).values())
        figures.append({"began_s": began_s, "ended_s": ended_s, "energy_j": energies_j})
    return figures


def measure_nothing() -> dict[str, Any]:
    """What a window says where there is no driver."""
    open_monitor("counter")
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        opened["windows"].begin_window("nothing", sync_execution=False)
        time.sleep(1.0)
        measured = opened["windows"].end_window("nothing", sync_execution=False)
    return {
        "energy_j": measured.total_energy,
        "says": f"total_energy={measured.total_energy!r}, gpu_energy={measured.gpu_energy!r}; {len(warned)} warnings",
    }


if __name__ == "__main__":
    serve(
        {
            "version": lambda: version("zeus"),
            "open": open_monitor,
            "cost": cost_s,
            "windows": measure_windows,
            "nothing": measure_nothing,
        }
    )
    if "power" in opened:
        opened["power"].stop()
