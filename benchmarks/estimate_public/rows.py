"""A line of the table of accuracy, and how a bar is met."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One test: what we reach, what others reach on the same rows, and what we ask of ourselves. All in per cent."""

    test: str
    measure: str  # "MAPE", "coverage", "caught"
    ours: float
    at_most: float | None = None
    at_least: float | None = None  # with neither bar, it is there to be read
    others: Mapping[str, float] = field(default_factory=dict)  # the same measure, by method
    rows: int = 0  # how many predictions it is about
    note: str = ""

    @property
    def met(self) -> bool | None:
        """None: nothing is asked."""
        if self.at_most is None and self.at_least is None:
            return None
        above = self.at_least is None or self.ours >= self.at_least
        return above and (self.at_most is None or self.ours <= self.at_most)

    @property
    def bar(self) -> str:
        if self.at_least is not None and self.at_most is not None:
            return f"{self.at_least:g}–{self.at_most:g}"
        if self.at_most is not None:
            return f"≤ {self.at_most:g}"
        return "" if self.at_least is None else f"≥ {self.at_least:g}"
