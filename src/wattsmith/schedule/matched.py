"""What a match says of a job, for who plans: its figures at each setting, their doubt, and what they rest on."""

import math

from wattsmith.terms.errors import BadInput
from wattsmith.terms.schedule import NINE_IN_TEN, Doubt, OperatingPoint, SettingSource
from wattsmith.terms.telemetry import Match, ResponseGuess
from wattsmith.terms.work import Interval, Setting
from wattsmith.terms.work_schedule import Evidence, EvidencePoint

LEVEL = 0.01  # relative error of the client's own power and pace: it was watched for some seconds


def points_of(found: Match) -> tuple[OperatingPoint, ...]:
    """How the matched program runs at each setting of its curve, the usual one being that at which it was watched."""
    guess = _curve(found)
    steps_per_s = found.fingerprint.steps_per_s
    if steps_per_s is None:
        raise BadInput(
            "the match does not tell how fast the program goes: match again with --progress or --steps-per-s"
        )
    if guess.power_w is None or guess.usual is None:
        raise BadInput("the match does not tell the program's power or the setting that it ran at: telemetry lacks it")
    return tuple(
        OperatingPoint(
            setting=setting_at(guess, place),
            rate=steps_per_s / guess.time_ratio[place].value,
            power_w=power_at_w(guess, place).value,
            source=source_of(found),
        )
        for place in range(len(guess.settings))
    )


def power_at_w(guess: ResponseGuess, place: int) -> Interval:
    """The mean power at PLACE of the curve. No program draws more than its limit on average, whatever others did."""
    assert guess.power_w is not None
    interval, limit_w = guess.power_w[place], setting_at(guess, place).power_limit_w
    if limit_w is None:
        return interval
    value = min(interval.value, limit_w)
    return Interval(value=value, low=min(interval.low, value), high=max(value, min(interval.high, limit_w)))


def setting_at(guess: ResponseGuess, place: int) -> Setting:
    """The setting at PLACE of the curve, in watts or hertz."""
    assert guess.usual is not None
    level = guess.settings[place] * guess.usual
    return Setting(power_limit_w=level) if guess.knob == "power_limit" else Setting(clock_hz=level)


def doubt_of(found: Match, place: int | None = None) -> Doubt:
    """The doubt at PLACE of the curve; None: the largest that it has anywhere."""
    guess = _curve(found)
    places = range(len(guess.settings)) if place is None else [place]
    return Doubt(
        power_ratio=max(_sigma(guess.power_ratio[one]) for one in places),
        time_ratio=max(_sigma(guess.time_ratio[one]) for one in places),
    )


def evidence_of(found: Match) -> Evidence:
    """What FOUND rests on. Its confidence is 1 right on a benchmark, and 0 where nothing would be called near."""
    inside = 1 - found.nearest / found.farthest_known if found.farthest_known > 0 else 0.0
    return Evidence(
        source=source_of(found),
        record=found.record,
        points=tuple(
            EvidencePoint(point=one.name, weight=max(0.0, one.weight), distance=one.distance)
            for one in found.neighbours
        ),
        confidence=0.0 if found.refused else min(1.0, max(0.0, inside)),
        rejected=found.refused is not None,
        why=found.refused,
    )


def source_of(found: Match) -> SettingSource:
    if found.response is None:
        return SettingSource.DEFAULT
    return SettingSource.PROBED if found.response.probes else SettingSource.MATCHED


def _curve(found: Match) -> ResponseGuess:
    if found.refused is not None:
        raise BadInput(f"the program was not recognised: {found.refused}")
    if found.response is None:
        raise BadInput("the match holds no curve: the record that it was made with was taken at one setting")
    return found.response


def _sigma(interval: Interval) -> float:
    return math.hypot(math.log(interval.high / interval.value) / NINE_IN_TEN, LEVEL)
