"""Values of knobs: read, written, and held within what may be set."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.terms.control import KnobCard, check_value, format_value, parse_value, value_from_plain
from wattsmith.terms.errors import BadTerm

LIMIT = KnobCard(
    name="gpu:0/power_limit", device="gpu:0", identity="GPU-1", title="a GPU", unit="W", ends=(200.0, 800.0),
    default=700.0,
)  # fmt: skip
CLOCK = KnobCard(
    name="gpu:0/clock", device="gpu:0", identity="GPU-1", title="a GPU", unit="Hz", ends=(345e6, 1_980e6), pair=True,
    lockable=True,
)  # fmt: skip
GOVERNOR = KnobCard(
    name="cpu:0/governor", device="cpu:0", identity="p0", title="a CPU", unit="", levels=("performance", "powersave")
)
PACKAGE = KnobCard(name="cpu-package:0/power_limit_long_term", device="p", identity="p", title="a CPU", unit="W")


@pytest.mark.parametrize(
    ("card", "text", "value", "written"),
    [
        (LIMIT, "300W", 300.0, "300 W"),
        (LIMIT, "0.3kW", 300.0, "300 W"),
        (CLOCK, "345MHz..1.2GHz", (345e6, 1.2e9), "345 MHz … 1.2 GHz"),
        (CLOCK, "1.2GHz", (1.2e9, 1.2e9), "1.2 GHz … 1.2 GHz"),
        (CLOCK, "unlocked", None, "unlocked"),
        (GOVERNOR, "powersave", "powersave", "powersave"),
    ],
)
def test_a_value_is_read_from_text_and_written_for_people(card, text, value, written):
    assert parse_value(card, text) == value
    assert format_value(card, value) == written
    check_value(card, value, None)


@pytest.mark.parametrize("text", ["300", "300J", "200W..300W", ""])
def test_a_text_that_is_no_power_is_refused(text):
    with pytest.raises(BadTerm):
        parse_value(LIMIT, text)


@pytest.mark.parametrize(
    ("card", "value", "why"),
    [
        (LIMIT, 100.0, "200 W … 800 W"),
        (LIMIT, 750.0, "the default is 700 W"),
        (LIMIT, None, "always set"),
        (LIMIT, float("nan"), "positive"),
        (LIMIT, (300.0, 400.0), "one number"),
        (CLOCK, 1e9, "least and most"),
        (CLOCK, (1.2e9, 1e9), "least is above the most"),
        (CLOCK, (100e6, 1e9), "345 MHz … 1.98 GHz"),
        (CLOCK, "fast", "a number"),
        (GOVERNOR, "ondemand", "performance, powersave"),
        (GOVERNOR, 3.0, "one of"),
    ],
)
def test_what_may_not_be_set_is_refused_with_the_reason(card, value, why):
    with pytest.raises(BadTerm, match=why):
        check_value(card, value, None)


def test_a_limit_without_a_default_is_only_ever_lowered():
    check_value(PACKAGE, 125.0, 250.0)
    with pytest.raises(BadTerm, match="stood at 250 W"):
        check_value(PACKAGE, 251.0, 250.0)


@given(st.one_of(st.none(), st.text(), st.floats(allow_nan=False), st.tuples(st.floats(1, 9), st.floats(1, 9))))
def test_a_value_survives_a_file(value):
    plain = list(value) if isinstance(value, tuple) else value
    assert value_from_plain(plain) == value


@pytest.mark.parametrize("plain", [True, [1], [1, 2, 3], [1, True], {"a": 1}, 10**400, [1, 10**400]])
def test_what_is_no_value_is_refused(plain):
    with pytest.raises(BadTerm):
        value_from_plain(plain)
