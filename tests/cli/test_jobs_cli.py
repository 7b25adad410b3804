"""`wattsmith submit` and `wattsmith jobs` as a user has them, against a whole service on this machine."""

import json
import threading
import time

import pytest

pytest.importorskip("fastapi", reason="THE COMMANDS submit AND jobs ARE NOT TESTED: fastapi is not installed")
pytest.importorskip("httpx", reason="THE COMMANDS submit AND jobs ARE NOT TESTED: httpx is not installed")

from tests.serve.serving_here import Here

from wattsmith.cli.job_tables import print_job, print_jobs, progress_text, remarks
from wattsmith.cli.jobs import exit_code_of
from wattsmith.flows.service import ServiceOptions, open_service
from wattsmith.terms.service import Role

POOL = "nodes:\n  - {name: here, device: h200, count: 2}\n"
JOB = """\
name: counting
command: [python, train.py, {code}]
files: [train.py]
steps: 3
step: 10ms
power: 20W
"""
TRAIN = """\
import os, sys
for step in range(3):
    with open(os.environ["WATTSMITH_PROGRESS"], "a") as progress:
        progress.write("step\\n")
print("three steps are done")
sys.exit(int(sys.argv[1]))
"""
NET = """\
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(64, 10)
        print("a model that talks while it is made")

    def forward(self, image):
        return self.scores(image.flatten(1))
"""


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """A service on this machine, where nothing is measured."""
    home = tmp_path_factory.mktemp("service")
    (home / "pool.yaml").write_text(POOL)
    options = ServiceOptions(db=str(home / "service.sqlite"), home=home, pool=home / "pool.yaml", watch=False)
    with open_service(options) as service:
        made = Here(service, None, None, home)
        for role in Role:
            made.tokens[role.value] = made.add_token("rack-1" if role is Role.AGENT else role.value, role)
        with made.listening() as made.url:
            yield made


@pytest.fixture
def folder(here, tmp_path, monkeypatch):
    """A folder with a job, and a user who may submit it."""
    monkeypatch.setenv("WATTSMITH_SERVER", here.url)
    monkeypatch.setenv("WATTSMITH_TOKEN", here.tokens["submit"])
    (tmp_path / "job.yaml").write_text(JOB.format(code=0))
    (tmp_path / "train.py").write_text(TRAIN)
    (tmp_path / "net.py").write_text(NET)
    return tmp_path


def test_a_job_is_submitted_waited_for_and_told_beside_what_was_predicted(folder, wattsmith_here):
    out, err = wattsmith_here("submit", folder / "job.yaml", "--wait")
    plain = " ".join(out.split())
    assert "counting by submit: done" in plain
    assert "time 30 ms" in plain  # 3 steps of 10 ms were predicted
    assert "steps 3 3" in plain
    assert "exit code 0" in plain
    assert "predicted" in err


def test_the_exit_code_is_the_jobs_and_its_output_is_followed(folder, wattsmith_here):
    (folder / "job.yaml").write_text(JOB.format(code=7))
    out, _ = wattsmith_here("submit", folder / "job.yaml", "--follow", "--json", code=7)
    printed, job = out.splitlines()
    assert printed == "three steps are done"
    assert json.loads(job)["attempts"][0]["result"]["exit_code"] == 7


def test_a_job_that_is_refused_at_once_is_no_success(folder, wattsmith_here):
    (folder / "job.yaml").write_text(JOB.format(code=0) + "gpus: 4\n")
    out, _ = wattsmith_here("submit", folder / "job.yaml", code=1)
    assert "it needs 4 devices of one machine" in out


def test_jobs_are_listed_shown_logged_and_cancelled(folder, wattsmith_here):
    (folder / "train.py").write_text("import time\nprint('begun', flush=True)\ntime.sleep(60)\n")
    out, _ = wattsmith_here("submit", folder / "job.yaml", "--json")
    number = json.loads(out)["id"]
    deadline_s = time.monotonic() + 30
    while "begun" not in wattsmith_here("jobs", "log", number)[0]:
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert f"{number} counting" in " ".join(wattsmith_here("jobs")[0].split())
    # A job prints before the dispatcher has looked at it.
    while not (listed := json.loads(wattsmith_here("jobs", "--state", "running", "--json")[0])):
        assert time.monotonic() < deadline_s
        time.sleep(0.2)
    assert [one["id"] for one in listed] == [number]
    assert "on here:" in wattsmith_here("jobs", "show", number)[0]
    wattsmith_here("jobs", "cancel", number)
    out, _ = wattsmith_here("jobs", "log", number, "--follow")
    assert out == "begun\n"
    assert json.loads(wattsmith_here("jobs", "show", number, "--json")[0])["state"] == "cancelled"
    _, err = wattsmith_here("jobs", "cancel", number, code=2)
    assert number in err


def test_a_model_is_traced_here_and_its_structure_sent(folder, here, wattsmith_here):
    pytest.importorskip("torch", reason="MODELS OF JOBS ARE NOT TESTED: torch is not installed")
    text = "name: net\ncommand: [python, train.py, 0]\nfiles: [train.py, net.py]\nmodel: net.py:Net\ninput: [1x8x8]\n"
    (folder / "job.yaml").write_text(text + "batch: 64\nsamples: 192\nstep: 10ms\npower: 20W\n")
    out, err = wattsmith_here("submit", folder / "job.yaml", "--dry-run")
    assert "net can be submitted: python train.py 0, with 2 files" in out
    assert "its step was traced: batch 64, fp32, train" in out
    assert "a model that talks" in err
    job = json.loads(wattsmith_here("submit", folder / "job.yaml", "--json")[0])
    kept = here.service.structure(job["structure"])
    assert kept["how"]["batch"] == 64
    assert kept["name"] == "net.py:Net"


def test_all_that_is_wrong_is_told_before_anything_is_sent(folder, here, wattsmith_here, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SERVER", "http://127.0.0.1:9")
    before = len(here.service.jobs())
    (folder / "job.yaml").write_text(JOB.format(code=0) + "deadline: soon\nretrys: 2\ntimeout: 20\n")
    _, err = wattsmith_here("submit", folder / "job.yaml", code=2)
    lines = err.strip().splitlines()
    assert "job.yaml, line 7, deadline: 'soon' is no time" in lines[0]
    assert "job.yaml, line 8, retrys: 'retrys' is not known here (did you mean retries?)" in lines[1]
    assert "job.yaml, line 9, timeout: '20' has no unit" in lines[2]
    assert len(here.service.jobs()) == before


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ("[train.py, nets.py]", "line 3, files[2]: there is no file"),
        ("[train.py, away/secret]", "line 3, files[2]: leads out of the folder"),
        ("[train.py, large]", "line 3, files[2]: is larger than 8 MB"),
    ],
)
def test_files_that_cannot_be_sent_are_named(folder, wattsmith_here, files, says, tmp_path_factory):
    outside = tmp_path_factory.mktemp("outside")
    (outside / "secret").write_text("x")
    (folder / "away").symlink_to(outside)
    with (folder / "large").open("wb") as large:
        large.truncate(9_000_000)
    (folder / "job.yaml").write_text(JOB.format(code=0).replace("[train.py]", files))
    assert says in wattsmith_here("submit", folder / "job.yaml", "--dry-run", code=2)[1]


@pytest.mark.parametrize(
    ("caller", "says"),
    [("read", "read"), ("agent", "agent"), ("revoked", "revoked")],
)
def test_who_may_not_submit_is_told_why(folder, here, wattsmith_here, monkeypatch, caller, says):
    if caller == "revoked":
        here.tokens["revoked"] = here.add_token("gone", Role.SUBMIT)
        here.revoke("revoked")
    monkeypatch.setenv("WATTSMITH_TOKEN", here.tokens[caller])
    _, err = wattsmith_here("submit", folder / "job.yaml", code=2)
    assert says in err
    assert "/api/v1/jobs" in err


def test_what_the_service_refuses_is_told(folder, wattsmith_here):
    (folder / "job.yaml").write_text(JOB.format(code=0).replace("[python,", "[bash,"))
    _, err = wattsmith_here("submit", folder / "job.yaml", code=2)
    assert "may run python, python3 here, not 'bash'" in err


@pytest.mark.usefixtures("folder")
def test_a_service_that_is_not_there_is_told_with_its_address(wattsmith_here, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SERVER", "http://127.0.0.1:9")
    _, err = wattsmith_here("jobs", "show", "j-000001", "--patience", "0s", code=2)
    assert "no service answers at http://127.0.0.1:9" in err


def test_a_job_that_is_not_there_is_told(folder, wattsmith_here):  # noqa: ARG001 - it says which service
    _, err = wattsmith_here("jobs", "show", "j-999999", code=2)
    assert "there is no job 'j-999999'" in err


def test_an_agent_reports_to_the_service_and_gets_its_schedule(here, tmp_path, monkeypatch):
    from wattsmith.serve.agent import Agent, AgentOptions

    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = AgentOptions(
        name="rack-1", url=here.url, token=lambda: here.tokens["agent"], state=tmp_path / "agent", every_s=0.1
    )
    one, stop = Agent(options), threading.Event()
    running = threading.Thread(target=one.run, args=(stop,))
    running.start()
    deadline_s = time.monotonic() + 20
    while one.sender.accepted < 5 and time.monotonic() < deadline_s:
        time.sleep(0.05)
    stop.set()
    running.join(20)
    kept = [each.report.number for each in here.service.client_reports("rack-1") if each.report.boot == one.boot]
    assert kept == list(range(1, len(kept) + 1))
    assert len(kept) >= 6
    assert here.service.client("rack-1").about.host
    assert abs(one.clock.now_s() - here.service.now_s()) < 1.0


@pytest.mark.parametrize(
    ("state", "code", "left"),
    [("done", 0, 0), ("failed", 3, 3), ("failed", -9, 137), ("failed", None, 1), ("cancelled", 0, 1)],
)
def test_exit_codes(state, code, left):
    attempts = [] if code is None else [{"result": {"exit_code": code}}]
    assert exit_code_of({"state": state, "attempts": attempts}) == left


def test_progress_is_one_line():
    job = {"id": "j-1", "state": "running", "steps": 5.0, "predicted": {"steps": 10.0}, "reason": None}
    assert progress_text(job, 300.0) == "j-1 running · step 5 of 10 · 300 W"


STANDS = {"id": "j-000001", "name": "night", "by": "ada", "submitted_s": 0.0, "attempts": []}
RUNS = STANDS | {
    "state": "running",
    "progress_ratio": 0.25,
    "duration_so_far_s": 50.0,
    "energy_so_far_j": 5000.0,
    "power_so_far_w": 100.0,
    "energy_source": "counter",
    "late_by_s": 30.0,
    "ends_s": 200.0,
    "deadline_s": 170.0,
    "predicted": {"steps": 40.0, "standing": "inside"},
}


@pytest.mark.parametrize(
    ("job", "said"),
    [
        (
            {
                "state": "waiting",
                "waits_because": "waits for power: needs 410 W",
                "reason": "it runs again",
                "late_by_s": 9.0,
            },
            ["waits for power: needs 410 W", "it runs again", "it will miss its deadline by 9 s at the least"],
        ),
        ({"state": "waiting", "waits_because": "it comes after a", "reason": "it comes after a"}, ["it comes after a"]),
        ({"state": "running", "late_by_s": 9.0}, ["it will miss its deadline by 9 s"]),
        ({"state": "done", "late_by_s": 9.0, "trouble": "disk"}, ["it ended 9 s after its deadline", "disk"]),
        ({"state": "running"}, []),
    ],
)
def test_what_there_is_to_say_of_a_job_is_said_once(job, said):
    assert remarks(job) == said


def test_a_job_that_runs_shows_how_far_it_is_and_what_it_has_used(capsys):
    print_jobs([RUNS])
    listed = " ".join(capsys.readouterr().out.split())
    assert "j-000001 night running 25 % ada 50 s 5 kJ" in listed
    assert "j-000001: it will miss its deadline by 30 s" in listed
    print_job(RUNS)
    shown = " ".join(capsys.readouterr().out.split())
    assert "predicted 90 % interval so far" in shown
    assert "energy unknown 5 kJ power unknown 100 W" in shown
    assert "energy from meters, source: counter" in shown
    assert "it should end 01 Jan 00:03:20 UTC, its deadline is 01 Jan 00:02:50" in shown


def test_energy_that_nobody_knows_is_unknown_with_the_reason(capsys):
    print_job(RUNS | {"energy_so_far_j": None, "power_so_far_w": None, "energy_why": "no meter"})
    shown = " ".join(capsys.readouterr().out.split())
    assert "energy unknown unknown" in shown
    assert "energy is unknown: no meter" in shown
