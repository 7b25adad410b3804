"""Goals and limits as people write them."""

import pytest

from wattsmith.terms.errors import BadInput
from wattsmith.tune.goals import MetricMissing, figure, parse_limit, parse_limits, parse_objective, value_of


@pytest.mark.parametrize(
    ("text", "metric", "value", "relative"),
    [
        ("latency_p99<=50ms", "latency_p99", 0.05, False),
        ("latency_p99_s<=50ms", "latency_p99", 0.05, False),
        ("power <= 300W", "power", 300.0, False),
        ("memory≤8GiB", "memory", 8 * 2.0**30, False),
        ("latency<=1.1x", "latency", 1.1, True),
        ("slowdown<=10%", "time", 1.1, True),
        ("throughput>=100", "throughput", 100.0, False),
    ],
)
def test_a_limit_is_read(text, metric, value, relative):
    limit = parse_limit(text)
    assert (limit.metric, limit.value, limit.relative) == (metric, pytest.approx(value), relative)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("latency", "write a metric"),
        ("latency<50ms", '"latency<=50ms"'),
        ("latency<=", "no value"),
        ("latency<=10%", "1.1x"),
        ("latency<=50parsecs", "neither a number"),
        ("latency<=-5ms", "positive"),
        ("slowdown<=1.1", "slowdown<=10%"),
    ],
)
def test_what_is_wrong_with_a_limit_is_said_with_what_to_write(text, said):
    with pytest.raises(BadInput, match=said):
        parse_limit(text)


def test_limits_that_contradict_each_other_are_refused():
    with pytest.raises(BadInput, match="no setting can keep both"):
        parse_limits(["power<=100W", "power>=200W"])


def test_one_metric_limited_twice_is_refused():
    with pytest.raises(BadInput, match="limited twice"):
        parse_limits(["power<=100W", "power<=200W"])


def test_the_same_limit_twice_is_one():
    assert len(parse_limits(["power<=100W", "power<=0.1kW"])) == 1


def test_a_metric_is_found_with_and_without_its_unit():
    assert figure({"latency_s": 2.0}, "latency") == 2.0
    assert figure({"accuracy": 0.5}, "accuracy") == 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 0, -1.0, None, "3", True])
def test_a_metric_that_is_no_positive_number_is_missing(value):
    with pytest.raises(MetricMissing, match="must be a positive number"):
        figure({"energy_j": value}, "energy")


def test_an_absent_metric_says_what_there_is():
    with pytest.raises(MetricMissing, match="no metric energy; what came is time_s"):
        figure({"time_s": 1.0}, "energy")


def test_a_limit_in_another_unit_than_its_metric_is_said_to_be():
    with pytest.raises(MetricMissing, match="latency is limited as a power, but latency_s is a time"):
        figure({"latency_s": 1.0}, "latency", "power")


def test_one_limit_need_not_be_a_list():
    assert parse_limits("power<=100W") == parse_limits(["power<=100W"])


def test_a_product_of_metrics_can_be_least():
    assert value_of({"time_per_epoch": 2.0, "power_w": 100.0}, parse_objective("time_per_epoch*power")) == 200.0
    with pytest.raises(BadInput, match="cannot be least"):
        parse_objective("time*")


def test_energy_delay_is_energy_times_time():
    assert value_of({"energy_j": 3.0, "time_s": 2.0}, parse_objective("energy-delay")) == 6.0
