"""How far a run has come: what a checkpoint keeps, and what a later life of the run begins with.

The number of workers is no part of it. An iterable dataset is cut into shards, whose number is fixed for an epoch;
any number of workers can read any number of shards.
"""

import copy
from dataclasses import dataclass, field
from typing import Any

from wattsmith.feed.ledger import Item
from wattsmith.feed.messages import Snapshot, StreamStart
from wattsmith.feed.order import Anchor
from wattsmith.terms.errors import BadInput

FORMAT = 1
_KEPT = {
    "seed",
    "epoch",
    "finished",
    "delivered",
    "ahead",
    "order",
    "turn",
    "streams",
    "cut",
    "_IterableDataset_len_called",
}


@dataclass(slots=True)
class Shard:
    """How far one shard of an iterable dataset has been delivered."""

    delivered: int = 0
    ended: bool = False
    made: int = 0  # batches behind the last snapshot that holds a state
    snapshot: Snapshot | None = None


@dataclass(slots=True)
class Progress:
    """One epoch of a run, as far as it was delivered."""

    seed: int
    epoch: int = 0
    finished: bool = False
    delivered: int = 0  # batches without a gap
    ahead: set[int] = field(default_factory=set)  # delivered beyond a gap
    anchor: Anchor | None = None
    iterable: bool = False
    shards: list[Shard] = field(default_factory=list)
    cut: bool = False  # whether the shards are those of workers; if not, there is one, and get_worker_info() is None
    turn: int = 0  # the shard whose turn it is
    states: dict[int, Snapshot] = field(default_factory=dict)  # of a map-style dataset, by seat
    len_called: int | None = None

    def note(self, item: Item, snapshot: Snapshot | None, seat: int | None) -> None:
        """Batch ITEM goes to the user."""
        if self.iterable:
            shard = self.shards[item.shard]
            shard.delivered = item.ordinal + 1
            self.turn = (item.shard + 1) % len(self.shards)
            self._keep(shard, snapshot, item.ordinal + 1)
            return
        if snapshot is not None and seat is not None:
            self.states[seat] = snapshot
        self.ahead.add(item.number)
        while self.delivered in self.ahead:
            self.ahead.remove(self.delivered)
            self.delivered += 1

    def note_end(self, shard: int, snapshot: Snapshot | None) -> None:
        """SHARD has no further batch."""
        self.shards[shard].ended = True
        self._keep(self.shards[shard], snapshot, self.shards[shard].delivered)

    def note_begin(self, number: int, snapshot: Snapshot) -> None:
        """The dataset's state as the epoch began, at seat or in shard NUMBER."""
        if not self.iterable:
            self.states.setdefault(number, snapshot)
        elif not _has_state(self.shards[number].snapshot):
            self._keep(self.shards[number], snapshot, self.shards[number].made)

    def note_now(self, number: int, snapshot: Snapshot) -> None:
        """The state of shard NUMBER behind all that was delivered of it."""
        self._keep(self.shards[number], snapshot, self.shards[number].delivered)

    @staticmethod
    def _keep(shard: Shard, snapshot: Snapshot | None, made: int) -> None:
        if snapshot is None:
            return
        shard.snapshot = snapshot
        shard.made = made if _has_state(snapshot) else 0

    def start_of(self, shard: int) -> StreamStart:
        """Where a worker takes SHARD up."""
        kept = self.shards[shard]
        return StreamStart(shard, kept.made, kept.snapshot if _has_state(kept.snapshot) else None)

    def next_epoch(self, *, shards: int, cut: bool, carry: bool) -> "Progress":
        """The epoch behind this one. CARRY: datasets are to be given the states in which they ended this one."""
        following = Progress(self.seed, self.epoch + 1, iterable=self.iterable, len_called=self.len_called)
        following.cut = cut
        following.shards = [Shard() for _ in range(shards)]
        if carry:
            following.states = self.states
            kept = [shard.snapshot for shard in self.shards if shard.snapshot is not None]
            for number, shard in enumerate(following.shards[: len(kept) and shards]):
                shard.snapshot = {**kept[number % len(kept)], "worker_id": number, "fetcher_state": None}
        return following

    def to_state(self, workers: int) -> dict[str, Any]:
        """A dict for a checkpoint. It goes through JSON if the dataset's own state does."""
        state: dict[str, Any] = {
            "wattsmith": FORMAT,
            "seed": self.seed,
            "epoch": self.epoch,
            "finished": self.finished,
            "delivered": self.delivered,
            "ahead": sorted(self.ahead),
            "order": self.anchor,
            "turn": self.turn,
            "streams": [
                {"delivered": shard.delivered, "ended": shard.ended, "made": shard.made} for shard in self.shards
            ],
            "cut": self.cut,
            "_IterableDataset_len_called": self.len_called,
        }
        if self.iterable:
            found = {number: shard.snapshot for number, shard in enumerate(self.shards)}
        else:
            found = {seat: self.states.get(seat) for seat in range(max(workers, 1))}
        filled = {number: snapshot or _nothing(number, self.iterable) for number, snapshot in found.items()}
        if workers and (self.cut or not self.iterable):
            state["_snapshot"] = {"_worker_snapshots": {f"worker_{n}": filled[n] for n in filled}}
        else:
            state |= {key: filled[0][key] for key in ("fetcher_state", "dataset_state")}
        return copy.deepcopy(state)

    @staticmethod
    def from_state(state: dict[str, Any], *, iterable: bool) -> "Progress":
        """The progress that `to_state` gave away. Raises BadInput for anything else."""
        if not isinstance(state, dict) or state.get("wattsmith") != FORMAT:
            raise BadInput(
                f"this is no state of a Feeder in format {FORMAT}: {str(state)[:80]!r}. "
                "Load what Feeder.state_dict() gave."
            )
        if missing := sorted(_KEPT - state.keys()):
            raise BadInput(
                f"this state of a Feeder is not whole: it lacks {', '.join(missing)}. Load another checkpoint."
            )
        if iterable != bool(state["streams"]):
            raise BadInput("this state is of another kind of dataset (map-style or iterable) than the Feeder's")
        state = copy.deepcopy(state)
        workers = state.get("_snapshot", {}).get("_worker_snapshots")
        if workers is None:
            snapshots = {0: {"worker_id": 0, **{key: state[key] for key in ("fetcher_state", "dataset_state")}}}
        else:
            snapshots = {int(name.removeprefix("worker_")): snapshot for name, snapshot in workers.items()}
        return Progress(
            seed=state["seed"],
            epoch=state["epoch"],
            finished=state["finished"],
            delivered=state["delivered"],
            ahead=set(state["ahead"]),
            anchor=state["order"],
            iterable=iterable,
            shards=[Shard(**stream, snapshot=snapshots.get(n)) for n, stream in enumerate(state["streams"])],
            cut=state["cut"],
            turn=state["turn"],
            states={} if iterable else snapshots,
            len_called=state["_IterableDataset_len_called"],
        )


def _has_state(snapshot: Snapshot | None) -> bool:
    if snapshot is None:
        return False
    fetcher = snapshot["fetcher_state"] or {}
    return snapshot["dataset_state"] is not None or fetcher.get("dataset_iter_state") is not None


def _nothing(number: int, iterable: bool) -> Snapshot:
    fetcher = {"dataset_iter_state": None, "fetcher_ended": False} if iterable else None
    return {"worker_id": number, "fetcher_state": fetcher, "dataset_state": None}
