"""Data workers started by a command of one's own: ssh, srun, kubectl, or nothing but this machine's Python."""

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from wattsmith.terms.engines import Work
from wattsmith.terms.errors import BadTerm, CommandNotStarted

LEAVE_S = 5.0
HERE = (sys.executable, "-c", "from wattsmith.cli import main; main()", "feed", "worker")


class CommandEngine:
    """Each worker is COMMAND with `--once --connect ADDRESS --token-file -` behind it; the token comes by its input.

    CommandEngine(["ssh", "node7", "wattsmith", "feed", "worker"], host="10.0.0.1") has workers on node7, to which
    this machine is 10.0.0.1. Without arguments they run on this machine.
    """

    def __init__(self, command: Sequence[str] = HERE, *, host: str = "127.0.0.1") -> None:
        if not command:
            raise BadTerm("a command has at least one word, got none")
        self._command = list(command)
        self._host = host

    def host(self) -> str:
        return self._host

    def start(self, work: Work, address: str, token: str) -> Any:  # noqa: ARG002 - the command knows what to do
        command = [*self._command, "--once", "--connect", address, "--token-file", "-"]
        try:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        except OSError as refused:
            raise CommandNotStarted(f"{self._command[0]} cannot be started: {refused.strerror}") from refused
        assert process.stdin is not None
        with process.stdin:
            process.stdin.write(token.encode())
        return process

    def stop(self, handle: Any) -> None:
        handle.terminate()
        try:
            handle.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            handle.kill()
            handle.wait()
