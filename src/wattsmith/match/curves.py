"""How a program reacts to a setting: guessed from recorded curves, with the doubt that guesses of known ones had.

Given are the features of its state at the usual setting and, where there were any, probes: time and power at other
settings over those at the usual one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from wattsmith.match.blending import Blender, fit_blender, left_out_guesses
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.telemetry import Benchmark, Probe, RelativeResponse, ResponseGuess
from wattsmith.terms.work import Interval

LEVEL = 0.9
FEWEST_CURVES = 4
PROBE_AT = 0.65  # of the usual setting: lower says more of time, but a very low one is unlike all others
LEAST_KNOWN = 0.5  # share of recorded programs that must have a feature for it to be used


@dataclass(frozen=True, slots=True)
class CurveBook:
    """Recorded curves on one grid of settings, ready to answer for any set of known features and probes."""

    points: tuple[Benchmark, ...]
    settings: tuple[float, ...]
    logs: Any  # programs × (times, then powers), logarithms of ratios

    @property
    def count(self) -> int:
        return len(self.settings)


def curve_book(
    points: Sequence[Benchmark], settings: Sequence[float] | None = None, *, drawn_ratio: float | None = None
) -> CurveBook:
    """The curves of POINTS on SETTINGS; None: on those of the point that has most, within what all have.

    With DRAWN_RATIO (what the client draws over its limit), curves over a limit are laid so that each program's own
    draw falls on the client's: a limit does nothing until it bites.
    """
    import numpy as np

    curved = [point for point in points if point.response is not None]
    if len(curved) < FEWEST_CURVES:
        raise BadTerm(f"curves are blended from at least {FEWEST_CURVES} recorded programs, got {len(curved)}")
    responses = [point.response for point in curved if point.response is not None]
    if settings is None:
        low = max(one.settings[0] for one in responses)
        high = min(one.settings[-1] for one in responses)
        finest = max(responses, key=lambda one: len(one.settings))
        settings = [one for one in finest.settings if low - 1e-9 <= one <= high + 1e-9]
    grid = tuple(float(one) for one in settings)
    logs = np.array([np.concatenate(_laid(point, grid, drawn_ratio)) for point in curved])
    return CurveBook(tuple(curved), grid, logs)


def _laid(point: Benchmark, grid: Sequence[float], drawn_ratio: float | None) -> tuple[Any, Any]:
    import numpy as np

    assert point.response is not None
    own = point.features.get("power_mean")
    if point.response.knob != "power_limit" or not drawn_ratio or not own:
        return response_logs(point.response, grid)
    known = np.log(point.response.settings)
    at = np.log(np.array(grid) * own / drawn_ratio)
    usual = np.log(own / drawn_ratio)
    laid = []
    for ratios in (point.response.time_ratio, point.response.power_ratio):
        logs = np.log(ratios)
        slope = (logs[1] - logs[0]) / (known[1] - known[0])
        values = np.where(at < known[0], logs[0] + slope * (at - known[0]), np.interp(at, known, logs))
        laid.append(values - np.interp(usual, known, logs))
    return laid[0], laid[1]


def response_logs(response: RelativeResponse, settings: Sequence[float]) -> tuple[Any, Any]:
    """Logarithms of the time and power ratios of RESPONSE at SETTINGS."""
    import numpy as np

    at, known = np.log(settings), np.log(response.settings)
    return np.interp(at, known, np.log(response.time_ratio)), np.interp(at, known, np.log(response.power_ratio))


def usable(book: CurveBook, features: Mapping[str, float | None]) -> tuple[str, ...]:
    """The features that the client has and enough of the record has too."""
    names = []
    for name, value in features.items():
        had = [point.features.get(name) for point in book.points]
        if value is not None and sum(one is not None for one in had) >= LEAST_KNOWN * len(had):
            names.append(name)
    return tuple(names)


def table(book: CurveBook, names: Sequence[str], probes: Sequence[Probe]) -> tuple[Any, Any]:
    """Features of the record's programs beside what PROBES would have given for them; and which come from probes."""
    import numpy as np

    state = [[_number(point.features.get(name)) for name in names] for point in book.points]
    columns = [np.array(state).reshape(len(book.points), len(names))]
    for probe in probes:
        columns += [column[:, None] for column in _probed(book, probe)]
    whole = np.concatenate(columns, axis=1)
    return whole, np.arange(whole.shape[1]) >= len(names)


def asked(names: Sequence[str], features: Mapping[str, float | None], probes: Sequence[Probe]) -> Any:
    """The same row for the client."""
    import numpy as np

    row = [_number(features.get(name)) for name in names]
    for probe in probes:
        row += [math.log(one) for one in (probe.time_ratio, probe.power_ratio) if one is not None]
    return np.array(row)


def fit_curves(book: CurveBook, names: Sequence[str], probes: Sequence[Probe]) -> Blender:
    """What is learnt of BOOK for clients that have the features NAMES and were probed as PROBES."""
    whole, probed = table(book, names, probes)
    return fit_blender(whole, book.logs, [point.group for point in book.points], probed)


def guess_response(
    book: CurveBook,
    features: Mapping[str, float | None],
    probes: Sequence[Probe] = (),
    *,
    power_w: float | None = None,
    with_doubt: bool = True,
) -> tuple[ResponseGuess, Blender, Any]:
    """The curve of a client; what it was blended with; and how much each program counted."""
    import numpy as np

    names = usable(book, features)
    if not names and not probes:
        raise BadTerm("the client has no feature that the record has, and was not probed")
    blender = fit_curves(book, names, probes)
    row = asked(names, features, probes)
    shares, _ = blender.weights_for(row)
    logs = shares @ blender.curves
    width = np.zeros(len(logs))
    if with_doubt:
        whole, probed = table(book, names, probes)
        groups = [point.group for point in book.points]
        off = np.abs(left_out_guesses(whole, book.logs, groups, probed) - book.logs)
        width = _doubt(off)
    logs = logs + _left_at_probes(book, logs, probes)
    logs, width = _at_the_usual(book, logs, width)
    intervals = [_interval(value, half) for value, half in zip(logs, width, strict=True)]
    times, powers = tuple(intervals[: book.count]), tuple(intervals[book.count :])
    guess = ResponseGuess(
        settings=book.settings,
        time_ratio=times,
        power_ratio=powers,
        power_w=None if power_w is None else tuple(_times(one, power_w) for one in powers),
        from_points=len(book.points),
        probes=tuple(probes),
        knob=next((point.response.knob for point in book.points if point.response is not None), "clock"),
    )
    return guess, blender, shares


def at_level(guess: ResponseGuess, power_w: float | None, setting: float) -> ResponseGuess:
    """GUESS in watts for a client that draws POWER_W at SETTING, which need not be the usual one."""
    if power_w is None:
        return guess
    usual_w = power_w / guess.power_ratio[guess.at(setting)].value
    return replace(guess, power_w=tuple(_times(one, usual_w) for one in guess.power_ratio))


def probe_setting(settings: Sequence[float]) -> float:
    """Where to probe: the setting nearest to two thirds of the usual one."""
    return min(settings, key=lambda one: abs(one - PROBE_AT))


def _doubt(off: Any) -> Any:
    """Half-widths in which the guesses of nine of ten left-out programs lay, at each setting for itself.

    With few programs the tail is not seen, so the level is raised by one program in all.
    """
    import numpy as np

    level = min(1.0, LEVEL * (1 + 1 / len(off)))
    return np.quantile(off, level, axis=0)


def _left_at_probes(book: CurveBook, logs: Any, probes: Sequence[Probe]) -> Any:
    """What makes the curve pass through what was measured: straight between probes, and to nothing at the usual."""
    import numpy as np

    at = np.log(book.settings)
    left = np.zeros_like(logs)
    for first, name in ((0, "time_ratio"), (book.count, "power_ratio")):
        seen = sorted((math.log(one.setting), math.log(getattr(one, name))) for one in probes if getattr(one, name))
        rows = logs[first : first + book.count]
        off = [(where, log - float(np.interp(where, at, rows))) for where, log in seen]
        if off and not any(abs(where) < 1e-9 for where, _ in off):
            off = sorted([*off, (0.0, 0.0)])
        if off:
            left[first : first + book.count] = np.interp(at, [where for where, _ in off], [one for _, one in off])
    return left


def _at_the_usual(book: CurveBook, logs: Any, width: Any) -> tuple[Any, Any]:
    """At the usual setting all ratios are one, by definition."""
    for place, setting in enumerate(book.settings):
        if abs(setting - 1.0) < 1e-9:
            for at in (place, book.count + place):
                logs[at] = width[at] = 0.0
    return logs, width


def _interval(log: float, half: float) -> Interval:
    return Interval(value=math.exp(log), low=math.exp(log - half), high=math.exp(log + half))


def _times(one: Interval, factor: float) -> Interval:
    return Interval(value=one.value * factor, low=one.low * factor, high=one.high * factor)


def _number(value: float | None) -> float:
    return math.nan if value is None else float(value)


def _probed(book: CurveBook, probe: Probe) -> list[Any]:
    import numpy as np

    at = np.log(book.settings)
    where = math.log(probe.setting)
    columns = []
    for known, first in ((probe.time_ratio, 0), (probe.power_ratio, book.count)):
        if known is not None:
            rows = book.logs[:, first : first + book.count]
            columns.append(np.array([np.interp(where, at, row) for row in rows]))
    return columns
