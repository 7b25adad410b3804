import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from wattsmith.cli import app
from wattsmith.flows.report_disclosure import disclose_file, write_disclosure
from wattsmith.report.disclosure import Figure, disclose_tuning, disclose_window
from wattsmith.report.tiers import Tier
from wattsmith.terms.energy import CrossCheck, DomainEnergy, Source, Window
from wattsmith.terms.errors import BadInput, NotWritten, WattsmithError
from wattsmith.terms.facts import as_plain
from wattsmith.terms.tuning import Recommendation, Trial, Tried, Tuned
from wattsmith.terms.work import Interval

SHIPPED = Path(__file__).parents[2] / "src" / "wattsmith" / "records" / "h200.jsonl.gz"


def gpu(**more):
    told = {"domain": "gpu:0", "name": "NVIDIA H200", "source": Source.COUNTER, "energy_j": 30_000.0, "error_j": 30.0}
    return DomainEnergy(**(told | {"resolution_s": 0.02, "readings": 3_000} | more))


def window(*domains, **more):
    told = {"name": "train", "began_at": "2026-01-01T00:00:00+00:00", "duration_s": 100.0}
    return Window(domains=domains, **(told | more))


def test_component_energy_says_that_the_rest_of_the_machine_is_not_in_it():
    told = disclose_window(window(gpu()))
    assert told.standing.tier is Tier.D
    assert "the rest of the machine is not in the figure" in told.boundary
    assert "energy                    30 kJ ± 30 J" in told.text()


def test_what_was_not_measured_is_excluded_with_its_reason():
    told = disclose_window(window(gpu(), missing={"cpu": "no RAPL here"}))
    assert "cpu: no RAPL here" in told.excluded


def test_a_model_is_an_estimate():
    told = disclose_window(window(gpu(source=Source.MODELLED)))
    assert told.estimates == ("gpu:0 is computed from a stated model (NVIDIA H200)",)


def test_a_node_holds_the_whole_machine_and_its_parts_are_shown_beside():
    node = gpu(domain="node:0", source=Source.EXTERNAL, encloses=("gpu",))
    told = disclose_window(window(node, gpu()))
    assert told.boundary == "the whole machine (node:0)"
    assert [one.counted for one in told.instruments] == [True, False]


def test_missed_readings_and_figures_that_disagree_are_remarked():
    check = CrossCheck(duration_s=100.0, counter_j=30_000.0, integrated_j=20_000.0, joint_error_j=10.0)
    told = disclose_window(window(gpu(missed=5, cross_check=check)))
    assert told.remarks[0] == "gpu:0 missed 5 of 3005 readings"
    assert "more apart than both errors" in told.remarks[1]


def test_figures_of_the_load_stand_beside_those_of_the_window():
    told = disclose_window(window(gpu()), figures=[Figure(name="efficiency", value=2.0, unit="samples/J")])
    assert "efficiency                2 samples/J" in told.text()


def test_a_search_does_not_say_with_which_meter():
    advice = Recommendation(
        setting={"batch": 8},
        objective=Interval(value=2.0, low=1.9, high=2.1),
        saving=Interval(value=0.2, low=0.1, high=0.3),
        holds=1.0,
        kept=True,
        confirmed=True,
        why="least energy within the limits",
    )
    trial = Tried(
        number=1, trial=Trial(setting={"batch": 8}, metrics={"energy_j": 2.0}), objective=2.0, excess_ratio=-1.0
    )
    tuned = Tuned(
        objective="energy",
        limits=(),
        trials=(trial,),
        recommendation=advice,
        pareto=(1,),
        spent_j=2.0,
        pays_back_after=None,
    )
    told = disclose_tuning(tuned, title="search")
    assert told.standing.tier is Tier.F
    assert "1 trials; setting batch=8" in told.remarks


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What `wattsmith measure` leaves behind: its JSON and a timeline."""
    folder = tmp_path_factory.mktemp("measured")
    options = ["--meters", "modelled:10W-65W", "--timeline", folder / "t.csv", "--json", folder / "m.json", "-q"]
    start = [sys.executable, "-c", "from wattsmith.cli import main; main()"]
    subprocess.run([*start, "measure", *options, "--", "sleep", "0.3"], check=True)
    return folder


@pytest.mark.parametrize("name", ["m.json", "t.csv"])
def test_what_measure_left_behind_becomes_a_report(measured, name):
    (told,) = disclose_file(measured / name)
    assert told.standing.tier is Tier.F
    assert told.title == "sleep 0.3"
    assert told.basis.replayed is (name == "t.csv")


def test_every_run_of_a_record_becomes_a_report():
    told = disclose_file(SHIPPED)
    assert len(told) > 800
    assert {one.standing.tier for one in told} == {Tier.D, Tier.F}
    assert told[0].basis.samples is None


def test_a_disclosure_is_written_twice_for_programs_and_for_people(measured, tmp_path):
    told = disclose_file(measured / "m.json")
    paths = write_disclosure(told, tmp_path / "new")
    plain = json.loads(paths[0].read_text())
    assert plain[0]["standing"]["tier"] == "F"
    assert paths[1].read_text().startswith("sleep 0.3\n")
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten):
        write_disclosure(told, tmp_path / "file")


def test_the_command_prints_the_tier_first(measured, tmp_path):
    done = CliRunner().invoke(app, ["report", "from", str(measured / "m.json"), "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert done.output.splitlines()[3].startswith("Tier F")
    assert (tmp_path / "disclosure.txt").is_file()
    plain = json.loads(CliRunner().invoke(app, ["report", "from", str(measured / "t.csv"), "--json"]).output)
    assert plain[0]["basis"]["replayed"] is True


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"[]", "no run that is known"),
        (b"{}", "no run that is known"),
        (b"\xff\xfe", "cannot be read as text"),
        (b"[" * 100_000, "no JSON"),
        (b'{"window": 3}', "expected an object"),
        (b'{"window": {"name": "x"}}', "missing"),
        (b'[{"workload": 1}]', "run 1"),
    ],
)
def test_a_file_that_is_no_run_is_named(tmp_path, content, said):
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(BadInput, match=said):
        disclose_file(path)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadInput, match="there is no file"):
        disclose_file(tmp_path / "none.json")


@given(
    plain=st.recursive(
        st.none() | st.booleans() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["window", "windows", "domains", "workload", "recommendation"]), inner)
        ),
        max_leaves=8,
    )
)
def test_no_json_breaks_it(plain, tmp_path_factory):
    path = tmp_path_factory.getbasetemp() / "any.json"
    path.write_text(json.dumps(plain))
    try:
        disclose_file(path)
    except WattsmithError:
        return


def test_a_window_read_back_is_the_same(tmp_path):
    path = tmp_path / "w.json"
    path.write_text(json.dumps([as_plain(window(gpu()))]))
    assert disclose_file(path) == [disclose_window(window(gpu()))]
