"""What a search came to: trials judged, those that no other beats, and when the search has paid for itself."""

import math
from collections.abc import Sequence

from wattsmith.terms.tuning import Recommendation, Tried, Tuned
from wattsmith.tune.goals import MetricMissing, figure, value_of
from wattsmith.tune.judge import SPENT, Judge, Seen
from wattsmith.tune.search import Tuner

SIMULATED = "simulated"  # the metric that is 1 where energy comes from a simulated meter


def tuned(tuner: Tuner, objective: str, *, finished: bool) -> Tuned:
    """All that is to be said after TUNER's trials."""
    judge, recommendation = tuner.judge, tuner.recommend()
    tried = tuple(_judged(judge, at) for at in range(len(judge.seen)))
    spent_j = _spent_j(tried)
    return Tuned(
        objective=objective,
        limits=tuple(map(str, judge.limits)),
        trials=tried,
        recommendation=recommendation,
        pareto=tuple(at + 1 for at in pareto(judge.seen)),
        spent_j=spent_j,
        pays_back_after=_pays_back_after(judge, recommendation, spent_j),
        finished=finished,
        simulated=any(one.trial.metrics.get(SIMULATED) for one in tried),
    )


def _judged(judge: Judge, at: int) -> Tried:
    seen, trial = judge.seen[at], judge.trials[at]
    if seen.failed is not None:
        return Tried(number=at + 1, trial=trial, objective=None, excess_ratio=None)
    excess = math.expm1(judge.excess(seen)) if judge.limits else -1.0
    return Tried(number=at + 1, trial=trial, objective=value_of(trial.metrics, judge.objective), excess_ratio=excess)


def pareto(seen: Sequence[Seen]) -> list[int]:
    """Places in SEEN that no other beats in the objective and all that is limited; the least objective first."""
    worked = [at for at, one in enumerate(seen) if one.failed is None]
    figures = {at: (seen[at].objective, *seen[at].limited) for at in worked}

    def beaten(at: int) -> bool:
        mine = figures[at]
        return any(
            all(one <= two for one, two in zip(figures[other], mine, strict=True))
            and (figures[other] != mine or other < at)
            for other in worked
            if other != at
        )

    return sorted((at for at in worked if not beaten(at)), key=lambda at: figures[at])


def _spent_j(tried: Sequence[Tried]) -> float | None:
    """Energy of all trials that say theirs; a trial that failed is not counted when nobody measured it."""
    told = [one.trial.metrics.get(SPENT) for one in tried if one.objective is not None or one.trial.metrics]
    known = [one for one in told if one is not None]
    return sum(known) if known and len(known) == len(told) else None


def _pays_back_after(judge: Judge, recommendation: Recommendation, spent_j: float | None) -> float | None:
    """How much work, in units of the energy metric, saves as much energy as the search spent."""
    if spent_j is None:
        return None
    try:
        here = [figure(trial.metrics, "energy") for trial in judge.trials if _at(judge, trial.setting, None)]
        there = [figure(trial.metrics, "energy") for trial in judge.trials if _at(judge, trial.setting, recommendation)]
    except MetricMissing:
        return None
    saved_j = sum(here) / len(here) - sum(there) / len(there) if here and there else 0.0
    return spent_j / saved_j if saved_j > 0 else None


def _at(judge: Judge, setting: object, recommendation: Recommendation | None) -> bool:
    wanted = judge.space.setting(judge.space.present) if recommendation is None else recommendation.setting
    return setting == dict(wanted)
