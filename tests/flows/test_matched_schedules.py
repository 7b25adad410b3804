"""Schedules and plans whose figures come from a match, with the evidence in the document."""

import json

import pytest

from wattsmith.flows.matched_schedules import schedule_for
from wattsmith.flows.planning import Wish, plan_files
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.schedule import Objective, SettingSource
from wattsmith.terms.telemetry import Fingerprint, Match, Neighbour, Probe, ResponseGuess
from wattsmith.terms.work import Interval

pytest.importorskip("scipy", reason="PLANS FROM MATCHES ARE NOT TESTED: scipy is not installed")
pytest.importorskip("yaml", reason="PLANS FROM MATCHES ARE NOT TESTED: PyYAML is not installed")


def interval(value, doubt=0.02):
    return Interval(value=value, low=value / (1 + doubt), high=value * (1 + doubt))


def matched(**more):
    response = ResponseGuess(
        settings=(0.5, 0.75, 1.0),
        time_ratio=(interval(1.3), interval(1.02), interval(1.0, 0.0)),
        power_ratio=(interval(0.5), interval(0.75), interval(1.0, 0.0)),
        power_w=(interval(300.0), interval(460.0), interval(600.0, 0.0)),
        from_points=9,
        probes=(Probe(setting=0.65, time_ratio=1.1, power_ratio=0.65),),
        knob="power_limit",
        usual=600.0,
    )
    facts = {
        "fingerprint": Fingerprint(features={"sm": 0.9}, power_w=600.0, steps_per_s=10.0),
        "neighbours": (Neighbour(name="cnn 1", family="convolutional", distance=0.4, weight=0.7),),
        "family": None,
        "response": response,
        "nearest": 0.5,
        "farthest_known": 2.0,
        "record": "h200",
    }
    return Match(**{**facts, **more})


def test_the_setting_keeps_the_slowdown_even_at_the_bad_end_of_its_doubt():
    made = schedule_for(matched(), job="resnet", steps=1000, slowdown=0.05, now_s=100.0)
    phase = made.works[0].phases[0]
    assert phase.setting.power_limit_w == 450.0
    assert phase.power_w.value == 450.0  # the curve says 460 W, and no program draws more than its limit
    assert phase.step_s.low < 0.102 < phase.step_s.high
    assert made.serial == 100
    careful = schedule_for(matched(), job="resnet", steps=1000, slowdown=0.03, now_s=100.0)
    assert careful.works[0].phases[0].setting.power_limit_w == 600.0


def test_the_evidence_is_that_of_the_match():
    evidence = schedule_for(matched(), job="resnet", steps=1000, now_s=100.0).works[0].evidence
    assert evidence.source is SettingSource.PROBED
    assert (evidence.record, evidence.confidence, evidence.rejected) == ("h200", 0.75, False)
    assert [(one.point, one.weight, one.distance) for one in evidence.points] == [("cnn 1", 0.7, 0.4)]


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"refused": "nothing in the record is near"}, "not recognised"),
        ({"response": None}, "no curve"),
        ({"fingerprint": Fingerprint(features={}, power_w=600.0)}, "how fast"),
    ],
)
def test_a_match_that_says_too_little_makes_no_schedule(changed, said):
    with pytest.raises(BadInput, match=said):
        schedule_for(matched(**changed), job="resnet", steps=1000)


@pytest.fixture
def files(tmp_path):
    jobs, pool, match = tmp_path / "jobs.yaml", tmp_path / "pool.yaml", tmp_path / "resnet.json"
    jobs.write_text("jobs:\n  - {name: resnet, steps: 36000, match: resnet.json, memory: 8GiB, deadline: 3h}\n")
    pool.write_text("nodes:\n  - {name: left, device: h200, idle: 80W, power_limits: [200W, 700W]}\n")
    match.write_text(json.dumps(as_plain(matched())))
    return jobs, pool, match


def test_a_job_file_may_name_a_match_for_its_figures(files):
    jobs, pool, _ = files
    plan, (schedule,) = plan_files(jobs, pool, Wish(now_s=0.0, objective=Objective.ENERGY))
    assert {one.point.setting.power_limit_w for one in plan.stretches} <= {300.0, 450.0, 600.0}
    assert plan.energy_j < 3600 * 600
    assert schedule.works[0].evidence.points[0].point == "cnn 1"
    assert schedule.works[0].evidence.source is SettingSource.PROBED


@pytest.mark.parametrize(
    ("text", "said"), [("{", "holds no match"), ("{}", "holds no match"), (None, "holds no match")]
)
def test_a_match_that_is_none_is_named_with_line_and_field(files, text, said):
    jobs, pool, match = files
    match.unlink() if text is None else match.write_text(text)
    with pytest.raises(BadInput, match=said) as refused:
        plan_files(jobs, pool, Wish(now_s=0.0, objective=Objective.ENERGY))
    assert "line 2" in str(refused.value)
    assert "match" in str(refused.value)
