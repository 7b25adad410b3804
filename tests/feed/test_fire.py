"""Exactly once, under fire: killed, stopped and resized workers, and a trainer that is killed itself."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from tests.feed.sets import Chancy, Deadly, Parent, Shards, Slow, Uneven, alive, all_gone, digest

from wattsmith import Feeder

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.timeout(120),
]
BATCHES = 150


def feeder_of(workers, **how):
    return Feeder(Chancy(BATCHES * 2, sleep_s=0.001), 2, shuffle=True, seed=1, num_workers=workers, **how)


@pytest.fixture(scope="module")
def undisturbed():
    return digest(feeder_of(0))


class Storm:
    """Kills a worker of FEEDER every so often, at most MOST times."""

    def __init__(self, feeder, every_s, most=25):
        self._feeder, self._every_s, self._most = feeder, every_s, most
        self.kills = 0
        self.pids = set()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._rage)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._over.set()
        self._thread.join()

    def _rage(self):
        while self.kills < self._most and not self._over.wait(self._every_s):
            engine = self._feeder._engine and self._feeder._engine()
            workers = engine.workers if engine else []
            if workers:
                pid = workers[self.kills % len(workers)].pid
                self.pids.add(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
                    self.kills += 1


@pytest.mark.parametrize(("workers", "every_s"), [(1, 0.05), (2, 0.05), (3, 0.02)])
def test_a_storm_of_kills_changes_nothing_in_the_stream(undisturbed, workers, every_s):
    feeder = feeder_of(workers)
    with Storm(feeder, every_s) as storm:
        assert digest(feeder) == undisturbed
    assert storm.kills >= 3
    assert feeder.report().lost > 0
    assert all_gone(list(storm.pids))


def test_shards_survive_a_storm_too():
    feeder = Feeder(Shards(120, 0.001), 2, num_workers=2, seed=1)
    with Storm(feeder, 0.05, most=8) as storm:
        got = digest(feeder)
    assert storm.kills > 1
    assert got == digest(Feeder(Shards(120), 2, num_workers=2, seed=1))


def test_a_worker_lost_behind_the_end_of_its_shard_leaves_nothing_out_of_the_next_epoch():
    feeder = Feeder(Uneven(0), 1, num_workers=2, persistent_workers=True)

    def disturbed():
        for number, batch in enumerate(feeder):
            if number == 2:  # the first worker has nothing more to give, and the trainer waits for the second
                threading.Timer(0.2, os.kill, (feeder._engine().workers[0].pid, signal.SIGKILL)).start()
            yield batch

    for epoch in (disturbed(), feeder):
        assert [batch.item() for batch in epoch] == [1, 101, 2, 102, 103, 104, 105, 106]
    assert feeder.report().lost == 1
    feeder.close()


def test_growing_and_shrinking_changes_nothing_in_the_stream(undisturbed):
    feeder = feeder_of(1)
    steps, counts = {30: 4, 70: 2, 110: 1}, []

    def resized():
        for number, batch in enumerate(feeder):
            if number in steps:
                feeder.resize(steps[number])
                counts.append(feeder.report().workers)
            yield batch

    assert digest(resized()) == undisturbed
    assert counts == [4, 2, 1]


def test_resizing_in_a_storm_changes_nothing_in_the_stream(undisturbed):
    feeder = feeder_of(2)

    def resized():
        for number, batch in enumerate(feeder):
            if number % 40 == 20:
                feeder.resize(1 + number // 40 % 3)
            yield batch

    with Storm(feeder, 0.04):
        assert digest(resized()) == undisturbed


def test_a_stopped_worker_is_replaced_and_what_it_sends_late_is_dropped(undisturbed):
    feeder = feeder_of(2, lease_s=0.3)
    stopped = []

    def watched():
        for number, batch in enumerate(feeder):
            if number == 20:
                stopped.append(feeder._engine().workers[0].pid)
                os.kill(stopped[0], signal.SIGSTOP)
            if number == 60:
                os.kill(stopped[0], signal.SIGCONT)
            if number > 60:
                time.sleep(0.002)  # so that it still finds somebody to send to
            yield batch

    assert digest(watched()) == undisturbed
    report = feeder.report()
    assert (report.late, report.batches) == (1, BATCHES)
    assert report.dropped >= 1
    assert all_gone(stopped)


def test_a_worker_that_stays_stopped_does_not_outlive_the_epoch(undisturbed):
    feeder = feeder_of(2, lease_s=0.3)
    stopped = []

    def watched():
        for number, batch in enumerate(feeder):
            if number == 20:
                stopped.append(feeder._engine().workers[1].pid)
                os.kill(stopped[0], signal.SIGSTOP)
            yield batch

    assert digest(watched()) == undisturbed
    assert all_gone(stopped)


def test_workers_that_stand_still_on_all_the_memory_are_killed_and_those_that_wait_for_it_are_not_late():
    feeder = Feeder(Chancy(40, side=128), 2, seed=1, num_workers=2, memory_limit_bytes=150_000, lease_s=0.3)
    stopped = []

    def watched():
        for number, batch in enumerate(feeder):
            if number == 5:
                stopped.extend(worker.pid for worker in feeder._engine().workers)
                for pid in stopped:
                    os.kill(pid, signal.SIGSTOP)
            yield batch

    assert digest(watched()) == digest(Feeder(Chancy(40, side=128), 2, seed=1))
    assert feeder.report().late == 2
    assert all_gone(stopped)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_is_killed_or_stopped_as_it_leaves_has_its_batches_made_by_one_who_is_busy(how):
    feeder = Feeder(Slow(8, 0.1), num_workers=2, lease_s=0.5)
    iterator = iter(feeder)
    got = [next(iterator)]
    leaving = feeder._engine().workers[1].pid
    feeder.resize(1)
    os.kill(leaving, how)
    assert [int(batch) for batch in got + list(iterator)] == list(range(8))
    assert all_gone([leaving])


def test_a_kill_while_the_user_holds_batches_does_not_touch_them():
    feeder = feeder_of(1)
    iterator = iter(feeder)
    kept = [next(iterator) for _ in range(10)]
    before = digest(kept)
    os.kill(feeder._engine().workers[0].pid, signal.SIGKILL)
    for _ in range(30):
        next(iterator)
    assert digest(kept) == before


def test_slots_of_tasks_that_nobody_waits_for_come_back_from_the_dead():
    feeder = Feeder(Chancy(400, side=128), 2, num_workers=1, persistent_workers=True)
    for _ in range(6):
        iterator = iter(feeder)
        next(iterator)
        next(iterator)
        iter(feeder)  # breaks off, with tasks on their way
        os.kill(iterator._workers[0].pid, signal.SIGKILL)
    assert sum(1 for _ in feeder) == 200
    slots = iterator._engine._places.slots
    assert slots.used_bytes <= 8 * 2 * 128 * 128 * 4 * 9 / 8


def test_a_worker_is_missed_though_a_child_of_its_own_lives_on(tmp_path):
    feeder = Feeder(Parent(tmp_path), 2, num_workers=1)
    try:
        assert [batch.tolist() for batch in feeder] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    finally:
        (child,) = (int(path.name) for path in tmp_path.iterdir())
        os.kill(child, signal.SIGKILL)
    assert feeder.report().lost == 1


@pytest.mark.parametrize("ends_by", [signal.SIGKILL, signal.SIGSEGV])
def test_a_batch_that_kills_every_worker_is_named(ends_by):
    feeder = Feeder(Deadly(12, 7, ends_by), 2, num_workers=2)
    got = []
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid.*exited unexpectedly.*samples \[6, 7\]"):
        got += [batch.tolist() for batch in feeder]
    assert feeder.report().lost >= 3


def test_behind_a_batch_that_kills_every_worker_there_is_nothing_more():
    iterator = iter(Feeder(Deadly(2, 0, signal.SIGSEGV), num_workers=1))
    for _ in range(2):
        with pytest.raises(RuntimeError, match="is killed by signal: Segmentation fault"):
            next(iterator)


TRAINER = """
import json, os, sys, time
sys.path.insert(0, os.getcwd())
from tests.feed.sets import Chancy
from tests.feed.test_fire import feeder_of
import hashlib
feeder = feeder_of(int(sys.argv[1]))
if len(sys.argv) > 3:
    feeder.load_state_dict(json.loads(sys.argv[3]))
iterator = iter(feeder)
for number, batch in enumerate(iterator):
    parts = b"".join(part.numpy().tobytes() for part in batch)
    pids = [worker.pid for worker in iterator._workers]
    print(json.dumps([hashlib.sha256(parts).hexdigest(), feeder.state_dict(), pids]), flush=True)
    if number + 1 == int(sys.argv[2]):
        time.sleep(60)
"""


def trainer(workers, stop_at, *state):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", TRAINER, str(workers), str(stop_at), *state],
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )


def named_memory_of(pids):
    """Shared memory with a name, which stays when processes are killed. Others' is not looked at: they come and go."""
    maps = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return [line for line in maps if "/dev/shm/" in line and not line.endswith("(deleted)")]


def test_a_killed_trainer_leaves_nothing_behind_and_another_goes_on_where_it_was():
    first = trainer(3, 40)
    lines = [json.loads(first.stdout.readline()) for _ in range(40)]
    workers = lines[-1][2]
    assert all(map(alive, workers))
    assert named_memory_of([first.pid, *workers]) == []
    first.kill()
    first.wait()
    first.stdout.close()
    assert all_gone(workers)
    second = trainer(1, 0, json.dumps(lines[-1][1]))
    said, _ = second.communicate()
    lines += [json.loads(line) for line in said.splitlines()]
    assert second.returncode == 0
    expected = [digest([batch]) for batch in feeder_of(0)]
    assert [line[0] for line in lines] == expected


def test_a_trainer_leaves_though_a_worker_that_was_replaced_stands_still():
    code = (
        "import os, signal, sys; sys.path.insert(0, os.getcwd())\n"
        "from tests.feed.sets import Slow; from wattsmith import Feeder\n"
        "feeder = Feeder(Slow(40, 0.01), num_workers=1, persistent_workers=True, lease_s=0.2)\n"
        "for number, _ in enumerate(feeder):\n"
        "    if number == 3: os.kill(feeder._engine().workers[0].pid, signal.SIGSTOP)\n"
        "print(feeder.report().late)"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
        timeout=30,
        check=True,
    )
    assert said.stdout == b"1\n"


def test_a_worker_that_is_stuck_dies_with_its_trainer(tmp_path):
    code = (
        "import os, sys; sys.path.insert(0, os.getcwd())\n"
        "from tests.feed.sets import Slow; from wattsmith import Feeder; from pathlib import Path\n"
        "next(iter(Feeder(Slow(9, 60.0, Path(sys.argv[1])), num_workers=2)))"
    )
    stuck = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=Path(__file__).parents[2])
    while len(list(tmp_path.iterdir())) < 2:
        time.sleep(0.02)
    stuck.kill()
    stuck.wait()
    assert all_gone([int(path.name) for path in tmp_path.iterdir()])


def children():
    alive = [one for one in psutil.Process().children(recursive=True) if one.status() != psutil.STATUS_ZOMBIE]
    return {one.pid for one in alive}


@pytest.fixture(scope="module", autouse=True)
def others():
    """Processes that were here before these tests."""
    return children()


def test_after_all_of_this_no_process_is_left(others):
    Feeder(Slow(2, 0.0), num_workers=1)
    assert all_gone(sorted(children() - others))
