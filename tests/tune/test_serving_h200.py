"""What was measured on an H200 (`benchmarks/tune_serving.py`), looked at and searched again."""

import gzip
import json
import statistics
import sys
from pathlib import Path

import pytest

from wattsmith.tune.contention import Contention, Job, Pair, left_out_error

pytest.importorskip("scipy")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TOLD = json.loads(gzip.decompress((BENCHMARKS / "tuning" / "serving_h200.json.gz").read_bytes()))
NETWORKS = {one["network"]: one for one in TOLD["networks"]}


@pytest.fixture
def table(monkeypatch):
    """The script's own way to search a table again."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from tuning import table

    yield table
    for name in [name for name in sys.modules if name == "tuning" or name.startswith("tuning.")]:
        del sys.modules[name]


def job(plain):
    return Job(flops=plain["flops"], moved_bytes=plain["moved_bytes"], batch=plain["batch"])


def test_it_was_measured_not_modelled():
    assert TOLD["device"] == "NVIDIA H200"
    assert not TOLD["modelled"]


@pytest.mark.parametrize("name", NETWORKS)
def test_the_tuned_setting_saves_energy_and_keeps_the_limit(name):
    told = NETWORKS[name]
    before, after = ([one["energy_j"] for one in told["compared"][side]] for side in ("before", "after"))
    assert len(before) == len(after) == 5
    assert max(after) < min(before)  # not one window is on the wrong side
    assert statistics.fmean(1 - b / a for a, b in zip(before, after, strict=True)) == pytest.approx(
        told["saving"], abs=1e-5
    )
    assert told["saving"] - told["saving_half"] > 0.1
    assert all(one["latency_p99_s"] <= told["limit_s"] for one in told["compared"]["after"])
    assert told["after"]["over"] == 0.0


@pytest.mark.parametrize("name", NETWORKS)
def test_what_was_foretold_of_the_saving_came(name):
    told = NETWORKS[name]
    foretold = told["tuned"]["recommendation"]["saving"]
    assert foretold["low"] - told["saving_half"] <= told["saving"] <= foretold["high"] + told["saving_half"]
    assert told["tuned"]["recommendation"]["kept"]


def test_the_table_is_searched_to_its_best_setting(table):
    told = NETWORKS["resnet50"]
    again = table.replayed_on(told["table"], told["limit_s"], 15, lambda _: None)
    assert again["wattsmith"]["excess"] <= 0.01
    assert again["wattsmith"]["to_5"] <= 5
    assert again["wattsmith"]["infeasible"] < again["random"]["infeasible"]
    assert again["hill-climb"]["to_5"] == told["peers"]["hill-climb"]["to_5"]


def test_a_plan_that_knows_what_sharing_costs_keeps_the_limit_that_the_other_breaks():
    served = NETWORKS["resnet50"]["beside"]["served"]
    assert served["alone"]["over"] == 0.0
    assert served["without the model"]["over"] > 0.1
    assert served["with the model"]["over"] == 0.0
    assert served["with the model"]["samples_hz"] > 0.98 * served["without the model"]["samples_hz"]


def test_what_sharing_costs_is_foretold_for_pairs_that_were_left_out():
    told = NETWORKS["resnet50"]["beside"]
    pairs = [
        Pair(
            inference=job(one["inference"]),
            fine_tuning=None if one["fine_tuning"] is None else job(one["fine_tuning"]),
            latency_s=one["latency_s"],
        )
        for one in told["pairs"]
    ]
    assert Contention.fit(pairs).shape == told["shape"] == "slows down"
    assert left_out_error(pairs, "slows down") == pytest.approx(told["errors"]["slows down"], abs=1e-3)
    assert told["errors"]["slows down"] < 0.15 < left_out_error(pairs, "adds up")
