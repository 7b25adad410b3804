"""Traces of tiny devices in both layouts.

The EEMBC runner writes trace1-energy.bin (0xF1, rate, then microjoules per sample) and trace1-timestamps.json (in
seconds); the MLCommons runner writes all into results.json (joules per sample, edges as sample numbers). Both write
results.txt.
"""

import json
import re
import struct
import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from wattsmith.report.formats.lines import Source, bad, decoded, encoded, lines_of, name_of, opened, whole
from wattsmith.terms.errors import BadTerm

MAGIC = 0xF1
HEAD_BYTES = 5
CHUNK_BYTES = 1 << 18  # whole samples
MOST_RATE_HZ = 10_000_000.0
_WINDOW = re.compile(r"(?:Energy data for window|Energy data for trial) (\d+)")
_PER_INFERENCE = re.compile(r"Energy/Inf\.?\s*:\s*(\S+)\s*uJ/inf")
_INFERENCES = re.compile(r"#?\s*Inferences\s*:\s*(\d+)")
_RUNTIME = re.compile(r"(?:Runtime|Elapsed time)\s*:\s*(\S+)")
_ENERGY = re.compile(r"(?:Total )?Energy\s*:\s*(\S+)\s*uJ(?!/)")
_PERFORMANCE = re.compile(r"Performance results for window (\d+)")
_MEDIAN = re.compile(r"Median energy cost is (\S+) uJ/inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyWindow:
    """What results.txt says of one measurement."""

    number: int
    energy_j: float | None = None
    energy_per_inference_j: float | None = None
    inferences: int | None = None
    duration_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TinyResults:
    """What results.txt says."""

    windows: tuple[TinyWindow, ...]
    median_j: float | None  # per inference


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """One measurement of the MLCommons runner."""

    energies_j: Sequence[float]  # per sample
    edges: tuple[int, ...]  # numbers of the samples at which the device pulled its pin
    inferences: int
    file: str
    simulated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFile:
    """results.json: its text as it stands, and the measurements in it."""

    text: str
    trials: tuple[Trial, ...]

    def encode(self) -> bytes:
        return encoded(self.text)


# ---- the EEMBC runner


def trace_rate_hz(source: Source, name: str | None = None) -> float:
    """How often trace1-energy.bin was sampled. Raises BadInput when it is no such trace."""
    name = name_of(source, name)
    with opened(source, name) as stream:
        head = stream.read(HEAD_BYTES)
    if len(head) < HEAD_BYTES:
        raise bad(name, None, f"the trace ends after {len(head)} bytes; the head alone has {HEAD_BYTES}")
    if head[0] != MAGIC:
        raise bad(name, None, f"an energy trace begins with byte 0x{MAGIC:X}, this file with 0x{head[0]:X}")
    (rate_hz,) = struct.unpack("<f", head[1:])
    if not 0 < rate_hz <= MOST_RATE_HZ:
        raise bad(name, None, f"the sample rate of the trace makes no sense: {rate_hz} Hz")
    return float(rate_hz)


def trace_microjoules(source: Source, name: str | None = None) -> Iterator[float]:
    """The samples of trace1-energy.bin as they stand there, streamed. Raises BadInput when the last one is cut off."""
    name = name_of(source, name)
    with opened(source, name) as stream:
        stream.read(HEAD_BYTES)
        place = HEAD_BYTES
        while chunk := stream.read(CHUNK_BYTES):
            if len(chunk) % 4:
                raise bad(name, None, f"the trace is cut off inside the sample at byte {place + len(chunk) // 4 * 4}")
            yield from _floats(chunk)
            place += len(chunk)


def _floats(chunk: bytes) -> "array[float]":
    values = array("f")
    values.frombytes(chunk)
    if sys.byteorder == "big":
        values.byteswap()
    return values


def trace_bytes(rate_hz: float, microjoules: Sequence[float]) -> bytes:
    """A new trace1-energy.bin."""
    if not 0 < rate_hz <= MOST_RATE_HZ:
        raise BadTerm(f"rate_hz must be positive and at most {MOST_RATE_HZ:g}, got {rate_hz}")
    return struct.pack(f"<Bf{len(microjoules)}f", MAGIC, rate_hz, *microjoules)


def read_timestamps(source: Source, name: str | None = None) -> tuple[float, ...]:
    """The edges in trace1-timestamps.json, in seconds. Raises BadInput when it is no list of numbers that rise."""
    name = name_of(source, name)
    found = _json(source, name)
    if not isinstance(found, list) or not all(isinstance(one, int | float) for one in found):
        raise bad(name, 1, "there should be a list of numbers")
    edges_s = tuple(float(one) for one in found)
    for place, (one_s, next_s) in enumerate(pairwise(edges_s)):
        if not one_s <= next_s:
            raise bad(name, None, f"timestamps go backwards after the entry {place + 1}: {one_s} s, then {next_s} s")
    return edges_s


def timestamps_text(edges_s: Sequence[float]) -> str:
    """A new trace1-timestamps.json, in the manner of the runner: one number in a line, after a tab."""
    return "[\n" + ",\n".join(f"\t{json.dumps(edge_s)}" for edge_s in edges_s) + "\n]"


# ---- the MLCommons runner


def read_trials(source: Source, name: str | None = None) -> TrialFile:
    """results.json. Raises BadInput, with the place of the measurement, when something in it is missing."""
    name = name_of(source, name)
    text = decoded(whole(source, name, 1 << 28))
    found = _parsed(text, name)
    if not isinstance(found, list):
        raise bad(name, 1, "there should be a list of measurements")
    return TrialFile(text=text, trials=tuple(_trial(one, place, name) for place, one in enumerate(found, start=1)))


def _trial(found: Any, place: int, name: str) -> Trial:
    try:
        power, infer = found["power"], found["infer"]
        samples = array("d", power["samples"])
        edges = tuple(int(edge[1]) for edge in power["timestamps"])
        inferences = int(infer["iterations"])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as wrong:
        raise bad(name, None, f"measurement {place} has no samples, timestamps or iterations ({wrong!r})") from wrong
    return Trial(
        energies_j=samples,
        edges=edges,
        inferences=inferences,
        file=str(found.get("file", "")),
        simulated="simulated" in json.dumps(_rest(found)).lower(),
    )


def _rest(found: Mapping[str, Any]) -> Mapping[str, Any]:
    return {key: value for key, value in found.items() if key != "power"} | {
        "power": {key: value for key, value in found["power"].items() if key not in ("samples", "timestamps")}
    }


# ---- both


def read_results(source: Source, name: str | None = None) -> TinyResults:
    """results.txt of either runner. What it does not say is None."""
    energy: dict[int, dict[str, Any]] = {}
    current: dict[str, Any] | None = None
    median_j = None
    for line in lines_of(source, name):
        text = line.text
        if found := (_WINDOW.search(text) or _PERFORMANCE.search(text)):
            current = energy.setdefault(int(found[1]), {})
        elif found := _MEDIAN.search(text):
            median_j = _microjoules(found[1])
        elif current is not None:
            _take(current, text)
    windows = tuple(TinyWindow(number=number, **values) for number, values in energy.items())
    return TinyResults(windows=windows, median_j=median_j)


def _take(window: dict[str, Any], text: str) -> None:
    if found := _PER_INFERENCE.search(text):
        window["energy_per_inference_j"] = _microjoules(found[1])
    elif found := _ENERGY.search(text):
        window["energy_j"] = _microjoules(found[1])
    elif found := _INFERENCES.search(text):
        window["inferences"] = int(found[1])
    elif found := _RUNTIME.search(text):
        window["duration_s"] = _number(found[1])


def _microjoules(text: str) -> float | None:
    value = _number(text)
    return None if value is None else value / 1_000_000


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _json(source: Source, name: str) -> Any:
    return _parsed(decoded(whole(source, name)), name)


def _parsed(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as wrong:
        raise bad(name, wrong.lineno, f"this is no JSON: {wrong.msg}") from wrong
    except (ValueError, RecursionError) as wrong:
        raise bad(name, 1, f"this JSON cannot be read: {wrong}") from wrong
