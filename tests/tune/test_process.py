"""The Gaussian process: right where it was told, in doubt elsewhere."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.tune.process import Laws, Mixture, Surface, matern, usual_grids

np = pytest.importorskip("numpy")

LINE = np.linspace(0, 1, 11)[:, None]


def test_it_goes_through_what_was_measured_without_noise():
    law = Surface(LINE).believe([0, 5, 10], [0.0, 0.3, 0.4], [1e-4] * 3)
    assert law.average()[[0, 5, 10]] == pytest.approx([0.0, 0.3, 0.4], abs=1e-3)
    assert law.deviation()[[0, 5, 10]].max() < 1e-3


def test_doubt_grows_with_the_distance_to_what_was_measured():
    doubt = Surface(LINE).believe([0, 1], [0.0, 0.1], [0.01, 0.01]).deviation()
    assert list(doubt[1:]) == sorted(doubt[1:])


def test_repeats_narrow_the_doubt():
    once = Surface(LINE).believe([0, 5], [0.0, 0.2], [0.1, 0.1]).deviation()[5]
    often = Surface(LINE).believe([0, *[5] * 9], [0.0, *[0.2] * 9], [0.1] * 10).deviation()[5]
    assert often < once / 2


def test_a_straight_line_is_gone_on_with():
    law = Surface(LINE).believe(range(6), 0.5 * LINE[:6, 0], [1e-3] * 6)
    assert law.average()[10] == pytest.approx(0.5, abs=0.1)


def test_matern_is_one_at_home_and_falls():
    assert matern(np.array(0.0)) == 1
    assert matern(np.array(1.0)) > matern(np.array(2.0)) > 0


@pytest.mark.parametrize("knobs", [1, 2, 3, 5])
def test_many_knobs_do_not_make_many_grids(knobs):
    assert len(usual_grids(knobs)) <= 96


def normal(mean, spread, weights=(1.0,)):
    return Mixture(weights=np.array(weights), mean=np.array(mean), spread=np.array(spread))


@given(
    mean=st.floats(-2, 2),
    spread=st.floats(0.01, 2),
    best=st.floats(-2, 2),
    other=st.floats(-2, 2),
    bound=st.floats(-2, 2),
)
def test_a_gain_under_limits_is_positive_and_at_most_the_gain_without(mean, spread, best, other, bound):
    free = Laws(objective=normal([[mean]], [[spread]]), limited=(), bounds=(), together=False)
    held = Laws(
        objective=normal([[mean]], [[spread]]), limited=(normal([[other]], [[0.3]]),), bounds=(bound,), together=False
    )
    assert -1e-12 <= held.gain(best)[0] <= free.gain(best)[0] + 1e-12
    assert 0 <= held.holds()[0] <= 1


def test_parts_that_belong_together_are_not_mixed():
    """Either it saves and breaks the limit, or it does neither: then nothing is to be gained."""
    objective = normal([[-1.0], [1.0]], [[0.01], [0.01]], weights=(0.5, 0.5))
    limited = normal([[1.0], [-1.0]], [[0.01], [0.01]], weights=(0.5, 0.5))
    together = Laws(objective=objective, limited=(limited,), bounds=(0.0,), together=True)
    apart = Laws(objective=objective, limited=(limited,), bounds=(0.0,), together=False)
    assert together.gain(0.0)[0] == pytest.approx(0.0, abs=1e-6)
    assert apart.gain(0.0)[0] == pytest.approx(0.25, abs=1e-6)
