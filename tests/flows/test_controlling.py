"""Settings changed for a while: shown, held, run with, forgotten. On simulated GPUs and a simulated sysfs tree."""

import os
import sys

import pytest

from wattsmith.flows.controlling import forget, hold, knobs_here, restore, run_with
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.sim.sysfs import SimulatedSysfs
from wattsmith.terms.control import DeviceHeld
from wattsmith.terms.errors import BadInput, CommandNotStarted, ExtraNeeded


@pytest.fixture
def machine(tmp_path, monkeypatch):
    tree = SimulatedSysfs(tmp_path / "sys")
    tree.add_cpufreq(0, min_hz=800e6, max_hz=3e9)
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tree.root))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    machine = SimulatedNvml.create(tmp_path / "nvml")
    try:
        for name, value in machine.environment().items():
            monkeypatch.setenv(name, value)
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    machine.load_here()
    return machine


def run(settings, *command, **more):
    said = []
    code = run_with(
        settings, command, tell=lambda card, seen: said.append((card.name, seen.told)), warn=said.append, **more
    )
    return code, said


def test_knobs_are_shown_with_how_they_are_set(machine):
    states = {state.card.name: state for state in knobs_here()}
    assert states["gpu:0/power_limit"].value == 700.0
    assert states["gpu:0/clock"].problem == "not told"
    assert states["cpu:0/governor"].value == "performance"
    assert machine.setting_calls() == []


def test_what_is_held_comes_back(machine):
    with hold(["gpu:0"]) as lease:
        lease.set("gpu:0/power_limit", 300.0)
        assert machine.setting(0).power_limit_w == 300.0
    assert machine.setting(0).power_limit_w == 700.0
    assert restore() == []


def test_a_command_runs_at_the_settings_and_they_come_back(machine, tmp_path):
    seen = tmp_path / "seen"
    program = (
        "import pynvml, pathlib, sys; pynvml.nvmlInit(); "
        "limit = pynvml.nvmlDeviceGetPowerManagementLimit(pynvml.nvmlDeviceGetHandleByIndex(0)); "
        f"pathlib.Path({str(seen)!r}).write_text(str(limit)); sys.exit(7)"
    )
    code, said = run(["gpu:0/power_limit=300W", "cpu:0/clock=1GHz"], sys.executable, "-c", program)
    assert code == 7
    assert seen.read_text() == "300000"
    assert said == [("gpu:0/power_limit", 300.0), ("cpu:0/clock", (1e9, 1e9))]
    assert machine.setting(0).power_limit_w == 700.0


def test_a_lease_is_renewed_while_the_command_runs(machine):
    code, said = run(["gpu:0/power_limit=300W"], "sleep", "4", duration_s=3.0)
    assert (code, len(said)) == (0, 1)
    assert machine.setting(0).power_limit_w == 700.0


def test_one_device_is_held_as_a_list_of_one(machine, tmp_path):
    with pytest.raises(BadInput, match=r"such as \['gpu:0'\]"):
        hold("gpu:0")
    with hold(["gpu:0"], state=str(tmp_path / "elsewhere")) as lease:
        lease.set("gpu:0/power_limit", 300.0)
    assert restore(str(tmp_path / "elsewhere")) == []
    assert machine.setting(0).power_limit_w == 700.0


@pytest.mark.parametrize("setting", ["gpu:0/power_limit", "power_limit=300W", "gpu:0/power_limit=", ""])
def test_a_setting_that_is_none_is_refused_before_anything_is_held(machine, setting):
    with pytest.raises(BadInput, match="is no setting"):
        run([setting], "true")
    assert machine.setting_calls() == []


def test_a_command_that_is_not_there_changes_nothing(machine):
    with pytest.raises(CommandNotStarted):
        run(["gpu:0/power_limit=300W"], "no-such-command-here")
    assert machine.setting_calls() == []


@pytest.mark.usefixtures("machine")
def test_a_journal_is_forgotten_by_the_name_of_its_device_or_file(tmp_path):
    folder = tmp_path / "state/wattsmith/control"
    folder.mkdir(parents=True)
    (folder / "GPU-1.journal").write_text("{")
    with pytest.raises(BadInput, match=r"GPU-1\.journal"):
        forget("gpu:9")
    assert forget("GPU-1") == folder / "GPU-1.journal"
    assert restore() == []


def test_a_journal_that_is_needed_is_not_forgotten(machine):
    with hold(["gpu:0"]) as lease:
        lease.set("gpu:0/power_limit", 300.0)
        with pytest.raises(DeviceHeld, match="lease in force"):
            forget("gpu:0")
    assert machine.setting(0).power_limit_w == 700.0


@pytest.mark.usefixtures("machine")
def test_what_a_knob_was_is_not_for_the_daemon_to_be_told(tmp_path):
    with pytest.raises(BadInput, match="cannot be told"):
        hold(["gpu:0"], socket=tmp_path / "s", were={"gpu:0/clock": None})


def test_a_machine_without_knobs_shows_none(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("WATTSMITH_SIM_NVML", os.devnull)
    assert [state for state in knobs_here() if not state.card.identity.startswith("GPU-")] == []
