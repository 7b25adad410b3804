"""Windows: they cost a time stamp, overlap freely, split by phase, and survive what meters do."""

import threading
import time
from contextlib import suppress

import pytest
from tests.measure.playing import LOST, MISSED, PlayedMeter

from wattsmith.measure.session import Session
from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.clock import RealClock
from wattsmith.terms.errors import BadTerm


@pytest.fixture
def clock():
    return SimulatedClock(100.0)


def steady(power_w):
    return lambda _: power_w


def session_of(clock, *meters, **options):
    return Session(meters, clock=clock, background=False, **options)


def pass_time(session, clock, duration_s, step_s=0.1):
    for _ in range(round(duration_s / step_s)):
        clock.sleep_s(step_s)
        session.read()


def test_a_window_costs_power_times_time(clock):
    session = session_of(clock, PlayedMeter(clock, steady(200.0)))
    with session.measure("work") as window:
        pass_time(session, clock, 3.0)
    assert window.result().energy_j == pytest.approx(600)
    assert window.result().duration_s == pytest.approx(3)


def test_beginning_and_ending_do_not_touch_the_meters(clock):
    meter = PlayedMeter(clock, steady(200.0))
    session = session_of(clock, meter)
    reads = meter.reads
    for _ in range(1000):
        session.end(session.begin("step"))
    assert meter.reads == reads


def test_windows_nest_and_overlap(clock):
    session = session_of(clock, PlayedMeter(clock, lambda t: 100.0 if t < 103 else 300.0))
    outer = session.begin("outer")
    pass_time(session, clock, 1.0)
    crossing = session.begin("crossing")
    pass_time(session, clock, 1.0)
    outer.end()
    pass_time(session, clock, 2.0)
    crossing.end()
    assert outer.result().energy_j == pytest.approx(200, rel=0.01)
    assert crossing.result().energy_j == pytest.approx(200 + 300, rel=0.01)


def test_a_window_can_be_ended_by_its_name(clock):
    session = session_of(clock, PlayedMeter(clock, steady(100.0)))
    session.begin("epoch")
    session.begin("epoch")
    pass_time(session, clock, 1.0)
    second = session.end("epoch")
    pass_time(session, clock, 1.0)
    first = session.end("epoch")
    assert second.result().energy_j == pytest.approx(100)
    assert first.result().energy_j == pytest.approx(200)


def test_ending_what_is_not_open_names_what_is(clock):
    session = session_of(clock)
    session.begin("train")
    with pytest.raises(BadTerm, match="no window 'tarin' is open; open are: 'train'"):
        session.end("tarin")


def test_ending_twice_is_refused(clock):
    session = session_of(clock)
    window = session.begin("once").end()
    with pytest.raises(BadTerm, match="has ended already"):
        window.end()


def test_the_figure_of_an_open_window_is_refused_but_can_be_had_so_far(clock):
    session = session_of(clock, PlayedMeter(clock, steady(100.0)))
    window = session.begin("long")
    assert window.so_far() is None
    pass_time(session, clock, 1.0)
    with pytest.raises(BadTerm, match="has not ended"):
        window.result()
    assert window.so_far().energy_j == pytest.approx(100, rel=0.03)


def test_a_window_around_code_that_raises_still_ends(clock):
    session = session_of(clock, PlayedMeter(clock, steady(100.0)))
    with suppress(ZeroDivisionError), session.measure("crash") as window:
        clock.sleep_s(1.0)
        raise ZeroDivisionError
    assert window.result().energy_j == pytest.approx(100)


def test_joules_are_split_by_what_the_machine_was_doing(clock):
    session = session_of(clock, PlayedMeter(clock, lambda t: 500.0 if 102 <= t < 104 else 100.0))
    with session.measure("step") as window:
        with window.phase("data"):
            pass_time(session, clock, 2.0)
        with window.phase("compute"):
            pass_time(session, clock, 2.0)
        pass_time(session, clock, 1.0)
    phases = {phase.name: phase for phase in window.result().phases}
    assert phases["data"].energy_j["gpu:0"] == pytest.approx(200, rel=0.03)
    assert phases["compute"].energy_j["gpu:0"] == pytest.approx(1000, rel=0.03)
    assert phases["rest"].duration_s == pytest.approx(1)
    assert sum(p.energy_j["gpu:0"] for p in phases.values()) == pytest.approx(window.result().energy_j)


def test_a_phase_inside_a_phase_takes_its_time_out_of_the_outer_one(clock):
    session = session_of(clock, PlayedMeter(clock, steady(100.0)))
    with session.measure("step") as window, window.phase("compute"):
        clock.sleep_s(1.0)
        with window.phase("communicate"):
            clock.sleep_s(2.0)
        clock.sleep_s(1.0)
    durations_s = {phase.name: phase.duration_s for phase in window.result().phases}
    assert durations_s == pytest.approx({"compute": 2, "communicate": 2, "rest": 0})


def test_many_phases_are_added_up_and_not_kept_one_by_one(clock):
    session = session_of(clock, PlayedMeter(clock, steady(100.0)))
    with session.measure("epoch") as window:
        for _ in range(5000):
            with window.phase("compute"):
                clock.sleep_s(0.01)
            session.read()
        assert len(window._segments) < 1000
    (compute, _) = window.result().phases
    assert compute.energy_j["gpu:0"] == pytest.approx(5000)


def test_device_work_is_waited_for_before_every_time_stamp_when_asked(clock):
    waited = []
    session = session_of(clock)
    with session.measure("step", sync=lambda: waited.append(clock.now_s())) as window, window.phase("compute"):
        clock.sleep_s(1.0)
    assert waited == [100, 100, 101, 101]


def test_a_machine_without_a_meter_gives_unknown_with_its_reason(clock):
    session = session_of(clock, missing={"gpu": "no driver"})
    with session.measure("work") as window:
        clock.sleep_s(1.0)
    assert window.result().energy_j is None
    assert window.result().missing == {"gpu": "no driver"}
    assert window.result().duration_s == 1


def test_a_card_that_disappears_in_the_middle_leaves_an_incomplete_figure(clock):
    meter, other = PlayedMeter(clock, steady(100.0)), PlayedMeter(clock, steady(50.0), domain="gpu:1")
    session = session_of(clock, meter, other)
    with session.measure("work") as window:
        pass_time(session, clock, 1.0)
        meter.fails_with = LOST
        pass_time(session, clock, 1.0)
    result = window.result()
    assert result.domain("gpu:0").energy_j == pytest.approx(100, rel=0.03)
    assert not result.domain("gpu:0").complete
    assert result.domain("gpu:1").energy_j == pytest.approx(100, rel=0.03)
    assert result.domain("gpu:1").complete
    assert not result.complete


def test_readings_that_fail_for_a_while_are_counted(clock):
    meter = PlayedMeter(clock, steady(100.0), period_s=0.1, keeps=False)
    session = session_of(clock, meter)
    with session.measure("work") as window:
        meter.fails_with = MISSED
        pass_time(session, clock, 0.5)
        meter.fails_with = None
        pass_time(session, clock, 1.5)
    assert window.result().energy_j == pytest.approx(200)
    assert window.result().domain("gpu:0").missed == 5


def test_a_meter_that_never_answers_is_carried_on_in_doubt_and_not_waited_for_forever(clock):
    meter = PlayedMeter(clock, steady(100.0))
    session = session_of(clock, meter)
    with session.measure("work") as window:
        pass_time(session, clock, 1.0)
        meter.fails_with = MISSED
        clock.sleep_s(1.0)
    assert window.result().energy_j == pytest.approx(200)
    assert window.result().error_j == pytest.approx(100, rel=0.05)


def test_the_node_meter_counts_instead_of_what_it_contains(clock):
    node = PlayedMeter(clock, steady(500.0), domain="node:0", encloses=("gpu",))
    session = session_of(clock, PlayedMeter(clock, steady(200.0)), node)
    with session.measure("work") as window:
        clock.sleep_s(1.0)
    assert window.result().energy_j == pytest.approx(500)


def test_closing_ends_what_is_open_and_keeps_all_figures(clock):
    meter = PlayedMeter(clock, steady(100.0))
    session = session_of(clock, meter)
    window = session.begin("left open")
    clock.sleep_s(2.0)
    session.close()
    assert meter.closed
    assert window.result().energy_j == pytest.approx(200)


def test_windows_far_apart_need_no_more_memory_than_close_ones(clock):
    session = session_of(clock, PlayedMeter(clock, steady(100.0)))
    window = session.begin("ten minutes")
    for _ in range(600):
        clock.sleep_s(1.0)
        session.read()
        session._tidy(clock.now_s())
    assert len(session._tracks[0].tape._time_s) < 12_000
    assert window.end().result().energy_j == pytest.approx(60_000)


def test_ten_hours_have_the_truth_of_the_counter(clock):
    """The power readings are 3 % low all the time; the counter, read once a second, is right."""
    meter = PlayedMeter(clock, steady(291.0), period_s=0.5, counts=True, counted_j=lambda t: 300.0 * (t - 100.0))
    session = session_of(clock, meter)
    window = session.begin("ten hours")
    for _ in range(36_000):
        clock.sleep_s(1.0)
        session.read()
    session._tidy(clock.now_s())
    result = window.end().result()
    assert result.energy_j == pytest.approx(300 * 36_000, abs=2 * 0.1 * 300)
    assert result.error_j <= 2 * 0.1 * 300
    assert not result.domains[0].cross_check.agrees


def test_a_window_is_resolved_while_the_background_reader_runs():
    clock = RealClock()
    with Session([PlayedMeter(clock, steady(100.0))], clock=clock) as session:
        with session.measure("real") as window:
            time.sleep(0.3)
        assert window.result().energy_j == pytest.approx(100 * window.duration_s, rel=0.01)


def test_ten_thousand_windows_a_minute_from_several_threads():
    """Two threads make 2,000 windows of a millisecond in about two seconds: six times the rate."""
    clock = RealClock()
    windows = []
    with Session([PlayedMeter(clock, steady(100.0), domain=f"gpu:{i}") for i in range(8)], clock=clock) as session:

        def work():
            for i in range(1000):
                window = session.begin(f"step {i}")
                time.sleep(0.001)
                windows.append(window.end())

        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not session._open
        for window in windows:
            assert window.result().energy_j == pytest.approx(800 * window.duration_s, rel=1e-6)
