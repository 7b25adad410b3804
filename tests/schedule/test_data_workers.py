"""Data workers in a plan: how many there are, what they draw, and what happens where cores are few."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, lists, none, tuples
from tests.schedule.test_planning import HOUR_S, STEADY, TWO, drawn_w, job, pool, prices, wish

from wattsmith.schedule.documents import schedules_of
from wattsmith.schedule.planning import make_plan
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import DataWork, Doubt, NoPlan, Objective

pytest.importorskip("scipy", reason="PLANS OVER TIME ARE NOT TESTED: scipy is not installed")

FOUR = DataWork(made_s=4.0, worker_w=5.0)  # at one step a second, four are needed and ⌈1.15 × 4 + 0.5⌉ = 6 wanted


def fed_job(*more, data_work=FOUR, **rest):
    work = job(*more, **rest)
    return replace(work, needs=tuple(replace(need, data_work=data_work) for need in work.needs))


def cores_used(plan, node, time_s):
    here = [one for one in plan.stretches if one.node == node and one.from_s <= time_s < one.until_s]
    return sum(one.data_workers or 0 for one in here)


def test_data_workers_follow_the_feeders_rule_and_their_power_counts():
    plan = make_plan([fed_job()], pool(1), wish())
    (one,) = plan.stretches
    assert one.data_workers == 6
    assert (one.power_w, one.point.power_w) == (130.0, 100.0)  # six of 5 W
    assert plan.energy_j == pytest.approx(130.0 * HOUR_S)
    assert plan.peak_w == 130.0
    assert plan.gap_ratio == pytest.approx(0.0)
    assert plan.notes == ()


def test_a_slower_setting_has_fewer_data_workers():
    hurried = make_plan([fed_job(curve=TWO)], pool(1), wish(deadline_s=HOUR_S))
    relaxed = make_plan([fed_job(curve=TWO)], pool(1), wish(deadline_s=4 * HOUR_S))
    assert hurried.stretches[0].data_workers == 6
    assert relaxed.stretches[0].data_workers == 3  # ⌈1.15 × 2 + 0.5⌉
    assert relaxed.energy_j == pytest.approx(2 * HOUR_S * (40.0 + 15.0))


def test_each_device_has_data_workers_of_its_own():
    (one,) = make_plan([fed_job(devices=2)], pool(2), wish()).stretches
    assert (one.data_workers, one.power_w) == (12, 260.0)


def test_a_job_of_which_nothing_is_said_has_no_number_of_data_workers():
    assert make_plan([job()], pool(1, cores=1), wish()).stretches[0].data_workers is None


def test_power_that_data_workers_draw_puts_two_jobs_one_after_the_other():
    jobs = [fed_job("a"), fed_job("b")]
    assert make_plan(jobs, pool(2), wish(budget_w=250.0, objective=Objective.TIME)).end_s == 2 * HOUR_S
    assert make_plan(jobs, pool(2), wish(budget_w=260.0, objective=Objective.TIME)).end_s == HOUR_S


def test_power_of_data_workers_that_nobody_knows_is_noted_and_not_counted():
    plan = make_plan([fed_job(data_work=DataWork(made_s=4.0))], pool(1), wish())
    assert plan.energy_j == pytest.approx(100.0 * HOUR_S)
    assert plan.stretches[0].point.data_workers.power_w is None
    (note,) = plan.notes
    assert "what data workers of a draw is not known, and not counted" in note


def test_the_guard_is_kept_for_data_workers_too():
    doubtful = replace(STEADY, doubt=Doubt(power_ratio=0.1))
    plan = make_plan([fed_job(curve=doubtful)], pool(1), wish())
    assert plan.guard_w == pytest.approx(2.326 * 13.0, rel=1e-3)


def test_a_device_with_too_few_cores_is_data_bound_and_the_plan_says_so():
    plan = make_plan([fed_job()], pool(2, cores=4), wish())  # two cores for each device
    (one,) = plan.stretches
    assert one.data_workers == 2
    assert one.until_s == 2 * HOUR_S  # a step takes 4 s / 2
    assert one.power_w == 110.0
    (note,) = plan.notes
    assert "a is data-bound on n0" in note
    assert "4 data workers are needed, and there are cores for 2, so that a step takes 2 s" in note


def test_fewer_cores_than_wanted_but_as_many_as_needed_cost_no_time():
    plan = make_plan([fed_job()], pool(1, cores=5), wish())
    assert (plan.stretches[0].data_workers, plan.end_s, plan.notes) == (5, HOUR_S, ())


def test_a_data_bound_job_runs_at_the_setting_that_is_just_fast_enough():
    plan = make_plan([fed_job(curve=TWO)], pool(1, cores=2), wish(objective=Objective.TIME))
    (one,) = plan.stretches
    assert (one.point.power_w, one.until_s) == (40.0, 2 * HOUR_S)


def test_the_machine_with_cores_is_preferred():
    bare, rich = pool(1, 1)
    plan = make_plan([fed_job()], [replace(bare, cores=2), replace(rich, cores=6)], wish(objective=Objective.TIME))
    assert [(one.node, one.data_workers, one.until_s) for one in plan.stretches] == [("n1", 6, HOUR_S)]


def test_a_machine_has_as_many_data_workers_as_its_own_cores_allow_whatever_others_have():
    one, other = pool(1, 1)
    jobs = [fed_job("a"), fed_job("b")]
    plan = make_plan(jobs, [replace(one, cores=5), replace(other, cores=64)], wish(objective=Objective.TIME))
    assert {each.node: each.data_workers for each in plan.stretches} == {"n0": 5, "n1": 6}


def test_a_job_without_a_core_for_each_device_is_refused():
    with pytest.raises(NoPlan, match="at least one core for the data workers of each device"):
        make_plan([fed_job()], pool(2, cores=1), wish())
    bare, rich = pool(2, 1)
    plan = make_plan([fed_job()], [replace(bare, cores=1), rich], wish())
    assert [one.node for one in plan.stretches] == ["n1"]


def test_a_deadline_that_too_few_cores_make_impossible_is_told_with_the_time_it_takes():
    plan = make_plan([fed_job(deadline_s=HOUR_S)], pool(1, cores=2), wish())
    assert "it takes 2 h 00 min at its fastest" in plan.missed["a"]


def test_an_exact_plan_counts_cores_by_the_machine_with_the_fewest():
    poor, rich = pool(1, 1)
    nodes = [replace(poor, cores=2), replace(rich, cores=8)]
    plan = make_plan([fed_job("a"), fed_job("b")], nodes, wish(exact=True, deadline_s=4 * HOUR_S))
    assert [one.data_workers for one in plan.stretches] == [2, 2]
    assert plan.end_s == pytest.approx(2 * HOUR_S)


def test_the_work_schedule_tells_the_most_data_workers_of_a_device():
    jobs, nodes = [fed_job(devices=2, deadline_s=3 * HOUR_S)], pool(2, cores=4)
    (schedule,) = schedules_of(make_plan(jobs, nodes, wish()), jobs, nodes)
    (work,) = schedule.works
    assert work.shape.loader_workers == 2
    assert work.phases[0].power_w.value == 100.0  # of the device alone, which is what its meter shows
    assert work.timing.latest_start_s == HOUR_S  # data-bound, it takes two hours


@pytest.mark.parametrize("fields", [{"made_s": 0.0}, {"made_s": 1.0, "worker_w": 0.0}, {"made_s": -1.0}])
def test_data_work_that_makes_no_sense_is_refused(fields):
    with pytest.raises(BadTerm, match="must be positive"):
        DataWork(**fields)


drawn = lists(tuples(floats(0.3, 3.0), floats(0.1, 9.0), integers(1, 2), booleans()), min_size=1, max_size=6)


@settings(deadline=None, max_examples=40)
@given(
    drawn, none() | floats(150, 600), tuples(integers(2, 3), integers(3, 12)), tuples(integers(1, 2), integers(1, 9))
)
def test_no_plan_uses_more_cores_than_a_node_has_or_more_power_than_there_is(rows, budget_w, first, second):
    nodes = [
        replace(node, count=count, cores=cores)
        for node, (count, cores) in zip(pool(1, 1), (first, second), strict=True)
    ]
    jobs = [
        fed_job(str(n), hours, TWO, data_work=DataWork(made_s=made_s, worker_w=5.0), devices=devices, pausable=pausable)
        for n, (hours, made_s, devices, pausable) in enumerate(rows)
    ]
    asked = wish(budget_w=budget_w, objective=Objective.CARBON, carbon=prices(*[5.0, 1.0, 3.0] * 10))
    plan = make_plan(jobs, nodes, asked)
    for at_s in [one.from_s for one in plan.stretches]:
        assert budget_w is None or drawn_w(plan, at_s) <= budget_w * (1 + 1e-9)
        for node in nodes:
            assert cores_used(plan, node.name, at_s) <= node.cores
    for each in jobs:
        mine = [one for one in plan.stretches if one.job == each.name]
        assert not mine or sum(one.steps for one in mine) >= each.steps * (1 - 1e-6)
        made_s = each.needs[0].data_work.made_s
        assert all(one.point.rate * made_s <= one.point.data_workers.count * (1 + 1e-9) for one in mine)
    if plan.bound is not None:
        assert plan.value >= plan.bound * (1 - 1e-6)
