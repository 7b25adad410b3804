"""Cap and clock of a simulated AMD GPU (132 … 2100 MHz), which this process and watchdogs import as `amdsmi`."""

import os
import subprocess
import sys

import pytest

from wattsmith.control.find import check_nobody_else, find_knobs
from wattsmith.control.lease import Lease
from wattsmith.control.restoring import restore_left_behind
from wattsmith.sim.amdsmi import STATUS_TIMEOUT, write_module
from wattsmith.terms.control import DeviceHeld, KnobLost, NotPermitted
from wattsmith.terms.errors import BadTerm


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SIM_NVML", os.devnull)  # no NVIDIA GPU beside it
    made = write_module(tmp_path / "amd", most_cap_w=750.0)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "amd"))
    monkeypatch.syspath_prepend(str(tmp_path / "amd"))
    monkeypatch.delitem(sys.modules, "amdsmi", raising=False)
    yield made
    sys.modules.pop("amdsmi", None)


@pytest.fixture
def gpu(machine):  # noqa: ARG001  the module must be there
    """The GPU of the module that was imported, to be meddled with."""
    import amdsmi

    return amdsmi.gpus[0]


def cap_w(machine):
    return machine.cap_w(machine.gpus[0])


def the_knob(tmp_path, kind="power_limit"):
    knobs = [knob for knob in find_knobs(tmp_path).values() if knob.card.identity.startswith("amd-")]
    assert [knob.card.kind for knob in knobs] == ["power_limit", "clock"]
    return next(knob for knob in knobs if knob.card.kind == kind)


def test_the_cap_is_read_set_and_verified_within_its_range(machine, tmp_path):
    knob = the_knob(tmp_path)
    assert knob.card.kind == "power_limit"
    assert (knob.card.ends, knob.card.default, knob.card.simulated) == ((0.0, 750.0), 750.0, True)
    assert knob.read() == 750.0
    knob.set(500.0)
    assert cap_w(machine) == 500.0
    assert knob.verify(500.0).in_force
    assert knob.verify(400.0).note == "the driver keeps 500 W, though it did not refuse"


def test_what_the_driver_refuses_is_told_apart(gpu, tmp_path):
    knob = the_knob(tmp_path)
    with pytest.raises(BadTerm, match="refuses"):
        knob.set(800.0)
    gpu.failures = []
    import amdsmi

    amdsmi._machine._root = False
    with pytest.raises(NotPermitted, match="not permitted"):
        knob.set(500.0)
    gpu.failures = [STATUS_TIMEOUT]
    with pytest.raises(KnobLost, match="does not answer"):
        knob.read()


def test_a_gpu_that_others_use_is_not_for_us(gpu, tmp_path):
    identity = the_knob(tmp_path).card.identity
    gpu.process_ids = (7,)
    check_nobody_else(identity, frozenset({7}))
    with pytest.raises(DeviceHeld, match="process 7"):
        check_nobody_else(identity, frozenset())


def test_a_gpu_that_does_not_tell_who_uses_it_is_not_for_us(gpu, tmp_path, monkeypatch):
    import amdsmi

    identity = the_knob(tmp_path).card.identity
    monkeypatch.setattr(amdsmi, "amdsmi_get_gpu_process_list", lambda _: [object()])  # as older bindings answer
    with pytest.raises(DeviceHeld, match="does not tell"):
        check_nobody_else(identity, frozenset())
    assert gpu.process_ids == ()


def test_a_gpu_that_is_gone_is_said_to_be(gpu, tmp_path):
    knob = the_knob(tmp_path)
    gpu.uuid = "another"
    with pytest.raises(KnobLost, match="not there any more"):
        knob.read()


def test_the_clock_is_set_in_an_order_that_keeps_least_below_most(machine, tmp_path):
    knob = the_knob(tmp_path, "clock")
    assert (knob.card.ends, knob.read()) == ((132e6, 2_100e6), None)
    for wanted in ((500e6, 800e6), (1_000e6, 1_500e6), (132e6, 400e6)):
        knob.set(wanted)
        assert knob.read() == wanted
        assert knob.verify(wanted).in_force
    assert "keeps" in knob.verify((132e6, 500e6)).note
    knob.set(None)
    assert knob.read() is None
    assert machine.clocks_mhz(machine.gpus[0]) == (132, 2_100)


def test_a_level_that_could_not_be_put_back_is_left_alone(machine, tmp_path, state):
    import amdsmi

    amdsmi.amdsmi_set_gpu_perf_level(amdsmi.gpus[0], amdsmi.AmdSmiDevPerfLevel.HIGH)
    device = the_knob(tmp_path).card.device
    with Lease.take([device], state=state, sysfs=tmp_path) as lease, pytest.raises(NotPermitted, match="level high"):
        lease.set(f"{device}/clock", (500e6, 800e6))
    assert machine.amdsmi_get_gpu_perf_level(machine.gpus[0]).endswith("HIGH")


def test_a_lease_puts_the_clock_back(machine, tmp_path, state):
    device = the_knob(tmp_path).card.device
    with Lease.take([device], state=state, sysfs=tmp_path) as lease:
        lease.set(f"{device}/clock", (500e6, 800e6))
        assert machine.clocks_mhz(machine.gpus[0]) == (500, 800)
    assert the_knob(tmp_path, "clock").read() is None


HOLD = """
import sys, time
from pathlib import Path
from wattsmith.control.lease import Lease
lease = Lease.take([sys.argv[3]], state=Path(sys.argv[1]), sysfs=Path(sys.argv[2]))
lease.set(sys.argv[3] + "/power_limit", 400.0)
sys.stdout.write("set\\n"); sys.stdout.flush()
time.sleep(60)
"""


def test_a_lease_puts_the_cap_back(machine, tmp_path, state):
    device = the_knob(tmp_path).card.device
    the_knob(tmp_path).set(600.0)
    with Lease.take([device], state=state, sysfs=tmp_path) as lease:
        lease.set(f"{device}/power_limit", 400.0)
        assert cap_w(machine) == 400.0
    assert cap_w(machine) == 600.0


def test_the_watchdog_puts_the_cap_back_when_the_holder_is_killed(machine, tmp_path, state):
    device = the_knob(tmp_path).card.device
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state), str(tmp_path), device], stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "set\n"
    assert cap_w(machine) == 400.0
    holder.kill()
    holder.communicate()
    outcomes = restore_left_behind(state, wait_s=5.0)  # waits for the watchdog, and finds nothing left to do
    assert [outcome.problems for outcome in outcomes] in ([], [()])
    assert cap_w(machine) == 750.0
