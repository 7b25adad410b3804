"""Exports are whole and repeatable; imports name what is wrong, with line and field, and then add nothing."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.store.making import failed_run, run_of

from wattsmith.store.exchange import export_runs, import_runs
from wattsmith.store.jsonlines import SCHEMA
from wattsmith.store.opening import open_store
from wattsmith.terms.errors import BadInput, NotWritten

ROOT = Path(__file__).parents[2]


@pytest.fixture
def store(tmp_path):
    with open_store(tmp_path / "record.sqlite") as store:
        yield store


@pytest.fixture
def lines(store):
    """The lines of an export of runs 0 to 29, after which the store is not the one that they came from."""
    stream = io.BytesIO()
    with open_store(Path(store.place).with_name("source.jsonl")) as source:
        source.add_all(run_of(number) for number in range(30))
        export_runs(source, stream)
    return stream.getvalue().decode().splitlines()


def imported(store, lines, name="runs.jsonl"):
    path = Path(store.place).with_name(name)
    path.write_text("".join(line + "\n" for line in lines))
    return import_runs(store, path)


def test_the_first_line_says_what_follows(lines):
    header = json.loads(lines[0])
    assert (header["format"], header["schema"], header["runs"]) == ("wattsmith record", SCHEMA, 30)
    assert len(lines) == 31


def test_two_exports_of_one_record_are_the_same_to_the_last_byte(store, tmp_path):
    store.add_all([run_of(0), failed_run(1)])
    export_runs(store, tmp_path / "a.jsonl.gz")
    export_runs(store, tmp_path / "b.jsonl.gz")
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_an_export_may_leave_runs_out(store, tmp_path):
    store.add_all([run_of(0), failed_run(1)])
    assert export_runs(store, tmp_path / "runs.jsonl", status="measured") == 1


def test_progress_is_told(store, lines, tmp_path):
    told = []
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(line + "\n" for line in lines))
    import_runs(store, path, progress=lambda *done: told.append(done))
    assert told == [(number, 30) for number in range(1, 31)]
    told.clear()
    export_runs(store, path, progress=lambda *done: told.append(done))
    assert told == [(number, None) for number in range(1, 31)]


def test_an_export_that_fails_leaves_what_was_there(store, tmp_path):
    store.add(run_of(1))
    (tmp_path / "runs.jsonl").write_text("precious")
    (tmp_path / "runs.jsonl.part").mkdir()
    with pytest.raises(NotWritten, match=r"cannot export to .*runs\.jsonl: Is a directory"):
        export_runs(store, tmp_path / "runs.jsonl")
    assert (tmp_path / "runs.jsonl").read_text() == "precious"


def test_a_full_disk_is_named(store):
    store.add(run_of(1))
    with Path("/dev/full").open("wb", buffering=0) as full, pytest.raises(NotWritten, match="No space left on device"):
        export_runs(store, full)


def test_several_problems_are_named_at_once(store, lines):
    lines[3] = lines[3].replace('"batch":4', '"batch":"four"').replace('"measured"', '"fine"')
    lines[7] = lines[7][:50]
    lines[9] = lines[9].replace('"window_s":2.0', '"window_s":NaN')
    with pytest.raises(BadInput) as refused:
        imported(store, lines)
    problems = str(refused.value).splitlines()
    assert [problem.partition("runs.jsonl, ")[2].partition(", got")[0][:40] for problem in problems] == [
        "line 4: Run.workload.batch: expected int",
        "line 4: Run.status: expected one of 'mea",
        "line 8: not JSON: Unterminated string st",
        "line 10: Run.consumption.window_s: nan i",
    ]
    assert store.count() == 0


def test_no_more_than_twenty_problems_are_told(store, lines):
    with pytest.raises(BadInput) as refused:
        imported(store, [lines[0]] + ["{"] * 30)
    told = str(refused.value).splitlines()
    assert len(told) == 21
    assert told[-1] == "… and more"


@pytest.mark.parametrize("line", ["{", "[]", "3", "null", '"a"', "\x00", "[" * 100_000, "9" * 5000, '{"a": 1e999}'])
def test_whatever_stands_on_a_line_is_answered(store, lines, line):
    lines[5] = line
    with pytest.raises(BadInput, match="line 6: "):
        imported(store, lines)
    assert store.count() == 0


def test_bytes_that_are_no_text_are_answered(store, lines, tmp_path):
    (tmp_path / "runs.jsonl").write_bytes(lines[0].encode() + b"\n\xff\xfe\n")
    with pytest.raises(BadInput, match="line 2: not JSON"):
        import_runs(store, tmp_path / "runs.jsonl")


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ("{}", "line 1: expected the header"),
        ('{"format": "wattsmith record", "schema": 99}', "line 1: schema: 99 is newer than"),
        ('{"format": "wattsmith record", "schema": "two"}', "line 1: schema: expected a number, got 'two'"),
        ('{"format": "wattsmith record", "schema": 2, "runs": -1}', "line 1: runs: expected a number or null, got -1"),
        ('{"format": "wattsmith record", "schema": 2, "runs": 31}', "runs: the header says 31, but 30 follow"),
    ],
)
def test_a_header_that_is_wrong_is_refused(store, lines, header, complaint):
    with pytest.raises(BadInput, match=complaint):
        imported(store, [header, *lines[1:]])
    assert store.count() == 0


def test_a_file_that_was_cut_is_refused(store, lines, tmp_path):
    with pytest.raises(BadInput, match="the header says 30, but 20 follow"):
        imported(store, lines[:21])
    packed = gzip.compress("\n".join(lines).encode())
    (tmp_path / "runs.jsonl.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(BadInput, match=r"runs\.jsonl\.gz cannot be read: Compressed file ended"):
        import_runs(store, tmp_path / "runs.jsonl.gz")
    assert store.count() == 0


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.jsonl.gz", "none.jsonl", "plain.jsonl.gz"])
def test_a_file_that_is_no_export_is_refused(store, tmp_path, name):
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty.jsonl.gz").write_bytes(gzip.compress(b""))
    (tmp_path / "plain.jsonl.gz").write_text("plain")
    with pytest.raises(BadInput, match=name):
        import_runs(store, tmp_path / name)


def test_an_export_is_read_and_written_piece_by_piece(tmp_path):
    # The file has 7 MB, and the runs in it would take more; reading them may take 4.
    code = """
import resource, sys
from pathlib import Path
from tests.store.making import run_of
from wattsmith.store.exchange import read_runs
from wattsmith.store.jsonlines import header_line, run_line
path = Path(sys.argv[1])
line = run_line(run_of(1))
with path.open("wb") as file:
    file.write(header_line(4_000))
    file.writelines(line for _ in range(4_000))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert sum(1 for _ in read_runs(path)) == 4_000
sys.exit(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before > 4_000)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "runs.jsonl")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
