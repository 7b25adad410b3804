"""A process on the trainer's machine that stands for one worker elsewhere.

The trainer sees a worker like any other. What the real one sends is received straight into the trainer's slot, in a
process of its own, so that the trainer's interpreter is not stopped while megabytes arrive. When the connection is
lost the process ends, as a worker that was killed would.
"""

import collections
import contextlib
import os
import pickle
import queue
import select
import signal
import socket
import threading
import time
from typing import Any, NamedTuple

from wattsmith.feed.deaths import LOST
from wattsmith.feed.link import Gone, WorkerEnd
from wattsmith.feed.messages import Begun, Ended, Failed, Grant, Made, Need, Place, Stop, Task
from wattsmith.feed.packing import room_for
from wattsmith.feed.remote_address import stay_awake
from wattsmith.feed.remote_greeting import GREETING_S, TokenRefused, admit, refuse, welcome
from wattsmith.feed.remote_worker import NEWS, ORDER, RECIPE, facts_here
from wattsmith.feed.slots import Notes, Room, Stock
from wattsmith.feed.wire import Channel, FrameRefused, Head, PeerLost
from wattsmith.feed.worker import INLINE_BYTES, Post, die_with

MUST_MATCH = ("wattsmith", "python")
_LOOK_S = 0.5


class Ticket(NamedTuple):
    """What a relay needs to take a worker in."""

    listener: socket.socket
    token: str
    recipe: bytes  # pickled
    body_bytes: int  # the longest batch that is taken


def run_relay(end: socket.socket, ticket: Ticket, post: Post) -> None:
    """The life of a relay process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the trainer decides
    code = LOST
    try:
        die_with(post.trainer)
        room = Room.receive(end)
        channel, about = _take_in(end, ticket, post, Notes(room))
        Relay(WorkerEnd(end), room, channel, post.key, about).run()
        code = 0
    except (Gone, EOFError):
        code = 0  # the trainer has gone
    except (PeerLost, FrameRefused):
        pass
    finally:
        os._exit(code)  # the other thread may be waiting for the trainer


def _take_in(end: socket.socket, ticket: Ticket, post: Post, notes: Notes) -> tuple[Channel, dict[str, Any]]:
    """The first worker that proves the token and fits. Raises Gone when the trainer is not there any more."""
    waiting = select.poll()
    waiting.register(ticket.listener, select.POLLIN)
    waiting.register(end, select.POLLRDHUP)
    ticket.listener.setblocking(False)  # another relay may be quicker
    while True:
        for descriptor, _ in waiting.poll(_LOOK_S * 1000):
            if descriptor == end.fileno():
                raise Gone
        if notes.stopped:
            raise Gone
        try:
            connection, _ = ticket.listener.accept()
        except OSError:  # taken by another relay, or gone again
            continue
        stay_awake(connection)
        channel = Channel(connection, stall_s=GREETING_S)
        try:
            return channel, _admit(channel, ticket, post)
        except (TokenRefused, FrameRefused, PeerLost):
            channel.close()


def _admit(channel: Channel, ticket: Ticket, post: Post) -> dict[str, Any]:
    about = dict(admit(channel, ticket.token, ticket.body_bytes))
    here = facts_here()
    for name in MUST_MATCH:
        if about.get(name) != here[name]:
            why = f"this job runs {name} {here[name]}, the worker {about.get(name)}; install the same on both"
            refuse(channel, why)
            raise TokenRefused(why)
    welcome(channel, {"key": post.key, "seat": post.seat, "seats": post.seats, "base_seed": post.base_seed, **here})
    channel.send(RECIPE, b"", [ticket.recipe])
    return about


class Relay:
    """Orders go out in one thread, news come in in the other."""

    def __init__(self, link: WorkerEnd, room: Room, channel: Channel, key: int, about: dict[str, Any]) -> None:
        self._link = link
        self._room = room
        self._notes = Notes(room)
        self._channel = channel
        self._key = key
        self._about = about
        self._stock = Stock()
        self._given: collections.deque[int] = collections.deque()  # serials that the worker has, the oldest first
        self._grants: queue.SimpleQueue[Grant] = queue.SimpleQueue()
        self._stopping = False

    def run(self) -> None:
        threading.Thread(target=self._send_orders, daemon=True).start()
        while True:
            try:
                head = self._channel.receive()
            except PeerLost:
                if self._stopping:
                    return
                raise
            assert head is not None
            if head.kind != NEWS:
                raise FrameRefused(f"news were due, got kind {head.kind}")
            self._pass_on(head)

    def _send_orders(self) -> None:
        try:
            while True:
                order = self._link.receive()
                if isinstance(order, Grant):
                    self._grants.put(order)
                    continue
                if isinstance(order, Task):
                    if order.place is not None:
                        self._stock.add(order.place)
                    self._given.append(order.serial)
                    self._note()
                    order = order._replace(place=None)
                self._stopping = self._stopping or isinstance(order, Stop)
                self._channel.send(ORDER, pickle.dumps(order, protocol=5))
        except (Gone, OSError):
            os._exit(0)
        except PeerLost:
            os._exit(0 if self._stopping else LOST)

    def _pass_on(self, head: Head) -> None:
        news = pickle.loads(head.message)  # the worker has proved the token
        if isinstance(news, Made):
            self._pass_batch(head, news)
        else:
            if head.body_bytes:
                raise FrameRefused(f"{type(news).__name__} has no body, got {head.body_bytes} bytes")
            if isinstance(news, Begun):
                news = news._replace(about=self._about)
            elif isinstance(news, Ended | Failed):
                news = news._replace(offset=self._stock.spare())
            self._link.send(news)
        self._done(getattr(news, "serial", None))

    def _pass_batch(self, head: Head, made: Made) -> None:
        if head.body_bytes != room_for(made.sizes):
            raise FrameRefused(f"a batch of {room_for(made.sizes)} bytes was due, got {head.body_bytes}")
        began_s, blocked_s, place = time.perf_counter(), 0.0, None
        if head.body_bytes > INLINE_BYTES:
            place = self._stock.take(head.body_bytes)
            if place is None:
                place = self._ask_for_room(head.body_bytes)
                blocked_s = time.perf_counter() - began_s
        if place is None:
            body = self._channel.take_body(head)
            self._link.send(made._replace(offset=self._stock.spare()), [memoryview(body)] if body else None)
            return
        self._channel.receive_body(head, self._room.view(place[0], head.body_bytes))
        made_s, blocked_s = made.made_s + time.perf_counter() - began_s, made.blocked_s + blocked_s
        self._link.send(made._replace(offset=place[0], placed=True, made_s=made_s, blocked_s=blocked_s))

    def _ask_for_room(self, size_bytes: int) -> Place | None:
        """A place of SIZE_BYTES; None: there is none, and the batch is to follow its message."""
        while True:
            self._link.send(Need(size_bytes, self._stock.empty()))
            grant = self._grants.get()
            if not grant.again:
                return grant.place

    def _done(self, serial: int | None) -> None:
        if serial is None:
            return
        with contextlib.suppress(ValueError):
            self._given.remove(serial)
        self._note()

    def _note(self) -> None:
        """Workers take tasks in the order in which they got them: the oldest is the one that is begun."""
        try:
            self._notes.begin(self._key, self._given[0])
        except IndexError:
            self._notes.begin(self._key, 0)
