"""The knobs of simulated GPUs: an H200 has clocks of 345 … 1980 MHz and may draw 200 … 700 W, 100 W + load × 600 W."""

import pytest

from wattsmith.control.find import check_nobody_else, find_knobs
from wattsmith.sim.nvml import GpuProcess
from wattsmith.terms.control import DeviceHeld, KnobLost, NotPermitted


def knobs(tmp_path):
    return find_knobs(tmp_path / "no-sysfs")


def test_a_gpu_has_a_limit_a_clock_and_an_application_clock(gpus, tmp_path):
    gpus()
    found = knobs(tmp_path)
    assert list(found) == ["gpu:0/power_limit", "gpu:0/clock", "gpu:0/application_clock"]
    assert found["gpu:0/power_limit"].card.ends == (200.0, 700.0)
    assert found["gpu:0/clock"].card.ends == (345e6, 1_980e6)
    assert all(knob.card.simulated and "simulated" in knob.card.title for knob in found.values())


def test_only_a_gpu_with_several_memory_clocks_has_one_to_choose(gpus, tmp_path):
    gpus(profile="a100")
    assert knobs(tmp_path)["gpu:0/memory_clock"].card.levels == (1_215e6, 1_593e6)


def test_a_gpu_older_than_locked_clocks_has_none(gpus, tmp_path):
    gpus(profile="p100")
    assert list(knobs(tmp_path)) == ["gpu:0/power_limit", "gpu:0/application_clock"]


def test_a_limit_above_the_default_is_not_offered(gpus, tmp_path):
    gpus(limit_max_w=800.0)
    assert knobs(tmp_path)["gpu:0/power_limit"].card.ends == (200.0, 700.0)


def test_a_limit_that_binds_is_in_force_and_needs_no_word(gpus, tmp_path):
    machine = gpus()
    machine.play(0, 1.0)
    limit = knobs(tmp_path)["gpu:0/power_limit"]
    limit.set(300.0)
    seen = limit.verify(300.0)
    assert (seen.told, seen.in_force, seen.note) == (300.0, True, "")
    assert machine.setting(0).power_limit_w == 300.0


def test_a_limit_above_what_the_gpu_draws_is_said_to_have_no_effect(gpus, tmp_path):
    gpus().play(0, 0.5)
    limit = knobs(tmp_path)["gpu:0/power_limit"]
    limit.set(600.0)
    assert "no effect" in limit.verify(600.0).note


def test_a_locked_clock_is_reached_under_load(gpus, tmp_path):
    gpus().play(0, 1.0)
    clock = knobs(tmp_path)["gpu:0/clock"]
    clock.set((345e6, 1_200e6))
    seen = clock.verify((345e6, 1_200e6))
    assert (seen.achieved, seen.in_force, seen.note) == (1_200e6, True, "")


def test_a_clock_between_two_levels_is_set_to_the_lower(gpus, tmp_path):
    machine = gpus()
    clock = knobs(tmp_path)["gpu:0/clock"]
    clock.set((350e6, 1_207e6))
    assert machine.setting(0).locked_clock_hz == (345e6, 1_200e6)
    assert clock.verify((350e6, 1_207e6)).told == (345e6, 1_200e6)


def test_a_cap_above_what_the_card_reaches_is_said_to_have_no_effect(gpus, tmp_path):
    gpus().play(0, 1.0)
    found = knobs(tmp_path)
    found["gpu:0/power_limit"].set(300.0)
    found["gpu:0/clock"].set((345e6, 1_950e6))
    seen = found["gpu:0/clock"].verify((345e6, 1_950e6))
    assert seen.achieved is not None
    assert seen.achieved < 1_400e6
    assert "power limit" in seen.note
    assert "no effect" in seen.note


def test_an_idle_gpu_does_not_show_whether_a_clock_is_in_force(gpus, tmp_path):
    gpus()
    clock = knobs(tmp_path)["gpu:0/clock"]
    clock.set((345e6, 1_200e6))
    assert clock.verify((345e6, 1_200e6)).in_force is None


def test_unlocking_is_a_reset(gpus, tmp_path):
    machine = gpus(profile="a100")
    found = knobs(tmp_path)
    for name in ("gpu:0/clock", "gpu:0/memory_clock"):
        found[name].set(found[name].card.ends)
        found[name].set(None)
    assert machine.setting(0).locked_clock_hz is None
    assert machine.setting(0).locked_memory_clock_hz is None


def test_an_application_clock_goes_back_to_its_default_by_a_reset(gpus, tmp_path):
    machine = gpus()
    clock = knobs(tmp_path)["gpu:0/application_clock"]
    before = clock.read()
    clock.set(1_200e6)
    assert clock.verify(1_200e6).in_force
    clock.set(before)
    assert machine.setting(0).application_clock_hz is None


def test_an_ordinary_user_is_told_that_it_is_not_permitted(gpus, tmp_path):
    gpus(root=False)
    with pytest.raises(NotPermitted, match=r"gpu:0/power_limit: not permitted.*wattsmith control serve"):
        knobs(tmp_path)["gpu:0/power_limit"].set(300.0)


def test_a_lost_gpu_is_told_apart_from_a_refusal(gpus, tmp_path):
    machine = gpus()
    limit = knobs(tmp_path)["gpu:0/power_limit"]
    machine.lose(0)
    with pytest.raises(KnobLost, match="gpu:0/power_limit"):
        limit.set(300.0)


def test_a_gpu_that_others_run_on_is_not_for_us(gpus):
    machine = gpus()
    machine.run_processes(0, [GpuProcess(pid=7, memory_bytes=1)])
    check_nobody_else(machine.uuid(0), frozenset({7}))
    with pytest.raises(DeviceHeld, match="process 7"):
        check_nobody_else(machine.uuid(0), frozenset({8}))


def test_a_gpu_that_does_not_tell_who_uses_it_is_not_for_us(gpus):
    machine = gpus()
    machine.fail(0, 3, function="nvmlDeviceGetComputeRunningProcesses")  # not supported
    with pytest.raises(DeviceHeld, match="does not tell who else uses"):
        check_nobody_else(machine.uuid(0), frozenset())


def test_a_gpu_split_by_mig_is_not_for_us(gpus):
    machine = gpus(mig=("1g.18gb", "1g.18gb"))
    with pytest.raises(DeviceHeld, match="MIG"):
        check_nobody_else(machine.uuid(0), frozenset())


def test_a_gpu_that_is_lost_takes_nothing_from_the_others(gpus, tmp_path):
    machine = gpus(gpus=2)
    machine.lose(0)
    assert {name.split("/")[0] for name in find_knobs(tmp_path)} == {"gpu:1"}
