"""What a device was set to before it was touched, on disk before the first change, and who holds it.

In the state folder each device has up to three files, named for its identity:

    NAME.journal   what its knobs stood at; there while it is held, and after a crash until they are put back
    NAME.lock      locked (flock) by the holder and its watchdog together; never removed
    NAME.write     locked for the moment of a change, so that nobody puts back while another sets; never removed
"""

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from wattsmith.terms.control import DeviceHeld, JournalDamaged, Value, value_from_plain
from wattsmith.terms.errors import BadTerm, NotWritten
from wattsmith.terms.facts import as_plain

FORMAT = 1
JOURNAL, LOCK, WRITE = ".journal", ".lock", ".write"
LOOK_AGAIN_S = 0.01


def default_state_folder() -> Path:
    """Where journals lie unless another place is given."""
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "wattsmith" / "control"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What one device stood at before a lease, by kind of knob, in the order in which they were first touched."""

    lease: str  # names the lease; another one's journal is left alone
    device: str
    identity: str
    sysfs: str
    holder_pid: int
    before: Mapping[str, Value] = field(default_factory=dict)
    wanted: Mapping[str, Value] = field(default_factory=dict)  # what was asked for last
    simulated: bool = False
    over: bool = False  # the lease has ended, but something could not be put back


def file_of(state: Path, identity: str, suffix: str) -> Path:
    """A name in the state folder for one device; whatever its identity holds, the file lies in that folder."""
    plain = re.sub(r"[^\w.@-]", "_", identity)
    mark = "" if plain == identity else "-" + hashlib.sha256(identity.encode()).hexdigest()[:8]
    return state / f"{plain}{mark}{suffix}"


# ---- writing and reading


def write_journal(state: Path, journal: Journal) -> None:
    """Put JOURNAL on disk, whole or not at all. When it returns it outlives a power cut."""
    path = file_of(state, journal.identity, JOURNAL)
    body = json.dumps(as_plain(journal))
    text = json.dumps({"format": FORMAT, "sha256": _digest(body), "body": body})
    fresh = path.with_suffix(".new")
    try:
        with fresh.open("w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _sync_folder(state)
    except OSError as failed:
        raise NotWritten(
            f"the journal {path} cannot be written ({failed.strerror}), so nothing is changed. Make room, or give "
            "another state folder."
        ) from failed


def read_journal(state: Path, identity: str) -> Journal | None:
    """The journal of a device; None when there is none. Raises JournalDamaged."""
    return _read(file_of(state, identity, JOURNAL))


def remove_journal(state: Path, identity: str) -> None:
    """All is back: forget what it was. Twice is harmless, and so is a folder that is gone."""
    with contextlib.suppress(FileNotFoundError):
        file_of(state, identity, JOURNAL).unlink(missing_ok=True)
        _sync_folder(state)


def journal_files(state: Path) -> list[Path]:
    """Every journal in the folder, whole or damaged."""
    return sorted(state.glob(f"*{JOURNAL}"))


def all_journals(state: Path) -> Iterator[tuple[Path, Journal | JournalDamaged]]:
    """Each journal with its file; a damaged one as the error that says so."""
    for path in journal_files(state):
        try:
            journal = _read(path)
        except JournalDamaged as damaged:
            yield path, damaged
        else:
            if journal is not None:  # removed since the folder was listed
                yield path, journal


def journals_of(state: Path, lease: str) -> list[Journal]:
    """The journals of one lease. A damaged one is left for a person to see."""
    return [
        journal
        for _, journal in all_journals(state)
        if not isinstance(journal, JournalDamaged) and journal.lease == lease
    ]


def _read(path: Path) -> Journal | None:
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as failed:
        raise JournalDamaged(f"the journal {path} cannot be read: {failed}") from failed
    try:
        whole = json.loads(text)
        if whole["format"] != FORMAT:
            raise JournalDamaged(f"the journal {path} has format {whole['format']}; this version knows {FORMAT}")
        if _digest(whole["body"]) != whole["sha256"]:
            raise ValueError("its checksum is wrong")
        return _journal(json.loads(whole["body"]))
    except (ValueError, KeyError, TypeError, AttributeError, BadTerm) as odd:
        raise JournalDamaged(
            f"the journal {path} is half-written or damaged ({odd}), so what the device stood at is not known. Look at "
            "the device, set it as it should be, then `wattsmith restore --forget` this file."
        ) from odd


def _journal(plain: Mapping[str, Any]) -> Journal:
    values = {
        name: {str(knob): value_from_plain(value) for knob, value in plain[name].items()}
        for name in ("before", "wanted")
    }
    return Journal(
        lease=str(plain["lease"]),
        device=str(plain["device"]),
        identity=str(plain["identity"]),
        sysfs=str(plain["sysfs"]),
        holder_pid=int(plain["holder_pid"]),
        simulated=bool(plain["simulated"]),
        over=bool(plain["over"]),
        before=values["before"],
        wanted=values["wanted"],
    )


def _digest(body: str) -> str:
    return hashlib.sha256(body.encode()).hexdigest()


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


# ---- locks


def open_state(state: Path) -> None:
    """Make the state folder, for its owner alone: who can write there can say what is put back."""
    try:
        state.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as failed:
        raise NotWritten(f"the state folder {state} cannot be made: {failed}. Give another one.") from failed
    check_trusted(state)


def check_trusted(state: Path) -> None:
    """Raise NotWritten when STATE belongs to, or may be written by, somebody who could make us set what they want."""
    held = state.stat()
    if held.st_uid not in (0, os.geteuid()) or held.st_mode & stat.S_IWOTH:
        raise NotWritten(
            f"the state folder {state} belongs to another user or may be written by everyone, so what lies in it is "
            "not trusted. Make it yours (`chown`, `chmod 700`), or give another one."
        )


def take_device(state: Path, identity: str, device: str, wait_s: float = 0.0) -> int:
    """The open, locked lock file of a device: its number. Raises DeviceHeld when another has it for longer than WAIT_S.

    The lock belongs to the open file, so a watchdog that is handed the number holds it too, and it is free when both
    have let go or died.
    """
    number = _open_lock(file_of(state, identity, LOCK))
    if _locked_within(number, wait_s):
        return number
    os.close(number)
    raise DeviceHeld(f"{device} ({identity}) is held by {_holder(state, identity)}; wait until it has ended, or end it")


def forget_journal(path: Path) -> None:
    """Remove a journal, damaged perhaps, without putting anything back. Raises DeviceHeld while its device is held."""
    number = _open_lock(path.with_suffix(LOCK))
    if not _locked_within(number, 0.0):
        os.close(number)
        raise DeviceHeld(f"{path.name} belongs to a lease in force, which needs it; end that first")
    try:
        path.unlink(missing_ok=True)
        _sync_folder(path.parent)
    finally:
        release_device(number)


def _holder(state: Path, identity: str) -> str:
    try:
        journal = read_journal(state, identity)
    except JournalDamaged:
        journal = None
    return "another process" if journal is None else f"process {journal.holder_pid}"


def release_device(number: int) -> None:
    """Unlock for all who were handed this lock, and close."""
    with contextlib.suppress(OSError):
        fcntl.flock(number, fcntl.LOCK_UN)
    with contextlib.suppress(OSError):
        os.close(number)


@contextlib.contextmanager
def changing(state: Path, identity: str, wait_s: float) -> Iterator[bool]:
    """The moment of a change. False: another has been at it for longer than WAIT_S, stopped perhaps."""
    number = _open_lock(file_of(state, identity, WRITE))
    try:
        yield _locked_within(number, wait_s)
    finally:
        os.close(number)


def _open_lock(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as failed:
        raise NotWritten(f"the lock {path} cannot be opened: {failed.strerror}. Give another state folder.") from failed


def _locked_within(number: int, wait_s: float) -> bool:
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline_s:
                return False
            time.sleep(LOOK_AGAIN_S)
        else:
            return True
