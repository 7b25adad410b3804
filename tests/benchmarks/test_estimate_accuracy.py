"""The table of accuracy: its bars, its exit code, and that it says what is missing. Its figures are in docs."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DATA = Path(__file__).parents[3] / "shared" / "data"
needs_data = pytest.mark.skipif(
    not (DATA / "neusight").exists(), reason="needs the public measurements beside this repository, in ../shared/data"
)


@pytest.fixture
def rows(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("estimate_public.rows")


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("estimate_public.tables")


def accuracy(*arguments):
    script = BENCHMARKS / "estimate_accuracy.py"
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)], capture_output=True, text=True, check=False, timeout=150
    )


def test_a_bar_is_met_at_itself_and_missed_beyond(rows):
    def at(ours):
        return rows.Row(test="t", measure="coverage", ours=ours, at_least=88.0, at_most=93.0)

    assert at(88.0).met
    assert at(93.0).met
    assert at(93.1).met is False
    assert at(90.0).bar == "88–93"


def test_a_row_without_a_bar_is_neither_met_nor_missed(rows):
    assert rows.Row(test="t", measure="MAPE", ours=99.0).met is None


@pytest.mark.parametrize(
    ("network", "family"),
    [
        ("tf_efficientnet_b0_ns", "efficientnet"),
        ("resnet50", "resnet"),
        ("vit_base_patch16_224", "vit"),
        ("swsl_resnext50_32x4d", "resnext"),
    ],
)
def test_weights_from_elsewhere_do_not_make_another_family(tables, network, family):
    assert tables.family(network) == family


@pytest.mark.parametrize("name", ["timm", "profet", "neusight"])
def test_the_kept_structures_can_be_read(monkeypatch, name):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    kept = importlib.import_module("estimate_public.structures").read(name)
    assert kept
    assert all(one.flops > 0 and one.launches > 0 for one in kept.values())


def test_data_that_is_not_there_is_named(tmp_path):
    done = accuracy("--data", tmp_path, "--only", "neusight")
    assert done.returncode == 2
    assert "--data" in done.stderr


@needs_data
def test_transformers_on_gpus_never_seen_meet_their_bar(tmp_path):
    done = accuracy("--data", DATA, "--only", "neusight", "--json", tmp_path / "figures.json")
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert figures[0]["met"]
    assert figures[0]["ours"] < figures[0]["others"]["roofline"]
