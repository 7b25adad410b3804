"""Plans that a service is asked for: jobs and a pool as text."""

import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from wattsmith.flows.planning import Plan, Wish, WorkSchedule, match_named, moment, plan_files, read_series
from wattsmith.schedule.job_files import WrittenJob, read_jobs, read_pool
from wattsmith.schedule.series import Series
from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import Objective
from wattsmith.terms.telemetry import Match
from wattsmith.terms.work_schedule import SignalWindow, Span

SERIES = ("carbon", "tariff")
# More than these take long enough that others who ask the service would feel it; `wattsmith plan` takes them.
MOST_JOBS = 500
MOST_EXACT = 25
MOST_DEVICES = 10_000
MOST_HOURS = 20_000  # rows of a series


def planned(
    jobs: str,
    pool: str,
    wishes: Mapping[str, Any],
    *,
    now_s: float,
    home: Path,
    a_match: Callable[[str], Match | None],
) -> tuple[Plan, list[WorkSchedule], list[SignalWindow]]:
    """The plan of JOBS on POOL, both YAML, with the carbon and the tariff of its time.

    WISHES: `objective`, `deadline` as text, `budget_w`, `exact`, and `carbon` and `tariff` as CSV. A job may name a
    match that the service has made, which A_MATCH finds by its key; no file is read but what was sent.
    """
    made = {name: value for name, value in wishes.items() if value is not None}
    if "objective" in made:
        made["objective"] = _objective(str(made["objective"]))
    if "deadline" in made:
        made["deadline_s"] = moment(str(made.pop("deadline")), now_s)

    def find(job: WrittenJob, _: Path) -> Match:
        key = str(match_named(job))
        found = a_match(key)
        if found is None:
            raise job.at.plain["match"].wrong(f"there is no match {key!r:.80} here; give the key of one, or figures")
        return found

    with tempfile.TemporaryDirectory(dir=home) as folder, _named_as_sent(folder):
        for name in SERIES:
            if name in made:
                made[name] = _read_series(_written(folder, f"{name}.csv", made[name]))
        written, machines = _written(folder, "jobs.yaml", jobs), _written(folder, "pool.yaml", pool)
        _check_size(written, machines, now_s, exact=bool(made.get("exact")))
        wish = Wish(now_s=now_s, **made)
        found, schedules = plan_files(written, machines, wish, estimator=_no_models, find_match=find)
    signals = [one for name in SERIES if name in made for one in _within(made[name], name, found)]
    return found, schedules, signals


def _within(series: Series, kind: str, plan: Plan) -> Iterator[SignalWindow]:
    """SERIES as far as PLAN goes."""
    ends_s = (*series.times_s[1:], series.until_s)
    for from_s, until_s, value in zip(series.times_s, ends_s, series.values, strict=True):
        if from_s < plan.end_s and until_s > plan.begin_s:
            span = Span(from_s=max(from_s, plan.begin_s), until_s=min(until_s, plan.end_s))
            yield SignalWindow(span=span, kind=kind, value=value)


def _check_size(jobs: Path, pool: Path, now_s: float, *, exact: bool) -> None:
    """Raise BadInput where there is too much to be planned while others wait."""
    devices = sum(node.count for node in read_pool(pool))
    if devices > MOST_DEVICES:
        raise BadInput(f"pool.yaml: the service plans for up to {MOST_DEVICES:,} devices, and here are {devices:,}")
    most, how = (MOST_EXACT, "exactly ") if exact else (MOST_JOBS, "")
    if (count := len(read_jobs(jobs, now_s))) > most:
        raise BadInput(f"jobs.yaml: the service plans up to {most} jobs {how}at once, and here are {count:,}")


def _read_series(path: Path) -> Series:
    found = read_series(path)
    if len(found.values) > MOST_HOURS:
        raise BadInput(f"{path}: the service takes series of up to {MOST_HOURS:,} rows, got {len(found.values):,}")
    return found


def _written(folder: str, name: str, text: str) -> Path:
    path = Path(folder) / name
    path.write_text(text, encoding="utf-8")
    return path


@contextmanager
def _named_as_sent(folder: str) -> Iterator[None]:
    """Errors name what was sent, and not where it lay for a moment."""
    try:
        yield
    except BadInput as wrong:
        plain = str(wrong).replace(f"{folder}/", "")
        if plain == str(wrong):
            raise
        raise BadInput(plain, wrong.problems) from wrong


def _objective(name: str) -> Objective:
    try:
        return Objective(name)
    except ValueError as unknown:
        raise BadInput(f"objective must be one of {', '.join(Objective)}, got {name!r:.80}") from unknown


def _no_models(*_: Any, **__: Any) -> Any:
    raise BadInput("the service does not run models; give figures, or submit the job with its traced structure")
