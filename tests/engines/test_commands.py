"""Data workers that a command starts."""

import sys

import pytest
from tests.feed.numbered import Numbered, stream_of

from wattsmith import Feeder
from wattsmith.engines.commands import CommandEngine
from wattsmith.terms.errors import BadTerm, CommandNotStarted


def test_workers_started_by_a_command_deliver_the_same_stream_and_leave():
    engine = CommandEngine()
    started = []

    class Watched:
        host, stop = engine.host, engine.stop

        def start(self, *what):
            started.append(engine.start(*what))
            return started[-1]

    dataset = Numbered(40, large=True)
    fed = Feeder(dataset, batch_size=4, shuffle=True, seed=2, num_workers=1, engine=Watched())
    assert stream_of(fed) == stream_of(Feeder(dataset, batch_size=4, shuffle=True, seed=2))
    fed.close()
    assert [process.poll() is not None for process in started] == [True]


def test_a_command_that_is_not_there_says_so():
    with pytest.raises(CommandNotStarted, match="no-such-command cannot be started"):
        CommandEngine(["no-such-command"]).start(print, "127.0.0.1:1", "token")


def test_an_empty_command_is_refused():
    with pytest.raises(BadTerm):
        CommandEngine([])


def test_a_worker_that_does_not_listen_is_killed():
    engine = CommandEngine([sys.executable, "-c", "import time; time.sleep(60)"])
    process = engine.start(print, "127.0.0.1:1", "a token")
    engine.stop(process)
    assert process.poll() is not None
