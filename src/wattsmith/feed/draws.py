"""What waiting accelerators draw, and what one more data worker does, by the meters of a window."""

from collections.abc import Mapping

from wattsmith.feed.demand import Watts
from wattsmith.feed.reporting import WAITING, EnergyWindow
from wattsmith.terms.energy import Window

LEAST_S = 1.0  # of waiting, or with one number of workers, before its mean power is taken for true


class Draws:
    """Looks at WINDOW once in a period. Knows nothing until the number of workers has changed once.

    Processors draw much that no worker is to blame for. What one more of them draws is the difference between periods
    with fewer and with more, divided by how many more these were.
    """

    def __init__(self, window: EnergyWindow) -> None:
        self._window = window
        self._before: tuple[int, float, float] | None = None  # workers, seconds and joules of processors until then
        self._by_count: dict[int, tuple[float, float]] = {}  # seconds and joules with so many workers

    def look(self, workers: int) -> Watts | None:
        """Where there were WORKERS since the last look. None: not known (yet), or no such meters."""
        measured = self._window.so_far()
        if measured is None:
            return None
        self._note(workers, measured)
        idle_w, worker_w = _waiting_w(measured), self._worker_w()
        return None if idle_w is None or worker_w is None else Watts(idle_w=idle_w, worker_w=worker_w)

    def _note(self, workers: int, measured: Window) -> None:
        here = (
            workers,
            measured.duration_s,
            _sum_j({one.domain: one.energy_j for one in measured.domains}, "cpu-package"),
        )
        before, self._before = self._before, here
        if before is not None and before[0] == workers:
            seconds, joules = self._by_count.get(workers, (0.0, 0.0))
            self._by_count[workers] = seconds + here[1] - before[1], joules + here[2] - before[2]

    def _worker_w(self) -> float | None:
        powers_w = {count: joules / s for count, (s, joules) in self._by_count.items() if s >= LEAST_S}
        if len(powers_w) < 2:
            return None
        fewest, most = min(powers_w), max(powers_w)
        worker_w = (powers_w[most] - powers_w[fewest]) / (most - fewest)
        return worker_w if worker_w > 0 else None


def _waiting_w(measured: Window) -> float | None:
    """Mean power of the accelerators while the trainer waited; None: it hardly did, or they have no meter."""
    waits = [phase for phase in measured.phases if phase.name == WAITING]
    waited_s, energy_j = sum(wait.duration_s for wait in waits), sum(_sum_j(wait.energy_j, "gpu") for wait in waits)
    return energy_j / waited_s if waited_s >= LEAST_S and energy_j > 0 else None


def _sum_j(energy_j: Mapping[str, float | None], kind: str) -> float:
    """Joules of all domains of KIND, such as "gpu", of which they are known."""
    return sum(joules for domain, joules in energy_j.items() if joules is not None and domain.split(":")[0] == kind)
