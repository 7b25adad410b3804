"""A line of the table: what we reach, what others reach on the same programs, and what we ask of ourselves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One test, in per cent."""

    test: str
    measure: str
    ours: float
    at_most: float | None = None
    at_least: float | None = None
    others: Mapping[str, float] = field(default_factory=dict)
    count: int = 0  # how many cases it is about
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None: nothing is asked."""
        if self.at_most is None and self.at_least is None:
            return None
        return (self.at_most is None or self.ours <= self.at_most) and (
            self.at_least is None or self.ours >= self.at_least
        )

    @property
    def bar(self) -> str:
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"


def text_of(rows: Sequence[Row]) -> str:
    lines = [f"{'test':44} {'measure':34} {'ours':>7} {'bar':>7} {'':5} {'n':>5}  others"]
    for row in rows:
        state = {None: "", True: "met", False: "MISSED"}[row.met]
        others = "; ".join(f"{name} {value:.1f}" for name, value in row.others.items())
        lines.append(
            f"{row.test:44} {row.measure:34} {row.ours:7.1f} {row.bar:>7} {state:6} {row.count:4}  {others}"
            + (f" [{row.note}]" if row.note else "")
        )
    return "\n".join(lines)
