"""How many data workers a trainer needs: facts of a control period in, a number out.

A trainer that is busy for T seconds a step and workers that are occupied for S seconds a batch need S / T workers.
The rest is manners: jump up, for waiting is dear; come down one at a time, when several periods agree; do not add
where workers already stand waiting for a free slot.
"""

import math
from dataclasses import dataclass, field

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.feed import plain_target

ALL_THE_TIME = 0.99  # share of the time that counts as all of it
WAITS = 0.02  # share of time in which a trainer may wait before waiting itself calls for workers
BLOCKED = 0.1  # share of the workers' time without a free slot from which on workers are not what is missing
AGREEING = 3  # periods that must agree before one worker goes
HALF_FULL = 0.5
BOLDEST = 2.0  # waiting alone may at most double the workers: it does not say what it waits for
FORGOTTEN = 0.9  # a number that starved is forgotten once the need is below this share of the need then


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was measured in one control period (about 5 s)."""

    busy_s: float | None  # of the trainer for one step, without waiting; None: no step ended
    waiting: float  # share of the time in which the trainer waited for data, 0 to 1
    occupied_s: float | None  # mean of a worker for one batch, sending included; None: no batch ended
    blocked: float = 0.0  # share of the workers' time spent waiting for a free slot
    filled: float = 1.0  # share of the buffer that held finished batches
    buffer: int = 8  # finished batches that there is room for

    def __post_init__(self) -> None:
        for name in ("waiting", "blocked", "filled"):
            share = getattr(self, name)
            if not 0 <= share <= 1:
                raise BadTerm(f"{name} is a share from 0 to 1, got {share}")
        for name in ("busy_s", "occupied_s"):
            time_s = getattr(self, name)
            if time_s is not None and not 0 <= time_s < math.inf:
                raise BadTerm(f"{name} must not be negative, got {time_s}")
        if self.buffer < 1:
            raise BadTerm(f"a buffer has room for at least one batch, got {self.buffer}")

    @property
    def need(self) -> float | None:
        """Workers that keep the trainer busy if nothing varies; None: not known yet; inf: it can never have enough."""
        if self.busy_s is None or self.occupied_s is None:
            return None
        if self.busy_s == 0:
            return math.inf if self.occupied_s > 0 else 0.0
        return self.occupied_s / self.busy_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Between how many workers there may be. Cores are those that workers may use; None: no such limit."""

    least: int = 1
    most: int | None = None
    cores: int | None = None

    def __post_init__(self) -> None:
        for name in ("least", "most", "cores"):
            count = getattr(self, name)
            if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
                raise BadTerm(f"{name} must be a whole number of at least 1, got {count!r}")
        if self.most is not None and self.most < self.least:
            raise BadTerm(
                f"at least {self.least} workers and at most {self.most} cannot both hold; correct one of them"
            )

    def hold(self, wanted: float) -> int:
        """WANTED within the bounds. Fewer cores than `least` give way to `least`: it was asked for by name."""
        tops = [count for count in (self.most, self.cores) if count is not None]
        top = min(tops, default=math.inf)
        if math.isinf(wanted) and math.isinf(top):
            raise BadTerm("a trainer that is never busy has no limit of workers; set `most` or `cores`")
        return max(self.least, int(min(wanted, top)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Watts:
    """What waiting costs against what waiting less costs."""

    idle_w: float  # the accelerators together, while they wait
    worker_w: float  # one data worker that is kept

    def __post_init__(self) -> None:
        for name in ("idle_w", "worker_w"):
            power_w = getattr(self, name)
            if not 0 < power_w < math.inf:
                raise BadTerm(f"{name} must be positive, got {power_w}")


def waiting_share(workers: float, need: float, buffer: int) -> float:
    """The share of time a trainer waits with so many WORKERS, where NEED would do if nothing varied.

    A queue of BUFFER places with random arrivals and random service (M/M/1/K): more waiting than regular work
    shows, never less than what the rates alone force. Falls with every further worker, by less each time.
    """
    if workers <= 0:
        return 1.0
    if need <= 0:
        return 0.0
    if math.isinf(need):
        return 1.0
    load = workers / need
    if load > 2 ** (1000 / (buffer + 1)):
        return 0.0  # beyond what a float holds; the share is below any that matters
    if abs(load - 1) < 1e-9:
        return 1 / (buffer + 1)
    return (1 - load) / (1 - load ** (buffer + 1))


def frugal_target(need: float, buffer: int, watts: Watts) -> float:
    """Of the numbers from NEED to the plain target, the one with the least energy for a step.

    Energy of a step, what does not depend on the number left out: (idle_w × waiting + worker_w × N) × its time.
    Below NEED nothing is saved: a starved worker still spends its time on each batch.
    """
    target = plain_target(need)
    if math.isinf(target):
        return target

    def energy(workers: int) -> float:
        waiting = waiting_share(workers, need, buffer)
        return (watts.idle_w * waiting + watts.worker_w * workers) / (1 - waiting)

    return min(range(max(1, math.ceil(need)), int(target) + 1), key=energy)


def _well_fed(seen: Seen) -> bool:
    return seen.waiting <= WAITS and seen.filled >= HALF_FULL


@dataclass(slots=True)
class Demand:
    """Decides, period by period, how many workers there should be."""

    bounds: Bounds = field(default_factory=Bounds)
    watts: Watts | None = None  # None: power is not known, and time alone decides
    _before: int | None = None  # workers at the decision before
    _fewer: int = 0  # periods in a row that would do with fewer
    _starved: tuple[int, float] | None = None  # the most workers that were too few, and the need then

    def decide(self, seen: Seen, workers: int, starting: int = 0) -> int:
        """How many workers there should be in all, where WORKERS are at work and STARTING are on their way."""
        if workers < 0 or starting < 0:
            raise BadTerm(f"a number of workers is not negative, got {workers} at work and {starting} starting")
        have, need = workers + starting, seen.need
        # Waiting tells of those who were there for the whole period, not of those who came at its end.
        steady = workers == self._before and not starting
        self._before = workers
        if need is None:
            self._fewer = 0
            # Nothing has come for a whole period: what is needed is not known, but more than there is.
            hungry = seen.waiting >= ALL_THE_TIME and seen.blocked <= BLOCKED and not starting
            return self.bounds.hold(BOLDEST * have if hungry and seen.busy_s is None else have)
        if steady:
            self._remember(seen, workers, need)
        wanted = self.bounds.hold(self._target(seen, workers if steady else None, need))
        if wanted >= have:
            self._fewer = 0
            enough = seen.blocked > BLOCKED or (_well_fed(seen) and have >= need)
            return self.bounds.hold(have) if enough else wanted
        return self._maybe_one_fewer(seen, have, starting)

    def _target(self, seen: Seen, workers: int | None, need: float) -> float:
        target = plain_target(need) if self.watts is None else frugal_target(need, seen.buffer, self.watts)
        if seen.waiting > WAITS and workers is not None:
            called_for = BOLDEST if seen.waiting >= 1 else min(BOLDEST, 1 / (1 - seen.waiting))
            target = max(target, math.ceil(workers * called_for))
        if self._starved is not None:
            target = max(target, self._starved[0] + 1)
        return target

    def _remember(self, seen: Seen, workers: int, need: float) -> None:
        """Which number of workers was too few, so that it is not tried again while the need is what it was."""
        if self._starved is not None and need < FORGOTTEN * self._starved[1]:
            self._starved = None
        if seen.waiting > WAITS and seen.blocked <= BLOCKED and workers >= need:
            most = workers if self._starved is None else max(workers, self._starved[0])
            self._starved = (most, need)

    def _maybe_one_fewer(self, seen: Seen, have: int, starting: int) -> int:
        if starting or seen.filled < HALF_FULL:
            self._fewer = 0
            return self.bounds.hold(have)
        self._fewer += 1
        if self._fewer < AGREEING:
            return self.bounds.hold(have)
        self._fewer = 0
        return self.bounds.hold(have - 1)
