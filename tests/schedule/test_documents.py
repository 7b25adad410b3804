"""Work schedules: made, written, read back, and over."""

import json
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis.strategies import builds, floats, integers, just, lists, none, one_of, sampled_from, text

from wattsmith.schedule.documents import in_force, knob_values, schedule_from, schedule_text, schedules_of
from wattsmith.schedule.jsonschema import PUBLISHED, schema, schema_text
from wattsmith.schedule.planning import Wish, make_plan
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.facts import as_plain
from wattsmith.terms.schedule import Doubt, Job, Need, OperatingPoint, PoolNode, Response, SettingSource, Shape
from wattsmith.terms.work import Interval, Setting
from wattsmith.terms.work_schedule import (
    DeviceIdentity,
    Evidence,
    EvidencePoint,
    Phase,
    PhaseSetting,
    PowerLimits,
    Rollback,
    SignalWindow,
    Site,
    Span,
    Timing,
    Watch,
    Work,
    WorkSchedule,
)

HOUR_S = 3600.0
numbers = floats(0.5, 1e6, allow_nan=False)
maybe = one_of(none(), numbers)
spans = numbers.map(lambda start: Span(from_s=start, until_s=start + 10.0))
intervals = numbers.map(lambda value: Interval(value=value, low=value / 2, high=value * 2))
sources = sampled_from(SettingSource)
phases = builds(
    PhaseSetting,
    device=just("gpu:0"),
    phase=sampled_from(Phase),
    setting=builds(Setting, power_limit_w=maybe, clock_hz=maybe, concurrency=one_of(none(), integers(1, 9))),
    steps=maybe,
    power_w=one_of(none(), intervals),
    p99_w=maybe,
    peak_w=maybe,
    step_s=one_of(none(), intervals),
    source=sources,
)
works = builds(
    Work,
    job=text(min_size=1),
    phases=lists(phases, max_size=3).map(tuple),
    shape=builds(
        Shape, batch=one_of(none(), integers(1, 99)), precision=one_of(none(), just("bf16")), pacing_gap_s=maybe
    ),
    timing=builds(
        Timing,
        deadline_s=maybe,
        runs=lists(spans, max_size=2).map(tuple),
        pause_every_s=maybe,
        signals=lists(
            builds(SignalWindow, span=spans, kind=sampled_from(["carbon", "tariff"]), value=numbers), max_size=2
        ).map(tuple),
    ),
    site=just(Site(node="n", devices=("gpu:0",), excluded=("gpu:1",))),
    evidence=builds(
        Evidence,
        source=sources,
        record=one_of(none(), text()),
        points=lists(builds(EvidencePoint, point=text(), weight=numbers, distance=numbers), max_size=2).map(tuple),
        confidence=one_of(none(), floats(0, 1)),
        why=one_of(none(), text()),
    ),
)
documents = builds(
    WorkSchedule,
    client=text(min_size=1),
    issued_s=numbers,
    valid_from_s=just(0.0),
    valid_until_s=numbers,
    serial=integers(0, 10**9),
    devices=just((DeviceIdentity(device="gpu:0", name="A100", power_limit_range_w=(100.0, 400.0)),)),
    works=lists(works, max_size=2).map(tuple),
    limits=builds(PowerLimits, ramp_up_w_per_s=maybe, stagger_s=maybe, max_temperature_c=maybe),
    watch=builds(Watch, sample_s=numbers, rollback=sampled_from(Rollback)),
    safe_default=lists(phases, max_size=1).map(tuple),
)


def scheduled():
    """A job that runs from 0 to one hour at 200 W, on a machine whose devices take 100 to 300 W."""
    points = (OperatingPoint(setting=Setting(power_limit_w=200.0), rate=1.0, power_w=190.0),)
    curve = Response(points=points, doubt=Doubt(power_ratio=0.05, time_ratio=0.02))
    job = Job(name="a", steps=HOUR_S, needs=(Need(kind="gpu", devices=2, response=curve),), deadline_s=3 * HOUR_S)
    nodes = [PoolNode(name="n", kind="gpu", count=3, power_limits_w=(100.0, 300.0), excluded=(0,))]
    plan = make_plan([job], nodes, Wish(now_s=0.0))
    (document,) = schedules_of(plan, [job], nodes)
    return document


@settings(deadline=None, max_examples=60)
@given(documents)
def test_what_is_written_is_read_back_without_loss(document):
    assert schedule_from(schedule_text(document)) == document


@settings(deadline=None, max_examples=20)
@given(documents)
def test_every_document_keeps_the_published_schema(document):
    jsonschema = pytest.importorskip("jsonschema", reason="THE SCHEMA IS NOT CHECKED: jsonschema is not installed")
    jsonschema.Draft202012Validator(schema()).validate(as_plain(document))


def test_the_published_schema_is_that_of_the_facts():
    assert PUBLISHED.read_text() == schema_text(), "python -m wattsmith.schedule.jsonschema writes it anew"


def test_a_plan_becomes_one_document_per_machine():
    document = scheduled()
    (work,) = document.works
    assert document.client == "n"
    assert work.site.devices == ("gpu:1", "gpu:2")
    assert work.site.excluded == ("gpu:0",)
    assert [phase.device for phase in work.phases] == ["gpu:1", "gpu:2"]
    first = work.phases[0]
    assert first.power_w.value == 190.0
    assert first.power_w.high == pytest.approx(190.0 * (1 + 1.6449 * 0.05))
    assert first.p99_w == pytest.approx(190.0 * (1 + 2.326 * 0.05))
    assert work.timing.latest_start_s == 2 * HOUR_S
    assert work.timing.runs == (Span(from_s=0.0, until_s=HOUR_S),)


def test_settings_hold_while_the_schedule_is_valid_and_then_fall_to_the_safe_default():
    document = scheduled()
    assert knob_values(in_force(document, 10.0)) == {
        "gpu:0/power_limit": 300.0,
        "gpu:1/power_limit": 200.0,
        "gpu:2/power_limit": 200.0,
    }
    over = in_force(document, document.valid_until_s)
    assert {setting.power_limit_w for setting in over.values()} == {300.0}
    assert in_force(document, -1.0) == over
    assert in_force(replace(document, safe_default=()), document.valid_until_s) == {}


def test_a_locked_clock_is_least_and_most_at_once():
    assert knob_values({"gpu:0": Setting(clock_hz=1.2e9)}) == {"gpu:0/clock": (1.2e9, 1.2e9)}


def test_everything_that_is_wrong_is_named():
    plain = json.loads(schedule_text(scheduled()))
    plain["serial"] = "seven"
    del plain["client"]
    plain["works"][0]["phases"][0]["phase"] = "napping"
    with pytest.raises(BadInput) as refused:
        schedule_from(json.dumps(plain))
    for place in (".serial", ".client", "works[0].phases[0].phase"):
        assert place in str(refused.value)


def test_text_that_is_no_json_names_its_line():
    with pytest.raises(BadInput, match="line 2"):
        schedule_from('{"client":\n oops}')


@pytest.mark.parametrize(
    "change",
    [{"version": 2}, {"valid_until_s": -1.0}, {"serial": -1}, {"client": ""}, {"devices": ()}],
)
def test_a_document_that_makes_no_sense_is_refused_at_birth(change):
    with pytest.raises(BadTerm):
        replace(scheduled(), **change)
