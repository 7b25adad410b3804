"""`wattsmith control follow` as a user has it: simulated GPUs, real leases."""

import json
import signal
import time

import pytest
from tests.cli.keeping import keeps
from tests.cli.running import start_wattsmith, wattsmith


def plan(path, limit_w=400.0, for_s=60.0, sample_s=0.2):
    now_s = time.time()
    phase = {"device": "gpu:0", "phase": "steady", "setting": {"power_limit_w": limit_w}}
    path.write_text(
        json.dumps(
            {
                "client": "left",
                "issued_s": now_s,
                "valid_from_s": now_s - 1,
                "valid_until_s": now_s + for_s,
                "serial": 7,
                "devices": [{"device": "gpu:0", "name": "h200"}],
                "works": [
                    {
                        "job": "resnet",
                        "phases": [phase],
                        "shape": {},
                        "timing": {},
                        "site": {"node": "left", "devices": ["gpu:0"]},
                        "evidence": {"source": "matched"},
                    }
                ],
                "watch": {"sample_s": sample_s},
            }
        )
    )
    return path


@pytest.fixture
def machine(gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = gpus(0.5)
    return made, made.environment()


def test_the_settings_hold_until_it_is_over_and_come_back(machine, tmp_path):
    card, environment = machine
    done = wattsmith("control", "follow", plan(tmp_path / "left.json", for_s=6.0), environment=environment)
    assert done.returncode == 0, done.stderr
    assert "gpu:0/power_limit=400.0" in done.stderr
    calls = [one.arguments[0] for one in card.setting_calls()]
    assert calls[0] == 400_000
    assert card.setting(0).power_limit_w == 700.0


def test_ctrl_c_puts_back(machine, tmp_path):
    card, environment = machine
    process = start_wattsmith("control", "follow", plan(tmp_path / "left.json"), "--json", environment=environment)
    line = process.stdout.readline()
    keeps("control follow", line)
    first = json.loads(line)
    assert first["in_force"] == {"gpu:0/power_limit": 400.0}
    assert first["works"] == {"resnet": "runs"}
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert card.setting(0).power_limit_w == 700.0


def test_what_may_not_be_set_is_said_and_ends_with_1(machine, tmp_path):
    card, environment = machine
    card.act_as_root(False)
    path = plan(tmp_path / "left.json")
    done = wattsmith("control", "follow", path, "--for", "0.5s", environment=environment)
    assert done.returncode == 1
    assert "gpu:0/power_limit is not set" in done.stderr


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"valid_until_s": 2.0, "valid_from_s": 1.0}, "was over"),
        ({"version": 9}, "version 9"),
        ({"devices": []}, "not among the devices"),
        ({"serial": "x"}, "serial"),
    ],
)
def test_a_schedule_that_cannot_be_followed_is_refused(wattsmith_here, tmp_path, change, said):
    path = plan(tmp_path / "left.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    _, err = wattsmith_here("control", "follow", path, "--meters", "modelled:10W-65W", code=2)
    assert said in err


def test_progress_is_given_by_job(wattsmith_here, tmp_path):
    _, err = wattsmith_here("control", "follow", plan(tmp_path / "left.json"), "--progress", "steps.log", code=2)
    assert "JOB=FILE" in err
