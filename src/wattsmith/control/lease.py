"""Devices held by one writer for a while, whose settings come back however that writer ends."""

import contextlib
import math
import os
import select
import subprocess
import sys
import time
import uuid
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from wattsmith.control.find import check_nobody_else, find_knobs
from wattsmith.control.journal import (
    Journal,
    changing,
    default_state_folder,
    open_state,
    read_journal,
    release_device,
    take_device,
    write_journal,
)
from wattsmith.control.processes import family_of
from wattsmith.control.restoring import CHANGE_WAIT_S, is_at, put_back
from wattsmith.control.sysfs_knobs import SYSFS
from wattsmith.control.watchdog import RAN_OUT, READY
from wattsmith.terms.control import (
    DeviceHeld,
    JournalDamaged,
    Knob,
    KnobCard,
    KnobLost,
    LeaseOver,
    NotPermitted,
    NoWatchdog,
    PutBack,
    Value,
    Verified,
    check_shape,
    check_value,
)
from wattsmith.terms.errors import BadTerm

DEFAULT_DURATION_S = 3600.0
READY_WITHIN_S = 20.0
ENDS_WITHIN_S = 5.0

_open_leases: "weakref.WeakSet[Lease]" = weakref.WeakSet()


class Lease:
    """Some devices, held. Made by `take`; a context manager that puts everything back at its end.

    One thread at a time may use it. A child made by fork has no part in it.
    """

    def __init__(self, knobs: Mapping[str, Knob], state: Path, sysfs: Path, were: Mapping[str, Value]) -> None:
        self.name = uuid.uuid4().hex
        self.found: list[PutBack] = []  # what an earlier holder had left behind, and was put back first
        self._knobs = dict(knobs)
        self._state = state
        self._sysfs = sysfs
        self._were = dict(were)
        self._pid = os.getpid()
        self._locks: list[int] = []
        self._journals: dict[str, Journal] = {}  # by identity, as last written: what is on disk may get lost
        self._pipe = -1
        self._watchdog: subprocess.Popen[bytes] | None = None
        self._deadline_s = 0.0
        self._closed = False

    @classmethod
    def take(
        cls,
        devices: Sequence[str],
        *,
        duration_s: float = DEFAULT_DURATION_S,
        state: Path | None = None,
        sysfs: Path = SYSFS,
        shared: bool = False,
        were: Mapping[str, Value] | None = None,
        wait_s: float = 0.0,
        for_pid: int | None = None,
    ) -> Self:
        """Hold DEVICES ("gpu:0", "cpu:0") for DURATION_S. Nothing is changed yet.

        SHARED: also where others run on a GPU, or it is split by MIG. WERE: what a knob that does not tell how it is
        set (locked clocks) stood at, by name. FOR_PID: whose processes may run on a GPU, by default this one's.
        Raises DeviceHeld, BadTerm for a device that is not there, NotWritten, NoWatchdog.
        """
        if not 0 < duration_s < math.inf:
            raise BadTerm(f"a lease lasts for a positive time, got {duration_s} s")
        state = state or default_state_folder()
        lease = cls(_knobs_of_devices(find_knobs(sysfs), devices), state, sysfs, were or {})
        lease._check_were()
        open_state(state)
        try:
            lease._take_locks(wait_s)
            if not shared:
                lease._check_alone(os.getpid() if for_pid is None else for_pid)
            lease._deadline_s = time.monotonic() + duration_s + READY_WITHIN_S
            for card in lease._devices():
                lease._write(lease._empty_journal(card))
            lease._start_watchdog()
            lease.renew(duration_s)  # it lasts from now on: the time to get ready is not part of it
        except BaseException:
            lease.close()
            raise
        _open_leases.add(lease)
        return lease

    # -- using it

    @property
    def cards(self) -> list[KnobCard]:
        """What can be turned under this lease."""
        return [knob.card for knob in self._knobs.values()]

    def card(self, knob: str) -> KnobCard:
        return self._knob(knob).card

    def read(self, knob: str) -> Value:
        """How a knob is set; for one that does not tell, what this lease set it to."""
        found = self._knob(knob)
        if found.card.readable:
            return found.read()
        journal = self._in_force(found.card)
        return journal.wanted.get(found.card.kind, self._were.get(knob))

    def set(self, knob: str, value: Value) -> Verified:
        found = self._knob(knob)
        card = found.card
        self._watch()
        with changing(self._state, card.identity, CHANGE_WAIT_S) as alone:
            if not alone:
                raise DeviceHeld(f"{knob}: another change of {card.device} does not come to its end; try again")
            journal = self._in_force(card)
            before = journal.before[card.kind] if card.kind in journal.before else self._before(found)
            check_value(card, value, before)
            noted = replace(
                journal,
                before={**journal.before, card.kind: before},
                wanted={**journal.wanted, card.kind: value},
            )
            self._write(noted)
            try:
                found.set(value)
            except NotPermitted:
                if card.kind not in journal.before and (not card.readable or is_at(found, before)):
                    self._write(journal)  # nothing was changed, so there is nothing to put back
                raise
            self._undo_if_over(found, before)
        return found.verify(value)

    def verify(self, knob: str, value: Value) -> Verified:
        """What the hardware does by now about VALUE, which was set: under load more is seen than just after."""
        found = self._knob(knob)
        check_shape(found.card, value)
        return found.verify(value)

    def renew(self, duration_s: float) -> None:
        if not 0 < duration_s < math.inf:
            raise BadTerm(f"a lease lasts for a positive time, got {duration_s} s")
        self._watch()
        self._deadline_s = time.monotonic() + duration_s
        with contextlib.suppress(OSError):  # a watchdog that is gone is started anew before the next change
            os.write(self._pipe, f"renew {duration_s}\n".encode())

    def close(self) -> None:
        """Put everything back and let go. Raises KnobLost when something could not be put back; its journal stays."""
        if self._closed or os.getpid() != self._pid:
            return
        # Past that time the watchdog has put back, and another may hold the device by now.
        in_time = time.monotonic() < self._deadline_s
        outcomes = [put_back(self._state, journal, certain=in_time) for journal in self._journals.values()]
        self._end_watchdog()
        for lock in self._locks:
            release_device(lock)
        self._closed = True
        if problems := [problem for outcome in outcomes for problem in outcome.problems]:
            raise KnobLost("; ".join(problems) + ". When that is mended, run `wattsmith restore`.")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- inside

    def _knob(self, knob: str) -> Knob:
        if knob not in self._knobs:
            raise BadTerm(f"this lease has no knob {knob!r}; it has {', '.join(self._knobs)}")
        return self._knobs[knob]

    def _devices(self) -> list[KnobCard]:
        """One card of each device, in the order in which everybody takes them: so two never wait for each other."""
        by_identity = {knob.card.identity: knob.card for knob in self._knobs.values()}
        return [by_identity[identity] for identity in sorted(by_identity)]

    def _check_were(self) -> None:
        for knob, value in self._were.items():
            card = self._knob(knob).card
            if card.readable:
                raise BadTerm(f"{knob} tells how it is set, so it need not be said what it was")
            check_value(card, value, value)

    def _take_locks(self, wait_s: float) -> None:
        for card in self._devices():
            self._locks.append(take_device(self._state, card.identity, card.device, wait_s))
            self._put_back_leftovers(card)

    def _put_back_leftovers(self, card: KnobCard) -> None:
        """Who held it before has died, and so has its watchdog: what it left is not what we must come back to."""
        try:
            left = read_journal(self._state, card.identity)
        except JournalDamaged as damaged:
            raise DeviceHeld(f"{card.device} is not touched: {damaged}") from damaged
        if left is None:
            return
        outcome = put_back(self._state, left)
        if outcome.problems:
            raise DeviceHeld(
                f"{card.device} is not touched: an earlier lease left it changed and it could not be put back: "
                + "; ".join(outcome.problems)
            )
        self.found.append(outcome)

    def _check_alone(self, pid: int) -> None:
        family = family_of(pid)
        for card in self._devices():
            check_nobody_else(card.identity, family)

    def _empty_journal(self, card: KnobCard) -> Journal:
        return Journal(
            lease=self.name,
            device=card.device,
            identity=card.identity,
            sysfs=str(self._sysfs.resolve()),
            holder_pid=self._pid,
            simulated=card.simulated,
        )

    def _write(self, journal: Journal) -> None:
        write_journal(self._state, journal)
        self._journals[journal.identity] = journal

    def _before(self, knob: Knob) -> Value:
        return knob.read() if knob.card.readable else self._were.get(knob.card.name)

    def _in_force(self, card: KnobCard) -> Journal:
        """The journal of this lease. It is there as long as the lease is in force, and no longer."""
        try:
            journal = read_journal(self._state, card.identity)
        except JournalDamaged as damaged:
            raise LeaseOver(str(damaged)) from damaged
        if self._closed or journal is None or journal.lease != self.name or journal.over:
            raise LeaseOver(
                f"the lease of {card.device} is over, and its settings are back or come back when it is closed; "
                "take a new one"
            )
        return journal

    def _undo_if_over(self, knob: Knob, before: Value) -> None:
        """The watchdog does not wait for ever. If it put back while we were stopped in the middle, so must we."""
        try:
            self._in_force(knob.card)
        except LeaseOver:
            knob.set(before)
            raise

    # -- the watchdog

    def _watch(self) -> None:
        """Make sure that there is a watchdog and time left."""
        if self._closed or os.getpid() != self._pid:
            raise LeaseOver("this lease was given back")
        assert self._watchdog is not None
        status = self._watchdog.poll()
        if status == RAN_OUT or time.monotonic() >= self._deadline_s:
            self.close()
            raise LeaseOver("the lease has run out and its settings are back; take a new one, or renew in time")
        if status is not None:
            os.close(self._pipe)
            self._start_watchdog()

    def _start_watchdog(self) -> None:
        pidfd = _own_pidfd()
        hears, self._pipe = os.pipe()
        hears_ready, ready = os.pipe()
        handed = [hears, ready, *self._locks, *([] if pidfd < 0 else [pidfd])]
        command = [
            # -P: whatever files lie in the present folder, they are not taken for Python's own modules.
            *(sys.executable, "-P", "-m", "wattsmith.control.watchdog", "--state", str(self._state.resolve())),
            *("--lease", self.name, "--duration-s", str(max(0.0, self._deadline_s - time.monotonic()))),
            *("--pidfd", str(pidfd), "--pipe", str(hears), "--ready", str(ready)),
            *("--locks", *map(str, self._locks)),
        ]
        try:
            self._watchdog = subprocess.Popen(
                command,
                pass_fds=handed,
                start_new_session=True,  # so that Ctrl-C and a closed terminal do not reach it
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as failed:
            raise NoWatchdog(f"the watchdog could not be started, so nothing is changed: {failed}") from failed
        finally:
            for number in {hears, ready, pidfd} - {-1}:
                os.close(number)
        try:
            if not _says_ready(hears_ready):
                raise NoWatchdog(f"the watchdog did not get ready, so nothing is changed: {' '.join(command)}")
        finally:
            os.close(hears_ready)

    def _end_watchdog(self) -> None:
        with contextlib.suppress(OSError):
            os.write(self._pipe, b"release\n")
        with contextlib.suppress(OSError):
            os.close(self._pipe)
        self._pipe = -1
        if self._watchdog is None:
            return
        try:
            self._watchdog.wait(ENDS_WITHIN_S)
        except subprocess.TimeoutExpired:  # stopped, say; all is back, so it has nothing left to do
            self._watchdog.kill()
            self._watchdog.wait()
        self._watchdog = None

    def _leave_to_parent(self) -> None:
        """In a child made by fork: close what was inherited, or the parent's end would not be seen."""
        for number in [*self._locks, self._pipe]:
            with contextlib.suppress(OSError):
                os.close(number)  # closing does not unlock: the parent has the same open file
        self._closed = True


def _leave_all_to_parent() -> None:
    for lease in list(_open_leases):
        lease._leave_to_parent()
    _open_leases.clear()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _own_pidfd() -> int:
    """A file that tells when this process has ended; -1 on kernels that know none, where the pipe must do."""
    try:
        return os.pidfd_open(os.getpid())
    except (OSError, AttributeError):
        return -1


def _says_ready(pipe: int) -> bool:
    ready, _, _ = select.select([pipe], [], [], READY_WITHIN_S)
    return bool(ready) and os.read(pipe, len(READY)) == READY


def _knobs_of_devices(knobs: Mapping[str, Knob], devices: Sequence[str]) -> dict[str, Knob]:
    known = {knob.card.device for knob in knobs.values()}
    if missing := sorted(set(devices) - known):
        there = ", ".join(sorted(known)) or "no device with a knob, as `wattsmith control show` tells"
        raise BadTerm(f"there is no {', '.join(missing)} to be held here; there is {there}")
    if not devices:
        raise BadTerm("name a device to hold, such as gpu:0")
    return {name: knob for name, knob in knobs.items() if knob.card.device in devices}
