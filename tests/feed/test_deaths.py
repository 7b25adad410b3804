"""A batch that kills its workers is told from workers that are killed."""

import signal

import pytest

from wattsmith.feed.deaths import Deaths, why_ended
from wattsmith.feed.ledger import Item


def test_three_crashes_at_one_batch_are_proof():
    deaths = Deaths()
    for pid in (7, 8, 9):
        assert deaths.guilty(4) is None
        deaths.at_batch(4, pid, crashed=True)
        deaths.at_batch(5, pid, crashed=True)
    assert deaths.guilty(4) == [7, 8, 9]


def test_three_kills_at_one_batch_and_nowhere_else_are_proof():
    deaths = Deaths()
    for pid in (7, 8, 9):
        deaths.at_batch(4, pid, crashed=False)
    assert deaths.guilty(4) == [7, 8, 9]


def test_in_a_storm_of_kills_a_batch_is_tried_more_often_but_not_for_ever():
    deaths = Deaths()
    for pid in range(19):
        deaths.at_batch(None, 0, crashed=False)
        deaths.at_batch(4, pid, crashed=False)
        assert deaths.guilty(4) is None
    deaths.at_batch(4, 19, crashed=False)
    assert deaths.guilty(4) == list(range(20))


@pytest.mark.parametrize(("starts", "hopeless"), [(19, False), (20, True)])
def test_workers_that_never_get_ready_are_given_up(starts, hopeless):
    deaths = Deaths()
    for _ in range(starts):
        deaths.at_start()
    assert deaths.hopeless() == hopeless
    deaths.ready()
    assert not deaths.hopeless()


def test_the_charge_names_processes_signal_and_samples():
    deaths = Deaths()
    charges = [deaths.judge(Item(3, [6, 7]), pid, -signal.SIGSEGV) for pid in (7, 8, 9)]
    assert charges[:2] == [None, None]
    assert "worker (pid 9) is killed by signal: Segmentation fault" in charges[2]
    assert "(pid(s) 7, 8, 9) exited unexpectedly" in charges[2]
    assert "samples [6, 7]" in charges[2]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (3, "left with exit code 3"),
        (-9, "was ended by SIGKILL (often: the machine ran out of memory)"),
        (None, "does not answer"),
    ],
)
def test_an_exit_code_in_words(code, words):
    assert why_ended(code) == words
