"""Every command with wrong, missing and absurd arguments: what failed, with which value, and never a traceback."""

import os
import shlex
import signal
import socket
import sqlite3
import subprocess
import sys
import time

import pytest
import typer
from tests.cli.running import WATTSMITH

from wattsmith.cli import app
from wattsmith.cli.complaining import SHOW_ALL, complain
from wattsmith.cli.recording import DESIGNS, GRIDS, PRESETS

for package in ("torch", "scipy", "yaml", "fastapi"):
    pytest.importorskip(package, reason=f"ERRORS ARE NOT CHECKED: {package} is not installed")

NET = """
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(8, 4)

    def forward(self, x):
        return self.scores(x)

def fails():
    raise RuntimeError("boom")
"""
ASKING = "--server http://127.0.0.1:9 --patience 0s --token-file token"
SHORT = "--duration 300ms --settle 100ms --period 100ms --no-loadgen --meters modelled:10W-65W"
PLAN = "plan jobs.yaml --pool pool.yaml"
SERVED = "tune serve net.py:Net --input 8 --device cpu --knob batch=1,2"
TUNED = "tune run --knob batch=1,2"
STEP = "estimate net.py:Net --input 8"

# What is typed, and words that the complaint must have: the value that is wrong, what is nearest, what to do.
ABSURD = {
    # names that are not quite right
    "machin": ["'machin'", "Did you mean", "machine"],
    "machine --jsn": ["--jsn", "--json"],
    "record rn": ["'rn'", "Did you mean", "run"],
    "serve tokn": ["tokn"],
    "schema recrod show": ["'recrod show'", "record show"],
    "record run --preset smok": ["'smok'", "Did you mean smoke?"],
    "record run --design imags": ["'imags'", "Did you mean images?"],
    "record show empty.jsonl --status measurd": ["'measurd'", "Did you mean measured?"],
    "record show empty.jsonl --precision fp8": ["'fp8'", "bf16"],
    "record show empty.jsonl --kind netwrk": ["'netwrk'", "Did you mean network?"],
    f"{PLAN} --objective enery": ["'enery'", "Did you mean energy?"],
    "serve token add kim --role submitt --home home": ["'submitt'", "Did you mean submit?"],
    "serve --engine loca --home home": ["'loca'", "Did you mean local?"],
    "estimate net.py:Nett --input 8": ["Nett", "did you mean net.py:Net?"],
    f"{STEP} --device h20": ["'h20'", "h200"],
    "report run --scenario Ofline -- true": ["'Ofline'", "Offline"],
    "report check folder --round v9": ["'v9'", "v5.1"],
    "machine --meters gpus": ["'gpus'", "gpu"],
    # nothing, or too much
    "measure": ["wattsmith measure -- python train.py"],
    "machine extra": ["extra"],
    "measure --hz": ["--hz"],
    "record points": ["FILE"],
    "estimate": ["MODEL"],
    "match": ["--pid"],
    "plan": ["JOBS.yaml"],
    "plan jobs.yaml": ["--pool"],
    "tune run": ["--knob"],
    TUNED: ["after `--`"],
    "tune replay": ["GRID.csv"],
    "tune serve": ["MODEL"],
    "split": ["STEP"],
    "report check": ["DIR"],
    "report run": ["--function"],
    "report from": ["FILE"],
    "report summarise": ["PATH"],
    "report page folder": ["OUT.html"],
    "control run": ["--set"],
    "control run --set gpu:0/power_limit=300W": ["wattsmith control run"],
    "control follow": ["FILE.json"],
    "control serve": ["--socket"],
    "serve token add": ["NAME"],
    "serve token add kim": ["--role"],
    "serve token revoke": ["ID"],
    "submit": ["JOB.yaml"],
    "jobs show": ["ID"],
    "jobs log": ["ID"],
    "jobs cancel": ["ID"],
    "feed worker": ["--connect"],
    "feed pool": ["--listen"],
    "feed token": ["FILE"],
    # files that are not there, folders, empty and binary ones
    "measure --replay nosuch.csv": ["nosuch.csv"],
    "measure --replay binary.parquet": ["binary.parquet"],
    "measure --timeline nowhere/x.csv -- true": ["nowhere/x.csv"],
    "measure --timeline x.txt -- true": ["'x.txt'", ".parquet"],
    "measure --json folder -- true": ["folder", "Choose another place"],
    "record run --points nosuch.jsonl --device cpu": ["nosuch.jsonl"],
    "record show nosuch": ["nosuch", "h200", "wattsmith record run"],
    "record show binary.sqlite": ["binary.sqlite", "not a database"],
    "record show other.sqlite": ["other.sqlite", "something else"],
    "record show folder": ["folder is a folder"],
    "record show binary.jsonl": ["binary.jsonl, line 1"],
    "record show mysql://x/y": ["mysql", "PostgreSQL"],
    "record plot out.txt h200": ["'out.txt'", ".svg"],
    "record plot nowhere/out.png h200": ["nowhere"],
    "record export folder empty.jsonl": ["folder", "choose another place"],
    "record export '' empty.jsonl": ["choose another place"],
    "record import nosuch.jsonl": ["nosuch.jsonl"],
    "record import other.sqlite": ["other.sqlite, line 1"],
    "estimate nosuch.py:Net": ["nosuch.py"],
    "estimate binary.py:Net": ["binary.py"],
    "estimate empty.py:Net": ["'Net'"],
    "estimate net.py:fails --input 8": ["boom", "line"],
    "estimate binary.json": ["binary.json"],
    "estimate folder": ["config.json"],
    f"{STEP} --record nosuch": ["nosuch"],
    "match nosuch.csv": ["nosuch.csv"],
    "match folder.csv": ["folder.csv: Is a directory"],
    "match empty.csv": ["empty.csv", "--timeline"],
    "match binary.parquet": ["binary.parquet"],
    "match grid.csv --plot out.txt": ["'out.txt'", ".png"],
    "plan nosuch.yaml --pool pool.yaml": ["nosuch.yaml cannot be read: No such file or directory"],
    "plan folder --pool pool.yaml": ["folder cannot be read: Is a directory"],
    "plan empty.yaml --pool pool.yaml": ["empty.yaml is empty"],
    "plan binary.yaml --pool pool.yaml": ["binary.yaml", "no text"],
    "plan pool.yaml --pool jobs.yaml": ["jobs.yaml, line 2", "nodes"],
    f"{PLAN} --carbon nosuch.csv": ["nosuch.csv", "No such file"],
    f"{PLAN} --plot nowhere/x.svg": ["nowhere"],
    f"{TUNED} --plot x.txt -- true": ["'x.txt'", ".svg"],
    f"{TUNED} --trials nowhere/t.json -- true": ["nowhere/t.json"],
    f"{TUNED} --trials binary.json -- true": ["binary.json"],
    f"{TUNED} -- no-such-command": ["'no-such-command'"],
    "tune replay nosuch.csv --knob batch": ["nosuch.csv", "No such file"],
    "tune replay ragged.csv --knob batch": ["ragged.csv, row 2", "more cells"],
    "tune replay grid.csv --knob bach": ["bach", "batch"],
    f"{SERVED} --trace nosuch.txt": ["nosuch.txt"],
    "split nosuch.py:step": ["nosuch.py"],
    "split net.py:Net --input 8 --plot x.txt": ["'x.txt'", ".svg"],
    "split net.py:Net --input 8 --save folder": ["folder"],
    "report check nowhere": ["nowhere is no folder"],
    "report check folder": ["folder", "power/server.json"],
    "report from nosuch.json": ["nosuch.json", "wattsmith measure"],
    "report from binary.json": ["binary.json"],
    "report summarise empty.csv": ["empty.csv", "columns"],
    "report page nowhere out.html": ["nowhere"],
    f"report run {SHORT} --out empty -- true": ["empty"],
    "restore --state empty": ["empty", "folder"],
    "restore --forget nosuch --state folder": ["'nosuch'"],
    "control follow nosuch.json": ["nosuch.json", "No such file"],
    "control follow empty.json": ["empty.json, line 1"],
    "control serve --socket x.sock --allow nosuch.toml": ["nosuch.toml"],
    "control run --set gpu:0/power_limit=300W --socket no.sock -- true": ["no.sock", "wattsmith control serve"],
    "serve --pool nosuch.yaml --home home --port 0": ["nosuch.yaml"],
    "serve --db other.sqlite --home home --port 0": ["other.sqlite", "something else"],
    "serve --db mysql://x/y --home home --port 0": ["mysql"],
    "serve --data nowhere --home home": ["nowhere"],
    "serve --home empty --port 0": ["empty"],
    "serve token list --db binary.sqlite": ["binary.sqlite"],
    "serve token revoke nosuch --home home": ["'nosuch'"],
    "submit nosuch.yaml --dry-run": ["nosuch.yaml"],
    "submit jobs.yaml --dry-run": ["jobs.yaml, line 2"],
    "submit job.yaml --token-file nosuch": ["nosuch", "wattsmith serve token add"],
    f"submit job.yaml {ASKING}": ["http://127.0.0.1:9"],
    f"jobs list {ASKING}": ["http://127.0.0.1:9"],
    f"jobs show j-1 {ASKING}": ["http://127.0.0.1:9"],
    f"jobs log j-1 {ASKING}": ["http://127.0.0.1:9"],
    f"jobs cancel j-1 {ASKING}": ["http://127.0.0.1:9"],
    "feed worker --connect 127.0.0.1:9 --token-file nosuch": ["nosuch"],
    "feed worker --connect 127.0.0.1:9 --token-file empty": ["empty", "wattsmith feed token"],
    "feed token empty": ["empty is there already"],
    "schema nosuch": ["'nosuch'", "wattsmith schema"],
    "demo --out empty": ["empty", "--out"],
    # numbers and quantities: none, negative, zero, huge, NaN, without a unit, of another kind
    "measure --hz often -- true": ["--hz", "'often'"],
    "measure --hz nan -- true": ["nan"],
    "measure --pid many": ["--pid", "'many'"],
    "measure --pid 99999999": ["99999999"],
    "measure --prometheus 99999 -- true": ["99999"],
    "record run --for 8": ["8s"],
    "record run --for 0s": ["'0s'"],
    "record run --minutes nan": ["nan"],
    "record run --for 1min --minutes 1": ["give one of them"],
    "record run --sample -1": ["--sample", "'-1'"],
    "record run --sample 3": ["--sample 3", "grids"],
    "record run --threads 0": ["--threads", "'0'"],
    "record run --window 1000h": ["1000h"],
    "record run --replicas many": ["'many'"],
    "record points x.jsonl --device cpu --memory 80": ["80B"],
    "record points x.jsonl --device cpu --memory -1GB": ["'-1GB'"],
    f"{STEP} --batch 0": ["batch", "0"],
    f"{STEP} --batch many": ["--batch", "'many'"],
    f"{STEP} --gpus -1": ["-1"],
    f"{STEP} --power-limit 400": ["400W"],
    f"{STEP} --power-limit 400J": ["J is a unit of energy"],
    f"{STEP} --power-limit nanW": ["'nanW'"],
    f"{STEP} --limit speed<=3": ["'speed'", "epoch"],
    f"{STEP} --price h200=free --minimise cost": ["'h200=free'"],
    "match grid.csv --neighbours 0": ["0"],
    "match --pid 99999999": ["99999999"],
    "match grid.csv --probe a,b": ["'a,b'"],
    f"{PLAN} --power-budget 10": ["10W"],
    f"{PLAN} --power-budget 1e400W": ["'1e400W'"],
    f"{PLAN} --deadline soon": ["'soon'"],
    f"{PLAN} --slot 0s": ["'0s'"],
    f"{PLAN} --slot 1s --deadline 100000h": ["360000000 slots", "7200 s"],
    f"{TUNED} --timeout 0s -- true": ["--timeout", "'0s'"],
    f"{TUNED} --budget 0 -- true": ["--budget", "'0'"],
    f"{TUNED} --noise energy=400% -- true": ["'400%'"],
    f"{TUNED} --least-gain nan -- true": ["'nan'"],
    f"{TUNED} --at batch=7 -- true": ["7"],
    "tune run --knob batch= -- true": ["'batch='"],
    f"{SERVED} --rate nan": ["nan"],
    f"{SERVED} --clients 0": ["0"],
    f"{SERVED} --rate 5 --limit latency_p99<=1s --live 0s": ["--live", "'0s'"],
    f"{SERVED} --rate 5 --limit latency_p99<=1s --live 1s --beside 0": ["--beside", "'0'"],
    "split net.py:Net --input 3xx": ["'3xx'"],
    "split net.py:Net --input 8 --trainer tpu": ["'tpu'"],
    "report check folder --jobs 0": ["--jobs", "'0'"],
    "report run --duration 60 -- true": ["60s"],
    "report run --scenario Server --rate -1 -- true": ["-1"],
    "control run --set power=3 -- true": ["'power=3'"],
    "control run --set gpu:0/power_limit=300W --lease 0s -- true": ["0"],
    "control follow empty.json --progress x": ["'x'"],
    "serve --port 99999": ["--port", "'99999'"],
    "serve --power-budget 10 --home home": ["10W"],
    "serve --retention -1d --home home": ["'-1d'"],
    "serve --ray-address x:1 --home home": ["x:1", "--engine ray"],
    "jobs list --limit 0": ["--limit", "'0'"],
    "jobs log j-1 --attempt 0": ["--attempt", "'0'"],
    "agent --every 0s --token-file token": ["0 s"],
    "agent --spool 3 --token-file token": ["3B"],
    "agent --name a/b --token-file token": ["'a/b'"],
    "feed worker --connect 127.0.0.1:99999 --token-file token": ["127.0.0.1:99999"],
    "feed worker --connect 127.0.0.1:9 --token-file token --workers 0": ["--workers", "'0'"],
    "feed pool --listen nowhere --token-file token --workers 1": ["'nowhere'"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files that are empty, binary, folders, or something else."""
    made = tmp_path_factory.mktemp("absurd")
    for suffix in ("yaml", "csv", "json", "jsonl", "py", "parquet", "sqlite"):
        (made / f"empty.{suffix}").touch()
        (made / f"binary.{suffix}").write_bytes(bytes(range(256)) * 4)
        (made / f"folder.{suffix}").mkdir()
    (made / "empty").touch()
    (made / "folder").mkdir()
    with sqlite3.connect(made / "other.sqlite") as other:
        other.execute("create table cats (name text)")
    other.close()
    (made / "net.py").write_text(NET)
    (made / "token").write_text("ws_1234_0123456789abcdef0123456789abcdef")
    (made / "grid.csv").write_text("batch,energy_j,time_s\n8,300,1.0\n16,250,1.1\n")
    (made / "ragged.csv").write_text("batch,energy_j\n8,300\n16,250,1.1\n")
    (made / "jobs.yaml").write_text("jobs:\n  - {name: a, steps: 10, step: 1s, power: 100W}\n")
    (made / "pool.yaml").write_text("nodes:\n  - {name: n, device: a100, count: 1}\n")
    (made / "job.yaml").write_text("name: a\ncommand: [python, x.py]\nsteps: 3\nstep: 10ms\npower: 20W\n")
    return made


@pytest.fixture(autouse=True)
def there(folder, tmp_path, monkeypatch):
    """Somebody in that folder, who has nothing else."""
    monkeypatch.chdir(folder)
    for name in ("DATA", "CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.delenv("WATTSMITH_TOKEN", raising=False)
    monkeypatch.delenv("WATTSMITH_SERVER", raising=False)
    return folder


@pytest.mark.parametrize("typed", ABSURD)
def test_what_is_absurd_is_refused_with_its_value_and_what_to_do(typed, wattsmith_here):
    _, err = wattsmith_here(*shlex.split(typed, posix=True), code=2)
    said = [line for line in err.splitlines() if not line.startswith(("ranging:", "binary.jsonl ends"))]
    assert said[0].startswith("wattsmith: ")
    assert len(said) <= 2
    assert "mistake in wattsmith" not in err
    assert "[Errno" not in err
    assert "codec" not in err
    assert [word for word in ABSURD[typed] if word not in err] == []


def leaves():
    def walk(name, command):
        children = getattr(command, "commands", {})
        if not children:
            yield name
        for child_name, child in children.items():
            yield from walk(f"{name} {child_name}".strip(), child)

    return sorted(walk("", typer.main.get_command(app)))


@pytest.mark.parametrize("command", leaves())
def test_every_command_refuses_an_option_that_it_does_not_have(command, wattsmith_here):
    _, err = wattsmith_here(*command.split(), "--no-such-option", code=2)
    assert "--no-such-option" in err
    assert f"wattsmith {command} --help" in err
    assert len(err.splitlines()) == 1


def test_every_command_is_tried_with_something_absurd():
    harmless = {"control show"}  # takes nothing that could be wrong
    assert [one for one in leaves() if not any(typed.startswith(one) for typed in ABSURD)] == sorted(harmless)


@pytest.mark.parametrize("group", ["record", "tune", "feed", "report", "control", "serve token"])
def test_a_group_alone_shows_what_there_is(group, wattsmith_here):
    out, err = wattsmith_here(*group.split(), code=2)
    assert f"Usage: wattsmith {group}" in out
    assert err == ""


def test_names_that_are_checked_before_pytorch_is_loaded_are_those_of_the_record():
    from wattsmith.record import grid, presets

    assert tuple(presets.PRESETS) == PRESETS
    assert tuple(grid.GRIDS) == GRIDS
    assert ("cover", "worst", *GRIDS) == DESIGNS


def test_a_mistake_of_ours_is_one_message_and_its_traceback_can_be_had(capsys, monkeypatch):
    assert complain(TypeError("a\nb")) == 1
    said = capsys.readouterr().err
    assert said.startswith("wattsmith: this is a mistake in wattsmith, not of yours: TypeError: a b\n")
    assert SHOW_ALL in said
    assert "Traceback" not in said
    monkeypatch.setenv(SHOW_ALL, "1")
    try:
        raise TypeError("again")
    except TypeError as again:
        complain(again)
    assert "Traceback" in capsys.readouterr().err


def test_a_name_that_is_no_text_is_told(wattsmith_here):
    _, err = wattsmith_here("record", "show", "caf\udcff", code=2)
    assert "caf\\udcff" in err
    assert "mistake in wattsmith" not in err


def test_a_port_that_is_taken_is_named(wattsmith_here, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        _, err = wattsmith_here("serve", "--home", tmp_path / "home", "--port", port, code=2)
    assert str(port) in err
    assert "--port" in err


def test_a_terminal_that_knows_few_characters_gets_the_rest():
    done = subprocess.run(
        [WATTSMITH, "record", "show", "h200", "--family", "matmul"],
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(b"81 runs on NVIDIA H200")


@pytest.mark.parametrize("command", ["", *leaves()])
def test_every_command_is_explained_with_h(command, wattsmith_here):
    out, _ = wattsmith_here(*command.split(), "-h")
    assert f"Usage: wattsmith {command}".strip() in out


def test_a_reader_that_leaves_is_no_error():
    """`wattsmith … | head -1`: nothing is said, and it ends."""
    command = f"{WATTSMITH} record show h200 --family matmul --json | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "[\n"
    assert done.stderr == ""


def test_ctrl_c_ends_with_130_and_without_a_word_too_much(tmp_path):
    begun = tmp_path / "begun"
    process = subprocess.Popen(
        [WATTSMITH, "tune", "run", "--knob", "batch=1,2", "--", "bash", "-c", f"touch {begun}; sleep 60"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    deadline_s = time.monotonic() + 60
    while not begun.exists():
        assert time.monotonic() < deadline_s, "the command was never started"
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err


INTERRUPTED = """
import sys
from importlib.abc import MetaPathFinder

class CtrlC(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "wattsmith.cli":
            raise KeyboardInterrupt

sys.meta_path.insert(0, CtrlC())
from wattsmith.__main__ import main
main()
"""


def test_ctrl_c_while_the_program_is_loaded_ends_it_quietly():
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_python_m_wattsmith_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "wattsmith", "machin"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("wattsmith: No such command 'machin'")


WITHOUT = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
from wattsmith.cli import main
for typed in {typed!r}:
    sys.argv = ["wattsmith", *typed.split()]
    try:
        main()
    except SystemExit as left:
        sys.stderr.write(f"-> {{left.code}}\\n")
"""


def test_without_optional_packages_the_extra_is_named():
    missing = {"torch", "numpy", "scipy", "yaml", "fastapi", "uvicorn", "httpx", "matplotlib", "pydantic", "onnx"}
    typed = [
        *("estimate net.py:Net --input 8", "record run --device cpu", "split net.py:Net --input 8", PLAN),
        *("tune replay grid.csv --knob batch", "serve --home home --port 0", "submit job.yaml --dry-run"),
        f"jobs list {ASKING}",
        "record plot x.png h200",
        "tune serve net.py:Net --knob batch=1,2 --rate 5 --input 8",
    ]
    program = WITHOUT.format(missing=missing - {"pydantic"}, typed=typed)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert "Traceback" not in done.stderr, done.stderr
    assert "mistake in wattsmith" not in done.stderr, done.stderr
    said = done.stderr.split("-> 2\n")
    assert len(said) == len(typed) + 1, done.stderr
    assert [told for told in said[:-1] if "pip install 'wattsmith[" not in told] == []
