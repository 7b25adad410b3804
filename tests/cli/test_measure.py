"""`wattsmith measure -- COMMAND`: figures, exit codes, what the processes used."""

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request

import pytest
from tests.cli.running import measured, python, start_wattsmith, wattsmith


@pytest.mark.parametrize("code", [0, 1, 3, 255])
def test_the_exit_code_is_the_commands(code, no_meters):
    assert wattsmith("measure", "--", "sh", "-c", f"exit {code}", environment=no_meters).returncode == code


def test_a_killed_command_exits_as_in_a_shell(no_meters):
    done = wattsmith("measure", "--", "sh", "-c", "kill -9 $$", environment=no_meters)
    assert done.returncode == 128 + signal.SIGKILL
    assert "exit code 137" in done.stderr


def test_input_and_output_stay_the_commands(no_meters):
    done = wattsmith("measure", "--", "sh", "-c", "cat; echo oops >&2", environment=no_meters, input="hello\n")
    assert done.stdout == "hello\n"
    assert done.stderr.startswith("oops\n")


def test_no_shell_comes_in_between(no_meters):
    done = wattsmith("measure", "-q", "--", "echo", "$HOME", "*", ";", "--json", environment=no_meters)
    assert done.stdout == "$HOME * ; --json\n"


def test_the_command_gets_the_signals_as_we_found_them(no_meters):
    ours = wattsmith("measure", "-q", "--", "grep", "^Sig[BI]", "/proc/self/status", environment=no_meters)
    plain = subprocess.run(["grep", "^Sig[BI]", "/proc/self/status"], capture_output=True, text=True, check=True)
    assert classic_signals(ours.stdout) == classic_signals(plain.stdout)


def classic_signals(status):
    """Blocked and ignored signals below 32; the C library keeps 32 and 33 for itself."""
    return [int(line.split()[1], 16) & 0x7FFFFFFF for line in status.splitlines()]


def test_without_a_meter_the_energy_is_unknown_and_says_why(no_meters):
    done = wattsmith("measure", "--", "true", environment=no_meters)
    assert done.returncode == 0
    assert "energy  unknown" in done.stderr
    assert "no RAPL package" in done.stderr
    assert "0 J" not in done.stderr
    assert measured("--", "true", environment=no_meters)["window"]["energy_j"] is None


def test_quiet_says_nothing(no_meters):
    done = wattsmith("measure", "--quiet", "--", "true", environment=no_meters)
    assert (done.stdout, done.stderr) == ("", "")


def test_a_constant_load_costs_power_times_time(gpus):
    result = measured("--", "sleep", "3", environment=gpus(0.5).environment())
    window = result["window"]
    assert window["duration_s"] == pytest.approx(3.0, abs=0.3)
    assert window["energy_j"] == pytest.approx(400.0 * window["duration_s"], rel=0.02)
    assert window["domains"][0]["peak_w"] == pytest.approx(400.0, rel=0.02)
    assert window["simulated"]
    assert result["gauges"][0]["power_limit_w"] == 700.0


def test_without_the_counter_power_is_integrated(gpus):
    window = measured("--no-counter", "--hz", "10", "--", "sleep", "2", environment=gpus(0.5).environment())["window"]
    assert window["domains"][0]["source"] == "polled"
    assert window["energy_j"] == pytest.approx(400.0 * window["duration_s"], rel=0.02)


def test_the_table_shows_figure_error_source_and_what_is_simulated(gpus):
    done = wattsmith("measure", "--", "sleep", "1", environment=gpus(0.5, 0.0).environment())
    first, second, together = [line for line in done.stderr.splitlines() if line.startswith("gpu:")]
    for row in (first, second, together):
        assert "(simulated)" in row
        assert "±" in row
    assert "counter" in first
    assert "20 ms" in first
    assert "not stated by vendor" in first
    assert "400 W" in first
    assert "100 W" in second
    assert "500 W" in together


def test_visible_devices_by_index_and_by_uuid(gpus):
    machine = gpus(0.0, 0.5, 0.0)
    for visible in ("1", machine.uuid(1)):
        environment = machine.environment() | {"CUDA_VISIBLE_DEVICES": visible}
        window = measured("--", "sleep", "0.3", environment=environment)["window"]
        assert [domain["domain"] for domain in window["domains"]] == ["gpu:1"]
        assert window["power_w"] == pytest.approx(400.0, rel=0.03)


def test_a_gpu_lost_in_the_middle_leaves_an_incomplete_figure(gpus):
    machine = gpus(0.5, 0.5)
    lose = (
        "import time, sys; from pathlib import Path; from wattsmith.sim.nvml import SimulatedNvml;"
        "time.sleep(1.5); SimulatedNvml(Path(sys.argv[1])).lose(0); time.sleep(1.5)"
    )
    command = [*python(lose), str(machine.state_file)]
    done = wattsmith("measure", "--json", "--", *command, environment=machine.environment())
    assert done.returncode == 0
    assert "incomplete" in done.stderr
    window = json.loads(done.stdout)["window"]
    lost, kept = window["domains"]
    assert not window["complete"]
    assert (lost["complete"], kept["complete"]) == (False, True)
    assert 400.0 < lost["energy_j"] < kept["energy_j"]
    assert "was lost inside the window" in lost["why"]
    assert kept["energy_j"] == pytest.approx(400.0 * window["duration_s"], rel=0.02)


def test_a_disagreement_of_counter_and_power_is_shown_with_both_figures(gpus):
    machine = gpus(0.5, sensor_gain=1.3)  # the power sensor says 520 W, the counter 400 W
    done = wattsmith("measure", "--json", "--", "sleep", "4.5", environment=machine.environment())
    check = json.loads(done.stdout)["window"]["domains"][0]["cross_check"]
    assert not check["agrees"]
    assert "the energy counter says" in " ".join(done.stderr.split())
    assert "integrated power" in " ".join(done.stderr.split())


def test_a_modelled_figure_says_so_in_its_row(no_meters):
    done = wattsmith("measure", "--meters", "modelled:10W-65W", "--", "sleep", "0.5", environment=no_meters)
    (row,) = [line for line in done.stderr.splitlines() if line.startswith("cpu-package:modelled")]
    assert "modelled" in row.removeprefix("cpu-package:modelled")
    assert "nothing was measured" in done.stderr


def test_children_are_counted(no_meters):
    busy = "import time\nwhile time.process_time() < 1: pass"
    program = (
        f"import subprocess, sys; busy = {busy!r}; b = bytearray(100 * 2**20)\n"
        "for p in [subprocess.Popen([sys.executable, '-c', busy]) for _ in range(2)]: p.wait()"
    )
    use = measured("--", *python(program), environment=no_meters)["use"]
    assert use["processes"] == 3
    assert use["cpu_s"] > 0.8  # two of 1 s each, less what came after the last look
    assert use["peak_memory_bytes"] > 100 * 2**20


def test_a_small_command_does_not_inherit_our_memory(no_meters):
    use = measured("--", "sleep", "0.4", environment=no_meters)["use"]
    assert use["peak_memory_bytes"] < 20 * 2**20


def test_what_was_written_is_counted(no_meters, tmp_path):
    target = tmp_path / "written"
    program = f"import os; f = open({str(target)!r}, 'wb'); f.write(bytes(5 * 2**20)); f.flush(); os.fsync(f.fileno())"
    use = measured("--", *python(program), environment=no_meters)["use"]
    if not use["written_bytes"]:
        pytest.skip("NOT CHECKED: this file system does not count what is written to it")
    assert use["written_bytes"] >= 5 * 2**20


def test_json_has_the_documented_keys(gpus):
    result = measured("--", "sleep", "0.3", environment=gpus(0.5).environment())
    assert result.keys() == {"command", "pid", "exit_code", "ended", "window", "use", "gauges", "timeline"}
    assert result["command"] == ["sleep", "0.3"]
    assert (result["exit_code"], result["ended"], result["timeline"]) == (0, True, None)
    assert result["use"].keys() == {"cpu_s", "peak_memory_bytes", "read_bytes", "written_bytes", "processes"}
    assert result["window"].keys() == {
        *("name", "began_at", "duration_s", "domains", "phases", "missing"),
        *("energy_j", "error_j", "power_w", "simulated", "complete"),
    }


def test_json_goes_to_a_file_of_its_own(no_meters, tmp_path):
    target = tmp_path / "result.json"
    done = wattsmith("measure", "--json", target, "--", "echo", "hi", environment=no_meters)
    assert done.stdout == "hi\n"
    assert json.loads(target.read_text())["exit_code"] == 0


def test_json_alone_goes_behind_the_commands_output(no_meters):
    done = wattsmith("measure", "--json", "--quiet", "--", "echo", "hi", environment=no_meters)
    first, second = done.stdout.splitlines()
    assert first == "hi"
    assert json.loads(second)["command"] == ["echo", "hi"]


def test_json_does_not_take_the_command_for_its_file(no_meters, tmp_path):
    done = wattsmith("measure", "--json", "-q", "echo", "hi", environment=no_meters, cwd=tmp_path)
    other = wattsmith("measure", "-q", "--json", "echo", "hi", environment=no_meters, cwd=tmp_path)
    for each in (done, other):
        assert json.loads(each.stdout.splitlines()[-1])["command"] == ["echo", "hi"]
    assert list(tmp_path.iterdir()) == []


def test_a_process_that_runs_already_is_measured_until_it_ends(gpus):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(5)"])
    done = wattsmith("measure", "--json", "--pid", sleeper.pid, environment=gpus(0.5).environment())
    sleeper.wait()
    result = json.loads(done.stdout)
    assert done.returncode == 0
    assert result["ended"]
    assert result["exit_code"] is None
    assert result["window"]["power_w"] == pytest.approx(400.0, rel=0.03)
    assert "ended; measured for" in done.stderr


def test_metrics_are_served_while_it_runs(gpus):
    port = _free_port()
    running = start_wattsmith("measure", "--prometheus", port, "--", "sleep", "4", environment=gpus(0.5).environment())
    text = _scrape(f"http://127.0.0.1:{port}/metrics")
    running.communicate()
    assert running.returncode == 0
    labels = '{domain="gpu:0",name="NVIDIA H200 (simulated)",simulated="true",source="counter"}'
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert float(figures[f"wattsmith_energy_joules_total{labels}"]) > 0
    assert float(figures[f"wattsmith_power_watts{labels}"]) == pytest.approx(400.0, rel=0.02)
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics")


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _scrape(address):
    """What is served there once it holds an energy figure."""
    deadline_s = time.monotonic() + 10
    while time.monotonic() < deadline_s:
        try:
            text = urllib.request.urlopen(address).read().decode()
        except OSError:
            text = ""
        if "wattsmith_energy_joules_total{" in text:
            return text
        time.sleep(0.1)
    raise AssertionError(f"no energy was served: {text!r}")
