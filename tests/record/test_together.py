"""Data-parallel points: replicas in step, on gloo with two processes."""

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from wattsmith.record.bench import Effort
from wattsmith.record.families import workload_of
from wattsmith.record.runner import Point, Runner
from wattsmith.record.together import GRANTS, Leading, follow
from wattsmith.record.worker import Worker
from wattsmith.terms.facts import as_plain
from wattsmith.terms.run import Status

WORKER = [
    *(sys.executable, "-m", "wattsmith.flows.record_worker", "--device", "cpu", "--meters", "auto", "--session", "s"),
    *("--effort", json.dumps(as_plain(Effort(window_s=0.3, point_s=0.6)))),
]


def mlp(devices):
    return Point(workload=workload_of("mlp", batch=4, parameters={}, optimizer="sgd", devices=devices))


class Counted:
    def __init__(self):
        self.steps = 0

    def step(self):
        self.steps += 1

    def close(self):
        pass


@pytest.mark.parametrize("steps", [0, 1, 3, 17, 100])
def test_all_replicas_take_the_same_number_of_steps(steps):
    words, first, other = [], Counted(), Counted()
    leading = Leading(first, words.append)
    for _ in range(steps):
        leading.step()
    leading.close()
    heard = iter(words)
    assert follow(other, lambda: next(heard)) == other.steps == first.steps
    assert steps <= first.steps < steps + max(GRANTS)


@pytest.fixture(scope="module")
def started():
    return []


@pytest.fixture(scope="module")
def runner(started):
    def start():
        started.append(Worker(WORKER))
        return started[-1]

    runner = Runner(start, point_s=0.6)
    yield runner
    runner.close()


def test_two_replicas_are_measured_as_one_point(runner):
    together = runner.measure(mlp(2))
    assert together.status is Status.MEASURED, together.reason
    assert together.workload.devices == 2
    assert together.times.steps >= 2


def test_a_replica_that_is_killed_is_a_failed_point_and_the_next_is_measured(runner, started):
    assert runner.measure(mlp(2)).status is Status.MEASURED
    worker = started[-1].pid
    (follower,) = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    os.kill(int(follower), signal.SIGKILL)
    failed = runner.measure(mlp(2))
    assert failed.status is Status.CRASHED
    assert "replica" in failed.reason
    assert runner.measure(mlp(1)).status is Status.MEASURED
    assert runner.measure(mlp(2)).status is Status.MEASURED
