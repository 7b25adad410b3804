"""A whole story on one machine: a network of the user's own is submitted, estimated, placed, run, measured, recorded.

The GPUs are simulated; the real HTTP service, command line, database and processes are not.
"""

import base64
import json
import math
import os
import signal
import subprocess

import pytest
from tests.serve.real_service import WATTSMITH, asking, until
from tests.serve.real_service import served as a_service

from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import ExtraNeeded

NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Conv2d(3, 64, 3, padding=1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(65536, 10)
        )

    def forward(self, images):
        return self.layers(images)
"""
TRAIN = """
import os, sys, time
from pathlib import Path

images = sorted(Path(os.environ["WATTSMITH_DATA"]).glob("*.bin"))
print("sees", os.environ["CUDA_VISIBLE_DEVICES"], "and", len(images), "files", flush=True)
with open(os.environ["WATTSMITH_PROGRESS"], "w") as progress:
    for step in range(25):
        time.sleep(0.05)
        print(time.time(), file=progress, flush=True)
Path("model.pt").write_text("trained")
"""
JOB = """
name: my-net
command: [python, train.py]
files: [train.py, net.py]
data: pictures
model: net.py:Net
input: 3x32x32
batch: 64
samples: 1600
gpus: {most: 2}
deadline: 2h
power_budget: 1200W
retries: 1
"""


@pytest.fixture
def cards(tmp_path):
    machine = SimulatedNvml.create(tmp_path / "nvml", gpus=4)
    try:
        machine.environment()
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    for card in range(4):
        machine.play(card, 0.5)
    return machine


@pytest.fixture
def mine(tmp_path):
    """A user's folder, with a network, a script, a job file and a data set."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name, text in {"net.py": NET, "train.py": TRAIN, "job.yaml": JOB}.items():
        (folder / name).write_text(text)
    pictures = tmp_path / "data" / "pictures"
    pictures.mkdir(parents=True)
    for number in range(3):
        (pictures / f"{number}.bin").write_bytes(bytes(8))
    return folder


def served(tmp_path, cards, *more):
    """A real `wattsmith serve` on simulated cards: its URL, its admin's token and its process."""
    pool = "nodes:\n  - {name: here, device: h200, count: 4, power_limits: [200W, 700W]}\n"
    environment = cards.environment() | {"XDG_STATE_HOME": str(tmp_path / "state")}
    return a_service(tmp_path / "home", pool, "--data", str(tmp_path / "data"), *more, environment=environment)


def wattsmith(*arguments, url, token, cwd):
    environment = os.environ | {"WATTSMITH_SERVER": url, "WATTSMITH_TOKEN": token}
    return subprocess.run(
        [*WATTSMITH, *arguments], env=environment, cwd=cwd, capture_output=True, text=True, check=False, timeout=120
    )


def test_a_network_of_ones_own_is_estimated_placed_run_measured_and_joins_the_record(tmp_path, cards, mine):
    with served(tmp_path, cards, "--budget", "2kW") as (url, admin, _), asking(url, admin) as api:
        made = api.post("/tokens", json={"name": "ada", "role": "submit"}).json()
        done = wattsmith("submit", "job.yaml", "--wait", "--json", url=url, token=made["text"], cwd=mine)
        assert done.returncode == 0, done.stderr + done.stdout
        job = json.loads(done.stdout)
        job = api.get(f"/jobs/{job['id']}").json()

        assert (job["state"], job["by"], job["name"]) == ("done", "ada", "my-net")
        # Estimated from its structure alone, on at most two cards, within its budget.
        predicted = job["predicted"]
        assert predicted["device"] == "h200"
        assert predicted["devices"] in (1, 2)
        assert predicted["power_w"]["value"] <= 1200
        assert 0 < predicted["duration_s"]["low"] <= predicted["duration_s"]["value"] <= predicted["duration_s"]["high"]
        # Placed, and shown what it was given.
        attempt = job["attempts"][0]
        assert len(attempt["devices"]) == predicted["devices"]
        seen = api.get(f"/jobs/{job['id']}/log").text
        assert seen == f"sees {','.join(map(str, attempt['devices']))} and 3 files\n"
        # Measured, beside what was predicted.
        result = attempt["result"]
        assert result["exit_code"] == 0
        assert result["steps"] == 25
        assert result["step_s"] == pytest.approx(0.05, rel=0.3)
        assert result["energy_j"] == pytest.approx(result["power_w"] * result["duration_s"], rel=0.01)
        assert result["simulated"]
        # And it joins the record, which says that it was simulated.
        runs = api.get("/record/runs").json()["runs"]
        assert [(run["family"], run["session"], run["simulated"]) for run in runs] == [("user", job["run"], True)]
        assert runs[0]["step_s"] == result["step_s"]
        assert math.isclose(runs[0]["step_energy_j"], result["power_w"] * result["step_s"])
        what = [entry["what"] for entry in api.get("/audit").json()["entries"]]
        assert what[:2] == ["submit", "add token"]


def test_a_power_budget_of_the_job_leaves_fast_settings_out(tmp_path, cards, mine):
    with served(tmp_path, cards) as (url, admin, _):
        (mine / "job.yaml").write_text(JOB.replace("1200W", "20W"))
        refused = wattsmith("submit", "job.yaml", url=url, token=admin, cwd=mine)
        assert refused.returncode == 2
        assert "power_budget: it draws" in refused.stderr
        (mine / "job.yaml").write_text(JOB.replace("2h", "1ms"))
        refused = wattsmith("submit", "job.yaml", url=url, token=admin, cwd=mine)
        assert "deadline" in refused.stderr


PLAIN = """
name: plain
command: [python, work.py]
steps: 40
step: 100ms
power: 300W
"""
WORK = """
import os, time
with open(os.path.join(os.environ["TRACES"], os.path.basename(os.environ["WATTSMITH_ATTEMPT"])), "a") as trace:
    trace.write("x")
time.sleep(4)
"""


def test_killed_in_the_middle_of_jobs_the_service_finds_them_again_and_runs_nothing_twice(tmp_path, cards):
    traces = tmp_path / "traces"
    traces.mkdir()
    (tmp_path / "data").mkdir()
    with served(tmp_path, cards) as (url, admin, process), asking(url, admin) as api:
        for _ in range(6):  # on four cards, so that two of them wait
            job = f"{PLAIN}environment: {{TRACES: {traces}}}\n"
            files = {"work.py": base64.b64encode(WORK.encode()).decode()}
            assert api.post("/jobs", json={"job": job, "files": files}).status_code == 201
        assert until(lambda: len(list(traces.iterdir())) >= 2)
        process.send_signal(signal.SIGKILL)
        process.wait()
    with served(tmp_path, cards) as (url, admin, _), asking(url, admin) as api:

        def over():
            jobs = api.get("/jobs").json()["jobs"]
            return jobs if all(job["state"] not in ("waiting", "starting", "running") for job in jobs) else None

        jobs = until(over)
        assert [(job["state"], job["reason"], len(job["attempts"])) for job in jobs] == 6 * [("done", None, 1)]
    assert [one.read_text() for one in traces.iterdir()] == 6 * ["x"]
