"""Jobs as they are accepted: what can be told of them before they run, and what cannot."""

import pytest

pytest.importorskip("sqlalchemy", reason="JOBS OF A SERVICE ARE NOT TESTED: sqlalchemy is not installed")
pytest.importorskip("torch", reason="JOBS OF A SERVICE ARE NOT TESTED: torch is not installed")

from wattsmith.flows.job_joining import Joining
from wattsmith.flows.service import ServiceOptions, open_service
from wattsmith.flows.submitting import ready_job
from wattsmith.sim.jobs import SimulatedJobEngine
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.schedule import PoolNode
from wattsmith.terms.service import Role

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = torch.nn.Linear(64, 10)
    def forward(self, image):
        return self.scores(image)
"""
JOB = """
name: digits
command: [python, net.py]
files: [net.py]
model: net.py:Net
input: [64]
batch: 8
samples: 80
"""


@pytest.fixture
def machines():
    return SimulatedJobEngine([PoolNode(name="here", kind="cpu", count=2)])


@pytest.fixture
def service(tmp_path, machines):
    """A service on a CPU of which there is neither a record nor a meter."""
    options = ServiceOptions(db=str(tmp_path / "service.sqlite"), home=tmp_path / "home", watch=False)
    with open_service(options, engine=machines) as opened:
        yield opened


@pytest.fixture
def submit(service, tmp_path):
    admin, _ = service.add_token("admin", Role.ADMIN, "a test")

    def submitted(more="", job=JOB):
        (tmp_path / "net.py").write_text(NET)
        (tmp_path / "job.yaml").write_text(job + more)
        ready = ready_job(tmp_path / "job.yaml")
        key = None if ready.structure is None else service.keep_structure(ready.structure, admin)
        return service.submit(ready.written, files=ready.files, structure=key, by=admin)

    return submitted


def test_a_model_runs_on_a_cpu_that_nobody_has_measured_and_its_prediction_says_unknown(service, submit):
    job = submit()
    assert job.state == "starting"
    told = job.predicted
    assert (told.duration_s, told.energy_j, told.power_w, told.step_s, told.standing) == (
        None,
        None,
        None,
        None,
        "unknown",
    )
    assert (told.steps, told.device) == (10.0, "cpu")
    assert "state its step and power, or measure first" in told.reasons[0]
    assert "wattsmith record run --preset smoke --device cpu --record" in told.reasons[0]
    assert service.pool()["power_unknown_of"] == [job.id]
    assert (job.ends_s, job.late_by_s) == (None, None)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("deadline: 1h\n", "line 9, deadline: nobody can say whether it is met: no record tells"),
        ("power_budget: 90W\n", "line 9, power_budget: nobody can say whether it is kept: no record tells"),
    ],
)
def test_a_limit_that_nobody_can_judge_is_refused_with_the_ways_out(submit, more, said):
    with pytest.raises(BadInput, match=said) as refused:
        submit(more)
    assert "state its step and power, or measure first" in str(refused.value)


def test_under_a_budget_of_the_pool_what_nobody_can_judge_is_refused_or_waits(service, submit, machines):
    first, second, third = submit(), submit(), submit()
    admin = service.tokens()[0]
    service.set_budget(500.0, admin)
    with pytest.raises(BadInput, match="the pool has a budget of 500 W, and nobody can say whether it is kept"):
        submit()
    machines.end(f"{first.id}.1")
    machines.end(f"{second.id}.1")
    with service._lock:
        service._dispatcher.tick()
    waits = service.job(third.id)
    assert (waits.state, waits.waits_because) == (
        "waiting",
        "waits: nobody knows what it draws, and the pool has a budget of 500 W; state its step and power, or lift the "
        "budget",
    )
    service.set_budget(None, admin)
    assert service.job(third.id).state == "starting"


def test_a_pool_says_whose_idle_power_a_budget_does_not_count(service):
    assert service.pool()["idle_unknown_because"].startswith("what devices of here (2 × cpu) draw while they idle is")


def test_stated_figures_are_taken_where_nothing_was_measured(submit):
    job = submit("step: 10ms\npower: 30W\ndeadline: 1h\npower_budget: 90W\n")
    assert job.predicted.duration_s.value == pytest.approx(0.1)


class FullDisk:
    """A record that nothing can join, until there is room."""

    def __init__(self, record):
        self.record, self.room = record, False

    def add(self, run):
        if not self.room:
            raise NotWritten("the disk is full")
        self.record.add(run)


def test_what_kept_a_job_from_joining_the_record_is_told_until_it_has_joined(service, submit, machines):
    record = FullDisk(service._record)
    service._joining = Joining(
        store=service._store,
        jobs=service._jobs,
        record=record,
        estimates=service._estimates,
        kind_of=service._kind_of,
        notice=service._events.add,
    )
    job = submit()
    machines.end(f"{job.id}.1", steps=10.0, step_s=0.1)
    for _ in range(2):
        with service._lock:
            service._dispatcher.tick()
        said = "its run did not join the record, and is tried again: the disk is full"
        assert (service.job(job.id).trouble, service.jobs()[0].trouble) == (said, said)
    record.room = True
    service._joining.join_those_left()
    joined = service.job(job.id)
    assert (joined.trouble, joined.run) == (None, f"job {job.id} {joined.submitted_s:.3f}")
