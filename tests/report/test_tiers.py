import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.report.tiers import Basis, MeterKind, Tier, basis_of, standing_of, tier_of, weakest
from wattsmith.terms.energy import DomainEnergy, Source, Window
from wattsmith.terms.errors import BadTerm

OFFICIAL = Basis(
    meter=MeterKind.WALL,
    official_workflow=True,
    listed_meter=True,
    loadgen=True,
    ranged=True,
    check_passed=True,
    window_s=600.0,
    samples=600,
)

BASES = st.builds(
    Basis,
    meter=st.sampled_from(MeterKind),
    simulated=st.booleans(),
    replayed=st.booleans(),
    official_workflow=st.booleans(),
    listed_meter=st.sampled_from([None, True, False]),
    loadgen=st.booleans(),
    ranged=st.sampled_from([None, True, False]),
    check_passed=st.sampled_from([None, True, False]),
    window_s=st.none() | st.floats(0, 1e4),
    samples=st.none() | st.integers(0, 10_000),
    accuracy_ratio=st.none() | st.floats(0, 1),
    complete=st.booleans(),
)


def domain(name, *, source=Source.COUNTER, energy_j=100.0, readings=100, **more):
    return DomainEnergy(
        domain=name,
        name=name,
        source=source,
        energy_j=energy_j,
        error_j=1.0,
        resolution_s=1.0,
        readings=readings,
        **more,
    )


def window(*domains, duration_s=100.0):
    return Window(name="w", began_at="2026-01-01T00:00:00+00:00", duration_s=duration_s, domains=domains)


def test_the_official_workflow_with_all_it_asks_for_is_a_candidate():
    standing = standing_of(OFFICIAL)
    assert standing.tier is Tier.A
    assert standing.may_be_called == "a candidate for submission; an MLPerf result only after review"
    assert standing.lacks == ()


@pytest.mark.parametrize(
    "change",
    [
        {"official_workflow": False},
        {"listed_meter": None},
        {"loadgen": False},
        {"check_passed": None},
        {"check_passed": False},
        {"ranged": False},
        {"window_s": 59.0},
        {"samples": 59},
        {"complete": False},
    ],
)
def test_whatever_is_taken_away_it_is_no_candidate_any_more(change):
    assert tier_of(dataclasses.replace(OFFICIAL, **change)) is Tier.B


def test_our_engine_at_the_wall_is_style():
    standing = standing_of(dataclasses.replace(OFFICIAL, official_workflow=False))
    assert standing.may_be_called == "MLPerf-Power-style, unverified"
    assert "an MLPerf result" in standing.may_not_be_called


def test_a_shortened_session_says_so():
    standing = standing_of(dataclasses.replace(OFFICIAL, official_workflow=False, window_s=2.0, samples=2))
    assert "falls short" in standing.may_be_called
    assert standing.lacks[0] == "its window is 2 s long; the rules ask for 60 s"


@pytest.mark.parametrize(
    ("meter", "tier"),
    [
        (MeterKind.NODE, Tier.C),
        (MeterKind.COMPONENT, Tier.D),
        (MeterKind.TINY, Tier.E),
        (MeterKind.MODELLED, Tier.F),
        (MeterKind.DECLARED, Tier.F),
        (MeterKind.UNSTATED, Tier.F),
        (MeterKind.NONE, Tier.F),
    ],
)
def test_the_letter_follows_from_the_meter(meter, tier):
    assert tier_of(Basis(meter=meter)) is tier


def test_node_telemetry_needs_its_accuracy_shown():
    told = Basis(meter=MeterKind.NODE, window_s=60.0, samples=60, accuracy_ratio=0.05)
    assert "Training-style" in standing_of(told).may_be_called
    assert "no accuracy is shown" in standing_of(dataclasses.replace(told, accuracy_ratio=None)).lacks[0]
    assert "6.0%" in standing_of(dataclasses.replace(told, accuracy_ratio=0.06)).lacks[0]


def test_a_tiny_device_needs_five_windows_of_ten_seconds():
    told = Basis(meter=MeterKind.TINY, listed_meter=True, window_s=10.0, measurements=5)
    assert standing_of(told).may_be_called == "MLPerf-Tiny-style energy, unverified"
    assert "candidate" in standing_of(dataclasses.replace(told, official_workflow=True)).may_be_called
    assert len(standing_of(dataclasses.replace(told, window_s=9.0, measurements=4)).lacks) == 2


@given(BASES)
def test_what_is_simulated_is_nothing_but_f(basis):
    standing = standing_of(dataclasses.replace(basis, simulated=True))
    assert standing.tier is Tier.F
    assert standing.may_be_called == "simulated energy"


@given(BASES)
def test_nothing_but_the_official_workflow_is_a_candidate(basis):
    if not basis.official_workflow:
        assert "candidate" not in standing_of(basis).may_be_called


@given(BASES)
def test_every_figure_may_be_called_something_and_may_not_be_called_an_mlperf_result(basis):
    standing = standing_of(basis)
    assert standing.may_be_called
    assert standing.may_not_be_called[0].startswith("an MLPerf result")
    assert standing.text().startswith(f"Tier {standing.tier}")


@given(BASES)
def test_a_recording_keeps_the_tier_of_its_source(basis):
    assert tier_of(dataclasses.replace(basis, replayed=True)) is tier_of(dataclasses.replace(basis, replayed=False))


@given(BASES)
def test_a_longer_window_with_more_samples_never_lacks_more(basis):
    longer = dataclasses.replace(basis, window_s=(basis.window_s or 0) + 60, samples=(basis.samples or 0) + 60)
    if tier_of(longer) is tier_of(basis):
        assert set(standing_of(longer).lacks) <= set(standing_of(basis).lacks)


def test_a_sum_is_no_better_than_its_weakest_part():
    assert weakest([MeterKind.WALL, MeterKind.COMPONENT]) is MeterKind.COMPONENT
    mixed = window(domain("gpu:0"), domain("cpu-package:0", source=Source.MODELLED))
    assert basis_of(mixed).meter is MeterKind.MODELLED


def test_a_node_that_encloses_its_gpu_counts_alone():
    told = basis_of(window(domain("node:0", source=Source.EXTERNAL, encloses=("gpu",), readings=99), domain("gpu:0")))
    assert (told.meter, told.samples, told.window_s) == (MeterKind.NODE, 99, 100.0)


def test_unknown_energy_is_not_shown():
    unknown = domain("gpu:0", energy_j=None, why="no counter")
    assert basis_of(window(unknown)).meter is MeterKind.NONE
    assert standing_of(basis_of(window())).may_be_called == "unknown"


def test_a_power_trace_that_is_played_does_not_show_what_measured_it():
    played = dataclasses.replace(domain("wall:0", source=Source.EXTERNAL), name="replay of trace.csv")
    assert tier_of(basis_of(window(played))) is Tier.F


def test_a_simulated_part_makes_the_whole_simulated():
    assert tier_of(basis_of(window(domain("gpu:0"), domain("gpu:1", simulated=True)))) is Tier.F


def test_a_length_that_makes_no_sense_is_refused():
    with pytest.raises(BadTerm, match="window_s"):
        Basis(meter=MeterKind.WALL, window_s=-1.0)
    with pytest.raises(BadTerm, match="samples"):
        Basis(meter=MeterKind.WALL, samples=-1)
