"""Telemetry as it comes, made fit to be compared: what cannot be used is left out and said, or refused by name."""

import math
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from wattsmith.terms.errors import BadInput
from wattsmith.terms.telemetry import COUNTERS, Series, Telemetry

SHORTEST_S = 3.0  # a 1 s mean, as some drivers give, has to be seen more than twice
FEWEST = 4  # values in a channel
MOST_BROKEN = 0.5  # share of a channel that may be unusable before all of it is
FEW_FALLS, MOST_FALLS = 2, 0.1  # times, and share of its readings, that a counter may begin anew
RATIO_SLACK = 1.05  # activity counters overshoot a little
LARGEST = 1e18
MARGIN_S = 0.2  # channels are read one after the other
LONGEST_S = 3e10  # no clock reads more: a thousand years


def cleaned(telemetry: Telemetry) -> Telemetry:
    """TELEMETRY without values that cannot be; notes say which. Raises BadInput when too little is left."""
    notes: list[str] = []
    kept: dict[str, Series] = {}
    for name, series in telemetry.series.items():
        good = _good_values(name, series, notes)
        if good is not None:
            kept[name] = good
    kept = _while_watched(kept, notes)
    if not kept:
        why = "; ".join((*telemetry.notes, *notes))
        raise BadInput(
            f"the telemetry of {telemetry.domain} holds nothing that can be used{f': {why}' if why else ''}. "
            "Layers can stand in for it: wattsmith.tell_layers() in the program, or --model"
        )
    length_s = _length_s(kept)
    if length_s < SHORTEST_S:
        raise BadInput(
            f"the trace of {telemetry.domain} is {length_s:.1f} s long; a program is recognised from {SHORTEST_S:g} s "
            "on, better 10 s. Record for longer."
        )
    return replace(telemetry, series=kept, notes=(*telemetry.notes, *notes))


def _while_watched(kept: dict[str, Series], notes: list[str]) -> dict[str, Series]:
    """KEPT from when all of it was read, where that leaves enough.

    Drivers hand out readings from before anyone asked, of whatever ran then, and of some channels only.
    """
    if not kept:
        return kept
    begin_s, end_s = max(one.time_s[0] for one in kept.values()), max(one.time_s[-1] for one in kept.values())
    early_s = begin_s - min(one.time_s[0] for one in kept.values())
    cut = {name: _from(one, begin_s - MARGIN_S) for name, one in kept.items()}
    if early_s <= MARGIN_S or end_s - begin_s < SHORTEST_S or any(len(one.time_s) < FEWEST for one in cut.values()):
        return kept
    notes.append(f"{early_s:.1f} s from before all channels were read are left out")
    return cut


def _from(series: Series, begin_s: float) -> Series:
    first = bisect_left(series.time_s, begin_s)
    return Series(time_s=series.time_s[first:], values=series.values[first:])


def _length_s(kept: Mapping[str, Series]) -> float:
    return max(one.time_s[-1] for one in kept.values()) - min(one.time_s[0] for one in kept.values())


def _good_values(name: str, series: Series, notes: list[str]) -> Series | None:
    given = list(zip(series.time_s, series.values, strict=True))
    pairs = [(time_s, value) for time_s, value in given if abs(time_s) < LONGEST_S]
    if len(given) - len(pairs):
        notes.append(f"{name}: {len(given) - len(pairs)} of {len(given)} values have no time in seconds")
    good = [(time_s, value) for time_s, value in pairs if _possible(name, value)]
    if len(pairs) - len(good):
        notes.append(f"{name}: {len(pairs) - len(good)} of {len(given)} values are {_what_is_wrong(name, pairs)}")
    if name == "power_w" and good and not any(value for _, value in good):
        notes.append("power_w is left out: it is 0 W all the time, which no device at work draws")
        return None
    if len(good) < FEWEST or len(good) < MOST_BROKEN * len(given):
        notes.append(f"{name} is left out: {len(good)} values of it can be used")
        return None
    good = _in_order(name, good, notes)
    if name in COUNTERS:
        good = _growing(name, good, notes)
    if len(good) < FEWEST:
        notes.append(f"{name} is left out: {len(good)} values of it can be used")
        return None
    return Series(time_s=tuple(time_s for time_s, _ in good), values=tuple(value for _, value in good))


def _possible(name: str, value: float) -> bool:
    if not math.isfinite(value) or not 0 <= value < LARGEST:
        return False
    return not name.endswith("_ratio") or value <= RATIO_SLACK


def _what_is_wrong(name: str, pairs: Sequence[tuple[float, float]]) -> str:
    bad = [value for _, value in pairs if not _possible(name, value)]
    if any(value < 0 for value in bad):
        return "negative" if all(value < 0 for value in bad) else "negative or not a number"
    if all(not math.isfinite(value) for value in bad):
        return "not a number"
    return "beyond what can be"


def _in_order(name: str, pairs: list[tuple[float, float]], notes: list[str]) -> list[tuple[float, float]]:
    """By time, one value for each moment. Sorting is right only where few are out of place."""
    back = sum(b[0] < a[0] for a, b in pairwise(pairs))
    if back:
        notes.append(f"{name}: its time runs backward {back} times; its values were put in order")
        pairs = sorted(pairs)
    single = [pair for place, pair in enumerate(pairs) if not place or pair[0] > pairs[place - 1][0]]
    if len(single) < len(pairs):
        notes.append(f"{name}: {len(pairs) - len(single)} values are left out, as their moment has one already")
    return single


def _growing(name: str, pairs: list[tuple[float, float]], notes: list[str]) -> list[tuple[float, float]]:
    """A counter that went back began anew: what it had counted is carried on, so that only that step is lost."""
    lost, grown, carried = 0, [pairs[0]], 0.0
    for (_, before), (time_s, value) in pairwise(pairs):
        if value < before:
            lost += 1
            carried += before - value
        grown.append((time_s, value + carried))
    if lost:
        notes.append(f"{name} runs backward {lost} times; it was carried on as if it had stood still there")
    if lost > max(FEW_FALLS, MOST_FALLS * len(pairs)):
        notes.append(f"{name} is left out: a counter that falls so often is none")
        return []
    return grown
