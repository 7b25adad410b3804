"""The folder of one attempt at a job: what the engine that starts it and the process that runs it say to each other.

order.json   what is to be run; the folder appears with it and with files/, whole or not at all
files/       what was sent along; the command runs here
started      who runs it: made once, so that whoever comes second leaves
stop         it is to end
status.json  how it stands, about every second
result.json  what became of it
stdout, stderr, progress, runner.log
"""

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from wattsmith.terms.errors import BadInput, BadTerm, NotWritten
from wattsmith.terms.facts import as_plain
from wattsmith.terms.jobs import AttemptOrder, AttemptStatus, JobResult, Stage
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.service import check_name

MOST_FILES = 10_000
MOST_BYTES = 1 << 30
LONGEST_NAME_BYTES = 255  # of each part of a path; what file systems take
LONGEST_PATH_BYTES = 1024
ATTEMPT_VARIABLE = "WATTSMITH_ATTEMPT"  # in the environment of all that an attempt starts: its folder
STREAMS = ("stdout", "stderr")
ENDED_STATES = ("Z", "X", "x")  # of a process, in /proc: nothing of it runs any more


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """Who runs an attempt: a process that can be told from a later one of the same number."""

    pid: int  # 0: nobody; it was given up before anyone began
    start_ticks: int  # since the machine was started
    boot: str

    @property
    def runs(self) -> bool:
        return self.pid > 0 and self.boot == boot_id() and start_ticks_of(self.pid) == self.start_ticks


def boot_id() -> str:
    """Names this start of this machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_ticks_of(pid: int) -> int | None:
    """When process PID was started; None: there is none, or it has ended."""
    try:
        # Its name, in brackets, may hold spaces and brackets.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in ENDED_STATES else int(fields[19])


def this_process() -> Started:
    return Started(pid=os.getpid(), start_ticks=start_ticks_of(os.getpid()) or 0, boot=boot_id())


def check_files(files: Mapping[str, bytes]) -> None:
    """Raise BadTerm unless all FILES can be put into an empty folder, and nowhere else."""
    if len(files) > MOST_FILES:
        raise BadTerm(f"a job takes at most {MOST_FILES} files along, got {len(files)}")
    total_bytes = sum(map(len, files.values()))
    if total_bytes > MOST_BYTES:
        raise BadTerm(f"the files of a job hold at most {MOST_BYTES} bytes, got {total_bytes}")
    for name in files:
        _check_path(name)
    paths = {PurePosixPath(name) for name in files}
    for path in paths:
        if within := next((parent for parent in path.parents if parent in paths), None):
            raise BadTerm(f"{str(within)!r} cannot be a file and the folder of {str(path)!r}")


def _check_path(name: str) -> None:
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        raise BadTerm(f"the name of a file must be plain text, got {name!r:.80}") from None
    parts = encoded.split(b"/")
    if (
        b"\0" in encoded
        or len(encoded) > LONGEST_PATH_BYTES
        or any(part in (b"", b".", b"..") or len(part) > LONGEST_NAME_BYTES for part in parts)
    ):
        raise BadTerm(
            f"the name of a file must be a relative path inside the job's folder, without '.' or '..', got {name!r:.80}"
        )


def lay_out(attempts: Path, order: AttemptOrder) -> Path:
    """The folder of ORDER in ATTEMPTS: made whole now, or found as it was made before."""
    check_name("attempt", order.attempt)
    check_files(order.files)
    folder = attempts / order.attempt
    if (folder / "order.json").exists():
        return folder
    try:
        attempts.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=attempts))
        try:
            (new / "files").mkdir()
            for name, content in order.files.items():
                path = new / "files" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("xb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            write_json(new / "order.json", as_plain(replace(order, files={})))
            with contextlib.suppress(OSError):  # somebody was quicker
                new.rename(folder)
        finally:
            shutil.rmtree(new, ignore_errors=True)
        _sync_folder(attempts)
    except OSError as refused:
        raise NotWritten(f"attempt {order.attempt} cannot be laid out in {attempts}: {refused.strerror}") from refused
    if not (folder / "order.json").exists():
        raise NotWritten(f"{folder} is in the way of attempt {order.attempt}; remove it")
    return folder


def read_order(folder: Path) -> AttemptOrder:
    return parse_fact(AttemptOrder, _read_json(folder / "order.json"), where=str(folder / "order.json"))


def claim(folder: Path, *, nobody: bool = False) -> bool:
    """Be the one who runs it, for ever; False: there is one. NOBODY: see to it that nobody will."""
    who = Started(pid=0, start_ticks=0, boot=boot_id()) if nobody else this_process()
    handle, name = tempfile.mkstemp(prefix=".started-", dir=folder)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump(as_plain(who), file)
            file.flush()
            os.fsync(file.fileno())
        os.link(name, folder / "started")  # as O_EXCL, and what it says is there from the first moment on
    except FileExistsError:
        return False
    finally:
        Path(name).unlink(missing_ok=True)
    _sync_folder(folder)
    return True


def who_started(folder: Path) -> Started | None:
    """Who runs or ran it; None: nobody has begun."""
    return read_started(folder / "started")


def read_started(path: Path) -> Started | None:
    plain = _read_json(path)
    if not isinstance(plain, dict):
        return None
    return Started(pid=int(plain["pid"]), start_ticks=int(plain["start_ticks"]), boot=str(plain["boot"]))


def write_status(folder: Path, status: AttemptStatus) -> None:
    write_json(folder / "status.json", as_plain(status), safe=False)


def read_status(folder: Path) -> AttemptStatus:
    """How it stood when that was last said."""
    plain = _read_json(folder / "status.json")
    return AttemptStatus(stage=Stage.STARTING) if plain is None else parse_fact(AttemptStatus, plain)


def write_result(folder: Path, result: JobResult) -> None:
    write_json(folder / "result.json", as_plain(result))


def write_ended(folder: Path, result: JobResult) -> None:
    """What is known as soon as the command has ended; it counts only if no result ever comes."""
    write_json(folder / "ended.json", as_plain(result))


def read_result(folder: Path) -> JobResult | None:
    return _read(folder / "result.json")


def read_ended(folder: Path) -> JobResult | None:
    return _read(folder / "ended.json")


def _read(path: Path) -> JobResult | None:
    plain = _read_json(path)
    return None if plain is None else parse_fact(JobResult, plain)


def read_log(folder: Path, stream: str, offset: int, limit: int) -> bytes:
    """Of what it has printed, LIMIT bytes from OFFSET on, as far as they are there."""
    if stream not in STREAMS:
        raise BadTerm(f"a job prints to {' and '.join(STREAMS)}, not to {stream!r:.80}")
    if offset < 0 or limit < 0:
        raise BadTerm(f"a log is read from an offset and up to a limit that are not negative, got {offset} and {limit}")
    try:
        handle = os.open(folder / stream, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    with os.fdopen(handle, "rb") as file:
        file.seek(offset)
        return file.read(limit)


def write_json(path: Path, plain: Any, *, safe: bool = True) -> None:
    """Write PATH in one go. SAFE: from power cuts too, once this returns."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as file:
        json.dump(plain, file)
        if safe:
            file.flush()
            os.fsync(file.fileno())
    new.replace(path)
    if safe:
        _sync_folder(path.parent)


def _read_json(path: Path) -> Any:
    """None: it is not there."""
    try:
        return json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as broken:
        raise BadInput(f"{path} cannot be read: {broken}") from broken


def age_s(path: Path) -> float:
    """Since it was written; 0 where it is not there."""
    try:
        return time.time() - path.stat().st_mtime
    except OSError:
        return 0.0


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def kill_left_behind(folder: Path, patience_s: float = 2.0) -> list[int]:
    """Kill whatever the attempt of FOLDER had started and still runs on this machine; the processes it was."""
    mark = os.fsencode(f"{ATTEMPT_VARIABLE}={folder}")
    killed: list[int] = []
    give_up_s = time.monotonic() + patience_s
    while left := _marked(mark):
        for pid in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed += [pid for pid in left if pid not in killed]
        if time.monotonic() > give_up_s:
            break
        time.sleep(0.01)
    return killed


def _marked(mark: bytes) -> list[int]:
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                environment = (process / "environ").read_bytes()
            except OSError:
                continue  # it has ended, or is somebody else's
            if mark in environment.split(b"\0"):
                found.append(int(process.name))
    return found
