"""Windows add up what their domains say, count nothing twice and never turn unknown into a number."""

import pytest

from wattsmith.terms.energy import CrossCheck, DomainEnergy, MeterCard, Source, Window, not_enclosed
from wattsmith.terms.errors import BadTerm


def domain(name, energy_j, error_j=1.0, **more):
    unknown = {"error_j": None, "why": "no sensor"} if energy_j is None else {"error_j": error_j}
    return DomainEnergy(
        **{
            "domain": name,
            "name": name,
            "source": Source.COUNTER,
            "energy_j": energy_j,
            "resolution_s": 0.1,
            **unknown,
            **more,
        }
    )


def window(*domains, duration_s=2.0):
    return Window(name="w", began_at="2026-01-02T03:04:05+00:00", duration_s=duration_s, domains=domains)


def names(domains):
    return [d.domain for d in domains]


def test_separate_domains_add_up():
    both = window(domain("gpu:0", 300.0), domain("cpu-package:0", 100.0, error_j=3.0))
    assert both.energy_j == 400.0
    assert both.error_j == 4.0
    assert both.power_w == 200.0


def test_a_window_without_domains_costs_unknown_energy_not_none_at_all():
    assert window().energy_j is None
    assert window().error_j is None
    assert window().power_w is None


def test_one_unknown_domain_makes_the_sum_unknown():
    partly = window(domain("gpu:0", 300.0), domain("cpu-package:0", None))
    assert partly.energy_j is None
    assert partly.power_w is None
    assert partly.domain("gpu:0").energy_j == 300.0


def test_an_empty_stretch_has_no_mean_power():
    assert window(domain("gpu:0", 0.0), duration_s=0.0).power_w is None


def test_a_node_meter_counts_once_for_all_it_contains():
    whole = window(
        domain("node:0", 500.0, encloses=("gpu", "cpu-package", "dram")),
        domain("gpu:0", 300.0),
        domain("gpu:1", 50.0),
        domain("cpu-package:0", 100.0),
    )
    assert names(whole.counted) == ["node:0"]
    assert whole.energy_j == 500.0


def test_psys_contains_the_package_but_not_the_gpu():
    laptop = window(
        domain("psys:0", 120.0, encloses=("cpu-package", "dram")),
        domain("cpu-package:0", 80.0),
        domain("dram:0", 10.0),
        domain("gpu:0", 300.0),
    )
    assert names(laptop.counted) == ["psys:0", "gpu:0"]
    assert laptop.energy_j == 420.0


def test_a_part_that_is_unknown_does_not_hurt_inside_a_known_whole():
    assert window(domain("node:0", 500.0, encloses=("gpu",)), domain("gpu:0", None)).energy_j == 500.0


def test_the_parts_count_when_the_whole_is_unknown():
    parts = window(domain("node:0", None, encloses=("gpu",)), domain("gpu:0", 300.0))
    assert names(parts.counted) == ["gpu:0"]
    assert parts.energy_j == 300.0


def test_a_whole_that_is_unknown_and_has_no_parts_leaves_the_sum_unknown():
    alone = window(domain("node:0", None, encloses=("gpu",)))
    assert names(alone.counted) == ["node:0"]
    assert alone.energy_j is None


def test_a_whole_that_broke_off_is_not_added_to_its_parts():
    broken = domain("node:0", 200.0, encloses=("gpu",), complete=False, why="BMC stopped answering")
    assert names(not_enclosed([broken, domain("gpu:0", 300.0)])) == ["gpu:0"]


def test_a_window_is_simulated_as_soon_as_one_domain_is():
    assert window(domain("gpu:0", 1.0, simulated=True), domain("cpu-package:0", 1.0)).simulated
    assert not window(domain("gpu:0", 1.0)).simulated


def test_a_window_is_complete_only_when_every_domain_is():
    lost = domain("gpu:1", 1.0, complete=False, why="fell off the bus")
    assert window(domain("gpu:0", 1.0)).complete
    assert not window(domain("gpu:0", 1.0), lost).complete


def test_a_window_with_an_unknown_domain_is_not_complete():
    assert not window(domain("gpu:0", 1.0), domain("cpu-package:0", None)).complete


def test_asking_for_a_domain_that_is_not_there_lists_those_that_are():
    with pytest.raises(BadTerm, match=r"'w' has no domain 'gpu:7'; it has: gpu:0, gpu:1"):
        window(domain("gpu:0", 1.0), domain("gpu:1", 1.0)).domain("gpu:7")
    with pytest.raises(BadTerm, match=r"it has: none"):
        window().domain("gpu:0")


def test_a_window_cannot_last_less_than_nothing():
    with pytest.raises(BadTerm, match=r"duration_s must not be negative, got -1"):
        window(duration_s=-1.0)


def test_unknown_energy_must_say_why():
    with pytest.raises(BadTerm, match=r"unknown energy of gpu:0 must say why"):
        domain("gpu:0", None, why=None)


def test_energy_is_never_negative():
    with pytest.raises(BadTerm, match=r"energy of gpu:0 is negative: -3.0 J"):
        domain("gpu:0", -3.0)


def test_the_kind_of_a_domain_is_what_stands_before_its_number():
    assert domain("cpu-package:1", 1.0).kind == "cpu-package"


@pytest.mark.parametrize(("integrated_j", "agrees"), [(100.0, True), (105.0, True), (95.0, True), (106.0, False)])
def test_two_figures_agree_within_their_joint_error(integrated_j, agrees):
    check = CrossCheck(duration_s=5.0, counter_j=100.0, integrated_j=integrated_j, joint_error_j=5.0)
    assert check.agrees is agrees


def test_a_meter_that_tells_nothing_is_refused():
    with pytest.raises(BadTerm, match=r"meter gpu:0 gives neither a counter nor power"):
        MeterCard(domain="gpu:0", name="a card", source=Source.COUNTER)


def card(**periods):
    return MeterCard(domain="gpu:0", name="a card", source=Source.COUNTER, poll_period_s=0.1, **periods)


@pytest.mark.parametrize(
    ("periods", "resolution_s"),
    [
        ({"counter_period_s": 0.001}, 0.1),  # read ten times a second, however fast it counts
        ({"counter_period_s": 0.5}, 0.5),
        ({"power_period_s": 1.0}, 1.0),
        ({"power_period_s": 0.02}, 0.1),
        ({"power_period_s": 0.02, "history_s": 2.0}, 0.02),  # the driver kept what we did not poll
        ({"power_period_s": 0.02, "history_s": 2.0, "counter_period_s": 0.1}, 0.02),
    ],
)
def test_a_meter_resolves_what_it_is_read_at(periods, resolution_s):
    assert card(**periods).resolution_s == resolution_s


@pytest.mark.parametrize(
    ("periods", "unseen_ratio"),
    [
        ({"counter_period_s": 0.1}, 0.0),
        ({"power_period_s": 1.0, "power_window_s": 1.0}, 0.0),
        ({"power_period_s": 0.5, "power_window_s": 1.0}, 0.0),
        ({"power_period_s": 1.0, "power_window_s": 0.25}, 0.75),
        ({"power_period_s": 1.0}, 1.0),
    ],
)
def test_a_sensor_that_averages_for_part_of_the_time_says_how_much_it_leaves_out(periods, unseen_ratio):
    assert card(**periods).unseen_ratio == unseen_ratio


def test_the_kind_of_a_meter_is_that_of_its_domain():
    assert card(power_period_s=0.1).kind == "gpu"


def test_in_a_line_a_window_tells_its_energy_with_bound_and_source():
    both = window(domain("gpu:0", 300.0, simulated=True), domain("cpu-package:0", 100.0, error_j=3.0, complete=False))
    assert str(both) == "w: 2 s, 400 J ± 4 J (gpu:0, counter, simulated; cpu-package:0, counter, incomplete)"


def test_in_a_line_a_window_tells_that_its_energy_is_unknown_and_why():
    assert str(window()) == "w: 2 s, energy unknown: no meter was found; `wattsmith machine` says why"
    assert str(window(domain("gpu:0", 300.0), domain("gpu:1", None))) == "w: 2 s, energy unknown: no sensor"
