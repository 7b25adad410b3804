"""A warm process that measures points: started once, asked many times, replaced when it dies.

It speaks JSON lines over its standard input and output. Whatever happens to it is told as an exception here, so that
no point takes the run down.
"""

import json
import os
import selectors
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

TAIL_BYTES = 2000  # how much of what it said last is kept as the reason of its death


class WorkerHung(Exception):
    """It gave no answer in time."""


class WorkerDied(Exception):
    """It ended without an answer."""

    def __init__(self, exit_code: int, said: str) -> None:
        self.exit_code = exit_code  # negative: the signal that killed it
        super().__init__(_cause_of_death(exit_code, said))


def _cause_of_death(exit_code: int, said: str) -> str:
    if exit_code < 0:
        cause = f"killed by {signal.Signals(-exit_code).name}"
        if exit_code == -signal.SIGKILL:
            cause += ", as the kernel does when the host runs out of memory"
    else:
        cause = f"ended with exit code {exit_code}"
    return f"{cause}; it said last: {said}" if said else cause


class Worker:
    """One such process."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=None if environment is None else dict(environment),
            process_group=0,  # Ctrl-C is for the parent, which then decides
        )
        self._answers = selectors.DefaultSelector()
        assert self._process.stdout is not None
        self._answers.register(self._process.stdout, selectors.EVENT_READ)
        self._pending = b""

    @property
    def pid(self) -> int:
        return self._process.pid

    def answer(self, timeout_s: float) -> Any:
        """Its next message. Raises WorkerHung or WorkerDied; either way it is gone then."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        while b"\n" not in self._pending:
            if not self._answers.select(max(0.0, deadline_s - time.monotonic())):
                self.kill()
                raise WorkerHung(f"no answer in {timeout_s:g} s")
            piece = os.read(self._process.stdout.fileno(), 1 << 20)
            if not piece:
                raise self._death()
            self._pending += piece
        line, _, self._pending = self._pending.partition(b"\n")
        return json.loads(line)

    def ask(self, question: Any, timeout_s: float) -> Any:
        """Put a QUESTION and wait for the answer."""
        self.put(question)
        return self.answer(timeout_s)

    def put(self, question: Any) -> None:
        """Put a QUESTION; the answer is waited for later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            raise self._death() from None

    def _death(self) -> WorkerDied:
        exit_code = self._process.wait()
        size = self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, size - TAIL_BYTES))
        said = self._said.read().decode(errors="replace").strip()
        self.kill()
        return WorkerDied(exit_code, said)

    def kill(self) -> None:
        """End it at once, with what it started."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._answers.close()
        for stream in (self._process.stdin, self._process.stdout, self._said):
            if stream is not None:
                with suppress(BrokenPipeError):  # what was still to be written has no reader any more
                    stream.close()
