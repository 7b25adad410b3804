"""What is particular to a record in a SQLite file: where it is, what may be wrong with it, a disk that is full."""

import os
import resource
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.store.making import run_of

from wattsmith.store.opening import default_path, open_store
from wattsmith.terms.errors import BadInput, NotWritten

ROOT = Path(__file__).parents[2]


def test_the_record_of_a_user_lies_in_the_users_data_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    with open_store() as store:
        store.add(run_of(1))
    assert default_path() == tmp_path / "data" / "wattsmith" / "record.sqlite"
    assert default_path().is_file()
    monkeypatch.delenv("XDG_DATA_HOME")
    assert default_path() == Path.home() / ".local" / "share" / "wattsmith" / "record.sqlite"


def test_a_path_and_a_url_lead_to_the_same_record(tmp_path):
    with open_store(tmp_path / "record.sqlite") as store:
        store.add(run_of(1))
    with open_store(f"sqlite:///{tmp_path}/record.sqlite") as store:
        assert store.count() == 1


@pytest.mark.parametrize("name", ["a b.sqlite", "100%.sqlite", "why?mode=ro#é.sqlite"])
def test_a_file_may_have_any_name(tmp_path, name):
    with open_store(tmp_path / name) as store:
        store.add(run_of(1))
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_readers_and_a_writer_do_not_wait_for_each_other(tmp_path):
    with open_store(tmp_path / "record.sqlite"), closing(sqlite3.connect(tmp_path / "record.sqlite")) as other:
        assert other.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_figures_can_be_asked_for_in_sql(tmp_path):
    with open_store(tmp_path / "record.sqlite") as store:
        store.add_all([run_of(0), run_of(3)])
    question = """
        SELECT times_mean_s, consumption_step_energy_j, flops FROM runs
        JOIN workload_parameters USING (workload_id) JOIN operator_counts ON run_id = runs.id
        WHERE workload_parameters.name = 'layers' AND number > 2 AND operator = 'conv'
    """
    with closing(sqlite3.connect(tmp_path / "record.sqlite")) as plain:
        assert plain.execute(question).fetchall() == [(4.0, 3.0, 150.0)]


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "holiday.sqlite"
    path.write_bytes(b"not a database at all " * 100)
    with pytest.raises(BadInput, match=r"holiday\.sqlite: file is not a database\. Give the path of a record"):
        open_store(path)
    assert path.read_bytes() == b"not a database at all " * 100


def test_a_database_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "recipes.sqlite"
    with closing(sqlite3.connect(path)) as other:
        other.execute("CREATE TABLE recipes (name TEXT)")
    with pytest.raises(BadInput, match="is a database of something else: it has the table 'recipes' and no record"):
        open_store(path)


def test_a_damaged_database_is_named(tmp_path):
    path = tmp_path / "record.sqlite"
    with open_store(path) as store:
        store.add_all(run_of(number) for number in range(50))
    content = bytearray(path.read_bytes())
    content[4096 * 3 :] = b"\xff" * (len(content) - 4096 * 3)
    path.write_bytes(content)
    with pytest.raises(BadInput, match=r"It is damaged\. Restore it from a copy"), open_store(path) as store:
        list(store.runs())


@pytest.mark.parametrize("place", ["", "folder"])
def test_a_folder_is_no_record(tmp_path, place):
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadInput, match="is a folder; name a file in it"):
        open_store(tmp_path / place)


def test_a_record_that_must_exist_is_not_made(tmp_path):
    with pytest.raises(BadInput, match="there is no record at"):
        open_store(tmp_path / "record.sqlite", must_exist=True)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(NotWritten, match=r"the folder .*file/under cannot be made: .* Choose another place"):
        open_store(tmp_path / "file" / "under" / "record.sqlite")


@pytest.mark.parametrize("name", ["record.sqlite", "record.jsonl"])
def test_a_full_disk_is_told_and_what_was_written_is_safe(tmp_path, name):
    # A limit on the size of files fails a write just as a full disk does, and needs no disk of its own.
    code = """
import sys
from tests.store.making import run_of
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import NotWritten
added = 0
with open_store(sys.argv[1]) as store:
    try:
        for added in range(10_000):
            store.add(run_of(added))
    except NotWritten as full:
        try:
            store.add(run_of(added))
        except NotWritten:
            sys.stdout.write(f"{added} {full}")
"""
    limit_bytes = 400_000
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / name)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, limit_bytes)),
    )
    added, _, complaint = done.stdout.partition(" ")
    assert "what was written before is safe" in complaint, done
    with open_store(tmp_path / name) as store:
        assert list(store.runs()) == [run_of(number) for number in range(int(added))]
        assert store.add(run_of(int(added)))


def test_on_a_full_file_system_nothing_is_lost(tmp_path):
    mounted = tmp_path / "small"
    mounted.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mounted)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("A FULL FILE SYSTEM IS NOT TESTED: only root may mount a small one")
    try:
        added = 0
        with open_store(mounted / "record.sqlite") as store:
            try:
                for added in range(10_000):
                    store.add(run_of(added))
            except NotWritten as full:
                assert "what was written before is safe" in str(full)  # noqa: PT017
            assert 0 < store.count() == added < 9_999
        with open_store(mounted / "record.sqlite") as store:
            assert list(store.runs()) == [run_of(number) for number in range(added)]
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


@pytest.fixture
def open_folder():
    """A folder that every user may enter."""
    with tempfile.TemporaryDirectory(prefix="record-") as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def as_another_user(code: str, place: Path) -> str:
    """What CODE says about PLACE, run by a user whom permissions bind."""
    done = subprocess.run([sys.executable, "-c", BOUND + code, str(place)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


# All that is needed is loaded first: the user without rights may be unable to read this checkout.
BOUND = """
import os, sys, tempfile
from tests.store.making import run_of
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import NotWritten
with tempfile.TemporaryDirectory() as folder:
    for name in ("record.sqlite", "record.jsonl"):
        with open_store(f"{folder}/{name}") as store:
            store.add(run_of(1))
            list(store.runs())
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
"""
READ_THEN_WRITE = """
with open_store(sys.argv[1]) as store:
    assert list(store.runs()) == [run_of(1)]
    try:
        store.add(run_of(2))
    except NotWritten as refused:
        sys.stdout.write(str(refused))
"""


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
@pytest.mark.parametrize(
    ("name", "complaint"),
    [("record.sqlite", "You may read it, but not write it"), ("record.jsonl", "cannot be written")],
)
def test_a_record_that_may_not_be_written_can_be_read(open_folder, folder_mode, name, complaint):
    with open_store(open_folder / name) as store:
        store.add(run_of(1))
    (open_folder / name).chmod(0o444)
    open_folder.chmod(folder_mode)
    assert complaint in as_another_user(READ_THEN_WRITE, open_folder / name)


def test_a_record_that_may_not_be_written_can_be_read_while_its_owner_writes(open_folder):
    path = open_folder / "record.sqlite"
    with open_store(path) as store:
        store.add(run_of(1))
        for file in open_folder.iterdir():
            file.chmod(0o644)
        assert "You may read it, but not write it" in as_another_user(READ_THEN_WRITE, path)


def test_a_place_where_nothing_may_be_made_is_named(open_folder):
    open_folder.chmod(0o555)
    code = """
try:
    open_store(sys.argv[1])
except NotWritten as refused:
    sys.stdout.write(str(refused))
"""
    assert "you may not write in its folder" in as_another_user(code, open_folder / "record.sqlite")
