"""Run a command as a shell would: no shell in between, its signals and exit code kept."""

import errno
import os
import resource
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from wattsmith.terms.errors import BadInput, CommandNotStarted

FROM_THE_KERNEL = 128  # si_code of a signal that the terminal sent to everyone in its foreground, so to the child too
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
FIRST_TICK_S = 0.05  # looking takes milliseconds, which a shorter command is spared
BLOCK_BYTES = 512  # what rusage counts input and output in


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended, and what it and the children it waited for had used."""

    exit_code: int  # 128 + n when signal n ended it, as shells say
    cpu_s: float
    largest_bytes: int | None  # resident memory of the largest of them; None when it cannot be told from our own
    read_bytes: int
    written_bytes: int


def require_command(command: Sequence[str]) -> None:
    """Refuse what cannot be started, before anything else is done for it."""
    if not command:
        raise BadInput("there is no command to measure; write it after `--`: `wattsmith measure -- python train.py`")
    if shutil.which(command[0]) is None:
        missing = not Path(command[0]).exists() or os.sep not in command[0]
        raise _not_started(command[0], errno.ENOENT if missing else errno.EACCES)


def _not_started(name: str, code: int) -> CommandNotStarted:
    if code != errno.ENOENT:
        why = "it is a folder" if Path(name).is_dir() else os.strerror(code)
        return CommandNotStarted(f"{name!r} cannot be run: {why}", exit_code=126)
    if os.sep not in name:
        return CommandNotStarted(f"command {name!r} was not found; check its name and PATH", exit_code=127)
    if Path(name).exists():
        return CommandNotStarted(f"{name!r} cannot be run: the interpreter in its first line is not there")
    return CommandNotStarted(f"there is no file {name!r} to run", exit_code=127)


@contextmanager
def signals_held() -> Iterator[frozenset[signal.Signals]]:
    """Hold back what would end this process, so that it can be waited for; gives what is held.

    Threads that are started inside hold it back too. A signal that was ignored before stays ignored.
    """
    held = frozenset(s for s in ENDING if signal.getsignal(s) is not signal.SIG_IGN) | {signal.SIGCHLD}
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # if ignored, as some parents leave it, exit codes would be lost
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    # A thread that a library started earlier, such as one of BLAS, does not hold them back and may be given one.
    handlers = {s: signal.signal(s, _hold_it_here) for s in held - {signal.SIGCHLD}}
    try:
        yield held
    finally:
        while signal.sigtimedwait(held, 0) is not None:
            pass  # meant for the child, which has ended
        for number, handler in handlers.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _hold_it_here(number: int, _frame: object) -> None:
    """Send on to this thread, which holds it back, what another was given."""
    signal.pthread_kill(threading.get_ident(), number)


def start(command: Sequence[str], held: frozenset[signal.Signals], **also: str) -> int:
    """The process number of COMMAND, just started with our own input and output, and our environment and ALSO."""
    if interruption := signal.sigpending() & (held - {signal.SIGCHLD}):
        raise CommandNotStarted(f"interrupted by {min(interruption).name} before the command was started", 130)
    try:
        return os.posix_spawnp(
            command[0],
            list(command),
            {**os.environ, **also},
            setsigmask=[s for s in signal.pthread_sigmask(signal.SIG_BLOCK, []) if s not in held],
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],  # Python ignores these; programs count on them
        )
    except OSError as refused:
        raise _not_started(command[0], refused.errno or errno.EACCES) from refused
    except ValueError as impossible:
        raise BadInput(f"the command {list(command)!r} cannot be started: {impossible}") from impossible


def wait_for(pid: int, held: frozenset[signal.Signals], tick: Callable[[], None], tick_s: float) -> Ended:
    """Wait until our child PID ends, calling TICK about every TICK_S. Signals sent to us alone are passed on to it."""
    pause_s = min(FIRST_TICK_S, tick_s)
    our_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while True:
        ended, status, used = os.wait4(pid, os.WNOHANG)
        if ended:
            break
        came = signal.sigtimedwait(held, pause_s)
        if came is None:
            tick()
            pause_s = tick_s
        elif came.si_signo != signal.SIGCHLD and came.si_code != FROM_THE_KERNEL:
            os.kill(pid, came.si_signo)
    code = os.waitstatus_to_exitcode(status)
    return Ended(
        exit_code=code if code >= 0 else 128 - code,
        cpu_s=used.ru_utime + used.ru_stime,
        # Between fork and exec a child counts its parent's memory as its own.
        largest_bytes=used.ru_maxrss * 1024 if used.ru_maxrss > our_peak_kib else None,
        read_bytes=used.ru_inblock * BLOCK_BYTES,
        written_bytes=used.ru_oublock * BLOCK_BYTES,
    )


def find_process(pid: int) -> tuple[tuple[str, ...], Callable[[], bool]]:
    """The command line of a process that is not our child, and a way to ask whether it still runs."""
    import psutil

    try:
        process = psutil.Process(pid)
        command = tuple(process.cmdline()) or (process.name(),)
    except (psutil.Error, ValueError, OverflowError) as absent:
        raise BadInput(f"there is no process {pid} that this user may look at; see `ps -e`") from absent

    def is_running() -> bool:
        try:
            return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False

    return command, is_running


def wait_for_other(
    is_running: Callable[[], bool], held: frozenset[signal.Signals], tick: Callable[[], None], tick_s: float
) -> bool:
    """Wait until a process that is not our child ends; False when we were interrupted first."""
    while is_running():
        came = signal.sigtimedwait(held, tick_s)
        if came is None:
            tick()
        elif came.si_signo != signal.SIGCHLD:
            return False
    return True
