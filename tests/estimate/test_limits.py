"""Limits as a user writes them, and what is to be least."""

import pytest
from hypothesis import given
from hypothesis.strategies import floats, sampled_from

from wattsmith.estimate.limits import LIMITED, OBJECTIVES, Limit, parse_limit, parse_limits, parse_objective
from wattsmith.terms.errors import BadInput, BadTerm


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("gpus<=2", "gpus", 2),
        ("epoch<=20min", "epoch", 1200),
        ("memory<=16GiB", "memory", 16 * 2**30),
        ("energy<=2kWh", "energy", 7.2e6),
        ("power<=500W", "power", 500),
        ("step<=80ms", "step", 0.08),
        ("job<=3h", "job", 10800),
        ("cost<=10", "cost", 10),
        ("batch ≤ 64", "batch", 64),
        (" Memory <= 16 GiB ", "memory", 16 * 2**30),
        ("devices<=4", "gpus", 4),
    ],
)
def test_a_limit_is_read_in_the_units_of_its_kind(text, name, value):
    limit = parse_limit(text)
    assert (limit.name, limit.bound) == (name, "at most")
    assert limit.value == pytest.approx(value)


def test_a_limit_can_be_a_lower_one():
    assert parse_limit("batch>=32").bound == "at least"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpsu<=2", "did you mean gpus"),
        ("colour<=2", "what can is gpus, batch, step"),
        ("time<=2h", "step, epoch or job"),
        ("<=2", "does not say what is limited"),
        ("gpus", 'such as "gpus<=2"'),
        ("", "is not understood"),
        ("gpus<2", 'write "gpus<=2"'),
        ("gpus=2", 'write "gpus<=2"'),
        ("step>80ms", 'write "step>=80ms"'),
        ("memory<=", 'write for instance "memory<=16GiB"'),
        ("memory<=16", "has no unit"),
        ("memory<=20min", "min is a unit of time"),
        ("epoch<=20GiB", "GiB is a unit of memory"),
        ("gpus<=2.5", "whole number, not 2.5"),
        ("gpus<=2GB", "without a unit"),
        ("gpus<=many", "without a unit"),
        ("gpus<=0", "must be positive"),
        ("gpus<=nan", "whole number"),
        ("power<=-5W", "must be positive"),
        ("cost<=10EUR", "currency of the prices"),
        ("cost<=inf", "positive and finite"),
    ],
)
def test_a_limit_that_makes_no_sense_says_what_to_write(text, said):
    with pytest.raises(BadInput, match=said):
        parse_limit(text)


class TestTogether:
    def test_limits_keep_their_order(self):
        assert [limit.name for limit in parse_limits(["memory<=16GiB", "gpus<=2"])] == ["memory", "gpus"]

    def test_no_limits_are_no_limits(self):
        assert parse_limits([]) == ()

    def test_a_range_is_two_limits(self):
        assert [limit.value for limit in parse_limits(["gpus>=2", "gpus<=4"])] == [2, 4]

    def test_the_same_bound_twice_is_refused(self):
        with pytest.raises(BadInput, match=r"limited twice.*gpus<=2.*gpus<=4"):
            parse_limits(["gpus<=2", "gpus<=4"])

    def test_the_same_words_twice_count_once(self):
        assert len(parse_limits(["gpus<=2", "gpus<=2"])) == 1

    def test_a_range_with_nothing_in_it_is_refused(self):
        with pytest.raises(BadInput, match="at least 4 and at most 2"):
            parse_limits(["gpus<=2", "gpus>=4"])

    def test_a_step_cannot_outlast_its_epoch(self):
        with pytest.raises(BadInput, match="contradicts"):
            parse_limits(["step>=2h", "epoch<=1h"])

    def test_one_value_can_be_asked_for_from_both_sides(self):
        assert len(parse_limits(["gpus>=2", "gpus<=2"])) == 2


class TestObjective:
    @pytest.mark.parametrize("name", OBJECTIVES)
    def test_each_objective_is_known_by_its_name(self, name):
        assert parse_objective(name.upper()) == name

    def test_an_unknown_objective_is_refused_with_the_known_ones(self):
        with pytest.raises(BadInput, match=r"did you mean energy.*gpus, energy"):
            parse_objective("energie")

    def test_a_step_is_minimised_as_time(self):
        with pytest.raises(BadInput, match="write time"):
            parse_objective("step")


class TestLimit:
    def test_a_limit_reads_as_a_sentence(self):
        assert str(parse_limit("memory<=16GiB")) == "memory at most 16 GiB"
        assert str(parse_limit("gpus<=2")) == "gpus at most 2"

    def test_going_beyond_is_a_share_of_the_limit(self):
        assert parse_limit("power<=500W").excess_ratio(600) == pytest.approx(0.2)
        assert parse_limit("batch>=100").excess_ratio(80) == pytest.approx(0.2)

    @given(sampled_from(sorted(LIMITED)), floats(1e-3, 1e12), floats(0, 1e13))
    def test_a_figure_holds_on_one_side_and_breaks_on_the_other(self, name, value, figure):
        most, least = (Limit(name=name, bound=bound, value=value) for bound in ("at most", "at least"))
        assert most.excess_ratio(figure) <= 0 if figure <= value else most.excess_ratio(figure) >= 0
        assert most.excess_ratio(figure) == -least.excess_ratio(figure)

    @pytest.mark.parametrize("wrong", [{"name": "colour"}, {"bound": "about"}, {"value": 0.0}])
    def test_a_limit_that_cannot_be_is_refused(self, wrong):
        with pytest.raises(BadTerm):
            Limit(**({"name": "gpus", "bound": "at most", "value": 1.0} | wrong))
