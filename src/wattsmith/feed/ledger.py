"""Who was given which batch, and what has arrived: the trainer's book, from which every batch leaves exactly once.

A batch is drawn, leased to a worker (perhaps to several, one after the other), committed when one whole copy of it
has arrived, and delivered. Whatever arrives later for the same batch is dropped. Nothing here reads a clock or
talks to a process.
"""

import collections
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

VOID = object()  # committed in place of a batch that does not exist: its shard had ended


@dataclass(slots=True)
class Item:
    """One batch to be made."""

    number: int  # in its epoch, in the order of delivery
    indices: Any = None  # of a map-style dataset
    shard: int = 0  # of an iterable dataset
    ordinal: int = 0  # in its shard
    home: int | None = None  # the seat that must make it; None: any


class Lease(NamedTuple):
    """One batch in the hands of one worker."""

    serial: int
    item: Item
    worker: int  # a number that no two workers share, even at the same seat
    attempt: int  # from 1
    since_s: float


class Ledger:
    """The book of one epoch. IN_ORDER: batches leave by number; if not, as they arrive."""

    def __init__(self, *, in_order: bool = True, first: int = 0) -> None:
        self._in_order = in_order
        self._next = first
        self._waiting: dict[int, Item] = {}
        self._items: dict[int, Item] = {}  # drawn and not delivered
        self._leases: dict[int, Lease] = {}
        self._committed: dict[int, Any] = {}
        self._arrived: collections.deque[int] = collections.deque()
        self._doubted: set[int] = set()  # workers that are late
        self._attempts: collections.Counter[int] = collections.Counter()
        self.loads: collections.Counter[int] = collections.Counter()  # leases by worker
        self.redone = 0  # leases that came back because a worker was lost or late

    def __len__(self) -> int:
        """Batches that were drawn and have not been delivered."""
        return len(self._items)

    def open_in(self, shard: int) -> int:
        """Batches of SHARD that were drawn and have not been delivered."""
        return sum(1 for item in self._items.values() if item.shard == shard)

    @property
    def waiting(self) -> int:
        """Batches that nobody has been given."""
        return len(self._waiting)

    @property
    def foremost(self) -> int:
        """The first of the batches that nobody has been given."""
        return min(self._waiting)

    @property
    def arrived(self) -> int:
        """Batches that are there and wait to be delivered."""
        return len(self._committed)

    def draw(self, item: Item) -> None:
        """A further batch is to be made."""
        self._items[item.number] = self._waiting[item.number] = item

    def skip(self, number: int) -> None:
        """Batch NUMBER was delivered in an earlier life of the run."""
        self._items[number] = Item(number)
        self._committed[number] = VOID
        self._arrive(number)

    def lease(self, seat: int, worker: int, serial: int, now_s: float) -> Lease | None:
        """The first waiting batch that SEAT may make; None: there is none. Those that came back are the first."""
        number = min((n for n, item in self._waiting.items() if item.home in (None, seat)), default=None)
        if number is None:
            return None
        item = self._waiting.pop(number)
        self._attempts[number] += 1
        lease = self._leases[serial] = Lease(serial, item, worker, self._attempts[number], now_s)
        self.loads[worker] += 1
        return lease

    def commit(self, serial: int, batch: Any) -> bool:
        """The batch of lease SERIAL has arrived whole. False: late or double, and to be dropped."""
        lease = self._leases.pop(serial, None)
        if lease is not None:
            self.loads[lease.worker] -= 1
        if lease is None or lease.item.number not in self._items or lease.item.number in self._committed:
            return False
        self._waiting.pop(lease.item.number, None)
        self._committed[lease.item.number] = batch
        self._arrive(lease.item.number)
        return True

    def find(self, serial: int) -> Lease | None:
        return self._leases.get(serial)

    def leases_of(self, worker: int) -> list[Lease]:
        """In the order in which they were given."""
        return [lease for lease in self._leases.values() if lease.worker == worker]

    def take_back(self, worker: int) -> list[Lease]:
        """WORKER is dead: its leases end, and its batches wait at the head of the queue."""
        lost = self.leases_of(worker)
        for lease in lost:
            del self._leases[lease.serial]
        del self.loads[worker]
        self._requeue(lost)
        return lost

    def doubt(self, worker: int) -> list[Lease]:
        """WORKER is late: its batches wait again, and the first copy to arrive counts, be it from WORKER."""
        late = self.leases_of(worker)
        self._doubted.add(worker)
        self._requeue(late)
        return late

    def settle(self, home: Callable[[Item], int | None]) -> None:
        """Batches that wait are made at the seats that HOME says from now on."""
        for item in self._waiting.values():
            item.home = home(item)

    def can_deliver(self) -> bool:
        return bool(self._arrived) if not self._in_order else self._next in self._committed

    def deliver(self) -> tuple[Item, Any] | None:
        """The next batch that may leave; None: it has not arrived."""
        if not self._in_order:
            if not self._arrived:
                return None
            number = self._arrived.popleft()
        else:
            number = self._next
            if number not in self._committed:
                return None
            self._next += 1
        self._attempts.pop(number, None)
        return self._items.pop(number), self._committed.pop(number)

    def committed(self) -> Iterator[tuple[int, Any]]:
        """What has arrived and is not delivered, the last to leave first."""
        yield from sorted(self._committed.items(), key=lambda entry: -entry[0])

    def replace(self, number: int, batch: Any) -> None:
        """Batch NUMBER, which has arrived, is kept in another place now."""
        self._committed[number] = batch

    def overdue(self, before_s: float) -> list[Lease]:
        """Leases older than BEFORE_S of batches that have not arrived from anyone."""
        return [
            lease
            for lease in self._leases.values()
            if lease.since_s < before_s
            and lease.item.number in self._items
            and lease.item.number not in self._committed
        ]

    def _arrive(self, number: int) -> None:
        if not self._in_order:
            self._arrived.append(number)

    def _requeue(self, leases: list[Lease]) -> None:
        """Let the batches of LEASES wait again, unless they have arrived or others, who are not late, make them."""
        for lease in leases:
            number = lease.item.number
            others = (other for other in self._leases.values() if other.worker not in self._doubted)
            elsewhere = any(other.item.number == number for other in others)
            if number in self._items and number not in self._committed and not elsewhere:
                self._waiting[number] = self._items[number]
                self.redone += 1
