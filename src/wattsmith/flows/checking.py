"""Checks one result, or a whole repository of them, on all cores."""

import multiprocessing
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from wattsmith.report.checks.findings import Check, Layer, Outcome, Report, Verdict
from wattsmith.report.checks.judging import judge
from wattsmith.report.checks.rounds import ROUNDS, round_called
from wattsmith.report.places import Place, find_results
from wattsmith.terms.errors import BadInput

WORTH_PROCESSES = 24  # results from which on starting processes pays
MOST_PROCESSES = 16

__all__ = [
    "ROUNDS",
    "Check",
    "Checked",
    "Layer",
    "Outcome",
    "Report",
    "Shared",
    "Verdict",
    "Verdicts",
    "check",
    "verdicts_of",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One recording that several results rest on."""

    places: tuple[str, ...]
    session: str
    systems: int  # 1: as when a scenario is inferred from another, or two accuracies use one run
    submitters: int  # 1: the same hardware may stand in two categories


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """All results below a folder."""

    folder: Path
    layer: Layer  # by which the verdicts are
    reports: tuple[Report, ...]
    shared: tuple[Shared, ...]
    leaving: tuple[str, ...]  # links that lead out of the folder; they were not followed
    inner_links: tuple[str, ...]

    def verdict(self, report: Report) -> Verdict:
        """Of one report. In the strict layer, a recording that another submitter has too counts against it."""
        stolen = self.layer is Layer.STRICT and any(
            report.place in one.places for one in self.shared if one.submitters > 1
        )
        return Verdict.REJECTED if stolen else report.verdict(self.layer)

    @property
    def counts(self) -> Mapping[Verdict, int]:
        return Counter(self.verdict(report) for report in self.reports)

    @property
    def accepted(self) -> bool:
        return all(self.verdict(report) is Verdict.ACCEPTED for report in self.reports)

    @property
    def reasons(self) -> Mapping[str, int]:
        """How many results failed each check, the most frequent first."""
        return dict(
            Counter(check.name for report in self.reports for check in report.reasons(self.layer)).most_common()
        )


def check(
    folder: str | Path,
    round_name: str | None = None,
    layer: Layer = Layer.STRICT,
    jobs: int | None = None,
    tell: Callable[[int, int, str], None] | None = None,
) -> Checked:
    """Check every MLPerf Power result below FOLDER: inference, training, tiny.

    round_name (v1.0 … v5.1) says whose rules hold; by default the names of the folders tell, else the session's day.
    `tell` hears how many are done, of how many, and which was the latest. Raises BadInput when nothing is found.
    """
    if round_name is not None:
        round_called(round_name)
    search = find_results(Path(folder))
    if not search.places:
        why = f"; links that lead out of it were not followed: {', '.join(search.leaving)}" if search.leaving else ""
        raise BadInput(
            f"there is no power result below {folder}: no folder has power/server.json or run_1/spl.txt{why}"
        )
    reports = []
    for report in _judged(search.places, search.root, round_name, jobs):
        reports.append(report)
        if tell is not None:
            tell(len(reports), len(search.places), report.place)
    return Checked(
        folder=Path(folder),
        layer=layer,
        reports=tuple(reports),
        shared=tuple(_shared(reports)),
        leaving=search.leaving,
        inner_links=search.inner,
    )


def _judged(places: Sequence[Place], root: Path, round_name: str | None, jobs: int | None) -> Iterator[Report]:
    one = partial(judge, root=root, round_name=round_name)
    count = min(jobs or os.cpu_count() or 1, MOST_PROCESSES, len(places))
    if count < 2 or len(places) < WORTH_PROCESSES:
        yield from map(one, places)
        return
    # Started afresh: a progress bar has threads, and forking beside threads may hang.
    with ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(one, places, chunksize=max(1, min(16, len(places) // (4 * count))))


def _shared(reports: Sequence[Report]) -> Iterator[Shared]:
    """Recordings that more than one result rests on. Sharing is usual within a system."""
    by_samples: dict[str, list[Report]] = defaultdict(list)
    for report in reports:
        if "run_1/spl.txt" in report.fingerprints:
            by_samples[report.fingerprints["run_1/spl.txt"]].append(report)
    for same in by_samples.values():
        if len(same) > 1:
            yield Shared(
                places=tuple(report.place for report in same),
                session=same[0].fingerprints.get("session", "").partition(" ")[0],
                systems=len({_system_of(report.place) for report in same}),
                submitters=len({_submitter_of(report.place) for report in same}),
            )


def _system_of(place: str) -> str:
    """What stands before benchmark, scenario and "performance" in a path."""
    parts = place.split("/")
    return "/".join(parts[:-3] if parts[-1] == "performance" else parts[:-2])


def _submitter_of(place: str) -> str:
    """What stands right before "results" in a path of the official layout; "" in another layout."""
    parts = place.split("/")
    return parts[parts.index("results") - 1] if "results" in parts[1:] else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultVerdict:
    """One result: its figures, what was checked, and the verdicts."""

    place: str  # below the folder
    kind: str  # inference, training or tiny
    round: str | None  # None: not known
    round_known_by: str
    verdict: Verdict  # by the layer that was asked for
    official_verdict: Verdict
    strict_verdict: Verdict
    simulated: bool
    figures: Mapping[str, float | int | str | None]  # units stand behind the names; None: not known
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdicts:
    """All of it, for programs."""

    folder: Path
    layer: Layer  # by which the verdicts are
    accepted: bool  # all results are
    counts: Mapping[str, int]  # of results, by verdict
    reasons: Mapping[str, int]  # results that failed, by the check that they failed
    links_not_followed: tuple[str, ...]
    links_inside: tuple[str, ...]
    shared_recordings: tuple[Shared, ...]
    results: tuple[ResultVerdict, ...]


def verdicts_of(checked: Checked) -> Verdicts:
    """What CHECKED comes to, each result with its verdicts."""
    return Verdicts(
        folder=checked.folder,
        layer=checked.layer,
        accepted=checked.accepted,
        counts={verdict.value: checked.counts.get(verdict, 0) for verdict in Verdict},
        reasons=checked.reasons,
        links_not_followed=checked.leaving,
        links_inside=checked.inner_links,
        shared_recordings=checked.shared,
        results=tuple(_verdict_of(checked, report) for report in checked.reports),
    )


def _verdict_of(checked: Checked, report: Report) -> ResultVerdict:
    return ResultVerdict(
        place=report.place,
        kind=report.kind,
        round=report.round,
        round_known_by=report.round_known_by,
        verdict=checked.verdict(report),
        official_verdict=report.verdict(Layer.OFFICIAL),
        strict_verdict=report.verdict(Layer.STRICT),
        simulated=report.simulated,
        figures=report.figures,
        checks=report.checks,
    )
