"""Callbacks of training frameworks, in real training runs on a simulated GPU at 400 W and without any meter.

Two epochs of 8 steps: 0.05 s of data and 0.1 s of compute each; 8 evaluation steps behind each epoch.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import ExtraNeeded

FRAMEWORKS = ["transformers", "lightning"]


def train(framework, folder, environment):
    """What the training script of FRAMEWORK wrote; beside it what it said on standard error."""
    pytest.importorskip(framework)
    script = Path(__file__).with_name(f"train_with_{framework}.py")
    done = subprocess.run(
        [sys.executable, script, folder],
        env=os.environ | {"WATTSMITH_SYSFS": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]) | {"said": done.stderr}


@pytest.fixture(scope="module", params=FRAMEWORKS)
def trained(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    machine = SimulatedNvml.create(folder / "nvml")
    machine.play(0, 0.5)
    try:
        environment = machine.environment()
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on a simulated GPU: {no_compiler}")
    return train(request.param, folder, environment)


def logged(trained, name):
    return [row[name] for row in trained["history"] if name in row]


def test_the_run_is_logged_once_with_its_error_bound(trained):
    run = trained["run"]
    (energy_j,) = logged(trained, "simulated_train_energy_j")
    (error_j,) = logged(trained, "simulated_train_energy_error_j")
    assert energy_j == pytest.approx(run["energy_j"])
    assert energy_j == pytest.approx(400.0 * run["duration_s"], rel=0.02)
    assert error_j == pytest.approx(run["error_j"])
    assert logged(trained, "simulated_train_power_w") == [pytest.approx(400.0, rel=0.02)]


def test_each_epoch_has_a_window_inside_the_run(trained):
    epochs = trained["epochs"]
    assert len(epochs) == 2
    assert all(epoch["duration_s"] > 8 * 0.15 for epoch in epochs)
    assert sum(epoch["energy_j"] for epoch in epochs) < trained["run"]["energy_j"]
    assert logged(trained, "simulated_epoch_energy_j")[0] == pytest.approx(epochs[0]["energy_j"], rel=1e-4)


def test_steps_are_logged_as_a_mean(trained):
    energies_j = logged(trained, "simulated_step_energy_j")
    assert energies_j
    # The last step of an epoch makes no data for a next one: 0.1 s, while the others take 0.15 s.
    assert all(0.1 * 400.0 < energy_j < 0.4 * 400.0 for energy_j in energies_j)
    assert sum(logged(trained, "measured_steps")) <= 16


def test_the_run_is_split_by_what_it_did(trained):
    phases = {phase["name"]: phase for phase in trained["run"]["phases"]}
    assert phases["data"]["duration_s"] == pytest.approx(16 * 0.05, rel=0.4)
    assert phases["compute"]["duration_s"] == pytest.approx(16 * 0.1, rel=0.4)
    assert phases["evaluate"]["duration_s"] > 0.4
    for name, phase in phases.items():
        assert phase["energy_j"]["gpu:0"] == pytest.approx(400.0 * phase["duration_s"], rel=0.05, abs=2.0)
        assert logged(trained, f"simulated_train_{name}_energy_j") == [pytest.approx(phase["energy_j"]["gpu:0"])]


def test_evaluations_are_logged(trained):
    energies_j = logged(trained, "simulated_evaluate_energy_j")
    assert len(energies_j) == 2
    assert all(energy_j > 0.4 * 400.0 for energy_j in energies_j)


def test_a_simulated_figure_never_looks_real(trained):
    names = {name for row in trained["history"] for name in row}
    assert [name for name in names if name.endswith(("_j", "_w")) and not name.startswith("simulated_")] == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_without_a_meter_nothing_is_logged_and_it_says_so_once(framework, tmp_path):
    blind = train(framework, tmp_path, {"CUDA_VISIBLE_DEVICES": ""})
    names = {name for row in blind["history"] for name in row}
    assert "loss" in names
    assert [name for name in names if name.endswith(("_j", "_w"))] == []
    assert blind["run"]["energy_j"] is None
    assert blind["run"]["duration_s"] > 2.0
    assert blind["said"].count("energy of this training run is unknown") == 1


def test_the_trainers_own_result_holds_the_energy(trained):
    if "metrics" not in trained:
        pytest.skip("Lightning has no such result")
    assert trained["metrics"]["simulated_train_energy_j"] == trained["run"]["energy_j"]
