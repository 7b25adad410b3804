"""A load, served in earnest and by arithmetic."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.terms.errors import BadInput
from wattsmith.tune.load import Served, poisson, poisson_of, replayed, steady
from wattsmith.tune.serving import Policy, foreseen, serve, serve_clients


def test_percentiles_are_values_that_were_measured():
    served = Served(latencies_s=(4.0, 1.0, 3.0, 2.0), arrived=5, duration_s=1.0, energy_j=8.0)
    assert served.percentile_s(0.5) == 2.0
    assert served.percentile_s(0.99) == 4.0
    assert served.over(2.5) == pytest.approx(3 / 5)  # two late, and one never answered
    assert served.energy_per_query_j == 2.0


def test_nothing_answered_is_late_without_end():
    assert Served(latencies_s=(), arrived=3, duration_s=1.0).percentile_s(0.99) == float("inf")


def test_poisson_arrivals_come_at_the_rate_asked_for_and_the_same_for_the_same_seed():
    arrivals = poisson(100.0, 50.0, seed=1)
    assert len(arrivals) == pytest.approx(5000, rel=0.05)
    assert arrivals == poisson(100.0, 50.0, seed=1)
    assert arrivals == sorted(arrivals)


def test_a_trace_is_replayed_from_its_first_arrival():
    assert replayed([10.0, 11.0, 13.0], faster=2.0) == [0.0, 0.5, 1.5]
    with pytest.raises(BadInput, match="in order"):
        replayed([2.0, 1.0])
    with pytest.raises(BadInput, match="without arrivals"):
        replayed([])


def test_one_server_takes_one_after_the_other():
    came = foreseen([0.0, 0.0, 0.0], lambda _: 1.0, Policy())
    assert came.latencies_s == (1.0, 2.0, 3.0)


def test_what_waits_is_taken_together():
    came = foreseen([0.0, 0.5, 0.6], lambda _: 1.0, Policy(batch=4))
    assert came.latencies_s == (1.0, 1.5, 1.4)  # the two that came meanwhile are answered together, at 2.0


def test_a_server_waits_for_a_batch_no_longer_than_it_may():
    came = foreseen([0.0, 0.3, 2.0], lambda _: 1.0, Policy(batch=2, wait_s=0.5))
    assert came.latencies_s == (1.3, 1.0, 1.5)  # full at 0.3; the third waits half a second for nobody


def test_two_servers_work_side_by_side():
    came = foreseen([0.0, 0.0], lambda _: 1.0, Policy(concurrency=2))
    assert came.latencies_s == (1.0, 1.0)


def test_batches_begin_no_faster_than_the_pace():
    came = foreseen([0.0, 0.1, 0.2, 3.0], lambda _: 0.5, Policy(batch=4, pace_s=1.0))
    assert came.latencies_s == pytest.approx((0.5, 1.4, 1.3, 0.5))  # the second and third go together, at 1.0
    assert came.batches == 3


@given(
    st.lists(st.floats(0, 10), min_size=1, max_size=40).map(sorted),
    st.integers(1, 8),
    st.integers(1, 4),
    st.floats(0, 1),
)
def test_every_query_is_answered_and_none_before_it_could_be(arrivals, batch, concurrency, wait_s):
    came = foreseen(arrivals, lambda n: 0.1 * n, Policy(batch=batch, concurrency=concurrency, wait_s=wait_s))
    assert came.answered == came.arrived == len(arrivals)
    assert min(came.latencies_s) >= 0.1 - 1e-9


def test_serving_in_earnest_comes_close_to_what_was_foreseen():
    arrivals = steady(50.0, 0.5)
    policy = Policy(batch=4, wait_s=0.0)
    came = serve(arrivals, lambda _: time.sleep(0.01), policy)
    assert came.answered == 25
    assert came.percentile_s(0.5) == pytest.approx(
        foreseen(arrivals, lambda _: 0.01, policy).percentile_s(0.5), abs=0.03
    )


def test_what_an_answer_raises_ends_the_load():
    def broken(_):
        raise RuntimeError("the model is gone")

    with pytest.raises(RuntimeError, match="the model is gone"):
        serve(steady(100.0, 0.2), broken, Policy())


def test_energy_is_asked_for_once_after_the_last_answer():
    asked = []
    came = serve([0.0, 0.01], lambda _: None, Policy(), measured_j=lambda: asked.append(1) or 6.0)
    assert came.energy_per_query_j == 3.0
    assert asked == [1]


def test_a_policy_makes_sense():
    with pytest.raises(BadInput, match="at least 1"):
        Policy(batch=0)
    with pytest.raises(BadInput, match="positive"):
        poisson(0.0, 1.0)


def test_a_pace_is_kept_in_earnest():
    came = serve(steady(200.0, 0.1), lambda _: None, Policy(batch=8, concurrency=2, pace_s=0.02))
    assert came.answered == 20
    assert came.batches <= came.duration_s / 0.02 + 2  # each by itself it would be twenty


def test_who_waits_too_long_is_left_and_counts_with_what_it_waited():
    came = serve(steady(100.0, 0.1), lambda _: time.sleep(0.05), Policy(), patience_s=0.05)
    assert came.arrived == 10
    assert came.answered + len(came.left_s) == 10
    assert 1 <= came.answered <= 5
    assert came.percentile_s(0.99) == max(*came.latencies_s, *came.left_s) > 0.05
    assert came.over(0.01) == 1.0


def test_clients_ask_again_as_soon_as_they_are_answered():
    came = serve_clients(2, 0.1, lambda _: time.sleep(0.01), Policy(concurrency=2))
    assert 4 <= came.answered == came.arrived <= 24  # two at a time, ten times, if nothing else ran
    with pytest.raises(BadInput, match="at least one client"):
        serve_clients(0, 1.0, lambda _: None, Policy())


def test_each_server_may_have_an_answer_of_its_own():
    counts = [0, 0]

    def answer(which):
        def counted(n):
            counts[which] += n
            time.sleep(0.01)

        return counted

    came = serve(steady(1_000.0, 0.05), [answer(0), answer(1)], Policy(batch=4, concurrency=2))
    assert sum(counts) == came.answered == 50
    assert min(counts) > 0
    with pytest.raises(BadInput, match="2 servers need an answer each, got 1"):
        serve([0.0], [answer(0)], Policy(concurrency=2))


@given(st.integers(1, 200), st.floats(0.1, 100.0), st.integers(0, 5))
def test_a_number_of_queries_comes_at_moments_of_chance(count, duration_s, seed):
    came = poisson_of(count, duration_s, seed)
    assert len(came) == count
    assert came == sorted(came)
    assert 0 <= came[0] <= came[-1] <= duration_s


def test_a_percentile_of_steady_waits_is_sure_and_one_of_a_burst_is_not():
    sure = Served(latencies_s=(0.01,) * 400, arrived=400, duration_s=1.0)
    burst = Served(latencies_s=(0.01,) * 395 + (0.5,) * 5, arrived=400, duration_s=1.0)
    assert sure.percentile_error(0.99) == 0.0
    assert burst.percentile_error(0.99) > 0.5
    assert Served(latencies_s=(0.01,), arrived=1, duration_s=1.0).percentile_error(0.99) == 1.0
