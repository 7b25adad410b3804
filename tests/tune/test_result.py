"""What a search came to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.tune.making import search, space, work

from wattsmith.terms.tuning import Failed
from wattsmith.tune.judge import Seen
from wattsmith.tune.result import pareto, tuned
from wattsmith.tune.search import Tuner


def seen(*figures):
    return [Seen(cell=(at,), objective=one[0], limited=one[1:]) for at, one in enumerate(figures)]


def test_what_another_beats_in_everything_is_not_on_the_front():
    assert pareto(seen((3.0, 1.0), (2.0, 2.0), (3.0, 3.0))) == [1, 0]


def test_of_two_alike_the_first_stays():
    assert pareto(seen((1.0, 1.0), (1.0, 1.0))) == [0]


def test_a_failed_trial_is_on_no_front():
    assert pareto([Seen(cell=(0,), failed="out of memory"), *seen((1.0, 1.0))]) == [1]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=12))
def test_everything_is_on_the_front_or_beaten_by_something_on_it(figures):
    front = pareto(seen(*figures))
    for figure in figures:
        assert any(all(a <= b for a, b in zip(figures[at], figure, strict=True)) for at in front)


def result(measure, limits=("time<=1.4s",)):
    tuner = Tuner(space(), "energy", limits)
    search(tuner, measure)
    return tuned(tuner, "energy", finished=True)


def test_the_search_is_paid_back_when_its_energy_is_saved():
    def measure(setting):
        metrics = work()(setting)
        return metrics | {"spent_j": 10 * metrics["energy_j"]}

    found = result(measure)
    spent_j = sum(one.trial.metrics["spent_j"] for one in found.trials)
    saved_j = work()({"batch": 32, "power_limit_w": 250})["energy_j"] - found.recommendation.objective.value
    assert found.spent_j == pytest.approx(spent_j)
    assert found.pays_back_after == pytest.approx(spent_j / saved_j, rel=0.05)


def test_what_a_failed_trial_spent_is_counted_where_it_is_known():
    tuner = Tuner(space(), "energy")
    tuner.tell({"batch": 32, "power_limit_w": 250}, {"energy_j": 2.0, "spent_j": 20.0})
    tuner.tell({"batch": 64, "power_limit_w": 250}, Failed(why="took too long", spent_j=300.0))
    assert tuned(tuner, "energy", finished=True).spent_j == 320.0


def test_unknown_energy_of_trials_stays_unknown():
    found = result(work())
    assert found.spent_j is None
    assert found.pays_back_after is None


def test_the_saving_is_told_with_an_interval_that_holds_it():
    found = result(work())
    present = work()({"batch": 32, "power_limit_w": 250})["energy_j"]
    true = 1 - work()(found.recommendation.setting)["energy_j"] / present
    assert found.recommendation.saving.low <= true <= found.recommendation.saving.high


def test_trials_are_judged_by_the_worst_limit():
    found = result(work())
    first = found.trials[0]
    assert first.excess_ratio == pytest.approx(1.25 / 1.4 - 1)
    assert first.objective == pytest.approx(300.0)


def test_simulated_energy_stays_marked():
    assert result(lambda setting: work()(setting) | {"simulated": 1.0}).simulated
    assert not result(work()).simulated
