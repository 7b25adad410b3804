"""What somebody should look at, the worst first."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from wattsmith.serve.page.words import age
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.service import Client, JobState, ServedJob

SILENT_S = 30.0  # an agent that said nothing for so long
SKEWED_S = 5.0
RECENT_S = 86400.0
MOST_NAMED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """One thing to look at."""

    grave: bool
    text: str
    link: str
    since_s: float | None = None


def notices(
    jobs: Sequence[ServedJob], clients: Sequence[Client], pool: Mapping[str, Any], *, runs: int | None, now_s: float
) -> list[Notice]:
    """All that needs attention. RUNS: how many the record holds; None: not known."""
    found = [*of_pool(pool), *of_jobs(jobs, now_s), *of_clients(clients, now_s)]
    if runs == 0:
        found.append(
            Notice(
                grave=False,
                text="The record is empty, so that nothing can be estimated. Measure: wattsmith record run",
                link="/record",
            )
        )
    return sorted(found, key=lambda one: not one.grave)


def of_pool(pool: Mapping[str, Any]) -> Iterator[Notice]:
    if pool.get("trouble"):
        yield Notice(grave=True, text=f"The service cannot go on: {pool['trouble']}", link="/")
    for node in pool["nodes"]:
        if node["lost"]:
            yield Notice(grave=True, text=f"Node {node['name']} is lost: its jobs run again elsewhere", link="/")
    budget_w, power_w = pool["budget_w"], pool["power_w"]
    if budget_w is not None and power_w is not None and power_w > budget_w:
        drawn, allowed = (format_quantity(each, "power", 3) for each in (power_w, budget_w))
        yield Notice(grave=True, text=f"{drawn} is drawn, and the budget is {allowed}", link="/")
    elif pool.get("over_budget_because"):
        yield Notice(grave=True, text=pool["over_budget_because"], link="/")
    if budget_w is not None and pool.get("idle_unknown_because"):
        yield Notice(grave=False, text=f"Of the budget: {pool['idle_unknown_because']}", link="/")


def of_jobs(jobs: Sequence[ServedJob], now_s: float) -> Iterator[Notice]:
    for job in jobs:
        link = f"/jobs/{job.id}"
        if job.trouble:
            yield Notice(grave=False, text=f"{job.name}: {job.trouble}", link=link)
        if job.state is JobState.FAILED and now_s - (job.ended_s or job.submitted_s) < RECENT_S:
            why = f": {job.reason}" if job.reason else ""
            yield Notice(grave=True, text=f"{job.name} failed{why}", link=link, since_s=job.ended_s)
        elif job.state is JobState.REFUSED and now_s - (job.ended_s or job.submitted_s) < RECENT_S:
            yield Notice(grave=False, text=f"{job.name} was refused: {job.reason or 'no reason is known'}", link=link)
        elif not job.state.is_over:
            yield from _of_deadline(job, now_s)


def _of_deadline(job: ServedJob, now_s: float) -> Iterator[Notice]:
    if job.deadline_s is None:
        return
    link = f"/jobs/{job.id}"
    by = f" by {age(job.late_by_s)}" if job.late_by_s is not None else ""
    if now_s > job.deadline_s:
        yield Notice(grave=True, text=f"{job.name} has missed its deadline", link=link, since_s=job.deadline_s)
    elif job.late_by_s is not None and job.late_by_s > 0:
        yield Notice(grave=True, text=f"{job.name} will miss its deadline{by}", link=link)
    elif job.predicted is not None and job.predicted.duration_s is not None:
        time_s = job.predicted.duration_s
        began_s = job.attempts[-1].started_s if job.attempts and job.attempts[-1].ended_s is None else now_s
        if began_s + time_s.high > job.deadline_s:
            certain = began_s + time_s.low > job.deadline_s
            word = "will miss" if certain else "may miss"
            yield Notice(grave=certain, text=f"{job.name} {word} its deadline", link=link)


def of_clients(clients: Sequence[Client], now_s: float) -> Iterator[Notice]:
    silent = [one for one in clients if now_s - one.last_seen_s > SILENT_S]
    if silent:
        longest_s = now_s - min(one.last_seen_s for one in silent)
        yield Notice(
            grave=False,
            text=f"{_named(silent)} silent, for up to {age(longest_s)}",
            link="/machines?sort=seen",
        )
    skewed = [one for one in clients if one.skew_s is not None and abs(one.skew_s) > SKEWED_S]
    if skewed:
        yield Notice(
            grave=False, text=f"{_named(skewed)} off by more than {SKEWED_S:.0f} s: set the clock", link="/machines"
        )
    refusing = [one for one in clients if one.latest is not None and one.latest.refused]
    if refusing:
        yield Notice(
            grave=False, text=f"{_named(refusing)} not allowed to set what the schedule asks for", link="/machines"
        )


def _named(clients: Sequence[Client]) -> str:
    if len(clients) > MOST_NAMED:
        return f"{len(clients):,} machines are"
    names = [one.name for one in clients]
    return f"{names[0]} is" if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]} are"
