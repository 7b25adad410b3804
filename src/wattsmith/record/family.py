"""What a family of synthetic work is, and which workloads it can build."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wattsmith.record.program import LEARNING_RATES, Piece, Source
from wattsmith.terms.work import Parameter, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The whole numbers that a parameter may take, and those that designs usually choose from."""

    low: int
    high: int
    default: int
    usual: tuple[int, int] | None = None  # smallest and largest; None: all
    logarithmic: bool = True  # points are spread over its logarithm; False: over the number itself

    def problem_with(self, value: Parameter) -> str | None:
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            return f"must be a whole number from {self.low} to {self.high}"
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The few values that a parameter may take; the first is the default."""

    values: tuple[Parameter, ...]

    @property
    def default(self) -> Parameter:
        return self.values[0]

    def problem_with(self, value: Parameter) -> str | None:
        if any(value == one and type(value) is type(one) for one in self.values):
            return None
        return f"must be {' or '.join(map(repr, self.values))}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A kind of synthetic work."""

    name: str
    kind: str  # "network" or "operator"
    says: str  # one line for people
    parameters: Mapping[str, Span | Choice]
    make: Callable[[Workload, Source], Piece]
    modes: tuple[str, ...] = ("train", "infer")
    precisions: tuple[str, ...] = ("fp32", "tf32", "bf16", "fp16")
    batch: Span = field(default_factory=lambda: Span(low=1, high=2**20, default=8, usual=(1, 512)))
    layouts: tuple[str, ...] = ("contiguous",)
    compiles: bool = True
    share: float = 1.0  # how often a design takes a point of it, beside the others
    updates: bool = False  # the step is the optimizer's alone
    pure: bool = False  # bf16 and fp16 are everything's, even when a network trains; else that is under autocast
    fit: Callable[[Mapping[str, Parameter]], Mapping[str, Parameter]] = lambda parameters: (
        parameters
    )  # to what it can build

    def casts(self, workload: Workload) -> bool:
        """Whether the workload runs under autocast."""
        mixed = self.kind == "network" and workload.mode == "train" and not (self.pure or self.updates)
        return mixed and workload.precision in ("bf16", "fp16")


def problems_of(family: Family, workload: Workload) -> list[str]:
    """Why FAMILY cannot build the workload; empty when it can."""
    return [*_parameter_problems(family, workload), *_other_problems(family, workload)]


def _parameter_problems(family: Family, workload: Workload) -> list[str]:
    given = workload.parameters
    problems = [f"{name} is missing" for name in family.parameters if name not in given]
    strange = [name for name in given if name not in family.parameters]
    if strange:
        problems.append(f"has no parameter {', '.join(strange)}; it has {', '.join(family.parameters)}")
    for name, allowed in family.parameters.items():
        if name in given and (wrong := allowed.problem_with(given[name])):
            problems.append(f"{name} {wrong}, got {given[name]!r}")
    if wrong := family.batch.problem_with(workload.batch):
        problems.append(f"batch {wrong}, got {workload.batch!r}")
    return problems


def _other_problems(family: Family, workload: Workload) -> list[str]:
    problems = []
    for name, allowed in (
        ("kind", (family.kind,)),
        ("mode", family.modes),
        ("precision", family.precisions),
        ("layout", family.layouts),
        ("compiled", (False, True) if family.compiles else (False,)),
    ):
        value = getattr(workload, name)
        if value not in allowed:
            problems.append(f"{name} must be {' or '.join(map(repr, allowed))}, got {value!r}")
    learns = family.updates or (family.kind == "network" and workload.mode == "train")
    optimizers = (None, *LEARNING_RATES) if learns else (None,)
    if family.updates:
        optimizers = tuple(LEARNING_RATES)
    if workload.optimizer not in optimizers:
        problems.append(f"optimizer must be {' or '.join(map(repr, optimizers))}, got {workload.optimizer!r}")
    if workload.accumulation > 1 and (not learns or family.updates):
        problems.append(f"accumulation must be 1 where no gradient is gathered, got {workload.accumulation}")
    return problems
