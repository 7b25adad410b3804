"""Jobs in an order in which each comes after those that it waits for."""

from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

from wattsmith.terms.schedule import Job, NoPlan


def in_order(jobs: Sequence[Job]) -> list[Job]:
    """JOBS so that each comes after those it waits for. Raises NoPlan that names a circle."""
    by_name = {job.name: job for job in jobs}
    if len(by_name) < len(jobs):
        twice = sorted({job.name for job in jobs if sum(other.name == job.name for other in jobs) > 1})
        raise NoPlan(f"two jobs are called {twice[0]!r}; give each a name of its own")
    for job in jobs:
        for name in job.after:
            if name not in by_name:
                raise NoPlan(f"job {job.name!r} waits for {name!r}, which is not among the jobs")
    if circle := circle_in({job.name: job.after for job in jobs}):
        raise NoPlan(f"jobs wait for each other in a circle: {' after '.join(circle)}")
    done: dict[str, Job] = {}
    left = list(reversed(jobs))
    while left:
        job = left[-1]
        before = [by_name[name] for name in job.after if name not in done]
        if before and job.name not in done:
            left.extend(reversed(before))
        else:
            done.setdefault(job.name, left.pop())
    return list(done.values())


def circle_in(after: Mapping[str, Sequence[str]]) -> list[str]:
    """Names that wait for each other, each for the next and the last for the first; empty: there are none."""
    try:
        TopologicalSorter(after).prepare()
    except CycleError as circle:
        names: list[str] = circle.args[1]  # each before the next
        return names[::-1]
    return []
