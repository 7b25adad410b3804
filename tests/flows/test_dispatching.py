"""Jobs on their way through the dispatcher: on a real database, on machines that are simulated."""

import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as some
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from tests.flows.dispatching import AWAY, Killed, Pool

from wattsmith.schedule.deciding import why_over_budget
from wattsmith.sim.jobs import STOPPED
from wattsmith.store.opening import open_service_store
from wattsmith.terms.errors import Conflict, NoSuch, NotRead
from wattsmith.terms.jobs import Stage

pytest.importorskip("sqlalchemy", reason="THE DISPATCHER IS NOT TESTED: sqlalchemy is not installed")
OVER = {"done", "failed", "cancelled", "refused"}


# One after another


def test_a_job_is_written_down_begun_run_and_done(pool):
    job = pool.submit()
    assert (pool.state(job), list(pool.machines.orders)) == ("starting", [f"{job}.1"])
    pool.machines.run(f"{job}.1", steps=7.0)
    pool.tick()
    assert (pool.state(job), pool.job(job).steps) == ("running", 7.0)
    pool.machines.end(f"{job}.1")
    pool.tick()
    assert (pool.state(job), pool.done) == ("done", [job])
    assert pool.machines.orders[f"{job}.1"].files == {"a.py": b"1"}


def test_a_job_that_fails_runs_again_as_often_as_it_may(pool):
    job = pool.submit(retries=2)
    for number in (1, 2, 3):
        pool.machines.end(f"{job}.{number}", 9)
        pool.tick()
    assert (pool.state(job), pool.job(job).reason) == ("failed", "its command ended with 9")
    assert [one.result.exit_code for one in pool.job(job).attempts] == [9, 9, 9]


def test_attempts_that_were_lost_or_made_room_do_not_count_as_failures(narrow):
    job = narrow.submit(retries=1)
    narrow.machines.lose(f"{job}.1")
    narrow.tick()
    narrow.dispatcher.set_budget(50.0)
    narrow.machines.obey()
    narrow.tick()
    assert narrow.state(job) == "waiting"
    narrow.dispatcher.set_budget(1000.0)
    narrow.machines.end(f"{job}.3", 1)
    narrow.tick()
    assert narrow.state(job) == "starting"
    narrow.machines.end(f"{job}.4", 1)
    narrow.tick()
    assert narrow.state(job) == "failed"


def test_an_engine_that_refuses_fails_the_job_with_its_reason(pool):
    pool.machines.refusal = "there is no such command"
    job = pool.submit(retries=100)
    assert (pool.state(job), pool.job(job).reason) == ("failed", "there is no such command")


def test_what_the_pool_can_never_run_is_refused(pool):
    job = pool.submit(devices=3)
    assert pool.state(job) == "refused"
    assert "3 devices of one machine" in pool.job(job).reason
    other = pool.submit(kind="mi300x")
    assert "which the pool does not have" in pool.job(other).reason


def test_a_job_may_not_start_before_its_time(pool):
    job = pool.submit(release_s=1010.0)
    pool.tick(9.0)
    assert (pool.state(job), pool.job(job).reason) == ("waiting", "it may not start before 00:16:50 UTC")
    assert pool.now(job).waits_because == pool.job(job).reason
    pool.restart()
    pool.tick(1.0)
    assert pool.state(job) == "starting"


def test_a_job_comes_after_another_and_fails_with_it(pool):
    first = pool.submit("first")
    second = pool.submit("second", after=[first])
    third = pool.submit("third", after=[second])
    assert pool.job(second).reason == f"it comes after first ({first})"
    pool.machines.end(f"{first}.1", 1)
    pool.tick()
    pool.tick()
    assert [pool.state(job) for job in (first, second, third)] == ["failed", "failed", "failed"]
    assert pool.job(third).reason == f"second ({second}), which it comes after, failed"


def test_a_job_after_one_that_is_done_starts(pool):
    first = pool.submit("first")
    second = pool.submit("second", after=[first])
    pool.restart()
    pool.machines.end(f"{first}.1")
    pool.tick()
    pool.tick()
    assert pool.state(second) == "starting"


# Cancelled


def test_a_job_that_waits_is_cancelled_at_once(narrow):
    first, second, held = narrow.submit(), narrow.submit(), narrow.submit(release_s=2000.0)
    for job in (second, held):
        assert narrow.dispatcher.cancel(job, "kim").state == "cancelled"
    narrow.machines.end(f"{first}.1")
    narrow.tick(2000.0)
    assert list(narrow.machines.orders) == [f"{first}.1"]
    with pytest.raises(Conflict, match="cancelled already"):
        narrow.dispatcher.cancel(second, "kim")
    with pytest.raises(NoSuch):
        narrow.dispatcher.cancel("j-000099", "kim")


@pytest.mark.parametrize("running", [False, True])
@pytest.mark.parametrize("crash", [False, True])
def test_a_job_that_runs_is_stopped_and_then_cancelled(narrow, running, crash):
    job, other = narrow.submit(), narrow.submit()
    if running:
        narrow.machines.run(f"{job}.1")
        narrow.tick()
    assert narrow.dispatcher.cancel(job, "kim").state == "stopping"
    if crash:
        narrow.restart()
    narrow.tick()
    assert (narrow.state(job), narrow.state(other)) == ("stopping", "waiting")
    narrow.machines.obey()
    narrow.tick()
    assert (narrow.state(job), narrow.job(job).reason) == ("cancelled", "cancelled by kim")
    assert narrow.job(job).attempts[0].result.exit_code == STOPPED
    assert narrow.state(other) == "starting"


def test_killed_between_writing_that_a_job_stops_and_telling_it_the_next_one_tells_it(narrow):
    job = narrow.submit()
    narrow.store.fails(wait=2, late=True, kill=True)  # after: is there such a job, does it wait
    with pytest.raises(Killed):
        narrow.dispatcher.cancel(job, "kim")
    assert narrow.state(job) == "stopping"
    narrow.restart()
    narrow.tick()
    narrow.machines.obey()
    narrow.tick()
    assert narrow.state(job) == "cancelled"


def test_a_job_that_makes_room_can_be_cancelled(narrow):
    job = narrow.submit()
    narrow.dispatcher.set_budget(50.0)
    assert narrow.state(job) == "pausing"
    narrow.dispatcher.cancel(job, "kim")
    narrow.machines.obey()
    narrow.tick()
    narrow.dispatcher.set_budget(1000.0)
    narrow.tick()
    assert (narrow.state(job), len(narrow.machines.orders)) == ("cancelled", 1)


def test_a_job_that_is_being_cancelled_is_not_told_to_make_room_and_come_back(narrow):
    job = narrow.submit()
    narrow.dispatcher.cancel(job, "kim")
    narrow.dispatcher.set_budget(50.0)
    narrow.machines.obey()
    narrow.tick()
    narrow.dispatcher.set_budget(1000.0)
    narrow.tick()
    assert (narrow.state(job), len(narrow.machines.orders)) == ("cancelled", 1)


# Power


def test_jobs_make_room_when_the_budget_falls_and_go_on_when_it_rises(pool):
    jobs = [pool.submit() for _ in range(3)]
    pool.dispatcher.set_budget(210.0)
    assert Counter(pool.state(job) for job in jobs) == {"starting": 2, "pausing": 1}
    pool.machines.obey()
    pool.tick()
    assert Counter(pool.state(job) for job in jobs) == {"starting": 2, "waiting": 1}
    pool.dispatcher.set_budget(1000.0)
    assert {pool.state(job) for job in jobs} == {"starting"}
    assert len(pool.machines.live) == 3


def test_a_device_is_not_given_away_before_who_makes_room_has_left_it(narrow):
    first = narrow.submit()
    narrow.dispatcher.set_budget(50.0)
    narrow.dispatcher.set_budget(1000.0)
    second = narrow.submit()
    narrow.tick()
    assert narrow.machines.live == [f"{first}.1"]
    narrow.machines.obey()
    narrow.tick()
    narrow.tick()
    assert len(narrow.machines.live) == 1
    assert {narrow.state(first), narrow.state(second)} == {"starting", "waiting"}


def test_who_waits_gets_no_device_that_is_not_left_yet(tmp_path):
    pool = Pool(tmp_path / "service.sqlite", nodes=(("n0", 2),))
    jobs = [pool.submit(), pool.submit()]
    pool.dispatcher.set_budget(120.0)
    paused = next(job for job in jobs if pool.state(job) == "pausing")
    kept = next(job for job in jobs if job != paused)
    pool.machines.end(f"{kept}.1")
    pool.tick()
    pool.dispatcher.set_budget(1000.0)
    third = pool.submit()
    pool.tick()
    # The one that makes room goes on elsewhere once it has left, and the third gets what it left, or waits.
    assert pool.machines.live in ([f"{paused}.1"], [f"{paused}.1", f"{third}.1"])
    used = [place for one in pool.machines.live for place in pool.machines.orders[one].devices]
    assert len(used) == len(set(used))
    pool.machines.obey()
    pool.tick()
    assert sorted(pool.machines.live) == sorted([f"{paused}.2", f"{third}.1"])
    pool.close()


def test_what_a_cancelled_job_leaves_goes_to_the_next(narrow):
    first = narrow.submit()
    narrow.dispatcher.set_budget(50.0)
    narrow.dispatcher.cancel(first, "kim")
    second = narrow.submit()
    narrow.dispatcher.set_budget(1000.0)
    assert narrow.state(second) == "waiting"
    narrow.machines.obey()
    narrow.tick()
    assert (narrow.state(first), narrow.state(second)) == ("cancelled", "starting")


def test_told_to_make_room_a_job_that_ends_well_is_done(narrow):
    job = narrow.submit()
    narrow.dispatcher.set_budget(50.0)
    narrow.machines.end(f"{job}.1")
    narrow.tick()
    narrow.dispatcher.set_budget(1000.0)
    narrow.tick()
    assert (narrow.state(job), len(narrow.machines.orders)) == ("done", 1)


def test_told_to_make_room_a_job_that_saves_and_leaves_with_0_goes_on_later(narrow):
    job = narrow.submit()
    narrow.dispatcher.set_budget(50.0)
    narrow.machines.end(f"{job}.1", 0, "it was stopped", steps=9.0)
    narrow.tick()
    assert narrow.state(job) == "waiting"
    narrow.dispatcher.set_budget(1000.0)
    narrow.tick()
    assert (narrow.state(job), narrow.machines.live) == ("starting", [f"{job}.2"])


def test_told_to_make_room_a_job_that_had_told_all_its_steps_is_done(narrow):
    job = narrow.submit()  # of 100 steps
    narrow.dispatcher.set_budget(50.0)
    narrow.machines.end(f"{job}.1", 0, "it was stopped", steps=100.0)
    narrow.tick()
    assert narrow.state(job) == "done"


def test_a_job_that_took_too_long_has_failed_though_it_left_with_0(narrow):
    job = narrow.submit(retries=1)
    for attempt in (1, 2):
        narrow.machines.end(f"{job}.{attempt}", 0, "it took longer than 3 s")
        narrow.tick()
        narrow.tick()
    assert (narrow.state(job), narrow.job(job).reason) == (
        "failed",
        "its command ended with 0: it took longer than 3 s",
    )


def test_a_budget_that_is_lower_after_a_restart_holds(narrow):
    job = narrow.submit()
    narrow.machines.run(f"{job}.1")
    narrow.budget_w = 50.0
    narrow.restart()
    assert narrow.state(job) == "pausing"


def test_a_job_that_may_not_pause_runs_on_above_the_budget_and_the_pool_says_so(narrow):
    job = narrow.submit(pausable=False)
    narrow.machines.run(f"{job}.1")
    narrow.tick()
    narrow.dispatcher.set_budget(50.0)
    narrow.tick()
    assert (narrow.state(job), narrow.dispatcher.state.running[job].point.power_w) == ("running", 100.0)
    assert ("pool", "budget") in narrow.noticed
    assert why_over_budget(narrow.dispatcher.state).startswith("the pool draws 100 W, 50 W above its budget of 50 W")
    narrow.dispatcher.set_budget(150.0)
    assert why_over_budget(narrow.dispatcher.state) is None


# Machines


def test_jobs_of_a_lost_machine_run_again_elsewhere(pool):
    jobs = [pool.submit() for _ in range(4)]  # on three devices
    pool.machines.lose_node("n0")
    pool.tick()
    pool.tick(6.0)
    assert {pool.machines.look(one).node for one in pool.machines.live} == {"n1"}
    pool.machines.bring_back("n0")
    pool.tick()
    pool.tick()
    assert len(pool.machines.live) == 3
    assert sorted(len(pool.job(job).attempts) for job in jobs) in ([1, 1, 2, 2], [0, 1, 2, 2])
    assert all("n0 was lost" in one.lost for job in jobs for one in pool.job(job).attempts if one.ended_s is not None)


def test_a_machine_that_comes_back_after_a_restart_has_room_where_nothing_runs(pool):
    long = pool.submit(devices=2)
    assert pool.machines.look(f"{long}.1").node == "n0"
    pool.machines._lost.add("n0")  # it is not seen, and what runs there goes on
    pool.restart()
    pool.machines._lost.clear()
    pool.tick()
    others = [pool.submit() for _ in range(2)]
    assert sorted(pool.state(job) for job in others) == ["starting", "waiting"]


def test_a_job_that_was_taken_waits_for_machines_that_are_not_back_after_a_restart(pool):
    blocked = [pool.submit(devices=2), pool.submit(devices=2)]
    for name in ("n0", "n1"):
        pool.machines.lose_node(name)
    pool.restart()
    pool.tick()
    assert pool.job(blocked[1]).reason == "it runs on h200, which the pool does not have"
    pool.machines.bring_back("n0")
    pool.tick()
    pool.tick()
    assert sorted(pool.state(job) for job in blocked) == ["starting", "waiting"]


# The database


def test_nothing_is_begun_that_could_not_be_written_down(pool):
    job = pool.keep()
    pool.hand_on(job)
    pool.machines.end(f"{job.id}.1", 1)
    kept = pool.keep()
    pool.store.fails(wait=1, calls=1000)  # what it needs is written, and then nothing more
    with suppress(*AWAY):
        pool.hand_on(kept)
    for _ in range(3):
        with suppress(*AWAY):
            pool.tick()
    assert list(pool.machines.orders) == [f"{job.id}.1"]
    pool.store.fails(calls=0)
    pool.tick()
    pool.tick()
    assert (pool.state(job.id), pool.state(kept.id)) == ("failed", "starting")


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("wait", range(9))
def test_whichever_call_fails_a_job_starts_once(pool, wait, late):
    kept = pool.keep()
    pool.store.fails(wait=wait, late=late)
    with suppress(*AWAY):
        pool.hand_on(kept)
    pool.store.fails(calls=0)
    if pool.real.document("work", kept.id) is None:  # the service says 503, and is asked again
        pool.hand_on(kept)
    for _ in range(3):
        pool.tick()
    assert pool.state(kept.id) == "starting"
    assert len(pool.machines.live) == 1


def test_files_that_cannot_be_read_just_now_fail_no_job(pool):
    kept = pool.keep()
    read = pool.store._inner.job_files
    pool.real.job_files = lambda _job: (_ for _ in ()).throw(NotRead("away"))
    pool.hand_on(kept)
    pool.tick()
    assert (pool.state(kept.id), pool.machines.live) == ("starting", [])
    pool.real.job_files = read
    pool.tick()
    assert pool.machines.live == [f"{kept.id}.1"]


# Anything, in any order


class Anything(RuleBasedStateMachine):
    """Whatever happens, every job ends once, in one state; nothing runs twice; no device has two jobs."""

    template = None

    @initialize(nodes=some.sampled_from([(("n0", 1),), (("n0", 2), ("n1", 1)), (("n0", 3),)]), jobs=some.integers(0, 4))
    def begin(self, nodes, jobs):
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        path = Path(self.folder.name) / "service.sqlite"
        shutil.copy(_template(), path)
        self.nodes = dict(nodes)
        self.pool = Pool(path, nodes)
        self.jobs, self.unsent, self.cancelled = [], [], set()
        for _ in range(jobs):
            self.submit(devices=1, retries=1, after=False, wait=0)

    def attempt_to(self, call, *words, **more):
        """What a caller of the service does: an error is told; a process that died is started again."""
        try:
            call(*words, **more)
        except (*AWAY, Conflict):
            pass
        except Killed:
            self.pool.restart()

    @rule(
        devices=some.integers(1, 2),
        retries=some.integers(0, 1),
        after=some.booleans(),
        wait=some.sampled_from([0, 5]),
        pausable=some.booleans(),
        due_s=some.sampled_from([None, 20.0, 500.0]),
    )
    def submit(self, devices, retries, after, wait, pausable=True, due_s=None):
        largest = max((node.count for node in self.pool.dispatcher.state.nodes.values()), default=0)
        if not largest:
            return  # no machine is known: the service would not take it
        kept = self.pool.keep(retries=retries)
        how = {
            "devices": min(devices, largest),
            "after": [self.jobs[-1]] if after and self.jobs else [],
            "release_s": self.pool.clock() + wait if wait else None,
            "deadline_s": None if due_s is None else self.pool.clock() + due_s,
            "pausable": pausable,
        }
        self.jobs.append(kept.id)
        self.unsent.append((kept, how))
        self.attempt_to(self.pool.hand_on, kept, **how)

    @precondition(lambda self: self.jobs)
    @rule(data=some.data())
    def cancel(self, data):
        job = data.draw(some.sampled_from(self.jobs))
        self.cancelled.add(job)
        self.attempt_to(self.pool.dispatcher.cancel, job, "kim")

    @rule(after_s=some.sampled_from([0.5, 6.0]))
    def tick(self, after_s):
        self.attempt_to(self.pool.tick, after_s)
        # Whatever has happened, it can be said of every job how it stands.
        seen = self.pool.dispatcher.seen(self.pool.real.jobs(limit=1000))
        queued = [job for job in seen if job.state == "waiting" and job.id in self.pool.dispatcher.state.waiting]
        assert all(job.waits_because for job in queued)

    @rule(budget_w=some.sampled_from([50.0, 120.0, 220.0, 1000.0]))
    def rebudget(self, budget_w):
        self.pool.budget_w = budget_w
        self.attempt_to(self.pool.dispatcher.set_budget, budget_w)

    @rule(low_w=some.sampled_from([50.0, 120.0, 220.0]))
    def squeeze(self, low_w):
        """Power is short for a moment, too short for anybody to leave."""
        self.rebudget(low_w)
        self.rebudget(1000.0)

    @precondition(lambda self: self.pool.machines.live)
    @rule(data=some.data(), how=some.sampled_from(["run", "run", "done", "failed", "lost"]))
    def goes_on(self, data, how):
        machines = self.pool.machines
        attempt = data.draw(some.sampled_from(machines.live))
        {
            "run": lambda: machines.run(attempt, steps=3.0, power_w=150.0),
            "done": lambda: machines.end(attempt),
            "failed": lambda: machines.end(attempt, 1),
            "lost": lambda: machines.lose(attempt),
        }[how]()

    @rule()
    def obey(self):
        self.pool.machines.obey()

    @rule(data=some.data(), back=some.booleans())
    def machine(self, data, back):
        name = data.draw(some.sampled_from(sorted(self.nodes)))
        (self.pool.machines.bring_back if back else self.pool.machines.lose_node)(name)

    @rule()
    def crash(self):
        self.pool.restart()

    @rule(wait=some.integers(0, 8), calls=some.integers(1, 6), late=some.booleans(), kill=some.booleans())
    def database_fails(self, wait, calls, late, kill):
        self.pool.store.fails(wait=wait, calls=1 if kill else calls, late=late, kill=kill)

    @rule(late=some.booleans(), kill=some.booleans())
    def engine_fails(self, late, kill):
        self.pool.engine.fails(late=late, kill=kill)

    @invariant()
    def nothing_is_used_twice(self):
        if not hasattr(self, "pool"):
            return
        machines = self.pool.machines
        orders = [machines.orders[one] for one in machines.live]
        devices = Counter((one.node, place) for one in orders for place in one.devices)
        assert set(devices.values()) <= {1}, f"given to two: {devices}"
        names = Counter(one.attempt.rpartition(".")[0] for one in orders)
        assert set(names.values()) <= {1}, f"runs twice: {names}"
        written = {one.id for job in self.jobs for one in self.pool.job(job).attempts}
        assert set(machines.orders) <= written

    @invariant()
    def who_may_not_pause_is_not_told_to(self):
        for job in getattr(self, "jobs", []):
            assert self.pool.works[job].pausable or self.pool.state(job) != "pausing"

    def teardown(self):
        if not hasattr(self, "pool"):
            return
        try:
            self.settle()
            self.check()
        finally:
            self.pool.close()
            self.folder.cleanup()

    def settle(self):
        """Everything works again, and every command ends well."""
        pool = self.pool
        pool.store.fails(calls=0)
        pool.engine.fails(calls=0)
        for name in self.nodes:
            pool.machines.bring_back(name)
        for kept, how in self.unsent:
            if pool.real.document("work", kept.id) is None and pool.state(kept.id) == "waiting":
                pool.hand_on(kept, **how)  # who was told 503 asks again
        pool.dispatcher.set_budget(1e6)
        for _ in range(60 + 8 * len(self.jobs)):
            pool.machines.obey()
            for attempt in pool.machines.live:
                pool.machines.end(attempt)
            pool.tick(2.0)
            self.nothing_is_used_twice()
            if pool.states() <= OVER:
                return

    def check(self):
        pool = self.pool
        for job in map(pool.job, self.jobs):
            assert str(job.state) in OVER, f"{job.id} is {job.state}: {job.reason}"
            assert all(one.ended_s is not None for one in job.attempts)
            well = [one for one in job.attempts if one.result is not None and one.result.exit_code == 0]
            assert len(well) <= 1, f"{job.id} was done twice"
            begun = [one for one in job.attempts if one.id in pool.machines.orders]
            for one in begun:
                ended = pool.machines.look(one.id).stage is Stage.ENDED
                assert ended == (one.result is not None), f"{one} is not accounted for"
            if job.state == "done":
                assert well == [job.attempts[-1]]
            elif job.state == "cancelled":
                assert job.id in self.cancelled
            elif job.state == "failed" and "comes after" not in (job.reason or ""):
                failures = [one for one in begun if one.result is not None and one.result.exit_code == 1]
                assert len(failures) == job.retries + 1, f"{job}"
            assert job.state != "refused"
        assert not pool.dispatcher.state.running
        assert not pool.machines.live


def _template():
    if Anything.template is None:
        folder = tempfile.TemporaryDirectory()
        path = Path(folder.name) / "empty.sqlite"
        open_service_store(path).close()
        Anything.template = (folder, path)
    return Anything.template[1]


TestAnything = Anything.TestCase
TestAnything.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
