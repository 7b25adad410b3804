"""Knobs that are files: CPU clocks and governors, RAPL limits, Jetson's clocks."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.control.sysfs_knobs import find_sysfs_knobs, ordered_writes
from wattsmith.terms.control import KnobLost, NotPermitted


def knobs(tree):
    return {knob.card.name: knob for knob in find_sysfs_knobs(tree.root)}


def test_every_kind_is_found(tree):
    assert list(knobs(tree)) == [
        "cpu:0/clock",
        "cpu:0/governor",
        "cpu-package:0/power_limit_long_term",
        "cpu-package:0/power_limit_short_term",
        "soc-gpu:0/clock",
        "soc-emc/clock",
    ]


def test_a_machine_without_any_has_none(tmp_path):
    assert find_sysfs_knobs(tmp_path) == []


def test_knobs_of_a_simulated_tree_say_so(tree):
    assert all(knob.card.simulated and "simulated" in knob.card.title for knob in knobs(tree).values())


@pytest.mark.parametrize(
    ("name", "found", "wanted"),
    [
        ("cpu:0/clock", (800e6, 3e9), (1e9, 2e9)),
        ("cpu:0/governor", "performance", "powersave"),
        ("cpu-package:0/power_limit_long_term", 250.0, 125.0),
        ("soc-gpu:0/clock", (306e6, 918e6), (612e6, 612e6)),
        ("soc-emc/clock", None, 1_600e6),
    ],
)
def test_what_is_set_is_read_and_verified_and_can_be_set_back(tree, name, found, wanted):
    knob = knobs(tree)[name]
    assert knob.read() == found
    knob.set(wanted)
    assert knob.read() == wanted
    assert knob.verify(wanted).in_force
    knob.set(found)
    assert knob.read() == found


def test_a_cap_above_the_running_clock_is_said_to_have_no_effect(tree):
    clock = knobs(tree)["soc-gpu:0/clock"]
    (tree.root / "class/devfreq/17000000.gpu/cur_freq").write_text("306000000\n")
    clock.set((306e6, 612e6))
    assert "no effect" in clock.verify((306e6, 612e6)).note


def test_what_the_kernel_does_not_keep_is_not_in_force(tree):
    limit = knobs(tree)["cpu-package:0/power_limit_long_term"]
    seen = limit.verify(125.0)
    assert (seen.told, seen.in_force) == (250.0, False)


ends = st.tuples(st.integers(1, 9), st.integers(1, 9)).map(lambda pair: (float(min(pair)), float(max(pair))))


@given(now=ends, wanted=ends)
def test_the_least_never_stands_above_the_most_on_the_way(now, wanted):
    stands = {"least": now[0], "most": now[1]}
    for end, value in ordered_writes(now, wanted):
        stands[end] = value
        assert stands["least"] <= stands["most"]
    assert (stands["least"], stands["most"]) == wanted


def test_a_file_that_is_gone_is_a_knob_that_is_lost(tree):
    knob = knobs(tree)["cpu:0/governor"]
    (tree.root / "devices/system/cpu/cpufreq/policy0/scaling_governor").unlink()
    with pytest.raises(KnobLost, match="cpu:0/governor"):
        knob.set("powersave")


@pytest.fixture
def ordinary_user():
    """This process as one that may not write every file."""
    before = os.geteuid()
    if before == 0:
        os.seteuid(65_534)
    yield
    os.seteuid(before)


def test_a_file_that_may_not_be_written_is_not_permitted(tree, request):
    knob = knobs(tree)["cpu:0/governor"]
    (tree.root / "devices/system/cpu/cpufreq/policy0/scaling_governor").chmod(0o444)
    request.getfixturevalue("ordinary_user")
    with pytest.raises(NotPermitted, match=r"cpu:0/governor: not permitted.*wattsmith control serve"):
        knob.set("powersave")


def test_what_was_longer_before_leaves_nothing_behind(tree):
    knob = knobs(tree)["cpu:0/governor"]
    knob.set("powersave")
    assert (tree.root / "devices/system/cpu/cpufreq/policy0/scaling_governor").read_text() == "powersave\n"


def test_devices_of_two_trees_are_never_taken_for_each_other(tree, tmp_path):
    other = type(tree)(tmp_path / "other")
    other.add_cpufreq(0, min_hz=1e9, max_hz=2e9)
    assert knobs(tree)["cpu:0/clock"].card.identity != knobs(other)["cpu:0/clock"].card.identity
