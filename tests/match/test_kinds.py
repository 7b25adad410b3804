"""What kind of network a program is, by its layers; and whether anything works as it does, by its counters."""

import pytest

from wattsmith.flows.matching import benchmarks_in, match
from wattsmith.match.composition import FEWEST_POINTS, likeness
from wattsmith.match.features import layer_features
from wattsmith.match.kinds import kind_votes
from wattsmith.match.points import with_activity
from wattsmith.match.recognising import recognise
from wattsmith.terms.run import OperatorCount, Structure
from wattsmith.terms.telemetry import Benchmark, Fingerprint


def step_of(recurrent_layers=0, **calls):
    """The structure of a step with so many CALLS of each class of operator."""
    operators = {
        name.replace("_", "-"): OperatorCount(calls=count, flops=float(count), moved_bytes=1.0)
        for name, count in calls.items()
    }
    return Structure(
        parameters=1, parameter_bytes=4, input_bytes=4, flops=10.0, moved_bytes=1.0, launches=9, peak_bytes=4,
        operators=operators, recurrent_layers=recurrent_layers,
    )  # fmt: skip


def test_layers_that_mix_are_told_by_the_root_of_their_share_of_calls():
    found = layer_features(step_of(conv=3, grouped_conv=6, matmul=16, elementwise=400, norm=50))
    assert found["conv_mixing"] == pytest.approx(0.6)  # 9 of 25
    assert found["matmul_mixing"] == pytest.approx(0.8)
    assert found["attention_mixing"] == found["elementwise_mixing"] == found["update_mixing"] == 0


def test_the_softmax_of_a_loss_is_no_attention_and_more_of_them_are():
    assert layer_features(step_of(matmul=9, softmax=2))["attention_mixing"] == 0
    assert layer_features(step_of(matmul=12, softmax=6))["attention_mixing"] == pytest.approx(0.5)  # 4 of 16


def test_a_step_without_layers_is_told_by_what_it_has():
    assert layer_features(step_of(elementwise=5, norm=2))["elementwise_mixing"] == 1
    assert layer_features(step_of(update=3))["update_mixing"] == 1


@pytest.fixture(scope="module")
def h200():
    return benchmarks_in("h200")


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (step_of(conv=106, matmul=3, norm=106, softmax=2), "convolutional"),
        (step_of(conv=8, grouped_conv=36, matmul=111, norm=46, softmax=2), "convolutional"),  # 1×1 as dense layers
        (step_of(attention=24, matmul=147, embedding=4, norm=50, softmax=2), "transformer"),
        (step_of(matmul=228, conv=2, softmax=26, norm=58), "transformer"),  # attention that was taken apart
        (step_of(matmul=17, elementwise=12), "dense"),
        (step_of(matmul=147, conv=2, norm=50, softmax=2), "dense"),  # an MLP that mixes patches
        (step_of(embedding=54, matmul=20), "embedding"),
        (step_of(matmul=21, embedding=2, softmax=2, recurrent_layers=3), "recurrent"),
        (step_of(elementwise=12, norm=3), "elementwise"),
        (step_of(update=3), "update"),
    ],
)
def test_the_kind_follows_from_the_layers(step, kind, h200):
    assert match(step, h200).family.family == kind


def test_a_host_bound_step_is_of_the_kind_of_its_layers(h200):
    kinds = {point.family for point in h200 if point.parameters["family"] == "host-loop"}
    assert kinds == {"dense"}


def test_without_layers_there_is_no_vote_by_them():
    points = [Benchmark(name="a", group="a", family="dense", features={"sm": 0.5})] * 9
    assert kind_votes(points, layer_features(step_of(matmul=1))) is None
    assert kind_votes(points, {"sm": 0.5}) is None


# ---- Strangers


def working(name, sm, *, tensor=0.3, fp32=0.05, integer=0.2, dram=0.4, occupancy=0.4, fp64=0.0, fp16=0.001):
    """A program whose cores are at work for SM of the time, and do so much of each while they are."""
    does = {"tensor": tensor, "fp32": fp32, "integer": integer, "dram": dram, "occupancy": occupancy, "fp64": fp64}
    features = {part: share * sm for part, share in (does | {"fp16": fp16}).items()}
    return Benchmark(name=name, group=name, family="dense", features={"engine": sm, "sm": sm, **features})


def networks():
    shares = [0.1 + 0.02 * place for place in range(FEWEST_POINTS)]
    return [working(f"network {at}", 0.9 - 0.02 * at, tensor=share) for at, share in enumerate(shares)]


def likeness_of(client):
    return likeness(networks(), client.features, 0.95)


def test_how_busy_a_chip_is_does_not_make_a_stranger():
    for sm in (0.02, 0.2, 0.9):
        found = likeness_of(working("new", sm, tensor=0.25))
        assert found.nearest <= found.farthest


@pytest.mark.parametrize(
    "does",
    [
        {"tensor": 0.0, "fp32": 0.0, "integer": 0.08},  # a copy
        {"tensor": 0.0, "fp32": 0.0, "integer": 0.4},  # a sort
        {"fp64": 0.3, "tensor": 0.0},  # physics
    ],
)
def test_what_no_recorded_program_does_makes_a_stranger(does):
    found = likeness_of(working("new", 0.9, **does))
    assert found.nearest > found.farthest
    refused = recognise(networks(), Fingerprint(features=working("new", 0.9, **does).features))
    assert not refused.recognised
    assert "wattsmith record run" in refused.refused


def test_without_counters_on_both_sides_nothing_is_said_of_strangers():
    assert likeness(networks(), {"sm": 0.5, "tensor": 0.1}, 0.95) is None  # too few
    assert likeness(networks(), {"tensor": 0.1, "fp32": 0.1, "integer": 0.1}, 0.95) is None  # over what?
    assert likeness(networks()[1:], networks()[0].features, 0.95) is None


# ---- The shipped record


def test_activity_that_was_counted_on_another_occasion_is_added(h200):
    counted = [point for point in h200 if point.features["sm"] is not None]
    assert len(counted) == 97
    assert len(h200) > 200


def test_of_another_occasion_come_counters_memory_and_progress():
    (point,) = with_activity(
        [Benchmark(name="a", group="key", family="dense", features={"busy": 0.5, "progress": 1.0})],
        {"key": {"sm_ratio": 0.25, "steps_per_s": 100.0, "memory_used_ratio": 0.125, "power_w": 300.0}},
    )
    assert point.features == {"busy": 0.5, "progress": 2.0, "sm": 0.25, "memory_used": 0.125}


def test_a_client_with_counters_is_compared_with_what_was_counted(h200):
    counted = next(point for point in h200 if point.features["sm"] is not None)
    found = match(Fingerprint(features=counted.features), h200)
    assert found.neighbours[0].name == counted.name
    assert "tensor" in found.used
