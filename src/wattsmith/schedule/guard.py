"""How much of a budget is kept free, as follows from the stated doubt of the predictions.

Three things make the sum of true powers differ from the sum of predicted ones:

- errors that differ from device to device: their sum grows with the root of the number of devices;
- an error that all share: it grows with the number;
- choice: of several settings, those are preferred whose power is under-estimated. So the chosen ones are hungrier than
  they look even where all predictions are right on average. How much so is found by planning again with errors drawn
  from the stated doubt, and looking what the choice then really draws.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from wattsmith.schedule.budget import Fleet, Shared, share_budget
from wattsmith.schedule.easing import Eased, eased
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import Response

OVERSHOOTS = 0.01  # share of plans that may draw more than the budget
CAUTION = 0.3  # the guard aims at this share of OVERSHOOTS: its own parts are estimates too
DRAWS = 2560  # devices that are planned again, in all
LEVELS = (2.0, -1.0)  # weights of what one and two errors on top give, to follow the line back to none


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What is kept free of a budget, and why."""

    guard_w: float
    chosen_w: float  # of that, because under-estimated settings are preferred
    apart_w: float  # one standard deviation of errors that differ between devices, all together
    common_w: float  # one standard deviation of the error that all share
    sigmas: float  # how many of them are kept


def guarded_share(
    responses: Sequence[Response],
    budget_w: float,
    *,
    weights: Sequence[float] | None = None,
    overshoots: float = OVERSHOOTS,
    exact: bool = False,
    may_pause: bool = True,
    seed: int = 0,
) -> tuple[Shared, Guard]:
    """`share_budget` within what is left of BUDGET_W after a guard band, so that the true power is above it in at
    most the share OVERSHOOTS of all plans."""
    smoother = eased(responses)
    guard = guard_of(smoother, budget_w, weights=weights, overshoots=overshoots, may_pause=may_pause, seed=seed)
    left_w = budget_w - guard.guard_w
    least_w = sum(one.idle_w if may_pause else min(p.power_w for p in one.points) for one in smoother.responses)
    if left_w < least_w <= budget_w:
        left_w = least_w  # the least power is all that can be done
    return share_budget(smoother.responses, left_w, weights=weights, exact=exact, may_pause=may_pause), guard


def guard_of(
    smoother: Eased,
    budget_w: float,
    *,
    weights: Sequence[float] | None = None,
    overshoots: float = OVERSHOOTS,
    may_pause: bool = True,
    seed: int = 0,
) -> Guard:
    """The guard band of a plan for these devices within BUDGET_W."""
    responses = smoother.responses
    if not 0 < overshoots < 0.5:
        raise BadTerm(f"overshoots must be a share between 0 and 0.5, got {overshoots}")
    if all(one.doubt.power_ratio == 0 and one.doubt.common_ratio == 0 for one in responses):
        return Guard(guard_w=0.0, chosen_w=0.0, apart_w=0.0, common_w=0.0, sigmas=0.0)
    import numpy as np

    fleet = Fleet(responses, weights, may_pause=may_pause)
    chosen_w, real_w = _choice(fleet, budget_w, smoother, np.random.default_rng(seed))
    doubts = np.array([one.doubt.power_ratio for one in responses])
    # By device, since a few hundred draws tell the spread of a sum less well than the doubts themselves do.
    spread_w = math.sqrt(float(((doubts * real_w) ** 2).sum(axis=1).mean()))
    drawn_w = float(real_w.sum(axis=1).mean())
    common_w = max(one.doubt.common_ratio for one in responses) * drawn_w
    sigmas = NormalDist().inv_cdf(1 - CAUTION * overshoots)
    over_w = chosen_w + sigmas * math.hypot(spread_w, common_w)
    # Predictions are off by a share of the truth: a prediction that is x too low is exceeded by x / (1 - x) of itself.
    share = min(1.0, over_w / drawn_w) if drawn_w > 0 else 0.0
    return Guard(guard_w=share * budget_w, chosen_w=chosen_w, apart_w=spread_w, common_w=common_w, sigmas=sigmas)


def _choice(fleet: Fleet, budget_w: float, smoother: Eased, rng: Any) -> tuple[float, Any]:
    """By how much a choice on erring predictions draws more than predicted, and by draw and device what it draws.

    The predictions err already, and a choice among powers that lie further apart than the true ones looks surer than
    it is. So the same is found with more error still, and followed back to none.
    """
    import numpy as np

    count = max(4, min(192, math.ceil(DRAWS / len(fleet.power_w))))
    size = (count, *fleet.power_w.shape)
    known = np.isfinite(fleet.power_w)
    true_w = np.broadcast_to(np.where(known, fleet.power_w, 0.0), size)
    worth = np.broadcast_to(np.where(known, fleet.worth, -math.inf), size)
    power_errors, rate_errors = (_errors(each, fleet.power_w.shape) for each in (smoother.power, smoother.rate))
    price = _price(true_w[:1], worth[:1], known, budget_w, None)[0]
    over_w, drawn_w = [], true_w[..., 0]
    for _ in LEVELS:
        seen_w = true_w * np.exp(_drawn(power_errors, count, rng))
        seen = worth * np.exp(_drawn(rate_errors, count, rng))
        picked = _picked(seen_w, seen, known, _price(seen_w, seen, known, budget_w, price))
        here_w = np.take_along_axis(true_w, picked, axis=2)[..., 0]
        over_w.append(float((here_w - np.take_along_axis(seen_w, picked, axis=2)[..., 0]).sum(axis=1).mean()))
        drawn_w = here_w if len(over_w) == 1 else drawn_w
        true_w, worth = seen_w, seen
    back_w = sum(times * each for times, each in zip(LEVELS, over_w, strict=True))
    return max(0.0, back_w, over_w[0]), drawn_w


def _errors(left: Sequence[Any], shape: tuple[int, int]) -> Any:
    """By device the matrix that makes errors of its eased curve from independent ones; a pause has none."""
    import numpy as np

    errors = np.zeros((*shape, max(each.shape[1] for each in left)))
    for row, each in enumerate(left):
        errors[row, : each.shape[0], : each.shape[1]] = each
    return errors


def _drawn(errors: Any, count: int, rng: Any) -> Any:
    import numpy as np

    independent = rng.standard_normal((len(errors), errors.shape[2], count))
    return np.matmul(errors, independent).transpose(2, 0, 1)


def _price(power_w: Any, worth: Any, known: Any, budget_w: float, near: float | None) -> Any:
    """By draw the price of a watt at which the best settings just keep the budget; NEAR: about where it is."""
    import numpy as np

    low, high = (1e-12, 1e12) if near is None else (near / 8, near * 8)
    lows, highs = np.full(len(power_w), low), np.full(len(power_w), high)
    for _ in range(64 if near is None else 14):
        prices = np.sqrt(lows * highs)
        picked = _picked(power_w, worth, known, prices)
        over = np.take_along_axis(power_w, picked, axis=2)[..., 0].sum(axis=1) > budget_w
        lows, highs = np.where(over, prices, lows), np.where(over, highs, prices)
    return highs


def _picked(power_w: Any, worth: Any, known: Any, prices: Any) -> Any:
    """By draw and device the place of the best setting at these prices of a watt."""
    net = worth - prices[:, None, None] * power_w
    net[:, ~known] = -math.inf
    return net.argmax(axis=2)[..., None]
