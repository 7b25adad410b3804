"""Published results, where they lie beside the repository: figures, verdicts, bytes."""

import json
from pathlib import Path

import pytest

from wattsmith.flows.checking import Layer, check
from wattsmith.report.formats.descriptor import as_text, read_descriptor
from wattsmith.report.formats.lines import encoded, written
from wattsmith.report.formats.mllog import log_lines
from wattsmith.report.formats.ptd_log import ptd_lines
from wattsmith.report.formats.spl import spl_lines
from wattsmith.report.formats.summary import read_summary
from wattsmith.report.formats.tiny import (
    read_timestamps,
    read_trials,
    timestamps_text,
    trace_bytes,
    trace_microjoules,
    trace_rate_hz,
)

DATA = Path(__file__).parents[3] / "shared" / "data" / "mlperf"
pytestmark = pytest.mark.skipif(
    not DATA.is_dir(), reason=f"PUBLISHED RESULTS ARE NOT CHECKED: there is no {DATA.name} in ../shared/data"
)


def cases(kind):
    path = DATA / f"CASES_{kind}.json"
    return json.loads(path.read_text()) if path.is_file() else []


def report_of(*parts):
    (report,) = check(DATA.joinpath(*parts)).reports
    return report


@pytest.mark.parametrize("case", cases("inference"), ids=lambda case: case["case"])
def test_an_inference_result_has_its_published_figure_and_verdict(case):
    report = report_of(case["case"])
    scale = 1_000 if case["published_power_units"].startswith("milli") else 1
    expected = case["expected_official_check"]
    assert report.round == case["round"]
    assert report.figures["metric"] * scale == pytest.approx(case["recomputed_metric_round_rule"], rel=1e-12)
    assert report.figures["metric"] * scale == pytest.approx(case["published_power"], rel=1e-9)
    assert (report.verdict(Layer.OFFICIAL) == "rejected") == expected.startswith("fail")
    clean = not expected.startswith("fail") and "strict checker must flag" not in expected
    assert (report.verdict(Layer.STRICT) == "accepted") == clean


@pytest.mark.parametrize("case", cases("training"), ids=lambda case: case["case"])
def test_a_training_result_has_its_published_energy(case):
    figures = report_of(case["case"]).figures
    assert figures["energy_j"] == pytest.approx(case["official_v40_kj"] * 1_000, rel=1e-9)
    assert figures["energy_in_window_j"] == pytest.approx(case["inwindow_kj"] * 1_000, rel=1e-9)
    assert figures["switches_j"] == pytest.approx(case["switch_kj"] * 1_000, rel=1e-9)
    assert figures["time_to_train_s"] == pytest.approx(case["ttt_min"] * 60, rel=1e-9)


@pytest.mark.parametrize("case", cases("tiny"), ids=lambda case: case["case"])
def test_a_tiny_result_has_its_published_median_from_the_trace(case):
    report = report_of(case["case"])
    each = sorted(round(1e6 * one, 3) for one in json.loads(report.figures["per_window_j"]))
    assert each == sorted(case["per_window_uj_per_inf"])
    assert 1e6 * report.figures["energy_per_inference_j"] == pytest.approx(
        case["published_median_uj_per_inf"], abs=5e-4
    )
    assert report.verdict(Layer.STRICT) == "accepted"


def same_bytes(path):
    """Whether a file comes back to the last byte; None: it is of no format that we know."""
    raw = path.read_bytes()
    match path.name:
        case "spl.txt":
            return written(spl_lines(path)) == raw
        case "ptd_logs.txt":
            return written(ptd_lines(path)) == raw
        case "mlperf_log_detail.txt":
            return written(log_lines(path)) == raw
        case "mlperf_log_summary.txt":
            return read_summary(path).encode() == raw
        case "client.json" | "server.json":
            found = read_descriptor(path)
            # Also written anew it is the same: the manner is that of the official client and server.
            return found.encode() == raw and encoded(as_text(found.body)) == raw.replace(b"\r\n", b"\n").rstrip()
        case "trace1-energy.bin":
            return trace_bytes(trace_rate_hz(path), list(trace_microjoules(path))) == raw
        case "trace1-timestamps.json":
            return timestamps_text(read_timestamps(path)).encode() == raw
        case "results.json":
            return read_trials(path).encode() == raw
        case name if name.startswith(("node_", "sw_", "result_")) and name.endswith(".txt"):
            return written(log_lines(path)) == raw
    return None


@pytest.mark.parametrize("case", [one["case"] for kind in ("inference", "tiny", "training") for one in cases(kind)])
def test_every_file_comes_back_to_the_last_byte(case):
    told = {str(path): same_bytes(path) for path in sorted((DATA / case).rglob("*")) if path.is_file()}
    assert [path for path, same in told.items() if same is False] == []
    assert any(told.values())
