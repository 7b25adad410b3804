"""Any run as a report: what `measure`, `record` or `tune` left behind, with its tier and its disclosure file."""

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from wattsmith.flows.measuring import replay
from wattsmith.flows.records import runs_of
from wattsmith.report.disclosure import Disclosure, disclose_run, disclose_tuning, disclose_window
from wattsmith.terms.energy import Window
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Run
from wattsmith.terms.tuning import Tuned

__all__ = ["Disclosure", "disclose_file", "write_disclosure"]

MOST_BYTES = 1 << 28
TIMELINES = (".csv", ".parquet")
RECORDS = (".jsonl", ".db", ".sqlite", ".gz")
WHAT_IS_READ = (
    "the JSON of `wattsmith measure`, `record show` or `tune`, a timeline (.csv, .parquet), or a record (.jsonl, .db)"
)


def disclose_file(path: Path) -> list[Disclosure]:
    """A disclosure for every run in the file at PATH. Raises BadInput that says what it is not."""
    if not path.is_file():
        raise BadInput(f"there is no file {path}; give {WHAT_IS_READ}")
    if path.suffix in TIMELINES:
        return [disclose_window(window, replayed=True) for window in replay(path)]
    if path.suffix in RECORDS:
        return [disclose_run(run) for run in runs_of(str(path))]
    return _disclose_json(_read_json(path), path)


def write_disclosure(disclosures: Sequence[Disclosure], folder: Path) -> list[Path]:
    """disclosure.json and disclosure.txt in FOLDER, which is made where it is not there."""
    files = {
        folder / "disclosure.json": json.dumps([as_plain(one) for one in disclosures], indent=1) + "\n",
        folder / "disclosure.txt": "\n\n".join(one.text() for one in disclosures),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in files.items():
            path.write_text(text, encoding="utf-8")
    except OSError as refused:
        raise NotWritten(f"the disclosure cannot be written to {folder}: {refused.strerror}") from refused
    return list(files)


def _read_json(path: Path) -> Any:
    if path.stat().st_size > MOST_BYTES:
        raise BadInput(f"{path} has {path.stat().st_size} bytes; a result has at most {MOST_BYTES}")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as odd:
        raise BadInput(f"{path} cannot be read as text: {odd}; give {WHAT_IS_READ}") from odd
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as odd:
        # A command's own output may stand before the one line of JSON that `measure --json` adds.
        with suppress(ValueError, RecursionError, IndexError):
            return json.loads(text.strip().splitlines()[-1])
        raise BadInput(f"{path} is no JSON ({odd}); give {WHAT_IS_READ}") from odd


def _disclose_json(plain: Any, path: Path) -> list[Disclosure]:
    if isinstance(plain, dict) and "window" in plain:
        remarks = [] if plain.get("exit_code") in (0, None) else [f"the command ended with code {plain['exit_code']}"]
        return [disclose_window(parse_fact(Window, plain["window"], "window"), remarks=remarks)]
    if isinstance(plain, dict) and isinstance(plain.get("windows"), list):
        return [disclose_window(_window(one, place), replayed=True) for place, one in enumerate(plain["windows"])]
    if isinstance(plain, dict) and "recommendation" in plain:
        return [disclose_tuning(parse_fact(Tuned, plain, "tuned"), title=f"Search in {path.name}")]
    if isinstance(plain, list) and plain and all(isinstance(one, dict) for one in plain):
        if all("workload" in one for one in plain):
            return [disclose_run(parse_fact(Run, one, f"run {place}")) for place, one in enumerate(plain, 1)]
        if all("domains" in one for one in plain):
            return [disclose_window(_window(one, place)) for place, one in enumerate(plain)]
    raise BadInput(f"{path} holds no run that is known here; give {WHAT_IS_READ}")


def _window(plain: Any, place: int) -> Window:
    return parse_fact(Window, plain, f"window {place + 1}")
