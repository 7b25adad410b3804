"""No point takes the run down: it hangs, crashes or is killed, and the next one is measured."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from wattsmith.record.runner import Point, Runner, one_at_a_time, take_record
from wattsmith.record.worker import Worker, WorkerDied, WorkerHung
from wattsmith.terms.errors import BadInput, WattsmithError
from wattsmith.terms.run import Status
from wattsmith.terms.work import Workload

ACTOR = str(Path(__file__).with_name("acting_worker.py"))


def point(family, batch=1):
    return Point(workload=Workload(family=family, parameters={}, batch=batch))


@pytest.fixture
def started():
    """The workers that were started, newest last."""
    return []


@pytest.fixture
def runner(started):
    def start():
        started.append(Worker([sys.executable, ACTOR]))
        return started[-1]

    runner = Runner(start, point_s=0.0, hang_s=1.0)
    yield runner
    runner.close()


def test_one_worker_measures_many_points(runner, started):
    runs = [runner.measure(point("good", batch)) for batch in (1, 2, 4)]
    assert [run.status for run in runs] == [Status.MEASURED] * 3
    assert [run.workload.batch for run in runs] == [1, 2, 4]
    assert len(started) == 1


@pytest.mark.parametrize(
    ("family", "status", "reason"),
    [
        ("hangs", Status.HUNG, "no answer in 1 s"),
        ("is killed", Status.KILLED, "SIGKILL, as the kernel does when the host runs out of memory"),
        ("segfaults", Status.KILLED, "SIGSEGV"),
        ("exits", Status.CRASHED, "exit code 3; it said last: assertion failed somewhere deep"),
    ],
)
def test_a_point_that_takes_its_worker_along_is_a_result_and_the_next_one_is_measured(
    runner, started, family, status, reason
):
    failed = runner.measure(point(family))
    assert failed.status is status
    assert reason in failed.reason
    assert runner.measure(point("good")).status is Status.MEASURED
    assert len(started) == 2


def test_a_worker_killed_between_two_points_is_replaced(runner, started):
    runner.measure(point("good"))
    os.kill(started[0].pid, signal.SIGKILL)
    time.sleep(0.1)
    assert runner.measure(point("good")).status is Status.KILLED
    assert runner.measure(point("good")).status is Status.MEASURED


def test_a_worker_whose_device_broke_is_replaced(runner, started):
    assert runner.measure(point("wears out")).status is Status.MEASURED
    runner.measure(point("good"))
    assert len(started) == 2


def test_an_answer_that_makes_no_sense_is_a_failed_point(runner, started):
    failed = runner.measure(point("talks nonsense"))
    assert failed.status is Status.CRASHED
    assert "must have times and consumption" in failed.reason
    runner.measure(point("good"))
    assert len(started) == 1


def test_a_worker_that_refuses_says_why():
    runner = Runner(lambda: Worker([sys.executable, ACTOR, "refuse"]), point_s=0.0)
    with pytest.raises(BadInput, match="there is no GPU"):
        runner.measure(point("good"))


def test_a_worker_that_never_comes_up_ends_the_run_with_what_it_said():
    runner = Runner(lambda: Worker([sys.executable, ACTOR, "die"]), point_s=0.0)
    with pytest.raises(WattsmithError, match=r"3 times in a row.*no torch here"):
        runner.measure(point("good"))


def test_a_mute_worker_is_not_waited_for_forever():
    worker = Worker([sys.executable, ACTOR, "mute"])
    with pytest.raises(WorkerHung):
        worker.answer(timeout_s=0.2)
    with pytest.raises(ProcessLookupError):
        os.kill(worker.pid, 0)


def test_what_a_worker_started_dies_with_it():
    program = "import subprocess, time; print(subprocess.Popen(['sleep', '1000']).pid, flush=True); time.sleep(1000)"
    worker = Worker([sys.executable, "-c", program])
    grandchild = worker.answer(timeout_s=30.0)
    worker.kill()
    time.sleep(0.2)
    status = Path(f"/proc/{grandchild}/status")
    assert not status.exists() or "Z (zombie)" in status.read_text()


def test_a_dead_worker_cannot_be_asked():
    worker = Worker([sys.executable, "-c", "pass"])
    time.sleep(0.5)
    with pytest.raises(WorkerDied):
        worker.ask({}, timeout_s=5.0)


# ---- a whole record


def take(points, runner, **options):
    kept = []
    told = []
    facts = {"lock": "test-stage", "known": lambda _: False, "keep": kept.append, "tell": told.append}
    progress = take_record(points, runner, **facts | options)
    return kept, told, progress


def test_every_point_is_kept_as_soon_as_it_is_there(runner):
    kept, told, progress = take([point("good"), point("hangs"), point("good", 2)], runner)
    assert [run.status for run in kept] == [Status.MEASURED, Status.HUNG, Status.MEASURED]
    assert (progress.done, progress.measured, progress.failed) == (3, 2, 1)
    assert [p.done for p in told] == [0, 1, 2, 3]
    assert progress.inside_s == 4.0


def test_what_is_known_is_passed_over(runner):
    known = {point("good", 1).workload.key, point("good", 4).workload.key}
    points = [point("good", batch) for batch in (1, 2, 4)]
    kept, _, progress = take(points, runner, known=lambda p: p.workload.key in known)
    assert [run.workload.batch for run in kept] == [2]
    assert progress.done == 3


def test_a_record_ends_when_its_time_is_spent(runner):
    kept, _, progress = take([point("slow", batch) for batch in range(1, 50)], runner, budget_s=1.5)
    assert 2 <= len(kept) <= 6
    assert progress.remaining_s is not None


def test_two_records_on_one_device_take_turns():
    inside = []

    def work(name):
        for _ in range(5):
            with one_at_a_time("test-turns"):
                inside.append(name)
                time.sleep(0.01)
                assert inside[-1] == name

    threads = [threading.Thread(target=work, args=(n,)) for n in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(inside) == 10


def test_killing_the_parent_loses_at_most_the_point_being_measured(tmp_path):
    """kill -9 of the parent at several moments; what it had kept is on disk."""
    log = tmp_path / "kept"
    program = f"""
import sys
from tests.record.test_runner import ACTOR, Runner, Worker, point, take_record
runner = Runner(lambda: Worker([sys.executable, ACTOR]), point_s=0.0, hang_s=5.0)
log = open({str(log)!r}, "a", buffering=1)
take_record([point("slow", b) for b in range(1, 100)], runner, lock="test-kill", known=lambda _: False,
    keep=lambda run: log.write(f"{{run.workload.batch}}\\n"), tell=lambda p: print(p.done, flush=True))
"""
    parent = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    seen = [parent.stdout.readline() for _ in range(4)]
    assert seen[-1] == "3\n"
    time.sleep(0.1)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert log.read_text().splitlines()[:3] == ["1", "2", "3"]
