"""The live line at the bottom of a terminal, beside a command that prints there itself."""

import re
import shlex
import shutil
import subprocess
import time

import pytest
from tests.cli.running import WATTSMITH, Terminal, python, wattsmith

PRINTING = """
import sys, time
for i in range(60):
    print("line", i, flush=True)
    time.sleep(0.02)
sys.stdout.write("half a line, ")
sys.stdout.flush()
time.sleep(1.2)
print("and the rest")
"""
EXPECTED = [*(f"line {i}" for i in range(60)), "half a line, and the rest"]
PAINTED = re.compile("(?:\x1bD\x1b\\[A)?\x1b7.*?\x1b8")


def test_the_live_line_tells_time_power_and_energy(gpus):
    terminal = Terminal("measure", "--", "sleep", "2.5", environment=gpus(0.5).environment())
    terminal.read_until(r"gpu:0 400 W \d+(\.\d+)? k?J \(simulated\)")
    assert terminal.finish() == 0


def test_what_the_command_prints_stays_whole(no_meters):
    terminal = Terminal("measure", "--", *python(PRINTING), environment=no_meters)
    assert terminal.finish() == 0
    assert "energy unknown: no meter" in terminal.output
    shown, _, _ = PAINTED.sub("", terminal.output).partition("\r\n\r\n")
    assert [line for line in shown.split("\r\n") if line] == EXPECTED


def test_the_line_is_given_back_at_the_end(no_meters):
    terminal = Terminal("measure", "--", "sleep", "1.5", environment=no_meters)
    terminal.finish()
    painted = PAINTED.findall(terminal.output)
    assert "\x1b[1;23r" in "".join(painted)  # the first 23 lines scroll
    assert "\x1b[r" in painted[-1]  # all of them again


@pytest.mark.skipif(shutil.which("tmux") is None, reason="NOT CHECKED on a real screen: there is no tmux")
def test_on_a_real_screen_it_scrolls_above_the_live_line(no_meters, tmp_path):
    server = ["tmux", "-S", str(tmp_path / "tmux")]
    settings = [f"{name}={value}" for name, value in no_meters.items()]
    command = ["env", *settings, WATTSMITH, "measure", "--", *python(PRINTING + "time.sleep(3)\n")]
    subprocess.run([*server, "new-session", "-d", "-x", "100", "-y", "12", shlex.join(command)], check=True)
    try:
        shown = screen_with(server, "and the rest")
    finally:
        subprocess.run([*server, "kill-server"], check=False)
    assert shown[-1].startswith(" ")
    assert "energy unknown: no meter" in shown[-1]
    assert [line for line in shown[:-1] if line] == EXPECTED[-10:]


def screen_with(server, text, timeout_s=15.0):
    """The lines of the screen once TEXT is on it."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        done = subprocess.run([*server, "capture-pane", "-p"], capture_output=True, text=True, check=True)
        if text in done.stdout:
            return done.stdout.splitlines()
        time.sleep(0.1)
    raise AssertionError(f"{text!r} did not come: {done.stdout}")


@pytest.mark.parametrize("option", ["--no-live", "--quiet"])
def test_it_can_be_left_out(option, no_meters):
    terminal = Terminal("measure", option, "--", "sleep", "1.5", environment=no_meters)
    terminal.finish()
    assert "\x1b7" not in terminal.output


def test_there_is_none_where_there_is_no_terminal(no_meters):
    done = wattsmith("measure", "--", "sleep", "1.5", environment=no_meters)
    assert "\x1b" not in done.stdout + done.stderr


def test_there_is_none_for_a_short_command(no_meters):
    terminal = Terminal("measure", "--", "true", environment=no_meters)
    terminal.finish()
    assert "\x1b7" not in terminal.output
