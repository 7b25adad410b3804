"""Following a work schedule: what is turned when, how fast, and what is said when work has drifted. No machine."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.schedule.following import (
    Course,
    GiveBack,
    Seen,
    Turn,
    accepted,
    at_time,
    found_at,
    given_back,
    next_turns,
    refused,
    seen,
    state_of,
    ticked,
    turned,
    wanted,
)
from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import SettingSource, Shape
from wattsmith.terms.work import Interval, Setting
from wattsmith.terms.work_schedule import (
    DeviceIdentity,
    Evidence,
    Phase,
    PhaseSetting,
    PowerLimits,
    Rollback,
    Site,
    Span,
    Timing,
    Watch,
    Work,
    WorkSchedule,
)

LIMIT_0, LIMIT_1 = "gpu:0/power_limit", "gpu:1/power_limit"


def phase(device, limit_w, from_s=None, until_s=None, **more):
    return PhaseSetting(
        device=device,
        phase=Phase.STEADY,
        setting=Setting(power_limit_w=limit_w),
        from_s=from_s,
        until_s=until_s,
        power_w=Interval(value=limit_w, low=0.95 * limit_w, high=1.05 * limit_w),
        step_s=Interval(value=0.1, low=0.09, high=0.11),
        **more,
    )


def schedule(*phases, serial=1, limits=None, watch=None, default_w=700.0, begin_s=0.0, end_s=1000.0, client="left"):
    devices = dict.fromkeys(one.device for one in phases)
    work = Work(
        job="resnet",
        phases=phases,
        shape=Shape(),
        timing=Timing(runs=(Span(from_s=100.0, until_s=200.0), Span(from_s=300.0, until_s=400.0))),
        site=Site(node="left", devices=tuple(devices)),
        evidence=Evidence(source=SettingSource.MATCHED),
    )
    defaults = [
        PhaseSetting(device=one, phase=Phase.STEADY, setting=Setting(power_limit_w=default_w)) for one in devices
    ]
    return WorkSchedule(
        client=client,
        issued_s=begin_s,
        valid_from_s=begin_s,
        valid_until_s=end_s,
        serial=serial,
        devices=tuple(DeviceIdentity(device=one, name="h200") for one in devices),
        works=(work,),
        limits=limits or PowerLimits(),
        watch=watch or Watch(sample_s=1.0, drift_for_s=3.0),
        safe_default=tuple(defaults) if default_w else (),
    )


def started(*phases, found_w=700.0, **more):
    course = accepted(Course(), schedule(*phases, **more), 0.0)
    return found_at(course, {f"{one.device}/power_limit": found_w for one in phases})


def carried_out(course, now_s):
    """COURSE after everything that is due at NOW_S was done; with what that was."""
    actions = next_turns(course, now_s)
    for one in actions:
        course = given_back(course, one.device) if isinstance(one, GiveBack) else turned(course, one, now_s)
    return ticked(course, now_s), actions


def test_a_setting_is_turned_once_and_the_next_one_when_its_time_comes():
    course = started(phase("gpu:0", 400.0, 0.0, 50.0), phase("gpu:0", 300.0, 50.0, 900.0))
    course, first = carried_out(course, 1.0)
    course, then = carried_out(course, 2.0)
    course, later = carried_out(course, 50.0)
    assert first == [Turn(knob=LIMIT_0, value=400.0, target=400.0)]
    assert then == []
    assert later == [Turn(knob=LIMIT_0, value=300.0, target=300.0)]


def test_once_it_is_over_the_safe_default_holds():
    course, _ = carried_out(started(phase("gpu:0", 400.0), default_w=600.0), 1.0)
    assert wanted(course, 1000.0) == {LIMIT_0: 600.0}
    course, over = carried_out(course, 1000.0)
    assert over == [Turn(knob=LIMIT_0, value=600.0, target=600.0)]


def test_without_a_safe_default_a_device_goes_back_to_where_it_was_found_and_is_let_go():
    course, _ = carried_out(started(phase("gpu:0", 400.0), default_w=None, found_w=650.0), 1.0)
    course, up = carried_out(course, 1000.0)
    course, gone = carried_out(course, 1001.0)
    course, nothing = carried_out(course, 1002.0)
    assert up == [Turn(knob=LIMIT_0, value=650.0, target=650.0)]
    assert gone == [GiveBack(device="gpu:0")]
    assert nothing == []


def test_a_locked_clock_is_unlocked_by_giving_the_device_back():
    clocked = replace(phase("gpu:0", 400.0), setting=Setting(clock_hz=1e9))
    course = accepted(Course(), schedule(clocked, default_w=None), 0.0)
    course = found_at(course, {"gpu:0/clock": None})
    course, first = carried_out(course, 1.0)
    course, over = carried_out(course, 1000.0)
    assert first == [Turn(knob="gpu:0/clock", value=(1e9, 1e9), target=(1e9, 1e9))]
    assert over == [GiveBack(device="gpu:0")]


def test_what_goes_down_goes_first_and_only_then_does_anything_rise():
    ramps = PowerLimits(ramp_down_w_per_s=50.0)
    course = started(phase("gpu:0", 500.0), phase("gpu:1", 300.0), limits=ramps, found_w=400.0)
    course, first = carried_out(course, 1.0)
    course, second = carried_out(course, 2.0)
    assert first == [Turn(knob=LIMIT_1, value=350.0, target=300.0)]
    assert [turn.knob for turn in second] == [LIMIT_1, LIMIT_0]


def test_a_ramp_is_of_all_devices_together():
    ramps = PowerLimits(ramp_up_w_per_s=100.0)
    course = started(phase("gpu:0", 360.0), phase("gpu:1", 400.0), limits=ramps, found_w=300.0)
    course, first = carried_out(course, 1.0)
    assert {turn.knob: turn.value for turn in first} == {LIMIT_0: 360.0, LIMIT_1: 340.0}
    course, second = carried_out(course, 2.0)
    assert {turn.knob: turn.value for turn in second} == {LIMIT_1: 400.0}


def test_a_late_tick_makes_no_larger_step():
    course = started(phase("gpu:0", 700.0), limits=PowerLimits(ramp_up_w_per_s=10.0), found_w=300.0)
    course, _ = carried_out(course, 1.0)
    course, late = carried_out(course, 31.0)
    assert late[0].value == 320.0


def test_devices_are_raised_one_after_the_other():
    course = started(phase("gpu:0", 500.0), phase("gpu:1", 500.0), limits=PowerLimits(stagger_s=5.0), found_w=300.0)
    done = {}
    for second in range(1, 10):
        course, actions = carried_out(course, float(second))
        done |= {turn.knob: second for turn in actions}
    assert done == {LIMIT_0: 1, LIMIT_1: 6}


def test_devices_go_down_at_once():
    course = started(phase("gpu:0", 300.0), phase("gpu:1", 300.0), limits=PowerLimits(stagger_s=5.0))
    _, actions = carried_out(course, 1.0)
    assert len(actions) == 2


def test_no_limit_goes_below_the_floor():
    assert wanted(started(phase("gpu:0", 250.0), limits=PowerLimits(floor_w=300.0)), 1.0) == {LIMIT_0: 300.0}


def test_what_was_refused_waits_half_a_minute_and_does_not_hold_up_the_others():
    course = started(phase("gpu:0", 300.0), phase("gpu:1", 300.0))
    course = refused(course, LIMIT_0, 300.0, "not permitted", 1.0)
    assert [turn.knob for turn in next_turns(course, 2.0)] == [LIMIT_1]
    assert [turn.knob for turn in next_turns(course, 31.0)] == [LIMIT_0, LIMIT_1]


def test_a_later_schedule_takes_over_and_an_older_one_is_refused():
    course, _ = carried_out(started(phase("gpu:0", 400.0), serial=5), 1.0)
    for serial in (4, 5):
        with pytest.raises(BadInput, match="not later than 5"):
            accepted(course, schedule(phase("gpu:0", 300.0), serial=serial), 2.0)
    course = accepted(course, schedule(phase("gpu:0", 300.0), serial=6), 2.0)
    assert wanted(course, 2.0) == {LIMIT_0: 300.0}


def test_a_schedule_that_is_not_valid_yet_waits_while_the_old_one_is_followed():
    course = accepted(started(phase("gpu:0", 400.0)), schedule(phase("gpu:0", 300.0), serial=2, begin_s=50.0), 1.0)
    assert wanted(at_time(course, 49.0), 49.0) == {LIMIT_0: 400.0}
    assert wanted(at_time(course, 50.0), 50.0) == {LIMIT_0: 300.0}


def test_a_schedule_that_is_over_or_anothers_is_refused():
    with pytest.raises(BadInput, match="was over 5 s ago"):
        accepted(Course(), schedule(phase("gpu:0", 400.0)), 1005.0)
    with pytest.raises(BadInput, match=r"'right'.*'left'"):
        accepted(started(phase("gpu:0", 400.0)), schedule(phase("gpu:0", 300.0), serial=2, client="right"), 1.0)


def drifting(power_w, step_s, **more):
    """The drifts that are told while a program is seen to draw and take so much, from the first second on."""
    watch = Watch(sample_s=1.0, drift_for_s=3.0, **more)
    course, _ = carried_out(started(phase("gpu:0", 400.0), watch=watch), 0.0)
    told = []
    for second in range(1, 10):
        course, found = seen(course, {"gpu:0": Seen(power_w=power_w, step_s=step_s)}, float(second))
        told += [(second, one) for one in found]
        course, _ = carried_out(course, float(second))
    return course, told


def test_work_that_is_slower_for_long_enough_is_to_be_matched_again_and_set_back():
    course, told = drifting(400.0, 0.15)
    assert [(second, one.job, one.slower) for second, one in told] == [(4, "resnet", True)]
    assert "match again" in told[0][1].why
    assert course.now == {LIMIT_0: 700.0}  # the safe default


def test_it_goes_back_to_what_was_before_or_stays_where_the_schedule_says_so():
    before, _ = drifting(400.0, 0.15, rollback=Rollback.PREVIOUS)
    stays, told = drifting(400.0, 0.15, rollback=Rollback.KEEP)
    assert before.now in ({}, {LIMIT_0: 700.0})  # as it was found
    assert stays.now == {LIMIT_0: 400.0}
    assert len(told) == 1


def test_work_that_draws_more_keeps_its_limit_as_a_default_would_be_higher():
    course, told = drifting(480.0, 0.1)
    assert "it draws 480 W" in told[0][1].why
    assert course.now == {LIMIT_0: 400.0}


@pytest.mark.parametrize(("power_w", "step_s"), [(400.0, 0.1), (415.0, 0.109), (None, None), (380.5, 0.095)])
def test_what_was_stated_as_possible_is_no_drift(power_w, step_s):
    assert drifting(power_w, step_s)[1] == []


def test_a_short_swing_is_no_drift():
    course, _ = carried_out(started(phase("gpu:0", 400.0)), 0.0)
    told = []
    for second, step_s in enumerate((0.1, 0.1, 0.2, 0.1, 0.1, 0.1), 1):
        course, found = seen(course, {"gpu:0": Seen(step_s=step_s)}, float(second))
        told += found
    assert [one.why for one in told] == []


@pytest.mark.parametrize(
    ("now_s", "state"), [(50.0, "waits"), (100.0, "runs"), (250.0, "pauses"), (399.0, "runs"), (400.0, "is over")]
)
def test_work_waits_runs_pauses_and_is_over_as_planned(now_s, state):
    assert state_of(schedule(phase("gpu:0", 400.0)).works[0].timing, now_s) == state


limits_w = st.floats(min_value=200.0, max_value=700.0)


@given(
    targets_w=st.lists(limits_w, min_size=1, max_size=4),
    found_w=limits_w,
    up=st.floats(min_value=5.0, max_value=200.0),
    down=st.floats(min_value=5.0, max_value=200.0),
)
def test_ramps_are_kept_and_everything_arrives(targets_w, found_w, up, down):
    phases = [phase(f"gpu:{place}", limit_w) for place, limit_w in enumerate(targets_w)]
    course = started(*phases, found_w=found_w, limits=PowerLimits(ramp_up_w_per_s=up, ramp_down_w_per_s=down))
    highest_w = max(found_w * len(targets_w), sum(targets_w))
    for second in range(600):
        before = {one.device: course.now.get(f"{one.device}/power_limit", found_w) for one in phases}
        course, _ = carried_out(course, float(second))
        after = {one.device: course.now.get(f"{one.device}/power_limit", found_w) for one in phases}
        moves_w = [after[device] - before[device] for device in before]
        assert sum(move for move in moves_w if move > 0) <= up + 1e-6
        assert -sum(move for move in moves_w if move < 0) <= down + 1e-6
        assert sum(after.values()) <= highest_w + 1e-6
    assert [course.now.get(f"{one.device}/power_limit", found_w) for one in phases] == pytest.approx(targets_w)
