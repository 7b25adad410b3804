"""Jobs over time on a pool: budgets, deadlines, releases, pauses, memory, carbon."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, lists, tuples
from tests.schedule.test_curves import response

from wattsmith.schedule.order import in_order
from wattsmith.schedule.planning import Wish, make_plan
from wattsmith.schedule.series import KWH_J, Series, read_series
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.schedule import Doubt, Job, Need, NoPlan, Objective, PoolNode

pytest.importorskip("scipy", reason="PLANS OVER TIME ARE NOT TESTED: scipy is not installed")

GIB = 2**30
HOUR_S = 3600.0
STEADY = response((1.0, 100.0))  # one step a second on 100 W
TWO = response((1.0, 100.0), (2.0, 40.0))  # or half a step on 40 W


def job(name="a", hours=1.0, curve=STEADY, **more):
    need = Need(kind="gpu", devices=more.pop("devices", 1), response=curve, memory_bytes=more.pop("memory", None))
    return Job(name=name, steps=hours * HOUR_S, needs=more.pop("needs", (need,)), **more)


def pool(*counts, **more):
    return [PoolNode(name=f"n{place}", kind="gpu", count=count, **more) for place, count in enumerate(counts)]


def prices(*values):
    """A value per kWh for each hour from 0 on."""
    times_s = tuple(HOUR_S * hour for hour in range(len(values)))
    return Series(times_s=times_s, values=values, until_s=HOUR_S * len(values))


def wish(**more):
    return Wish(now_s=0.0, slot_s=HOUR_S, **more)


def spans(plan, name="a"):
    return [(one.from_s / HOUR_S, one.until_s / HOUR_S) for one in plan.stretches if one.job == name]


def drawn_w(plan, time_s):
    return sum(one.power_w for one in plan.stretches if one.from_s <= time_s < one.until_s)


def test_a_job_moves_to_the_cleanest_hour():
    plan = make_plan([job()], pool(1), wish(objective=Objective.CARBON, carbon=prices(300.0, 100.0, 200.0)))
    assert spans(plan) == [(1.0, 2.0)]
    assert plan.emitted_g == pytest.approx(10.0)  # 0.1 kWh of 100 g
    assert plan.gap_ratio == pytest.approx(0.0)


def test_a_job_that_may_pause_takes_the_two_cleanest_hours():
    carbon = prices(100.0, 300.0, 100.0, 300.0)
    paused = make_plan([job(hours=2, pausable=True)], pool(1), wish(objective=Objective.CARBON, carbon=carbon))
    assert spans(paused) == [(0.0, 1.0), (2.0, 3.0)]
    whole = make_plan([job(hours=2)], pool(1), wish(objective=Objective.CARBON, carbon=carbon))
    assert whole.value == pytest.approx(2 * paused.value)


def test_a_pause_that_loses_more_than_it_saves_is_not_made():
    carbon = prices(100.0, 110.0, 100.0, 300.0)
    costly = job(hours=2, pausable=True, resume_s=1800.0)
    assert spans(make_plan([costly], pool(1), wish(objective=Objective.CARBON, carbon=carbon))) == [(0.0, 2.0)]


def test_release_and_deadline_are_kept():
    late = job(release_s=2 * HOUR_S, deadline_s=4 * HOUR_S)
    plan = make_plan([late], pool(1), wish(objective=Objective.COST, tariff=prices(1.0, 1.0, 9.0, 8.0, 1.0)))
    assert spans(plan) == [(3.0, 4.0)]
    assert plan.cost == pytest.approx(0.8)


def test_the_budget_puts_two_jobs_one_after_the_other():
    plan = make_plan([job("a"), job("b")], pool(2), wish(budget_w=150.0, objective=Objective.TIME))
    assert sorted(spans(plan, "a") + spans(plan, "b")) == [(0.0, 1.0), (1.0, 2.0)]
    together = make_plan([job("a"), job("b")], pool(2), wish(budget_w=200.0, objective=Objective.TIME))
    assert together.end_s == HOUR_S


def test_a_plan_under_a_budget_says_whose_idle_power_is_not_counted():
    (note,) = make_plan([job("a")], pool(2, 1), wish(budget_w=150.0)).notes
    assert "of n0 (2 × gpu), n1 (1 × gpu) draw while they idle is not known, and not counted" in note
    assert make_plan([job("a")], pool(2), wish()).notes == ()
    assert make_plan([job("a")], pool(2, idle_w=0.0), wish(budget_w=150.0)).notes == ()


def test_the_doubt_keeps_a_part_of_the_budget_free():
    doubtful = replace(STEADY, doubt=Doubt(power_ratio=0.05))
    jobs = [job(name, curve=doubtful) for name in "ab"]
    apart = make_plan(jobs, pool(2), wish(budget_w=210.0, objective=Objective.TIME))
    assert apart.end_s == 2 * HOUR_S  # 200 W and 2.33 × √2 × 5 W do not fit
    assert make_plan(jobs, pool(2), wish(budget_w=217.0, objective=Objective.TIME)).end_s == HOUR_S


def test_least_energy_goes_slowly_where_the_deadline_allows():
    relaxed = make_plan([job(curve=TWO)], pool(1), wish(deadline_s=4 * HOUR_S))
    assert relaxed.energy_j == pytest.approx(2 * HOUR_S * 40.0)
    hurried = make_plan([job(curve=TWO)], pool(1), wish(deadline_s=HOUR_S))
    assert hurried.energy_j == pytest.approx(HOUR_S * 100.0)


def test_jobs_wait_for_those_they_come_after():
    plan = make_plan([job("b", after=("a",)), job("a")], pool(2), wish(objective=Objective.TIME))
    assert spans(plan, "b") == [(1.0, 2.0)]
    assert plan.bound == 2 * HOUR_S


def test_a_job_that_others_wait_for_leaves_them_their_time():
    jobs = [job("a"), job("b", after=("a",), deadline_s=3 * HOUR_S)]
    plan = make_plan(jobs, pool(1), wish(objective=Objective.COST, tariff=prices(9.0, 5.0, 1.0, 1.0)))
    assert (spans(plan, "a"), spans(plan, "b")) == ([(1.0, 2.0)], [(2.0, 3.0)])


def test_a_circle_of_jobs_is_named():
    with pytest.raises(NoPlan, match="a after b after a"):
        make_plan([job("a", after=("b",)), job("b", after=("a",))], pool(1), wish())


def test_a_job_that_is_too_large_is_refused_with_the_smallest_that_would_do():
    with pytest.raises(NoPlan, match=r"up to 90 GiB.*largest of the pool has 40 GiB.*Middle with 96 GiB"):
        make_plan(
            [job(memory=90.0 * GIB)], pool(1, memory_bytes=40 * GIB), wish(), {"Big": 192 * GIB, "Middle": 96 * GIB}
        )


def test_memory_decides_on_which_machine_a_job_runs():
    nodes = [
        replace(pool(1, memory_bytes=16 * GIB)[0], name="small"),
        replace(pool(1, memory_bytes=80 * GIB)[0], name="big"),
    ]
    plan = make_plan([job(memory=17.0 * GIB)], nodes, wish())
    assert [one.node for one in plan.stretches] == ["big"]


def test_a_small_job_leaves_the_large_machine_alone():
    nodes = [
        replace(pool(1, memory_bytes=80 * GIB)[0], name="big"),
        replace(pool(1, memory_bytes=16 * GIB)[0], name="small"),
    ]
    assert make_plan([job(memory=8.0 * GIB)], nodes, wish()).stretches[0].node == "small"


@pytest.mark.parametrize(("fewest", "devices"), [(True, 1), (False, 2)])
def test_as_few_devices_as_possible_where_that_is_asked(fewest, devices):
    needs = tuple(Need(kind="gpu", devices=n, response=response((1.0 / n, 100.0))) for n in (1, 2))
    plan = make_plan([job(needs=needs, fewest_devices=fewest)], pool(2), wish(objective=Objective.TIME))
    assert len(plan.stretches[0].devices) == devices


def test_few_devices_are_given_up_only_where_the_deadline_cannot_be_kept_with_them():
    needs = tuple(Need(kind="gpu", devices=n, response=response((1.0 / n, 100.0))) for n in (1, 2))
    plan = make_plan([job(hours=2, needs=needs, fewest_devices=True, deadline_s=HOUR_S)], pool(2), wish())
    assert len(plan.stretches[0].devices) == 2


def test_excluded_devices_are_not_used():
    plan = make_plan([job()], pool(2, excluded=(0,)), wish())
    assert plan.stretches[0].devices == (1,)


def test_a_setting_outside_what_may_be_set_is_not_used():
    plan = make_plan([job(curve=TWO)], pool(1, power_limits_w=(90.0, 100.0)), wish(deadline_s=9 * HOUR_S))
    assert {one.point.setting.power_limit_w for one in plan.stretches} == {100.0}


def test_a_job_whose_settings_no_machine_may_have_is_refused_with_what_they_take():
    with pytest.raises(NoPlan, match=r"power limits of 100 W, 101 W, .* n0 takes 200 to 300 W"):
        make_plan([job(curve=TWO)], pool(1, power_limits_w=(200.0, 300.0)), wish())


def test_a_job_of_less_than_a_millisecond_is_refused():
    with pytest.raises(NoPlan, match="less than a millisecond"):
        make_plan([job(hours=1e-8)], pool(1), wish())


def test_what_the_guard_alone_keeps_out_of_the_budget_is_told_so():
    doubted = replace(STEADY, doubt=Doubt(power_ratio=0.1))
    plan = make_plan([job(curve=doubted)], pool(1), wish(budget_w=110.0))
    assert "100 W above idle, 123.3 W with the guard" in plan.missed["a"]


def test_the_guard_is_that_of_the_device_a_job_runs_on():
    sure, unsure = (
        Need(kind=kind, devices=1, response=replace(STEADY, doubt=Doubt(power_ratio=ratio)))
        for kind, ratio in (("elsewhere", 0.0), ("gpu", 0.1))
    )
    nodes = [PoolNode(name="other", kind="elsewhere", excluded=(0,)), *pool(1)]
    plan = make_plan([job(needs=(sure, unsure))], nodes, wish())
    assert plan.guard_w == pytest.approx(23.26, abs=0.01)


def test_a_thousand_jobs_may_wait_for_each_other_in_a_row():
    row = [job(f"j{n}", hours=0.01, after=(f"j{n - 1}",) if n else ()) for n in range(1100)]
    assert [one.name for one in in_order(row[::-1])] == [one.name for one in row]


@settings(deadline=None, max_examples=40)
@given(lists(floats(-100, 500), min_size=6, max_size=12), floats(0.2, 5.0))
def test_a_job_that_may_pause_does_all_its_steps_even_where_energy_is_paid_for(values, hours):
    plan = make_plan(
        [job(hours=hours, curve=TWO, pausable=True)], pool(1), wish(objective=Objective.COST, tariff=prices(*values))
    )
    done = sum(one.steps for one in plan.stretches)
    assert plan.missed or done == pytest.approx(hours * HOUR_S)


def test_a_budget_below_idle_power_is_refused():
    with pytest.raises(NoPlan, match="draws 90 W when idle"):
        make_plan([job()], pool(2, idle_w=20.0, base_w=50.0), wish(budget_w=80.0))


def test_a_budget_may_change_over_time():
    plan = make_plan([job(curve=STEADY)], pool(1), wish(budget_w=50.0, budgets=((2 * HOUR_S, 150.0),)))
    assert spans(plan) == [(2.0, 3.0)]


@pytest.mark.parametrize(
    ("change", "says"),
    [({"deadline_s": -5.0}, "in the past"), ({"release_s": 100.0, "deadline_s": 50.0}, "before that")],
)
def test_a_deadline_that_cannot_be_is_refused(change, says):
    with pytest.raises(NoPlan, match=says):
        make_plan([job(**change)], pool(1), wish())


def test_what_finds_no_place_is_named_with_the_reason_and_the_rest_is_planned():
    plan = make_plan([job("long", hours=5, deadline_s=2 * HOUR_S), job("short")], pool(1), wish())
    assert [one.job for one in plan.stretches] == ["short"]
    assert "takes 5 h 00 min at its fastest" in plan.missed["long"]


def test_carbon_without_a_series_says_what_to_give():
    with pytest.raises(NoPlan, match="--carbon"):
        make_plan([job()], pool(1), wish(objective=Objective.CARBON))


drawn = lists(tuples(floats(0.3, 3.0), integers(0, 4), floats(1.2, 6.0), booleans()), min_size=1, max_size=6)


@settings(deadline=None, max_examples=30)
@given(drawn, floats(110, 400), integers(1, 3))
def test_no_plan_breaks_a_limit(rows, budget_w, devices):
    jobs = [
        job(
            str(n),
            hours,
            TWO,
            release_s=HOUR_S * release,
            deadline_s=HOUR_S * (release + hours * slack),
            pausable=pausable,
        )
        for n, (hours, release, slack, pausable) in enumerate(rows)
    ]
    plan = make_plan(
        jobs, pool(devices), wish(budget_w=budget_w, objective=Objective.CARBON, carbon=prices(*[5.0, 1.0, 3.0] * 10))
    )
    assert {one.job for one in plan.stretches} | set(plan.missed) == {each.name for each in jobs}
    for at in [one.from_s for one in plan.stretches]:
        assert drawn_w(plan, at) <= budget_w * (1 + 1e-9)
    for each in jobs:
        mine = [one for one in plan.stretches if one.job == each.name]
        if mine:
            assert sum(one.steps for one in mine) >= each.steps * (1 - 1e-6)
            assert mine[0].from_s >= each.release_s
            assert mine[-1].until_s <= each.deadline_s * (1 + 1e-9)
            assert each.pausable or all(b.from_s <= a.until_s + 1e-6 for a, b in pairwise(mine))
    for device in range(devices):
        used = sorted((one.from_s, one.until_s) for one in plan.stretches if device in one.devices)
        assert all(b[0] >= a[1] - 1e-6 for a, b in pairwise(used))
    if plan.bound is not None:
        assert plan.value >= plan.bound * (1 - 1e-6)


def test_the_exact_plan_is_never_dearer_and_keeps_the_budget():
    carbon = prices(3.0, 1.0, 2.0, 1.5, 4.0, 2.5)
    jobs = [job("a", 1.5, TWO, pausable=True), job("b", 2.0, TWO), job("c", 1.0, STEADY)]
    asked = wish(objective=Objective.CARBON, carbon=carbon, budget_w=150.0, deadline_s=6 * HOUR_S)
    near, exact = make_plan(jobs, pool(3), asked), make_plan(jobs, pool(3), replace(asked, exact=True))
    assert exact.value <= near.value * (1 + 1e-3)
    assert near.value <= exact.value * 1.05
    assert max(drawn_w(exact, one.from_s) for one in exact.stretches) <= 150.0 * (1 + 1e-6)


def test_an_exact_plan_for_least_time_ends_first():
    jobs = [job("a", curve=TWO), job("b", curve=TWO, pausable=True)]
    plan = make_plan(jobs, pool(2), wish(exact=True, objective=Objective.TIME, deadline_s=9 * HOUR_S))
    assert plan.end_s == pytest.approx(HOUR_S)


def test_an_exact_plan_takes_as_few_devices_as_possible_where_that_is_asked():
    one, two = (Need(kind="gpu", devices=n, response=response((1 / n**2, 100.0))) for n in (1, 2))
    work = job(needs=(one, two), fewest_devices=True)
    assert make_plan([work], pool(2), wish(exact=True)).stretches[0].devices == (0,)
    hurried = replace(work, deadline_s=HOUR_S / 2)
    plan = make_plan([hurried], pool(2), Wish(now_s=0.0, slot_s=900.0, exact=True))
    assert plan.stretches[0].devices == (0, 1)


def test_the_exact_plan_puts_a_large_job_on_the_large_machine():
    nodes = [*pool(1, memory_bytes=16 * GIB), PoolNode(name="large", kind="gpu", memory_bytes=80 * GIB)]
    jobs = [job("a", memory=60 * GIB), job("b", memory=60 * GIB), job("c", memory=6 * GIB)]
    plan = make_plan(jobs, nodes, wish(exact=True, deadline_s=2 * HOUR_S))
    assert {one.job: one.node for one in plan.stretches} == {"a": "large", "b": "large", "c": "n0"}
    assert spans(plan, "a") != spans(plan, "b")


@pytest.mark.parametrize(("resume_s", "hours"), [(0.0, 3.0), (600.0, 3.5), (3000.0, 3.0)])
@pytest.mark.parametrize("exact", [False, True])
def test_what_a_pause_loses_is_planned_for_exactly_too(resume_s, hours, exact):
    carbon = prices(*[100.0, 500.0] * 4)
    work = job(hours=3, pausable=True, resume_s=resume_s)
    plan = make_plan([work], pool(1), wish(exact=exact, objective=Objective.CARBON, carbon=carbon))
    assert sum(one.steps for one in plan.stretches) == pytest.approx(hours * HOUR_S)


def test_a_job_that_is_shorter_than_what_a_pause_loses_is_planned_exactly_too():
    work = job(hours=0.01, pausable=True, resume_s=300.0)
    plan = make_plan([work], pool(1), wish(exact=True))
    assert sum(one.steps for one in plan.stretches) == pytest.approx(36.0)


def test_a_job_that_pauses_in_an_exact_plan_keeps_to_one_number_of_devices():
    one, two = (
        Need(kind="gpu", devices=devices, response=response(*((step_s / devices, power_w) for step_s, power_w in rows)))
        for devices, rows in ((1, [(1.0, 100.0)]), (2, [(1.1, 110.0)]))
    )
    jobs = [job(hours=5, needs=(one, two), pausable=True), job("b", hours=1)]
    plan = make_plan(jobs, pool(2), wish(exact=True, deadline_s=4 * HOUR_S))
    mine = [stretch for stretch in plan.stretches if stretch.job == "a"]
    assert {len(stretch.devices) for stretch in mine} == {2}
    assert sum(stretch.steps for stretch in mine) == pytest.approx(5 * HOUR_S)


def test_a_series_is_read_however_its_times_are_written(tmp_path):
    for name, first, second in (
        ("iso", "2020-01-13 00:00:00", "2020-01-13 01:00:00"),
        ("zoned", "2020-01-13 00:00:00+00:00", "2020-01-13 01:00:00+00:00"),
        ("slashes", "01/13/2020 00:00:00", "01/13/2020 01:00:00"),
    ):
        path = tmp_path / f"{name}.csv"
        path.write_text(f"UTC time,carbon_intensity\n{first},100\n{second},300\n")
        series = read_series(path)
        assert series.mean(series.times_s[0], series.until_s) * KWH_J == pytest.approx(200.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time,price\n2020-01-01,1\n2020-01-02,nan\n", "line 3: price"),
        ("time,price\n2020-01-01,1\nyesterday,2\n", "line 3: 'yesterday'"),
        ("time,price\n2020-01-02,1\n2020-01-01,2\n", "line 3: the time does not rise"),
        ("a,b\n1,2\n3,4\n", "line 1"),
        ("time,price\n", "has 0 rows"),
        ("time,price\n1794873600000,1\n1794877200000,2\n", "milliseconds"),
        ("time,price\n2020-01-01,1\n2020-01-02,1e300\n", "line 3: price must be a number per kWh"),
        ("time,price\n2026-10-25 02:00,1\n2026-10-25 02:00,2\n", "line 3: .*with their zone"),
    ],
)
def test_a_bad_series_is_refused_with_its_line(tmp_path, text, says):
    path = tmp_path / "bad.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=says):
        read_series(path)


@pytest.mark.parametrize(
    ("header", "value"),
    [("value", 40.0), ("gCO2/kWh value", 40.0), ("carbon (kgCO2/kWh)", 4e4), ("price_eur_per_mwh", 0.04)],
)
@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_a_series_is_in_the_unit_that_its_column_names(tmp_path, header, value, separator):
    path = tmp_path / "series.csv"
    path.write_text("\n".join(separator.join(row) for row in (("time", header), ("0", "40"), ("3600", "40"))))
    assert read_series(path).values == pytest.approx((value, value))


def test_a_plan_says_where_its_series_has_a_gap(tmp_path):
    path = tmp_path / "series.csv"
    path.write_text("time,carbon_intensity\n" + "".join(f"{hour * 3600},100\n" for hour in (0, 1, 2, 6, 7, 8)))
    plan = make_plan([job(hours=8)], pool(1), wish(objective=Objective.CARBON, carbon=read_series(path)))
    assert plan.notes == (
        "the carbon series has no value between 1970-01-01 02:00Z and 1970-01-01 06:00Z: the one before is held",
    )


def test_a_series_that_is_too_short_says_what_it_spans():
    with pytest.raises(BadTerm, match="spans 1970-01-01"):
        prices(1.0, 2.0).mean(0.0, 3 * HOUR_S)
    assert math.isclose(prices(1.0, 3.0).mean(0.0, 2 * HOUR_S) * KWH_J, 2.0)


def test_a_stretch_has_as_many_slots_at_whatever_moment_it_begins():
    now_s = 1_794_900_000.0 + 3 * 2**-22  # which, and 100 000 hours, make a sum that is rounded up
    assert (now_s + 3.6e8) - now_s > 3.6e8
    with pytest.raises(NoPlan, match="360000000 slots of 1 s until all jobs may be done are too many; take 7200 s"):
        make_plan([job(deadline_s=now_s + 3.6e8)], pool(1), Wish(now_s=now_s, slot_s=1.0))
