"""Devices that share a power budget."""

import itertools

import pytest
from hypothesis import assume, given, settings
from hypothesis.strategies import floats, lists, tuples
from tests.schedule.test_curves import response

from wattsmith.schedule.budget import share_budget
from wattsmith.schedule.easing import eased
from wattsmith.schedule.guard import guard_of, guarded_share
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import Doubt, NoPlan, OperatingPoint, Response
from wattsmith.terms.work import Setting

np = pytest.importorskip("numpy", reason="SHARED BUDGETS ARE NOT TESTED: numpy is not installed")

SLOW, FAST = (1.0, 100.0), (0.5, 200.0)  # one step a second on 100 W, two on 200 W
fleets = lists(lists(tuples(floats(0.1, 10), floats(10, 500)), min_size=1, max_size=4), min_size=1, max_size=4)


def test_the_power_goes_where_it_gives_most():
    eager, lazy = response(SLOW, FAST), response(SLOW, (0.9, 200.0))
    shared = share_budget([lazy, eager], 300.0)
    assert shared.choice == (0, 1)
    assert shared.power_w == 300.0
    assert shared.worth == 3.0


def test_who_does_not_fit_pauses():
    shared = share_budget([response(SLOW, idle_w=10.0), response(FAST, idle_w=10.0)], 215.0)
    assert shared.choice == (None, 0)
    assert shared.power_w == 210.0


def test_a_budget_below_idle_power_is_refused_with_what_would_do():
    with pytest.raises(NoPlan, match="draw 30 W when all pause"):
        share_budget([response(SLOW, idle_w=30.0)], 20.0)
    with pytest.raises(NoPlan, match="100 W at their lowest settings"):
        share_budget([response(SLOW)], 20.0, may_pause=False)


@pytest.mark.parametrize("budget_w", [0.0, -1.0, float("nan")])
def test_a_budget_must_be_positive(budget_w):
    with pytest.raises(BadTerm, match="positive"):
        share_budget([response(SLOW)], budget_w)


@settings(deadline=None, max_examples=60)
@given(fleets, floats(0.2, 1.2))
def test_few_devices_get_the_best_there_is(fleet, share):
    responses = [response(*rows) for rows in fleet]
    budget_w = share * sum(max(point.power_w for point in one.points) for one in responses)
    shared = share_budget(responses, budget_w)
    assert shared.power_w <= budget_w * (1 + 1e-9)
    best = 0.0
    for picks in itertools.product(*[[None, *one.points] for one in responses]):
        if sum(point.power_w for point in picks if point) <= budget_w:
            best = max(best, sum(point.rate for point in picks if point))
    assert shared.bound >= best * (1 - 1e-9)
    assert shared.worth >= 0.995 * best


@settings(deadline=None, max_examples=20)
@given(fleets, floats(0.5, 1.0))
def test_the_exact_method_is_never_worse_and_keeps_the_budget(fleet, share):
    pytest.importorskip("scipy")
    responses = [response(*rows) for rows in fleet]
    budget_w = share * sum(max(point.power_w for point in one.points) for one in responses)
    assume(budget_w > 0)
    exact = share_budget(responses, budget_w, exact=True)
    assert exact.power_w <= budget_w * (1 + 1e-6)
    assert exact.worth >= share_budget(responses, budget_w).worth * (1 - 1e-6)


def smooth(scale, rng, doubt, error=0.0):
    """A curve as GPUs have it: power rises with the limit, and speed less and less."""
    points = tuple(
        OperatingPoint(
            setting=Setting(power_limit_w=limit_w),
            rate=1 - (0.3 + 0.4 * scale) * (1 - limit_w / 300) ** 2,
            power_w=limit_w * (0.7 + 0.2 * scale) * max(0.5, 1 + error * rng.standard_normal()),
        )
        for limit_w in range(100, 301, 25)
    )
    return Response(points=points, doubt=doubt)


def overshoots(plans, devices, error, doubt):
    """The share of plans that truly draw more than their budget."""
    over = 0
    for seed in range(plans):
        scales = np.random.default_rng(seed).uniform(size=devices)
        true = [smooth(scale, np.random.default_rng(0), Doubt()) for scale in scales]
        rng = np.random.default_rng([seed, 1])
        seen = [smooth(scale, rng, doubt, error) for scale in scales]
        budget_w = 0.75 * sum(one.points[-1].power_w for one in true)
        shared, _ = guarded_share(seen, budget_w, may_pause=False)
        over += sum(one.points[place].power_w for one, place in zip(true, shared.choice, strict=True)) > budget_w
    return over / plans


def test_without_a_guard_band_most_plans_draw_more_than_they_may():
    assert overshoots(40, 16, 0.05, Doubt()) > 0.5


def test_with_the_doubt_stated_hardly_any_does():
    assert overshoots(150, 16, 0.05, Doubt(power_ratio=0.05)) <= 0.01


def test_independent_errors_ask_for_less_of_a_larger_fleet_and_common_ones_do_not():
    def share(devices, doubt):
        fleet = eased([smooth(0.5, np.random.default_rng(1), doubt) for _ in range(devices)])
        return guard_of(fleet, 150.0 * devices).guard_w / (150.0 * devices)

    apart, common = Doubt(power_ratio=0.05), Doubt(common_ratio=0.05)
    assert share(64, apart) < share(4, apart) / 2
    assert share(64, common) == pytest.approx(share(4, common), rel=0.05)
    assert share(4, Doubt()) == 0.0


def test_a_curve_that_is_smooth_already_stays_as_it_is():
    one = smooth(0.5, np.random.default_rng(0), Doubt(power_ratio=0.05, time_ratio=0.05))
    for before, after in zip(one.points, eased([one]).responses[0].points, strict=True):
        assert after.power_w == pytest.approx(before.power_w, rel=1e-3)
