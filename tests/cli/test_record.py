"""`wattsmith record`: taken, shown, drawn and moved through the door that a user has."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.cli.keeping import keeps

WATTSMITH = [sys.executable, "-c", "from wattsmith.cli import main; main()"]


def wattsmith(*arguments, expect=0):
    done = subprocess.run([*WATTSMITH, *map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == expect, done.stderr
    return done


@pytest.fixture(scope="module")
def smoke(tmp_path_factory):
    """A smoke record of this machine's CPU, and how long it took."""
    db = tmp_path_factory.mktemp("record") / "smoke.sqlite"
    begin_s = time.monotonic()
    done = wattsmith("record", "run", "--preset", "smoke", "--device", "cpu", "--db", db, "--json")
    keeps("record run", done.stdout)
    return db, json.loads(done.stdout), time.monotonic() - begin_s


def test_a_smoke_record_of_this_cpu_is_complete(smoke):
    _, recorded, _ = smoke
    assert recorded["progress"]["measured"] == recorded["progress"]["total"] >= 10
    assert recorded["progress"]["failed"] == 0
    assert recorded["device"]["kind"] == "cpu"


def test_a_second_run_adds_only_what_is_missing(smoke):
    db, recorded, _ = smoke
    again = json.loads(wattsmith("record", "run", "--preset", "smoke", "--device", "cpu", "--db", db, "--json").stdout)
    assert again["progress"]["measured"] == 0
    assert again["progress"]["done"] == recorded["progress"]["total"]


def test_a_record_can_be_looked_at(smoke):
    db, recorded, _ = smoke
    told = wattsmith("record", "show", db, "--json").stdout
    keeps("record show", told)
    runs = json.loads(told)
    assert len(runs) == recorded["progress"]["total"]
    first = runs[0]
    assert first["status"] == "measured"
    assert first["times"]["steps"] >= 1
    assert first["structure"]["flops"] >= 0
    assert first["provenance"]["versions"]["torch"]
    assert "family" in wattsmith("record", "show", db).stdout
    family = first["workload"]["family"]
    assert family in wattsmith("record", "show", db, "--family", family, "--all").stdout


def test_looking_for_what_is_not_there_says_how_to_get_it(smoke):
    db, _, _ = smoke
    assert "wattsmith record run" in wattsmith("record", "show", db, "--precision", "fp16").stdout


def test_energy_without_a_meter_is_unknown_and_not_zero(smoke):
    db, _, _ = smoke
    for run in json.loads(wattsmith("record", "show", db, "--json").stdout):
        assert run["consumption"]["step_energy_j"] is None or run["consumption"]["step_energy_j"] > 0


def test_a_record_can_be_drawn(smoke, tmp_path):
    db, _, _ = smoke
    wattsmith("record", "plot", tmp_path / "record.png", db)
    assert (tmp_path / "record.png").read_bytes().startswith(b"\x89PNG")


def test_a_record_moves_to_another_machine_and_twice_is_once(smoke, tmp_path):
    db, recorded, _ = smoke
    total = recorded["progress"]["total"]
    wattsmith("record", "export", tmp_path / "moved.jsonl.gz", db)
    other = tmp_path / "other.sqlite"
    assert f"{total} runs added" in wattsmith("record", "import", tmp_path / "moved.jsonl.gz", "--db", other).stdout
    assert "0 runs added" in wattsmith("record", "import", tmp_path / "moved.jsonl.gz", "--db", other).stdout
    assert wattsmith("record", "show", other, "--json").stdout == wattsmith("record", "show", db, "--json").stdout


def test_points_are_chosen_here_and_measured_there(tmp_path):
    points = tmp_path / "points.jsonl"
    wattsmith("record", "points", points, "--for", "cpu", "--memory", "4GiB", "--preset", "smoke")
    lines = points.read_text().splitlines()
    points.write_text(lines[0] + "\n")
    done = wattsmith(
        "record",
        "run",
        "--points",
        points,
        "--preset",
        "smoke",
        "--device",
        "cpu",
        "--db",
        tmp_path / "r.jsonl",
        "--json",
    )
    assert json.loads(done.stdout)["progress"]["measured"] == 1


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    """A file of six small points, so that cutting a record off takes seconds and not minutes."""
    path = tmp_path_factory.mktemp("points") / "six.jsonl"
    shapes = [{"m": 8 * i, "n": 64, "k": 64} for i in range(1, 7)]
    workloads = [{"family": "matmul", "kind": "operator", "parameters": s, "batch": 1, "mode": "infer"} for s in shapes]
    path.write_text("".join(json.dumps({"workload": workload}) + "\n" for workload in workloads))
    return path


def arguments_for(db, points):
    return ["record", "run", "--points", str(points), "--preset", "smoke", "--device", "cpu", "--db", str(db)]


def start(db, points):
    command = [*WATTSMITH, *arguments_for(db, points)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_runs(db, count):
    """Until the record at DB holds COUNT runs."""
    deadline_s = time.monotonic() + 120
    while time.monotonic() < deadline_s:
        if db.exists() and len(db.read_text().splitlines()) > count:  # one line is the header
            return
        time.sleep(0.05)
    raise AssertionError(f"no {count} runs within two minutes")


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT], ids=["kill -9", "Ctrl-C"])
def test_a_record_that_is_cut_off_goes_on_where_it_was(tmp_path, points, ending):
    db = tmp_path / "cut.jsonl"
    running = start(db, points)
    wait_for_runs(db, 3)
    os.kill(running.pid, ending)
    _, said = running.communicate(timeout=60)
    assert running.returncode == (-9 if ending is signal.SIGKILL else 130), said
    kept = len(json.loads(wattsmith("record", "show", db, "--json").stdout))
    assert kept >= 3
    done = wattsmith(*arguments_for(db, points), "--json")
    progress = json.loads(done.stdout)["progress"]
    runs = json.loads(wattsmith("record", "show", db, "--json").stdout)
    assert progress["measured"] == progress["total"] - kept
    assert len({run["workload"]["family"] + str(run["workload"]) for run in runs}) == progress["total"] == len(runs)


def test_a_killed_recorder_leaves_no_worker_behind(tmp_path, points):
    db = tmp_path / "orphan.jsonl"
    running = start(db, points)
    wait_for_runs(db, 1)
    children = Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text().split()
    assert children
    running.kill()
    running.communicate()
    deadline_s = time.monotonic() + 10
    while any(
        Path(f"/proc/{child}/cmdline").exists() and Path(f"/proc/{child}/cmdline").read_text() for child in children
    ):
        assert time.monotonic() < deadline_s, "the worker is still there"
        time.sleep(0.1)


def test_two_recorders_on_one_record_share_the_work(tmp_path, points):
    db = tmp_path / "shared.sqlite"
    both = [start(db, points), start(db, points)]
    for one in both:
        _, said = one.communicate(timeout=240)
        assert one.returncode == 0, said
    runs = json.loads(wattsmith("record", "show", db, "--json").stdout)
    assert len(runs) == len({json.dumps(run["workload"], sort_keys=True) for run in runs}) == 6


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "--device", "cuda:0", "--preset", "smoke"], "sees no GPU here; use --device cpu"),
        (["run", "--device", "tpu", "--preset", "smoke"], "device must be 'cpu' or 'cuda:N', got 'tpu'"),
        (["run", "--device", "cpu", "--preset", "huge"], "--preset must be one of smoke"),
        (["run", "--device", "cpu", "--design", "cube"], "--design must be one of cover"),
        (["run", "--minutes", "-1"], "--minutes must be positive"),
        (["run", "--device", "cpu", "--window", "2"], "'2' has no unit: write 2s if that is what you mean"),
        (["run", "--device", "cpu", "--window", "two"], "'two' is not a quantity of time"),
        (["run", "--device", "cpu", "--points", "/no/such/file"], "there is no file of points"),
        (["show", "/no/such/record.sqlite"], "there is no record at"),
        (["show", "h900"], "there is no record"),
        (["import", "/no/such/file.jsonl"], "there is no file /no/such/file.jsonl"),
        (["points", "x.jsonl", "--for", "cpu", "--memory", "8"], "has no unit"),
    ],
)
def test_bad_arguments_get_a_clear_answer(tmp_path, arguments, complaint):
    database = ["--db", str(tmp_path / "x.sqlite")] if arguments[0] in ("run", "import") else []
    done = wattsmith("record", *arguments, *database, expect=2)
    assert arguments[0] != "import" or not list(tmp_path.iterdir())
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr
