"""The corpus script misses no bar in silence, and each way to tamper is seen. What it finds is in docs/report.md."""

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
DATA = BENCHMARKS.parents[1] / "shared" / "data" / "mlperf"
CASE = "inf-v4.1-untether-h13u3-resnet50-multistream"


@pytest.fixture
def tampering(monkeypatch):
    """The script's own module, found as the script finds it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("report_cases.tampering")


def test_without_data_it_says_so_and_exits_with_2(tmp_path):
    script = [sys.executable, str(BENCHMARKS / "report_corpus.py"), "--data", str(tmp_path)]
    done = subprocess.run(script, capture_output=True, text=True, check=False)
    assert (done.returncode, "NOT DONE: there are no cases in" in done.stdout) == (2, True)


@pytest.mark.skipif(
    not (DATA / CASE).is_dir(), reason="TAMPERED RESULTS ARE NOT CHECKED: ../shared/data/mlperf is absent"
)
def test_seventeen_ways_to_tamper_are_seen_and_the_eighteenth_cannot_be(tampering, tmp_path):
    from wattsmith.flows.checking import Layer, check

    case = next(one for one in json.loads((DATA / "CASES_inference.json").read_text()) if one["case"] == CASE)
    source = DATA / CASE / case["location"] / "performance"
    told = {}
    for number, variant in enumerate((*tampering.VARIANTS, tampering.BEYOND)):
        folder = tmp_path / str(number) / "multistream" / "performance"
        assert tampering.tampered(source, folder, variant) is None
        (report,) = check(folder, "v4.1").reports
        told[variant.name] = (report.verdict(Layer.OFFICIAL).value, report.verdict(Layer.STRICT).value)
    expected = {one.name: (one.officially, "rejected" if one.detectable else "accepted") for one in
                (*tampering.VARIANTS, tampering.BEYOND)}  # fmt: skip
    assert told == expected
    assert len(tampering.VARIANTS) == 17
