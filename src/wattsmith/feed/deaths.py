"""Why workers died, and whether a batch is to blame."""

import collections
import signal

from wattsmith.feed.ledger import Item

LOST = 75  # exit code of a process that stands for a worker elsewhere, and has lost it
# Exit codes that others give. What became of a worker elsewhere is not known.
KILLS = {None, LOST, -signal.SIGKILL, -signal.SIGTERM, -signal.SIGINT, -signal.SIGHUP}


class Deaths:
    """Tells a batch that kills its workers from workers that are killed for other reasons.

    Three workers that crashed at one batch are proof. A kill from outside looks the same wherever it strikes; so
    while workers are killed at other batches too, or at none, a batch is tried more often, up to twenty times.
    """

    LIMIT = 3
    PATIENCE = 20
    REMEMBERED = 64

    def __init__(self) -> None:
        self._recent: collections.deque[int | None] = collections.deque(maxlen=self.REMEMBERED)
        self._pids: dict[int, list[int]] = {}
        self._crashes: collections.Counter[int] = collections.Counter()
        self._elsewhere = False  # whether workers run on other machines
        self.starts = 0  # workers in a row that died before they were ready

    def at_start(self) -> None:
        """A worker died before it was ready."""
        self.starts += 1
        self._recent.append(None)

    def at_batch(self, number: int | None, pid: int, *, crashed: bool) -> None:
        """Worker PID died while it made batch NUMBER; None: while it made none. CRASHED: of itself, not killed."""
        self._recent.append(number)
        if number is not None:
            self._pids.setdefault(number, []).append(pid)
            self._crashes[number] += crashed

    def ready(self) -> None:
        self.starts = 0

    def guilty(self, number: int) -> list[int] | None:
        """The process ids that batch NUMBER has cost, if it is to blame."""
        pids = self._pids.get(number, [])
        others = sum(1 for other in self._recent if other != number)
        proven = self._crashes[number] >= self.LIMIT
        # Connections break for many reasons, and a lost machine takes several of them at once.
        least = self.PATIENCE if self._elsewhere else min(self.LIMIT + 2 * others, self.PATIENCE)
        return pids if proven or len(pids) >= least else None

    def hopeless(self) -> bool:
        """Whether workers die as soon as they start."""
        return self.starts >= self.PATIENCE

    def judge(self, item: Item | None, pid: int, code: int | None) -> str | None:
        """Worker PID ended with CODE while it made ITEM; None: while it made none. The charge, if ITEM is to blame."""
        self._elsewhere = self._elsewhere or code == LOST
        self.at_batch(None if item is None else item.number, pid, crashed=code not in KILLS)
        pids = None if item is None else self.guilty(item.number)
        if item is None or pids is None:
            return None
        samples = f"samples {item.indices!r:.200}"
        if item.indices is None:
            samples = f"the {item.ordinal + 1}. batch of shard {item.shard}"
        return (
            f"{as_data_loader_says(code, pids)}: each of them {why_ended(code)} while it made batch {item.number} of "
            f"the epoch, {samples}. Look at those samples, or leave them out."
        )

    def judge_start(self, pid: int, code: int | None) -> str | None:
        """Worker PID ended with CODE before it was ready. What to say, if there is no sense in starting another."""
        self.at_start()
        if not self.hopeless():
            return None
        return (
            f"{as_data_loader_says(code, [pid])}: {self.starts} workers in a row {why_ended(code)} before they were "
            "ready. Look at worker_init_fn, and at what the dataset does when it is loaded."
        )


def as_data_loader_says(code: int | None, pids: list[int]) -> str:
    """The words that programs look for in a DataLoader's error."""
    said = f"DataLoader worker (pid(s) {', '.join(map(str, pids))}) exited unexpectedly"
    if code is not None and code < 0:
        said = f"DataLoader worker (pid {pids[-1]}) is killed by signal: {signal.strsignal(-code)}. {said}"
    return said


def why_ended(code: int | None) -> str:
    """In words, what an exit code says."""
    if code is None:
        return "does not answer"
    if code == LOST:
        return "lost its connection to the worker elsewhere"
    if code >= 0:
        return f"left with exit code {code}"
    known = {int(one): one.name for one in signal.Signals}
    name = known.get(-code, f"signal {-code}")
    hint = {"SIGKILL": " (often: the machine ran out of memory)", "SIGBUS": " (often: no memory left for slots)"}
    return f"was ended by {name}{hint.get(name, '')}"
