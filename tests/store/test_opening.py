"""Places that cannot be opened are named, with what to do; what is not needed is not loaded."""

import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.making import run_of

from wattsmith.store.exchange import export_runs
from wattsmith.store.opening import open_store
from wattsmith.store.shipped import open_shipped, shipped_records
from wattsmith.terms.errors import BadInput, ExtraNeeded, NotWritten

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("url", "complaint"),
    [
        ("mysql://host/name", "not in 'mysql'"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("postgresql://me:secret@host:port/name", "cannot be read; write postgresql://"),
        ("://", "cannot be read"),
    ],
)
def test_a_url_that_leads_nowhere_is_refused(url, complaint):
    with pytest.raises(BadInput, match=complaint) as refused:
        open_store(url)
    assert "secret" not in str(refused.value)


def test_a_server_that_is_not_there_is_named_without_its_password():
    with pytest.raises(
        BadInput, match=r"postgresql://me:\*\*\*@127\.0\.0\.1:1/x.*Check that the server runs"
    ) as refused:
        open_store("postgresql://me:secret@127.0.0.1:1/x")
    assert "secret" not in str(refused.value)


def test_a_database_that_is_not_on_the_server_is_named(postgres_server):
    with pytest.raises(BadInput, match='database "nowhere" does not exist'):
        open_store(postgres_server.replace("/postgres?", "/nowhere?"))


def test_a_user_who_may_only_read_is_told_so(postgres_place):
    import psycopg

    with open_store(postgres_place) as store:
        store.add(run_of(1))
    with psycopg.connect(postgres_place, autocommit=True) as connection:
        connection.execute("CREATE ROLE reader LOGIN")
        connection.execute("GRANT SELECT ON ALL TABLES IN SCHEMA public TO reader")
    with open_store(postgres_place.replace("postgres@", "reader@")) as store:
        assert list(store.runs()) == [run_of(1)]
        with pytest.raises(NotWritten, match=r"permission denied .*This user may not write there"):
            store.add(run_of(2))


def test_a_record_that_must_exist_is_not_made_on_a_server(postgres_place):
    with pytest.raises(BadInput, match="there is no record at postgresql://"):
        open_store(postgres_place, must_exist=True)
    with open_store(postgres_place):
        pass
    with open_store(postgres_place, must_exist=True) as store:
        assert store.count() == 0


def test_a_database_with_other_tables_takes_a_record_unless_the_names_clash(postgres_place):
    import psycopg

    with psycopg.connect(postgres_place, autocommit=True) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    with open_store(postgres_place) as store:
        assert store.add(run_of(1))
    with psycopg.connect(postgres_place, autocommit=True) as connection:
        connection.execute("DROP TABLE wattsmith_schema")
    with pytest.raises(BadInput, match="has the table 'attempts' and no record"):
        open_store(postgres_place)


def test_a_missing_driver_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(ExtraNeeded, match=r"pip install 'wattsmith\[postgres\]'"):
        open_store("postgresql://host/name")


def test_without_sqlalchemy_the_way_out_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(ExtraNeeded, match=r"pip install sqlalchemy alembic, or keep .* ends in \.jsonl"):
        open_store(tmp_path / "record.sqlite")


def test_a_plain_record_loads_no_database_package(tmp_path):
    code = """
import sys
from wattsmith.store.opening import open_store
from tests.store.making import run_of
with open_store(sys.argv[1]) as store:
    store.add(run_of(1))
sys.exit(" ".join({"sqlalchemy", "alembic", "psycopg"} & set(sys.modules)) or 0)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "r.jsonl")], cwd=ROOT, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_shipped_record_is_opened_by_name_and_only_read(tmp_path):
    with open_store(tmp_path / "record.jsonl") as store:
        store.add_all([run_of(1), run_of(2)])
        export_runs(store, tmp_path / "h200.jsonl.gz")
    assert shipped_records(tmp_path) == ["h200"]
    with open_shipped("h200", tmp_path) as shipped:
        assert list(shipped.runs()) == [run_of(1), run_of(2)]
        assert shipped.has(run_of(1).workload, run_of(1).device, run_of(1).setting)
        with pytest.raises(NotWritten, match="is compressed and only read"):
            shipped.add(run_of(3))


def test_a_shipped_record_that_there_is_not_names_those_that_there_are(tmp_path):
    with pytest.raises(BadInput, match="no record called 'a100' comes with wattsmith: none is shipped"):
        open_shipped("a100", tmp_path / "no such folder")
    (tmp_path / "h200.jsonl.gz").touch()
    with pytest.raises(BadInput, match="there are h200"):
        open_shipped("a100", tmp_path)
