"""Responses, their hulls, and one job within a deadline."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis.strategies import floats, lists, tuples

from wattsmith.schedule.curves import energy_hull, is_convex, rate_hull, response_from_rows, thinned
from wattsmith.schedule.deadline import least_energy
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import NoPlan, OperatingPoint, Response
from wattsmith.terms.work import Setting


def response(*rows, idle_w=0.0):
    """A response of rows (seconds per step, watts)."""
    return response_from_rows(
        [(Setting(power_limit_w=100.0 + place), step_s, power_w) for place, (step_s, power_w) in enumerate(rows)],
        idle_w=idle_w,
    )


some_rows = lists(tuples(floats(0.1, 10), floats(10, 500)), min_size=1, max_size=8)


def test_rows_of_one_setting_are_averaged_over_their_time():
    rows = [(Setting(clock_hz=1e9), 1.0, 100.0), (Setting(clock_hz=1e9), 3.0, 200.0)]
    (point,) = response_from_rows(rows).points
    assert point.step_s == 2.0
    assert point.power_w == pytest.approx(175.0)  # (1 × 100 + 3 × 200) / 4


@pytest.mark.parametrize("row", [(0.0, 100.0), (1.0, -5.0), (math.nan, 100.0), (1.0, math.inf)])
def test_a_row_that_makes_no_sense_is_refused(row):
    with pytest.raises(BadTerm, match="positive"):
        response(row)


def test_a_slower_setting_that_saves_nothing_is_not_on_the_hull():
    hull = energy_hull(response((1.0, 100.0), (2.0, 60.0), (2.0, 40.0)))
    assert [(point.step_s, point.step_energy_j) for point in hull] == [(1.0, 100.0), (2.0, 80.0)]


def test_racing_pays_where_the_device_stays_on_anyway():
    slow_saves = response((1.0, 100.0), (2.0, 49.0))
    assert len(energy_hull(slow_saves)) == 2
    assert len(energy_hull(slow_saves, idle_w=20.0)) == 2  # 80 J above idle against 58 J
    assert [p.step_s for p in energy_hull(response((1.0, 100.0), (2.0, 60.0)), idle_w=30.0)] == [1.0, 2.0]
    assert [p.step_s for p in energy_hull(response((1.0, 100.0), (2.0, 70.0)), idle_w=30.0)] == [1.0]


@given(some_rows)
def test_the_hull_is_convex_and_never_above_a_point(rows):
    one = response(*rows)
    hull = energy_hull(one)
    assert is_convex(hull)
    assert hull[-1].step_energy_j == min(point.step_energy_j for point in one.points)


@given(lists(tuples(floats(1, 500), floats(0.1, 10)), min_size=1, max_size=9))
def test_the_rate_hull_rises_with_falling_slope(points):
    hull = [points[place] for place in rate_hull(points)]
    slopes = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in itertools.pairwise(hull) if b[0] > a[0]]
    assert all(before >= after - 1e-9 * abs(before) for before, after in itertools.pairwise(slopes))
    assert max(rate for _, rate in points) == hull[-1][1]


def test_a_deadline_between_two_settings_mixes_them():
    parts = least_energy(response((1.0, 100.0), (2.0, 40.0)), steps=10, within_s=15.0)
    assert [(part.point.step_s, part.steps) for part in parts] == [(1.0, 5.0), (2.0, 5.0)]
    assert sum(part.energy_j for part in parts) == 900.0  # 5 × 100 J + 5 × 80 J


def test_with_time_enough_the_most_frugal_setting_does_it_all():
    (part,) = least_energy(response((1.0, 100.0), (2.0, 40.0)), steps=10, within_s=100.0)
    assert part.energy_j == 800.0


def test_a_deadline_that_nothing_keeps_is_refused_with_what_would_do():
    with pytest.raises(NoPlan, match="10 s at the fastest"):
        least_energy(response((1.0, 100.0)), steps=10, within_s=9.0)


@settings(deadline=None)
@given(some_rows, floats(1.0, 3.0))
def test_no_mixture_of_two_settings_needs_less(rows, slack):
    one = response(*rows)
    within_s = slack * min(point.step_s for point in one.points)
    parts = least_energy(one, 1.0, within_s)
    assert sum(part.duration_s for part in parts) <= within_s * (1 + 1e-9)
    assert sum(part.steps for part in parts) == pytest.approx(1.0)
    ours_j = sum(part.energy_j for part in parts)
    for a in one.points:
        for b in one.points:
            for share in (0.0, 0.3, 0.5, 1.0):
                if share * a.step_s + (1 - share) * b.step_s < within_s * (1 - 1e-9):  # not by rounding alone
                    assert ours_j <= share * a.step_energy_j + (1 - share) * b.step_energy_j + 1e-6


def test_a_long_sweep_is_thinned_and_keeps_its_ends():
    points = tuple(
        OperatingPoint(setting=Setting(clock_hz=1e6 * n), rate=float(n), power_w=1.0 + n**3 / 1e4)
        for n in range(10, 100)
    )
    few = thinned(Response(points=points), 8).points
    hull = energy_hull(Response(points=points))
    assert len(few) == 8
    assert (few[0], few[-1]) == (hull[0], hull[-1])
