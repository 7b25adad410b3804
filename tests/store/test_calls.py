"""The operators that a step called come back in their order, with their shapes and the types of their options."""

import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from tests.store.any_runs import any_run
from tests.store.making import run_of
from tests.store.test_schema import OLD_RUNS, version_in, write_old_record

from wattsmith.store import schema
from wattsmith.store.engine import postgres_engine, sqlite_engine, write_transaction
from wattsmith.store.jsonlines import SCHEMA, header_line, run_line
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import OperatorCall

CONV = OperatorCall(
    operator="convolution",
    kind="conv",
    dtype="bfloat16",
    shapes=((4, 3, 32, 32), (8, 3, 3, 3), ()),
    options={"stride": 2, "groups": 1, "transposed": False, "scale": 1.0, "padding": "same"},
    calls=2,
    flops=300.0,
    moved_bytes=60.0,
    busy_s=0.25,
)
RELU = OperatorCall(operator="relu", kind="elementwise", dtype="bfloat16", shapes=((4, 8, 16, 16),))
FIVE = (CONV, RELU, CONV, RELU, RELU)


@pytest.fixture(params=["sqlite", "jsonl", "postgresql"])
def place(request, tmp_path):
    return (
        request.getfixturevalue("postgres_place") if request.param == "postgresql" else tmp_path / f"r.{request.param}"
    )


@pytest.fixture
def store(place):
    with open_store(place) as store:
        yield store


def test_calls_come_back_in_their_order(store):
    store.add_all([run_of(0, calls=FIVE), run_of(1), run_of(2, calls=FIVE[::-1])])
    assert [run.calls for run in store.runs()] == [FIVE, (), FIVE[::-1]]


def test_an_option_keeps_its_type(store):
    values = {"one": 1, "one point nothing": 1.0, "yes": True, "text": "1", "no": False, "nothing": 0, "zero": 0.0}
    store.add(run_of(calls=(OperatorCall(operator="mm", kind="matmul", dtype="float32", shapes=(), options=values),)))
    (run,) = store.runs()
    (call,) = run.calls
    assert {name: (type(value), value) for name, value in call.options.items()} == {
        name: (type(value), value) for name, value in values.items()
    }


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(run=any_run())
def test_any_option_is_the_same_to_the_last_type(store, run):
    store.add(run)
    (back,) = store.runs(session=run.provenance.session)
    assert back.calls == run.calls
    # Python holds 1, 1.0 and True for equal; their texts are not.
    assert [sorted(map(repr, call.options.items())) for call in back.calls] == [
        sorted(map(repr, call.options.items())) for call in run.calls
    ]


def test_a_figure_that_not_every_store_keeps_is_refused_with_its_place(store):
    broken = OperatorCall(operator="mm", kind="matmul", dtype="float32", shapes=((2**63,),), busy_s=float("inf"))
    with pytest.raises(BadTerm) as refused:
        store.add(run_of(calls=(RELU, broken)))
    assert str(refused.value).splitlines() == [
        f"Run.calls[1].shapes[0][0]: {2**63} does not fit in 64 bits",
        "Run.calls[1].busy_s: inf is not a finite number; leave out what is unknown",
    ]


def test_the_calls_of_many_runs_take_one_question(tmp_path):
    with open_store(tmp_path / "record.sqlite") as store:
        store.add_all(run_of(number, calls=FIVE) for number in range(100))
        questions = []

        def listen(*asked):
            questions.append(asked[2])

        sqlalchemy.event.listen(sqlalchemy.Engine, "before_cursor_execute", listen)
        try:
            assert sum(len(run.calls) for run in store.runs()) == 500
        finally:
            sqlalchemy.event.remove(sqlalchemy.Engine, "before_cursor_execute", listen)
    assert sum("operator_calls" in question for question in questions) == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
@pytest.mark.parametrize("version", ["0001", "0003"])
def test_a_record_without_calls_is_brought_up_to_date(kind, version, request, tmp_path):
    if kind == "sqlite":
        place = tmp_path / "record.sqlite"
        engine = sqlite_engine(place, writable=True)
    else:
        place = request.getfixturevalue("postgres_place")
        engine = postgres_engine(sqlalchemy.make_url(place))
    write_old_record(engine)
    with write_transaction(engine, "the old record") as connection:
        schema.upgrade(connection, version)
    engine.dispose()
    with open_store(place) as store:
        assert list(store.runs()) == OLD_RUNS
        assert store.add(run_of(9, calls=FIVE))
        assert [len(run.calls) for run in store.runs()] == [0, 0, 0, 5]
    if kind == "sqlite":
        assert version_in(place) == schema.NEWEST
        assert version_in(place.with_name(f"record.sqlite.schema-{version}")) == version


def test_a_line_without_calls_says_nothing_of_them():
    assert b"calls" not in run_line(run_of(structure=None))
    assert b'"calls":[{"operator":"convolution"' in run_line(run_of(calls=FIVE))


def test_a_file_from_before_there_were_calls_is_read_and_added_to(tmp_path):
    path = tmp_path / "record.jsonl"
    path.write_bytes(header_line(None).replace(b'"schema":%d' % SCHEMA, b'"schema":3') + run_line(run_of(0)))
    with open_store(path) as store:
        assert store.add(run_of(1, calls=FIVE))
        assert [run.calls for run in store.runs()] == [(), FIVE]
