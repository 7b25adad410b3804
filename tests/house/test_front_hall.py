"""The front hall holds few names, in order, and each of them leads somewhere."""

import subprocess
import sys

import pytest

import wattsmith

MOST_NAMES = 15


def test_there_are_at_most_fifteen_names():
    assert len(wattsmith.__all__) <= MOST_NAMES


def test_the_names_are_sorted():
    assert list(wattsmith.__all__) == sorted(wattsmith.__all__)


def test_every_name_leads_somewhere():
    assert [name for name in wattsmith.__all__ if getattr(wattsmith, name, None) is None] == []


def test_every_name_is_offered_when_one_asks_what_is_there():
    assert set(wattsmith.__all__) <= set(dir(wattsmith))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        wattsmith.no_such_thing  # noqa: B018


def test_a_verb_stays_a_verb_when_the_room_of_that_name_is_imported():
    code = "import wattsmith, wattsmith.measure.session; print(callable(wattsmith.measure))"
    said = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert said.strip() == "True"
