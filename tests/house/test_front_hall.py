"""The front hall holds few names, in order, and each of them leads somewhere."""

import pytest

import wattsmith

MOST_NAMES = 15


@pytest.fixture
def names():
    if not hasattr(wattsmith, "__all__"):
        pytest.skip("THE FRONT HALL IS NOT CHECKED: wattsmith has no `__all__` yet")
    return wattsmith.__all__


def test_there_are_at_most_fifteen_names(names):
    assert len(names) <= MOST_NAMES


def test_the_names_are_sorted(names):
    assert list(names) == sorted(names)


def test_every_name_leads_somewhere(names):
    assert [name for name in names if getattr(wattsmith, name, None) is None] == []


def test_every_name_is_offered_when_one_asks_what_is_there(names):
    assert set(names) <= set(dir(wattsmith))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no_such_thing"):
        wattsmith.no_such_thing  # noqa: B018
