"""Machines with nothing to measure, and with simulated GPUs."""

import sys

import pytest

import wattsmith.cli
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import ExtraNeeded


@pytest.fixture
def no_meters(tmp_path):
    """The environment of a machine where nothing can be measured, whatever this one has."""
    return {"WATTSMITH_SYSFS": str(tmp_path), "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture
def gpus(tmp_path, monkeypatch):
    """Makes a machine with simulated GPUs and no other meter; an H200 draws 100 W + load × 600 W."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))

    def make(*loads, **options):
        machine = SimulatedNvml.create(tmp_path / "nvml", gpus=len(loads), **options)
        for index, load in enumerate(loads):
            machine.play(index, load)
        try:
            machine.environment()
        except ExtraNeeded as no_compiler:
            pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
        return machine

    return make


@pytest.fixture
def wattsmith_here(capsys, monkeypatch):
    """Runs `wattsmith ARGUMENTS` in this process, which must exit with CODE: standard output, and error."""

    def run(*arguments, code=0):
        monkeypatch.setattr(sys, "argv", ["wattsmith", *map(str, arguments)])
        capsys.readouterr()
        try:
            wattsmith.cli.main()
            left = 0
        except SystemExit as exited:
            left = exited.code or 0
        out, err = capsys.readouterr()
        assert left == code, err
        assert "Traceback" not in err
        return out, err

    return run
