"""Which workloads are measured, and in which order."""

import itertools
import math
import random

import pytest

from wattsmith.record.candidates import Candidate, Limits, candidates, fits, fitting, traced
from wattsmith.record.design import Cover, interleaved, placed
from wattsmith.record.families import FAMILIES, build, family_of, workload_of
from wattsmith.record.grid import GRIDS, grid
from wattsmith.record.presets import H200, PRESETS, cpu_sketch, gpu_sketch, points, preset_of
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.run import Structure

pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")

CPU = cpu_sketch(cores=2, memory_bytes=8 * 2**30)
LIMITS = Limits(longest_s=0.3, shortest_s=1e-4)
FEW = ["cnn", "mlp", "transformer-encoder", "lstm"]


@pytest.fixture(scope="module")
def few():
    """Forty or so candidates of four families on a large GPU."""
    return candidates(FEW, 40, H200, LIMITS, seed=0)


def made_up(family, flops, peak_bytes=1000):
    """A candidate that does so much, of a family that need not be."""
    structure = Structure(
        parameters=1, parameter_bytes=4, input_bytes=4, flops=flops, moved_bytes=1.0, launches=1, peak_bytes=peak_bytes
    )
    workload = workload_of("mlp", 1, parameters={"width": 8 + round(100 * math.log10(flops))})
    object.__setattr__(workload, "family", family)
    return Candidate(workload=workload, structure=structure, step_s=1.0)


# Grids


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("data-sets", 3 * 7 * 6 * 7 * 6 * 10),
        ("images", 16 * 7 * 6 * 7 * 6 * 10),
        ("topology", 5 * 4 * 7 * 2 * 6 * 4),
    ],
)
def test_a_whole_grid_has_every_combination_and_is_made_lazily(name, count):
    whole = grid(name)
    assert len(whole) == whole.whole == count
    first = list(itertools.islice(whole, 100))
    assert len({workload.key for workload in first}) == 100


def test_every_point_of_every_grid_can_be_built():
    for name in GRIDS:
        for workload in grid(name, sample=50, seed=1):
            family_of(workload)
        last = grid(name).at(grid(name).whole - 1)
        assert last.batch == 512
        with build(last, "meta") as program:
            assert program.parameters > 0


def test_a_grid_has_the_levels_of_the_original():
    levels = GRIDS["images"]
    assert levels["filters"] == levels["nodes"] == (8, 16, 32, 64, 128, 256, 512)
    assert levels["conv_layers"] == levels["dense_layers"] == (0, 1, 2, 3, 4, 5)
    assert levels["batch"] == tuple(2**power for power in range(10))
    assert levels["images"][0] == (16, 3)
    assert levels["images"][-1] == (256, 3)
    assert GRIDS["data-sets"]["images"] == ((28, 1), (32, 3), (128, 3))


def test_a_sample_of_a_grid_repeats_with_its_seed_and_holds_no_point_twice():
    once, again, other = (grid("data-sets", sample=30, seed=seed) for seed in (4, 4, 5))
    keys = [workload.key for workload in once]
    assert keys == [workload.key for workload in again]
    assert keys != [workload.key for workload in other]
    assert len(set(keys)) == 30


def test_a_grid_that_is_not_there_is_refused():
    with pytest.raises(BadTerm, match="there is no grid 'huge'; there are: data-sets, images, topology"):
        grid("huge")
    with pytest.raises(BadTerm, match="must have 1 to 52920 points, got 0"):
        grid("data-sets", sample=0)


# Candidates


def test_candidates_can_be_built_and_fit_the_device(few):
    chosen = [one for group in few.values() for one in group]
    assert len(chosen) >= 30
    for one in chosen:
        family_of(one.workload)
        assert one.structure.peak_bytes <= 0.95 * H200.memory_bytes
        assert one.step_s <= (3 if one.at_edge else 1) * LIMITS.longest_s


def test_some_candidates_come_close_to_the_memory_on_purpose():
    found = candidates(["light-chain"], 24, H200, LIMITS, seed=0)["light-chain"]
    edge = [one for one in found if one.at_edge]
    assert 1 <= len(edge) <= 6
    assert all(0.80 <= one.structure.peak_bytes / H200.memory_bytes <= 0.95 for one in edge)


def test_what_does_not_fit_is_dropped():
    small = gpu_sketch("T4", memory_bytes=10**6)
    large = workload_of("mlp", 64, parameters={"width": 1024})
    tiny = workload_of("mlp", 1, parameters={"width": 8})
    assert not fits(traced(large, small), small)
    assert list(fitting([large, tiny], small)) == [tiny]
    assert list(fitting([large, tiny], H200)) == [large, tiny]
    assert list(fitting([large, tiny], H200, longest_s=1e-9)) == []


def test_a_batch_is_made_smaller_where_a_step_would_take_too_long():
    strict = Limits(longest_s=1e-3)
    found = candidates(["transformer-decoder"], 12, H200, strict, seed=0)["transformer-decoder"]
    assert found
    assert all(one.step_s <= 1e-3 for one in found if not one.at_edge)


def test_the_same_seed_gives_the_same_candidates(few):
    again = candidates(["mlp"], 10, H200, LIMITS, seed=0)["mlp"]
    other = candidates(["mlp"], 10, H200, LIMITS, seed=1)["mlp"]
    same = [(one.workload.key, known.workload.key) for one, known in zip(again, few["mlp"], strict=False)]
    assert all(one == known for one, known in same)
    assert {one.workload.key for one in again}.isdisjoint(one.workload.key for one in other)


# Order


def widest_gap(positions, chosen):
    """How far the loneliest candidate is from the nearest one chosen."""
    apart = numpy.linalg.norm(positions[:, None] - positions[None, chosen], axis=2)
    return apart.min(axis=1).max()


def test_the_farthest_points_cover_better_than_random_ones(few):
    order = Cover(few)
    place = {one.workload.key: at for at, one in enumerate(order.candidates)}
    positions = placed(order.candidates)
    chosen = [place[workload.key] for workload in itertools.islice(order, 12)]
    chance = random.Random(0)
    by_chance = [widest_gap(positions, chance.sample(range(len(positions)), 12)) for _ in range(200)]
    better = sum(widest_gap(positions, chosen) < gap for gap in by_chance)
    assert better >= 0.9 * len(by_chance)


def test_a_record_that_is_cut_off_has_every_family_alike(few):
    first = [workload.family for workload in itertools.islice(Cover(few), 2 * len(FEW))]
    assert sorted(first) == sorted(2 * FEW)


def test_a_family_with_twice_the_share_has_twice_the_points():
    group = {name: [made_up(name, 10.0**n + at) for n in range(20)] for at, name in enumerate("ab")}
    first = [workload.family for workload in itertools.islice(Cover(group, {"a": 2.0}), 12)]
    assert (first.count("a"), first.count("b")) == (8, 4)


def test_the_ends_come_before_the_middle():
    """The first is any; then the one farthest from it; then what lies between them."""
    line = {"a": [made_up("a", 10.0**n) for n in range(5)]}
    flops = [one.structure.flops for one in line["a"]]
    order = Cover(line)
    keys = {one.workload.key: one.structure.flops for one in line["a"]}
    taken = [keys[workload.key] for workload in order]
    assert taken[:3] == [flops[0], flops[4], flops[2]]
    assert sorted(taken) == flops


def test_the_worst_predicted_neighbourhood_is_next():
    line = [made_up("a", 10.0**n) for n in range(9)]
    measured = line[0], line[4], line[8]
    for bad, around in ((line[0], line[1:4]), (line[8], line[5:8])):
        order = Cover({"a": line})
        for one in measured:
            order.skip(one.workload)
        errors = {one.workload.key: 0.9 if one is bad else 0.01 for one in measured}
        found = order.next_worst({**errors, "elsewhere": 5.0})
        assert found in [one.workload for one in around]


def test_without_errors_the_worst_is_the_farthest_and_in_the_end_there_is_none():
    line = {"a": [made_up("a", 10.0**n) for n in range(3)]}
    order = Cover(line)
    assert order.next_worst({}) is not None
    assert len(list(order)) == 2
    assert order.next_worst({}) is None


def test_what_was_measured_before_is_not_taken_again(few):
    order = Cover(few)
    known = few["mlp"][0].workload
    order.skip(known)
    assert known not in list(order)


def test_two_rows_are_spread_evenly_over_one():
    assert interleaved("ab", "1234") == ["1", "a", "2", "3", "b", "4"]
    assert interleaved([], "12") == ["1", "2"]


# Presets


def test_the_smoke_preset_is_a_dozen_small_points_of_many_families():
    chosen = points("smoke", CPU)
    assert len(chosen) == len({workload.key for workload in chosen}) == 12
    assert len({workload.family for workload in chosen}) >= 9
    assert all(traced(workload, CPU).step_s <= 0.05 for workload in chosen)
    assert {workload.precision for workload in chosen} <= {"fp32", "bf16"}
    assert [workload.key for workload in points("smoke", CPU)] == [workload.key for workload in chosen]


def test_the_basic_preset_has_every_family_and_mixes_networks_with_operators():
    chosen = points("basic", H200)
    assert len(chosen) == PRESETS["basic"].networks + PRESETS["basic"].operators
    assert {workload.family for workload in chosen} == set(FAMILIES)
    first = chosen[: len(chosen) // 2]
    assert 0.4 <= sum(workload.kind == "network" for workload in first) / len(first) <= 0.6


def test_presets_grow():
    sizes = [(one.networks, one.operators, one.budget_s) for one in PRESETS.values()]
    assert sizes == sorted(sizes)
    assert PRESETS["reference"].networks >= 220
    assert PRESETS["reference"].operators >= 640
    with pytest.raises(BadTerm, match="there is no preset 'tiny'; there are: smoke, basic"):
        preset_of("tiny")


def test_an_unknown_gpu_is_taken_for_a_modest_one():
    assert gpu_sketch("NVIDIA H200", 1).flops_per_s["bf16"] > gpu_sketch("Some GPU", 1).flops_per_s["bf16"]
