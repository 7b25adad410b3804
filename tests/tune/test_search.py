"""The search asks for settings, and recommends one that keeps its promise."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.tune.making import EXACT, optimum, search, space, work

from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.tuning import Failed, Knob, Space
from wattsmith.tune.search import Manner, Tuner, first_level

np = pytest.importorskip("numpy")


def test_the_present_setting_is_tried_first():
    assert Tuner(space()).ask() == {"batch": 32, "power_limit_w": 250}


def test_then_each_knob_is_moved_once_to_where_it_saves():
    tuner = Tuner(space())
    asked = []
    for _ in range(3):
        asked.append(tuner.ask())
        tuner.tell(asked[-1], work()(asked[-1]))
    assert asked[1] == {"batch": 64, "power_limit_w": 250}
    assert asked[2] == {"batch": 32, "power_limit_w": 200}


@pytest.mark.parametrize(
    ("saves", "level"),
    [("up", 3), ("down", 1), (None, 3)],
)
def test_the_first_move_goes_a_third_of_the_way(saves, level):
    assert first_level([-2.0, -1.0, 0.0, 1.0, 3.0], saves, 1 / 3) == level


def test_a_knob_at_its_end_is_first_moved_the_other_way():
    assert first_level([-3.0, -2.0, -1.0, 0.0], "up", 1 / 3) == 2


def test_a_knob_with_one_level_is_not_moved():
    assert first_level([0.0], "up", 1 / 3) is None


@pytest.mark.parametrize("factor", [1.05, 1.1, 1.25, 2.0])
def test_it_finds_the_least_energy_within_the_limit(factor):
    measure, of = work(), space()
    limit_s = factor * measure(of.setting(of.present))["time_s"]
    tuner = Tuner(of, "energy", [f"time<={limit_s}s"])
    asked = search(tuner, measure)
    best = measure(optimum(of, measure, limit_s))["energy_j"]
    chosen = tuner.recommend()
    assert measure(chosen.setting)["time_s"] <= limit_s
    assert measure(chosen.setting)["energy_j"] <= 1.05 * best
    assert len(asked) < len(of.cells())


def test_a_slowdown_is_relative_to_the_present_setting():
    tuner = Tuner(space(), "energy", ["slowdown<=10%"])
    search(tuner, work())
    present = work()({"batch": 32, "power_limit_w": 250})
    assert work()(tuner.recommend().setting)["time_s"] <= 1.1 * present["time_s"]


def test_without_limits_the_least_of_all_is_found():
    tuner = Tuner(space())
    search(tuner, work())
    assert tuner.recommend().setting == optimum(space(), work(), math.inf)


def test_time_can_be_least_under_a_limit_on_power():
    def measure(setting):
        metrics = work()(setting)
        return metrics | {"power_w": metrics["energy_j"] / metrics["time_s"]}

    tuner = Tuner(space(), "time", ["power<=200W"])
    search(tuner, measure)
    chosen = tuner.recommend()
    assert chosen.kept
    assert measure(chosen.setting)["power_w"] <= 200


def test_the_recommendation_is_confirmed_by_measuring_again():
    tuner = Tuner(space(), "energy", ["time<=2s"])
    asked = search(tuner, work())
    chosen = tuner.recommend()
    assert chosen.confirmed
    assert asked.count(dict(chosen.setting)) == 2


def test_settings_that_fail_are_not_fatal_and_not_recommended():
    def measure(setting):
        return Failed(why="out of memory") if setting["batch"] == 64 else work()(setting)

    tuner = Tuner(space(), "energy", ["time<=2s"])
    search(tuner, measure)
    assert tuner.recommend().setting["batch"] == 32
    assert sum(trial.failed is not None for trial in tuner.trials) <= 4


def test_a_metric_that_is_not_a_number_is_a_failed_trial():
    tuner = Tuner(space(), "energy")
    tuner.tell(tuner.ask(), {"energy_j": 1.0})
    tuner.tell(tuner.ask(), {"energy_j": math.nan})
    tuner.tell(tuner.ask(), {"time_s": 1.0})
    assert "energy_j must be a positive number, got nan" in tuner.trials[1].failed
    assert "no metric energy; what came is time_s" in tuner.trials[2].failed


def test_a_present_setting_without_figures_is_an_error():
    tuner = Tuner(space())
    with pytest.raises(BadInput, match="the present setting itself gave no figures"):
        tuner.tell(tuner.ask(), Failed(why="no such file"))


def test_without_trials_there_is_no_recommendation():
    with pytest.raises(BadInput, match="nothing was tried yet"):
        Tuner(space()).recommend()


def test_no_feasible_setting_gives_the_nearest_and_says_so():
    tuner = Tuner(space(), "energy", ["time<=1ms"], manner=Manner(budget=16))
    search(tuner, work())
    chosen = tuner.recommend()
    assert not chosen.kept
    assert "no setting that was tried keeps the limits" in chosen.why
    assert chosen.setting["batch"] == 64  # the fastest is nearest
    assert chosen.holds < 0.01


def test_at_a_limit_that_only_the_present_setting_meets_it_stays():
    def measure(setting):
        here = setting == {"batch": 32, "power_limit_w": 250}
        return {"energy_j": 1.0 if here else 0.5, "time_s": 1.0 if here else 2.0}

    tuner = Tuner(space(), "energy", ["time<=1.0s"])
    search(tuner, measure)
    assert tuner.recommend().setting == {"batch": 32, "power_limit_w": 250}


def test_a_limit_of_as_slow_as_now_is_kept_by_staying_whatever_the_noise():
    def measure(setting):  # half the batch is faster and needs twice the energy
        return {"energy_j": 32 / setting["batch"], "time_s": setting["batch"] / 32}

    of = Space(knobs=(Knob(name="batch", levels=(16, 32, 64), present=32),))
    tuner = Tuner(of, "energy", ["time<=1x"])
    search(tuner, measure, {"energy": 0.03, "time": 0.03})
    assert tuner.recommend().setting == {"batch": 32}
    assert tuner.recommend().kept


def test_another_setting_may_fail_before_the_present_one_is_measured():
    tuner = Tuner(space())
    tuner.tell({"batch": 64, "power_limit_w": 250}, Failed(why="out of memory"))
    assert tuner.ask() == {"batch": 32, "power_limit_w": 250}
    with pytest.raises(BadInput, match="nothing was tried yet that works"):
        tuner.recommend()


@pytest.mark.parametrize("noise", [math.nan, math.inf, -0.1, "lots"])
def test_noise_that_is_no_relative_error_is_refused(noise):
    with pytest.raises(BadInput, match="the noise of energy must be a relative standard error"):
        Tuner(space()).tell(space().setting(space().present), {"energy_j": 1.0}, {"energy": noise})


@pytest.mark.parametrize("level", [None, math.nan, (1, 2), " "])
def test_a_level_is_a_number_or_a_word(level):
    with pytest.raises(BadTerm, match="neither a number nor a word"):
        Knob(name="batch", levels=(1, level), present=1)


def test_more_settings_than_can_be_searched_are_refused():
    knobs = tuple(Knob(name=name, levels=tuple(range(1, 101)), present=1) for name in ("a", "b", "c"))
    with pytest.raises(BadInput, match="1000000 settings are more than the 20000"):
        Tuner(Space(knobs=knobs))


def test_limits_that_contradict_each_other_once_the_present_setting_is_known_are_refused():
    tuner = Tuner(space(), "energy", ["time<=2s", "time>=3x"])
    with pytest.raises(BadInput, match="no setting can keep both: time at least 3 × the present, and time at most 2 s"):
        tuner.tell(tuner.ask(), {"energy_j": 1.0, "time_s": 1.0})


def test_the_budget_is_kept():
    tuner = Tuner(space(), "energy", ["time<=2s"], manner=Manner(budget=4))
    assert len(search(tuner, work())) == 4


def test_little_work_to_come_ends_the_search_early():
    patient, hasty = Tuner(space()), Tuner(space(), manner=Manner(horizon=1.0))
    assert len(search(hasty, work())) < len(search(patient, work()))


def test_a_setting_of_other_knobs_is_refused():
    with pytest.raises(BadTerm, match="must name each of batch, power_limit_w"):
        Tuner(space()).tell({"batch": 8}, {"energy_j": 1.0})


def test_a_level_that_is_not_there_is_refused():
    with pytest.raises(BadTerm, match="batch cannot be 9"):
        Tuner(space()).tell({"batch": 9, "power_limit_w": 250}, {"energy_j": 1.0})


def test_words_are_levels_too():
    of = Space(knobs=(Knob(name="precision", levels=("fp32", "tf32", "bf16"), present="fp32"),))
    tuner = Tuner(of)
    search(tuner, lambda setting: {"energy_j": {"fp32": 3.0, "tf32": 2.0, "bf16": 1.0}[setting["precision"]]})
    assert tuner.recommend().setting == {"precision": "bf16"}


def test_noise_does_not_break_the_promise():
    measure, of = work(), space()
    limit_s = 1.1 * measure(of.setting(of.present))["time_s"]
    for seed in range(10):
        rng = np.random.default_rng(seed)

        def noisy(setting, rng=rng):
            exact = measure(setting)
            return {
                "energy_j": exact["energy_j"] * (1 + 0.03 * rng.standard_normal()),
                "time_s": exact["time_s"] * (1 + 0.01 * rng.standard_normal()),
            }

        tuner = Tuner(of, "energy", [f"time<={limit_s}s"])
        search(tuner, noisy, {"energy": 0.03, "time": 0.01})
        assert measure(tuner.recommend().setting)["time_s"] <= limit_s


@settings(max_examples=25)
@given(draw_w=st.floats(80, 300), overhead=st.floats(0.0, 100.0), factor=st.floats(1.01, 2.0))
def test_whatever_the_work_the_recommendation_keeps_the_limit_and_never_costs_more(draw_w, overhead, factor):
    measure, of = work(draw_w, overhead), space()
    present = measure(of.setting(of.present))
    tuner = Tuner(of, "energy", [f"time<={factor * present['time_s']}s"], manner=Manner(budget=12))
    search(tuner, measure)
    chosen = measure(tuner.recommend().setting)
    assert chosen["time_s"] <= factor * present["time_s"] * (1 + 1e-9)
    assert chosen["energy_j"] <= present["energy_j"] * 1.001


def test_what_takes_long_to_switch_is_moved_less_often():
    """Compiling for another precision takes as long as ten trials, another batch nothing."""
    of = Space(
        knobs=(
            Knob(name="batch", levels=(1, 2, 4, 8, 16), present=1, saves="up"),
            Knob(name="precision", levels=("fp32", "tf32", "bf16"), present="fp32", saves="up"),
        )
    )

    def switches(told):
        tuner, before, moved = Tuner(of, "energy", manner=Manner(budget=9, least_gain=0.0)), "fp32", 0
        while (setting := tuner.ask()) is not None:
            moves = setting["precision"] != before
            energy_j = (5 + 4 / setting["batch"]) * {"fp32": 1.0, "tf32": 0.99, "bf16": 0.98}[setting["precision"]]
            tuner.tell(setting, {"energy_j": energy_j, **({"switch_ratio": 10.0 * moves} if told else {})}, EXACT)
            before, moved = setting["precision"], moved + moves
        return moved

    assert switches(told=True) < switches(told=False)
