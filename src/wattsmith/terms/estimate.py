"""What a step that has not run should cost on a device, and how far to trust it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from wattsmith.terms.run import Structure
from wattsmith.terms.work import Interval, Prediction


class Basis(StrEnum):
    """What an estimate rests on."""

    OPERATORS = "operators"  # times of single operators, in the device's record
    STEPS = "whole steps"  # times of whole steps, in the device's record
    SHEET = "data sheet"  # the record of another device, scaled by both data sheets


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryNeed:
    """Memory of one device at its fullest."""

    peak_tensor_bytes: Interval  # in tensors, as torch.cuda.max_memory_allocated counts
    peak_held_bytes: Interval  # by the allocator, as torch.cuda.max_memory_reserved counts
    memory_bytes: int | None  # that the device has; None: not known
    runs_out: float | None  # how probable it is that this does not fit; None: nobody can say


@dataclass(frozen=True, slots=True, kw_only=True)
class JobNeed:
    """A whole job."""

    samples: int
    epochs: int
    steps: int
    epoch_s: Interval
    job_s: Interval
    energy_j: Interval | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one step should cost. Intervals hold the truth nine times out of ten."""

    device: str
    devices: int
    batch: int  # samples per step and device
    precision: str
    mode: str
    layout: str
    basis: Basis
    record: str | None  # by name or place; None: the data sheet alone
    from_runs: int
    step_s: Interval
    busy_s: Interval  # of that, the device works; the rest of the time it waits for the host
    host_s: Interval | None  # the host needs so long to queue it; None: not known
    host_bound: bool  # the device waits for the host for a good part of the time
    memory: MemoryNeed
    power_w: Interval | None  # mean, of all devices; None: not known
    step_energy_j: Interval | None
    standing: str  # "measured", "inside", "edge" or "outside" of what was measured
    reasons: tuple[str, ...]  # why it stands there
    covered_flops_ratio: float  # share, in operators that were measured
    covered_bytes_ratio: float
    by_kind_s: Mapping[str, float]  # the device's time by kind of operator, the longest first
    others_s: Mapping[str, float]  # the step by other, named methods
    structure: Structure
    job: JobNeed | None = None
    without_rule: Mapping[str, int] = field(default_factory=dict)  # operators counted by their tensors alone
    notes: tuple[str, ...] = ()  # what was assumed

    def as_prediction(self) -> Prediction:
        """The same in short, as schedules and tuners take it."""
        inside = self.standing in ("measured", "inside") and self.from_runs > 0
        return Prediction(
            step_s=self.step_s,
            memory_bytes=self.memory.peak_held_bytes,
            power_w=self.power_w,
            step_energy_j=self.step_energy_j,
            from_runs=self.from_runs,
            inside_record=inside,
            why_doubtful=None if inside else "; ".join(self.reasons) or None,
        )
