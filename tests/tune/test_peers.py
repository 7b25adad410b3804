"""Other ways to search, in the same interface."""

import pytest
from tests.tune.making import optimum, search, space, work

from wattsmith.terms.errors import BadInput
from wattsmith.terms.tuning import Failed
from wattsmith.tune.peers import METHODS, Peer

LIMIT = "time<=1.4s"


@pytest.mark.parametrize("method", METHODS)
def test_every_way_starts_at_the_present_setting_and_tries_none_twice(method):
    asked = search(Peer(method, space(), "energy", [LIMIT]), work())
    assert asked[0] == {"batch": 32, "power_limit_w": 250}
    assert len({tuple(one.values()) for one in asked}) == len(asked)


@pytest.mark.parametrize("method", ["random", "grid", "polythrottle"])
def test_ways_that_see_everything_find_the_optimum(method):
    peer = Peer(method, space(), "energy", [LIMIT])
    assert len(search(peer, work())) == 16
    assert peer.best() == optimum(space(), work(), 1.4)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_chosen_keeps_the_limit(method):
    peer = Peer(method, space(), "energy", [LIMIT])
    search(peer, work())
    assert work()(peer.best())["time_s"] <= 1.4


def test_the_lowest_limit_is_not_always_the_least_energy():
    def measure(setting):
        return {"energy_j": {100: 9.0, 150: 5.0, 200: 6.0, 250: 7.0}[setting["power_limit_w"]], "time_s": 1.0}

    lowest = Peer("one-factor, lowest", space(), "energy", [LIMIT])
    least = Peer("one-factor, least energy", space(), "energy", [LIMIT])
    search(lowest, measure)
    search(least, measure)
    assert lowest.best()["power_limit_w"] == 100
    assert least.best()["power_limit_w"] == 150


@pytest.mark.parametrize("method", METHODS)
def test_failures_are_lived_with(method):
    def measure(setting):
        return Failed(why="out of memory") if setting["batch"] == 64 else work()(setting)

    peer = Peer(method, space(), "energy", ["time<=2s"])
    search(peer, measure)
    assert peer.best()["batch"] < 64


def test_two_seeds_differ_and_one_repeats():
    one, again, other = (search(Peer("random", space(), seed=seed), work()) for seed in (1, 1, 2))
    assert one == again != other


def test_an_unknown_method_is_refused():
    with pytest.raises(BadInput, match="no method 'luck'; there are random"):
        Peer("luck", space())
