"""Parts of the page that need no service: words, charts, what needs attention, the line of the last hour."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.serve.page.attention import notices
from wattsmith.serve.page.charts import Axis, linear_axis, log_axis, sparkline, time_axis
from wattsmith.serve.page.drawings import Compared, beside, coverage, plan_signal, power_over_time, power_steps
from wattsmith.serve.page.history import History
from wattsmith.serve.page.views import compared
from wattsmith.serve.page.words import age, interval, quantity, ratio, setting, when
from wattsmith.terms.service import Client, JobState, Predicted, Report, ServedJob
from wattsmith.terms.work import Interval, Setting

HOSTILE = '<script>alert("x")</script>'
POOL = {"nodes": [], "budget_w": None, "power_w": None, "believed_w": 0.0, "guard_w": 0.0}
JOB = ServedJob(id="j-1", name="bert", by="mia", written="", state=JobState.WAITING, submitted_s=0.0, command=("true",))
CLIENT = Client(name="edge-1", first_seen_s=0.0, last_seen_s=1000.0)


# Words


def test_what_is_not_known_is_unknown():
    assert "unknown" in quantity(None, "power")
    assert "unknown" in interval(None, "time")
    assert "unknown" in ratio(None)
    assert "unknown" in when(None, 0.0)


def test_a_prediction_comes_with_its_range():
    text = interval(Interval(value=200.0, low=150.0, high=300.0), "power")
    assert "200 W" in text
    assert "150 W … 300 W" in text


def test_a_plain_interval_reads_like_the_fact():
    fact = Interval(value=2.0, low=1.0, high=3.0)
    assert interval(fact, "energy") == interval({"value": 2.0, "low": 1.0, "high": 3.0}, "energy")


@pytest.mark.parametrize(("seconds", "said"), [(5, "5 s"), (120, "2 min"), (7200, "2 h"), (2 * 86400, "2 d")])
def test_ages_are_rough(seconds, said):
    assert age(seconds) == said
    assert f"{said} ago" in when(1000.0, 1000.0 + seconds)
    assert f"in {said}" in when(1000.0 + seconds, 1000.0)


@pytest.mark.parametrize(("share", "said"), [(0.126, "13 %"), (-1e-9, "0 %"), (1.0, "100 %"), (-0.03, "-3 %")])
def test_a_share_is_said_in_per_cent_and_nothing_is_less_than_nothing(share, said):
    assert ratio(share) == said


def test_a_setting_says_what_it_turns():
    assert setting(Setting()) == "as found"
    assert setting({"power_limit_w": 450.0, "clock_hz": 1.2e9}) == "limit 450 W, clock 1.2 GHz"


# Charts


@given(st.floats(1e-6, 1e12), st.sampled_from(["power", "memory", "frequency", None]))
def test_an_axis_holds_its_value_and_has_few_ticks(high, kind):
    axis = linear_axis(high, kind)
    assert axis.low == 0
    assert axis.high >= high * (1 - 1e-6)
    assert 2 <= len(axis.ticks) <= 7


@given(st.floats(1e-12, 1e12), st.floats(1, 1e6))
def test_a_logarithmic_axis_holds_both_ends(low, times):
    axis = log_axis(low, low * times)
    assert 0 <= axis.at(low) <= axis.at(low * times) <= 1
    assert len(axis.ticks) <= 8


@given(st.floats(0, 4e9), st.floats(1, 1e8))
def test_times_of_day_lie_between_both_ends(begin_s, long_s):
    axis = time_axis(begin_s, begin_s + long_s)
    assert len(axis.ticks) <= 7
    assert all(axis.low <= at_s <= axis.high for at_s, _ in axis.ticks)


@given(begin_s=st.floats(allow_nan=False), end_s=st.floats(allow_nan=False))
def test_any_two_times_have_an_axis_with_few_ticks(begin_s, end_s):
    assert len(time_axis(begin_s, end_s).ticks) <= 8


def test_memory_is_counted_in_powers_of_two():
    assert [text for _, text in linear_axis(20 * 2**30, "memory", most_ticks=3).ticks] == [
        *("0", "8 GiB", "16 GiB", "24 GiB")
    ]


def test_values_beyond_an_axis_stay_at_its_end():
    assert Axis(low=0.0, high=10.0).at(25.0) == 1
    assert Axis(low=0.0, high=10.0).at(-3.0) == 0


def test_a_line_breaks_where_nothing_is_known():
    drawn = power_over_time([(0.0, 1.0), (1.0, 2.0), (2.0, None), (3.0, 2.0), (4.0, 1.0)], 0.0, 4.0, label="power")
    line = drawn.partition('class="line measured" d="')[2].partition('"')[0]
    assert line.count("M") == 2


def test_nothing_drawn_needs_inline_style_or_script():
    drawn = power_over_time([(0.0, 1.0), (1.0, 2.0)], 0.0, 1.0, label=HOSTILE, budget_w=3.0) + sparkline(
        [(0.0, 1.0), (1.0, 2.0)], HOSTILE
    )
    assert "style=" not in drawn
    assert "<script" not in drawn
    assert "&lt;script&gt;" in drawn


def test_a_sparkline_of_one_reading_says_so():
    assert "too few" in sparkline([(0.0, 1.0)], "power")


@pytest.mark.parametrize(
    ("measured", "so_far", "verdict"),
    [
        (10.0, False, "inside the interval"),
        (7.0, False, "below the interval"),
        (13.0, False, "above the interval"),
        (7.0, True, "so far"),
        (13.0, True, "above the interval"),
        (None, False, None),
    ],
)
def test_measured_lies_somewhere_of_predicted(measured, so_far, verdict):
    said = Interval(value=10.0, low=8.0, high=12.0)
    one = Compared(name="Time", kind="time", predicted=said, measured=measured, so_far=so_far)
    assert one.verdict == verdict
    assert ("circle" in beside(one)) == (measured is not None)


def test_a_figure_of_which_nothing_is_known_is_not_drawn():
    assert beside(Compared(name="Time", kind="time", predicted=None, measured=None)) == ""


def test_power_of_a_plan_adds_up_and_ends():
    stretches = [
        {"from_s": 0.0, "until_s": 10.0, "power_w": 100.0},
        {"from_s": 5.0, "until_s": 10.0, "power_w": 50.0},
    ]
    assert power_steps(stretches, 0.0) == [(0.0, 100.0), (5.0, 150.0), (10.0, 0.0)]


def test_coverage_counts_runs_in_cells():
    drawn = coverage([(1.0, 1e6), (1.0, 1e6), (100.0, 1e9)], label="coverage")
    assert drawn.count('class="cell') == 2
    assert "2 measured" in drawn


# Attention


def test_a_budget_that_is_not_kept_or_does_not_count_all_needs_attention():
    told = {"over_budget_because": "the pool draws 100 W too much", "idle_unknown_because": "of here nobody knows"}
    found = notices([], [], POOL | told | {"budget_w": 500.0, "power_w": None}, runs=1, now_s=0.0)
    assert [(one.grave, one.text) for one in found] == [
        (True, "the pool draws 100 W too much"),
        (False, "Of the budget: of here nobody knows"),
    ]
    assert notices([], [], POOL | {**told, "over_budget_because": None, "budget_w": None}, runs=1, now_s=0.0) == []


def test_nothing_needs_attention_where_all_is_well():
    assert notices([JOB], [CLIENT], POOL, runs=10, now_s=1001.0) == []


def test_the_gravest_comes_first():
    failed = replace(JOB, state=JobState.FAILED, reason="exit code 1", ended_s=990.0)
    lost = {**POOL, "nodes": [{"name": "rack-1", "lost": True}], "budget_w": 100.0, "power_w": 120.0}
    found = notices([failed], [CLIENT], lost, runs=0, now_s=2000.0)
    assert [one.grave for one in found] == [True, True, True, False, False]
    assert found[0].text.startswith("Node rack-1 is lost")
    assert found[1].text == "120 W is drawn, and the budget is 100 W"
    assert found[2].text == "bert failed: exit code 1"
    assert found[3].text.startswith("edge-1 is silent")
    assert "wattsmith record run" in found[4].text


@pytest.mark.parametrize(
    ("deadline_s", "said"), [(1099.0, "will miss"), (1110.0, "may miss"), (1200.0, None), (900.0, "has missed")]
)
def test_a_deadline_is_held_against_what_was_predicted(deadline_s, said):
    predicted = Predicted(duration_s=Interval(value=110.0, low=100.0, high=120.0))
    found = notices([replace(JOB, predicted=predicted, deadline_s=deadline_s)], [], POOL, runs=1, now_s=1000.0)
    assert [one.text for one in found] == ([] if said is None else [f"bert {said} its deadline"])


def test_how_late_a_job_will_be_and_what_went_wrong_beside_it_are_told():
    late = replace(JOB, deadline_s=1200.0, late_by_s=600.0, trouble="its run did not join the record")
    found = notices([late], [], POOL, runs=1, now_s=1000.0)
    assert [one.text for one in found] == [
        "bert will miss its deadline by 10 min",
        "bert: its run did not join the record",
    ]


def test_what_a_job_has_used_so_far_stands_beside_what_was_predicted():
    predicted = Predicted(energy_j=Interval(value=900.0, low=800.0, high=1000.0))
    running = replace(
        JOB, predicted=predicted, energy_so_far_j=450.0, energy_source="counter", power_so_far_w=9.0, power_now_w=10.0
    )
    _, energy, power, *_ = compared(running, 1000.0)
    assert (energy.measured, energy.verdict, energy.note) == (450.0, "so far", "source: counter")
    assert (power.measured, power.note) == (9.0, "now 10 W")
    _, energy, *_ = compared(replace(JOB, energy_why="its node has no meter"), 1000.0)
    assert (energy.measured, energy.note) == (None, "its node has no meter")


def test_a_signal_is_drawn_as_it_is_known_and_no_further():
    plan = {"begin_s": 0.0, "end_s": 10.0}
    windows = [
        {"kind": "carbon", "span": {"from_s": -5.0, "until_s": 2.0}, "value": 100.0},
        {"kind": "carbon", "span": {"from_s": 2.0, "until_s": 4.0}, "value": 50.0},
        {"kind": "carbon", "span": {"from_s": 8.0, "until_s": 99.0}, "value": 100.0},
    ]
    drawn = str(plan_signal(plan, windows, "carbon"))
    line = drawn.partition('class="line signal" d="')[2].partition('"')[0]
    assert line.count("M") == 2  # nothing is known from 4 to 8


def test_many_silent_machines_are_one_notice():
    many = [replace(CLIENT, name=f"edge-{place}") for place in range(1000)]
    assert [one.text for one in notices([], many, POOL, runs=1, now_s=1060.0)] == [
        "1,000 machines are silent, for up to 1 min"
    ]


def test_an_agent_that_may_not_is_told_of():
    latest = Report(boot="b", number=1, time_s=0.0, refused=("clock: not root",))
    (found,) = notices([], [replace(CLIENT, latest=latest)], POOL, runs=1, now_s=1001.0)
    assert found.text == "edge-1 is not allowed to set what the schedule asks for"


# The line of the last hour


def test_readings_are_kept_for_an_hour_with_gaps_where_nobody_looked():
    readings = iter([(0.0, 1.0), (1.0, 1.5), (5.0, 2.0), (100.0, 3.0), (3700.0, 4.0)])
    history = History(lambda: next(readings))
    for _ in range(4):
        history.look()
    assert history.points() == [(0.0, 1.0), (5.0, 2.0), (10.0, None), (100.0, 3.0)]
    history.look()
    assert history.points() == [(100.0, 3.0), (105.0, None), (3700.0, 4.0)]


def test_the_thread_that_looks_ends_when_it_is_left():
    history = History(lambda: (0.0, 1.0))
    with history.looking():
        pass
    assert history.points() == [(0.0, 1.0)]
