"""What a simulated GPU really draws and uses, from its load curve and the settings it was given.

Worked out without the driver's code, so that the two can be compared: the driver sums closed forms over whole periods
of a wave, this walks along every straight piece of the curve.
"""

import math
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

from wattsmith.sim.nvml_load import KINDS

Piece = tuple[int, int, float, float]  # begin_ns, end_ns, load at begin, load at end


def power_w(gpu: Any, time_ns: int) -> float:
    """Watts at a moment. GPU is its entry in the state file."""
    full_w, limit_w = _setting_response(gpu, gpu.settings[bisect_right(_setting_times(gpu), time_ns) - 1])
    load = next(load for _, _, load, _ in _pieces(gpu, time_ns, time_ns + 1))
    return float(min(gpu.idle_w + load * full_w, limit_w))


def energy_j(gpu: Any, begin_ns: int, end_ns: int) -> float:
    """Joules between two moments. GPU is its entry in the state file."""
    times = [*_setting_times(gpu), end_ns]
    total_j = []
    for index, (from_ns, until_ns) in enumerate(pairwise(times)):
        full_w, limit_w = _setting_response(gpu, gpu.settings[index])
        low_ns, high_ns = max(begin_ns, from_ns), min(end_ns, until_ns)
        total_j += [_piece_j(piece, gpu.idle_w, full_w, limit_w) for piece in _pieces(gpu, low_ns, high_ns)]
    return math.fsum(total_j)


# ---- Settings


def _setting_times(gpu: Any) -> list[int]:
    return [gpu.settings[i].time_ns for i in range(gpu.setting_count)]


def _setting_response(gpu: Any, setting: Any) -> tuple[float, float]:
    """What full load adds to idle under a setting, and the limit that power stays under, both in watts."""
    sm_mhz = _wanted_mhz(
        gpu.sm_clock_max_mhz, setting.sm_application_mhz, setting.sm_lock_min_mhz, setting.sm_lock_max_mhz
    )
    memory_mhz = _wanted_mhz(
        gpu.memory_clocks_mhz[0],
        setting.memory_application_mhz,
        setting.memory_lock_min_mhz,
        setting.memory_lock_max_mhz,
    )
    x, y = sm_mhz / gpu.sm_clock_max_mhz, memory_mhz / gpu.memory_clocks_mhz[0]
    voltage_ratio = gpu.voltage_floor_ratio + (1 - gpu.voltage_floor_ratio) * x
    return gpu.sm_w * x * voltage_ratio**2 + gpu.memory_w * y, setting.limit_mw / 1_000


def _wanted_mhz(highest: int, application: int, lock_min: int, lock_max: int) -> int:
    ceilings = [highest, *(clock for clock in (application, lock_max) if clock)]
    return max(min(ceilings), lock_min)


# ---- Straight pieces


def _piece_j(piece: Piece, idle_w: float, full_w: float, limit_w: float) -> float:
    """Energy of one straight piece: exact, as power bends at most once, where it meets the limit."""
    begin_ns, end_ns, load_begin, load_end = piece
    cuts = [0.0, 1.0]
    if load_begin != load_end and full_w:
        bend = ((limit_w - idle_w) / full_w - load_begin) / (load_end - load_begin)
        if 0 < bend < 1:
            cuts.insert(1, bend)
    at_cuts_w = [min(idle_w + full_w * (load_begin + cut * (load_end - load_begin)), limit_w) for cut in cuts]
    mean_w = sum((b - a) * (p + q) / 2 for (a, b), (p, q) in zip(pairwise(cuts), pairwise(at_cuts_w), strict=True))
    return mean_w * (end_ns - begin_ns) / 1e9


def _pieces(gpu: Any, begin_ns: int, end_ns: int) -> Iterator[Piece]:
    """The curve from begin to end as straight pieces, in order and without gaps."""
    if begin_ns >= end_ns:
        return
    starts = [gpu.segments[i].start_ns for i in range(gpu.segment_count)]
    first = bisect_right(starts, begin_ns) - 1
    if first < 0:
        idle_until_ns = min([end_ns, *starts[:1]])
        yield begin_ns, idle_until_ns, 0.0, 0.0
    for index in range(max(first, 0), len(starts)):
        until_ns = min([end_ns, *starts[index + 1 : index + 2]])
        if starts[index] < until_ns:
            yield from _within(_segment_pieces(gpu.segments[index], begin_ns, until_ns), begin_ns, until_ns)


def _within(pieces: Iterator[Piece], begin_ns: int, end_ns: int) -> Iterator[Piece]:
    """The pieces, with what sticks out cut off."""
    for first_ns, last_ns, load_first, load_last in pieces:
        low_ns, high_ns = max(first_ns, begin_ns), min(last_ns, end_ns)
        if low_ns < high_ns:
            slope = (load_last - load_first) / (last_ns - first_ns)
            yield low_ns, high_ns, load_first + slope * (low_ns - first_ns), load_first + slope * (high_ns - first_ns)


def _segment_pieces(segment: Any, begin_ns: int, end_ns: int) -> Iterator[Piece]:
    """Pieces of one segment that cover begin … end; the first and the last may stick out."""
    kind, start_ns = KINDS[segment.kind], segment.start_ns
    rests_ns = start_ns + segment.duration_ns
    if kind == "ramp":
        yield start_ns, rests_ns, segment.load_begin, segment.load_end
        yield rests_ns, max(rests_ns, end_ns), segment.load_end, segment.load_end
        return
    moves_until_ns = min(rests_ns, end_ns) if segment.duration_ns else end_ns
    first_period = max(0, begin_ns - start_ns) // segment.period_ns
    begins_ns = range(start_ns + first_period * segment.period_ns, moves_until_ns, segment.period_ns)
    for period_ns in begins_ns:
        yield from _within(_period_pieces(segment, period_ns), period_ns, moves_until_ns)
    yield moves_until_ns, end_ns, segment.load_begin, segment.load_begin


def _period_pieces(segment: Any, begin_ns: int) -> Iterator[Piece]:
    low, high, end_ns = segment.load_begin, segment.load_end, begin_ns + segment.period_ns
    if KINDS[segment.kind] == "sawtooth":
        yield begin_ns, end_ns, low, high
    else:
        falls_ns = begin_ns + round(segment.duty_ratio * segment.period_ns)
        yield begin_ns, falls_ns, high, high
        yield falls_ns, end_ns, low, low
