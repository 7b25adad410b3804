"""With num_workers="auto" the number of workers follows the trainer, and the stream does not notice."""

import pytest
from tests.feed.sets import Chancy, Plain, Shards, Slow, all_gone, digest

from wattsmith import Feeder
from wattsmith.feed import elastic
from wattsmith.feed.elastic import Elastic
from wattsmith.feed.reporting import Counts


class Hands:
    """Stands for an engine: remembers what it was told."""

    def __init__(self, workers):
        self.workers, self.starting, self.filled, self.told = [None] * workers, 0, 0.0, []

    def resize(self, workers):
        self.told.append(workers)
        self.workers = [None] * workers


def counts_of(batches, waiting_s, made_s):
    return Counts(waiting_s=waiting_s, batches=batches, made_s=made_s, made=batches)


@pytest.fixture
def at_s(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(elastic.time, "perf_counter", lambda: now[0])
    return now


def test_a_trainer_that_waits_most_of_the_time_gets_workers_at_once(at_s):
    hands, rule = Hands(1), Elastic(16)
    rule.tick(hands, counts_of(0, 0.0, 0.0))
    at_s[0] = 2.0
    rule.tick(hands, counts_of(10, 1.0, 4.0))  # 0.1 s busy for each batch, which takes a worker 0.4 s: 4 are needed
    assert hands.told == [6]  # ⌈1.15 × 4 + 0.5⌉


def test_a_wait_that_is_under_way_counts_as_waiting(at_s):
    hands, rule, counts = Hands(2), Elastic(16), Counts()
    counts.begin_wait(0.0)
    rule.tick(hands, counts)
    at_s[0] = 2.0
    rule.tick(hands, counts)
    assert hands.told == [4]  # nothing has come: twice as many


def test_workers_are_added_while_the_first_batch_is_being_made():
    feeder = Feeder(Slow(4, 2.0), 1, num_workers="auto", max_workers=4)
    batches = iter(feeder)
    next(batches)
    assert feeder.report().workers == min(4, 2 * Elastic(4).first)
    feeder.close()


def test_with_an_expected_step_the_first_batch_says_how_many_are_needed(at_s):
    hands, rule, counts = Hands(1), Elastic(16, step_s=0.1), Counts()
    counts.begin_wait(0.0)
    rule.tick(hands, counts)
    at_s[0] = 0.4
    counts.end_wait(0.4)
    counts.add_made(0.4, 0.0, 100)
    counts.batches = 1
    rule.tick(hands, counts)
    assert hands.told == [6]  # 0.4 s for a batch of which one is used up in 0.1 s: ⌈1.15 × 4 + 0.5⌉


def test_once_steps_were_measured_what_was_expected_is_forgotten(at_s):
    hands, rule = Hands(1), Elastic(16, step_s=10.0)
    rule.tick(hands, counts_of(0, 0.0, 0.0))
    at_s[0] = 2.0
    rule.tick(hands, counts_of(10, 1.0, 4.0))
    at_s[0] = 8.0
    rule.tick(hands, counts_of(20, 6.0, 8.0))  # 0.1 s busy for each batch, which takes a worker 0.4 s
    assert hands.told == [6]


def test_within_a_period_nothing_is_decided(at_s):
    hands, rule = Hands(1), Elastic(16)
    rule.tick(hands, counts_of(0, 0.0, 0.0))
    at_s[0] = 0.5
    rule.tick(hands, counts_of(10, 0.4, 4.0))
    assert hands.told == []


@pytest.mark.parametrize("dataset", [Chancy(60, side=8), Shards(60)], ids=["map-style", "iterable"])
def test_the_stream_is_the_same_while_workers_come_and_go(dataset):
    def run(steps):
        feeder = Feeder(dataset, 2, num_workers="auto", max_workers=3, seed=1)
        for number, batch in enumerate(feeder):
            if number in steps:
                feeder.resize(steps[number])
            yield batch

    assert digest(run({5: 3, 12: 1, 18: 2})) == digest(run({}))


def test_workers_of_auto_stay_between_epochs_and_go_with_the_feeder():
    feeder = Feeder(Plain(10), num_workers="auto", max_workers=2)
    list(feeder)
    pids = [worker.pid for worker in feeder._engine().workers]
    list(feeder)
    assert [worker.pid for worker in feeder._engine().workers] == pids
    del feeder
    assert all_gone(pids)
