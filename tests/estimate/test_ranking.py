"""Configurations under limits: which satisfy them, which is best, and why the others are out."""

import pytest
from hypothesis import given
from hypothesis.strategies import builds, floats, integers, lists, sampled_from

from wattsmith.estimate.limits import OBJECTIVES, parse_limits
from wattsmith.estimate.ranking import Configuration, Job, Option, between_batches, figures_of, rank
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.work import Interval, Prediction

GIB = 2**30


def about(value, doubt=0.0):
    return Interval(value=value, low=value * (1 - doubt), high=value * (1 + doubt))


def option(name, *, step_s=1.0, memory_gib=1.0, power_w=100.0, devices=1, batch=10, doubt=0.0, price=None):
    prediction = Prediction(
        step_s=None if step_s is None else about(step_s, doubt),
        memory_bytes=about(memory_gib * GIB, doubt),
        power_w=about(power_w, doubt),
        step_energy_j=None if step_s is None else about(power_w * step_s, doubt),
    )
    where = Configuration(device=name, devices=devices, batch=batch, price_per_hour=price)
    return Option(configuration=where, prediction=prediction)


def names(ranked):
    return [one.option.configuration.device for one in ranked]


class TestOrder:
    SLOW_AND_FRUGAL = option("slow", step_s=2.0, power_w=100.0)
    FAST_AND_HUNGRY = option("fast", step_s=1.0, power_w=400.0)

    def test_the_fastest_comes_first(self):
        assert names(rank([self.SLOW_AND_FRUGAL, self.FAST_AND_HUNGRY]).fitting) == ["fast", "slow"]

    def test_the_most_frugal_comes_first(self):
        ranking = rank([self.FAST_AND_HUNGRY, self.SLOW_AND_FRUGAL], objective="energy")
        assert names(ranking.fitting) == ["slow", "fast"]

    def test_places_count_from_one(self):
        assert [one.place for one in rank([self.SLOW_AND_FRUGAL, self.FAST_AND_HUNGRY]).fitting] == [1, 2]

    def test_a_larger_batch_is_faster_per_sample_though_its_step_is_longer(self):
        small, large = option("small", step_s=1.0, batch=10), option("large", step_s=1.5, batch=20)
        assert rank([small, large]).best.option == large

    def test_equal_numbers_of_devices_are_ordered_by_time(self):
        options = [self.SLOW_AND_FRUGAL, self.FAST_AND_HUNGRY, option("pair", step_s=0.1, devices=2)]
        assert names(rank(options, objective="gpus").fitting) == ["fast", "slow", "pair"]

    def test_what_is_not_known_comes_last(self):
        options = [option("unpriced"), option("priced", price=2.0)]
        assert names(rank(options, objective="cost", job=Job(samples=100)).fitting) == ["priced", "unpriced"]

    def test_nothing_ranks_as_nothing(self):
        assert rank([]).best is None

    def test_an_unknown_objective_is_refused(self):
        with pytest.raises(BadInput, match="what can is gpus"):
            rank([], objective="beauty")


class TestLimits:
    def test_memory_is_held_against_its_upper_end(self):
        ranking = rank([option("tight", memory_gib=15.0, doubt=0.1)], parse_limits(["memory<=16GiB"]))
        (breach,) = ranking.rejected[0].breaches
        assert breach.figure == pytest.approx(16.5 * GIB)
        assert str(breach) == "memory may be 16.5 GiB, 3% beyond memory at most 16 GiB"

    def test_caution_can_be_laid_aside(self):
        ranking = rank([option("tight", memory_gib=15.0, doubt=0.1)], parse_limits(["memory<=16GiB"]), cautious=())
        assert names(ranking.fitting) == ["tight"]

    def test_power_is_held_against_its_value(self):
        assert rank([option("near", power_w=490.0, doubt=0.1)], parse_limits(["power<=500W"])).best is not None

    def test_the_limit_itself_is_allowed(self):
        assert rank([option("exact", power_w=500.0)], parse_limits(["power<=500W"])).best is not None

    def test_a_lower_limit_is_held_against_the_lower_end(self):
        ranking = rank([option("quick", step_s=1.0, doubt=0.1)], parse_limits(["step>=0.95s"]))
        assert ranking.rejected[0].breaches[0].figure == pytest.approx(0.9)

    def test_every_broken_limit_is_told(self):
        limits = parse_limits(["gpus<=1", "power<=50W"])
        (out,) = rank([option("pair", devices=2)], limits).rejected
        assert [str(breach) for breach in out.breaches] == [
            "gpus 2, 100% beyond gpus at most 1",
            "power 100 W, 100% beyond power at most 50 W",
        ]
        assert out.place is None

    def test_what_is_not_predicted_cannot_satisfy_a_limit(self):
        (out,) = rank([option("unknown", step_s=None)], parse_limits(["step<=1s"])).rejected
        assert str(out.breaches[0]) == "step is not predicted, so step at most 1 s cannot be promised"

    def test_the_nearest_miss_comes_first(self):
        options = [option("far", power_w=900.0), option("near", power_w=510.0)]
        assert names(rank(options, parse_limits(["power<=500W"])).rejected) == ["near", "far"]

    def test_a_limit_on_an_epoch_needs_to_know_its_samples(self):
        with pytest.raises(BadInput, match="how many samples"):
            rank([option("any")], parse_limits(["epoch<=1h"]))


class TestJob:
    def test_an_epoch_has_as_many_steps_as_its_samples_need(self):
        # 95 samples, 2 devices with 10 each: five steps of a second, three times.
        figures = figures_of(option("pair", devices=2, price=36.0), Job(samples=95, epochs=3))
        assert figures["epoch"].value == 5.0
        assert figures["job"].value == 15.0
        assert figures["energy"].value == 1500.0
        assert figures["cost"].value == pytest.approx(36.0 * 2 * 15 / 3600)

    def test_energy_follows_from_power_and_time_when_it_is_not_predicted(self):
        told = Prediction(step_s=about(2.0), power_w=about(100.0))
        one = Option(configuration=Configuration(device="any", batch=1), prediction=told)
        assert figures_of(one, Job(samples=3))["energy"].value == 600.0

    def test_a_job_without_samples_is_refused(self):
        with pytest.raises(BadTerm, match="samples"):
            Job(samples=0)


class TestPareto:
    def test_what_is_worse_in_all_is_not_flagged(self):
        ranking = rank([option("good", step_s=1.0), option("bad", step_s=2.0)])
        assert [one.pareto for one in ranking.fitting] == [True, False]

    def test_both_ends_of_a_trade_are_flagged(self):
        ranking = rank([TestOrder.SLOW_AND_FRUGAL, TestOrder.FAST_AND_HUNGRY])
        assert [one.pareto for one in ranking.fitting] == [True, True]

    def test_equals_do_not_beat_each_other(self):
        assert all(one.pareto for one in rank([option("twin"), option("twin")]).fitting)

    def test_what_breaks_a_limit_beats_nobody(self):
        options = [option("good", step_s=1.0, memory_gib=20), option("bad", step_s=2.0)]
        assert rank(options, parse_limits(["memory<=16GiB"])).best.pareto


options = builds(
    option,
    sampled_from("abc"),
    step_s=floats(0.01, 10),
    memory_gib=floats(0.1, 100),
    power_w=floats(10, 1000),
    devices=integers(1, 8),
    batch=integers(1, 64),
    doubt=floats(0, 0.9),
    price=sampled_from([None, 1.0, 2.0]),
)


@given(lists(options, max_size=12), sampled_from(OBJECTIVES))
def test_every_option_is_ranked_or_rejected_and_the_first_is_best(offered, objective):
    ranking = rank(offered, parse_limits(["gpus<=4", "memory<=16GiB"]), objective, Job(samples=1000))
    assert len(ranking.fitting) + len(ranking.rejected) == len(offered)
    assert all(one.figures["memory"].high <= 16 * GIB and one.figures["gpus"].value <= 4 for one in ranking.fitting)
    known = [one.figures[objective].value for one in ranking.fitting if one.figures[objective] is not None]
    assert known == sorted(known)
    assert ranking.best is None or ranking.best.pareto


@given(lists(options, min_size=1, max_size=12))
def test_whatever_is_not_flagged_is_beaten_by_something_that_is(offered):
    fitting = rank(offered).fitting

    def goals(one):
        return [one.figures[name].value for name in ("time", "gpus", "energy")]

    best = [goals(one) for one in fitting if one.pareto]
    for one in fitting:
        beaten = any(all(b <= mine for b, mine in zip(better, goals(one), strict=True)) for better in best)
        assert beaten or one.pareto


class TestBetweenBatches:
    SMALL = option("any", step_s=1.0, memory_gib=2.0).prediction
    LARGE = option("any", step_s=3.0, memory_gib=4.0, power_w=200.0).prediction

    def test_halfway_is_the_mean(self):
        (told,) = between_batches({10: self.SMALL, 30: self.LARGE}, [20])
        assert told.step_s.value == 2.0
        assert told.memory_bytes.value == 3 * GIB
        assert told.power_w.value == 150.0

    def test_a_predicted_batch_is_given_back(self):
        assert between_batches({10: self.SMALL, 30: self.LARGE}, [30, 10]) == [self.LARGE, self.SMALL]

    def test_beyond_the_last_the_line_goes_on_and_says_so(self):
        (told,) = between_batches({10: self.SMALL, 30: self.LARGE}, [50])
        assert told.step_s.value == 5.0
        assert told.why_doubtful == "batch 50 lies beyond the batches 10 to 30 that were predicted"

    def test_power_levels_off(self):
        (told,) = between_batches({10: self.SMALL, 30: self.LARGE}, [50])
        assert told.power_w.value == 200.0

    def test_below_the_first_nothing_falls_under_zero(self):
        (told,) = between_batches({10: self.SMALL, 30: self.LARGE}, [1])
        assert told.step_s.value == pytest.approx(0.1)
        assert told.memory_bytes.value == pytest.approx(1.1 * GIB)

    def test_three_batches_bend_the_line(self):
        (told,) = between_batches({10: self.SMALL, 20: self.SMALL, 30: self.LARGE}, [25])
        assert told.step_s.value == 2.0

    def test_one_batch_is_no_line(self):
        with pytest.raises(BadTerm, match="at least 2"):
            between_batches({10: self.SMALL}, [20])

    @given(integers(1, 1000))
    def test_the_interval_always_holds_the_value(self, batch):
        wide = option("any", step_s=3.0, doubt=0.9).prediction
        (told,) = between_batches({10: self.SMALL, 30: wide}, [batch])
        assert told.step_s.low <= told.step_s.value <= told.step_s.high


@pytest.mark.parametrize(
    "wrong",
    [{"batch": 0}, {"devices": 0}, {"power_limit_w": 0.0}, {"price_per_hour": -1.0}],
    ids=lambda w: next(iter(w)),
)
def test_a_configuration_that_cannot_be_is_refused(wrong):
    with pytest.raises(BadTerm, match=next(iter(wrong))):
        Configuration(**({"device": "any", "batch": 1} | wrong))
