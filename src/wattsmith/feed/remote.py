"""Workers from elsewhere: those that come by themselves, and those that an engine places and starts.

A yard gives a ticket for each seat of a feeder; a relay process takes one worker in with it.
"""

import contextlib
import importlib.util
import os
import pickle
import socket
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol

from wattsmith.feed.making import Recipe
from wattsmith.feed.remote_address import Address, listen, parse_address
from wattsmith.feed.remote_greeting import checked_token, new_token, read_token, write_token
from wattsmith.feed.remote_relay import Ticket
from wattsmith.feed.remote_worker import work_for
from wattsmith.terms.engines import WorkerEngine
from wattsmith.terms.errors import BadInput, ExtraNeeded

ENGINES = "wattsmith.engines"  # group of entry points
LOCAL = "local"


class Yard(Protocol):
    """Where the workers of a feeder come from, if not from this machine's processes."""

    def ticket(self, key: int) -> Ticket:
        """For a relay that is about to start, for the worker with this KEY."""

    def release(self, key: int) -> None:
        """The worker with this KEY has gone, or is to go."""

    def close(self) -> None:
        """No worker is needed any more."""


class OpenYard:
    """Workers come by themselves, to one address: `wattsmith feed worker --connect ADDRESS --token-file FILE`."""

    def __init__(self, recipe: Recipe, body_bytes: int, address: str, token: str) -> None:
        token = checked_token(token, "token")
        self._listener, self.address = listen(parse_address(address))
        self._ticket = Ticket(self._listener, token, pickled_recipe(recipe), body_bytes)

    def ticket(self, key: int) -> Ticket:  # noqa: ARG002 - all workers come in by one door
        return self._ticket

    def release(self, key: int) -> None:
        pass  # the worker goes back to the door by itself

    def close(self) -> None:
        self._listener.close()
        if self.address.path is not None:
            with contextlib.suppress(OSError):
                Path(self.address.path).unlink()


class EngineYard:
    """Each seat has a door of its own, and an engine starts a worker that comes in by it."""

    def __init__(self, recipe: Recipe, body_bytes: int, engine: WorkerEngine) -> None:
        self._engine = engine
        self._recipe = pickled_recipe(recipe)
        self._body_bytes = body_bytes
        self._token = new_token()
        self._doors: dict[int, tuple[socket.socket, Any]] = {}

    def ticket(self, key: int) -> Ticket:
        listener, address = listen(Address(self._engine.host(), 0))
        handle = self._engine.start(work_once, str(address), self._token)
        self._doors[key] = (listener, handle)
        return Ticket(listener, self._token, self._recipe, self._body_bytes)

    def release(self, key: int) -> None:
        listener, handle = self._doors.pop(key)
        listener.close()
        self._engine.stop(handle)

    def close(self) -> None:
        for key in list(self._doors):
            self.release(key)


@dataclass(frozen=True, slots=True, kw_only=True)
class Elsewhere:
    """Where a feeder's workers are to come from: an engine, those who come by themselves, or, if neither, here."""

    engine: str | WorkerEngine = LOCAL
    listen: str | None = None
    token_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        if self.listen is not None:
            parse_address(self.listen)
            if self.engine != LOCAL:
                raise BadInput(f"workers come by themselves (listen) or from an engine ({self.engine!r}), not both")
            if self.token_file is None:
                raise BadInput("listen needs token_file: workers must hold its token; it is made where there is none")

    @property
    def here(self) -> bool:
        return self.engine == LOCAL and self.listen is None

    def yard(self, recipe: Recipe, body_bytes: int) -> Yard | None:
        if self.listen is not None and self.token_file is not None:
            return OpenYard(recipe, body_bytes, self.listen, token_in(Path(self.token_file)))
        if self.here:
            return None
        engine = engine_named(self.engine) if isinstance(self.engine, str) else self.engine
        return EngineYard(recipe, body_bytes, engine)


def work_once(address: str, token: str) -> None:
    """What an engine lets a worker do."""
    work_for(address, token, once=True, patience_s=10.0)


def pickled_recipe(recipe: Recipe) -> bytes:
    """RECIPE for another machine. What is defined in the main script goes by value where cloudpickle is installed."""
    known = "ray.cloudpickle" if "ray" in sys.modules else "cloudpickle"
    by_value = importlib.util.find_spec(known) is not None
    dumps = importlib.import_module(known).dumps if by_value else pickle.dumps
    try:
        return bytes(dumps(recipe))
    except (pickle.PicklingError, TypeError, AttributeError) as unpicklable:
        raise BadInput(
            f"the dataset cannot be sent to workers on other machines: {unpicklable}. Define what it uses at the top "
            "level of a module, and open files and connections when the first sample is read."
        ) from unpicklable


def engine_named(name: str) -> WorkerEngine:
    """The engine that an installed package offers under NAME. Raises ExtraNeeded, or BadInput where there is none."""
    offered = {point.name: point for point in metadata.entry_points(group=ENGINES)}
    if name not in offered:
        known = ", ".join(sorted({LOCAL, *offered}))
        raise BadInput(f"there is no engine {name!r}; there are: {known}")
    try:
        engine: WorkerEngine = offered[name].load()()
    except ModuleNotFoundError as missing:
        raise ExtraNeeded(f"engine {name!r} needs a package that is not installed: {missing}") from missing
    return engine


def token_in(path: Path) -> str:
    """The token in the file at PATH; a new one is written where there is none."""
    if not path.exists():
        write_token(path, new_token())
    return read_token(path)


def mixed(fleet: Iterable[Mapping[str, Any]]) -> str | None:
    """What differs among workers so that float results may differ in their last bits; None: nothing that is known."""
    abouts = list(fleet)
    for name, title in (("cpu", "CPU capability"), ("torch", "version of torch")):
        kinds = sorted({str(about[name]) for about in abouts if about.get(name)})
        if len(kinds) > 1:
            return (
                f"data workers differ in their {title}: {', '.join(kinds)}. Float operators before the cut may give "
                "other last bits on each, so a batch that is made again may not be the same. Cut where tensors are "
                "still whole numbers, or use workers of one kind."
            )
    return None
