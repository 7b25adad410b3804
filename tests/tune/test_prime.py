"""Others' curves say where to look first."""

from dataclasses import replace

import pytest
from tests.tune.making import curve, optimum, search, space, work

from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Knob, Space, Trial
from wattsmith.tune.prime import begins, common
from wattsmith.tune.search import Manner, Tuner

np = pytest.importorskip("numpy")

KINDS = [(240, 4), (200, 10), (160, 30), (120, 90), (230, 0.5)]


def others(of):
    return [curve(work(*kind), of, workload=str(kind), same_device=True) for kind in KINDS]


def trials_until_found(tuner, measure, of, limit_s):
    best = measure(optimum(of, measure, limit_s))["energy_j"]
    for number, setting in enumerate(search(tuner, measure), 1):
        metrics = measure(setting)
        if metrics["time_s"] <= limit_s and metrics["energy_j"] <= 1.05 * best:
            return number
    return 99


@pytest.mark.parametrize("kind", [(220, 8), (140, 60), (180, 15)])
def test_primed_by_like_workloads_it_needs_few_trials(kind):
    measure, of = work(*kind), space()
    limit_s = 1.1 * measure(of.setting(of.present))["time_s"]
    tuner = Tuner(of, "energy", [f"time<={limit_s}s"], curves=others(of))
    assert trials_until_found(tuner, measure, of, limit_s) <= 4
    assert measure(tuner.recommend().setting)["time_s"] <= limit_s


def test_curves_of_another_grid_are_read_off_between_its_settings():
    elsewhere = space(batches=(4, 12, 24, 48, 96), limits=(120, 180, 240, 300), batch=24, limit=300)
    measure, of = work(), space()
    limit_s = 1.1 * measure(of.setting(of.present))["time_s"]
    tuner = Tuner(of, "energy", [f"time<={limit_s}s"], curves=others(elsewhere))
    assert trials_until_found(tuner, measure, of, limit_s) <= 5


def test_curves_that_mislead_cost_trials_but_not_the_result():
    """All others waste energy with large batches; here they save."""
    of = space()

    def wasteful(setting):
        return {"energy_j": setting["batch"] * 1.0, "time_s": setting["batch"] / 10}

    lies = [curve(wasteful, of, workload=str(one)) for one in range(4)]
    tuner = Tuner(of, "energy", ["time<=2s"], curves=lies, manner=Manner(budget=16))
    search(tuner, work())
    chosen = tuner.recommend().setting
    assert work()(chosen)["energy_j"] <= 1.1 * work()(optimum(of, work(), 2.0))["energy_j"]


def test_curves_with_other_knobs_are_refused():
    of = Space(knobs=(Knob(name="threads", levels=(1, 2), present=1),))
    tuner = Tuner(of, curves=others(space()))
    tuner.tell(tuner.ask(), {"energy_j": 1.0})
    with pytest.raises(BadInput, match="none of the 5 curves has the knobs threads"):
        tuner.ask()


def test_a_curve_without_a_metric_that_is_limited_is_refused():
    tuner = Tuner(space(), "energy", ["latency_p99<=50ms"], curves=others(space()))
    tuner.tell(tuner.ask(), {"energy_j": 1.0, "latency_p99_s": 0.04})
    with pytest.raises(BadInput, match=r"cannot prime this search: .* no metric latency_p99"):
        tuner.ask()


def test_a_curve_without_its_present_setting_is_refused():
    whole = others(space())[0]
    part = replace(whole, trials=[one for one in whole.trials if one.setting["batch"] != 32])
    tuner = Tuner(space(), curves=[part])
    tuner.tell(tuner.ask(), {"energy_j": 1.0, "time_s": 1.0})
    with pytest.raises(BadInput, match="lacks its present setting"):
        tuner.ask()


def test_settings_that_failed_elsewhere_are_passed_over():
    whole = others(space())[0]
    failed = Trial(setting={"batch": 64, "power_limit_w": 100}, failed="out of memory")
    part = replace(whole, trials=[*(one for one in whole.trials if one.setting != failed.setting), failed])
    tuner = Tuner(space(), "energy", ["time<=2s"], curves=[part])
    search(tuner, work())
    assert tuner.recommend().kept


def test_a_single_curve_is_enough_to_start_from():
    tuner = Tuner(space(), "energy", ["time<=2s"], curves=others(space())[:1])
    search(tuner, work())
    assert tuner.recommend().kept


def test_a_cap_begins_to_act_at_the_draw():
    assert begins(space(), {"energy_j": 250.0, "time_s": 2.0}) == [0.0, -1.0]  # 125 W under a cap of 250 W
    assert begins(space(), {"power_w": 250.0}) == [0.0, 0.0]
    assert begins(space(), {"latency_s": 1.0}) == [0.0, 0.0]  # nobody can say


def test_tables_that_vary_in_one_direction_have_one():
    flat = np.outer([1.0, 2.0, 3.0], [0.0, 1.0, -1.0])
    mean, directions = common(flat, np.ones(3))
    assert mean == pytest.approx([0.0, 2.0, -2.0])
    assert np.linalg.norm(directions[1:]) == pytest.approx(0.0, abs=1e-9)
    assert np.abs(directions[0]) == pytest.approx([0.0, 1.0, 1.0])
