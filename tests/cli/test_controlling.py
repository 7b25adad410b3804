"""`wattsmith restore` and `wattsmith control`, on simulated GPUs."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.keeping import keeps

COMMANDS = """
import typer
from wattsmith.cli.controlling import control, restore
from wattsmith.terms.errors import WattsmithError
app = typer.Typer(pretty_exceptions_enable=False)
app.command()(restore)
app.add_typer(control, name="control")
try:
    app()
except WattsmithError as error:
    raise SystemExit(f"wattsmith: {error}")
"""


@pytest.fixture
def machine(gpus, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = gpus(0.5)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def command(*arguments):
    return [sys.executable, "-c", COMMANDS, *map(str, arguments)]


def wattsmith(*arguments):
    return subprocess.run(command(*arguments), capture_output=True, text=True, timeout=60)


@pytest.mark.usefixtures("machine")
def test_what_can_be_turned_is_shown_and_says_that_it_is_simulated():
    shown = wattsmith("control", "show").stdout
    assert "gpu:0/power_limit (simulated)" in shown
    assert "700 W" in shown
    assert "200 W … 700 W" in shown
    told = wattsmith("control", "show", "--json").stdout
    keeps("control show", told)
    knobs = json.loads(told)
    assert knobs[0]["value"] == 700.0


def test_a_command_runs_at_other_settings(machine):
    done = wattsmith("control", "run", "--set", "gpu:0/power_limit=300W", "--", "sh", "-c", "exit 5")
    assert done.returncode == 5
    assert "gpu:0/power_limit (simulated) set to 300 W" in done.stderr
    assert [call.arguments[0] for call in machine.setting_calls()] == [300_000, 700_000]


@pytest.mark.usefixtures("machine")
def test_without_a_setting_there_is_nothing_to_run_at():
    assert "say what to set" in wattsmith("control", "run", "--", "true").stderr


def test_what_may_not_be_set_is_said_and_the_command_does_not_run(machine, tmp_path):
    machine.act_as_root(False)
    done = wattsmith("control", "run", "--set", "gpu:0/power_limit=300W", "--", "touch", tmp_path / "ran")
    assert "not permitted" in done.stderr
    assert not (tmp_path / "ran").exists()


def test_a_command_that_is_ended_leaves_nothing_changed(machine):
    process = subprocess.Popen(command("control", "run", "--set", "gpu:0/power_limit=300W", "--", "sleep", "60"))
    while machine.setting(0).power_limit_w != 300.0:
        time.sleep(0.02)
    time.sleep(0.3)  # until the command itself runs
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) in (128 + signal.SIGTERM, 130)
    assert machine.setting(0).power_limit_w == 700.0


@pytest.mark.usefixtures("machine")
def test_there_is_mostly_nothing_to_restore():
    assert wattsmith("restore").stdout == "nothing to put back\n"


def left_behind(machine, tmp_path):
    """Kill one who holds a GPU together with its watchdog."""
    process = subprocess.Popen(command("control", "run", "--set", "gpu:0/power_limit=300W", "--", "sleep", "8"))
    while machine.setting(0).power_limit_w != 300.0:
        time.sleep(0.02)
    for folder in os.listdir("/proc"):  # noqa: PTH208
        if folder.isdigit():
            try:
                with open(f"/proc/{folder}/cmdline") as file:  # noqa: PTH123
                    words = file.read()
            except OSError:
                continue
            if "wattsmith.control.watchdog" in words and str(tmp_path) in words:
                os.kill(int(folder), signal.SIGKILL)
    process.kill()
    process.wait()


def test_what_was_left_behind_is_put_back_by_hand(machine, tmp_path):
    left_behind(machine, tmp_path)
    assert machine.setting(0).power_limit_w == 300.0
    done = wattsmith("restore")
    assert (done.returncode, done.stdout) == (0, "gpu:0 (simulated): put back gpu:0/power_limit\n")
    assert machine.setting(0).power_limit_w == 700.0
    assert wattsmith("restore").returncode == 0


def test_what_cannot_be_put_back_is_said_with_exit_code_1_and_can_be_forgotten(machine, tmp_path):
    left_behind(machine, tmp_path)
    machine.lose(0)
    done = wattsmith("restore")
    assert done.returncode == 1
    assert "gpu:0 (simulated): NOT put back: gpu:0 is gone, and its journal is kept" in done.stderr
    restored = wattsmith("restore", "--json").stdout
    keeps("restore", restored)
    told = json.loads(restored)
    assert told[0]["device"] == "gpu:0"
    assert "nothing was put back" in wattsmith("restore", "--forget", "gpu:0").stdout
    assert wattsmith("restore").stdout == "nothing to put back\n"


def test_an_ordinary_user_goes_through_the_daemon(machine, tmp_path):
    allow, path = tmp_path / "allow.toml", tmp_path / "socket"
    allow.write_text(f'[[allow]]\nusers = [{os.getuid()}]\nknobs = ["gpu:0/power_limit"]\nleast = "250W"\n')
    allow.chmod(0o600)
    daemon = subprocess.Popen(
        command("control", "serve", "--socket", path, "--allow", allow), stderr=subprocess.PIPE, text=True
    )
    try:
        assert "listening" in daemon.stderr.readline()
        ordinary = {**os.environ, "WATTSMITH_SIM_NVML_ORDINARY_USER": "1"}
        outcomes = [
            subprocess.run(
                command("control", "run", "--socket", path, "--set", f"gpu:0/power_limit={limit}", "--", "true"),
                env=ordinary,
                capture_output=True,
                text=True,
                timeout=60,
            )
            for limit in ("300W", "200W")
        ]
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.communicate(timeout=20)
    assert outcomes[0].returncode == 0
    assert "allowed is at least 250 W" in outcomes[1].stderr
    assert [call.arguments[0] for call in machine.setting_calls()] == [300_000, 700_000]
