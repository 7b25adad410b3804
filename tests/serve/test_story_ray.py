"""The story on a Ray cluster of two nodes: one is killed in the middle, and so is the service.

The GPUs are simulated, each node's by a driver of its own; Ray, the service, its database and processes are real.
"""

import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import httpx
import pytest
from starlette.testclient import TestClient
from tests.serve.real_service import until

from wattsmith.flows.service import ServiceOptions, open_service
from wattsmith.flows.submitting import ready_job
from wattsmith.serve.app import ServeOptions, make_app
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import ExtraNeeded
from wattsmith.terms.service import JobState, Role

pytest.importorskip("ray", reason="THE STORY ON RAY IS NOT TOLD: Ray is not installed; see the extra `ray`")
pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and files to the collector
    pytest.mark.timeout(170),
]

WORK = """
import os, sys, time
def note(word):
    with open(os.path.join(os.environ["TRACES"], os.environ["WATTSMITH_JOB"]), "a") as trace:
        print(word, file=trace)
note("begun")
with open(os.environ["WATTSMITH_PROGRESS"], "w") as progress:
    for step in range(40):
        time.sleep(float(os.environ["STEP"]))
        print(time.time(), file=progress, flush=True)
note("done")
"""
FIGURES = "step: 100ms\npower: 300W\n"
CAPPED = "curve:\n  - {power_limit: 400W, step: 100ms, power: 300W}\n"
NET = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))

    def forward(self, rows):
        return self.layers(rows)
"""
MODEL = "model: net.py:Net\ninput: '256'\nbatch: 64\n"


class Machines:
    """A head, east, and west, which can be killed: two simulated cards each."""

    def __init__(self, folder, cluster_of):
        self._folder = folder
        self.cards = {name: SimulatedNvml.create(folder / name / "nvml", gpus=2) for name in ("east", "west")}
        for machine in self.cards.values():
            for card in range(2):
                machine.play(card, 0.5)
        self.cluster = cluster_of(
            initialize_head=True,
            head_node_args=self._node("east")
            | {
                "include_dashboard": False,
                # A node that was killed is noticed in 4 seconds, not in 15.
                "_system_config": {"health_check_period_ms": 1000, "health_check_failure_threshold": 3},
            },
        )
        self.add_west()

    def _node(self, name):
        state = {"XDG_STATE_HOME": str(self._folder / name / "state")}
        return {
            "node_name": name,
            "num_cpus": 8,
            "num_gpus": 2,
            "resources": {"wattsmith_kind:h200": 1},
            "env_vars": self.cards[name].environment() | state,
        }

    def add_west(self):
        self.west = self.cluster.add_node(**self._node("west"))

    def kill_west(self):
        self.cluster.remove_node(self.west, allow_graceful=False)


@pytest.fixture(scope="module")
def machines(tmp_path_factory):
    from ray.cluster_utils import Cluster

    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    with warnings.catch_warnings(), contextlib.redirect_stdout(None):
        warnings.simplefilter("ignore")
        try:
            both = Machines(tmp_path_factory.mktemp("cluster"), Cluster)
        except ExtraNeeded as no_compiler:
            pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    yield both
    both.cluster.shutdown()


@pytest.fixture
def traces(tmp_path):
    folder = tmp_path / "traces"
    folder.mkdir()
    return folder


def written(name, needs, traces, step_s=0.1):
    """A job file whose program takes 40 steps, and notes when it began and that it is done."""
    environment = f"environment: {{TRACES: '{traces}', STEP: '{step_s}'}}\n"
    return f"name: {name}\ncommand: [python, work.py]\nfiles: [work.py]\nsteps: 40\ncpus: 1\n{environment}{needs}"


def lines_of(traces):
    return {one.name: one.read_text().split() for one in traces.iterdir()}


def test_a_node_is_killed_and_its_jobs_run_again_on_the_other_and_nothing_twice(machines, tmp_path, traces):
    home = tmp_path / "home"
    options = ServiceOptions(
        db=str(home / "service.sqlite"), home=home, engine="ray", ray_address=machines.cluster.address
    )
    with open_service(options) as service:
        (tmp_path / "work.py").write_text(WORK)
        (tmp_path / "net.py").write_text(NET)
        ada, _ = service.add_token("ada", Role.SUBMIT, "tests")
        api = asking(service)

        def nodes():
            return {node["name"]: node for node in api.get("/pool").json()["nodes"]}

        assert {name: (node["kind"], node["count"], node["lost"]) for name, node in nodes().items()} == {
            "east": ("h200", 2, False),
            "west": ("h200", 2, False),
        }
        # Each node is measured and reports to the service, under its own name.
        until(lambda: {client.name for client in service.clients() if client.reports} == {"east", "west"})
        for name in ("east", "west"):
            about, latest = service.client(name).about, service.client(name).latest
            assert [(one.domain, one.simulated) for one in about.devices if one.domain.startswith("gpu")] == [
                ("gpu:0", True),
                ("gpu:1", True),
            ]
            assert {"gpu:0", "gpu:1"} <= set(latest.domains)

        # One with its structure, one that wants a power limit, others as they are: six on four cards.
        (tmp_path / "net.yaml").write_text(written("net", MODEL, traces))
        ready = ready_job(tmp_path / "net.yaml")
        key = service.keep_structure(ready.structure, ada)
        jobs = [service.submit(ready.written, files=ready.files, structure=key, by=ada)]
        for name, needs in [("capped", CAPPED), *((f"plain-{number}", FIGURES) for number in range(4))]:
            files = {"work.py": WORK.encode()}
            jobs.append(service.submit(written(name, needs, traces), files=files, by=ada))
        ids = {job.name: job.id for job in jobs}

        # The limit is set by the agent of the node where that job runs.
        def capped():
            return [
                (name, card)
                for name, machine in machines.cards.items()
                for card in range(2)
                if machine.setting(card).power_limit_w == pytest.approx(400.0)
            ]

        ((where, card),) = until(capped)
        assert ids["capped"] == nodes()[where]["devices"][card]["job"]
        until(lambda: service.client(where).latest.serial == service.schedule_for(where).serial)

        def on_west():
            there = {device["job"] for device in nodes()["west"]["devices"]} - {None}
            states = {service.job(one).state for one in there}
            return there if states == {JobState.RUNNING} and len(there) == 2 else None

        unlucky = until(on_west)
        machines.kill_west()
        assert until(lambda: nodes()["west"]["lost"])
        assert not nodes()["east"]["lost"]
        until(lambda: all(job.state.is_over for job in service.jobs()))

        jobs = service.jobs()
        assert {job.name: (job.state, job.reason) for job in jobs} == dict.fromkeys(ids, (JobState.DONE, None))
        for job in jobs:
            *lost, last = job.attempts
            assert (last.lost, last.result.exit_code, last.result.steps) == (None, 0, 40)
            if job.id in unlucky:
                assert [one.lost for one in lost] == ["its node west was lost"]
                assert (lost[0].node, last.node) == ("west", "east")
            else:
                assert lost == []
        lines = lines_of(traces)
        assert {name: words.count("done") for name, words in lines.items()} == dict.fromkeys(ids.values(), 1)
        assert {name: words.count("begun") for name, words in lines.items()} == {
            one: 2 if one in unlucky else 1 for one in ids.values()
        }
        # Measured on the node, beside what was predicted; the one with a structure has joined the record.
        net = service.job(ids["net"])
        assert net.attempts[-1].result.energy_j > 0
        assert net.attempts[-1].result.simulated
        assert [(run["session"], run["simulated"]) for run in service.record_runs()] == [(net.run, True)]
        # What was set is given back, where there is somebody to do it.
        until(lambda: machines.cards["east"].setting(0).power_limit_w > 400.0 and (where == "west" or not capped()))

        # The machine is back, and is used again.
        machines.add_west()
        until(lambda: not nodes()["west"]["lost"])
        before = service.client("west").reports
        until(lambda: service.client("west").reports > before)
    assert not any(name.startswith("agent") for name in actors(machines))


def asking(service):
    _, text = service.add_token("reader", Role.READ, "tests")
    app = make_app(service, ServeOptions(rate_hz=1e6, burst=1e6))
    return TestClient(app, base_url="http://localhost/api/v1", headers={"Authorization": f"Bearer {text}"})


def actors(machines):
    """Names of the actors that live."""
    import ray
    from ray.util import list_named_actors

    ray.init(address=machines.cluster.address, log_to_driver=False, namespace="wattsmith")
    try:
        return list_named_actors()
    finally:
        ray.shutdown()


@contextlib.contextmanager
def served(home, machines):
    """A real `wattsmith serve` on the cluster: its process, and a client with its admin's token."""
    command = [sys.executable, "-c", "from wattsmith.cli import main; main()", "serve", "--json", "--port", "0"]
    command += ["--home", str(home), "--engine", "ray", "--ray-address", machines.cluster.address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            said = json.loads(process.stdout.readline())
            headers = {"Authorization": f"Bearer {Path(said['admin_token']).read_text().strip()}"}
            with httpx.Client(base_url=f"{said['url']}/api/v1", headers=headers, timeout=30) as api:
                yield process, api
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def test_killed_in_the_middle_of_jobs_on_ray_the_service_finds_them_again_and_runs_nothing_twice(
    machines, tmp_path, traces
):
    files = {"work.py": base64.b64encode(WORK.encode()).decode()}
    with served(tmp_path / "home", machines) as (process, api):
        for number in range(6):  # on four cards, so that two of them wait
            job = written(f"plain-{number}", FIGURES, traces)
            assert api.post("/jobs", json={"job": job, "files": files}).status_code == 201
        until(lambda: len(lines_of(traces)) >= 2)
        until(lambda: {one["name"] for one in api.get("/clients").json()["clients"]} == {"east", "west"})
        process.send_signal(signal.SIGKILL)
        process.wait()
    with served(tmp_path / "home", machines) as (_, api):

        def over():
            jobs = api.get("/jobs").json()["jobs"]
            return jobs if all(job["state"] not in ("waiting", "starting", "running") for job in jobs) else None

        jobs = until(over)
        assert [(job["state"], job["reason"], len(job["attempts"])) for job in jobs] == 6 * [("done", None, 1)]
        # Agents outlive the service, and what they saw meanwhile is not lost: one start of each, without gaps.
        for name in ("east", "west"):
            reports = [one["report"] for one in api.get(f"/clients/{name}/telemetry").json()["reports"]]
            assert len({report["boot"] for report in reports}) == 1
            assert sorted(report["number"] for report in reports) == list(range(1, len(reports) + 1))
    assert list(lines_of(traces).values()) == 6 * [["begun", "done"]]
