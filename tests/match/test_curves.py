"""Curves blended from recorded ones, and settings chosen by them."""

from dataclasses import replace
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.match.programs import SETTINGS, power_at, probed, program, programs, time_at

from wattsmith.match.blending import folds
from wattsmith.match.curves import curve_book, guess_response, probe_setting
from wattsmith.match.nearness import distances, learnt_weights, scale_of
from wattsmith.match.settling import choose_setting, settle, settle_unguided
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.telemetry import Fingerprint, Probe, RelativeResponse

np = pytest.importorskip("numpy")


def guess(point, others, *probes, with_doubt=False):
    return guess_response(curve_book(others), point.features, probes, with_doubt=with_doubt, power_w=200.0)


def test_a_program_between_two_others_has_a_curve_between_theirs():
    new = program("new", 0.45, 0.4)
    found, _, _ = guess(new, programs(), probed(new, 0.65))
    half = found.at(0.5)
    assert found.time_ratio[half].value == pytest.approx(time_at(0.5, 0.45), rel=0.02)
    assert found.power_ratio[half].value == pytest.approx(power_at(0.5, 0.4), rel=0.02)


def test_the_curve_passes_through_what_was_probed_and_through_the_usual_setting():
    new = program("new", 0.9, 0.3)
    found, _, _ = guess(new, programs(), Probe(setting=0.65, time_ratio=1.33, power_ratio=0.66))
    assert found.time_ratio[found.at(0.65)].value == pytest.approx(1.33)
    assert found.power_ratio[found.at(0.65)].value == pytest.approx(0.66)
    assert found.time_ratio[-1].value == found.power_ratio[-1].value == 1.0


def test_a_probe_makes_the_curve_surer():
    new = program("new", 0.45, 0.4)
    others = programs()
    plain, _, _ = guess(new, others, with_doubt=True)
    sure, _, _ = guess(new, others, probed(new, 0.65), with_doubt=True)
    assert sure.time_ratio[0].high - sure.time_ratio[0].low < plain.time_ratio[0].high - plain.time_ratio[0].low


def test_power_is_scaled_to_the_clients_own_level():
    new = program("new", 0.45, 0.4)
    found, _, _ = guess(new, programs(), probed(new, 0.65))
    assert found.power_w[-1].value == 200.0
    assert found.power_w[0].value == pytest.approx(200.0 * found.power_ratio[0].value)


def test_weights_of_the_blend_add_up_to_one():
    new = program("new", 0.3, 0.5)
    _, _, shares = guess(new, programs(), probed(new, 0.65))
    assert sum(shares) == pytest.approx(1.0)


def test_a_client_that_lacks_features_is_guessed_by_those_it_has():
    new = program("new", 0.45, 0.4, sm=None, power_mean=None)
    found, blender, _ = guess(new, programs(), probed(new, 0.65))
    assert blender.features.shape[1] == 4  # dram, occupancy, and the two of the probe
    assert found.time_ratio[0].value == pytest.approx(time_at(0.4, 0.45), rel=0.05)


def test_a_benchmark_that_lacks_a_feature_still_counts():
    others = [*programs(), program("blind", 0.46, 0.4, sm=None)]
    new = program("new", 0.45, 0.4)
    found, _, _ = guess(new, others, probed(new, 0.65))
    assert found.time_ratio[0].value == pytest.approx(time_at(0.4, 0.45), rel=0.05)


def test_curves_on_other_settings_are_brought_onto_one_grid():
    coarse = program("coarse", 0.5, 0.5)
    few = (0.4, 0.7, 1.0)
    response = RelativeResponse(
        settings=few,
        time_ratio=tuple(time_at(one, 0.5) for one in few),
        power_ratio=tuple(power_at(one, 0.5) for one in few),
    )
    book = curve_book([*programs(), replace(coarse, response=response)])
    assert book.settings == SETTINGS
    assert np.exp(book.logs[-1][book.settings.index(0.7)]) == pytest.approx(time_at(0.7, 0.5))


def test_a_limit_does_nothing_until_it_bites():
    """Programs that draw half of the limit and all of it: twice as slow at half of what they draw."""

    def capped(name, draw):
        bites = [min(1.0, setting / draw) for setting in SETTINGS]
        response = RelativeResponse(
            settings=SETTINGS, time_ratio=tuple(1 / one for one in bites), power_ratio=tuple(bites), knob="power_limit"
        )
        return replace(program(name, 0.5, 0.5, power_mean=draw), response=response)

    book = curve_book([capped(f"p{draw}", draw) for draw in (0.5, 0.8, 0.9, 1.0)], drawn_ratio=0.8)
    half = book.settings.index(0.4)
    assert np.exp(book.logs[1:, half]) == pytest.approx([2.0, 2.0, 2.0], rel=0.02)
    assert np.exp(book.logs[:, book.settings.index(0.9)]) == pytest.approx(np.ones(4), rel=0.02)


def test_too_few_curves_are_refused():
    with pytest.raises(BadTerm, match="at least 4"):
        curve_book(programs()[:3])


def test_the_probe_is_near_two_thirds():
    assert probe_setting(SETTINGS) == 0.65


def test_a_probe_without_figures_is_refused():
    with pytest.raises(BadTerm, match="time_ratio, a power_ratio, or both"):
        Probe(setting=0.5)


def test_a_feature_that_tells_nothing_of_curves_weighs_less():
    chance = np.random.default_rng(0)
    telling = chance.random(40)
    features = np.stack([telling, chance.random(40)], axis=1)
    scaled = scale_of(features).applied(features)
    weights = learnt_weights(scaled, telling[:, None] * np.ones((1, 5)), list(range(40)))
    assert weights[0] > 10 * weights[1]


def test_what_one_of_two_lacks_is_left_out_between_them():
    here, there = np.array([[0.0, 0.0]]), np.array([[3.0, np.nan], [3.0, 3.0]])
    far = distances(here, there, np.ones(2))[0]
    assert far[0] == pytest.approx(far[1])


def test_groups_are_left_out_whole():
    assert folds(["a", "b", "a", "c"]) == [[0, 2], [1], [3]]


def test_the_best_setting_keeps_the_limit():
    new = program("new", 0.5, 0.2)
    found, _, _ = guess(new, programs(), probed(new, 0.65))
    place = choose_setting(found, 0.1)
    assert found.settings[place] == pytest.approx(0.85)  # 1 + 0.5 (1 / 0.85 - 1) = 1.088; at 0.80 it is 1.125


def test_caution_asks_more_than_the_middle():
    new = program("new", 0.5, 0.2)
    found, _, _ = guess(new, programs(), probed(new, 0.65), with_doubt=True)
    assert found.settings[choose_setting(found, 0.1, cautious=True)] >= found.settings[choose_setting(found, 0.1)]


@settings(max_examples=25)
@given(bound=st.floats(0.0, 1.0), rest=st.floats(0.1, 0.8), slowdown=st.sampled_from([0.02, 0.05, 0.1]))
def test_a_job_that_is_watched_never_stays_beyond_its_limit(bound, rest, slowdown):
    new = program("new", bound, rest)
    end = settle(
        curve_book(programs()),
        Fingerprint(features=new.features),
        probed(new, 0.65),
        partial(probed, new),
        slowdown=slowdown,
    )
    assert time_at(end.setting, bound) <= 1 + slowdown + 1e-9
    assert end.energy_ratio <= 1.0


def test_a_job_that_surprises_is_moved_back():
    surprising = program("new", 0.9, 0.3, sm=0.05, dram=0.95)  # looks like memory work, is not
    end = settle(
        curve_book(programs()),
        Fingerprint(features=surprising.features),
        Probe(setting=0.65, time_ratio=1.01, power_ratio=0.75),  # a probe that was wrong
        partial(probed, surprising),
        slowdown=0.05,
        trials=5,
    )
    assert end.setting == 0.65 or time_at(end.setting, 0.9) <= 1.05


@settings(max_examples=25)
@given(bound=st.floats(0.0, 1.0), slowdown=st.sampled_from([0.02, 0.05, 0.1]))
def test_a_job_unlike_everything_is_settled_by_looking_alone(bound, slowdown):
    new = program("new", bound, 0.3)
    end = settle_unguided(SETTINGS, partial(probed, new), slowdown=slowdown)
    assert time_at(end.setting, bound) <= 1 + slowdown + 1e-9
    assert end.energy_ratio <= 1.0


def test_without_progress_nothing_is_slowed():
    new = program("new", 0.5, 0.2)
    end = settle(
        curve_book(programs()),
        Fingerprint(features=new.features),
        Probe(setting=0.65, power_ratio=0.7),
        lambda setting: Probe(setting=setting, power_ratio=0.8),
        slowdown=0.05,
    )
    assert end.setting == 1.0
