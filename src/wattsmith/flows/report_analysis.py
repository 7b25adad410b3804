"""Many results compared: a table or a folder of them summarised, and written as one page."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from wattsmith.report.analysis_claims import Claim, Outcome, claims_of
from wattsmith.report.analysis_folder import read_folder
from wattsmith.report.analysis_tables import RUNS, Corpus, read_corpus, read_results
from wattsmith.report.page import Table as Table
from wattsmith.report.page import make_page, tables_of
from wattsmith.report.plots import write_png
from wattsmith.terms.errors import BadInput, NotWritten

LEAST_FOR_CLAIMS = 9_000  # results; a smaller table is another one, and nobody said anything about it


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What results came to: tables, what was said before, and what could not be read."""

    source: str
    results: int
    tables: tuple[Table, ...]
    claims: tuple[Claim, ...]
    unread: tuple[str, ...]  # results that are there and could not be read, with the reason

    @property
    def mismatches(self) -> tuple[Claim, ...]:
        return tuple(claim for claim in self.claims if claim.outcome is Outcome.MISMATCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A page and what lies beside it."""

    page: Path
    beside: tuple[Path, ...]
    results: int
    unread: tuple[str, ...]


def load(path: Path) -> tuple[Corpus, tuple[str, ...]]:
    """What PATH holds: a table of results, a folder with such tables, or a folder of results with their logs.

    The second part names the results that could not be read, each with its reason.
    """
    if path.is_file():
        return Corpus(results=tuple(read_results(path))), ()
    if not path.is_dir():
        raise BadInput(f"there is neither a file nor a folder {path}; give a table of results or a folder of them")
    if (path / RUNS).is_file() or (path / "tables" / RUNS).is_file():
        return read_corpus(path), ()
    results, unread = read_folder(path)
    if not results:
        reasons = f": {unread[0]}" if unread else ""
        raise BadInput(f"{path} holds no result of a power run that can be read{reasons}")
    return Corpus(results=tuple(results)), tuple(unread)


def summarise(path: Path) -> Summary:
    """The results at PATH, summarised."""
    corpus, unread = load(path)
    claims = _claims(corpus)
    return Summary(
        source=path.name,
        results=len(corpus.results),
        tables=tables_of(corpus.results, claims),
        claims=tuple(claims),
        unread=unread,
    )


def write_page(path: Path, out: Path, *, title: str = "Energy of machine learning, measured") -> Written:
    """The results at PATH as the page OUT, with its pictures as PNG and its tables as CSV beside it."""
    if out.suffix not in (".html", ".htm"):
        raise BadInput(f"the page is HTML: give a file that ends in .html, not {out.name!r}")
    corpus, unread = load(path)
    page = make_page(corpus.results, _claims(corpus), title=title, source=path.name)
    beside = []
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(page.html, encoding="utf-8")
        for table in page.tables:
            beside.append(out.with_name(f"{out.stem}_{table.name}.csv"))
            beside[-1].write_text(table.csv(), encoding="utf-8")
    except OSError as refused:
        raise NotWritten(f"the page {out} cannot be written: {refused.strerror}") from refused
    for name, png in page.pictures.items():
        beside.append(out.with_name(f"{out.stem}_{name}.png"))
        write_png(beside[-1], png)
    return Written(page=out, beside=tuple(beside), results=len(corpus.results), unread=unread)


def _claims(corpus: Corpus) -> Sequence[Claim]:
    return claims_of(corpus) if len(corpus.results) >= LEAST_FOR_CLAIMS else []
