"""A search that turns the machine: under a lease, seen under load, given back. On simulated GPUs (200 … 700 W)."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from wattsmith.flows.controlling import serve
from wattsmith.flows.tuning import Goal, Manner, knob_of, parse_knobs, tune
from wattsmith.flows.tuning_hardware import Means
from wattsmith.sim.nvml import ORDINARY_USER_VARIABLE, SimulatedNvml
from wattsmith.terms.errors import BadInput, ExtraNeeded

pytest.importorskip("scipy", reason="TUNING IS NOT TESTED: scipy is not installed")

LIMIT = "gpu:0/power_limit"
ENDLESS = """
import sys, time
from wattsmith.flows.tuning import knob_of, tune

def measure(setting):
    sys.stdout.write("trial\\n"); sys.stdout.flush()
    time.sleep(0.2 if not hasattr(measure, "begun") else 60)
    measure.begun = True
    return {"energy_j": 1.0, "time_s": 1.0}

tune(measure, [knob_of("gpu:0/power_limit", ["300W", "400W"], None)])
"""


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    before = dict(os.environ)
    machine = SimulatedNvml.create(tmp_path / "nvml")
    try:
        for name, value in machine.environment().items():
            monkeypatch.setenv(name, value)
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    machine.load_here()
    yield machine
    os.environ.clear()
    os.environ.update(before)


def limit_w(machine):
    return machine.setting(0).power_limit_w


def law(machine):
    """Energy grows with the limit; below 400 W it takes too long."""

    def measure(setting):
        assert LIMIT not in setting  # what turns the machine is none of the work's business
        watts = limit_w(machine)
        return {"energy_j": watts / 100 + setting.get("batch", 1), "time_s": 1.0 if watts >= 400 else 3.0}

    return measure


def test_a_limit_is_searched_and_given_back(machine):
    knobs = parse_knobs([f"{LIMIT}=200W,300W,400W,500W"], [])
    found = tune(law(machine), knobs, Goal(limits=("time<=2s",)))
    assert found.recommendation.setting == {LIMIT: 400.0}
    assert found.trials[0].trial.setting == {LIMIT: 700.0}  # where it was found is where the search starts
    assert limit_w(machine) == 700.0


def test_it_comes_back_when_a_trial_raises(machine):
    def broken(_):
        if limit_w(machine) < 700:
            raise RuntimeError("the work broke")
        return {"energy_j": 1.0}

    with pytest.raises(RuntimeError, match="the work broke"):
        tune(broken, parse_knobs([f"{LIMIT}=300W"], []))
    assert limit_w(machine) == 700.0


def test_a_knob_of_the_machine_goes_beside_one_of_the_work(machine):
    knobs = [*parse_knobs([f"{LIMIT}=400W,500W"], []), knob_of("batch", [1, 2, 4], "4")]
    found = tune(law(machine), knobs, Goal(limits=("time<=2s",)))
    assert found.recommendation.setting == {LIMIT: 400.0, "batch": 1}


def test_a_knob_that_may_not_be_turned_is_left_out_with_a_word(machine, monkeypatch):
    monkeypatch.setenv(ORDINARY_USER_VARIABLE, "1")
    said = []
    knobs = [*parse_knobs([f"{LIMIT}=400W,500W"], []), knob_of("batch", [1, 2], "2")]
    found = tune(law(machine), knobs, say=said.append)
    assert found.recommendation.setting == {"batch": 1}
    assert f"{LIMIT}=400.0 is left out: not permitted" in said[0]
    with pytest.raises(BadInput, match="none of the knobs may be turned"):
        tune(law(machine), knobs[:1])


def test_a_cap_without_effect_says_so(machine):
    machine.play(0, 0.1)  # 160 W

    def slow(_setting):
        time.sleep(0.6)
        return {"energy_j": limit_w(machine), "time_s": 1.0}

    said = []
    tune(slow, parse_knobs([f"{LIMIT}=600W"], []), Goal(manner=Manner(budget=2)), say=said.append)
    assert any(f"{LIMIT}=600.0: the GPU draws 160 W now, so this limit has no effect" in words for words in said)


def test_a_trial_may_take_longer_than_a_lease_lasts(machine):
    held_w = []

    def slow(_setting):
        time.sleep(0.0 if limit_w(machine) == 700.0 else 2.5)
        held_w.append(limit_w(machine))
        return {"energy_j": limit_w(machine), "time_s": 1.0}

    knobs, goal = parse_knobs([f"{LIMIT}=600W"], []), Goal(manner=Manner(budget=2))
    tune(slow, knobs, goal, means=Means(duration_s=2.0))
    assert held_w == [700.0, 600.0]


@pytest.mark.parametrize(
    ("knob", "said"),
    [
        (f"{LIMIT}=300", "no unit"),
        (f"{LIMIT}=900W", "it takes 200 W … 700 W"),
        ("gpu:0/fan=3", "has no knob"),
        ("gpu:7/power_limit=300W", "gpu:7"),
    ],
)
def test_what_is_written_wrongly_is_said_before_anything_runs(machine, knob, said):
    with pytest.raises(ValueError, match=said):
        tune(lambda _: pytest.fail("it ran"), parse_knobs([knob], []))
    assert limit_w(machine) == 700.0


def test_a_tuner_that_is_killed_leaves_nothing_behind(machine):
    tuner = subprocess.Popen([sys.executable, "-c", ENDLESS], stdout=subprocess.PIPE, text=True)
    try:
        assert tuner.stdout.readline() == "trial\n"  # at 700 W, as it was found
        assert tuner.stdout.readline() == "trial\n"
        assert limit_w(machine) < 700.0
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
        tuner.stdout.close()
    until_s = time.monotonic() + 2.0
    while limit_w(machine) != 700.0 and time.monotonic() < until_s:
        time.sleep(0.01)
    assert limit_w(machine) == 700.0


def test_an_ordinary_user_tunes_through_the_daemon_within_what_it_allows(machine, tmp_path):
    allow = tmp_path / "allow.toml"
    allow.write_text(f'[[allow]]\nusers = [{os.getuid()}]\nknobs = ["gpu:*/power_limit"]\nleast = "350W"\n')
    stop, socket = threading.Event(), tmp_path / "s"
    daemon = threading.Thread(target=serve, args=(socket, allow), kwargs={"say": lambda _: None, "stop": stop})
    daemon.start()
    try:
        while not socket.is_socket():
            time.sleep(0.01)
        said = []
        knobs = parse_knobs([f"{LIMIT}=300W,400W,500W"], [])
        found = tune(law(machine), knobs, Goal(limits=("time<=2s",)), means=Means(socket=socket), say=said.append)
    finally:
        stop.set()
        daemon.join()
    assert found.recommendation.setting == {LIMIT: 400.0}
    assert f"{LIMIT}=300.0 is left out: not permitted" in said[0]
    assert limit_w(machine) == 700.0
