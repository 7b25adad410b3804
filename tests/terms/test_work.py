"""Workloads, settings, runs and predictions refuse at birth what makes no sense."""

import math

import pytest

from wattsmith.terms.errors import BadTerm
from wattsmith.terms.work import Interval, Prediction, Setting, Workload

MATMUL = Workload(family="matmul", parameters={"n": 64}, batch=1)


def test_a_workload_of_no_samples_is_refused():
    with pytest.raises(BadTerm, match=r"batch must be at least 1, got 0"):
        Workload(family="cnn", parameters={}, batch=0)


def test_a_workload_trains_or_infers():
    with pytest.raises(BadTerm, match=r"mode must be 'train' or 'infer', got 'dream'"):
        Workload(family="cnn", parameters={}, batch=1, mode="dream")


def test_a_workload_has_the_same_key_whatever_order_its_parameters_stand_in():
    one = Workload(family="cnn", parameters={"filters": 8, "layers": 2}, batch=4)
    other = Workload(family="cnn", parameters={"layers": 2, "filters": 8}, batch=4)
    assert one.key == other.key
    assert one.key != Workload(family="cnn", parameters={"filters": 8, "layers": 2}, batch=8).key


def test_a_setting_leaves_as_found_what_it_does_not_name():
    assert Setting(power_limit_w=250.0).clock_hz is None


@pytest.mark.parametrize(
    "name", ["power_limit_w", "clock_hz", "memory_clock_hz", "cpu_clock_hz", "threads", "concurrency"]
)
@pytest.mark.parametrize("value", [0, -1, math.nan, math.inf])
def test_a_setting_is_positive_and_finite(name, value):
    with pytest.raises(BadTerm, match=rf"{name} must be positive and finite, got {value}"):
        Setting(**{name: value})


@pytest.mark.parametrize(
    ("low", "value", "high"), [(2, 1, 3), (1, 4, 3), (3, 2, 1), (math.nan, 1, 2), (0, math.nan, 2)]
)
def test_a_value_lies_inside_its_interval(low, value, high):
    with pytest.raises(BadTerm, match=r"lies outside its own interval"):
        Interval(value=value, low=low, high=high)


def test_an_interval_may_have_no_width():
    assert Interval(value=1.0, low=1.0, high=1.0).value == 1.0


@pytest.mark.parametrize("name", ["step_s", "memory_bytes", "power_w", "step_energy_j"])
def test_no_cost_is_predicted_below_zero(name):
    with pytest.raises(BadTerm, match=rf"{name} cannot be below zero, but its interval begins at -1"):
        Prediction(**{name: Interval(value=1.0, low=-1.0, high=2.0)})


def test_a_prediction_rests_on_no_fewer_than_no_runs():
    with pytest.raises(BadTerm, match=r"from_runs must not be negative, got -1"):
        Prediction(from_runs=-1)


def test_a_formula_alone_is_not_inside_the_record():
    with pytest.raises(BadTerm, match=r"cannot lie inside the record"):
        Prediction(from_runs=0, inside_record=True)
