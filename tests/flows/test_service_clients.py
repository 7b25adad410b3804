"""Client devices of a service: what their reports say, and what they are told to do."""

from dataclasses import replace

import pytest

from wattsmith.flows.service_clients import schedule_from, telemetry_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.service import Client, ClientAbout, DeviceAbout, DomainReport, KeptReport, Report
from wattsmith.terms.telemetry import (
    FamilyGuess,
    Fingerprint,
    Match,
    Neighbour,
    ResponseGuess,
)
from wattsmith.terms.work import Interval

ABOUT = ClientAbout(
    version="0.1.0",
    host="edge",
    devices=(
        DeviceAbout(domain="gpu:0", name="A card", power_limit_w=400.0, power_limit_range_w=(200.0, 400.0)),
        DeviceAbout(domain="gpu:1", name="A card", power_limit_w=400.0, power_limit_range_w=(200.0, 400.0)),
    ),
)
EDGE = Client(name="edge", first_seen_s=0.0, last_seen_s=100.0, about=ABOUT)


def kept(number, boot="b", **domain):
    domains = {"gpu:0": DomainReport(power_w=50.0), "gpu:1": DomainReport(power_w=300.0, **domain)}
    report = Report(boot=boot, number=number, time_s=1000.0 + number, domains=domains, steps=10.0 * number)
    return KeptReport(client="edge", received_s=number, report=report)


def test_the_busiest_device_is_looked_at_and_all_it_told_is_a_channel():
    found = telemetry_of(EDGE, [kept(number, busy_ratio=0.9, activity={"sm_ratio": 0.5}) for number in range(1, 13)])
    assert found.domain == "gpu:1"
    assert set(found.series) == {"power_w", "busy_ratio", "sm_ratio", "steps"}
    assert found.series["power_w"].values == 12 * (300.0,)
    assert found.series["steps"].time_s == tuple(1000.0 + number for number in range(1, 13))
    assert found.power_limit_w == 400.0


def test_only_reports_since_the_agent_last_started_count():
    reports = [kept(number, boot="before") for number in range(1, 40)] + [kept(number) for number in range(1, 13)]
    assert len(telemetry_of(EDGE, reports).series["steps"].values) == 12


@pytest.mark.parametrize(("count", "says"), [(0, "is its agent running"), (5, "has sent 5 reports")])
def test_too_few_reports_are_no_telemetry(count, says):
    with pytest.raises(BadInput, match=says):
        telemetry_of(EDGE, [kept(number) for number in range(1, count + 1)])


def interval(value):
    return Interval(value=value, low=0.99 * value, high=1.01 * value)


def recognised(settings=(0.7, 1.0)):
    """At 70 % of its limit the program takes 2 % longer and draws 75 % of the power."""
    return Match(
        fingerprint=Fingerprint(features={"power_mean": 0.75}, power_w=300.0, steps_per_s=10.0),
        neighbours=(Neighbour(name="a point", family="cnn", distance=0.2, weight=2.0),),
        family=FamilyGuess(family="cnn", share=0.8),
        response=ResponseGuess(
            settings=settings,
            time_ratio=(interval(1.02), Interval(value=1.0, low=1.0, high=1.0)),
            power_ratio=(interval(0.75), Interval(value=1.0, low=1.0, high=1.0)),
            power_w=(interval(225.0), interval(300.0)),
            from_points=5,
            knob="power_limit",
            usual=400.0,
        ),
        nearest=0.2,
        farthest_known=1.0,
        record="h200",
    )


def test_work_that_is_not_recognised_is_left_as_it_is_and_the_schedule_says_why():
    telemetry = telemetry_of(EDGE, [kept(number) for number in range(1, 13)])
    found = replace(recognised(), response=None, family=None, refused="nothing is near")
    made = schedule_from(found, EDGE, telemetry, now_s=5000.0, slowdown=0.05)
    (work,) = made.works
    assert (work.evidence.rejected, work.evidence.why) == (True, "nothing is near")
    assert [phase.setting.power_limit_w for phase in work.phases] == [None]
    assert made.valid_until_s == 5000.0 + 3600.0
    assert [one.device for one in made.devices] == ["gpu:0", "gpu:1"]


def test_work_that_is_recognised_gets_the_setting_with_least_energy_and_its_evidence():
    telemetry = telemetry_of(EDGE, [kept(number) for number in range(1, 13)])
    made = schedule_from(recognised(), EDGE, telemetry, now_s=5000.0, slowdown=0.05)
    (work,) = made.works
    assert work.job == "cnn"
    assert not work.evidence.rejected
    assert [point.point for point in work.evidence.points] == ["a point"]
    (phase,) = work.phases
    assert (phase.device, phase.setting.power_limit_w) == ("gpu:1", pytest.approx(280.0))
    assert phase.power_w.low < 225.0 < phase.power_w.high
    assert made.valid_until_s == 5000.0 + 3600.0


def test_a_limit_that_the_device_does_not_take_is_not_set():
    narrow = replace(
        EDGE, about=replace(ABOUT, devices=(replace(ABOUT.devices[1], power_limit_range_w=(300.0, 400.0)),))
    )
    telemetry = telemetry_of(narrow, [kept(number) for number in range(1, 13)])
    (work,) = schedule_from(recognised(), narrow, telemetry, now_s=5000.0, slowdown=0.05).works
    assert work.evidence.why == "a limit of 280 W would be best, and the device takes 300 to 400 W"
    assert work.phases[0].setting.power_limit_w is None
