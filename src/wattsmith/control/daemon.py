"""`wattsmith control serve`: turns knobs for users who may not, as far as an allow-list lets them.

One connection holds at most one lease, which ends with it: when the client closes, dies or is killed. When the daemon
itself is killed, each lease's watchdog puts back.
"""

import contextlib
import math
import os
import pwd
import select
import socket
import struct
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wattsmith.control.allow import AllowList, Peer
from wattsmith.control.find import find_knobs
from wattsmith.control.lease import Lease
from wattsmith.control.restoring import restore_left_behind
from wattsmith.control.wire import Line, told_error
from wattsmith.terms.control import KnobLost, LeaseOver, value_from_plain
from wattsmith.terms.errors import BadInput, NotWritten, WattsmithError
from wattsmith.terms.facts import as_plain

MOST_CLIENTS = 64
TAKES_WITHIN_S = 10.0  # a client that does not take its answers is given up
LOOK_AGAIN_S = 0.2  # how often a thread looks whether the daemon is to end

Say = Callable[[str], None]


def serve(socket_path: Path, allow: AllowList, *, state: Path, sysfs: Path, stop: threading.Event, say: Say) -> None:
    """Serve until STOP is set; then every lease is put back. What an earlier daemon left is put back first."""
    for outcome in restore_left_behind(state):
        say(f"{outcome.device}: {'; '.join(outcome.problems) or 'left behind by an earlier lease, put back'}")
    with contextlib.closing(_listen(socket_path)) as listening:
        say(f"listening at {socket_path}")
        threads: list[threading.Thread] = []
        while not stop.is_set():
            if not select.select([listening], [], [], LOOK_AGAIN_S)[0]:
                continue
            connection, _ = listening.accept()
            threads = [thread for thread in threads if thread.is_alive()]
            if len(threads) >= MOST_CLIENTS:
                _turn_away(connection)
                continue
            client = Client(connection, allow, state=state, sysfs=sysfs, stop=stop, say=say)
            threads.append(threading.Thread(target=client.attend, name="control-client", daemon=True))
            threads[-1].start()
        socket_path.unlink(missing_ok=True)
        for thread in threads:
            thread.join()


def _listen(path: Path) -> socket.socket:
    """A socket that everyone may connect to: who may do what is for the allow-list to say."""
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if path.is_socket() and _answers(path):  # if it does not, one that was killed has left it behind
            raise NotWritten(f"a daemon listens at {path} already; end it, or give another --socket")
        if path.exists() and not path.is_socket():
            raise NotWritten(f"{path} is there already and is no socket; give another --socket")
        fresh = path.with_name(f".{path.name}.new")  # so that PATH answers from the moment it is there
        fresh.unlink(missing_ok=True)
        listening.bind(str(fresh))
        fresh.chmod(0o666)
        listening.listen()
        fresh.replace(path)
    except OSError as failed:
        listening.close()
        raise NotWritten(f"cannot listen at {path}: {failed}. Give another --socket.") from failed
    except NotWritten:
        listening.close()
        raise
    return listening


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
        return True


def _turn_away(connection: socket.socket) -> None:
    with contextlib.closing(connection), contextlib.suppress(OSError):
        Line(connection).send(told_error(NotWritten(f"the daemon has {MOST_CLIENTS} clients already; try again later")))


def peer_of(connection: socket.socket) -> Peer:
    """Who has connected, as the kernel vouches for it."""
    size = struct.calcsize("3i")
    pid, uid, gid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))
    try:
        gids = os.getgrouplist(pwd.getpwuid(uid).pw_name, gid)
    except (KeyError, OSError):
        gids = [gid]
    return Peer(pid=pid, uid=uid, gids=frozenset(gids))


class Client:
    """One connection, and the lease that it may hold."""

    def __init__(
        self, connection: socket.socket, allow: AllowList, *, state: Path, sysfs: Path, stop: threading.Event, say: Say
    ) -> None:
        connection.settimeout(TAKES_WITHIN_S)
        self._connection = connection
        self._line = Line(connection)
        self._allow = allow
        self._state = state
        self._sysfs = sysfs
        self._stop = stop
        self._say = say
        self._peer = peer_of(connection)
        self._lease: Lease | None = None

    def attend(self) -> None:
        """Answer until the connection, the client or the daemon ends; then put back."""
        pidfd = self._peer_pidfd()
        try:
            while not self._stop.is_set() and self._one_look(pidfd):
                pass
        except OSError:
            pass  # the client is gone in the middle of an answer
        finally:
            self._put_back()
            self._connection.close()
            if pidfd >= 0:
                os.close(pidfd)

    def _peer_pidfd(self) -> int:
        """Tells that the client has ended even where a child of its keeps the connection open; -1: not to be had."""
        try:
            return os.pidfd_open(self._peer.pid)
        except (OSError, ValueError):
            return -1

    def _one_look(self, pidfd: int) -> bool:
        """Wait a moment and answer what has come; False when the client is gone."""
        waiting = [self._connection.fileno(), *([] if pidfd < 0 else [pidfd])]
        ready, _, _ = select.select(waiting, [], [], LOOK_AGAIN_S)
        if pidfd in ready:
            return False
        if not ready:
            return True
        try:
            messages = self._line.receive()
        except BadInput as odd:
            self._line.send(told_error(odd))
            return False
        for message in messages or ():
            self._line.send(self._answer(message))
        return messages is not None

    def _answer(self, message: Mapping[str, Any]) -> dict[str, Any]:
        asked = {"knobs": self._knobs, "hold": self._hold, "set": self._set, "read": self._read,
                 "verify": self._verify,
                 "renew": self._renew, "release": self._release}  # fmt: skip
        try:
            answer = asked.get(str(message.get("do")))
            if answer is None:
                raise BadInput(f"the daemon does not know {message.get('do')!r}; it knows {', '.join(asked)}")
            return {"ok": as_plain(answer(message))}
        except WattsmithError as error:
            return told_error(error)
        except (KeyError, TypeError, ValueError, OverflowError) as odd:
            return told_error(BadInput(f"the message {str(message)[:200]} is not understood: {odd!r}"))

    # -- what can be asked

    def _knobs(self, _: Mapping[str, Any]) -> Any:
        return [knob.card for knob in find_knobs(self._sysfs).values()]

    def _hold(self, message: Mapping[str, Any]) -> Any:
        if self._lease is not None:
            raise BadInput("this connection holds a lease already; release it, or connect once more")
        devices = _texts(message["devices"])
        duration_s, shared = float(message["duration_s"]), message.get("shared") is True
        if not 0 < duration_s < math.inf:
            raise BadInput(f"duration_s must be positive, got {duration_s}")
        cards = [knob.card for knob in find_knobs(self._sysfs).values()]
        for device in devices:
            of_device = [card for card in cards if card.device == device]
            self._allow.check_hold(self._peer, device, of_device, duration_s, shared=shared)
        self._lease = Lease.take(
            devices,
            duration_s=duration_s,
            state=self._state,
            sysfs=self._sysfs,
            shared=shared,
            for_pid=self._peer.pid,
        )
        self._say(f"{self._peer.name}, process {self._peer.pid}, holds {', '.join(devices)} for {duration_s:g} s")
        return self._lease.cards

    def _set(self, message: Mapping[str, Any]) -> Any:
        lease, knob, value = self._held(), str(message["knob"]), value_from_plain(message["value"])
        self._allow.check_set(self._peer, lease.card(knob), value)
        return lease.set(knob, value)

    def _read(self, message: Mapping[str, Any]) -> Any:
        return self._held().read(str(message["knob"]))

    def _verify(self, message: Mapping[str, Any]) -> Any:
        return self._held().verify(str(message["knob"]), value_from_plain(message["value"]))

    def _renew(self, message: Mapping[str, Any]) -> Any:
        lease, duration_s = self._held(), float(message["duration_s"])
        for device in {card.device for card in lease.cards}:
            cards = [card for card in lease.cards if card.device == device]
            self._allow.check_hold(self._peer, device, cards, duration_s, shared=False)
        lease.renew(duration_s)

    def _release(self, _: Mapping[str, Any]) -> Any:
        lease, self._lease = self._held(), None
        lease.close()
        self._say(f"{self._peer.name}, process {self._peer.pid}, let go; all is put back")

    def _held(self) -> Lease:
        if self._lease is None:
            raise LeaseOver("this connection holds no lease; ask for one with `hold`")
        return self._lease

    def _put_back(self) -> None:
        if self._lease is None:
            return
        try:
            self._lease.close()
        except KnobLost as gone:
            self._say(f"{self._peer.name}, process {self._peer.pid}, is gone, and: {gone}")
        else:
            self._say(f"{self._peer.name}, process {self._peer.pid}, is gone; all is put back")


def _texts(plain: object) -> Sequence[str]:
    if not isinstance(plain, list) or not all(isinstance(each, str) for each in plain):
        raise BadInput(f"devices must be a list of names, got {plain!r}")
    return plain
