"""The shape in which every benchmark tells what it found: tables, and bars that are met or missed."""

from collections.abc import Mapping, Sequence
from typing import Any

Cell = str | float | None
Told = dict[str, Any]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]], notes: Sequence[str] = ()) -> Told:
    """One table. Numbers are shown to three digits, None as a dash."""
    return {"title": title, "heads": list(heads), "rows": [list(row) for row in rows], "notes": list(notes)}


def bar(what: str, figure: Cell, met: bool | None) -> Told:
    """What must hold, what it came to, and whether that will do. None: there was nothing to compare with."""
    return {"what": what, "figure": figure, "met": None if met is None else bool(met)}


def verdict(met: bool | None) -> str:
    return "not compared" if met is None else "met" if met else "MISSED"


def shown(cell: Cell) -> str:
    if cell is None:
        return "–"
    if isinstance(cell, str):
        return cell
    return f"{cell:,.0f}" if abs(cell) >= 1000 else f"{cell:.3g}"


def of_tests(rows: Sequence[Mapping[str, Any]]) -> Told:
    """Tables and bars of rows that say test, measure, ours and others, in per cent, with a bar or none."""
    told = [
        [
            str(row["test"]),
            str(row["measure"]),
            row.get("rows") or row.get("count") or None,
            f"{row['ours']:.1f}",
            str(row["bar"]),
            "" if row["met"] is None else verdict(row["met"]),
            "; ".join(_beside(name, value, row["ours"]) for name, value in row["others"].items()),
            str(row["note"]),
        ]
        for row in rows
    ]
    heads = ["test", "measure", "cases", "ours", "bar", "", "others (÷ ours)", "note"]
    bars = [
        bar(f"{row['test']}: {row['measure']} {row['bar']}", f"{row['ours']:.1f}", row["met"])
        for row in rows
        if row["met"] is not None
    ]
    return {"tables": [table("Per cent where nothing else is said", heads, told)], "bars": bars}


def _beside(name: str, value: float, ours: float) -> str:
    return f"{name} {value:.1f}" + (f" ({value / ours:.1f} ×)" if ours else "")
