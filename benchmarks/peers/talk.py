"""A tool in a process of its own: requests come as lines of JSON, answers go back the same way.

Needs nothing but Python, so that each tool can live in an environment of its own.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

Plan = Sequence[tuple[float, float]]  # when windows are to begin and end, on the monotonic clock


def serve(commands: Mapping[str, Callable[..., Any]]) -> None:
    """Answer requests until standard input ends. What the tool itself prints goes to standard error."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        request = json.loads(line)
        answers.write(json.dumps(commands[request["command"]](**request["arguments"])) + "\n")
        answers.flush()


def timed_s(work: Callable[[], object], count: int) -> list[float]:
    """How long each of COUNT calls took."""
    took_s = []
    for _ in range(count):
        begin_s = time.perf_counter()
        work()
        took_s.append(time.perf_counter() - begin_s)
    return took_s


def keep_times(plan: Plan, begin: Callable[[int], object], end: Callable[[int], object]) -> list[tuple[float, float]]:
    """Begin and end each window of PLAN in time; when begin had returned and end was called, which is what was asked
    to be measured."""
    moments = sorted([(b, 0, i) for i, (b, _) in enumerate(plan)] + [(e, 1, i) for i, (_, e) in enumerate(plan)])
    began_s, ended_s = [0.0] * len(plan), [0.0] * len(plan)
    for time_s, ends, i in moments:
        time.sleep(max(0.0, time_s - time.monotonic()))
        if ends:
            ended_s[i] = time.monotonic()
            end(i)
        else:
            begin(i)
            began_s[i] = time.monotonic()
    return list(zip(began_s, ended_s, strict=True))


class Tool:
    """A tool that runs in another process."""

    def __init__(self, module: str, python: str, environment: Mapping[str, str]) -> None:
        here = Path(__file__).parents[1]
        path = os.pathsep.join(filter(None, [str(here), environment.get("PYTHONPATH")]))
        self._module = module
        self._said = tempfile.TemporaryFile("w+")  # noqa: SIM115 - open as long as the process
        self._process = subprocess.Popen(
            [python, "-m", f"peers.{module}"],
            env={**environment, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self.pid = self._process.pid

    def send(self, command: str, **arguments: Any) -> None:
        """Let it begin; fetch the `answer` later."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"command": command, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            self._complain()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._complain()
        return json.loads(line)

    def ask(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.answer()

    def _complain(self) -> None:
        self._process.wait()
        self._said.seek(0)
        raise RuntimeError(f"{self._module} ended with {self._process.returncode}: {self._said.read()[-2000:]}")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
