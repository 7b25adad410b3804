"""The whole way on a simulated driver: watched, probed, recognised, scheduled, carried out, and the promise kept."""

import importlib
from pathlib import Path

import pytest

from wattsmith.terms.errors import ExtraNeeded

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def test_what_a_schedule_made_from_a_match_states_is_what_is_measured(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    loop = importlib.import_module("closed_loop")
    try:
        found = loop.once_round(loop.TRIED[2], tmp_path)
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    assert found.put_back
    assert {one.name: one.kept for one in found.figures} == dict.fromkeys(
        ("power_w", "step_s", "slowdown", "step_energy_j"), True
    ), loop.text_of([found])
    assert found.limit_w < 700.0
    assert found.energy_ratio < 1.0
    assert 0 < found.confidence <= 1
