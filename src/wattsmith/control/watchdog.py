"""A small process that puts settings back when the one that holds them has ended, however it ended.

Started by a lease with what it needs as open files: the holder's pidfd, the pipe on which it renews and releases, and
the device locks, which it shares. It lives in a session of its own and ignores everything but kill -9.
"""

import argparse
import contextlib
import os
import select
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from wattsmith.control.journal import journals_of, release_device
from wattsmith.control.restoring import put_back
from wattsmith.terms.control import PutBack

READY = b"ready\n"
RELEASED, RAN_OUT = 0, 3  # exit status: nothing left to do; the lease ran out and settings are back
LOG = "restored.log"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m wattsmith.control.watchdog", description=__doc__)
    parser.add_argument("--state", type=Path, required=True)
    parser.add_argument("--lease", required=True)
    parser.add_argument("--duration-s", type=float, required=True)
    parser.add_argument("--pidfd", type=int, default=-1)
    parser.add_argument("--pipe", type=int, required=True)
    parser.add_argument("--ready", type=int, required=True)
    parser.add_argument("--locks", type=int, nargs="+", required=True)
    options = parser.parse_args(arguments)
    os.chdir("/")  # so that it keeps no folder in use; not before, as PYTHONPATH may be relative to this one
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    with contextlib.suppress(ImportError):
        import pynvml  # noqa: F401  now, so that it need not be read from disk when time is short
    with contextlib.suppress(OSError):
        os.write(options.ready, READY)
    os.close(options.ready)
    why = wait_for_end(options.pipe, options.pidfd, time.monotonic() + options.duration_s)
    if why == "released":
        return RELEASED
    outcomes = _put_back(options.state, options.lease)
    while any(outcome.unfinished for outcome in outcomes):  # stay until that change has ended, or its process has
        outcomes = _put_back(options.state, options.lease)
    _note(options.state, options.lease, why, outcomes)
    for lock in options.locks:
        release_device(lock)
    return RAN_OUT


def _put_back(state: Path, lease: str) -> list[PutBack]:
    return [put_back(state, journal) for journal in journals_of(state, lease)]


def wait_for_end(pipe: int, pidfd: int, deadline_s: float) -> str:
    """Wait for the end of a lease and say what it was: "released", "holder ended" or "ran out"."""
    waiting = select.poll()
    waiting.register(pipe, select.POLLIN)
    if pidfd >= 0:
        waiting.register(pidfd, select.POLLIN)
    pending = b""
    while (left_s := deadline_s - time.monotonic()) > 0:
        ready = {number for number, _ in waiting.poll(min(left_s, 3600.0) * 1000 + 1)}
        if pipe in ready:
            got = os.read(pipe, 4096)
            *lines, pending = (pending + got).split(b"\n")
            for line in lines:
                if line == b"release":
                    return "released"
                deadline_s = time.monotonic() + float(line.removeprefix(b"renew "))
            if not got:
                return "holder ended"
        elif pidfd in ready:
            return "holder ended"
    return "ran out"


def _note(state: Path, lease: str, why: str, outcomes: Sequence[PutBack]) -> None:
    """One line per device for whoever looks later; that it cannot be written must not stop anything."""
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    lines = [
        f"{stamp} lease {lease} {why}: {each.device}{' (simulated)' * each.simulated} "
        f"{'; '.join(each.problems) or 'put back'}\n"
        for each in outcomes
    ]
    with contextlib.suppress(OSError), (state / LOG).open("a") as log:
        log.writelines(lines)


if __name__ == "__main__":
    sys.exit(main())
