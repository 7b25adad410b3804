"""The cheapest cut is as cheap as the best of all cuts, tried one by one."""

from itertools import combinations

from hypothesis import given, settings
from hypothesis.strategies import integers, lists, tuples

from wattsmith.split.mincut import ENDLESS, Network

EDGES = lists(tuples(integers(0, 5), integers(0, 5), integers(0, 9)), max_size=14)


def cost(edges, source_side):
    return sum(price for start, end, price in edges if start in source_side and end not in source_side)


def network(edges):
    net = Network()
    for start, end, price in edges:
        net.edge(start, end, price)
    return net


@settings(max_examples=150, deadline=None)
@given(edges=EDGES)
def test_no_other_cut_is_cheaper(edges):
    found, side = network(edges).cut(0, 5)
    assert 0 in side
    assert 5 not in side
    assert cost(edges, side) == found
    others = [{0, *some} for count in range(5) for some in combinations(range(1, 5), count)]
    assert found == min(cost(edges, one) for one in others)


@settings(max_examples=50, deadline=None)
@given(edges=EDGES)
def test_of_equally_cheap_cuts_the_one_with_most_on_the_side_of_the_source_is_taken(edges):
    found, side = network(edges).cut(0, 5)
    named = {node for start, end, _ in edges for node in (start, end)} | {0, 5}
    others = [{0, *some} for count in range(5) for some in combinations(named - {0, 5}, count)]
    assert len(side) == max(len(one) for one in others if cost(edges, one) == found)


def test_an_endless_edge_is_not_cut_if_there_is_another_way():
    net = network([("data", "a", ENDLESS), ("a", "b", 7), ("b", "training", ENDLESS)])
    assert net.cut("data", "training") == (7, {"data", "a"})
