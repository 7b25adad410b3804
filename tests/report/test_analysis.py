import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.flows.report_analysis import load, summarise
from wattsmith.report.analysis import (
    Efficiency,
    Result,
    Work,
    accuracy_costs,
    count_rounds,
    largest_gain,
    median_cost,
    most_efficient,
    round_key,
    scaling,
    summarise_systems,
    trend,
)
from wattsmith.report.analysis_claims import Claim, Outcome, claims_of
from wattsmith.report.analysis_folder import read_folder, read_result
from wattsmith.report.analysis_tables import RUNS, Corpus, read_corpus, read_results
from wattsmith.report.formats.mllog import loadgen_line
from wattsmith.report.formats.stamps import stamp
from wattsmith.terms.errors import BadInput, BadTerm

ROOT = Path(__file__).parents[2]
DATA = ROOT.parent / "shared" / "data" / "mlperf"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason=f"THE PUBLISHED TABLES ARE NOT CHECKED: no folder {DATA}")
HEAD = "version,division,submitter,system,model,scenario,window_s,samples,avg_w,metric,metric_unit,samples_per_joule\n"
ROW = "v4.0,closed,Us,box,resnet50,Offline,600.0,600,100.0,100.0,W,2.0\n"


def result(**changes):
    told = dict.fromkeys((field.name for field in dataclasses.fields(Result)), None)
    told |= {
        "round": "v4.0",
        "division": "closed",
        "submitter": "Us",
        "system": "box",
        "system_name": "Box",
        "category": "datacenter",
        "model": "resnet50",
        "scenario": "offline",
        "scenario_run": "offline",
        "window_s": 600.0,
        "samples": 600,
        "invalid_samples": 0,
        "power_w": 100.0,
        "metric": 100.0,
        "metric_unit": "W",
        "efficiency": samples(2.0),
        "published_figure_units": "",
        "accelerator": "GPU",
        "published_performance_units": "",
        "accelerators": 4,
    }
    return Result(**(told | changes))


def samples(per_joule):
    return Efficiency(per_joule=per_joule, work=Work.SAMPLES)


# ---- units


def test_tokens_and_samples_cannot_be_mixed():
    tokens = Efficiency(per_joule=2.74, work=Work.TOKENS)
    with pytest.raises(BadTerm, match="tokens/J cannot be compared with samples/J"):
        tokens.over(samples(0.023))


def test_a_stated_count_leads_from_one_unit_to_the_other():
    tokens = samples(0.5).as_work(Work.TOKENS, each=69)
    assert (tokens.per_joule, tokens.unit) == (34.5, "tokens/J")
    assert tokens.over(Efficiency(per_joule=3.45, work=Work.TOKENS)) == pytest.approx(10.0)
    with pytest.raises(BadTerm, match="more than 0 tokens"):
        samples(1.0).as_work(Work.TOKENS, each=0)


def test_joules_for_one_are_the_inverse():
    assert samples(4.0).energy_each_j == 0.25


@pytest.mark.parametrize("value", [0.0, -1.0, float("inf"), float("nan")])
def test_an_efficiency_is_positive_and_finite(value):
    with pytest.raises(BadTerm):
        samples(value)


@given(one=st.floats(1e-6, 1e6), other=st.floats(1e-6, 1e6))
def test_a_gain_there_and_back_is_one(one, other):
    assert samples(one).over(samples(other)) * samples(other).over(samples(one)) == pytest.approx(1.0)


@given(works=st.lists(st.sampled_from(Work), min_size=2, max_size=4))
def test_the_best_of_mixed_units_is_refused(works):
    results = [result(efficiency=Efficiency(per_joule=1.0, work=work)) for work in works]
    if len(set(works)) == 1:
        most_efficient(results)
    else:
        with pytest.raises(BadTerm, match="cannot be compared"):
            most_efficient(results)


# ---- comparisons


def test_a_trend_takes_the_best_closed_result_of_each_round():
    results = [
        result(round="v10.0", efficiency=samples(8.0)),
        result(round="v9.0", efficiency=samples(2.0)),
        result(round="v9.0", efficiency=samples(4.0)),
        result(round="v9.0", efficiency=samples(99.0), division="open"),
        result(round="v9.0", efficiency=samples(99.0), scenario="server"),
    ]
    steps = trend(results, "resnet50")
    assert [(step.round, step.efficiency.per_joule, step.results) for step in steps] == [
        ("v9.0", 4.0, 2),
        ("v10.0", 8.0, 1),
    ]
    assert largest_gain(steps) == 2.0
    assert largest_gain(steps[:1]) is None


def test_a_benchmark_that_became_another_one_is_not_compared_across():
    results = [result(model="3d-unet-99", round=name) for name in ("v1.1", "v2.0", "v2.1")]
    assert [step.round for step in trend(results, "3d-unet-99")] == ["v2.0", "v2.1"]


def test_rounds_are_sorted_by_number():
    assert sorted(["v10.0", "v2.1", "v2.0"], key=round_key) == ["v2.0", "v2.1", "v10.0"]


def test_scaling_compares_the_same_accelerator_within_a_round():
    results = [
        result(accelerators=4, efficiency=samples(2.0)),
        result(accelerators=8, efficiency=samples(1.5)),
        result(accelerators=8, efficiency=samples(1.0)),
        result(accelerators=8, accelerator="other"),
        result(accelerators=None),
    ]
    (found,) = scaling(results)
    assert [point[0] for point in found.points] == [4, 8]
    assert found.kept_ratio == 0.75


def test_accuracy_costs_what_it_costs():
    pair = [result(model="bert-99", efficiency=samples(4.0)), result(model="bert-99.9", efficiency=samples(2.0))]
    (cost,) = accuracy_costs(pair)
    assert (cost.model, cost.kept_ratio) == ("bert", 0.5)
    assert median_cost([cost], round_name="v4.0", model="bert") == 0.5
    assert median_cost([cost], round_name="v1.0", model="bert") is None


def test_results_that_share_a_recording_are_one_recording():
    inferred = result(scenario="multistream", metric=8.0)
    assert count_rounds([result(), inferred])[0].recordings == 1
    assert count_rounds([result(), result(power_w=101.0)])[0].recordings == 2


def test_systems_are_told_apart_by_submitter():
    both = [result(), result(submitter="Them")]
    assert [one.submitter for one in summarise_systems(both)] == ["Them", "Us"]


def test_a_published_rate_far_above_the_logs_own_is_in_another_unit():
    told = {"samples_per_s": 189.8, "published_performance": 13_096.6}
    assert result(**told, published_performance_units="Samples/s").labelled_wrong
    assert not result(**told, published_performance_units="Tokens/s").labelled_wrong
    assert not result(samples_per_s=189.8, published_performance=189.8).labelled_wrong


# ---- what was said before


def test_a_claim_agrees_differs_or_does_not_match():
    said = {"topic": "t", "text": "x", "said_by": "paper", "said": 100.0, "unit": "×", "within_ratio": 0.01}
    assert Claim(**said, ours=100.5).outcome is Outcome.AGREES
    assert Claim(**said, ours=1.7).outcome is Outcome.MISMATCH
    assert Claim(**said, ours=1.7, repeats=False).outcome is Outcome.DIFFERS
    assert Claim(**said, ours=100.0, repeats=False).outcome is Outcome.MISMATCH
    assert Claim(**said, ours=None).outcome is Outcome.UNCHECKED


def test_claims_can_be_made_of_any_table_and_mismatch_there():
    claims = claims_of(Corpus(results=(result(),)))
    assert any(claim.outcome is Outcome.MISMATCH for claim in claims)
    assert any(claim.outcome is Outcome.UNCHECKED for claim in claims)
    assert claims_of(Corpus(results=()))


@needs_data
def test_the_published_tables_give_what_was_said_of_them():
    claims = claims_of(read_corpus(DATA))
    assert [claim.text for claim in claims if claim.outcome not in (Outcome.AGREES, Outcome.DIFFERS)] == []
    assert sum(claim.outcome is Outcome.DIFFERS for claim in claims) == 9


@needs_data
def test_logs_give_the_metric_of_the_table():
    results, unread = read_folder(DATA)
    table = {(r.round, *r.owner, r.model, r.scenario): r.metric for r in read_corpus(DATA).results}
    assert unread == []
    assert len(results) == 9
    for one in results:
        assert one.metric == pytest.approx(table[(one.round, *one.owner, one.model, one.scenario)], rel=1e-9)


@needs_data
def test_the_benchmark_prints_both_and_exits_with_0(tmp_path):
    wrote = tmp_path / "figures.json"
    command = [sys.executable, ROOT / "benchmarks" / "report_analysis.py", "--data", DATA, "--json", wrote]
    subprocess.run(command, capture_output=True, text=True, check=True)
    told = json.loads(wrote.read_text())
    assert len(told["claims"]) > 90
    assert all(bar["met"] for bar in told["bars"])


# ---- tables that are wrong


def write(path, text):
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_a_small_table_is_read_and_nothing_is_claimed_of_it(tmp_path):
    summary = summarise(write(tmp_path / "t.csv", HEAD + ROW))
    assert summary.results == 1
    assert summary.claims == ()


def test_windows_line_ends_and_a_byte_order_mark_are_no_trouble(tmp_path):
    text = ("\ufeff" + HEAD + ROW).replace("\n", "\r\n")
    assert next(read_results(write(tmp_path / "t.csv", text))).power_w == 100.0


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "lacks the columns version"),
        (b"a,b\n1,2\n", "lacks the columns"),
        (HEAD + ROW.replace("600.0", "soon"), "line 2: window_s is 'soon', not a number"),
        (HEAD + ROW.replace("600.0", "nan"), "not a finite number"),
        (HEAD + ROW.replace("600.0", ""), "window_s is empty"),
        (HEAD + ROW.replace(",2.0", ",-2.0"), "line 2: an efficiency must be positive"),
        (HEAD + ROW[:20], "not as many cells"),
        (HEAD + ROW.strip() + ",extra\n", "not as many cells"),
        (b"\xff\xfe\x00", "cannot be read as a table"),
        (HEAD + '"' + "x" * 200_000, "cannot be read as a table"),
    ],
)
def test_what_is_wrong_with_a_table_is_named(tmp_path, content, said):
    with pytest.raises(BadInput, match=said):
        list(read_results(write(tmp_path / "t.csv", content)))


def test_a_table_of_two_gigabytes_is_refused_before_it_is_read(tmp_path):
    path = tmp_path / "t.csv"
    with path.open("wb") as file:
        file.truncate(1 << 31)
    with pytest.raises(BadInput, match="at most"):
        list(read_results(path))


@pytest.mark.parametrize("name", ["none", "empty"])
def test_a_place_without_results_is_named(tmp_path, name):
    (tmp_path / "empty").mkdir()
    with pytest.raises(BadInput, match=r"neither a file nor|holds no result"):
        load(tmp_path / name)


@given(text=st.text(max_size=200))
def test_no_text_breaks_the_reading_of_tables(text, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(text.encode("utf-8", "replace"))
    try:
        list(read_results(path))
    except BadInput:
        return


# ---- folders of results


def make_result(folder, *, watts=200.0, begin_s=1000.0, duration_s=10.0, queries=50, scenario="SingleStream"):
    """A result as MLPerf publishes it, without what the analysis does not need."""
    place = folder / "inference_results_v4.0/closed/Us/results/box/resnet50" / scenario / "performance"
    (place / "run_1").mkdir(parents=True)
    values = {
        "power_begin": stamp(begin_s),
        "power_end": stamp(begin_s + duration_s),
        "effective_scenario": scenario,
        "result_query_count": queries,
    }
    lines = [loadgen_line(key, value, 0.0) for key, value in values.items()]
    (place / "run_1" / "mlperf_log_detail.txt").write_text("\n".join(lines) + "\n")
    spl = [
        f"Time,{stamp(begin_s + second)},Watts,{watts:.6f},Volts,230.000000,Amps,1.000000,PF,0.900000,Mark,s_testing"
        for second in range(-2, int(duration_s) + 3)
    ]
    (place / "run_1" / "spl.txt").write_text("\n".join(spl) + "\n")
    return place


def test_a_result_is_worked_out_from_its_logs(tmp_path):
    make_result(tmp_path)
    (one,), unread = read_folder(tmp_path)
    assert unread == []
    assert (one.round, one.division, one.submitter, one.model, one.scenario) == (
        *("v4.0", "closed", "Us", "resnet50"),
        "singlestream",
    )
    assert (one.power_w, one.metric, one.metric_unit) == (200.0, 40.0, "J/query")  # 2,000 J over 50 queries
    assert one.efficiency == samples(1 / 40.0)


@pytest.mark.parametrize(
    ("break_it", "said"),
    [
        (lambda run: (run / "mlperf_log_detail.txt").unlink(), "mlperf_log_detail.txt"),
        (lambda run: (run / "mlperf_log_detail.txt").write_text(""), "no power_begin"),
        (lambda run: (run / "spl.txt").write_text(""), "no valid power sample"),
        (lambda run: (run / "spl.txt").write_bytes(b"\x00\xff" * 50), ""),
        (
            lambda run: (run / "mlperf_log_detail.txt").write_text(
                "\n".join([loadgen_line("power_begin", stamp(50.0), 0.0), loadgen_line("power_end", stamp(40.0), 0.0)])
            ),
            "ends at",
        ),
    ],
)
def test_a_result_that_cannot_be_read_is_named_and_the_others_stay(tmp_path, break_it, said):
    make_result(tmp_path, scenario="Server", queries=1)
    break_it(make_result(tmp_path) / "run_1")
    results, unread = read_folder(tmp_path)
    assert len(results) == 1
    assert len(unread) == 1
    assert said in unread[0]


def test_a_link_that_leaves_the_folder_is_not_followed(tmp_path):
    place = make_result(tmp_path / "results")
    outside = write(tmp_path / "outside.txt", "secret")
    (place / "run_1" / "spl.txt").unlink()
    (place / "run_1" / "spl.txt").symlink_to(outside)
    with pytest.raises(BadInput, match="leaves the folder"):
        read_result(place, tmp_path / "results")


def test_a_folder_with_a_table_is_that_table(tmp_path):
    write(tmp_path / RUNS, HEAD + ROW)
    corpus, unread = load(tmp_path)
    assert (len(corpus.results), unread) == (1, ())
