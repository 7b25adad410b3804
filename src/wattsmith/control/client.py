"""A lease from the daemon, for a process that may not turn knobs itself."""

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from wattsmith.control.wire import Line, as_error, card_from_plain, verified_from_plain
from wattsmith.terms.control import KnobCard, LeaseOver, Value, Verified, value_from_plain
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.facts import as_plain

ANSWERS_WITHIN_S = 60.0


class DaemonLease:
    """Some devices, held through the daemon. Put back when closed, and when this process ends in whatever way."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._line = Line(connection)
        self._cards: dict[str, KnobCard] = {}
        self._closed = False

    @classmethod
    def take(cls, devices: Sequence[str], *, socket_path: Path, duration_s: float, shared: bool = False) -> Self:
        """Hold DEVICES. Raises LeaseOver when no daemon answers, NotPermitted, DeviceHeld."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(ANSWERS_WITHIN_S)
        try:
            connection.connect(str(socket_path))
        except OSError as absent:
            connection.close()
            raise LeaseOver(
                f"no daemon answers at {socket_path} ({absent.strerror or absent}). Start one as root: "
                f"`wattsmith control serve --socket {socket_path} --allow FILE`."
            ) from absent
        lease = cls(connection)
        try:
            told = lease._ask(do="hold", devices=list(devices), duration_s=duration_s, shared=shared)
        except BaseException:
            connection.close()
            raise
        lease._cards = {card.name: card for card in map(card_from_plain, told)}
        return lease

    @property
    def cards(self) -> list[KnobCard]:
        return list(self._cards.values())

    def card(self, knob: str) -> KnobCard:
        if knob not in self._cards:
            raise BadTerm(f"this lease has no knob {knob!r}; it has {', '.join(self._cards)}")
        return self._cards[knob]

    def read(self, knob: str) -> Value:
        return value_from_plain(self._ask(do="read", knob=knob))

    def set(self, knob: str, value: Value) -> Verified:
        return verified_from_plain(self._ask(do="set", knob=knob, value=as_plain(value)))

    def verify(self, knob: str, value: Value) -> Verified:
        return verified_from_plain(self._ask(do="verify", knob=knob, value=as_plain(value)))

    def renew(self, duration_s: float) -> None:
        self._ask(do="renew", duration_s=duration_s)

    def close(self) -> None:
        """Have everything put back. A daemon that is gone needs no asking: its watchdog does it."""
        if self._closed:
            return
        try:
            self._ask(do="release")
        except LeaseOver:
            pass
        finally:
            self._closed = True
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **message: Any) -> Any:
        if self._closed:
            raise LeaseOver("this lease was given back")
        try:
            self._line.send(message)
            while not (answers := self._line.receive()):
                if answers is None:
                    raise LeaseOver("the daemon has closed the connection; settings are back, or come back presently")
        except OSError as gone:
            raise LeaseOver(
                f"the daemon does not answer ({gone}); where it was killed, its watchdog puts settings back"
            ) from gone
        if "error" in answers[0]:
            raise as_error(answers[0])
        return answers[0]["ok"]
