"""Telemetry from files: timelines as `wattsmith measure --timeline` writes them, and plain tables of channels."""

import json
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

from wattsmith.measure.replay import read_rows
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.telemetry import CHANNELS, Series, Telemetry

GAUGES = ("busy_ratio", "memory_busy_ratio", "memory_used_bytes", "clock_hz", "memory_clock_hz")
LIMITS = ("power_limit_w", "max_clock_hz", "memory_bytes", "steps_per_s")
# What cards are known to have, by their name: a timeline does not say how large they are.
KNOWN_CARDS: Mapping[str, tuple[float, int]] = {  # largest clock, bytes of memory
    "H200": (1_980e6, 143_771 * 2**20),
    "H100": (1_980e6, 81_559 * 2**20),
    "A100-SXM4-80GB": (1_410e6, 81_920 * 2**20),
    "A100": (1_410e6, 40_960 * 2**20),
}


LONGEST_S = 3e10  # no clock reads more: a thousand years


class NoPower(BadInput):
    """A timeline that no meter wrote power into."""


def read_telemetry(path: Path, domain: str | None = None) -> Telemetry:
    """The telemetry in PATH (.parquet or .csv): a timeline, or a table with `time_s` and columns named as channels.

    DOMAIN says which device of a timeline is meant; None: the one that draws most, of the GPUs if there are any.
    """
    rows = [row for _, row in read_rows(path)]
    if not rows:
        raise BadInput(f"{path} holds no rows; record again with `wattsmith measure --timeline {path.name} -- COMMAND`")
    if "event" in rows[0] and "domain" in rows[0]:
        return _of_timeline(rows, path, domain)
    if "time_s" not in rows[0]:
        raise BadInput(
            f"{path} is neither a timeline nor a table of telemetry: it has no column time_s, in seconds, but "
            f"{', '.join(rows[0])}. Channels are {', '.join(CHANNELS)}."
        )
    if not any(abs(_float(row.get("time_s"))) < LONGEST_S for row in rows):
        raise BadInput(
            f"{path}: time_s must hold seconds from some moment on, such as 0.5; the first is {rows[0]['time_s']!r}"
        )
    return _of_table(rows, path)


def write_telemetry(telemetry: Telemetry, path: Path) -> None:
    """TELEMETRY as a table that `read_telemetry` reads: Parquet, a row for each moment of channels read together."""
    import pyarrow as pa
    from pyarrow import parquet

    together: dict[tuple[float, ...], list[str]] = {}
    for name, series in telemetry.series.items():
        together.setdefault(series.time_s, []).append(name)
    columns: dict[str, list[float | None]] = {name: [] for name in ("time_s", *telemetry.series)}
    for time_s, names in together.items():
        columns["time_s"].extend(time_s)
        for name in telemetry.series:
            columns[name].extend(telemetry.series[name].values if name in names else [None] * len(time_s))
    facts = {key: getattr(telemetry, key) for key in (*LIMITS, "domain", "device", "simulated", "sensor_s")}
    typed = {key: pa.array(value, type=pa.float64()) for key, value in columns.items()}
    made = pa.table(typed).replace_schema_metadata({"wattsmith": json.dumps(facts)})
    try:
        parquet.write_table(made, path, compression="zstd", write_statistics=False)
    except OSError as refused:
        raise NotWritten(f"the telemetry cannot be written to {path}: {refused.strerror or refused}") from refused


def card_limits(device: str | None) -> dict[str, Any]:
    """Largest clock and memory of a card by its name, where they are known."""
    for name, (clock_hz, memory_bytes) in KNOWN_CARDS.items():
        if device is not None and name in device:
            return {"max_clock_hz": clock_hz, "memory_bytes": memory_bytes}
    return {}


def _of_table(rows: list[Mapping[str, Any]], path: Path) -> Telemetry:
    series = {name: _series(rows, name) for name in CHANNELS if any(row.get(name) is not None for row in rows)}
    if not series:
        raise BadInput(f"{path} has none of the channels that telemetry may have: {', '.join(CHANNELS)}")
    facts: dict[str, Any] = {}
    if path.suffix.lower() == ".parquet":
        from pyarrow import parquet

        kept = (parquet.read_schema(path).metadata or {}).get(b"wattsmith")
        facts = json.loads(kept) if kept else {}
    for name in LIMITS:
        values = [number for row in rows if (number := _number(row.get(name))) is not None and number > 0]
        if values and facts.get(name) is None:
            facts[name] = values[-1]
    return Telemetry(series=series, **{key: value for key, value in facts.items() if value is not None})


def _of_timeline(rows: list[Mapping[str, Any]], path: Path, domain: str | None) -> Telemetry:
    cards = {row["domain"]: _card(row, path) for row in rows if row.get("event") == "meter"}
    chosen = _chosen(rows, cards, path, domain)
    card = cards.get(chosen, {})
    own = [row for row in rows if row.get("domain") == chosen]
    readings = [row for row in own if row.get("event") is None]
    gauges = [row for row in own if row.get("event") == "gauge"]
    series = {
        "power_w": _power(readings),
        "energy_j": _series(readings, "counter_j"),
        **{name: _series(gauges, name) for name in GAUGES},
    }
    limits_w = [one for row in gauges if (one := _number(row.get("power_limit_w"))) is not None and one > 0]
    return Telemetry(
        series={name: one for name, one in series.items() if one.time_s},
        domain=chosen,
        device=card.get("name"),
        power_limit_w=limits_w[-1] if limits_w else None,
        sensor_s=card.get("power_window_s") or card.get("power_period_s"),
        simulated=bool(card.get("simulated")),
        **card_limits(card.get("name")),
    )


def _card(row: Mapping[str, Any], path: Path) -> dict[str, Any]:
    try:
        card = json.loads(row.get("detail") or "")
    except json.JSONDecodeError as broken:
        raise BadInput(f"{path}: the meter {row.get('domain')} is not described in JSON: {broken}") from broken
    return card if isinstance(card, dict) else {}


def _chosen(rows: list[Mapping[str, Any]], cards: Mapping[str, Any], path: Path, domain: str | None) -> str:
    if domain is not None:
        if domain not in cards:
            raise BadInput(f"{path} has no meter {domain!r}; it has {', '.join(cards) or 'none'}")
        return domain
    totals: dict[str, float] = {}
    for name in cards:
        own = [row for row in rows if row.get("event") is None and row.get("domain") == name]
        if power := _power(own).values:
            known = [value for value in power if math.isfinite(value)]
            totals[name] = sum(known) / max(1, len(known))
    if not totals:
        raise NoPower(f"{path} holds no power readings; `wattsmith machine` says what this machine can measure")
    gpus = {name: total for name, total in totals.items() if name.startswith("gpu:")}
    return max(gpus or totals, key=lambda name: (gpus or totals)[name])


def _power(readings: Iterable[Mapping[str, Any]]) -> Series:
    """Power as it was read; of a meter that only counts, what it counted between two readings."""
    rows = list(readings)
    read = _series(rows, "power_w")
    if read.time_s:
        return read
    counted = _series(rows, "counter_j")
    pairs = list(zip(counted.time_s, counted.values, strict=True))
    between = [
        ((before_s + after_s) / 2, (after_j - before_j) / (after_s - before_s))
        for (before_s, before_j), (after_s, after_j) in pairwise(pairs)
        if after_s > before_s
    ]
    return Series(time_s=tuple(time_s for time_s, _ in between), values=tuple(power_w for _, power_w in between))


def _series(rows: Iterable[Mapping[str, Any]], name: str) -> Series:
    """A column, with what cannot be a number kept as NaN: leaving it out is for whoever cleans."""
    pairs = [(row.get("time_s"), row.get(name)) for row in rows if row.get(name) is not None]
    return Series(
        time_s=tuple(_float(time_s) for time_s, _ in pairs), values=tuple(_float(value) for _, value in pairs)
    )


def _float(value: Any) -> float:
    with suppress(TypeError, ValueError):
        return float(value)
    return math.nan


def _number(value: Any) -> float | None:
    number = _float(value)
    return number if math.isfinite(number) else None
