"""Leases: what is set comes back, however the holder ends. On simulated GPUs and a simulated sysfs tree."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattsmith.control.journal import file_of, journal_files, read_journal
from wattsmith.control.lease import Lease
from wattsmith.control.restoring import restore_left_behind
from wattsmith.sim.nvml import GpuProcess
from wattsmith.terms.control import DeviceHeld, KnobLost, LeaseOver, NotPermitted
from wattsmith.terms.errors import BadTerm

HOLDING = Path(__file__).with_name("holding.py")
BACK_WITHIN_S = 2.0


def take(state, tree, *devices, **more):
    return Lease.take(devices or ["gpu:0"], state=state, sysfs=tree.root, **more)


def eventually(condition, within_s=BACK_WITHIN_S):
    deadline_s = time.monotonic() + within_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.01)
    return condition()


@contextlib.contextmanager
def holder(state, tree, *settings, duration_s=60.0):
    """Another process that holds what SETTINGS names and has set it; and its watchdog's pid."""
    command = [sys.executable, str(HOLDING), str(state), str(tree.root), str(duration_s), *settings]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        watchdog = int(process.stdout.readline().split()[1])
        assert process.stdout.readline() == "set\n"
        yield process, watchdog
    finally:
        process.kill()
        process.communicate()


def free(state):
    """Whether nothing is left in the state folder that says that a device was changed."""
    return not journal_files(state)


def test_what_is_set_comes_back_at_the_end(gpus, tree, state):
    machine = gpus()
    before = machine.setting(0)
    with take(state, tree) as lease:
        assert lease.set("gpu:0/power_limit", 300.0).told == 300.0
        lease.set("gpu:0/clock", (345e6, 1_200e6))
        lease.set("gpu:0/application_clock", 1_500e6)
        assert machine.setting(0).locked_clock_hz == (345e6, 1_200e6)
        assert lease.read("gpu:0/clock") == (345e6, 1_200e6)
    assert machine.setting(0) == before
    assert free(state)


def test_settings_return_to_what_they_were_not_to_the_default(gpus, tree, state):
    machine = gpus()
    with take(state, tree) as first:
        first._knobs["gpu:0/power_limit"].set(450.0)  # an administrator's choice
        first.set("gpu:0/clock", (345e6, 600e6))
    with take(state, tree) as lease:
        lease.set("gpu:0/power_limit", 300.0)
    assert machine.setting(0).power_limit_w == 450.0


def test_a_clock_said_to_have_been_locked_is_locked_again(gpus, tree, state):
    machine = gpus()
    with take(state, tree, were={"gpu:0/clock": (345e6, 1_500e6)}) as lease:
        lease.set("gpu:0/clock", (345e6, 600e6))
    assert machine.setting(0).locked_clock_hz == (345e6, 1_500e6)


def test_what_it_was_is_said_only_where_the_hardware_does_not_tell(gpus, tree, state):
    gpus()
    with pytest.raises(BadTerm, match="need not be said"):
        take(state, tree, were={"gpu:0/power_limit": 300.0})


def test_several_devices_are_held_and_put_back_together(gpus, tree, state):
    machine = gpus(gpus=2)
    with take(state, tree, "gpu:1", "cpu:0", "cpu-package:0", "soc-gpu:0", "soc-emc") as lease:
        lease.set("gpu:1/power_limit", 300.0)
        lease.set("cpu:0/clock", (1e9, 1e9))
        lease.set("cpu:0/governor", "powersave")
        lease.set("cpu-package:0/power_limit_long_term", 100.0)
        lease.set("soc-gpu:0/clock", (306e6, 306e6))
        lease.set("soc-emc/clock", 800e6)
    assert machine.setting(1).power_limit_w == 700.0
    policy = tree.root / "devices/system/cpu/cpufreq/policy0"
    assert [(policy / name).read_text() for name in ("scaling_min_freq", "scaling_max_freq", "scaling_governor")] == [
        "800000\n",
        "3000000\n",
        "performance\n",
    ]
    assert (tree.root / "class/powercap/intel-rapl:0/constraint_0_power_limit_uw").read_text() == "250000000\n"
    assert (tree.root / "class/devfreq/17000000.gpu/min_freq").read_text() == "306000000\n"
    assert (tree.root / "kernel/debug/bpmp/debug/clk/emc/mrq_rate_locked").read_text() == "0\n"


def test_the_present_value_is_on_disk_before_the_first_change(gpus, tree, state):
    machine = gpus()
    with take(state, tree) as lease:
        machine.fail(0, 10, function="nvmlDeviceSetPowerManagementLimit", times=1)  # a time-out
        with pytest.raises(KnobLost):
            lease.set("gpu:0/power_limit", 300.0)
        journal = read_journal(state, machine.uuid(0))
        assert journal.before == {"power_limit": 700.0}


def test_a_value_outside_its_range_changes_nothing(gpus, tree, state):
    machine = gpus(limit_max_w=800.0)
    with take(state, tree) as lease:
        for value in (100.0, 750.0):
            with pytest.raises(BadTerm):
                lease.set("gpu:0/power_limit", value)
    assert machine.setting_calls() == []


def test_one_holds_a_device_at_a_time_and_the_other_is_told_who(gpus, tree, state):
    gpus(gpus=2)
    held = take(state, tree, "gpu:0")
    take(state, tree, "gpu:1").close()
    with pytest.raises(DeviceHeld, match=f"process {os.getpid()}"):
        take(state, tree, "gpu:0")
    held.close()
    take(state, tree, "gpu:0").close()


def test_a_device_that_is_not_there_cannot_be_held(gpus, tree, state):
    gpus()
    with pytest.raises(BadTerm, match="no gpu:7"):
        take(state, tree, "gpu:7")


def test_a_gpu_that_others_use_is_held_only_when_told(gpus, tree, state):
    machine = gpus()
    machine.run_processes(0, [GpuProcess(pid=1, memory_bytes=1)])
    with pytest.raises(DeviceHeld, match="used by others"):
        take(state, tree)
    assert free(state)
    take(state, tree, shared=True).close()


def test_our_own_processes_are_not_others(gpus, tree, state):
    machine = gpus()
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    machine.run_processes(0, [GpuProcess(pid=pid, memory_bytes=1) for pid in (os.getpid(), child.pid)])
    take(state, tree).close()
    child.communicate()


def test_not_permitted_leaves_nothing_to_be_put_back(gpus, tree, state):
    gpus(root=False)
    with take(state, tree) as lease:
        for knob, value in {"gpu:0/power_limit": 300.0, "gpu:0/clock": (345e6, 600e6)}.items():
            with pytest.raises(NotPermitted):
                lease.set(knob, value)
    assert free(state)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_settings_are_back_soon_after_the_holder_is_killed(gpus, tree, state, number):
    machine = gpus()
    before = machine.setting(0)
    with holder(state, tree, "gpu:0/power_limit=300W", "gpu:0/clock=600MHz", "cpu:0/clock=1GHz") as (process, _):
        assert machine.setting(0).power_limit_w == 300.0
        process.send_signal(number)
        process.wait()
        assert eventually(lambda: free(state))
    assert machine.setting(0) == before
    assert (tree.root / "devices/system/cpu/cpufreq/policy0/scaling_max_freq").read_text() == "3000000\n"


def test_a_watchdog_ignores_all_but_kill_9(gpus, tree, state):
    machine = gpus()
    with holder(state, tree, "gpu:0/power_limit=300W") as (process, watchdog):
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(watchdog, number)
        process.kill()
        assert eventually(lambda: free(state))
    assert machine.setting(0).power_limit_w == 700.0


def test_when_the_watchdog_is_killed_too_restore_puts_back(gpus, tree, state):
    machine = gpus()
    with holder(state, tree, "gpu:0/power_limit=300W") as (process, watchdog):
        os.kill(watchdog, signal.SIGKILL)
        process.kill()
        process.wait()
        assert machine.setting(0).power_limit_w == 300.0
        (outcome,) = restore_left_behind(state, wait_s=1.0)
    assert (outcome.device, outcome.knobs, outcome.problems) == ("gpu:0", ("gpu:0/power_limit",), ())
    assert outcome.simulated
    assert machine.setting(0).power_limit_w == 700.0
    assert restore_left_behind(state) == []


def test_the_next_lease_first_puts_back_what_was_left_behind(gpus, tree, state):
    machine = gpus()
    with holder(state, tree, "gpu:0/power_limit=300W") as (process, watchdog):
        os.kill(watchdog, signal.SIGKILL)
        process.kill()
        process.wait()
    with take(state, tree, wait_s=1.0) as lease:
        assert [outcome.device for outcome in lease.found] == ["gpu:0"]
        lease.set("gpu:0/power_limit", 400.0)
    assert machine.setting(0).power_limit_w == 700.0


def test_a_watchdog_that_was_killed_is_started_anew_before_the_next_change(gpus, tree, state):
    machine = gpus()
    with take(state, tree) as lease:
        first = lease._watchdog.pid
        os.kill(first, signal.SIGKILL)
        lease._watchdog.wait()
        lease.set("gpu:0/power_limit", 300.0)
        assert lease._watchdog.pid != first
    assert machine.setting(0).power_limit_w == 700.0


def test_a_device_that_is_held_is_not_restored_under_its_holder(gpus, tree, state):
    machine = gpus()
    with take(state, tree) as lease:
        lease.set("gpu:0/power_limit", 300.0)
        (outcome,) = restore_left_behind(state)
        assert "held by process" in outcome.problems[0]
        assert machine.setting(0).power_limit_w == 300.0


def test_a_lease_that_runs_out_is_put_back_under_its_holder(gpus, tree, state):
    machine = gpus()
    lease = take(state, tree, duration_s=2.0)
    lease.set("gpu:0/power_limit", 300.0)
    assert eventually(lambda: free(state), within_s=60.0)
    assert machine.setting(0).power_limit_w == 700.0
    with pytest.raises(LeaseOver, match="run out"):
        lease.set("gpu:0/power_limit", 300.0)
    assert machine.setting(0).power_limit_w == 700.0
    lease.close()


def test_a_lease_renewed_in_time_goes_on(gpus, tree, state):
    gpus()
    with take(state, tree, duration_s=2.0) as lease:
        lease.renew(60.0)
        time.sleep(2.2)
        assert lease.set("gpu:0/power_limit", 300.0).in_force


def test_a_lease_that_is_over_leaves_the_next_holder_alone(gpus, tree, state):
    machine = gpus()
    over = take(state, tree, duration_s=2.0)
    over.set("gpu:0/power_limit", 300.0)
    assert eventually(lambda: free(state), within_s=60.0)
    with take(state, tree, wait_s=60.0) as lease:
        lease.set("gpu:0/power_limit", 400.0)
        over.close()
        assert machine.setting(0).power_limit_w == 400.0
        assert lease.set("gpu:0/power_limit", 450.0).in_force


def test_closing_twice_is_harmless_and_a_closed_lease_sets_nothing(gpus, tree, state):
    machine = gpus()
    lease = take(state, tree)
    lease.close()
    lease.close()
    with pytest.raises(LeaseOver):
        lease.set("gpu:0/power_limit", 300.0)
    assert machine.setting_calls() == []


def test_a_device_that_is_gone_is_told_and_its_journal_kept(gpus, tree, state):
    machine = gpus()
    lease = take(state, tree)
    lease.set("gpu:0/power_limit", 300.0)
    machine.lose(0)
    with pytest.raises(KnobLost, match="gpu:0 is gone, and its journal is kept"):
        lease.close()
    assert "gone" in restore_left_behind(state)[0].problems[0]
    machine.heal()
    assert restore_left_behind(state)[0].problems == ()
    assert machine.setting(0).power_limit_w == 700.0


def test_a_device_whose_journal_is_damaged_is_not_touched(gpus, tree, state):
    machine = gpus()
    take(state, tree).close()
    file_of(state, machine.uuid(0), ".journal").write_text('{"format": 1')
    with pytest.raises(DeviceHeld, match="half-written"):
        take(state, tree)
    assert "half-written" in restore_left_behind(state)[0].problems[0]


def damage(state):
    (journal,) = journal_files(state)
    journal.write_text('{"format": 1')


def remove(state):
    (journal,) = journal_files(state)
    journal.unlink()


def block(state):
    """As on a disk that can only be read any more: the file that is locked for a change cannot be opened."""
    (write,) = state.glob("*.write")
    write.unlink()
    write.mkdir()


@pytest.mark.parametrize("happens", [damage, remove, block, shutil.rmtree])
def test_settings_come_back_though_the_journal_is_lost_meanwhile(gpus, tree, state, happens):
    machine = gpus()
    with take(state, tree) as lease:
        lease.set("gpu:0/power_limit", 300.0)
        happens(state)
    assert machine.setting(0).power_limit_w == 700.0
    assert free(state)


def test_the_watchdog_puts_back_in_a_folder_that_cannot_be_written_any_more(gpus, tree, state):
    machine = gpus()
    with holder(state, tree, "gpu:0/power_limit=300W") as (process, _):
        block(state)
        process.kill()
        assert eventually(lambda: machine.setting(0).power_limit_w == 700.0)


def test_files_in_the_present_folder_are_not_taken_for_pythons_own(gpus, tree, state, tmp_path, monkeypatch):
    gpus()
    (tmp_path / "argparse.py").write_text("raise SystemExit('not the real one')")
    monkeypatch.chdir(tmp_path)
    with take(state, tree) as lease:
        assert lease.set("gpu:0/power_limit", 300.0).told == 300.0


def test_a_call_that_fails_once_is_tried_again(gpus, tree, state):
    machine = gpus()
    lease = take(state, tree)
    lease.set("gpu:0/power_limit", 300.0)
    machine.fail(0, 10, function="nvmlDeviceSetPowerManagementLimit", times=1)
    lease.close()
    assert machine.setting(0).power_limit_w == 700.0


def test_a_child_made_by_fork_neither_ends_the_lease_nor_keeps_it(gpus, tree, state):
    machine = gpus()
    program = f"""
import os, sys, time
sys.path.insert(0, {str(HOLDING.parent)!r})
from pathlib import Path
from wattsmith.control.lease import Lease
lease = Lease.take(["gpu:0"], state=Path({str(state)!r}), sysfs=Path({str(tree.root)!r}))
lease.set("gpu:0/power_limit", 300.0)
if os.fork() == 0:
    lease.close()
    print("child", flush=True)
    time.sleep(5)
    os._exit(0)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "child\n"
    assert machine.setting(0).power_limit_w == 300.0
    process.kill()
    process.wait()
    assert eventually(lambda: free(state))
    assert machine.setting(0).power_limit_w == 700.0
    process.stdout.close()


def test_a_holder_stopped_in_the_middle_does_not_keep_its_settings(gpus, tree, state):
    machine = gpus()
    with holder(state, tree, "gpu:0/power_limit=300W", duration_s=1.5) as (process, _):
        process.send_signal(signal.SIGSTOP)
        assert eventually(lambda: free(state), within_s=60.0)
    assert machine.setting(0).power_limit_w == 700.0


SLOW = "nvmlDeviceSetPowerManagementLimit"


def test_a_change_that_ends_after_the_lease_is_undone_by_the_holder(gpus, tree, state):
    machine = gpus()
    lease = take(state, tree, duration_s=0.5)
    machine.fail(0, 0, function=SLOW, times=1, delay_s=2.5)  # the lease runs out in the middle of it
    with pytest.raises(LeaseOver):
        lease.set("gpu:0/power_limit", 300.0)
    assert machine.setting(0).power_limit_w == 700.0
    assert eventually(lambda: free(state), within_s=4.0)
    assert machine.setting(0).power_limit_w == 700.0
    lease.close()


def test_a_holder_killed_in_a_change_that_lasts_longer_than_its_lease_leaves_nothing(gpus, tree, state):
    machine = gpus()
    machine.fail(0, 0, function=SLOW, times=1, delay_s=3.0)
    command = [sys.executable, str(HOLDING), str(state), str(tree.root), "0.5", "gpu:0/power_limit=300W"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    process.stdout.readline()
    time.sleep(2.0)  # the lease has run out, and the watchdog has waited long enough
    assert not free(state)  # but it does not trust that nothing more comes
    process.kill()
    process.communicate()
    assert eventually(lambda: free(state))
    assert machine.setting(0).power_limit_w == 700.0
