"""What is particular to a record in a plain file: lines that were cut, a writer that holds it, a file beyond repair."""

import fcntl
import logging

import pytest
from tests.store.making import run_of

from wattsmith.sim.clock import SimulatedClock
from wattsmith.store.exchange import import_runs
from wattsmith.store.jsonlines import SCHEMA
from wattsmith.store.lines import LinesStore
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import BadInput, NotWritten


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "record.jsonl"
    with open_store(path) as store:
        store.add_all([run_of(0), run_of(1)])
    return path


def cut_last_line(path):
    path.write_bytes(path.read_bytes()[:-30])


def test_a_line_cut_by_a_crash_is_reported_and_left_out(path, caplog):
    cut_last_line(path)
    with caplog.at_level(logging.WARNING, "wattsmith"), open_store(path) as store:
        assert list(store.runs()) == [run_of(0)]
        assert not store.has(run_of(1).workload, run_of(1).device, run_of(1).setting)
    assert "record.jsonl ends in half a line: a writer was stopped there" in caplog.text


@pytest.mark.parametrize("how", ["add", "add_all"])
def test_the_next_run_takes_the_place_of_a_line_that_was_cut(path, how):
    cut_last_line(path)
    with open_store(path) as store:
        assert store.add(run_of(1)) if how == "add" else store.add_all([run_of(1)]) == (1, 0)
        assert list(store.runs()) == [run_of(0), run_of(1)]
    assert path.read_bytes().count(b"\n") == 3


def test_a_header_cut_by_a_crash_leaves_an_empty_record(path):
    path.write_bytes(path.read_bytes()[:20])
    with open_store(path) as store:
        assert store.count() == 0
        assert store.add(run_of(1))
        assert list(store.runs()) == [run_of(1)]


def test_a_record_with_a_cut_line_can_be_imported(path, tmp_path, caplog):
    cut_last_line(path)
    with open_store(tmp_path / "other.sqlite") as store:
        assert import_runs(store, path) == (1, 0)
    assert "ends in half a line" in caplog.text


def test_a_broken_line_in_the_middle_is_named_and_nothing_is_added_behind_it(path):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1].replace('"batch":4', '"batch":0'), lines[2]]) + "\n")
    before = path.read_bytes()
    with open_store(path) as store:
        with pytest.raises(BadInput, match=r"record\.jsonl, line 2: Run\.workload: batch must be at least 1, got 0"):
            list(store.runs())
        with pytest.raises(BadInput, match="line 2"):
            store.add(run_of(5))
    assert path.read_bytes() == before


def test_a_file_of_something_else_is_refused_and_left_alone(tmp_path):
    path = tmp_path / "songs.jsonl"
    path.write_text('{"song": "Daisy"}\n')
    with open_store(path) as store, pytest.raises(BadInput, match=r"songs\.jsonl, line 1: .* this is not a record"):
        store.add(run_of(1))
    assert path.read_text() == '{"song": "Daisy"}\n'


def test_a_newer_file_is_refused(path):
    path.write_text(path.read_text().replace(f'"schema":{SCHEMA}', '"schema":9', 1))
    with open_store(path) as store, pytest.raises(BadInput, match=f"schema: 9 is newer than {SCHEMA}"):
        list(store.runs())


def test_a_writer_waits_for_another_and_then_gives_up(path):
    with path.open("rb") as held, LinesStore(path, clock=SimulatedClock()) as store:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(NotWritten, match=r"another process has kept .* for 60 s"):
            store.add(run_of(5))
        assert store.count() == 2
        fcntl.flock(held, fcntl.LOCK_UN)
        assert store.add(run_of(5))


def test_two_stores_on_one_file_see_what_the_other_added(path):
    with open_store(path) as one, open_store(path) as other:
        assert one.add(run_of(2))
        assert other.add(run_of(2)) is False
        assert other.add_all([run_of(3)]) == (1, 0)  # which puts a new file in the old one's place
        assert one.add(run_of(3)) is False
        assert one.add(run_of(4))
        assert list(other.runs()) == [run_of(number) for number in range(5)]


def test_an_import_keeps_a_link_and_its_target(path, tmp_path):
    link = tmp_path / "link.jsonl"
    link.symlink_to(path)
    with open_store(link) as store:
        store.add_all([run_of(2)])
    assert link.is_symlink()
    with open_store(path) as store:
        assert store.count() == 3
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["link.jsonl", "record.jsonl"]


def test_the_folder_is_made_with_the_first_run(tmp_path):
    with open_store(tmp_path / "new" / "record.jsonl") as store:
        assert list(store.runs()) == []
        assert store.add(run_of(1))
