"""One pool of data workers for several jobs: each tells what it needs, and is told how many it may have.

The pool gives no workers, only leave to have them: each job starts and ends its own. A job that goes, or is not heard
of, gives back what it had.
"""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from wattsmith.feed.allot import Share, allot
from wattsmith.feed.remote_address import connect, listen, parse_address
from wattsmith.feed.remote_greeting import GREETING_S, TokenRefused, admit, checked_token, greet, read_token, welcome
from wattsmith.feed.wire import Channel, FrameRefused, PeerLost
from wattsmith.terms.errors import BadInput, BadTerm

SHARE, LEAVE = 20, 21  # kinds of frames: what a job needs, and how many workers it may have
ASK_S = 2.0  # how long a job waits for an answer, and the pool for a job that greets
AGAIN_S = 10.0  # until a pool that did not answer is asked again
SILENT_S = 60.0  # a job that says nothing for so long is gone


class Pool:
    """Divides WORKERS among the jobs that come to ADDRESS and prove TOKEN."""

    def __init__(self, address: str, token: str, workers: int, *, say: Callable[[str], None] | None = None) -> None:
        if workers < 1:
            raise BadTerm(f"a pool has at least one worker, got {workers}")
        self._token = checked_token(token, "token")
        self._workers = workers
        self._say = say or (lambda _: None)
        self._listener, self.address = listen(parse_address(address))
        self._shares: dict[str, Share] = {}
        self._lock = threading.Lock()
        self._open: set[Channel] = set()

    def serve(self) -> None:
        """Answer jobs until `close`."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        for channel in list(self._open):
            channel.close()

    def division(self) -> dict[str, int]:
        """How many workers each job may have now."""
        with self._lock:
            shares = list(self._shares.values())
            # Nobody can train with no worker at all, so each has one even where there are more jobs than workers.
            return dict(allot(shares, max(self._workers, sum(share.least for share in shares))))

    def _attend(self, connection: socket.socket) -> None:
        channel, name = Channel(connection, stall_s=GREETING_S), ""
        self._open.add(channel)
        try:
            told = admit(channel, self._token, 0)
            name = str(told.get("job", ""))[:200]
            if not name or name in self._shares:
                name = f"{name or 'job'} #{id(channel):x}"
            welcome(channel, {"job": name})
            while (head := channel.receive(SILENT_S)) is not None:
                self._note(name, head.kind, head.message)
                channel.send(LEAVE, json.dumps(self.division()[name]).encode())
        except (PeerLost, FrameRefused, TokenRefused, BadTerm) as over:
            self._say(f"{name or 'a caller'}: {over}")
        finally:
            with self._lock:
                self._shares.pop(name, None)
            self._open.discard(channel)
            channel.close()

    def _note(self, name: str, kind: int, message: bytes) -> None:
        if kind != SHARE:
            raise FrameRefused(f"a share was due, got kind {kind}")
        try:
            share = Share(**json.loads(message) | {"name": name})
        except (ValueError, TypeError, RecursionError) as odd:
            raise FrameRefused(f"a share cannot be understood: {odd}") from odd
        with self._lock:
            before = self._shares.get(name)
            self._shares[name] = share
        if before is None or before.has != share.has:
            self._say(f"{name} needs {share.need:.1f} workers and has {share.has}; divided: {self.division()}")


def member_of(address: str | None, token_file: str | os.PathLike[str] | None) -> "PoolMember | None":
    """A place in the pool at ADDRESS; None: there is no pool."""
    if address is None:
        return None
    if token_file is None:
        raise BadInput("a pool needs token_file: pool and jobs must hold the same token")
    return PoolMember(address, read_token(Path(token_file)))


class PoolMember:
    """A job's side. Where the pool does not answer, the last answer holds."""

    def __init__(self, address: str, token: str, *, job: str | None = None, weight: float = 1.0) -> None:
        self._channel: Channel | None = None
        self._address = parse_address(address)
        self._token = checked_token(token, "token")
        self._job = job or f"{socket.gethostname()}:{os.getpid()}"
        self._share = Share(name=self._job, need=1.0, weight=weight)
        self._not_before_s = 0.0
        self._leave: int | None = None

    def leave_for(self, need: float, has: int, buffer: int) -> int | None:
        """How many workers this job may have; None: the pool has never answered."""
        share = replace(self._share, need=need, has=has, buffer=buffer)
        if time.monotonic() < self._not_before_s:
            return self._leave
        try:
            if self._channel is None:
                self._channel = self._join()
            plain = {name: getattr(share, name) for name in ("need", "buffer", "weight", "least", "has")}
            self._channel.send(SHARE, json.dumps(plain).encode())
            head = self._channel.receive(ASK_S)
            if head is None or head.kind != LEAVE:
                raise PeerLost("the pool does not answer")
            self._leave = int(json.loads(head.message))
        except (OSError, PeerLost, FrameRefused, ValueError):
            self.close()
            self._not_before_s = time.monotonic() + AGAIN_S
        return self._leave

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def __del__(self) -> None:
        self.close()

    def _join(self) -> Channel:
        channel = Channel(connect(self._address, ASK_S), stall_s=ASK_S)
        try:
            greet(channel, self._token, {"job": self._job}, within_s=ASK_S)
        except BaseException:
            channel.close()
            raise
        return channel
