"""What a check found, and what all checks together say of a result."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Layer(StrEnum):
    OFFICIAL = "official"  # as the round's own checker has it
    STRICT = "strict"  # what the files can prove beyond


class Outcome(StrEnum):
    PASSED = "passed"
    REMARK = "remark"  # accepted, and worth a look: the official checker calls it a warning
    FAILED = "failed"
    NO_EVIDENCE = "no evidence"  # these files cannot tell


class Verdict(StrEnum):
    ACCEPTED = "accepted"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check and its evidence."""

    name: str
    layer: Layer
    outcome: Outcome
    evidence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What is to be said about one result."""

    place: str  # relative to the folder that was asked for
    kind: str  # "inference", "training", "tiny"
    round: str | None
    round_known_by: str
    figures: Mapping[str, float | int | str | None]  # unit in the name of each
    checks: tuple[Check, ...]
    simulated: bool = False
    fingerprints: Mapping[str, str] = field(default_factory=dict)  # SHA-1 of the samples and the session's identity

    def verdict(self, layer: Layer) -> Verdict:
        """By the official checks alone, or by all of them. What is simulated is never accepted."""
        return Verdict.REJECTED if self.simulated or self.reasons(layer) else Verdict.ACCEPTED

    def reasons(self, layer: Layer) -> tuple[Check, ...]:
        """The checks that failed, as far as they count."""
        return tuple(check for check in self._counted(layer) if check.outcome is Outcome.FAILED)

    def remarks(self, layer: Layer) -> tuple[Check, ...]:
        return tuple(check for check in self._counted(layer) if check.outcome is Outcome.REMARK)

    def _counted(self, layer: Layer) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if layer is Layer.STRICT or check.layer is Layer.OFFICIAL)
