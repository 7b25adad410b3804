"""Processes that belong together: nothing that a job started lives longer than the process beside it."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
PATIENCE_S = 5.0  # with processes that do not die, as the kernel keeps those that wait for a broken disk


def adopt_orphans() -> None:
    """Processes below this one whose parent ends become children of this one, not of init."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def die_with_parent(parent: int) -> None:
    """Let this process, and what it becomes, be killed when PARENT, which has just forked it, ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)  # it has ended already


def kill_descendants() -> bool:
    """Kill all processes below this one; whether there were any. Nobody is waited for."""
    below = _descendants(os.getpid())
    for pid in below:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    return bool(below)


def largest_resident_bytes() -> int | None:
    """The most memory that any one process below this one has had so far; None: there is none.

    As the kernel counts it since the process became what it is. What `wait` tells afterwards also counts what its
    parent held when it was forked, which may be far more.
    """
    sizes = [size for pid in _descendants(os.getpid()) if (size := _peak_bytes(pid)) is not None]
    return max(sizes, default=None)


def _peak_bytes(pid: int) -> int | None:
    with contextlib.suppress(OSError, ValueError):
        for line in Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return None


def end_descendants() -> None:
    """Kill all processes below this one, also those that are started meanwhile, and wait for them."""
    give_up_s = time.monotonic() + PATIENCE_S
    while kill_descendants():
        _reap()
        if time.monotonic() > give_up_s:
            return
        time.sleep(0.002)
    _reap()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _descendants(pid: int) -> list[int]:
    """Those below PID that have not ended."""
    children: dict[int, list[int]] = {}
    ended = set()
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                stat = (process / "stat").read_text(errors="replace")
            except OSError:
                continue  # it has ended since
            state, parent, *_ = stat.rpartition(")")[2].split()
            children.setdefault(int(parent), []).append(int(process.name))
            if state in ("Z", "X", "x"):
                ended.add(int(process.name))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        todo += below
        found += below
    return [one for one in found if one not in ended]
