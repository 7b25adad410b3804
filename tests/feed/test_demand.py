"""How many data workers a trainer needs."""

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as some
from tests.feed.demand_simulator import Rule, play

from wattsmith.feed.demand import AGREEING, Bounds, Demand, Seen, Watts, frugal_target, waiting_share
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.feed import plain_target

SEEDS = range(8)

seen_periods = some.builds(
    Seen,
    busy_s=some.one_of(some.none(), some.floats(0.0, 10.0)),
    waiting=some.floats(0.0, 1.0),
    occupied_s=some.one_of(some.none(), some.floats(0.0, 100.0)),
    blocked=some.floats(0.0, 1.0),
    filled=some.floats(0.0, 1.0),
    buffer=some.integers(1, 64),
)


def seen(**changed: float) -> Seen:
    """A trainer that is busy 0.1 s a step, and workers of 0.8 s: eight are needed."""
    return Seen(**{"busy_s": 0.1, "waiting": 0.0, "occupied_s": 0.8, "filled": 1.0} | changed)


def test_a_starved_trainer_gets_what_it_needs_in_one_jump():
    assert Demand().decide(seen(waiting=0.8, filled=0.0), workers=2) == 10  # 1.15 × 8 + 0.5, rounded up


def test_workers_on_their_way_are_counted():
    assert Demand().decide(seen(waiting=0.8, filled=0.0), workers=2, starting=8) == 10


def test_waiting_calls_for_workers_where_the_times_call_for_none():
    demand = Demand()
    demand.decide(seen(), workers=10)
    assert demand.decide(seen(waiting=0.2, filled=0.0), workers=10) == 13  # 10 / (1 - 0.2), rounded up


def test_waiting_alone_at_most_doubles_the_workers():
    demand = Demand()
    demand.decide(seen(), workers=10)
    assert demand.decide(seen(waiting=0.99, filled=0.0), workers=10) == 20


def test_waiting_for_workers_that_came_only_now_calls_for_no_more():
    demand = Demand()
    demand.decide(seen(waiting=0.9, filled=0.0), workers=1)
    assert demand.decide(seen(waiting=0.9, filled=0.0), workers=10) == 10


def test_none_is_added_while_workers_wait_for_a_free_slot():
    assert Demand().decide(seen(waiting=0.5, blocked=0.4, filled=0.0), workers=2) == 2


def test_none_is_added_to_a_full_buffer_while_the_need_is_met():
    assert Demand().decide(seen(), workers=8) == 8


def test_one_goes_after_three_periods_that_agree():
    demand = Demand()
    assert [demand.decide(seen(), workers=16) for _ in range(AGREEING)] == [16, 16, 15]


def test_a_period_that_disagrees_starts_the_count_again():
    demand = Demand()
    half_empty = seen(filled=0.4)
    told = [demand.decide(period, workers=16) for period in (seen(), seen(), half_empty, seen(), seen(), seen())]
    assert told == [16, 16, 16, 16, 16, 15]


def test_none_goes_while_some_are_starting():
    demand = Demand()
    assert [demand.decide(seen(), workers=12, starting=4) for _ in range(9)] == [16] * 9


def test_a_number_that_starved_is_not_tried_again_while_the_need_is_the_same():
    demand = Demand()
    demand.decide(seen(), workers=10)
    assert demand.decide(seen(waiting=0.05, filled=0.2), workers=10) == 11
    assert [demand.decide(seen(), workers=11) for _ in range(9)] == [11] * 9


def test_nothing_measured_yet_changes_nothing():
    assert Demand().decide(Seen(busy_s=None, waiting=1.0, occupied_s=None), workers=3, starting=1) == 4


def test_a_trainer_for_whom_nothing_came_in_a_whole_period_gets_twice_as_many():
    nothing = Seen(busy_s=None, waiting=1.0, occupied_s=None)
    assert Demand().decide(nothing, workers=3) == 6
    assert Demand(Bounds(most=4)).decide(nothing, workers=3) == 4
    assert Demand().decide(Seen(busy_s=None, waiting=1.0, occupied_s=None, blocked=0.5), workers=3) == 3


def test_a_trainer_that_is_never_busy_gets_all_there_is():
    assert Demand(Bounds(cores=16)).decide(seen(busy_s=0.0, waiting=1.0, filled=0.0), workers=1) == 16


def test_a_trainer_that_is_never_busy_needs_a_limit():
    with pytest.raises(BadTerm, match="set `most` or `cores`"):
        Demand().decide(seen(busy_s=0.0, waiting=1.0, filled=0.0), workers=1)


@pytest.mark.parametrize("wrong", [{"least": 0}, {"most": 0}, {"cores": -1}, {"least": 3, "most": 2}, {"most": 2.5}])
def test_settings_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadTerm):
        Bounds(**wrong)


@pytest.mark.parametrize("wrong", [{"waiting": 1.1}, {"busy_s": -1.0}, {"blocked": math.nan}, {"buffer": 0}])
def test_facts_that_make_no_sense_are_refused(wrong):
    with pytest.raises(BadTerm):
        seen(**wrong)


def test_power_that_makes_no_sense_is_refused():
    with pytest.raises(BadTerm, match="worker_w"):
        Watts(idle_w=70.0, worker_w=0.0)


@given(periods=some.lists(seen_periods, max_size=20), workers=some.integers(0, 40), starting=some.integers(0, 9))
def test_the_bounds_hold_whatever_is_seen(periods, workers, starting):
    demand = Demand(Bounds(least=2, most=12, cores=16))
    assert all(2 <= demand.decide(period, workers, starting) <= 12 for period in periods)


@given(periods=some.lists(seen_periods, max_size=20), workers=some.integers(1, 32))
def test_what_is_decided_goes_down_by_one_at_a_time(periods, workers):
    demand = Demand(Bounds(most=32))
    for period in periods:
        decided = demand.decide(period, workers)
        assert decided >= workers - 1
        workers = decided


@given(need=some.floats(0.1, 100.0), buffer=some.integers(1, 64), workers=some.integers(1, 200))
def test_a_further_worker_never_makes_a_trainer_wait_longer(need, buffer, workers):
    assert waiting_share(workers + 1, need, buffer) <= waiting_share(workers, need, buffer) + 1e-12


@given(need=some.floats(0.1, 100.0), buffer=some.integers(1, 64), workers=some.integers(1, 200))
def test_waiting_is_at_least_what_the_rates_force(need, buffer, workers):
    assert waiting_share(workers, need, buffer) >= max(0.0, 1 - workers / need) - 1e-9


@given(need=some.floats(0.5, 100.0), buffer=some.integers(1, 64))
def test_energy_trims_the_headroom_and_nothing_else(need, buffer):
    target = frugal_target(need, buffer, Watts(idle_w=80.0, worker_w=6.0))
    assert need <= target <= plain_target(need)


def test_dear_waiting_keeps_the_headroom_and_dear_workers_lose_it():
    assert frugal_target(8.0, 8, Watts(idle_w=5000.0, worker_w=1.0)) == 10
    assert frugal_target(8.0, 8, Watts(idle_w=1.0, worker_w=500.0)) == 8


# In the simulator


def our_rule(watts: Watts | None = None) -> Rule:
    return Demand(Bounds(most=64), watts).decide


def rate_rule() -> Rule:
    """As many as the rates say, and no more: what one service prints as a metric."""
    return lambda seen, workers, starting: workers + starting if seen.need is None else max(1, math.ceil(seen.need))


def climbing_rule() -> Rule:
    """One more while a step gets 7 % shorter, one fewer while it gets less than 3 % longer."""
    steps_s: list[float] = []
    direction = 1

    def decide(seen: Seen, workers: int, starting: int) -> int:
        nonlocal direction
        if starting or seen.busy_s is None:
            return workers + starting
        steps_s.append(seen.busy_s / max(1e-3, 1 - seen.waiting))
        if len(steps_s) >= 2:
            gain = 1 - steps_s[-1] / steps_s[-2]
            if direction > 0 and gain < 0.07:
                direction = -1
            elif direction < 0 and gain < -0.03:
                direction = 1
        return max(1, workers + direction)

    return decide


def played(make_rule, **changed):
    return [play(make_rule(), seed, **changed) for seed in SEEDS]


def test_a_simulated_trainer_hardly_starves_and_few_workers_are_kept_for_nothing():
    outcomes = played(our_rule)
    assert statistics.mean(one.starved for one in outcomes) < 0.01
    assert statistics.mean(one.worker_s for one in outcomes) < 1.4
    assert max(one.most_after for one in outcomes) <= 1.75 * 16
    assert max(one.reached_s for one in outcomes) <= 20.0


def test_the_number_of_workers_comes_to_rest():
    assert max(one.turns for one in played(our_rule)) <= 4


def test_an_unchanged_need_is_left_alone():
    outcomes = played(our_rule, needs=(4, 4), workers=5)
    assert max(one.starved for one in outcomes) < 0.01
    assert max(one.turns for one in outcomes) <= 5


def test_it_starves_a_trainer_less_than_the_rates_alone_or_a_climb():
    ours, rates, climb = (
        statistics.mean(one.starved for one in played(rule)) for rule in (our_rule, rate_rule, climbing_rule)
    )
    assert ours < rates / 2 < climb / 2


def test_with_watts_fewer_workers_are_kept_and_a_trainer_starves_little():
    plain, frugal = played(our_rule), played(lambda: our_rule(Watts(idle_w=80.0, worker_w=6.0)))
    assert statistics.mean(one.worker_s for one in frugal) < statistics.mean(one.worker_s for one in plain)
    assert statistics.mean(one.starved for one in frugal) < 0.02
