"""Whole folders: what is found, what is not followed, what several results share."""

import json
import shutil
from dataclasses import replace

import pytest
from tests.report.session_folder import SOURCES_FAIL, write_session

from wattsmith.flows.checking import Layer, Verdict, check, verdicts_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    return write_session(tmp_path_factory.mktemp("one") / "performance")


def place(session, root, *parts):
    target = root.joinpath(*parts, "performance")
    shutil.copytree(session, target)
    return target


def test_all_results_below_a_folder_are_found_in_order(session, tmp_path):
    for system in ("b", "a"):
        place(session, tmp_path, system, "bert", "offline")
    (tmp_path / "notes").mkdir()
    assert [report.place for report in check(tmp_path).reports] == [
        "a/bert/offline/performance",
        "b/bert/offline/performance",
    ]


def test_the_folder_of_a_result_itself_is_enough(session):
    (report,) = check(session).reports
    assert (report.place, report.kind, report.round) == (".", "inference", "v4.0")
    assert {one.name for one in report.reasons(Layer.STRICT)} == SOURCES_FAIL


def test_an_empty_folder_is_an_error_that_says_what_was_looked_for(tmp_path):
    with pytest.raises(BadInput, match="no power result below"):
        check(tmp_path)
    with pytest.raises(BadInput, match="is no folder"):
        check(tmp_path / "none")


def test_an_unknown_round_is_named_before_anything_is_read(tmp_path):
    with pytest.raises(BadInput, match=r"v0\.1"):
        check(tmp_path, "v0.1")


def test_links_that_lead_out_of_the_folder_are_named_and_not_followed(session, tmp_path):
    inside = place(session, tmp_path / "in", "sys", "bert", "offline")
    outside = tmp_path / "out"
    outside.mkdir()
    (inside / "run_1" / "spl.txt").rename(outside / "spl.txt")
    (inside / "run_1" / "spl.txt").symlink_to(outside / "spl.txt")
    (tmp_path / "in" / "more").symlink_to(outside)
    checked = check(tmp_path / "in")
    assert sorted(link.partition(" →")[0] for link in checked.leaving) == [
        "more",
        "sys/bert/offline/performance/run_1/spl.txt",
    ]
    reasons = {one.name: one.evidence for one in checked.reports[0].reasons(Layer.STRICT)}
    assert "refused: it is a link that leaves the folder" in reasons["Required files"]


def test_a_power_folder_that_lies_outside_is_not_read(session, tmp_path):
    inside = place(session, tmp_path / "in", "sys", "bert", "offline")
    (inside / "power").rename(tmp_path / "power")
    (inside / "power").symlink_to(tmp_path / "power")
    (report,) = check(tmp_path / "in").reports
    assert "leaves the folder" in next(one.evidence for one in report.checks if one.name == "Check session name")


def test_links_inside_are_looked_at_where_they_lie_and_loops_end(session, tmp_path):
    place(session, tmp_path, "a", "bert", "offline")
    (tmp_path / "again").symlink_to(tmp_path / "a")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    checked = check(tmp_path)
    assert (len(checked.reports), checked.inner_links, len(checked.leaving)) == (1, ("again",), 1)


def test_a_file_of_two_gigabytes_is_refused_and_named(session, tmp_path):
    target = place(session, tmp_path, "a", "bert", "offline")
    with (target / "power" / "ptd_logs.txt").open("wb") as file:
        file.truncate(2 << 30)
    (report,) = check(tmp_path).reports
    reasons = {one.name: one.evidence for one in report.reasons(Layer.STRICT)}
    assert "refused: it has 2147483648 bytes" in reasons["The daemon's whole log"]


def test_one_recording_may_serve_scenarios_and_systems_of_one_submitter_alone(session, tmp_path):
    for system in ("edge", "datacenter"):
        for scenario in ("offline", "singlestream"):
            place(session, tmp_path, "closed", "Acme", "results", system, "bert", scenario)
    (shared,) = check(tmp_path).shared
    assert (len(shared.places), shared.systems, shared.submitters) == (4, 2, 1)
    place(session, tmp_path, "closed", "Other", "results", "mine", "bert", "offline")
    (shared,) = check(tmp_path).shared
    assert (shared.submitters, shared.session) == (2, "2024-02-20_10-00-00")


def test_a_recording_that_two_submitters_have_is_rejected_by_the_strict_layer(tmp_path):
    for name in ("Acme", "Other"):
        folder = tmp_path / "closed" / name / "results" / "x" / "kws" / "offline" / "performance"
        write_session(folder)
    checked = check(tmp_path)
    (own, _) = checked.reports
    clean = replace(own, checks=())
    assert own.place in checked.shared[0].places
    assert checked.verdict(clean) is Verdict.REJECTED
    assert replace(checked, layer=Layer.OFFICIAL).verdict(clean) is Verdict.ACCEPTED


def test_many_results_are_checked_by_several_processes_with_the_same_outcome(session, tmp_path):
    for number in range(25):
        place(session, tmp_path, f"s{number:02}", "bert", "offline")
    told = []
    many = check(tmp_path, "v4.0", jobs=2, tell=lambda done, total, _: told.append((done, total)))
    alone = check(tmp_path, "v4.0", jobs=1)
    assert many.reports == alone.reports
    assert told[-1] == (25, 25)
    assert many.counts[Verdict.REJECTED] == 25
    assert set(many.reasons) == SOURCES_FAIL


def test_all_of_it_becomes_json(session):
    told = json.loads(json.dumps(as_plain(verdicts_of(check(session)))))
    (result,) = told["results"]
    assert (told["accepted"], told["counts"]) == (False, {"accepted": 0, "rejected": 1})
    assert result["figures"]["power_w"] == 200.0
    assert {"name", "layer", "outcome", "evidence"} == set(result["checks"][0])
