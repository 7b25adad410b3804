"""The process beside a job: what the job sees, what is measured, what is said of it."""

import json
import os
import resource
import subprocess
import time
from pathlib import Path

import pytest

from wattsmith.engines.attempt_folder import lay_out, read_result, read_status
from wattsmith.flows.job_energy import energy_of
from wattsmith.flows.job_runner import RUNNER, environment_of, memory_taken
from wattsmith.flows.job_steps import Steps
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.energy import DomainEnergy, Source, Window
from wattsmith.terms.errors import ExtraNeeded
from wattsmith.terms.jobs import AttemptOrder, Stage


def run(tmp_path, environment=None, **order):
    """The folder of an attempt that has been run, and how long its runner took."""
    folder = lay_out(tmp_path, AttemptOrder(**{"attempt": "j.1", "command": ("sleep", "0.1")} | order))
    began_s = time.monotonic()
    done = subprocess.run([*RUNNER, str(folder)], env=os.environ | (environment or {}), check=False, timeout=60)
    assert done.returncode == 0
    return folder, time.monotonic() - began_s


@pytest.fixture
def two_cards(tmp_path):
    machine = SimulatedNvml.create(tmp_path / "nvml", gpus=2)
    try:
        machine.environment()
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    machine.play(0, 0.9)
    machine.play(1, 0.3)
    machine.use_memory(1, 5_000_000_000)
    return machine


def test_the_cards_of_a_job_are_measured_and_no_others(two_cards, tmp_path):
    began_s = time.monotonic()
    folder, took_s = run(
        tmp_path, two_cards.environment(), command=("sleep", "2.0"), kind="h200", devices=(1,), meters="gpu"
    )
    result = read_result(folder)
    truth_w = two_cards.true_power_w(1, began_s + took_s / 2)
    assert result.energy_j == pytest.approx(truth_w * 2.0, rel=0.05)
    assert result.energy_error_j < 0.2 * result.energy_j
    assert result.power_w == pytest.approx(truth_w, rel=0.05)
    assert result.energy_source is Source.COUNTER
    assert result.energy_why is None
    assert result.peak_memory_bytes == 5_000_000_000
    assert result.simulated
    assert "H200" in result.device
    status = read_status(folder)
    assert (status.stage, status.devices) == (Stage.RUNNING, (1,))
    assert status.energy_j == pytest.approx(result.energy_j, rel=0.4)
    assert status.power_w == pytest.approx(truth_w, rel=0.05)


def test_a_card_without_a_meter_is_unknown_and_says_why(two_cards, tmp_path):
    result = read_result(run(tmp_path, two_cards.environment(), kind="h200", devices=(0, 5))[0])
    assert (result.exit_code, result.energy_j) == (0, None)
    assert result.energy_why.startswith("gpu:5 has no meter")


@pytest.mark.parametrize(
    ("meters", "why"),
    [
        ("gpu", "NVIDIA driver"),
        ("no such meter", "there is no meter 'no such meter'"),
        ("auto", "the CPU has no meter"),
    ],
)
def test_a_job_runs_though_it_cannot_be_measured(tmp_path, meters, why):
    environment = {"WATTSMITH_SYSFS": str(tmp_path / "empty")}
    result = read_result(run(tmp_path, environment, meters=meters)[0])
    assert (result.exit_code, result.energy_j, result.power_w) == (0, None, None)
    assert why in result.energy_why


def test_a_job_on_the_cpu_has_the_energy_of_the_cpu_and_the_memory_of_its_largest_process(tmp_path):
    command = ("python", "-c", "import time; kept = b'1' * 200_000_000; time.sleep(2)")
    result = read_result(run(tmp_path, command=command, meters="modelled:10W-65W")[0])
    assert 10 * result.duration_s * 0.9 <= result.energy_j <= 65 * result.duration_s * 1.1
    assert result.energy_source is Source.MODELLED
    assert result.peak_memory_bytes == pytest.approx(210_000_000, rel=0.1)


@pytest.mark.parametrize(
    ("told", "seen", "looks", "taken"),
    [(None, 2, 1, None), (None, 8, 20, 8), (9, 2, 1, 9), (9, 12, 20, 12), (None, None, 20, None)],
)
def test_of_a_job_that_was_hardly_seen_the_memory_is_what_the_kernel_tells_or_unknown(told, seen, looks, taken):
    assert memory_taken(told, seen, looks) == taken


def test_a_job_that_ended_while_the_disk_was_full_has_its_exit_code(tmp_path):
    """What tells that it ended cannot be written down at first; what became of it can, a moment later."""
    in_the_way = "import os; os.mkdir(os.environ['WATTSMITH_ATTEMPT'] + '/.ended.json.new')"
    result = read_result(run(tmp_path, command=("python", "-c", in_the_way))[0])
    assert (result.exit_code, result.why) == (0, None)


def test_a_runner_takes_less_than_half_a_second_of_its_own(tmp_path):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run(tmp_path, command=("true",))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.5


def test_neither_torch_nor_anything_as_large_is_loaded():
    program = "import sys, wattsmith.flows.job_runner; print(sorted({'torch', 'numpy', 'pandas'} & set(sys.modules)))"
    said = subprocess.run([RUNNER[0], "-c", program], capture_output=True, text=True, check=True).stdout
    assert said == "[]\n"


def test_a_second_runner_leaves_and_an_order_that_cannot_be_read_is_a_result(tmp_path):
    folder, _ = run(tmp_path, command=("sh", "-c", "echo once"))
    subprocess.run([*RUNNER, str(folder)], check=True, timeout=30)
    assert (folder / "stdout").read_text() == "once\n"
    broken = tmp_path / "broken"
    (broken / "files").mkdir(parents=True)
    (broken / "order.json").write_text('{"attempt": 1}')
    subprocess.run([*RUNNER, str(broken)], check=True, timeout=30)
    result = read_result(broken)
    assert result.exit_code is None
    assert "its runner failed" in result.why
    assert "command: missing" in result.why


def test_what_a_job_leaves_running_ends_with_it(tmp_path):
    folder, _ = run(tmp_path, command=("sh", "-c", "setsid sleep 77.7 & echo $!"))
    assert read_result(folder).exit_code == 0
    assert not Path(f"/proc/{(folder / 'stdout').read_text().strip()}").exists()


@pytest.mark.parametrize(
    ("kind", "devices", "seen"),
    [
        ("h200", (2, 3), {"CUDA_VISIBLE_DEVICES": "2,3"}),
        ("h200", (), {"CUDA_VISIBLE_DEVICES": ""}),
        ("cpu", (0,), {"CUDA_VISIBLE_DEVICES": ""}),
        (
            "mi300x",
            (2, 3),
            {"CUDA_VISIBLE_DEVICES": "0,1", "HIP_VISIBLE_DEVICES": "0,1", "ROCR_VISIBLE_DEVICES": "2,3"},
        ),
    ],
)
def test_a_job_sees_its_own_cards(tmp_path, kind, devices, seen):
    order = AttemptOrder(attempt="j.1", command=("true",), kind=kind, devices=devices)
    environment = environment_of(order, tmp_path)
    assert {name: value for name, value in environment.items() if "VISIBLE" in name} == seen


def steps_of(tmp_path, *lines, now_s=1010.0):
    steps = Steps(tmp_path / "progress", 1000.0)
    (tmp_path / "progress").write_text("".join(f"{line}\n" for line in lines))
    steps.look(now_s)
    return steps


def test_steps_with_times_have_a_first_a_mean_without_it_and_a_spread(tmp_path):
    steps = steps_of(tmp_path, 1005.0, 1006.0, 1008.0, 1009.0)
    assert (steps.count, steps.first_s) == (4, 5.0)
    assert steps.mean_s == pytest.approx(4 / 3)
    assert steps.spread_s == pytest.approx(0.577, abs=0.001)  # of 1, 2 and 1


def test_steps_without_times_are_timed_when_seen_as_far_as_that_can_be_told(tmp_path):
    steps = steps_of(tmp_path, "one", "two", now_s=1005.0)
    assert (steps.count, steps.first_s, steps.mean_s) == (2, 5.0, None)
    with (tmp_path / "progress").open("a") as file:
        file.write("three\nfour\nfi")
    steps.look(1035.0)
    assert (steps.count, steps.mean_s, steps.spread_s) == (4, 10.0, None)
    with (tmp_path / "progress").open("a") as file:
        file.write("ve\n")
    steps.look(1045.0)
    assert (steps.count, steps.mean_s) == (5, 10.0)


@pytest.mark.parametrize("line", ["nan", "inf", "0.25", "1e300", "12.5 loss", "\x00", "x" * 3000])
def test_a_line_that_is_no_time_is_a_step(tmp_path, line):
    steps = steps_of(tmp_path, line, now_s=1001.0)
    assert (steps.count, steps.first_s) == (1, None)


def test_a_progress_that_is_no_file_is_no_progress(tmp_path):
    os.mkfifo(tmp_path / "progress")
    steps = Steps(tmp_path / "progress", 1000.0)
    steps.look(1001.0)
    (tmp_path / "progress").unlink()
    (tmp_path / "progress").symlink_to("/etc/passwd")
    steps.look(1002.0)
    assert steps.count == 0


def domain(name, energy_j, *, error_j=1.0, complete=True, **more):
    return DomainEnergy(
        domain=name,
        name=f"meter of {name}",
        source=more.pop("source", Source.COUNTER),
        energy_j=energy_j,
        error_j=error_j,
        resolution_s=0.1,
        complete=complete,
        **more,
    )


def energy(*domains, wanted=(), missing=None):
    window = Window(name="job", began_at="", duration_s=1.0, domains=domains, missing=missing or {})
    return energy_of(window, wanted)


def test_energy_is_that_of_the_devices_with_the_worst_of_their_sources():
    parts = (domain("gpu:0", 5.0), domain("gpu:1", 7.0, source=Source.POLLED), domain("gpu:2", 9.0))
    found = energy(*parts, domain("cpu-package:0", 3.0), wanted=("gpu:0", "gpu:1"))
    assert (found.energy_j, found.error_j, found.source) == (12.0, 2.0, Source.POLLED)
    assert energy(*parts, domain("cpu-package:0", 3.0), domain("node:0", 99.0)).energy_j == 3.0


def test_energy_of_a_device_whose_meter_was_lost_is_not_known():
    found = energy(domain("gpu:0", 5.0, complete=False, why="fell off the bus"), wanted=("gpu:0",))
    assert (found.energy_j, found.why) == (None, "gpu:0: fell off the bus")


def test_where_processor_and_card_are_one_chip_its_energy_is_the_jobs():
    assert energy(domain("soc:VDD_IN", 8.0), wanted=("gpu:0",)).energy_j == 8.0


def test_what_is_written_is_plain_json(tmp_path):
    folder, _ = run(tmp_path, command=("false",))
    assert json.loads((folder / "result.json").read_text())["exit_code"] == 1
