"""Every `--json` keeps its published schema: each command is run for real on a small input."""

import json
import re
import sys
from pathlib import Path

import pytest
import typer

pytest.importorskip("torch", reason="JSON OUTPUTS ARE NOT CHECKED: torch is not installed")
pytest.importorskip("scipy", reason="JSON OUTPUTS ARE NOT CHECKED: scipy is not installed")
pytest.importorskip("yaml", reason="JSON OUTPUTS ARE NOT CHECKED: PyYAML is not installed")
pytest.importorskip("fastapi", reason="JSON OUTPUTS ARE NOT CHECKED: fastapi is not installed")
pytest.importorskip("jsonschema", reason="JSON OUTPUTS ARE NOT CHECKED: jsonschema is not installed")

import jsonschema
from tests.cli.keeping import keeps
from tests.cli.running import wattsmith
from tests.cli.test_jobs_cli import JOB, NET, POOL, TRAIN
from tests.cli.test_matching import trace
from tests.cli.test_planning import JOBS
from tests.flows.knowing import few_runs, written
from tests.report.session_folder import write_session
from tests.serve.serving_here import Here

from wattsmith.cli import app
from wattsmith.cli.outputs import OUTPUTS, SCHEMAS, WORK_SCHEDULE, file_of, schema_text
from wattsmith.flows.service import ServiceOptions, open_service
from wattsmith.terms.service import Role

TESTS = Path(__file__).parents[1]
MANUAL = TESTS.parent / "docs" / "outputs.md"
MODELS = TESTS / "flows" / "models_for_tests"
MODELLED = ("--meters", "modelled:10W-65W")
GRID = "batch,energy_j,time_s\n8,300,1.0\n16,250,1.1\n32,240,1.3\n"
PRINTS = 'import json; print(json.dumps({"energy_j": {level}, "time_s": 1.0}))'


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Somebody who has nothing yet, on a machine without meters."""
    for name in ("DATA", "CACHE", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    return tmp_path


@pytest.fixture(scope="module")
def record(tmp_path_factory):
    return written(tmp_path_factory.mktemp("record") / "few.jsonl", few_runs())


@pytest.fixture
def told(wattsmith_here):
    """What `wattsmith ARGUMENTS` printed."""
    return lambda *arguments, code=0: wattsmith_here(*arguments, code=code)[0]


def test_machine(told):
    keeps("machine", told("machine", "--json"), told("machine", *MODELLED, "--json"))


def test_measure_and_what_is_made_of_it(told, home):
    unknown = told("measure", "--json", "-q", "--", "true")
    assert json.loads(unknown)["window"]["energy_j"] is None
    known = told("measure", *MODELLED, "--json", "-q", "--timeline", home / "t.csv", "--", "sleep", "0.3")
    replayed = told("measure", "--replay", home / "t.csv", "--json", "-q")
    keeps("measure", unknown, known, replayed)
    (home / "run.json").write_text(known)
    keeps("report from", told("report", "from", home / "run.json", "--json"))


def test_record_show(told, record):
    keeps("record show", told("record", "show", record, "--json"))


def test_estimate(told, record):
    net = (f"{MODELS / 'small.py'}:Net", "--input", "8", "--db", record, "--json")
    one = told("estimate", *net, "--samples", 1000, "--power-limit", "400W")
    unlearned = told("estimate", *net, "--device", "a100", "--infer")
    ranking = told("estimate", *net, "--limit", "gpus<=1", "--batch", 8, "--price", "h200=3")
    broken = told("estimate", *net, "--limit", "step<=1ns", "--batch", 8, code=1)
    keeps("estimate", one, unlearned, ranking, broken)


def test_match(record, home):
    done = wattsmith("match", trace(home / "t.csv"), "--record", record, "--json")
    assert done.returncode in (0, 3), done.stderr
    keeps("match", done.stdout)


def test_plan(told, home):
    (home / "jobs.yaml").write_text(JOBS)
    (home / "pool.yaml").write_text("nodes:\n  - {name: node, device: a100, count: 2, memory: 40GiB, idle: 20W}\n")
    files = ("plan", home / "jobs.yaml", "--pool", home / "pool.yaml", "--json")
    keeps("plan", told(*files, "--schedules", home / "out"), told(*files, "--power-budget", "60W", code=1))
    keeps(WORK_SCHEDULE, (home / "out" / "node.json").read_text())


def test_tune(told, home):
    (home / "grid.csv").write_text(GRID)
    replay = told("tune", "replay", home / "grid.csv", "--knob", "batch", "--json")
    nothing = told("tune", "replay", home / "grid.csv", "--knob", "batch", "--limit", "time<=1ms", "--json", code=1)
    keeps("tune replay", replay, nothing)
    command = (sys.executable, "-c", PRINTS.replace("{level}", "0.5 + {level}", 1))
    run = ("tune", "run", "--knob", "level=1,2,3", "--budget", 3, "--json", "--", *command)
    keeps("tune run", told(*run))


def test_tune_serve(told, home):
    (home / "net.py").write_text("from torch import nn\n\ndef build():\n    return nn.Linear(4, 2)\n")
    serve = ("tune", "serve", f"{home / 'net.py'}:build", "--input", "4", "--window", "100ms", *MODELLED, "--json")
    common = ("--rate", 100, "--knob", "batch=1,2", "--limit", "latency_p99<=10s", "--device", "cpu")
    tuned = told(*serve, *common, "--budget", 2)
    live = told(*serve, *common, "--live", "200ms")
    keeps("tune serve", tuned, live)


def test_split(told):
    keeps("split", told("split", f"{MODELS / 'cut_step.py'}:step", "--json"))


def test_report(told, home):
    session = write_session(home / "offline" / "performance")
    keeps("report check", told("report", "check", session, "--json", code=1))
    quick = ("--duration", "300ms", "--settle", "100ms", "--period", "100ms", "--no-loadgen", "--json")
    ran = told("report", "run", *MODELLED, *quick, "--out", home / "out", "--", "true")
    keeps("report run", ran)
    keeps("report summarise", told("report", "summarise", home / "offline", "--json"))


def test_restore(told, home):
    assert told("restore", "--state", home / "state", "--json").strip() == "[]"
    keeps("restore", told("restore", "--state", home / "state", "--json"))
    (home / "state").mkdir()
    (home / "state" / "GPU-1.journal").write_text("no journal")
    keeps("restore", told("restore", "--state", home / "state", "--json", code=1))
    keeps("restore", told("restore", "--state", home / "state", "--forget", "GPU-1.journal", "--json"))


def test_tokens(told, home):
    where = ("--home", home / "home", "--json")
    (home / "home").mkdir()
    made = told("serve", "token", "add", "kim", "--role", "submit", *where)
    keeps("serve token add", made)
    keeps("serve token list", told("serve", "token", "list", *where))
    keeps("serve token revoke", told("serve", "token", "revoke", json.loads(made)["token"]["id"], *where))
    keeps("serve token list", told("serve", "token", "list", *where))


@pytest.fixture
def service(home, monkeypatch):
    """A service on this machine, and a user who may submit."""
    (home / "pool.yaml").write_text(POOL)
    for name, text in (("job.yaml", JOB.format(code=0)), ("train.py", TRAIN), ("net.py", NET)):
        (home / name).write_text(text)
    options = ServiceOptions(db=str(home / "service.sqlite"), home=home, pool=home / "pool.yaml", watch=False)
    with open_service(options) as opened:
        here = Here(opened, None, None, home)
        monkeypatch.setenv("WATTSMITH_TOKEN", here.add_token("kim", Role.SUBMIT))
        with here.listening() as url:
            monkeypatch.setenv("WATTSMITH_SERVER", url)
            yield here


@pytest.mark.usefixtures("service")
def test_jobs(told, home):
    ended = told("submit", home / "job.yaml", "--wait", "--json")
    ready = told("submit", home / "job.yaml", "--dry-run", "--json")
    (home / "train.py").write_text("import time; time.sleep(60)")
    sent = told("submit", home / "job.yaml", "--json")
    keeps("submit", ended, ready, sent)
    keeps("jobs cancel", told("jobs", "cancel", json.loads(sent)["id"], "--json"))
    keeps("jobs list", told("jobs", "list", "--json"))
    keeps("jobs show", told("jobs", "show", json.loads(ended)["id"], "--json"))


# ── the schemas themselves ──
def commands_with_json():
    def walk(name, command):
        if any("--json" in one.opts for one in command.params):
            yield name
        for child_name, child in getattr(command, "commands", {}).items():
            yield from walk(f"{name} {child_name}".strip(), child)

    return set(walk("", typer.main.get_command(app)))


def test_every_command_with_json_has_a_schema():
    assert commands_with_json() == set(OUTPUTS), "add what it prints to wattsmith.cli.outputs.OUTPUTS"


def test_every_output_is_held_against_its_schema_by_a_test():
    tests = [path.read_text() for room in ("cli", "serve") for path in (TESTS / room).glob("test_*.py")]
    assert set(OUTPUTS) - set(re.findall(r'keeps\("([^"]+)"', "\n".join(tests))) == set()


@pytest.mark.parametrize("name", OUTPUTS)
def test_the_published_schema_is_that_of_the_facts(name):
    published = file_of(name)
    assert published.exists(), "`bash scripts/schemas` publishes it"
    assert published.read_text() == schema_text(name), "`bash scripts/schemas` writes it anew"
    jsonschema.Draft202012Validator.check_schema(json.loads(published.read_text()))


def test_nothing_else_is_published():
    assert {path.name for path in SCHEMAS.iterdir()} == {file_of(name).name for name in OUTPUTS}


def test_the_command_prints_what_is_published(told):
    assert told("schema", "record", "show") == file_of("record show").read_text()
    assert told("schema", "record-show") == told("schema", "record", "show")
    listed = told("schema")
    assert all(name in listed for name in (*OUTPUTS, WORK_SCHEDULE))


def test_a_schema_that_is_not_there_is_named_with_the_nearest(wattsmith_here):
    _, err = wattsmith_here("schema", "recrod", "show", code=2)
    assert "'recrod show'" in err
    assert "Did you mean 'record show'?" in err


def test_the_manual_lists_every_output():
    manual = MANUAL.read_text()
    assert [name for name in OUTPUTS if f"## wattsmith {name}\n" not in manual] == []
