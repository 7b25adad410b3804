"""Facts come back from their plain form, and whatever is wrong is named with its place."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.terms.test_run import run

from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Run
from wattsmith.terms.work import Workload


def test_a_run_survives_the_way_through_json():
    assert parse_fact(Run, json.loads(json.dumps(as_plain(run())))) == run()


@given(
    st.dictionaries(
        st.text(min_size=1), st.one_of(st.integers(), st.floats(allow_nan=False), st.booleans(), st.text())
    ),
    st.integers(1, 512),
)
def test_any_workload_survives_the_way_through_json(parameters, batch):
    workload = Workload(family="cnn", parameters=parameters, batch=batch)
    plain = json.loads(json.dumps(as_plain(workload)))
    if all(value == value and value not in (float("inf"), float("-inf")) for value in parameters.values()):
        assert parse_fact(Workload, plain) == workload


def test_all_problems_are_named_with_their_places():
    plain = as_plain(run())
    plain["workload"]["batch"] = "eight"
    plain["times"]["steps"] = None
    plain["status"] = "fine"
    plain["colour"] = "red"
    del plain["provenance"]["session"]
    with pytest.raises(BadInput) as refused:
        parse_fact(Run, plain)
    assert str(refused.value).splitlines() == [
        "Run.colour: not known here",
        "Run.workload.batch: expected int, got 'eight'",
        "Run.status: expected one of 'measured', 'out of memory', 'crashed', 'hung', 'killed', got 'fine'",
        "Run.provenance.session: missing",
        "Run.times.steps: expected int, got None",
    ]


def test_a_value_that_makes_no_sense_is_named_too():
    plain = as_plain(run())
    plain["workload"]["batch"] = 0
    with pytest.raises(BadInput, match=r"Run\.workload: batch must be at least 1, got 0"):
        parse_fact(Run, plain)


@pytest.mark.parametrize("plain", [None, 3, "text", [], [1, 2], {"workload": []}])
def test_what_is_no_run_at_all_is_refused(plain):
    with pytest.raises(BadInput):
        parse_fact(Run, plain)
