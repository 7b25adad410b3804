"""Programs are recognised by what is near, at their own setting and at another, or refused."""

from dataclasses import replace

import pytest
from tests.match.programs import power_at, probed, program, programs

from wattsmith.match.points import benchmarks_of, response_of
from wattsmith.match.recognising import at_setting, recognise, telling_names
from wattsmith.terms.errors import BadInput
from wattsmith.terms.run import Condition, Consumption, Device, Provenance, Run, Status, StepTimes
from wattsmith.terms.telemetry import Benchmark, Fingerprint
from wattsmith.terms.work import Setting, Workload


def seen(point, **features):
    return Fingerprint(features={**point.features, **features}, power_w=200.0)


def test_the_program_itself_is_nearest():
    others = programs()
    found = recognise(others, seen(others[4]))
    assert found.neighbours[0].name == "program 4"
    assert found.neighbours[0].distance == 0.0
    assert found.recognised


def test_the_kind_is_that_of_what_is_near_with_its_share():
    found = recognise(programs(), seen(program("new", 0.95, 0.4)))
    assert found.family.family == "compute"
    assert found.family.share > 0.8


def test_something_unlike_everything_is_refused_with_what_to_do():
    found = recognise(programs(), seen(program("new", 0.5, 0.4), sm=25.0, dram=25.0, occupancy=16.0))
    assert not found.recognised
    assert found.response is None
    assert "wattsmith record run" in found.refused
    assert found.nearest > found.farthest_known


def test_with_a_probe_it_counts_whether_anything_reacted_alike():
    new = program("new", 0.5, 0.4)
    assert not recognise(programs(), seen(new), [replace(probed(new, 0.65), time_ratio=4.0)]).recognised
    assert recognise(programs(), seen(new), [probed(new, 0.65)]).recognised


def test_power_is_moved_to_the_clients_setting_by_each_ones_own_curve():
    point = program("a", 0.5, 0.4)
    assert at_setting(point, 0.5).features["power_mean"] == pytest.approx(0.8 * power_at(0.5, 0.4))
    assert at_setting(point, 1.0) == point
    assert at_setting(replace(point, response=None), 0.5).features == point.features


def test_a_program_at_another_clock_is_recognised_by_power_once_the_record_is_moved():
    bare = [replace(one, features={"power_mean": one.features["power_mean"], "busy": 0.5}) for one in programs()]
    client = at_setting(bare[5], 0.6)
    moved = recognise(bare, Fingerprint(features=client.features), setting=0.6)
    still = recognise(bare, Fingerprint(features=client.features))
    assert moved.neighbours[0].name == "program 5"
    assert still.neighbours[0].name == "program 7"  # which draws little at any clock


def test_with_counters_power_is_not_asked():
    assert telling_names(["power_mean", "busy", "sm", "dram", "occupancy", "clock"]) == ("sm", "dram", "occupancy")
    assert telling_names(["power_mean", "busy", "sm", "clock"]) == ("power_mean", "busy", "sm")


def test_a_probe_gives_a_curve_with_intervals_and_a_level():
    new = program("new", 0.45, 0.4)
    found = recognise(programs(), seen(new), [probed(new, 0.65)])
    assert found.response is not None
    assert found.response.time_ratio[0].low <= found.response.time_ratio[0].value <= found.response.time_ratio[0].high
    assert found.response.power_w[-1].value == 200.0


def test_the_level_is_the_clients_own_at_the_setting_it_runs_at():
    new = program("new", 0.45, 0.4)
    found = recognise(programs(), seen(at_setting(new, 0.5)), [probed(new, 0.65)], setting=0.5)
    assert found.response.power_w[found.response.at(0.5)].value == pytest.approx(200.0)
    assert found.response.power_w[-1].value == pytest.approx(200.0 / power_at(0.5, 0.4), rel=0.05)


def test_too_few_shared_features_are_refused_by_name():
    with pytest.raises(BadInput, match="share 1 features"):
        recognise(programs(), Fingerprint(features={"sm": 0.5}))


def run(family, width, step_s, *, power_w=350.0, setting=None):
    return Run(
        workload=Workload(family=family, parameters={"width": width}, batch=8),
        device=Device(name="NVIDIA H200", kind="cuda", memory_bytes=100 * 2**30),
        setting=setting or Setting(),
        status=Status.MEASURED,
        provenance=Provenance(measured_at="2026-01-01T00:00:00+00:00", session="s", hostname="h"),
        times=StepTimes(steps=5, mean_s=step_s, median_s=step_s, spread_s=0.0, error_ratio=0.0, first_s=1.0),
        consumption=Consumption(window_s=1.0, power_w=power_w, peak_held_bytes=50 * 2**30),
        condition=Condition(busy_ratio=0.9, clock_hz=1.98e9, power_limit_w=700.0),
    )


def test_runs_of_a_record_become_benchmarks():
    (point,) = benchmarks_of([run("residual", 64, 0.01)])
    assert point.family == "convolutional"
    wanted = {"power_mean": 0.5, "busy": 0.9, "clock": 1.0, "memory_used": 0.5, "progress": 2.0}
    assert {name: point.features[name] for name in wanted} == pytest.approx(wanted)
    assert point.response is None
    assert point.parameters["width"] == 64


def test_runs_at_several_limits_have_a_response():
    runs = [
        run("mlp", 64, step_s, power_w=power_w, setting=Setting(power_limit_w=limit_w))
        for limit_w, step_s, power_w in ((700.0, 0.01, 600.0), (350.0, 0.015, 345.0))
    ]
    found = response_of(runs)
    assert found.settings == (0.5, 1.0)
    assert found.time_ratio == (1.5, 1.0)
    assert found.power_ratio == (0.575, 1.0)
    (point,) = benchmarks_of(runs)
    assert point.response == found


def test_parameters_are_the_middle_of_the_neighbours():
    points = [
        Benchmark(
            name=f"n{width}",
            group=f"n{width}",
            family="cnn",
            features={"sm": width / 1000, "dram": 0.5},
            parameters={"width": width, "precision": "bf16"},
        )
        for width in (16, 64, 256, 1024)
    ]
    found = recognise(points, Fingerprint(features={"sm": 0.1, "dram": 0.5}), neighbours=4)
    assert found.family.parameters == {"width": 128, "precision": "bf16"}
