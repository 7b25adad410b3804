"""The table of matching: its bars, what it says without data, and the parts that need none. Its figures are in docs."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (DATA / "a100-dcgm-dvfs").exists(), reason="needs the public measurements beside this repository"
)


@pytest.fixture
def part(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return lambda name: importlib.import_module(f"matching.{name}")


def test_without_data_it_says_so_and_ends_with_2(tmp_path):
    script = BENCHMARKS / "match_accuracy.py"
    done = subprocess.run(
        [sys.executable, str(script), "--data", str(tmp_path)], capture_output=True, text=True, check=False, timeout=100
    )
    assert done.returncode == 2
    assert "SKIPPED" in done.stderr


def test_a_bar_is_met_at_itself_and_missed_beyond(part):
    row = part("rows").Row
    assert row(test="t", measure="m", ours=3.0, at_most=3.0).met
    assert row(test="t", measure="m", ours=94.9, at_least=95.0).met is False
    assert row(test="t", measure="m", ours=1.0).met is None


def test_any_sweep_can_be_read(part, tmp_path):
    rows = ["program,setting,time_s,power_w,sm"]
    rows += [
        f"{program},{clock},{10 * (1 + bound * (1400 / clock - 1))},{100 + 0.1 * clock},{bound}"
        for program, bound in (("a", 0.1), ("b", 0.3), ("c", 0.5), ("d", 0.7), ("e", 0.9), ("f", 1.0))
        for clock in (700, 840, 910, 1120, 1260, 1400)
    ]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(rows))
    sweep = part("sweeps").own_sweep(path)
    assert len(sweep.points) == 6
    assert sweep.points[0].response.settings[0] == 0.5
    found = part("responses").response_rows(sweep, bars=True)
    assert found[0].ours < 1.0
    assert found[3].ours <= 5.0


@needs_data
def test_the_sweeps_hold_what_the_table_says(part):
    sweeps = part("sweeps")
    sweep = sweeps.a100_sweep(DATA)
    assert len(sweep.points) == 23
    assert {len(one.response.settings) for one in sweep.points} == {61}
    cases = part("responses").cases_of(sweep)
    assert all(case.point.name not in [one.name for one in case.book.points] for case in cases)


def test_telemetry_is_recorded_around_steps(part, tmp_path, monkeypatch):
    from wattsmith.flows.telemetry_files import read_telemetry, write_telemetry

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    import time

    taken = part("recording").record_one(lambda: time.sleep(0.01), lambda: None, 0.5, meters="modelled:10W-65W")
    assert 20 < taken.steps_per_s < 110
    write_telemetry(taken, tmp_path / "t.parquet")
    assert read_telemetry(tmp_path / "t.parquet").steps_per_s == pytest.approx(taken.steps_per_s)
