"""How jobs stand at this moment: what they wait for, whether they are late, what they have used."""

from contextlib import suppress

import pytest
from tests.flows.dispatching import AWAY, Pool

from wattsmith.flows.job_now import first_seen
from wattsmith.terms.energy import Source

pytest.importorskip("sqlalchemy", reason="THE DISPATCHER IS NOT TESTED: sqlalchemy is not installed")


# What a job waits for, in figures


def test_a_job_waits_for_devices_for_power_or_for_the_machine(narrow):
    first, second = narrow.submit(), narrow.submit()
    assert narrow.now(first).waits_because is None
    assert narrow.now(second).waits_because == "waits for devices: needs 1 h200, 0 of 1 on n0 are free"
    narrow.machines.lose_node("n0")
    narrow.tick()
    assert narrow.now(second).waits_because == "waits for a machine: it runs on h200, and n0 is lost"


def test_a_job_waits_for_power_and_says_how_much(pool):
    first = pool.submit(pausable=False)
    pool.dispatcher.set_budget(250.0)
    second = pool.submit()
    assert pool.now(second).waits_because == "waits for power: needs 100 W, 50 W of the budget of 250 W are free"
    pool.machines.end(f"{first}.1")
    pool.dispatcher.set_budget(80.0)
    pool.tick()
    assert pool.now(second).waits_because == (
        "waits for power: needs 100 W, and the budget of 80 W has 80 W for jobs: it cannot start before the budget is "
        "raised"
    )


def test_a_job_waits_for_the_machine_with_enough_memory(tmp_path):
    pool = Pool(tmp_path / "service.sqlite", nodes=(("small", 1), ("large", 1)), memory={"small": 16, "large": 80})
    pool.machines.lose_node("large")
    pool.tick()
    job = pool.submit(memory=40.0 * 2**30)
    assert pool.now(job).waits_because == (
        "waits for memory: needs 40 GiB of each device, and the largest h200 that is there has 16 GiB"
    )
    pool.close()


def test_a_job_far_behind_waits_for_its_turn(narrow):
    jobs = [narrow.submit() for _ in range(19)]  # the first one runs
    assert narrow.now(jobs[-1]).waits_because == "waits for its turn: 17 jobs are before it"


def test_what_a_job_came_after_is_no_reason_any_more_when_that_is_done(narrow):
    first = narrow.submit("first")
    second = narrow.submit("second", after=[first])
    other = narrow.submit("other")
    assert narrow.now(second).waits_because == f"it comes after first ({first})"
    narrow.machines.end(f"{first}.1")
    narrow.tick()
    assert narrow.state(other) == "starting"
    assert narrow.job(second).reason is None
    assert narrow.now(second).waits_because.startswith("waits for devices")


# Deadlines, progress, energy


def test_a_job_that_waits_too_long_for_its_deadline_is_late_and_is_not_killed(narrow):
    first = narrow.submit()
    second = narrow.submit(deadline_s=1150.0)  # 100 steps, one a second
    assert narrow.now(second).late_by_s is None
    narrow.tick(60.0)
    assert narrow.now(second).late_by_s == 10.0
    assert narrow.dispatcher.late == {second}
    assert narrow.noticed.count(("late", second)) == 1
    narrow.tick(1.0)
    assert narrow.noticed.count(("late", second)) == 1
    narrow.machines.end(f"{first}.1")
    narrow.tick(9.0)
    assert narrow.state(second) == "starting"
    narrow.machines.end(f"{second}.1")
    narrow.tick(100.0)
    assert (narrow.state(second), narrow.dispatcher.late) == ("done", frozenset())


def test_a_job_that_is_slower_than_predicted_is_late_by_its_own_pace(narrow):
    job = narrow.submit(deadline_s=1120.0)
    for steps in (0.0, 5.0, 10.0):  # one every other second
        narrow.machines.run(f"{job}.1", steps=steps)
        narrow.tick(10.0)
    seen = narrow.now(job)  # at 1030 s; 90 steps are left, two seconds each
    assert (seen.progress_ratio, seen.ends_s, seen.late_by_s) == (0.1, 1210.0, 90.0)
    assert ("late", job) in narrow.noticed


def test_on_two_devices_a_step_does_the_work_of_two_and_counts_so(pool):
    job = pool.submit(devices=2, each=2, deadline_s=1110.0)  # 100 steps of one device: 50 of both, two seconds each
    for steps in (0.0, 5.0, 10.0):
        pool.machines.run(f"{job}.1", steps=steps)
        pool.tick(10.0)
    seen = pool.now(job)  # at 1030 s; 40 steps are left
    assert (seen.progress_ratio, seen.ends_s, seen.late_by_s) == (0.2, 1110.0, None)
    assert pool.dispatcher.state.running[job].steps_left == 80.0
    pool.restart()
    assert pool.dispatcher.state.running[job].steps_left == 80.0


def test_a_job_in_time_ends_as_predicted_while_it_says_nothing_of_its_steps(narrow):
    job = narrow.submit(deadline_s=1120.0)
    narrow.machines.run(f"{job}.1", started_s=1005.0)
    narrow.tick(10.0)
    seen = narrow.now(job)
    assert (seen.progress_ratio, seen.ends_s, seen.late_by_s) == (None, 1105.0, None)


def test_energy_and_power_so_far_are_told_with_their_source_and_unknown_stays_unknown(narrow):
    job = narrow.submit()
    narrow.machines.run(f"{job}.1", energy_j=600.0, energy_source=Source.COUNTER, duration_s=4.0, power_w=170.0)
    narrow.tick()
    seen = narrow.now(job)
    assert (seen.energy_so_far_j, seen.power_so_far_w, seen.power_now_w) == (600.0, 150.0, 170.0)
    assert (seen.energy_source, seen.simulated) == (Source.COUNTER, True)
    narrow.machines.run(f"{job}.1", energy_j=None, energy_source=None, energy_why="no meter", duration_s=5.0)
    narrow.tick()
    seen = narrow.now(job)
    assert (seen.energy_so_far_j, seen.power_so_far_w, seen.energy_why) == (None, None, "no meter")


def test_an_attempt_is_where_the_engine_has_put_it_as_soon_as_that_is_known(pool):
    job = pool.submit()
    asked = pool.job(job).attempts[0].node
    other = {"n0": "n1", "n1": "n0"}[asked]
    pool.machines.run(f"{job}.1", node=other, devices=(0,))
    pool.store.fails(wait=1, calls=3)
    with suppress(*AWAY):
        pool.tick()
    pool.store.fails(calls=0)
    pool.tick()
    assert [(one.node, one.devices) for one in pool.job(job).attempts] == [(other, (0,))]


def test_a_pace_is_that_of_the_steps_that_were_seen_and_falls_while_none_comes():
    pace = first_seen(1.0, 100.0)  # whatever came before the first step is not counted
    assert pace.rate(100.0) is None
    pace = pace.then(11.0, 110.0)
    assert pace.rate(110.0) == 1.0
    assert pace.rate(122.0) == 0.5  # one more at the most in 22 s
    assert pace.then(1.0, 130.0) == first_seen(1.0, 130.0)  # it began anew
