"""The service in figures that Prometheus scrapes."""

from collections.abc import Mapping
from typing import Any

from wattsmith.terms.service import JobState


def metrics_text(
    *, jobs: Mapping[JobState, int], late: int, clients: int, heard: int, pool: Mapping[str, Any], runs: int
) -> str:
    """What is known now; what is not known is left out."""
    from prometheus_client import CollectorRegistry, Gauge, generate_latest

    registry = CollectorRegistry()

    def tell(name: str, text: str, value: float | None, **labels: str) -> None:
        if value is not None:
            gauge(name, text, *labels).labels(**labels).set(value) if labels else gauge(name, text).set(value)

    made: dict[str, Gauge] = {}

    def gauge(name: str, text: str, *labels: str) -> Gauge:
        if name not in made:
            made[name] = Gauge(f"wattsmith_service_{name}", text, labels, registry=registry)
        return made[name]

    for state in JobState:
        tell("jobs", "Jobs by where they stand.", jobs.get(state, 0), state=str(state))
    tell("jobs_late", "Jobs that are not over and will miss, or have missed, their deadlines.", late)
    tell("clients", "Client devices that were ever heard of.", clients)
    tell("clients_heard", "Client devices that were heard of within the last minute.", heard)
    tell("record_runs", "Runs in the record.", runs)
    tell("pool_power_watts", "Power of the pool, as far as it is measured.", pool["power_w"])
    tell("pool_believed_watts", "Power of the pool, as predicted and corrected.", pool["believed_w"])
    tell("pool_budget_watts", "Power budget of the pool.", pool["budget_w"])
    over = "Power by which the pool is believed to be above its budget, where nothing more may be lowered or paused."
    tell("pool_over_budget_watts", over, pool["over_budget_w"])
    for node in pool["nodes"]:
        tell("node_lost", "1 where a machine of the pool does not answer.", float(node["lost"]), node=node["name"])
        busy = sum(1 for device in node["devices"] if device["job"] is not None)
        tell("node_busy_devices", "Devices that have a job.", busy, node=node["name"])
    return generate_latest(registry).decode()
