"""What cannot be is left out and said; what is too little is refused by name. Nothing crashes."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.match.programs import series, telemetry

from wattsmith.match.clean import cleaned
from wattsmith.match.features import NeverWorked, fingerprint_of
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.telemetry import CHANNELS, Series, Telemetry


def test_values_that_are_not_numbers_are_left_out_and_said():
    found = cleaned(telemetry(lambda at_s: math.nan if 5 < at_s < 6 else 300.0))
    assert len(found.series["power_w"].values) == 951
    assert found.notes == ("power_w: 49 of 1000 values are not a number",)


def test_negative_power_is_left_out_and_said():
    found = cleaned(telemetry(lambda at_s: -1.0 if at_s < 1 else 300.0))
    assert min(found.series["power_w"].values) == 300.0
    assert "negative" in found.notes[0]


def test_a_channel_that_is_mostly_broken_is_left_out_whole():
    found = cleaned(telemetry(channels={"busy_ratio": series(lambda at_s: math.nan if at_s > 2 else 0.5)}))
    assert set(found.series) == {"power_w"}
    assert any("busy_ratio is left out" in note for note in found.notes)


def test_a_share_above_one_cannot_be():
    found = cleaned(telemetry(channels={"sm_ratio": series(lambda at_s: 7.0 if at_s < 1 else 0.5)}))
    assert max(found.series["sm_ratio"].values) == 0.5


def test_a_counter_that_runs_backward_is_carried_on():
    falls = {"instructions": Series(time_s=(0.0, 5.0, 10.0, 15.0, 20.0), values=(10.0, 20.0, 5.0, 15.0, 25.0))}
    found = cleaned(telemetry(channels=falls))
    assert found.series["instructions"].values == (10.0, 20.0, 20.0, 30.0, 40.0)
    assert any("runs backward 1 times" in note for note in found.notes)


def test_time_that_runs_backward_is_put_in_order():
    mixed = Series(time_s=(0.0, 2.0, 1.0, 3.0, 4.0), values=(1.0, 3.0, 2.0, 4.0, 5.0))
    found = cleaned(Telemetry(series={"power_w": mixed}))
    assert found.series["power_w"].values == (1.0, 2.0, 3.0, 4.0, 5.0)


def test_a_counter_that_falls_again_and_again_is_none():
    falls = {"steps": series(lambda at_s: at_s % 0.1)}
    found = cleaned(telemetry(channels=falls))
    assert "steps" not in found.series
    assert "steps is left out: a counter that falls so often is none" in found.notes


def test_a_moment_that_is_told_twice_counts_once_and_is_said():
    twice = Series(time_s=(0.0, 1.0, 1.0, 2.0, 3.0, 4.0), values=(1.0, 2.0, 9.0, 3.0, 4.0, 5.0))
    found = cleaned(Telemetry(series={"power_w": twice}))
    assert found.series["power_w"].values == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert found.notes == ("power_w: 1 values are left out, as their moment has one already",)


def test_values_without_a_time_are_left_out_and_not_blamed_themselves():
    found = cleaned(telemetry(channels={"busy_ratio": Series(time_s=(math.nan, *range(1, 20)), values=(0.5,) * 20)}))
    assert "busy_ratio: 1 of 20 values have no time in seconds" in found.notes


def test_no_power_at_all_is_no_reading():
    found = cleaned(telemetry(lambda _: 0.0, channels={"busy_ratio": series(lambda _: 0.9)}))
    assert set(found.series) == {"busy_ratio"}
    assert "0 W all the time" in found.notes[0]


def test_a_device_that_had_nothing_to_do_is_not_taken_for_a_program():
    with pytest.raises(NeverWorked, match="gpu:0 did nothing while it was watched: busy_ratio stays at 0"):
        fingerprint_of(telemetry(lambda _: 75.0, channels={"busy_ratio": series(lambda _: 0.0)}))


def test_a_trace_of_two_seconds_is_refused_with_its_length():
    with pytest.raises(BadInput, match=r"2\.0 s long"):
        cleaned(telemetry(length_s=2.0))


def test_a_trace_without_anything_usable_is_refused():
    with pytest.raises(BadInput, match="nothing that can be used"):
        cleaned(telemetry(lambda _: math.nan))


def test_a_channel_that_nobody_knows_is_refused():
    with pytest.raises(BadTerm, match="no channel colour"):
        Telemetry(series={"colour": Series(time_s=(), values=())})


anything = st.floats(allow_nan=True, allow_infinity=True)


@given(
    channels=st.dictionaries(
        st.sampled_from(CHANNELS), st.lists(st.tuples(anything, anything), max_size=30), min_size=1, max_size=4
    )
)
def test_whatever_comes_is_a_fingerprint_or_a_named_error(channels):
    given_series = {
        name: Series(time_s=tuple(a for a, _ in rows), values=tuple(b for _, b in rows))
        for name, rows in channels.items()
    }
    try:
        found = fingerprint_of(Telemetry(series=given_series, power_limit_w=500.0))
    except BadInput:
        return
    assert all(value is None or math.isfinite(value) for value in found.features.values())


def test_readings_from_before_the_others_began_are_left_out():
    early = Series(time_s=tuple(0.1 * place for place in range(100)), values=(120.0,) * 40 + (500.0,) * 60)
    later = Series(time_s=tuple(4.0 + 0.1 * place for place in range(60)), values=(0.9,) * 60)
    clean = cleaned(Telemetry(series={"power_w": early, "sm_ratio": later}))
    assert min(clean.series["power_w"].time_s) >= 3.7
    assert min(clean.series["power_w"].values[3:]) == 500.0
    assert "4.0 s from before" in clean.notes[0]


def test_a_channel_that_came_at_the_very_end_does_not_cost_the_others():
    long = Series(time_s=tuple(0.1 * place for place in range(100)), values=(500.0,) * 100)
    late = Series(time_s=(9.5, 9.6, 9.7, 9.8, 9.9), values=(0.9,) * 5)
    clean = cleaned(Telemetry(series={"power_w": long, "sm_ratio": late}))
    assert len(clean.series["power_w"].time_s) == 100
