"""Kill -9 of tuner, daemon and watchdog at random moments; the long run is in docs/control.md."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def faults(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("control_faults")


def test_settings_come_back_from_twenty_kills_at_random_moments():
    command = [sys.executable, str(BENCHMARKS / "control_faults.py"), "--rounds", "20", "--seed", "11"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SIMULATED" in done.stdout


def test_the_benchmark_sees_a_value_that_is_late_or_another(faults):
    good = faults.Outcome(scenario="tuner", changed=True, by="restore", back_s=0.1, late=False, wrong={})
    late = faults.Outcome(scenario="tuner", changed=True, by="restore", back_s=2.0, late=True, wrong={})
    wrong = faults.Outcome(
        scenario="tuner", changed=True, by="restore", back_s=0.1, late=False, wrong={"governor": ("a", "b")}
    )
    idle = faults.Outcome(scenario="tuner", changed=False, by="restore", back_s=0.1, late=False, wrong={})
    assert faults.passes([good, idle])
    assert not faults.passes([good, late])
    assert not faults.passes([good, wrong])
    assert not faults.passes([idle])  # nothing was ever changed, so nothing was shown
