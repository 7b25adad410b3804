"""Runs as lines of JSON: a header, then a run on each line. Exports and the plain store are both of this form."""

import json
from typing import Any

from wattsmith import __version__
from wattsmith.store.identity import check_storable
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Run

SCHEMA = 6  # the newest step in migrations/versions that changed what a run is; older versions still read the rest
_FORMAT = "wattsmith record"


def header_line(runs: int | None) -> bytes:
    """The first line. RUNS: how many follow; None: more may be added."""
    header = {"format": _FORMAT, "schema": SCHEMA, "runs": runs, "written_by": f"wattsmith {__version__}"}
    return _as_line(header)


def run_line(run: Run) -> bytes:
    plain = as_plain(run)
    if not run.calls:
        del plain["calls"]  # most runs have none, and reading puts the same nothing there
    return _as_line(plain)


def _as_line(plain: Any) -> bytes:
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode() + b"\n"


def read_header(line: bytes) -> int | None:
    """How many runs follow, by the header; None: it does not say. Raises BadInput when it is no header of ours."""
    header = _read(line) if line.strip() else None
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise BadInput(f'expected the header {{"format": "{_FORMAT}", "schema": …}}: this is not a record')
    schema, runs = header.get("schema"), header.get("runs")
    if schema is None or not _is_count(schema):
        raise BadInput(f"schema: expected a number, got {schema!r}")
    if schema > SCHEMA:
        raise BadInput(
            f"schema: {schema} is newer than {SCHEMA}, the newest that this version of wattsmith reads. "
            "Install a newer wattsmith."
        )
    if runs is not None and not _is_count(runs):
        raise BadInput(f"runs: expected a number or null, got {runs!r}")
    return runs


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def read_run(line: bytes) -> Run:
    """The run on LINE. Raises BadInput with a line for each problem, each with the field it is in."""
    run = parse_fact(Run, _read(line))
    try:
        check_storable(run)
    except BadTerm as refused:
        raise BadInput(str(refused)) from refused
    return run


def _read(line: bytes) -> Any:
    try:
        return json.loads(line.decode().rstrip())
    except (ValueError, RecursionError) as broken:
        raise BadInput(f"not JSON: {broken}") from broken
