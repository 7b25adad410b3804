"""Recognise what a device runs: its telemetry beside a record of benchmarks, and the curve that follows from it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from wattsmith.flows.matching_live import watch_command, watch_process
from wattsmith.flows.matching_probe import probe_by_knob
from wattsmith.flows.records import runs_of, shipped_records
from wattsmith.flows.telemetry_files import read_telemetry, write_telemetry
from wattsmith.match.curves import curve_book, guess_response, probe_setting
from wattsmith.match.features import NeverWorked, fingerprint_of, layer_features
from wattsmith.match.plot import plot_match
from wattsmith.match.points import benchmarks_of, with_activity
from wattsmith.match.recognising import recognise
from wattsmith.match.settling import Settled, choose_setting, settle, settle_unguided
from wattsmith.store.opening import default_path
from wattsmith.store.shipped import shipped_activity
from wattsmith.terms.errors import BadInput
from wattsmith.terms.run import Structure
from wattsmith.terms.telemetry import Benchmark, Fingerprint, Match, Probe, ResponseGuess, Telemetry

__all__ = [
    "HowToMatch",
    "Match",
    "Settled",
    "benchmarks_in",
    "best_setting",
    "draw_match",
    "match",
    "match_command",
    "match_process",
    "relative_curve",
    "settle",
    "settle_unguided",
    "structure_of",
    "where_to_probe",
]

Tell = Callable[[str], None]
FEWEST_BENCHMARKS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class HowToMatch:
    """What a client is compared with, and what else is known of it."""

    record: str | None = None  # by name, path or URL; None: this user's own where there is one, else the shipped one
    probes: tuple[Probe, ...] = ()
    setting: float | None = None  # the client's clock over the usual one; None: as its telemetry says
    steps_per_s: float | None = None  # progress; None: as its telemetry says
    power_limit_w: float | None = None
    max_clock_hz: float | None = None
    memory_bytes: int | None = None
    structure: Structure | None = None  # layer information, such as of a traced step
    neighbours: int = 5
    domain: str | None = None
    save: Path | None = None  # where to keep the telemetry

    def __post_init__(self) -> None:
        if self.neighbours < 1:
            raise BadInput(f"neighbours must be at least 1, got {self.neighbours}")


class SmallRecord(BadInput):
    """A record with too few networks to compare anything with."""


def match(source: Any, benchmarks: Sequence[Benchmark] | None = None, **options: Any) -> Match:
    """What SOURCE is most like: a file of telemetry, Telemetry, a Fingerprint, or the Structure of a step not yet run.

    OPTIONS are the fields of HowToMatch; BENCHMARKS, if given, stand in for a record.
    `match("trace.parquet", record="h200", steps_per_s=12.5)`
    """
    how = _how(options)
    fingerprint, telemetry = _fingerprint(source, how)  # first: what is wrong with it should be told at once
    name, points = (None, list(benchmarks)) if benchmarks is not None else _record_of(how.record)
    if len(points) < FEWEST_BENCHMARKS:
        raise SmallRecord(
            f"the record holds {len(points)} measured networks; at least {FEWEST_BENCHMARKS} are needed to say what is "
            "near. Take more with `wattsmith record run`, or use a shipped one: --record h200"
        )
    clock = fingerprint.features.get("clock")
    setting = how.setting if how.setting is not None else _moved(clock, points)
    found = recognise(
        points,
        fingerprint,
        how.probes,
        setting=setting,
        neighbours=how.neighbours,
        record=name,
        simulated=telemetry is not None and telemetry.simulated,
    )
    return _with_usual(found, telemetry, setting)


def match_command(command: Sequence[str], tell: Tell = lambda _: None, **options: Any) -> tuple[Match, int]:
    """Run COMMAND, watch it to its end, and match it; with its exit code. OPTIONS as in `match`, and `meters`,
    `progress`."""
    live, others = _split(options)
    live.pop("seconds_s", None)
    telemetry, exit_code = watch_command(command, tell=tell, **live)
    try:
        return match(_kept(telemetry, others), **others), exit_code
    except BadInput as refused:
        if exit_code == 0:
            raise
        raise BadInput(f"the command ended with exit code {exit_code}, and was not recognised: {refused}") from refused


def match_process(pid: int, tell: Tell = lambda _: None, **options: Any) -> Match:
    """Watch process PID for a while and match it. OPTIONS as in `match`, and `meters`, `progress`, `seconds_s`.

    With `probe_with`, such as "gpu:0/power_limit", that knob is turned under a lease for as long again, and put back.
    """
    live, others = _split(options)
    knob = others.pop("probe_with", None)
    if knob is not None and knob.startswith("gpu:") and live.get("domain") is None:
        live["domain"] = knob.partition("/")[0]
    seen = _kept(watch_process(pid, tell=tell, **live), others)
    if knob is not None:
        tell(f"probing: {knob} goes down for a while, and comes back")
        probe = probe_by_knob(partial(watch_process, pid, tell=tell, **live), knob, usual=fingerprint_of(seen))
        others["probes"] = (*others.get("probes", ()), probe)
    return match(seen, **others)


def benchmarks_in(record: str | None) -> list[Benchmark]:
    """The networks of a record as benchmarks; those of a shipped one with the activity that was counted of them."""
    name = _record_name(record)
    points = benchmarks_of(runs_of(name))
    return with_activity(points, shipped_activity(name)) if name in shipped_records() else points


def relative_curve(
    benchmarks: Sequence[Benchmark], fingerprint: Fingerprint, probes: Sequence[Probe] = ()
) -> ResponseGuess:
    """How a client's time and power should change with its setting, each with its interval: for who plans."""
    book = curve_book(benchmarks, drawn_ratio=fingerprint.features.get("power_mean"))
    return guess_response(book, fingerprint.features, probes, power_w=fingerprint.power_w)[0]


def _record_of(record: str | None) -> tuple[str | None, list[Benchmark]]:
    """RECORD by its name; None: this user's own where there is enough in it, or else the first that is shipped."""
    name = _record_name(record)
    points = benchmarks_in(name)
    if record is None and name is None and len(points) < FEWEST_BENCHMARKS:
        name = next(iter(shipped_records()))
        points = benchmarks_in(name)
    return name, points


def _record_name(record: str | None) -> str | None:
    """RECORD, or this user's own (None) where there is one, or else the first that is shipped."""
    if record is not None or default_path().exists():
        return record
    return next(iter(shipped_records()))


def _how(options: dict[str, Any]) -> HowToMatch:
    try:
        return HowToMatch(**options)
    except TypeError as unknown:
        strange = ", ".join(repr(name) for name in options if name not in HowToMatch.__dataclass_fields__)
        raise BadInput(
            f"there is no option {strange}; there are {', '.join(HowToMatch.__dataclass_fields__)}"
        ) from unknown


def _split(options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    live = {name: value for name, value in options.items() if name in ("meters", "progress", "seconds_s", "domain")}
    return live, {name: value for name, value in options.items() if name not in live}


def _kept(telemetry: Telemetry, options: dict[str, Any]) -> Telemetry:
    if options.get("save") is not None:
        write_telemetry(telemetry, Path(options["save"]))
    return telemetry


def _with_usual(found: Match, telemetry: Telemetry | None, setting: float) -> Match:
    """FOUND with what a setting of 1 is in W or Hz, as far as the client's telemetry tells."""
    if found.response is None or telemetry is None:
        return found
    if found.response.knob == "power_limit":
        usual = None if telemetry.power_limit_w is None else telemetry.power_limit_w / setting
    else:
        clock, most_hz = found.fingerprint.features.get("clock"), telemetry.max_clock_hz
        usual = None if not clock or most_hz is None else clock * most_hz / setting
    return replace(found, response=replace(found.response, usual=usual))


def _fingerprint(source: Any, how: HowToMatch) -> tuple[Fingerprint, Telemetry | None]:
    if isinstance(source, Structure):
        return Fingerprint(features=layer_features(source)), None
    if isinstance(source, Fingerprint):
        return source, None
    telemetry = source if isinstance(source, Telemetry) else read_telemetry(Path(source), how.domain)
    given = {
        name: value
        for name in ("steps_per_s", "power_limit_w", "max_clock_hz", "memory_bytes", "structure")
        if (value := getattr(how, name)) is not None
    }
    telemetry = replace(telemetry, **given)
    if telemetry.structure is not None and not telemetry.series:
        return Fingerprint(features=layer_features(telemetry.structure), notes=telemetry.notes), telemetry
    try:
        return fingerprint_of(telemetry), telemetry
    except NeverWorked as idle:
        if telemetry.structure is None:
            raise
        notes = (*telemetry.notes, f"compared by its layers alone: {idle}")
        return Fingerprint(features=layer_features(telemetry.structure), notes=notes), telemetry


def _moved(clock_ratio: float | None, points: Sequence[Benchmark]) -> float:
    """The client's clock over the one that benchmarks had, where both are known: one that is not pressed stays."""
    usual = [one for point in points if (one := point.features.get("clock")) is not None]
    if clock_ratio is None or not usual or clock_ratio <= 0:
        return 1.0
    return min(1.0, clock_ratio / (sum(usual) / len(usual)))


def structure_of(model: str, batch: int, inputs: Sequence[str] | None = None) -> Structure:
    """Layer information of a program that is about to run: of a traced training step of MODEL.

    INPUTS are sizes of one sample, as `wattsmith estimate` takes them.
    """
    from wattsmith.flows.estimating import HowToEstimate, traced_step
    from wattsmith.flows.models import load_model

    return traced_step(load_model(model, inputs=inputs, batch=batch, device="meta"), HowToEstimate(batch=batch))[
        0
    ].structure


def draw_match(found: Match, path: Path, trace: str | Path | None = None) -> None:
    """Draw the evidence of FOUND into PATH, with the power of TRACE where that is kept."""
    plot_match(found, path, None if trace is None else read_telemetry(Path(trace)))


def where_to_probe(benchmarks: Sequence[Benchmark]) -> float:
    """The setting, over the usual one, at which a short trial says most."""
    return probe_setting(curve_book(benchmarks).settings)


def best_setting(found: Match, slowdown: float, *, cautious: bool = False) -> float | None:
    """The setting with least energy that keeps SLOWDOWN, over the usual one; None when nothing was recognised."""
    if found.response is None:
        return None
    return found.response.settings[choose_setting(found.response, slowdown, cautious=cautious)]
