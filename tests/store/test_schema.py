"""Records of older versions are brought up to date, with a copy kept; those of newer versions are refused."""

import json
import logging
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from tests.store.making import failed_run, run_of

from wattsmith.store import rows, schema, service_tables, tables
from wattsmith.store.engine import postgres_engine, sqlite_engine, write_transaction
from wattsmith.store.exchange import import_runs
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.facts import as_plain

OLD_RUNS = [run_of(0), failed_run(1), run_of(2, session="tuesday")]


def write_old_record(engine) -> None:
    """A record as the first version wrote it, with OLD_RUNS in it."""
    with write_transaction(engine, "the old record") as connection:
        schema.upgrade(connection, "0001")
        there = sqlalchemy.MetaData()
        there.reflect(connection)

        def write(table, row):
            columns = there.tables[table].columns.keys()
            known = {name: value for name, value in row.items() if name in columns}
            return connection.execute(there.tables[table].insert(), known).inserted_primary_key[0]

        device_id = write("devices", rows.device_row(OLD_RUNS[0].device))
        for run in OLD_RUNS:
            workload_id = write("workloads", rows.workload_row(run.workload))
            for name, value in run.workload.parameters.items():
                write("workload_parameters", rows.parameter_row(name, value) | {"workload_id": workload_id})
            owners = {"workload_id": workload_id, "device_id": device_id}
            run_id = write("runs", rows.run_row(run) | owners)
            for row in rows.operator_rows(run):
                write("operator_counts", row | {"run_id": run_id})
            for row in rows.version_rows(run):
                write("run_versions", row | {"run_id": run_id})
    engine.dispose()


@pytest.fixture
def old_file(tmp_path) -> Path:
    path = tmp_path / "record.sqlite"
    write_old_record(sqlite_engine(path, writable=True))
    return path


def version_in(path: Path) -> str:
    with closing(sqlite3.connect(path)) as plain:
        return plain.execute("SELECT version_num FROM wattsmith_schema").fetchone()[0]


def set_version(path: Path, version: str) -> None:
    with closing(sqlite3.connect(path)) as plain, plain:
        plain.execute("UPDATE wattsmith_schema SET version_num = ?", (version,))


def columns_in(path: Path) -> set[str]:
    with closing(sqlite3.connect(path)) as plain:
        return {row[1] for row in plain.execute("PRAGMA table_info(runs)")}


def test_an_old_record_of_recurrent_networks_knows_their_layers(old_file):
    with closing(sqlite3.connect(old_file)) as plain, plain:
        (first,) = plain.execute("SELECT workload_id FROM runs ORDER BY id LIMIT 1").fetchone()
        plain.execute("UPDATE workloads SET family = 'lstm' WHERE id = ?", (first,))
        plain.execute(
            "INSERT OR REPLACE INTO workload_parameters (workload_id, name, type, number, text) "
            "VALUES (?, 'layers', 'int', 3, '3')",
            (first,),
        )
    with open_store(old_file) as store:
        layers = [run.structure and run.structure.recurrent_layers for run in store.runs()]
    assert layers == [3, None, 0]


def test_an_old_record_is_brought_up_to_date_with_all_its_runs(old_file):
    assert "dataset_size" not in columns_in(old_file)
    with open_store(old_file) as store:
        assert list(store.runs()) == OLD_RUNS
        assert store.add(run_of(0)) is False
        assert store.add(run_of(3, dataset_size=60_000))
        assert [run.dataset_size for run in store.runs()] == [None, None, None, 60_000]
    assert version_in(old_file) == schema.NEWEST


def test_an_old_file_is_kept_as_it_was(old_file, caplog):
    with caplog.at_level(logging.WARNING, "wattsmith"), open_store(old_file):
        pass
    copy = old_file.with_name("record.sqlite.schema-0001")
    assert str(copy) in caplog.text
    assert version_in(copy) == "0001"
    assert "dataset_size" not in columns_in(copy)
    with open_store(copy) as store:
        assert list(store.runs()) == OLD_RUNS


def test_a_copy_that_is_there_is_not_overwritten(old_file):
    first = old_file.with_name("record.sqlite.schema-0001")
    first.write_text("precious")
    with open_store(old_file):
        pass
    assert first.read_text() == "precious"
    assert version_in(first.with_name(first.name + ".1")) == "0001"


def test_nothing_is_changed_when_the_copy_cannot_be_made(old_file):
    blocked = old_file.with_name("record.sqlite.schema-0001.part")
    blocked.mkdir()
    with pytest.raises(NotWritten, match=r"has the older schema 0001, and the copy .* failed"):
        open_store(old_file)
    assert version_in(old_file) == "0001"
    assert "dataset_size" not in columns_in(old_file)


def test_a_step_that_fails_leaves_the_old_record(old_file):
    with closing(sqlite3.connect(old_file)) as plain, plain:
        plain.execute("ALTER TABLE runs ADD COLUMN dataset_size BIGINT")  # so the step finds it there already
    with pytest.raises(sqlalchemy.exc.OperationalError, match="duplicate column"):
        open_store(old_file)
    assert version_in(old_file) == "0001"


def test_an_old_record_on_a_server_is_brought_up_to_date(postgres_place):
    write_old_record(postgres_engine(sqlalchemy.make_url(postgres_place)))
    with open_store(postgres_place) as store:
        assert list(store.runs()) == OLD_RUNS
        assert store.add(run_of(3, dataset_size=60_000))


def test_a_newer_record_is_refused_with_what_to_do(tmp_path):
    path = tmp_path / "record.sqlite"
    with open_store(path) as store:
        store.add(run_of(1))
    set_version(path, "9999")
    with pytest.raises(BadInput, match=r"has schema 9999, .* knows none after .* Install a newer wattsmith"):
        open_store(path)
    set_version(path, schema.NEWEST)
    with open_store(path) as store:
        assert store.count() == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_the_steps_arrive_at_the_tables(kind, request, tmp_path):
    if kind == "sqlite":
        engine = sqlite_engine(tmp_path / "record.sqlite", writable=True)
    else:
        engine = postgres_engine(sqlalchemy.make_url(request.getfixturevalue("postgres_place")))
    with write_transaction(engine, kind) as connection:
        schema.upgrade(connection, schema.NEWEST)
        context = MigrationContext.configure(connection, opts={"version_table": "wattsmith_schema"})
        assert service_tables.metadata is tables.metadata
        assert compare_metadata(context, service_tables.metadata) == []
    engine.dispose()


def test_every_step_is_numbered_after_the_one_before():
    steps = Path(schema.__file__).parent / "migrations" / "versions"
    numbers = sorted(path.name[1:5] for path in steps.glob("v*.py"))
    assert numbers == [f"{number:04d}" for number in range(1, len(numbers) + 1)]
    assert numbers[-1] == schema.NEWEST


def test_an_export_of_the_first_version_is_read(tmp_path):
    plain = as_plain(run_of(1))
    del plain["dataset_size"]
    header = {"format": "wattsmith record", "schema": 1, "runs": 1}
    (tmp_path / "old.jsonl").write_text(json.dumps(header) + "\n" + json.dumps(plain) + "\n")
    with open_store(tmp_path / "record.sqlite") as store:
        assert import_runs(store, tmp_path / "old.jsonl") == (1, 0)
        assert list(store.runs()) == [run_of(1)]
