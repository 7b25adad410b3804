"""Wattsmith measures."""

import time
from importlib.metadata import version
from typing import Any

from peers.talk import Plan, keep_times, serve, timed_s
from wattsmith.flows.measuring import measure, open_session, session_for
from wattsmith.measure.session import OpenWindow, Session

opened: list[Session] = []


def open_meters(how: str, period_s: float | None = None) -> None:
    """HOW: "counter" is the default of the tool, "polling" integrates power alone, read every PERIOD_S."""
    if how == "counter" and period_s is None:
        opened.append(session_for("nvidia"))
    else:
        poll_hz = None if period_s is None else 1 / period_s
        opened.append(open_session("nvidia", poll_hz=poll_hz, use_counter=how == "counter"))


def cost_s(count: int) -> list[float]:
    session = opened[-1]
    return timed_s(lambda: session.end(session.begin("cost")), count)


def cost_of_with_s(count: int) -> list[float]:
    def window() -> None:
        with measure("cost", meters="nvidia"):
            pass

    return timed_s(window, count)


def figures_s(count: int) -> dict[str, list[float]]:
    """What a figure takes: asked for at once, and asked for later."""
    session, at_once_s = opened[-1], []
    for _ in range(min(count, 10)):
        window = session.end(session.begin("at once"))
        at_once_s += timed_s(window.result, 1)
    windows = [session.end(session.begin("later")) for _ in range(count)]
    time.sleep(1.5)
    return {"at once": at_once_s, "later": [timed_s(window.result, 1)[0] for window in windows]}


def measure_windows(plan: Plan) -> list[dict[str, Any]]:
    session = opened[-1]
    windows: dict[int, OpenWindow] = {}
    times_s = keep_times(
        plan, lambda i: windows.__setitem__(i, session.begin(f"window {i}")), lambda i: session.end(windows[i])
    )
    figures = []
    for i, (began_s, ended_s) in enumerate(times_s):
        domains = windows[i].result().domains
        figures.append(
            {
                "began_s": began_s,
                "ended_s": ended_s,
                "energy_j": [domain.energy_j for domain in domains],
                "error_j": [domain.error_j for domain in domains],
                "missed": sum(domain.missed for domain in domains),
            }
        )
    return figures


def measure_nothing() -> dict[str, Any]:
    """What a window says where there is no driver."""
    with open_session("auto") as session:
        with session.measure("nothing") as window:
            time.sleep(1.0)
        result = window.result()
    gpu = [domain for domain in result.domains if domain.kind == "gpu"]
    why = result.missing.get("nvidia")
    return {
        "gpu_energy_j": sum(domain.energy_j or 0.0 for domain in gpu) if gpu else None,
        "energy_j": result.energy_j,
        "why": why,
        "says": f"energy_j={result.energy_j}, missing: {why}",
    }


if __name__ == "__main__":
    serve(
        {
            "version": lambda: version("wattsmith"),
            "open": open_meters,
            "cost": cost_s,
            "cost of with": cost_of_with_s,
            "figures": figures_s,
            "windows": measure_windows,
            "nothing": measure_nothing,
        }
    )
    for session in opened:
        session.close()
