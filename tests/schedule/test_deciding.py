"""The state machine, and the simulator that drives it."""

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import booleans, floats, integers, lists, one_of, sampled_from, tuples
from tests.schedule.test_curves import response

from wattsmith.schedule.deciding import decide, empty_pool
from wattsmith.schedule.simulated import Truth, simulate
from wattsmith.schedule.waiting import why_it_waits
from wattsmith.terms.dispatch import (
    BudgetChanged,
    JobCancelled,
    JobEnded,
    JobSubmitted,
    MatchAgain,
    NodeBack,
    NodeLost,
    OverBudget,
    PassedOver,
    PauseJob,
    RefuseJob,
    SetPoint,
    StartJob,
    Telemetry,
)
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.schedule import Doubt, Job, Need, NoPlan, PoolNode

pytest.importorskip("numpy", reason="DECISIONS ARE NOT TESTED: numpy is not installed")

GIB = 2**30
PAUSABLE = (("heavy", 0.0, 2.0), ("sooner", 0.0, 1.0), ("later", 5.0, 1.0), ("light", 6.0, 0.5))  # began, weight
FAST, SLOW = (1.0, 200.0), (1.25, 100.0)  # a step a second on 200 W, 0.8 on 100 W
CURVE = response(FAST, SLOW)
LIMITED = {"narrow": (50.0, 100.5), "wide": (50.0, 300.0)}


def job(name, steps=100.0, devices=1, memory=None, curve=CURVE, kind="gpu", **more):
    need = Need(kind=kind, devices=devices, response=curve, memory_bytes=memory)
    return Job(name=name, steps=steps, needs=(need,), **more)


def pool(nodes=2, budget_w=math.inf, **more):
    return empty_pool({f"n{n}": PoolNode(name=f"n{n}", kind="gpu", **more) for n in range(nodes)}, budget_w)


def after(state, *events):
    """The state after EVENTS, and all actions."""
    actions = []
    for event in events:
        state, more = decide(state, event)
        actions += more
    return state, actions


def submitted(name, time_s=0.0, **more):
    return JobSubmitted(time_s=time_s, job=job(name, **more))


def kinds(actions):
    return [type(action).__name__ for action in actions]


def test_a_job_starts_at_once_where_there_is_room_and_waits_where_not():
    state, actions = after(pool(1), submitted("a"), submitted("b"))
    assert [(one.job, one.node) for one in actions] == [("a", "n0")]
    assert list(state.waiting) == ["b"]


def test_the_next_job_starts_when_one_ends():
    state, actions = after(pool(1), submitted("a"), submitted("b"), JobEnded(time_s=5.0, job="a"))
    assert [one.job for one in actions if isinstance(one, StartJob)] == ["a", "b"]
    assert state.ended == 1


def test_the_second_job_runs_slowly_where_the_budget_leaves_no_more():
    _, actions = after(pool(2, 300.0), submitted("a"), submitted("b"))
    assert [one.point.power_w for one in actions] == [200.0, 100.0]


def test_when_it_ends_the_slow_one_gets_its_power():
    state, actions = after(pool(2, 300.0), submitted("a"), submitted("b"), JobEnded(time_s=1000.0, job="a"))
    assert actions[-1] == SetPoint(job="b", point=CURVE.points[0])
    assert state.drawn_w == 200.0


def test_a_budget_that_falls_slows_jobs_down_and_then_pauses_some():
    state, _ = after(pool(2), submitted("a", pausable=True), submitted("b", pausable=True))
    slower, actions = after(state, BudgetChanged(time_s=1.0, budget_w=250.0))
    assert kinds(actions) == ["SetPoint", "SetPoint"]
    assert slower.drawn_w == 200.0
    paused, actions = after(slower, BudgetChanged(time_s=2.0, budget_w=150.0))
    assert kinds(actions) == ["PauseJob"]
    assert len(paused.waiting) == 1
    _, actions = after(paused, BudgetChanged(time_s=3.0, budget_w=1000.0))
    assert sorted(kinds(actions)) == ["SetPoint", "StartJob"]


def test_a_job_that_may_not_pause_runs_on_slowly_and_it_is_said_that_the_pool_is_above_its_budget():
    state, _ = after(pool(2, idle_w=10.0), submitted("a"), submitted("b", pausable=True))
    state, actions = after(state, BudgetChanged(time_s=1.0, budget_w=70.0))
    assert kinds(actions) == ["SetPoint", "PauseJob", "OverBudget"]
    assert (actions[1].job, list(state.running), list(state.waiting)) == ("b", ["a"], ["b"])
    # Without idle power of its own a's 100 W are all above idle; both machines draw 10 W.
    assert actions[2].over_w == state.over_w == 50.0
    assert actions[2].why == (
        "the pool draws 120 W, 50 W above its budget of 70 W: a (100 W) may not pause, and the settings are as low as "
        "they go; idle machines draw 20 W"
    )
    assert after(state, BudgetChanged(time_s=2.0, budget_w=120.0))[0].over_w == 0.0


def test_what_is_worth_least_pauses_first_and_of_equals_what_has_lost_least():
    jobs = [submitted(name, time, pausable=True, weight=weight) for name, time, weight in PAUSABLE]
    state, _ = after(pool(4), *jobs)
    order = []
    for budget_w in (300.0, 200.0, 100.0):
        state, actions = after(state, BudgetChanged(time_s=10.0, budget_w=budget_w))
        order += [one.job for one in actions if isinstance(one, PauseJob)]
    assert order == ["light", "later", "sooner"]
    assert list(state.running) == ["heavy"]


def test_no_job_pauses_whose_pause_would_not_be_needed():
    wide = response((1.0, 400.0))
    state, _ = after(pool(3), submitted("a", pausable=True, weight=0.5), submitted("b", curve=wide, pausable=True))
    state, actions = after(state, BudgetChanged(time_s=1.0, budget_w=350.0))  # 100 W less would not do, 400 W are
    assert kinds(actions) == ["PauseJob"]
    assert list(state.running) == ["a"]


def test_settings_stay_fast_enough_for_a_deadline_where_another_job_can_be_slowed():
    state, _ = after(pool(2), submitted("due", deadline_s=110.0), submitted("free"))
    state, actions = after(state, BudgetChanged(time_s=1.0, budget_w=300.0))
    assert [(one.job, one.point.power_w) for one in actions] == [("free", 100.0)]
    # Where both must fall, both do: 100 steps at 0.8 a second end after 125 s.
    assert kinds(after(state, BudgetChanged(time_s=2.0, budget_w=200.0))[1]) == ["SetPoint"]


def test_a_job_starts_at_a_setting_that_keeps_its_deadline_or_waits_for_the_power_while_that_can_help():
    state, _ = after(pool(2, 300.0), submitted("a"), submitted("due", deadline_s=110.0))  # 100 steps, 125 s on 100 W
    assert list(state.waiting) == ["due"]
    assert why_it_waits(state, "due", 0) == "waits for power: needs 200 W, 100 W of the budget of 300 W are free"
    state, actions = after(state, BudgetChanged(time_s=20.0, budget_w=301.0))  # it is late whatever is done
    assert [(one.job, one.point.power_w) for one in actions if isinstance(one, StartJob)] == [("due", 100.0)]


def test_of_those_that_wait_the_nearer_deadline_goes_first():
    waiting = [submitted("first"), submitted("tomorrow", deadline_s=86_400.0), submitted("today", deadline_s=3600.0)]
    state, _ = after(pool(1), submitted("a"), *waiting)
    assert list(state.waiting) == ["today", "tomorrow", "first"]
    state, _ = after(state, submitted("heavy", weight=2.0, deadline_s=10.0))
    assert list(state.waiting)[-1] == "heavy"  # weights are not equal: the order is that in which they came


def test_nobody_goes_before_one_that_has_waited_long():
    state, _ = after(pool(1), submitted("a"), submitted("old"), submitted("new", 3601.0, deadline_s=4000.0))
    assert list(state.waiting) == ["old", "new"]


def test_jobs_of_a_lost_node_go_on_elsewhere_with_what_is_left():
    state, _ = after(pool(1), submitted("a"), Telemetry(time_s=5.0, job="a", steps=60.0))
    state, actions = after(state, NodeLost(time_s=6.0, node="n0"))
    assert actions == []
    assert state.waiting["a"].steps_left == 40.0
    _, actions = after(state, NodeBack(time_s=7.0, node="n0"))
    assert actions[0].steps == 40.0


def test_a_job_that_fits_nowhere_is_refused_with_the_reason():
    state, actions = after(pool(1, memory_bytes=16 * GIB), submitted("a", memory=20.0 * GIB))
    assert isinstance(actions[0], RefuseJob)
    assert "20 GiB" in actions[0].why
    assert "16 GiB" in actions[0].why
    assert state.refused == 1
    assert "devices of one machine" in after(pool(1), submitted("b", devices=2))[1][0].why
    assert "tpu" in after(pool(1), submitted("c", kind="tpu"))[1][0].why


def test_power_above_what_was_predicted_is_told_once_and_slows_others_when_it_breaks_the_budget():
    state, _ = after(pool(2, 420.0), submitted("a"), submitted("b"))
    state, actions = after(state, Telemetry(time_s=1.0, job="a", power_w=260.0))
    assert isinstance(actions[0], MatchAgain)
    assert any(isinstance(action, SetPoint) for action in actions)
    assert state.drawn_w <= 420.0
    assert not any(
        isinstance(one, MatchAgain) for one in after(state, Telemetry(time_s=2.0, job="a", power_w=260.0))[1]
    )


@pytest.mark.parametrize(
    "event",
    [
        Telemetry(time_s=1.0, job="a", power_w=math.nan),
        Telemetry(time_s=1.0, job="a", power_w=-5.0),
        Telemetry(time_s=1.0, job="a", rate=math.inf),
        Telemetry(time_s=1.0, job="a", steps=10.0),
        Telemetry(time_s=1.0, job="nobody", power_w=5.0),
        Telemetry(time_s=-1.0, job="a", power_w=5.0),
        Telemetry(time_s=math.nan, job="a", power_w=5.0),
        JobEnded(time_s=1.0, job="nobody"),
        NodeLost(time_s=1.0, node="nowhere"),
        NodeBack(time_s=1.0, node="n0"),
        JobSubmitted(time_s=1.0, job=job("a")),
    ],
)
def test_an_event_that_makes_no_sense_is_passed_over_and_changes_nothing(event):
    state, _ = after(pool(1), submitted("a"), Telemetry(time_s=0.5, job="a", steps=50.0))
    then, actions = decide(state, event)
    assert kinds(actions) == ["PassedOver"]
    assert replace(then, time_s=state.time_s) == state


def test_a_budget_must_make_sense():
    with pytest.raises(BadTerm, match="positive"):
        BudgetChanged(time_s=0.0, budget_w=math.nan)
    with pytest.raises(NoPlan, match="60 W when idle"):
        pool(2, 50.0, idle_w=30.0)


def test_a_cancelled_job_is_gone_whether_it_waits_or_runs():
    state, _ = after(pool(1), submitted("a"), submitted("b"), JobCancelled(time_s=1.0, job="b"))
    state, _ = after(state, JobCancelled(time_s=2.0, job="a"))
    assert (state.cancelled, len(state.running), len(state.waiting)) == (2, 0, 0)


def test_a_failed_job_is_tried_again():
    state, actions = after(pool(1), submitted("a"), JobEnded(time_s=1.0, job="a", done=False))
    assert kinds(actions) == ["StartJob", "StartJob"]
    assert state.ended == 0


names = sampled_from("abcdefgh")
events = one_of(
    tuples(sampled_from(["submit"]), names, integers(1, 3)),
    tuples(sampled_from(["end", "fail", "cancel"]), names, integers(1, 1)),
    tuples(sampled_from(["lose", "back"]), sampled_from("012"), integers(1, 1)),
    tuples(sampled_from(["budget"]), floats(60, 900), booleans()),
    tuples(sampled_from(["measure"]), names, floats(0, 600)),
)


def made(time_s, what, which, more):
    match what:
        case "submit":
            due_s = time_s + 300.0 if which in "ceg" else None
            return submitted(which, time_s, devices=more, pausable=which in "abcd", deadline_s=due_s)
        case "end" | "fail":
            return JobEnded(time_s=time_s, job=which, done=what == "end")
        case "cancel":
            return JobCancelled(time_s=time_s, job=which)
        case "lose":
            return NodeLost(time_s=time_s, node=f"n{which}")
        case "back":
            return NodeBack(time_s=time_s, node=f"n{which}")
        case "budget":
            return BudgetChanged(time_s=time_s, budget_w=which)
    return Telemetry(time_s=time_s, job=which, power_w=more)


@settings(deadline=None, max_examples=60)
@given(lists(events, max_size=40))
def test_whatever_happens_no_job_is_lost_and_no_device_is_used_twice(script):
    state = pool(3, 600.0, count=2, idle_w=10.0)
    accepted = 0
    for place, (what, which, more) in enumerate(script):
        over_before_w = state.over_w
        state, actions = decide(state, made(60.0 * place, what, which, more))
        accepted += what == "submit" and not any(isinstance(one, PassedOver) for one in actions)
        assert state.known == accepted
        used = [(one.node, device) for one in state.running.values() for device in one.devices]
        free = [(node, device) for node, devices in state.free.items() for device in devices]
        assert len(set(used)) == len(used)
        working = {(f"n{n}", device) for n in range(3) for device in range(2) if f"n{n}" not in state.lost}
        assert set(used) | set(free) == working
        assert not set(used) & set(free)
        assert state.drawn_w == pytest.approx(sum(one.above_idle_w for one in state.running.values()), abs=1e-6)
        assert all(one.job in "abcd" for one in actions if isinstance(one, PauseJob))
        over = [one for one in actions if isinstance(one, OverBudget)]
        if state.over_w > over_before_w + 1e-6 or (what == "budget" and state.over_w > 1e-6):
            assert [one.over_w for one in over] == [state.over_w]
            assert all(not one.job.pausable and one.point == CURVE.points[1] for one in state.running.values())


def test_a_job_starts_at_the_fastest_setting_that_its_node_may_have():
    _, actions = after(pool(1, power_limits_w=(50.0, 100.5)), submitted("a"))
    assert [one.point for one in actions] == [CURVE.points[0]]  # limited to 100 W; the other to 101 W


def test_of_two_nodes_a_job_takes_the_one_that_may_be_set_faster():
    nodes = {name: PoolNode(name=name, kind="gpu", power_limits_w=ends) for name, ends in LIMITED.items()}
    _, actions = after(empty_pool(nodes), submitted("a", curve=response(SLOW, FAST)))
    assert [(one.node, one.point.power_w) for one in actions] == [("wide", 200.0)]


def test_power_is_shared_anew_among_settings_that_the_nodes_may_have():
    state, _ = after(pool(1, 250.0, power_limits_w=(50.0, 100.5)), submitted("a", pausable=True))
    state, actions = after(state, BudgetChanged(time_s=1.0, budget_w=150.0))
    assert kinds(actions) == ["PauseJob"]  # its slower setting is one that the node may not have


def test_a_job_that_no_node_may_be_set_for_is_refused():
    state, actions = after(pool(1, power_limits_w=(200.0, 300.0)), submitted("a"))
    assert (state.refused, kinds(actions)) == (1, ["RefuseJob"])
    assert "figures at power limits of 100 W, 101 W, and no machine may be set so" in actions[0].why


def test_a_node_that_is_back_draws_its_idle_power_out_of_the_budget_of_the_others():
    state = pool(2, 300.0, idle_w=80.0)
    lent, _ = after(state, NodeLost(time_s=1.0, node="n1"), submitted("a", 2.0))
    assert lent.running["a"].point == CURVE.points[0]  # 80 W idle, and 200 W more
    back, actions = after(lent, NodeBack(time_s=3.0, node="n1"))
    assert kinds(actions) == ["SetPoint"]
    assert back.over_w == 0


def test_the_simulator_loses_nothing_when_nodes_fall_and_the_budget_drops():
    curve = replace(CURVE, doubt=Doubt(power_ratio=0.05))
    script = [
        JobSubmitted(time_s=float(n), job=job(f"j{n}", 50.0 + n % 37, curve=curve, pausable=True)) for n in range(300)
    ]
    script.append(BudgetChanged(time_s=100.0, budget_w=1200.0))
    script.append(BudgetChanged(time_s=400.0, budget_w=4000.0))
    truth = Truth(telemetry_s=20.0, loses=((50.0, "n3", 100.0), (150.0, "n4", 5.0)))
    found = simulate(pool(20, 3000.0), script, truth, seed=1)
    assert (found.submitted, found.ended, found.refused, found.left, found.lost) == (300, 300, 0, 0, ())
    assert found.restarts >= 1
    assert found.over_s <= 0.01 * found.span_s
    assert found.decisions_per_s > 200


def test_two_runs_with_one_seed_are_the_same():
    script = [submitted(f"j{n}", float(n)) for n in range(20)]
    first, second = (simulate(pool(3, 500.0), script, seed=7, clock_s=lambda: 0.0) for _ in range(2))
    assert first == second
