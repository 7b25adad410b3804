"""Reads the files of one inference result, each of them once, and keeps what checks need: sums, counts, first cases."""

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattsmith.report.checks.rounds import Round
from wattsmith.report.checks.tallies import PtdTally, SplTally
from wattsmith.report.formats.descriptor import SIMULATED, Descriptor, read_descriptor
from wattsmith.report.formats.lines import MOST_FILE_BYTES, Source, bad, opened
from wattsmith.report.formats.mllog import LogEvent, log_events
from wattsmith.report.formats.ptd_log import ptd_lines
from wattsmith.report.formats.spl import MOST_SAMPLES, SplSample, spl_lines
from wattsmith.report.formats.stamps import stamp_s
from wattsmith.report.formats.summary import Summary, read_summary
from wattsmith.report.window import LoadWindow, queries_at_rate
from wattsmith.terms.errors import BadInput, BadTerm

RUNS = ("ranging", "run_1")
PHASE_OF = {"ranging": "ranging", "run_1": "testing"}
REQUIRED = (
    *(f"power/{name}" for name in ("client.json", "client.log", "ptd_logs.txt", "server.json", "server.log")),
    *(f"{run}/{name}" for run in RUNS for name in ("mlperf_log_detail.txt", "mlperf_log_summary.txt", "spl.txt")),
)
LOADGEN_KEYS = frozenset(
    {
        *("power_begin", "power_end", "effective_scenario", "effective_samples_per_query", "loadgen_version"),
        *("result_validity", "result_query_count", "result_qps_with_loadgen_overhead", "result_samples_per_second"),
        *("result_completed_samples_per_sec", "result_scheduled_samples_per_sec", "result_mean_query_latency_ns"),
        *("result_mean_latency_ns", "effective_test_mode", "effective_min_duration_ms"),
    }
)


@dataclass(slots=True, kw_only=True)
class Run:
    """Ranging or testing: LoadGen's words, its window, and the samples."""

    values: Mapping[str, Any] = field(default_factory=dict)
    window: LoadWindow | None = None
    why_no_window: str = "there is no LoadGen log"
    summary: Summary | None = None
    spl: SplTally | None = None
    broken_events: int = 0

    def number(self, key: str) -> float | None:
        found = self.values.get(key)
        return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def queries_of(run: Run, counts_by_rate: bool) -> float | None:
    """How many queries count for the metric; rounds v1.0 and v1.1 took them from the rate."""
    count = run.number("result_query_count")
    if count is not None and not counts_by_rate:
        return count
    rate_hz = run.number("result_qps_with_loadgen_overhead")
    return None if rate_hz is None or run.window is None else queries_at_rate(rate_hz, run.window.duration_s)


@dataclass(slots=True, kw_only=True)
class Evidence:
    """Everything that was read of one result. What could not be read stands in `problems`, by file."""

    folder: Path
    rules: Round
    client: Descriptor | None = None
    server: Descriptor | None = None
    runs: dict[str, Run] = field(default_factory=dict)
    ptd: PtdTally | None = None
    hashes: dict[str, str] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    links: tuple[str, ...] = ()  # files that lie outside, by a symbolic link; they were not read

    @property
    def session(self) -> str:
        both = [one.session for one in (self.server, self.client) if one is not None]
        return both[0] if both else ""

    @property
    def simulated(self) -> bool:
        """Whether the analyzer, or the daemon's log, says that it is simulated."""
        said = self.server.identities if self.server is not None else ()
        return any(SIMULATED in one.lower() for one in said) or (self.ptd is not None and self.ptd.simulated)

    @property
    def meters(self) -> int:
        """How many power analyzers there were, each with a daemon of its own."""
        return max(1, len(self.server.analyzers)) if self.server is not None else 1

    def problem(self, *paths: str) -> str | None:
        """Why one of these files could not be read; None: all could."""
        return next((self.problems[path] for path in paths if path in self.problems), None)


def gather(folder: Path, rules: Round, root: Path | None = None) -> Evidence:
    """Read a result: the folder with `power`, `ranging` and `run_1`. Never raises for what stands in its files."""
    found = Evidence(folder=folder, rules=rules, links=tuple(_leaving(folder, root or folder)))
    for path in found.links:
        found.problems[path] = f"{path}: refused: it is a link that leaves the folder"
    found.client = _tried(found, "power/client.json", read_descriptor)
    found.server = _tried(found, "power/server.json", read_descriptor)
    for run in RUNS:
        found.runs[run] = _run(found, run)
    found.ptd = _tried(found, "power/ptd_logs.txt", lambda source, name: _ptd(found, source, name))
    for path in REQUIRED:
        if path not in found.problems or "line" in found.problems[path]:
            sha1 = _tried(found, path, lambda source, name: sha1_of(source, name), keep=True)
            if sha1 is not None:
                found.hashes[path] = sha1
    return found


def _tried(found: Evidence, path: str, read: Any, keep: bool = False) -> Any:
    """What READ makes of a file; None, with the reason kept, when it cannot be read."""
    if path in found.links:
        return None
    try:
        return read(found.folder / path, path)
    except BadInput as wrong:
        if not keep:
            found.problems[path] = str(wrong)
        else:
            found.problems.setdefault(path, str(wrong))
        return None


def _leaving(folder: Path, root: Path) -> Iterator[str]:
    home = root.resolve()
    for path in REQUIRED:
        target = (folder / path).resolve()
        if target != home and home not in target.parents:
            yield path


def _run(found: Evidence, name: str) -> Run:
    run = Run()
    values = _tried(found, f"{name}/mlperf_log_detail.txt", lambda source, path: _values(run, source, path))
    if values is not None:
        run.values = values
        offset_s = found.client.timezone_s if found.rules.local_times and found.client is not None else 0.0
        run.window, run.why_no_window = _window(values, offset_s)
    run.summary = _tried(found, f"{name}/mlperf_log_summary.txt", read_summary)
    run.spl = _tried(found, f"{name}/spl.txt", lambda source, path: _spl(found, run, source, path))
    return run


def _values(run: Run, source: Source, path: str) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for event in log_events(source, path, LOADGEN_KEYS):
        if isinstance(event, LogEvent):
            values.setdefault(event.key, event.value)
        else:
            run.broken_events += 1
    return values


def _window(values: Mapping[str, Any], offset_s: float) -> tuple[LoadWindow | None, str]:
    try:
        begin_s, end_s = (stamp_s(str(values[key])) + offset_s for key in ("power_begin", "power_end"))
        return LoadWindow(begin_s=begin_s, end_s=end_s), ""
    except KeyError as missing:
        return None, f"LoadGen's log has no {missing.args[0]}"
    except BadTerm:
        return None, f"power_begin ({values['power_begin']}) is not before power_end ({values['power_end']})"
    except ValueError as wrong:
        return None, f"power_begin or power_end is no date: {wrong}"


def _spl(found: Evidence, run: Run, source: Source, path: str) -> SplTally:
    offset_s = found.server.timezone_s if found.rules.local_times and found.server is not None else 0.0
    tally = SplTally(run.window, found.rules.drops_non_positive, offset_s)
    for line in spl_lines(source, path):
        if isinstance(line, SplSample):
            tally.add(line)
            if tally.count > MOST_SAMPLES:
                raise bad(path, line.number, f"no session has more than {MOST_SAMPLES} samples")
        elif line.why:
            tally.note_unread(line)
    return tally


def _ptd(found: Evidence, source: Source, path: str) -> PtdTally:
    offset_s = found.server.timezone_s if found.rules.local_times and found.server is not None else 0.0
    tally = PtdTally(found.rules, found.session, found.runs["run_1"].window, offset_s)
    for line in ptd_lines(source, path):
        tally.add(line)
    return tally


def sha1_of(source: Source, name: str) -> str:
    """SHA-1 of a file, streamed."""
    digest = hashlib.sha1(usedforsecurity=False)
    with opened(source, name, MOST_FILE_BYTES) as stream:
        while chunk := stream.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def sha1_with_endings(path: Path, crlf: bool) -> str:
    """SHA-1 of a text file as if all its lines had ended in CRLF, or all in LF."""
    digest = hashlib.sha1(usedforsecurity=False)
    with opened(path, str(path)) as stream:
        for line in stream:
            plain = line.removesuffix(b"\n").removesuffix(b"\r")
            ending = b"" if not line.endswith(b"\n") else b"\r\n" if crlf else b"\n"
            digest.update(plain + ending)
    return digest.hexdigest()
