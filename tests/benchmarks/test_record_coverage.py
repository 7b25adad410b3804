"""How far a record reaches is told by its least, its most and its nearest. What is found is in docs/record.md."""

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def reach(monkeypatch):
    """The benchmark's own module, found as the script finds it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("reach.range")


RECORDED = [(9.0, 0.0, 6.0), (12.0, 2.0, 9.0)]


def verdict_of(reach, *place):
    return reach.verdicts([place], RECORDED, [1.0, 1.0, 1.0])[0]


def test_a_recorded_network_lies_within_its_own_record(reach):
    verdict = verdict_of(reach, 12.0, 2.0, 9.0)
    assert verdict.within
    assert verdict.distance == 0.0


def test_between_two_but_near_none_is_inside_and_not_within(reach):
    verdict = verdict_of(reach, 10.5, 1.0, 7.5)
    assert verdict.inside
    assert not verdict.within
    assert verdict.distance == pytest.approx((1.5**2 + 1.0**2 + 1.5**2) ** 0.5)


def test_what_is_outside_says_on_which_side(reach):
    assert verdict_of(reach, 13.0, -1.0, 7.0).outside == ("intensity below", "operations above")


def test_without_a_record_of_that_kind_nothing_is_inside(reach):
    verdict = reach.verdicts([(9.0, 0.0, 6.0)], [], [1.0, 1.0, 1.0])[0]
    assert not verdict.inside
    assert verdict.distance is None


def test_distances_are_counted_in_standard_deviations(reach):
    assert reach.deviations([(1.0, 5.0, 0.0), (3.0, 5.0, 4.0)]) == [1.0, 1.0, 2.0]  # the second does not vary


def test_a_call_is_held_by_sizes_in_both_operations_and_bytes(reach):
    sizes = reach.Sizes(flops=(10.0, 100.0), moved_bytes=(1.0, 5.0), points=2)
    assert sizes.hold(10.0, 5.0)
    assert not sizes.hold(10.0, 6.0)
    assert not sizes.hold(9.0, 5.0)


def run(*options):
    command = [sys.executable, str(BENCHMARKS / "record_coverage.py"), *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is not installed")
def test_three_networks_are_held_against_the_shipped_record(tmp_path):
    wrote = tmp_path / "figures.json"
    done = run("--quick", "--json", wrote, "--data", tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(wrote.read_text())
    everything = figures["real"]["rows"]["all"]
    assert everything["steps"] == 14
    assert 0 <= everything["within"] <= everything["inside"] <= 1
    assert 0 < figures["operators"]["all"]["bytes_inside"] <= 1
    assert "NOT DONE: there are no tables" in done.stdout  # loudly, where the public tables are absent
    assert figures["published"] is None


def test_a_record_that_is_not_there_is_an_error(tmp_path):
    done = run("--record", tmp_path / "none.jsonl")
    assert done.returncode == 2
    assert "nothing to compute" in done.stdout
