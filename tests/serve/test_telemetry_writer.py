"""Telemetry of many agents, written down together and answered one by one."""

import asyncio
import threading
from dataclasses import dataclass, field

import pytest

from wattsmith.flows.service import Kept
from wattsmith.serve.failing import Failed
from wattsmith.serve.telemetry_writer import Post, TelemetryWriter
from wattsmith.terms.errors import BadTerm, NotWritten
from wattsmith.terms.service import Report, Role, Token

BY = Token(id="t1", name="a", role=Role.AGENT, created_s=0.0)


def post(client, reports=1):
    made = [Report(boot="b", number=number, time_s=0.0) for number in range(1, reports + 1)]
    return Post(client=client, reports=made, by=BY)


@dataclass
class Notebook:
    """Keeps posts in a list; `open` lets it write."""

    open: threading.Event = field(default_factory=threading.Event)
    reached: threading.Event = field(default_factory=threading.Event)
    batches: list = field(default_factory=list)
    refuse: dict = field(default_factory=dict)

    def keep(self, posts):
        self.reached.set()
        assert self.open.wait(10)
        for one in posts:
            if one.client in self.refuse:
                raise self.refuse[one.client]
        self.batches.append([one.client for one in posts])
        return [Kept(accepted=len(one.reports), duplicates=0, serial=None) for one in posts]


def kept_by(notebook, posts, **options):
    """The answers to POSTS: the first is being written when the others are sent."""

    async def main():
        writer = TelemetryWriter(notebook.keep, **options)
        answers = [asyncio.ensure_future(writer.keep(posts[0]))]
        await asyncio.to_thread(notebook.reached.wait, 10)
        answers += [asyncio.ensure_future(writer.keep(one)) for one in posts[1:]]
        await asyncio.sleep(0)
        assert not [one for one in answers if one.done() and one.exception() is None]
        notebook.open.set()
        try:
            return await asyncio.gather(*answers, return_exceptions=True)
        finally:
            await asyncio.to_thread(writer.close)

    return asyncio.run(main())


def test_what_comes_while_one_is_written_is_written_together():
    notebook = Notebook()
    answers = kept_by(notebook, [post(name, reports=2) for name in "abcdef"])
    assert [answer.accepted for answer in answers] == [2] * 6
    assert notebook.batches == [["a"], ["b", "c", "d", "e", "f"]]


def test_nobody_fails_for_what_another_sent():
    notebook = Notebook(refuse={"c": BadTerm("c is wrong")})
    answers = kept_by(notebook, [post(name) for name in "abcd"])
    assert [type(answer) for answer in answers] == [Kept, Kept, BadTerm, Kept]


def test_a_database_that_is_gone_is_told_to_everybody_at_once():
    notebook = Notebook(refuse={"b": NotWritten("gone")})
    answers = kept_by(notebook, [post(name) for name in "abc"])
    assert [type(answer) for answer in answers] == [Kept, NotWritten, NotWritten]


def test_more_than_may_wait_is_sent_away():
    notebook = Notebook()
    answers = kept_by(notebook, [post("a", 6), post("b", 4), post("c", 1)], most_waiting=10)
    assert [type(answer) for answer in answers] == [Kept, Kept, Failed]
    assert answers[2].status == 503


def test_one_large_post_is_taken_when_nothing_waits():
    assert kept_by(Notebook(), [post("a", 20)], most_waiting=10)[0].accepted == 20


def test_closing_writes_down_what_waits():
    async def main():
        notebook = Notebook()
        writer = TelemetryWriter(notebook.keep)
        answers = [asyncio.ensure_future(writer.keep(post(name))) for name in "abc"]
        await asyncio.sleep(0)
        notebook.open.set()
        await asyncio.to_thread(writer.close)
        assert [answer.accepted for answer in await asyncio.gather(*answers)] == [1, 1, 1]
        with pytest.raises(Failed, match="stopping"):
            await writer.keep(post("d"))

    asyncio.run(main())


def test_who_has_hung_up_is_not_waited_for():
    async def main():
        notebook = Notebook()
        writer = TelemetryWriter(notebook.keep)
        gone = asyncio.ensure_future(writer.keep(post("a")))
        await asyncio.sleep(0.05)
        gone.cancel()
        stays = asyncio.ensure_future(writer.keep(post("b")))
        await asyncio.sleep(0.05)
        notebook.open.set()
        assert (await stays).accepted == 1
        await asyncio.to_thread(writer.close)

    asyncio.run(main())
