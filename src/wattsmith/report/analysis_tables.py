"""Tables of results: the inference runs that were worked out from raw logs, and those of training and tiny devices."""

import csv
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from wattsmith.report.analysis import Efficiency, Result, Work
from wattsmith.terms.errors import BadInput, BadTerm

F = TypeVar("F")
RUNS, PUBLISHED = "inference_power_runs.csv", "published_inference_power.csv"
TRAINING, TINY = "training_energy.csv", "tiny_energy.csv"
MOST_ROWS = 2_000_000
MOST_BYTES = 1 << 30
TINY_TASKS = {  # some submitters wrote the task in full
    "anomaly_detection": "ad",
    "image_classification": "ic",
    "keyword_spotting": "kws",
    "visual_wake_words": "vww",
}
_NEEDED = ("version", "division", "submitter", "system", "model", "scenario", "window_s", "samples", "avg_w", "metric")


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """One row of the published tables."""

    round: str
    system: str
    model: str
    scenario: str
    performance: float
    performance_units: str
    figure: float  # of power or energy, in `figure_units`
    figure_units: str

    @property
    def per_joule(self) -> float | None:
        """Whatever the performance counts, for one joule; None where power is not in watts."""
        return self.performance / self.figure if self.figure_units == "Watts" else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """One training result, with its energy by the summarizer's formula and in the run's own window."""

    round: str
    submitter: str
    system: str
    benchmark: str
    accelerators: int
    duration_s: float
    official_j: float
    in_window_j: float
    switches_j: float
    published_j: float | None
    padded_before_s: float
    least_covered_ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiny:
    """One result of a tiny device."""

    round: str
    submitter: str
    task: str
    energy_each_j: float
    has_trace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Corpus:
    """All tables of a folder. An empty one was not there."""

    results: tuple[Result, ...]
    published: tuple[Published, ...] = ()
    training: tuple[Training, ...] = ()
    tiny: tuple[Tiny, ...] = ()


def read_corpus(folder: Path) -> Corpus:
    """The tables in FOLDER, or in its folder `tables`; that of inference runs must be there."""
    home = folder if (folder / RUNS).is_file() else folder / "tables"
    if not (home / RUNS).is_file():
        raise BadInput(f"there is no {RUNS} in {folder}; give the folder that holds the tables")

    def others(name: str) -> Path | None:
        return home / name if (home / name).is_file() else None

    published, training, tiny = others(PUBLISHED), others(TRAINING), others(TINY)
    return Corpus(
        results=tuple(read_results(home / RUNS)),
        published=() if published is None else tuple(_facts(published, _published)),
        training=() if training is None else tuple(_facts(training, _training)),
        tiny=() if tiny is None else tuple(_facts(tiny, _tiny)),
    )


def read_results(path: Path) -> Iterator[Result]:
    """The runs in a table such as inference_power_runs.csv. Raises BadInput with the line that is wrong."""
    yield from _facts(path, _result, needed=_NEEDED)


class Row:
    """One row, asked for by column; what is wrong is said with its place."""

    def __init__(self, cells: Mapping[str, str | None], where: str) -> None:
        self._cells, self._where = cells, where

    def text(self, column: str) -> str:
        return (self._cells.get(column) or "").strip()

    def number(self, column: str) -> float:
        found = self.maybe(column)
        if found is None:
            raise BadInput(f"{self._where}: {column} is empty")
        return found

    def maybe(self, column: str) -> float | None:
        told = self.text(column)
        if not told:
            return None
        try:
            found = float(told)
        except ValueError:
            raise BadInput(f"{self._where}: {column} is {told[:40]!r}, not a number") from None
        if not math.isfinite(found):
            raise BadInput(f"{self._where}: {column} is {told!r}, not a finite number")
        return found

    def whole(self, column: str) -> int | None:
        found = self.maybe(column)
        return None if found is None else int(found)


def _facts(path: Path, make: Callable[[Row], F], needed: tuple[str, ...] = ("version",)) -> Iterator[F]:
    try:
        size_bytes = path.stat().st_size
        if size_bytes > MOST_BYTES:
            raise BadInput(f"{path} has {size_bytes} bytes; a table here has at most {MOST_BYTES}")
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = csv.DictReader(file)
            missing = [column for column in needed if column not in (rows.fieldnames or ())]
            if missing:
                raise BadInput(f"{path.name} is no table of results: it lacks the columns {', '.join(missing)}")
            for number, cells in enumerate(rows, 2):
                where = f"{path.name}, line {number}"
                if number > MOST_ROWS:
                    raise BadInput(f"{where}: there are more rows than {MOST_ROWS}")
                if None in cells or None in cells.values():
                    raise BadInput(f"{where}: it has not as many cells as the header")
                try:
                    yield make(Row(cells, where))
                except BadTerm as refused:
                    raise BadInput(f"{where}: {refused}") from refused
    except (OSError, UnicodeDecodeError, csv.Error) as odd:
        raise BadInput(f"{path} cannot be read as a table: {odd}") from odd


def _result(row: Row) -> Result:
    per_joule = row.maybe("samples_per_joule")
    each, nodes = row.whole("accelerators_per_node"), row.whole("nodes")
    return Result(
        round=row.text("version"),
        division=row.text("division"),
        submitter=row.text("submitter"),
        system=row.text("system"),
        system_name=row.text("system_name") or row.text("system"),
        category=row.text("system_type"),
        model=row.text("model"),
        scenario=row.text("scenario").lower(),
        scenario_run=row.text("scenario_run").lower(),
        window_s=row.number("window_s"),
        samples=int(row.number("samples")),
        invalid_samples=row.whole("invalid_samples") or 0,
        power_w=row.number("avg_w"),
        power_min_w=row.maybe("min_w"),
        power_max_w=row.maybe("max_w"),
        power_spread_w=row.maybe("std_w"),
        power_factor_ratio=row.maybe("avg_pf"),
        queries=row.whole("queries"),
        metric=row.number("metric"),
        metric_unit=row.text("metric_unit"),
        efficiency=None if per_joule is None else Efficiency(per_joule=per_joule, work=Work.SAMPLES),
        samples_per_s=row.maybe("summary_samples_per_s"),
        tokens_per_s=row.maybe("summary_tokens_per_s"),
        published_figure=row.maybe("published_power"),
        published_figure_units=row.text("published_power_units"),
        published_performance=row.maybe("published_performance"),
        published_performance_units=row.text("published_performance_units"),
        ranging_power_w=row.maybe("ranging_avg_w"),
        longest_gap_s=row.maybe("max_gap_s"),
        clock_skew_s=row.maybe("max_clock_skew_s"),
        uncertain_samples=row.whole("unc_over_1pct_in_window"),
        accelerator=row.text("accelerator"),
        accelerators=None if not each else each * (nodes or 1),
    )


def _published(row: Row) -> Published:
    return Published(
        round=row.text("version"),
        system=row.text("system"),
        model=row.text("model"),
        scenario=row.text("scenario").lower(),
        performance=row.number("performance"),
        performance_units=row.text("performance_units"),
        figure=row.number("power"),
        figure_units=row.text("power_units"),
    )


def _training(row: Row) -> Training:
    published_kj = row.maybe("published_kj")
    return Training(
        round=row.text("version"),
        submitter=row.text("submitter"),
        system=row.text("system"),
        benchmark=row.text("bench"),
        accelerators=int(row.number("accels")),
        duration_s=row.number("ttt_min") * 60,
        official_j=row.number("official_v40_kj") * 1e3,
        in_window_j=row.number("inwindow_kj") * 1e3,
        switches_j=row.number("switch_kj") * 1e3,
        published_j=None if published_kj is None else published_kj * 1e3,
        padded_before_s=row.number("pre_s"),
        least_covered_ratio=row.number("min_cov"),
    )


def _tiny(row: Row) -> Tiny:
    parts = row.text("location").split("/")
    task = parts[-2] if len(parts) > 1 else ""
    return Tiny(
        round=row.text("version"),
        submitter=row.text("submitter"),
        task=TINY_TASKS.get(task, task),
        energy_each_j=row.number("median_uj_per_inference") * 1e-6,
        has_trace=row.text("trace_available") == "True",
    )
