"""Inference beside fine-tuning: learned from a few pairs, and a plan that keeps the limit."""

import pytest

from wattsmith.terms.errors import BadInput
from wattsmith.tune.contention import Contention, Job, Pair, left_out_error, plan
from wattsmith.tune.load import steady
from wattsmith.tune.serving import Policy

pytest.importorskip("scipy")


def inference(batch):
    return Job(flops=batch * 1e9, moved_bytes=1e7 + batch * 1e6, batch=batch)


FINE_TUNING = Job(flops=5e10, moved_bytes=1e9, batch=8)


def law_s(one, other):
    """2 ms, a millisecond for each 10^9 operations of its own, and for each 5 × 10^9 of the other's."""
    return 2e-3 + one.flops / 1e12 + (0.0 if other is None else other.flops / 5e12)


def learned():
    pairs = [
        Pair(inference=inference(batch), fine_tuning=other, latency_s=law_s(inference(batch), other))
        for batch in (1, 4, 16)
        for other in (None, FINE_TUNING, Job(flops=1e10, moved_bytes=5e8, batch=2))
    ]
    return Contention.fit(pairs)


def test_what_adds_up_is_found_again():
    model = learned()
    for batch in (2, 8, 32):
        for other in (None, FINE_TUNING):
            assert model.latency_s(inference(batch), other) == pytest.approx(law_s(inference(batch), other), rel=0.05)


def test_fine_tuning_never_makes_queries_faster():
    model = learned()
    assert (model.factors >= 0).all()
    assert model.latency_s(inference(4), FINE_TUNING) >= model.latency_s(inference(4))


def test_too_few_pairs_are_refused():
    with pytest.raises(BadInput, match="at least 4"):
        Contention.fit([Pair(inference=inference(1), fine_tuning=None, latency_s=0.01)])


def test_fine_tuning_is_admitted_when_the_limit_holds_beside_it():
    came = plan(steady(10.0, 5.0), 0.05, lambda _, beside: 0.02 if beside else 0.01, batches=(1, 2, 4))
    assert came.fine_tunes
    assert came.policy.batch == 4


def test_fine_tuning_waits_when_it_does_not():
    came = plan(steady(10.0, 5.0), 0.05, lambda _, beside: 0.2 if beside else 0.01, batches=(1, 2))
    assert not came.fine_tunes


def test_a_limit_that_nothing_keeps_is_told():
    assert plan(steady(10.0, 1.0), 0.005, lambda _, __: 0.01, batches=(1, 2)) is None


def sharing_s(one, other):
    """Beside anything, one's own work takes twice as long."""
    return (1e-3 + one.flops / 1e12) * (1.0 if other is None else 2.0)


def test_a_device_that_is_shared_by_halves_is_better_told_by_what_slows_down():
    pairs = [
        Pair(inference=inference(batch), fine_tuning=other, latency_s=sharing_s(inference(batch), other))
        for batch in (1, 4, 16)
        for other in (None, FINE_TUNING)
    ]
    assert left_out_error(pairs, "slows down") < left_out_error(pairs, "adds up")
    model = Contention.fit(pairs)
    assert model.shape == "slows down"
    assert model.latency_s(inference(8), FINE_TUNING) == pytest.approx(sharing_s(inference(8), FINE_TUNING), rel=0.02)
    with pytest.raises(BadInput, match="no shape 'round'"):
        Contention.fit(pairs, "round")


def test_the_most_wanted_that_fits_runs_beside():
    took_s = {64: 0.2, 8: 0.02, None: 0.01}
    came = plan(steady(10.0, 5.0), 0.05, lambda _, beside: took_s[beside], batches=(1,), besides=(64, 8, None))
    assert came.beside == 8
    assert came.fine_tunes


def test_of_policies_that_keep_the_limit_the_one_with_the_fewest_batches_is_taken():
    policies = [Policy(batch=b, wait_s=w) for b in (1, 4) for w in (0.0, 0.2, 0.35)]
    came = plan(steady(10.0, 5.0), 0.5, lambda _, __: 0.01, policies=policies, besides=(None,))
    assert came.policy == Policy(batch=4, wait_s=0.35)  # four have come after 0.3 s
    assert came.foreseen.batches == 13
