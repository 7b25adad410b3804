"""A work schedule carried out: on a machine made of plain values, and on simulated GPUs under real leases."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field

import pytest

from wattsmith.flows.following import Follower, Looking, Means, Seen, follow
from wattsmith.schedule.documents import schedule_text
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.control import DeviceHeld, KnobCard, LeaseOver, NotPermitted, Verified
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.schedule import SettingSource, Shape
from wattsmith.terms.work import Interval, Setting
from wattsmith.terms.work_schedule import (
    DeviceIdentity,
    Evidence,
    Phase,
    PhaseSetting,
    PowerLimits,
    Site,
    Span,
    Timing,
    Watch,
    Work,
    WorkSchedule,
)

LIMIT = "gpu:0/power_limit"


def schedule(*limits_w, begin_s=0.0, end_s=1000.0, serial=1, default_w=600.0, each_s=100.0, **more):
    """One device that has LIMITS_W one after the other, EACH_S long."""
    phases = tuple(
        PhaseSetting(
            device="gpu:0",
            phase=Phase.STEADY,
            setting=Setting(power_limit_w=limit_w),
            from_s=begin_s + place * each_s,
            until_s=begin_s + (place + 1) * each_s,
            power_w=Interval(value=limit_w, low=limit_w - 20, high=limit_w + 20),
            step_s=Interval(value=0.1, low=0.09, high=0.11),
        )
        for place, limit_w in enumerate(limits_w)
    )
    work = Work(
        job="resnet",
        phases=phases,
        shape=Shape(),
        timing=Timing(runs=(Span(from_s=begin_s, until_s=end_s),)),
        site=Site(node="left", devices=("gpu:0",)),
        evidence=Evidence(source=SettingSource.MATCHED),
    )
    default = PhaseSetting(device="gpu:0", phase=Phase.STEADY, setting=Setting(power_limit_w=default_w))
    return WorkSchedule(
        client="left",
        issued_s=begin_s,
        valid_from_s=begin_s,
        valid_until_s=end_s,
        serial=serial,
        devices=(DeviceIdentity(device="gpu:0", name="h200"),),
        works=(work,),
        safe_default=(default,) if default_w else (),
        **{"watch": Watch(sample_s=1.0, drift_for_s=2.0, lease_s=30.0), **more},
    )


@dataclass
class Card:
    """A device as a lease shows it, without a machine."""

    value: float = 700.0
    least_w: float = 200.0
    refuses: Exception | None = None
    over: bool = False
    renewed: list = field(default_factory=list)
    taken: int = 0
    closed: int = 0

    def take(self, _device, _duration_s):
        if isinstance(self.refuses, DeviceHeld):
            raise self.refuses
        self.taken += 1
        self.over = False
        return self

    def card(self, knob):
        return KnobCard(name=knob, device="gpu:0", identity="x", title="x", unit="W")

    def read(self, _knob):
        return self.value

    def set(self, knob, value):
        if self.over:
            raise LeaseOver("the lease has run out")
        if self.refuses:
            raise self.refuses
        self.value = value
        return Verified(knob=knob, asked=value, told=value, in_force=True)

    def verify(self, knob, value):
        return Verified(knob=knob, asked=value, told=self.value, in_force=True)

    def renew(self, duration_s):
        if self.over:
            raise LeaseOver("the lease has run out")
        self.renewed.append(duration_s)

    def close(self):
        self.value = 700.0
        self.closed += 1


@pytest.fixture
def card():
    return Card()


def test_settings_follow_the_phases_and_the_default_holds_when_it_is_over(card):
    follower = Follower(take=card.take)
    follower.accept(schedule(400.0, 300.0, end_s=200.0), 0.0)
    seen = [(now_s, follower.tick(now_s).in_force) for now_s in (0.0, 99.0, 100.0, 200.0)]
    assert [(now_s, values[LIMIT]) for now_s, values in seen] == [(0.0, 400), (99.0, 400), (100.0, 300), (200.0, 600)]
    assert follower.tick(201.0).state == "over"
    follower.close()
    assert (card.value, card.closed) == (700.0, 1)


def test_the_lease_is_renewed_before_it_runs_out(card):
    follower = Follower(take=card.take)
    follower.accept(schedule(400.0), 0.0)
    for now_s in range(0, 35, 1):
        follower.tick(float(now_s))
    assert card.renewed == [30.0, 30.0, 30.0]


def test_a_lease_that_ran_out_is_taken_anew_and_set_again(card):
    follower = Follower(take=card.take)
    follower.accept(schedule(400.0), 0.0)
    follower.tick(0.0)
    card.over, card.value = True, 700.0
    told = [follower.tick(now_s) for now_s in (10.0, 11.0)]
    assert "run out" in told[0].notes[0]
    assert (card.taken, card.value, told[1].refused) == (2, 400.0, {})


@pytest.mark.parametrize("why", [NotPermitted("ask root"), DeviceHeld("held by 4711")])
def test_what_is_not_permitted_is_told_and_not_fatal(card, why):
    card.refuses = why
    follower = Follower(take=card.take)
    follower.accept(schedule(400.0), 0.0)
    told = follower.tick(0.0)
    assert told.refused == {LIMIT: str(why)}
    assert (told.in_force, told.settled, card.value) == ({}, True, 700.0)
    card.refuses = None
    assert follower.tick(10.0).in_force == {}  # not asked again at once
    assert follower.tick(31.0).in_force == {LIMIT: 400.0}


def test_a_limit_moves_by_its_ramp(card):
    follower = Follower(take=card.take)
    follower.accept(schedule(400.0, limits=PowerLimits(ramp_down_w_per_s=100.0)), 0.0)
    ticks = [follower.tick(float(now_s)) for now_s in range(4)]
    assert [tick.in_force[LIMIT] for tick in ticks] == [600.0, 500.0, 400.0, 400.0]
    assert [tick.settled for tick in ticks] == [False, False, True, True]


def test_work_that_has_drifted_is_named_and_set_back(card):
    follower = Follower(take=card.take, look=lambda: {"gpu:0": Seen(power_w=400.0, step_s=0.2)})
    follower.accept(schedule(400.0), 0.0)
    ticks = [follower.tick(float(now_s)) for now_s in range(5)]
    assert "match again" in ticks[-1].match_again["resnet"]
    assert ticks[-1].in_force == {LIMIT: 600.0}
    follower.accept(schedule(350.0, serial=2), 5.0)
    assert follower.tick(5.0).match_again == {}
    assert card.value == 350.0


def test_a_device_that_is_too_hot_is_told(card):
    follower = Follower(take=card.take, look=lambda: {"gpu:0": Seen(temperature_c=91.0)})
    follower.accept(schedule(400.0, limits=PowerLimits(max_temperature_c=85.0)), 0.0)
    assert "91 °C" in follower.tick(0.0).notes[0]


def test_without_a_schedule_nothing_is_held(card):
    with Follower(take=card.take) as follower:
        told = follower.tick(0.0)
    assert (told.state, told.serial, card.taken) == ("nothing", None, 0)


# ---- On simulated GPUs


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path / "no sysfs"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    machine = SimulatedNvml.create(tmp_path / "nvml", sensor_noise_w=1.0)
    try:
        for name, value in machine.environment().items():
            monkeypatch.setenv(name, value)
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    machine.load_here()
    return machine


def limit_w(machine):
    return machine.setting(0).power_limit_w


def test_on_a_gpu_the_limit_is_set_and_put_back(machine):
    with Follower() as follower:
        follower.accept(schedule(400.0, end_s=1e12, each_s=1e11), 0.0)
        follower.tick(1.0)
        assert limit_w(machine) == 400.0
    assert limit_w(machine) == 700.0


def test_an_ordinary_user_is_told_that_he_may_not(machine):
    machine.act_as_root(False)
    with Follower() as follower:
        follower.accept(schedule(400.0), 0.0)
        told = follower.tick(1.0)
    assert list(told.refused) == [LIMIT]
    assert limit_w(machine) == 700.0


def test_who_dies_leaves_the_machine_as_it_was_found(machine, tmp_path):
    path = tmp_path / "left.json"
    path.write_text(schedule_text(schedule(400.0, begin_s=time.time() - 1, end_s=time.time() + 60)))
    code = (
        "import sys, pathlib; from wattsmith.flows.following import follow; "
        "follow(pathlib.Path(sys.argv[1]), lambda tick: print(tick.done, flush=True))"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert "power_limit=400" in process.stdout.readline()
    assert limit_w(machine) == 400.0
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    until_s = time.monotonic() + 10
    while limit_w(machine) != 700.0 and time.monotonic() < until_s:
        time.sleep(0.02)
    assert limit_w(machine) == 700.0


def test_power_and_progress_are_seen_between_two_looks(machine, tmp_path):
    steps = tmp_path / "steps"
    steps.write_text("\n" * 3)
    machine.play(0, 0.5)
    looking = Looking("gpu", {"gpu:0": steps})
    time.sleep(0.6)
    looking()
    time.sleep(1.0)
    steps.write_text("\n" * 13)
    seen = looking()["gpu:0"]
    looking.close()
    assert seen.power_w == pytest.approx(400.0, rel=0.03)  # 100 W idle and half of 600 W
    assert seen.step_s == pytest.approx(0.16, abs=0.08)  # ten steps since the first look


def test_a_file_is_followed_until_it_is_over(machine, tmp_path):
    path = tmp_path / "left.json"
    now_s = time.time()
    watch = Watch(sample_s=0.2, lease_s=30.0)
    path.write_text(schedule_text(schedule(400.0, begin_s=now_s - 1, end_s=now_s + 1.5, default_w=None, watch=watch)))
    told = []
    last = follow(path, told.append, meters="gpu")
    assert told[0].in_force == {LIMIT: 400.0}
    assert last.works == {"resnet": "runs"} or last.state == "over"
    assert limit_w(machine) == 700.0
    with pytest.raises(BadInput, match="was over"):
        follow(path, told.append, meters="gpu")


@pytest.mark.usefixtures("machine")
def test_progress_of_work_that_is_not_there_is_refused(tmp_path):
    path = tmp_path / "left.json"
    path.write_text(schedule_text(schedule(400.0, end_s=time.time() + 60)))
    with pytest.raises(BadInput, match=r"'bert'.*resnet"):
        follow(path, print, progress={"bert": tmp_path / "steps"}, means=Means(shared=True))
