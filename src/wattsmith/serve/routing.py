"""Each route states who may call it, what it takes, what it gives and how it can fail; nothing is served without."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from wattsmith.terms.service import Role

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
PREFIX = "/api/v1"

# What any route can answer with, whoever asks: see access.py and guards.py.
ALWAYS = (400, 429)
WITH_TOKEN = (401, 403)
WITH_BODY = (408, 413, 415, 422)


class Access(StrEnum):
    """Who may call a route."""

    OPEN = "open"  # anybody
    ANY = "any"  # who bears any token that holds
    READ = "read"
    SUBMIT = "submit"
    ADMIN = "admin"
    AGENT = "agent"  # the agent of the client that the path names

    @property
    def roles(self) -> frozenset[Role]:
        """The roles whose bearers are let in."""
        return _ROLES[self]


_ROLES = {
    Access.OPEN: frozenset(Role),
    Access.ANY: frozenset(Role),
    Access.READ: frozenset({Role.READ, Role.SUBMIT, Role.ADMIN}),
    Access.SUBMIT: frozenset({Role.SUBMIT, Role.ADMIN}),
    Access.ADMIN: frozenset({Role.ADMIN}),
    Access.AGENT: frozenset({Role.AGENT, Role.ADMIN}),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plate:
    """What stands on the door of a route."""

    method: str
    path: str  # with the prefix
    access: Access
    says: str  # in a few words
    takes: Any = None  # kind of the body; None: it has none
    gives: Any = None  # kind of the answer; None: an empty one, or see `media`
    media: str = "application/json"
    status: int = 200
    also: tuple[int, ...] = ()  # other statuses that are no errors, without a body
    fails: tuple[int, ...] = ()  # beside those that every route of its kind can answer with
    headers: tuple[str, ...] = ()  # of the answer, beside the usual ones

    @property
    def errors(self) -> tuple[int, ...]:
        """Every status of an error that can come."""
        found = {*ALWAYS, *self.fails, 503}
        found |= set() if self.access is Access.OPEN else {*WITH_TOKEN}
        found |= set() if self.takes is None else {*WITH_BODY}
        return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class Routes:
    """The routes of one subject, in the order in which they are tried."""

    subject: str
    doors: list[tuple[Plate, Callable[..., Any]]] = field(default_factory=list)

    def door(
        self, method: str, path: str, access: Access, says: str, *, prefix: str = PREFIX, **more: Any
    ) -> Callable[[Endpoint], Endpoint]:
        """Puts the function below behind METHOD PATH."""

        def put(function: Endpoint) -> Endpoint:
            plate = Plate(method=method, path=prefix + path, access=access, says=says, **more)
            function.plate = plate  # type: ignore[attr-defined]  # found again by access.bearer
            self.doors.append((plate, function))
            return function

        return put
