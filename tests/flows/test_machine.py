"""`wattsmith.machine()`: what is here, what is missing, and nothing left open."""

import pytest

import wattsmith
from wattsmith.sim.nvml import STATE_VARIABLE, SimulatedNvml
from wattsmith.terms.errors import BadInput, ExtraNeeded, MeterUnavailable


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """Two simulated GPUs in this process, and no other meter."""
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv(STATE_VARIABLE, "set by load_here, and taken away again afterwards")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    machine = SimulatedNvml.create(tmp_path / "nvml", gpus=2)
    try:
        machine.load_here()
    except (ExtraNeeded, MeterUnavailable) as impossible:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {impossible}")
    return machine


def test_simulated_gpus_name_themselves(simulated):
    described = wattsmith.machine()
    assert described.simulated
    assert [gpu.uuid for gpu in described.gpus] == [simulated.uuid(0), simulated.uuid(1)]
    assert all("simulated" in gpu.name for gpu in described.gpus)
    assert [card.domain for card in described.meters] == ["gpu:0", "gpu:1"]
    assert "simulated" in described.driver


def test_the_driver_is_let_go_again(simulated):
    wattsmith.machine()
    assert simulated.calls("nvmlInit") == simulated.calls("nvmlShutdown") > 0


def test_what_is_missing_says_why(simulated):  # noqa: ARG001 - no other meter than GPUs
    assert "no RAPL package" in wattsmith.machine().missing["cpu"]


def test_only_what_is_asked_for_is_looked_at(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    with pytest.raises(MeterUnavailable, match="no RAPL package"):
        wattsmith.machine("cpu")
    with pytest.raises(BadInput, match="no meter 'plug'"):
        wattsmith.machine("plug")
    assert wattsmith.machine("modelled:10W-65W").missing == {}
