"""Jobs as processes of this machine, each beside a small process that runs and measures it and outlives the service."""

import contextlib
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from wattsmith.engines.attempt_folder import (
    age_s,
    claim,
    kill_left_behind,
    lay_out,
    read_ended,
    read_log,
    read_result,
    read_status,
    who_started,
)
from wattsmith.terms.errors import CommandNotStarted, Conflict, NotWritten
from wattsmith.terms.jobs import AttemptOrder, AttemptStatus, Stage
from wattsmith.terms.schedule import PoolNode
from wattsmith.terms.service import check_name

BEGIN_S = 20.0  # a runner that somebody else started, and that has not begun after so long, never will
STOP_S = 30.0  # a runner that was told to stop and still runs after so long is killed itself
STALE_S = 3600.0  # what was begun to be laid out so long ago was left behind
SAID_BYTES = 2000  # the end of what a runner printed, for who asks why it is gone

_running: "list[_Runner]" = []  # of this process; they outlive the engine that started them


class ProcessEngine:
    """Attempts in folders of HOME/attempts. RUNNER: the command that runs the attempt of the folder named behind it.

    LEASH: what runs ends with this process, at once. For one that is watched itself, such as an actor of Ray's.
    """

    def __init__(self, home: Path, nodes: Sequence[PoolNode], runner: Sequence[str], *, leash: bool = False) -> None:
        self._attempts = Path(home).resolve() / "attempts"
        self._nodes = tuple(nodes)
        self._runner = [*runner]
        self._leash = leash
        self._mine: dict[str, _Runner] = {}
        self._starting = threading.Lock()
        self._remove_stale()

    def nodes(self) -> tuple[PoolNode, ...]:
        return self._nodes

    def start(self, order: AttemptOrder) -> None:
        if order.node is None and self._nodes:
            order = replace(order, node=self._nodes[0].name)
        folder = lay_out(self._attempts, order)
        with self._starting:
            mine = self._mine.get(order.attempt)
            if (mine is None or mine.ended) and who_started(folder) is None:
                self._mine[order.attempt] = self._run(folder)
        self._reap()

    def look(self, attempt: str) -> AttemptStatus:
        folder = self._folder(attempt)
        mine = self._mine.get(attempt)
        ended = mine is not None and mine.ended
        if not (folder / "order.json").exists():
            return AttemptStatus(stage=Stage.UNKNOWN)
        # Whether it runs is asked before whether it has a result: it may write that and leave in between.
        started = who_started(folder)
        runs = started is not None and started.runs
        result = read_result(folder)
        if result is None and started is not None and not runs:
            result = read_ended(folder)  # its runner was killed behind the command's end
        if result is not None:
            return replace(
                read_status(folder), stage=Stage.ENDED, result=result, steps=result.steps, energy_j=result.energy_j
            )
        if runs:
            self._insist(folder)
            return read_status(folder)
        if started is None and not self._given_up(folder, mine, ended):
            return AttemptStatus(stage=Stage.STARTING)
        # Before anyone starts it again, nothing of it may be running still.
        kill_left_behind(folder)
        return replace(read_status(folder), stage=Stage.LOST, why=_why(folder))

    def stop(self, attempt: str) -> None:
        folder = self._folder(attempt)
        with contextlib.suppress(OSError):
            (folder / "stop").touch(
                exist_ok=False
            )  # for a runner that has not begun; its time is when it was said first
        self._signal(folder, signal.SIGTERM)

    def log(self, attempt: str, *, stream: str = "stdout", offset: int = 0, limit: int = 1 << 16) -> bytes:
        return read_log(self._folder(attempt), stream, offset, limit)

    def forget(self, attempt: str) -> None:
        stage = self.look(attempt).stage
        if stage in (Stage.STARTING, Stage.RUNNING):
            raise Conflict(f"attempt {attempt} is {stage}: stop it before it is forgotten")
        folder = self._folder(attempt)
        if not folder.exists():
            return
        gone = self._attempts / f".new-gone-{attempt}-{time.monotonic_ns()}"
        try:
            folder.rename(gone)  # half of a folder must not be taken for an attempt
        except OSError as refused:
            raise NotWritten(f"{folder} cannot be removed: {refused.strerror}") from refused
        shutil.rmtree(gone, ignore_errors=True)
        self._mine.pop(attempt, None)

    def close(self) -> None:
        self._reap()

    def _folder(self, attempt: str) -> Path:
        check_name("attempt", attempt)
        return self._attempts / attempt

    def _run(self, folder: Path) -> "_Runner":
        leash = ["--leash"] if self._leash else []
        try:
            with (folder / "runner.log").open("ab") as said:
                process = subprocess.Popen(
                    [*self._runner, str(folder), *leash],
                    cwd="/",
                    stdin=subprocess.PIPE if self._leash else subprocess.DEVNULL,  # it ends when that is closed
                    stdout=said,
                    stderr=said,
                    start_new_session=True,  # what ends this process, or its terminal, is not meant for it
                )
        except OSError as refused:
            raise CommandNotStarted(f"{self._runner[0]} cannot be started: {refused.strerror}") from refused
        runner = _Runner(process)
        _running.append(runner)
        return runner

    def _reap(self) -> None:
        """Let runners that have ended go: none stays behind as a zombie."""
        _running[:] = [runner for runner in _running if not runner.ended]
        for attempt, runner in list(self._mine.items()):
            if runner.ended and who_started(self._attempts / attempt) is not None:
                self._mine.pop(attempt, None)

    def _given_up(self, folder: Path, mine: "_Runner | None", ended: bool) -> bool:
        """Whether no runner will begin: if so, that is made sure of."""
        if not ended and (mine is not None or age_s(folder / "order.json") < BEGIN_S):
            return False
        return claim(folder, nobody=True)

    def _signal(self, folder: Path, number: signal.Signals) -> None:
        started = who_started(folder)
        if started is not None and started.runs:
            with contextlib.suppress(ProcessLookupError):
                os.kill(started.pid, number)

    def _insist(self, folder: Path) -> None:
        if (folder / "stop").exists() and age_s(folder / "stop") > STOP_S:
            self._signal(folder, signal.SIGKILL)

    def _remove_stale(self) -> None:
        for path in self._attempts.glob(".new-*"):
            if age_s(path) > STALE_S:
                shutil.rmtree(path, ignore_errors=True)


class _Runner:
    """A child that may be dropped: whoever asks next lets it go."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._pid = process.pid
        self._leash = process.stdin  # held for as long as this process lives
        self._over = False
        self._asking = threading.Lock()
        process.returncode = 0  # it is waited for here, by its number; Popen warns of children that nobody waits for

    @property
    def ended(self) -> bool:
        with self._asking:
            if not self._over:
                try:
                    self._over = os.waitpid(self._pid, os.WNOHANG)[0] != 0
                except ChildProcessError:
                    self._over = True
            return self._over


def _why(folder: Path) -> str:
    started = who_started(folder)
    if started is not None and started.pid:
        why = f"process {started.pid}, which ran it, is gone without a word"
    else:
        why = "the process that was to run it never began"
    with contextlib.suppress(OSError):
        said = (folder / "runner.log").read_bytes()[-SAID_BYTES:].decode(errors="replace").strip()
        why += f"; it said: {said}" if said else ""
    return why
