"""Trials as a picture."""

import pytest
from tests.tune.making import EXACT, search, space, work

from wattsmith.terms.errors import NotWritten
from wattsmith.tune.plot import plot_tuned
from wattsmith.tune.result import tuned
from wattsmith.tune.search import Tuner

pytest.importorskip("matplotlib", reason="PICTURES ARE NOT TESTED: matplotlib is not installed")
pytest.importorskip("scipy")


def found(limits):
    tuner = Tuner(space(), "energy", limits)
    search(tuner, work(), EXACT)
    return tuned(tuner, "energy", finished=True)


@pytest.mark.parametrize("limits", [["time<=1.5s"], ["time<=1.1x"], []])
def test_trials_are_drawn(tmp_path, limits):
    picture = tmp_path / "trials.svg"
    plot_tuned(found(limits), limits, picture)
    assert "<svg" in picture.read_text()


def test_a_place_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(NotWritten, match="cannot be written"):
        plot_tuned(found([]), [], tmp_path / "nowhere" / "trials.png")
