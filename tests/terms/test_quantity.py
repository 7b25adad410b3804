"""Quantities are read and written with their units."""

import math

import pytest
from hypothesis import given
from hypothesis.strategies import floats, integers, sampled_from

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.quantity import UNITS, format_quantity, parse_quantity


@pytest.mark.parametrize(
    ("text", "kind", "value"),
    [
        ("250W", "power", 250.0),
        ("1.2kW", "power", 1200.0),
        ("500 mW", "power", 0.5),
        ("3MW", "power", 3_000_000.0),
        ("1.2kJ", "energy", 1200.0),
        ("2Wh", "energy", 7200.0),
        ("1 kWh", "energy", 3_600_000.0),
        ("20min", "time", 1200.0),
        ("50ms", "time", 0.05),
        ("1.5h", "time", 5400.0),
        ("2d", "time", 172_800.0),
        ("4us", "time", 4e-6),
        ("4µs", "time", 4e-6),
        ("4\N{GREEK SMALL LETTER MU}s", "time", 4e-6),
        ("1.5GHz", "frequency", 1.5e9),
        ("8GiB", "memory", 8 * 1024**3),
        ("8GB", "memory", 8e9),
        ("512B", "memory", 512.0),
        ("  7 W ", "power", 7.0),
        ("1_000W", "power", 1000.0),
        ("1e3W", "power", 1000.0),
        (".5W", "power", 0.5),
        ("5.W", "power", 5.0),
        ("-5W", "power", -5.0),
        ("+5W", "power", 5.0),
        ("0W", "power", 0.0),
    ],
)
def test_a_quantity_is_read_into_its_si_unit(text, kind, value):
    assert parse_quantity(text, kind) == pytest.approx(value, rel=1e-15)


@pytest.mark.parametrize(
    ("text", "kind", "complaint"),
    [
        ("250", "power", "'250' has no unit: write 250W if that is what you mean"),
        (" 8 ", "memory", "' 8 ' has no unit: write 8B if that is what you mean"),
        ("20min", "power", "min is a unit of time; write for instance 250W or 1.2kW"),
        ("8GiB", "energy", "GiB is a unit of memory; write for instance 500J or 1.2kWh"),
        ("8gib", "memory", "the unit 'gib' is spelled GiB"),
        ("250w", "power", "the unit 'w' is spelled W"),
        ("250mw", "power", "the unit 'mw' is spelled mW or MW"),
        ("5m", "time", "the unit 'm' is not known; write for instance 50ms or 20min"),
        ("5kmin", "time", "the unit 'kmin' is not known"),
        ("1mB", "memory", "the unit 'mB' is spelled MB"),
        ("5 k W", "power", "write a number and a unit, such as 250W or 1.2kW"),
        ("", "energy", "'' is not a quantity of energy: write a number and a unit, such as 500J or 1.2kWh"),
        ("much", "energy", "'much' is not a quantity of energy"),
        ("nanW", "power", "'nanW' is not a quantity of power"),
        ("infW", "power", "'infW' is not a quantity of power"),
        ("1__0W", "power", "'1__0W' is not a quantity of power"),
        ("1.2.3W", "power", "'1.2.3W' is not a quantity of power"),
        ("1,5W", "power", "the unit ',5W' is not known"),
        ("1e999W", "power", "'1e999W' is too large a number"),
    ],
)
def test_a_wrong_quantity_is_refused_by_what_is_wrong_with_it(text, kind, complaint):
    with pytest.raises(BadTerm) as refused:
        parse_quantity(text, kind)
    assert complaint in str(refused.value)
    assert repr(text) in str(refused.value)


@pytest.mark.parametrize(
    ("value", "kind", "text"),
    [
        (None, "energy", "unknown"),
        (math.nan, "power", "unknown"),
        (math.inf, "time", "unknown"),
        (0.0, "energy", "0 J"),
        (250.0, "power", "250 W"),
        (1234.5, "energy", "1.234 kJ"),
        (999.6, "power", "999.6 W"),
        (999.99, "power", "1 kW"),
        (0.5, "power", "500 mW"),
        (-0.5, "power", "-500 mW"),
        (2e-6, "time", "2 µs"),
        (1e-12, "power", "1e-12 W"),
        (119.0, "time", "119 s"),
        (120.0, "time", "2 min 00 s"),
        (-150.0, "time", "-2 min 30 s"),
        (3599.4, "time", "59 min 59 s"),
        (3599.6, "time", "1 h 00 min"),
        (5399.0, "time", "1 h 30 min"),
        (90_000.0, "time", "25 h 00 min"),
        (1.41e9, "frequency", "1.41 GHz"),
        (8 * 1024**3, "memory", "8 GiB"),
        (1023, "memory", "1023 B"),
        (1000 * 1024, "memory", "1000 KiB"),
    ],
)
def test_a_quantity_is_written_for_people(value, kind, text):
    assert format_quantity(value, kind) == text


def test_few_digits_are_never_written_with_an_exponent():
    assert format_quantity(250.0, "power", digits=1) == "200 W"
    assert format_quantity(1010 * 1024, "memory", digits=3) == "1010 KiB"


@given(
    value=floats(1e-9, 1e18) | floats(-1e18, -1e-9),
    kind=sampled_from(["power", "energy", "frequency", "memory"]),
    digits=integers(3, 12),
)
def test_what_is_written_is_read_back_to_its_digits(value, kind, digits):
    assert parse_quantity(format_quantity(value, kind, digits), kind) == pytest.approx(
        value, rel=0.51 * 10 ** (1 - digits)
    )


@given(value=floats(1e-9, 119), digits=integers(3, 12))
def test_a_short_time_is_read_back_too(value, digits):
    assert parse_quantity(format_quantity(value, "time", digits), "time") == pytest.approx(
        value, rel=0.51 * 10 ** (1 - digits)
    )


@given(value=floats(1e-9, 9e17), kind=sampled_from(["power", "energy", "frequency"]), digits=integers(1, 6))
def test_the_number_before_an_si_unit_lies_between_one_and_a_thousand(value, kind, digits):
    number = float(format_quantity(value, kind, digits).split()[0])
    assert 1 <= number < 1000


@given(number=integers(0, 10**6), kind=sampled_from(sorted(UNITS)))
def test_every_unit_on_offer_is_understood(number, kind):
    for unit, factor in UNITS[kind].items():
        assert parse_quantity(f"{number}{unit}", kind) == number * factor
        assert parse_quantity(f"{number} {unit}", kind) == number * factor
