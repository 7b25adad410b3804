"""`wattsmith match`: traces, programs that run, commands, refusals, JSON and pictures."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
from tests.cli.running import python, start_wattsmith, wattsmith
from typer.testing import CliRunner

from wattsmith.cli import app
from wattsmith.flows.machine import describe_machine
from wattsmith.store.lines import LinesStore
from wattsmith.store.shipped import open_shipped


def trace(path, *, power_w=350.0, seconds=20, busy=0.9):
    rows = ["time_s,power_w,busy_ratio,memory_used_bytes,power_limit_w,memory_bytes"]
    rows += [f"{at / 10},{power_w},{busy},2e9,700,150e9" for at in range(10 * seconds)]
    path.write_text("\n".join(rows))
    return path


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    """Some networks of the shipped record: reading all of it takes seconds."""
    path = tmp_path_factory.mktemp("record") / "few.jsonl"
    with open_shipped("h200") as whole, LinesStore(path) as few:
        for run in list(whole.runs(kind="network"))[::6]:
            few.add(replace(run, calls=()))
    return path


def here(*arguments):
    """`wattsmith match ARGUMENTS` in this process, which is quick: its code, output, and what it complained about."""
    done = CliRunner().invoke(app, ["match", *map(str, arguments)])
    return done.exit_code, done.stdout, str(done.exception)


def test_a_trace_is_matched_and_the_evidence_drawn(record, tmp_path):
    code, said, _ = here(trace(tmp_path / "t.csv"), "--record", record, "--plot", tmp_path / "p.png")
    assert code in (0, 3)
    assert "nearest benchmark" in said
    assert (tmp_path / "p.png").stat().st_size > 5000


def test_json_has_the_evidence(record, tmp_path):
    _, said, _ = here(trace(tmp_path / "t.csv"), "--record", record, "--json", "--neighbours", "3")
    found = json.loads(said)
    assert len(found["neighbours"]) == 3
    assert found["used"] == ["power_mean", "busy", "memory_used"]
    assert found["fingerprint"]["features"]["power_mean"] == pytest.approx(0.5)


def test_two_seconds_are_too_short(tmp_path):
    done = wattsmith("match", trace(tmp_path / "t.csv", seconds=2), "--record", "h200")
    assert done.returncode == 2
    assert "s long; a program is recognised from 3 s on" in done.stderr


@pytest.mark.parametrize("arguments", [[], ["t.csv", "--pid", "1"]])
def test_exactly_one_source_is_wanted(arguments):
    assert "give one of" in here(*arguments)[2]


@pytest.mark.parametrize("probe", ["much", "0.5", "0.5,1,2,3", ",1,1", "-1,1,1"])
def test_a_probe_that_cannot_be_read_says_how_it_is_written(tmp_path, probe):
    assert "probe" in here(trace(tmp_path / "t.csv"), "--record", "h200", f"--probe={probe}")[2]


def test_a_knob_is_turned_only_while_a_process_runs(tmp_path):
    assert "--pid" in here(trace(tmp_path / "t.csv"), "--probe-with", "gpu:0/power_limit")[2]


def test_a_file_that_is_not_there_is_named(tmp_path):
    assert "there is no file" in here(tmp_path / "none.parquet", "--record", "h200")[2]


def test_a_model_about_to_run_is_matched_by_its_layers(record, tmp_path):
    pytest.importorskip("torch", reason="LAYERS ARE NOT TESTED: torch is not installed")
    (tmp_path / "net.py").write_text("import torch\nbuild = lambda: torch.nn.Conv2d(3, 16, 3)\n")
    code, said, _ = here("--model", f"{tmp_path}/net.py:build", "--input", "3x32x32", "--record", record, "--json")
    assert code in (0, 3)
    assert "conv_flops" in json.loads(said)["used"]


def test_a_command_runs_with_its_own_exit_code_and_is_matched(gpus, record, tmp_path):
    machine = gpus(0.6)
    done = wattsmith(
        "match", "--record", record, "--json", "--save", tmp_path / "kept.parquet", "--",
        *python("import time; time.sleep(3.5); raise SystemExit(7)"), environment=machine.environment(),
    )  # fmt: skip
    assert done.returncode == 7, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["simulated"]
    assert found["fingerprint"]["power_w"] == pytest.approx(460, abs=10)
    again = json.loads(here(tmp_path / "kept.parquet", "--record", record, "--json")[1])
    assert again["neighbours"] == found["neighbours"]


@pytest.mark.parametrize(("chosen", "load"), [((), 0.8), (("--domain", "gpu:0"), 0.1)])
def test_activity_and_power_are_those_of_the_same_gpu(gpus, record, chosen, load):
    machine = gpus(0.1, 0.8)
    done = wattsmith(
        "match", "--record", record, "--json", *chosen, "--", "sleep", "3.5", environment=machine.environment()
    )
    assert done.returncode in (0, 3), done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])["fingerprint"]
    assert seen["power_w"] == pytest.approx(100 + 600 * load, abs=10)
    assert seen["features"]["sm"] == pytest.approx(0.95 * load, abs=0.02)


def test_a_command_that_fails_at_once_is_told_with_its_exit_code(record):
    done = wattsmith("match", "--record", record, "--", *python("raise SystemExit(7)"))
    assert done.returncode == 2
    assert "the command ended with exit code 7" in done.stderr


@pytest.mark.parametrize("name", ["t.json", "t.txt"])
def test_a_file_that_is_no_trace_is_not_run(tmp_path, name):
    (tmp_path / name).write_text("[]")
    assert "must be a table in .parquet or .csv" in here(tmp_path / name)[2]


def test_telemetry_is_kept_as_parquet_alone(tmp_path):
    assert "--save must end in .parquet" in here("--save", tmp_path / "t.csv", "--", "true")[2]


TELLING = """
import time, torch, wattsmith
wattsmith.tell_layers()
network = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 3))
end_s = time.monotonic() + 3.5
while time.monotonic() < end_s:
    network(torch.randn(1, 3, 8, 8)).sum().backward()
"""


def test_a_command_that_tells_its_layers_is_matched_by_them(gpus, record, tmp_path):
    pytest.importorskip("torch", reason="LAYERS ARE NOT TESTED: torch is not installed")
    kept, layers = tmp_path / "kept.parquet", tmp_path / "layers.json"
    environment = gpus(0.6).environment() | {"WATTSMITH_LAYERS": str(layers)}
    done = wattsmith(
        "match", "--record", record, "--json", "--save", kept, "--", *python(TELLING), environment=environment
    )
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "conv_mixing" in found["used"]
    assert found["family"]["family"] == "convolutional"
    again = json.loads(here(kept, "--layers", layers, "--record", record, "--json")[1])
    assert again["family"] == found["family"]
    assert "not from both" in here(kept, "--layers", layers, "--model", "x.py:y", "--record", record)[2]


def test_where_no_meter_tells_anything_layers_are_enough(record):
    pytest.importorskip("torch", reason="LAYERS ARE NOT TESTED: torch is not installed")
    if describe_machine("auto").meters:
        pytest.skip("this machine has a meter")
    done = wattsmith("match", "--record", record, "--json", "--", *python(TELLING.replace("3.5", "0.5")))
    assert done.returncode in (0, 3), done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["family"]["family"] == "convolutional"
    assert "no meter told any power; see `wattsmith machine`" in found["notes"]
    done = wattsmith("match", "--record", record, "--", *python("pass"))
    assert (done.returncode, "tell_layers" in done.stderr) == (2, True)


STEPPING = """
import sys, time
begin_s, done = time.monotonic(), 0
with open(sys.argv[1], "w", buffering=1) as steps:
    while time.monotonic() < begin_s + 60:
        due = int(20 * (time.monotonic() - begin_s))
        steps.write("\\n" * (due - done))
        done = due
        time.sleep(0.05)
"""  # twenty steps a second, however slow the machine is


def test_a_running_process_is_watched_for_a_while(gpus, record, tmp_path):
    machine = gpus(0.4)
    steps = tmp_path / "steps"
    with subprocess.Popen([sys.executable, "-c", STEPPING, str(steps)]) as other:
        started = start_wattsmith(
            "match", "--pid", other.pid, "--seconds", "3.6s", "--progress", steps, "--record", record, "--json",
            "--probe-with", "gpu:0/power_limit",
            environment=machine.environment() | {"XDG_STATE_HOME": str(tmp_path)},
        )  # fmt: skip
        out, err = started.communicate(timeout=60)
        other.kill()
    found = json.loads(out)
    assert found["fingerprint"]["steps_per_s"] == pytest.approx(20, abs=6), err
    assert "progress" in found["used"]
    assert "comes back" in err
    assert machine.setting(0).power_limit_w == 700.0


def test_a_timeline_of_measure_is_read(gpus, record, tmp_path):
    machine = gpus(0.8)
    kept = tmp_path / "t.parquet"
    made = wattsmith("measure", "-q", "--timeline", kept, "--", "sleep", "3.5", environment=machine.environment())
    assert made.returncode == 0, made.stderr
    found = json.loads(here(kept, "--record", record, "--json")[1])
    assert found["fingerprint"]["power_w"] == pytest.approx(580, abs=5)
    assert found["fingerprint"]["features"]["clock"] == pytest.approx(1.0)
