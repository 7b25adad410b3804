"""One root, and children named for what the caller can do."""

import inspect

import pytest

from wattsmith.terms import errors
from wattsmith.terms.errors import BadInput, BadTerm, ExtraNeeded, WattsmithError

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_is_caught_at_the_root(kind):
    assert issubclass(kind, WattsmithError)


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_stands_in_the_tree_that_the_module_shows(kind):
    assert kind.__name__ in errors.__doc__


def test_errors_are_also_what_python_calls_them():
    assert issubclass(BadTerm, ValueError)
    assert issubclass(BadInput, ValueError)
    assert issubclass(ExtraNeeded, ImportError)
