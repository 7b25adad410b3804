"""Every example runs, on this machine as it is, and does what it says."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="EXAMPLES ARE NOT RUN: PyTorch is not installed")

EXAMPLES = Path(__file__).parents[2] / "examples"
MODELLED = ["--meters", "modelled:10W-65W"]  # the same on every machine
BY_MODEL = re.compile(r"([\d.]+) (k?J) ± .* \(cpu-package:modelled, modelled\)$", re.MULTILINE)


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs an example in this process, which has PyTorch already, and gives what it printed."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def run_alone(name, *arguments):
    """The same in a process of its own, for frameworks that warn and log as they please."""
    done = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_cnn_learns_from_workers_and_tells_its_energy_with_the_source(run):
    said = run("train_cnn.py", "--images", 512, "--workers", 1, *MODELLED)
    assert float(re.search(r"epoch 2: loss [\d.]+, ([\d.]+)% right", said)[1]) > 90
    assert re.search(r"^16 batches, 1 workers, .*J waiting\), modelled$", said, re.MULTILINE)
    number, unit = BY_MODEL.search(said).groups()
    assert float(number) * {"J": 1, "kJ": 1000}[unit] > 1
    assert re.search(r"^[\d.]+ J an image$", said, re.MULTILINE)


def test_the_cnn_says_unknown_where_there_is_no_meter(run, monkeypatch, tmp_path):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = run("train_cnn.py", "--images", 128, "--epochs", 1, "--workers", 0)
    assert "energy unknown: no meter was found; `wattsmith machine` says why" in said
    assert "J an image" not in said


def test_the_transformer_goes_on_where_it_was_stopped(run, tmp_path):
    short = ["--rows", 1024, "--epochs", 1, "--state", tmp_path / "run.pt", *MODELLED]
    first, second = run("train_transformer.py", *short), run("train_transformer.py", *short, "--workers", 1)
    assert "epoch 1: " in first
    assert "epoch 2: " in second
    losses = [float(re.search(r"^loss ([\d.]+)", said)[1]) for said in (first, second)]
    assert losses[1] < 0.7 * losses[0]
    assert BY_MODEL.search(second)


def test_the_tuner_serves_in_batches_for_the_least_modelled_energy(run):
    said = run("serve_with_tuner.py", "--window", 0.2, "--limit", "latency_p99<=2s", *MODELLED)
    assert said.startswith("least energy is looked for; meters: cpu-package:modelled\n")
    assert len(re.findall(r"^trial \d+: .* J a query$", said, re.MULTILINE)) >= 4
    assert re.search(r"recommended: {'batch': \d, 'threads': \d}, least of the settings that keep all limits", said)
    assert int(re.search(r"^energy saved: (-?\d+)%", said, re.MULTILINE)[1]) >= 0


def test_without_a_meter_the_tuner_looks_for_the_least_time_and_says_so(run, monkeypatch, tmp_path):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    said = run("serve_with_tuner.py", "--window", 0.1, "--limit", "latency_p99<=2s")
    assert said.startswith("least time is looked for; meters: none\n")
    assert "energy unknown" in said
    assert re.search(r"^time saved: -?\d+%", said, re.MULTILINE)


@pytest.mark.parametrize("name", ["hugging_face_trainer.py", "lightning_trainer.py"])
def test_a_framework_logs_the_energy_of_its_run(name):
    pytest.importorskip({"h": "transformers", "l": "lightning"}[name[0]], reason=f"{name} IS NOT RUN")
    said = run_alone(name, *MODELLED)
    logged = {line.split()[0]: float(line.split()[1]) for line in said.splitlines() if line.startswith("modelled_")}
    parts = [logged[f"modelled_train_{phase}_energy_j"] for phase in ("data", "compute", "evaluate", "rest")]
    assert sum(parts) == pytest.approx(logged["modelled_train_energy_j"], rel=0.02)
    assert len(re.findall(r"^epoch: .*modelled\)$", said, re.MULTILINE)) == 2
    assert re.search(r"^train: .*modelled\)$", said, re.MULTILINE)


@pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
def test_the_notebook_plots_all_networks_of_the_shipped_record(capsys):
    matplotlib = pytest.importorskip("matplotlib", reason="THE NOTEBOOK IS NOT RUN: matplotlib is not installed")
    matplotlib.use("agg")
    from matplotlib import pyplot

    notebook = json.loads((EXAMPLES / "plot_record.ipynb").read_text())
    assert notebook["nbformat"] == 4
    names = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            exec("".join(cell["source"]), names)  # no magic in it, so that plain Python is enough
    try:
        networks = names["networks"]
        times, energies, coverage = [pyplot.figure(number).axes[0] for number in pyplot.get_fignums()]
        assert sum(len(points.get_offsets()) for points in times.collections) == len(networks) > 200
        assert sum(len(points.get_offsets()) for points in energies.collections) > 60
        assert int(coverage.images[0].get_array().sum()) == len(networks)
        assert capsys.readouterr().out == "".join(notebook["cells"][1]["outputs"][0]["text"])
    finally:
        pyplot.close("all")


def test_what_the_notebook_keeps_is_small():
    assert (EXAMPLES / "plot_record.ipynb").stat().st_size < 100_000
    notebook = json.loads((EXAMPLES / "plot_record.ipynb").read_text())
    pictures = [
        out for cell in notebook["cells"] for out in cell.get("outputs", []) if "image/png" in out.get("data", {})
    ]
    assert len(pictures) == 3
