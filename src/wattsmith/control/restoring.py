"""Puts devices back to what their journals say."""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from wattsmith.control.find import knobs_of
from wattsmith.control.journal import (
    Journal,
    all_journals,
    changing,
    check_trusted,
    read_journal,
    release_device,
    remove_journal,
    take_device,
    write_journal,
)
from wattsmith.terms.control import DeviceHeld, JournalDamaged, Knob, KnobLost, NotPermitted, PutBack, Value
from wattsmith.terms.errors import BadTerm, NotWritten

TRIES = 3
BETWEEN_TRIES_S = 0.05
CHANGE_WAIT_S = 1.0  # a change takes milliseconds; who is at it for longer was stopped in the middle


def put_back(state: Path, journal: Journal, *, certain: bool = False) -> PutBack:
    """Set every knob of JOURNAL to what it stood at, and remove the journal when all are. Twice is harmless.

    Call it with the device's lock in hand. What cannot be put back is told, and the journal stays. So it does while the
    holder is in the middle of a change that does not end: what it sets last would otherwise be put back by nobody.
    CERTAIN: nobody else can have put back, so where the file is gone or damaged, JOURNAL itself counts.
    """
    with _changing_if_it_can_be(state, journal.identity) as alone:
        try:
            current = read_journal(state, journal.identity)
        except JournalDamaged as damaged:
            if not certain:
                return _outcome(journal, (str(damaged),))
            current = journal
        if current is None and certain:
            current = journal
        if current is None or current.lease != journal.lease:
            return _outcome(journal)  # somebody was faster
        problems = _put_back_all(current)
        if not alone:
            problems = (
                *problems,
                f"process {current.holder_pid} is still in the middle of a change of {current.device}",
            )
        try:
            if problems:
                write_journal(state, replace(current, over=True))
            else:
                remove_journal(state, current.identity)
        except (OSError, NotWritten) as failed:
            problems = (*problems, f"the journal of {current.device} stays as it is: {failed}")
    return _outcome(current, problems, unfinished=not alone)


@contextmanager
def _changing_if_it_can_be(state: Path, identity: str) -> Iterator[bool]:
    """As `changing`, also in a folder that is gone or cannot be written any more: settings come back all the same."""
    with ExitStack() as held:
        try:
            alone = held.enter_context(changing(state, identity, CHANGE_WAIT_S))
        except NotWritten:
            alone = True
        yield alone


def _outcome(journal: Journal, problems: tuple[str, ...] = (), *, unfinished: bool = False) -> PutBack:
    return PutBack(
        device=journal.device,
        identity=journal.identity,
        knobs=tuple(f"{journal.device}/{kind}" for kind in journal.before),
        problems=problems,
        unfinished=unfinished,
        simulated=journal.simulated,
    )


def _put_back_all(journal: Journal) -> tuple[str, ...]:
    """What could not be put back, and why."""
    if not journal.before:
        return ()
    try:
        knobs = knobs_of(journal.identity, Path(journal.sysfs))
    except (KnobLost, NotPermitted, BadTerm) as gone:
        return (f"{journal.device} is gone, and its journal is kept: {gone}",)
    outcomes = [
        _put_back_one(knobs[kind], before)
        if kind in knobs
        else f"{journal.device} has no {kind} any more, and its journal is kept"
        for kind, before in journal.before.items()
    ]
    return tuple(problem for problem in outcomes if problem is not None)


def _put_back_one(knob: Knob, before: Value) -> str | None:
    problem = None
    for attempt in range(TRIES):
        if attempt:
            time.sleep(BETWEEN_TRIES_S)
        try:
            if is_at(knob, before):
                return None
            knob.set(before)
            now = knob.read()
        except (KnobLost, NotPermitted, BadTerm) as failed:
            problem = str(failed)
        else:
            if not knob.card.readable or _same(now, before):
                return None
            problem = f"{knob.card.name} was set back to {before} but reads {now}"
    return problem


def is_at(knob: Knob, value: Value) -> bool:
    """Whether a knob that tells how it is set stands at VALUE."""
    return knob.card.readable and _same(knob.read(), value)


def _same(now: Value, before: Value) -> bool:
    """Whether a value read is the one that was read before; drivers round, but always the same way."""
    if isinstance(now, float) and isinstance(before, float):
        return abs(now - before) <= 1e-6 * max(abs(now), abs(before))
    return now == before


def restore_left_behind(state: Path, wait_s: float = 0.0) -> list[PutBack]:
    """Put back every device whose holder and watchdog are both gone. A device that is held is told as a problem."""
    if not state.exists():
        return []
    check_trusted(state)
    outcomes = []
    for path, journal in all_journals(state):
        if isinstance(journal, JournalDamaged):
            outcomes.append(PutBack(device=path.stem, identity=path.stem, knobs=(), problems=(str(journal),)))
            continue
        try:
            lock = take_device(state, journal.identity, journal.device, wait_s)
        except DeviceHeld as held:
            outcomes.append(_outcome(journal, (f"{held}. Its settings come back by themselves then.",)))
            continue
        try:
            outcomes.append(put_back(state, journal))
        finally:
            release_device(lock)
    return outcomes
