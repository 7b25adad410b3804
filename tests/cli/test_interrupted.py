"""Ctrl-C and other signals: the command gets each once, and the figures are told all the same."""

import json
import signal
import subprocess
import time

import pytest
from tests.cli.running import Terminal, python, start_wattsmith

# Says how often it was interrupted, once it has been left alone for a second.
COUNTING = """
import signal, time
came = []
signal.signal(signal.SIGINT, lambda *_: came.append("int"))
signal.signal(signal.SIGTERM, lambda *_: came.append("term"))
print("ready", flush=True)
while not came: time.sleep(0.05)
seen = 0
while len(came) > seen:
    seen = len(came)
    end = time.monotonic() + 1.0
    while time.monotonic() < end: time.sleep(0.05)
print("came:", *came, flush=True)
raise SystemExit(7)
"""


def test_ctrl_c_ends_the_command_and_the_figures_are_told(gpus):
    terminal = Terminal(
        "measure",
        "--",
        *python("import time; print('ready', flush=True); time.sleep(30)"),
        environment=gpus(0.5).environment(),
    )
    terminal.read_until("ready")
    time.sleep(1.0)
    terminal.type("\x03")
    assert terminal.finish() == 130
    assert "exit code 130" in terminal.output
    assert "400 W" in terminal.output
    assert "wattsmith" not in terminal.output.partition("KeyboardInterrupt")[2].partition("exit code")[0]


def test_ctrl_c_reaches_the_command_once(no_meters):
    terminal = Terminal("measure", "--", *python(COUNTING), environment=no_meters)
    terminal.read_until("ready")
    terminal.type("\x03")
    assert terminal.finish() == 7
    assert "came: int\r\n" in terminal.output


def test_a_second_ctrl_c_reaches_it_too(no_meters):
    terminal = Terminal("measure", "--", *python(COUNTING), environment=no_meters)
    terminal.read_until("ready")
    for _ in range(2):
        terminal.type("\x03")
        time.sleep(0.4)
    assert terminal.finish() == 7
    assert "came: int int\r\n" in terminal.output


@pytest.mark.parametrize(("sent", "name"), [(signal.SIGINT, "int"), (signal.SIGTERM, "term")])
def test_a_signal_sent_to_us_alone_is_passed_on(sent, name, no_meters):
    running = start_wattsmith("measure", "--json", "--", *python(COUNTING), environment=no_meters)
    assert running.stdout.readline() == "ready\n"
    running.send_signal(sent)
    printed, _ = running.communicate(timeout=30)
    assert running.returncode == 7
    came, result = printed.splitlines()
    assert came == f"came: {name}"
    assert json.loads(result)["exit_code"] == 7


def test_a_terminated_command_exits_as_in_a_shell(no_meters):
    running = start_wattsmith("measure", "--", "sh", "-c", "echo ready; exec sleep 30", environment=no_meters)
    assert running.stdout.readline() == "ready\n"
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=30)
    assert running.returncode == 128 + signal.SIGTERM
    assert "exit code 143" in said


def test_ctrl_c_ends_the_measuring_of_another_process_and_not_the_process(no_meters):
    with subprocess.Popen(["sleep", "30"]) as other:
        terminal = Terminal("measure", "--pid", other.pid, environment=no_meters)
        terminal.read_until("energy unknown")  # its live line
        terminal.type("\x03")
        assert terminal.finish() == 0
        assert f"still runs as process {other.pid}" in terminal.output
        assert other.poll() is None
        other.kill()
