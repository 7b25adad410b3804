"""A worker on another machine: connects to a trainer's feeder, proves the token, makes batches and sends them."""

import os
import pickle
import platform
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from wattsmith import __version__
from wattsmith.feed.link import Gone
from wattsmith.feed.remote_address import Address, connect, parse_address
from wattsmith.feed.remote_greeting import greet
from wattsmith.feed.wire import Channel, FrameRefused, PeerLost
from wattsmith.feed.worker import Post, Worker, keep_memory, wrapped
from wattsmith.terms.errors import BadTerm

ORDER, NEWS, RECIPE = 10, 11, 12  # kinds of frames, once both ends are sure of each other
CONNECT_S = 5.0
PATIENCE_S = 60.0  # how long a worker looks for a trainer that is not there
AGAIN_S = 0.2


class NoTrainer(PeerLost):
    """Nobody listens at the address; start the trainer, or correct the address."""


def facts_here() -> dict[str, Any]:
    """What both ends tell of themselves."""
    import torch

    return {
        "wattsmith": __version__,
        "python": ".".join(platform.python_version_tuple()[:2]),
        "torch": torch.__version__.partition("+")[0],
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }


class WireEnd:
    """A worker's end of the link to a trainer that is elsewhere."""

    def __init__(self, channel: Channel, about: Mapping[str, Any]) -> None:
        self._channel = channel
        self.about = about

    def receive(self) -> Any:
        try:
            head = self._channel.receive()
        except PeerLost as lost:
            raise Gone from lost
        if head is None or head.kind != ORDER:
            raise FrameRefused(f"an order was due, got {head}")
        return pickle.loads(head.message)  # the trainer has proved the token

    def arrived(self) -> list[Any]:
        return []

    def send(self, message: Any, payload: list[memoryview] | None = None) -> None:
        try:
            self._channel.send(NEWS, pickle.dumps(message, protocol=5), payload or ())
        except PeerLost as lost:
            raise Gone from lost


def work_for(
    address: str,
    token: str,
    *,
    patience_s: float = PATIENCE_S,
    once: bool = False,
    say: Callable[[str], None] | None = None,
) -> int:
    """Make batches for the feeder at ADDRESS until it is gone for PATIENCE_S, or, ONCE, until it needs no more.

    A lost connection is made anew. Gives the number of connections that were of use. Raises NoTrainer where there
    never was one, and TokenRefused at once.
    """
    if patience_s < 0:
        raise BadTerm(f"patience_s must not be negative, got {patience_s}")
    where, tell, served = parse_address(address), say or (lambda _: None), 0
    while True:
        channel = _reach(where, patience_s)
        if channel is None:
            if served:
                return served
            raise NoTrainer(
                f"nobody listened at {where} for {patience_s:g} s; start the trainer or correct the address"
            )
        try:
            tell(f"connected to {where}; waiting for a place")
            worker = _join(channel, token, tell)
            served += 1
            worker.run()
            if once:
                return served
        except Gone:
            tell("the trainer has closed the connection; connecting again")
            time.sleep(AGAIN_S)
        except PeerLost as lost:
            tell(f"{lost}; connecting again")
            time.sleep(AGAIN_S)
        finally:
            channel.close()


def _reach(where: Address, patience_s: float) -> Channel | None:
    until_s = time.monotonic() + patience_s
    while True:
        try:
            return Channel(connect(where, CONNECT_S))
        except OSError:
            if time.monotonic() >= until_s:
                return None
            time.sleep(AGAIN_S)


def _join(channel: Channel, token: str, tell: Callable[[str], None]) -> Worker:
    """A worker with a place at the trainer."""
    facts = facts_here()
    told = greet(channel, token, facts)
    head = channel.receive()
    if head is None or head.kind != RECIPE:
        raise FrameRefused(f"a recipe was due, got {head}")
    pickled = channel.take_body(head)
    post = Post(int(told["key"]), int(told["seat"]), int(told["seats"]), int(told["base_seed"]), None)
    tell(f"seat {post.seat} of {post.seats}")
    end, recipe, failed = WireEnd(channel, facts), None, None
    try:
        recipe = pickle.loads(pickled)
    except Exception:  # noqa: BLE001 - the user's code; it goes to the trainer, who knows what it sent
        failed = wrapped(
            f"in a data worker on {facts['host']}, which could not load the dataset: what it is made of must be in "
            "modules that the worker's machine has too"
        )
    import torch

    torch.set_num_threads(1)  # some float results depend on the number of threads
    keep_memory()
    return Worker(end, None, recipe, post, failed=failed)
