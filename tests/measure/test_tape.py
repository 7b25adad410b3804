"""The curve: exact where it can be, honest where it cannot."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.measure.tape import Tape, energy_between
from wattsmith.terms.energy import CounterReading, DomainEnergy, MeterCard, PowerSample, Readings, Source


def polled_card(**changes):
    facts = {"domain": "gpu:0", "name": "card", "source": Source.POLLED, "power_period_s": 0.1, "power_window_s": 0.1}
    return MeterCard(**facts | changes)


def counting_card(**changes):
    facts = {"source": Source.COUNTER, "counter_period_s": 0.1, "history_s": 2.0}
    return polled_card(**facts | {"power_period_s": 0.02, "power_window_s": 0.02} | changes)


def tape_of(samples, card=None):
    tape = Tape(card or polled_card())
    tape.feed(Readings(power=tuple(PowerSample(t, p) for t, p in samples)))
    return tape


def energy(tape, begin_s, end_s) -> DomainEnergy:
    return energy_between(tape.card, tape.mark(begin_s), tape.mark(end_s, begin_s))


def every(period_s, power_w, begin_s=0.0, end_s=10.0):
    """Samples of a power curve every PERIOD_S."""
    steps = round((end_s - begin_s) / period_s)
    return [(begin_s + i * period_s, power_w(begin_s + i * period_s)) for i in range(steps + 1)]


def test_a_steady_load_costs_power_times_time():
    tape = tape_of([(0, 200), (1, 200), (3, 200)], polled_card(poll_period_s=2.0))
    assert energy(tape, 0, 3).energy_j == 600


def test_repeated_equal_readings_are_readings():
    tape = tape_of(every(0.1, lambda _: 300.0))
    figure = energy(tape, 0, 10)
    assert figure.energy_j == pytest.approx(3000)
    assert figure.readings == 100


def test_a_constant_is_exact_between_the_samples_too():
    tape = tape_of(every(0.1, lambda _: 300.0))
    figure = energy(tape, 0.123, 0.177)
    assert figure.energy_j == pytest.approx(300 * 0.054)
    assert figure.error_j == pytest.approx(0.001 * figure.energy_j)


def test_a_step_is_right_up_to_one_sampling_interval():
    tape = tape_of(every(0.1, lambda t: 100.0 if t < 5.03 else 300.0))
    truth_j = 5.03 * 100 + 4.97 * 300
    figure = energy(tape, 0, 10)
    assert abs(figure.energy_j - truth_j) <= 200 * 0.1 / 2
    assert abs(figure.energy_j - truth_j) <= figure.error_j


def test_a_ramp_is_exact_at_both_partial_edges():
    tape = tape_of(every(0.1, lambda t: 100 * t))
    assert energy(tape, 1.05, 3.05).energy_j == pytest.approx(50 * (3.05**2 - 1.05**2))


def test_a_missing_reading_is_counted_and_widens_the_error():
    samples = every(0.1, lambda _: 200.0)
    whole, holed = tape_of(samples), tape_of([s for s in samples if not 4.95 < s[0] < 5.45])
    assert energy(holed, 0, 10).missed == 5
    assert energy(holed, 0, 10).why == "5 readings are missing"
    assert energy(holed, 0, 10).error_j >= 200 * 0.5 > energy(whole, 0, 10).error_j


def test_failed_reads_are_counted_where_they_happened():
    tape = tape_of([(0.0, 200), (0.1, 200)])
    tape.feed(Readings(missed=1, why_missed="timeout"))
    tape.feed(Readings(power=(PowerSample(0.3, 200), PowerSample(0.4, 200))))
    assert energy(tape, 0.0, 0.1).missed == 0
    assert energy(tape, 0.1, 0.4).missed == 1


def test_a_window_begun_before_the_first_reading_is_carried_back_in_full_doubt():
    figure = energy(tape_of([(1.0, 100), (1.1, 100)]), 0.5, 1.1)
    assert figure.energy_j == pytest.approx(60)
    assert figure.error_j == pytest.approx(50, rel=0.01)


def test_a_lost_meter_leaves_what_it_gave_and_says_so():
    tape = tape_of(every(0.1, lambda _: 100.0, end_s=3.0))
    tape.lose("GPU is lost")
    figure = energy(tape, 0, 5)
    assert figure.energy_j == pytest.approx(300)
    assert not figure.complete
    assert "GPU is lost" in figure.why
    after = energy(tape, 4, 5)
    assert after.energy_j is None
    assert "before this window began" in after.why


def test_a_meter_that_gave_nothing_is_unknown_and_not_zero():
    tape = Tape(polled_card())
    assert energy(tape, 0, 1).energy_j is None
    assert energy(tape, 0, 1).why


def test_holding_the_last_power_is_counted_as_doubt():
    tape = tape_of([(0.0, 100), (0.1, 100)])
    tape.hold_until(0.2)
    assert energy(tape, 0, 0.2).energy_j == pytest.approx(20)
    assert energy(tape, 0, 0.2).error_j == pytest.approx(10, rel=0.01)


def test_the_peak_is_the_largest_sample_inside():
    tape = tape_of([(0.0, 100), (0.1, 400), (0.2, 100), (0.3, 900)])
    assert energy(tape, 0, 0.25).peak_w == 400


# ---- counters


def feed_with_counter(tape, power_w, counted_w=None, end_s=60.0, batch_s=0.5, stale_s=0.1):
    """Play a load curve whose counter sees COUNTED_W and moves every STALE_S, read once a second."""
    counted_w = counted_w or power_w
    fine_s, energy_j, curve_j = 0.001, 0.0, []
    for i in range(round(end_s / fine_s)):
        energy_j += counted_w(i * fine_s) * fine_s
        curve_j.append(energy_j)
    samples = every(0.02, power_w, end_s=end_s)
    for i in range(round(end_s / batch_s)):
        begin_s, read_s = i * batch_s, (i + 1) * batch_s
        batch = tuple(PowerSample(t, p) for t, p in samples if begin_s <= t - 1e-9 < read_s - 0.013)
        counter = None
        if i % 2 == 0:
            moved_s = math.floor(read_s / stale_s + 1e-9) * stale_s
            counter = CounterReading(
                read_s, curve_j[min(len(curve_j), round(moved_s / fine_s)) - 1] if moved_s else 0.0
            )
        tape.feed(Readings(power=batch, counter=counter))
        samples = [s for s in samples if s[0] - 1e-9 >= read_s - 0.013]
    return tape


def test_a_long_window_has_the_truth_of_the_counter():
    """The power readings are 5 % low; the counter is right."""
    tape = feed_with_counter(Tape(counting_card()), lambda _: 380.0, lambda _: 400.0)
    figure = energy(tape, 0.5, 59)
    assert figure.energy_j == pytest.approx(400 * 58.5, abs=2 * 0.1 * 400)
    assert not figure.cross_check.agrees
    assert figure.cross_check.counter_j == pytest.approx(400 * figure.cross_check.duration_s, rel=0.01)
    assert figure.cross_check.integrated_j == pytest.approx(380 * figure.cross_check.duration_s, rel=0.01)


def test_a_short_window_late_in_a_run_has_learnt_how_far_the_power_readings_are_off():
    tape = feed_with_counter(Tape(counting_card()), lambda _: 380.0, lambda _: 400.0)
    assert energy(tape, 55.0, 55.1).energy_j == pytest.approx(40, rel=0.01)


def test_where_counter_and_power_agree_a_short_window_follows_the_samples():
    tape = feed_with_counter(Tape(counting_card()), lambda t: 100.0 if t % 2 < 1 else 500.0)
    assert energy(tape, 41.2, 41.3).energy_j == pytest.approx(50)
    assert energy(tape, 40.2, 40.3).energy_j == pytest.approx(10)
    assert energy(tape, 10, 50).cross_check.agrees


def test_the_error_bound_shrinks_with_the_length_of_the_window():
    tape = feed_with_counter(Tape(counting_card()), lambda t: 300 + 100 * math.sin(7 * t))
    shares = [
        figure.error_j / figure.energy_j for s in (0.1, 1, 10, 40) for figure in [energy(tape, 11.005, 11.005 + s)]
    ]
    assert shares == sorted(shares, reverse=True)


def test_a_gap_in_the_samples_is_filled_from_the_counter():
    """Five seconds of samples were lost while the load stood at 500 W; the counter saw them."""

    def load_w(time_s):
        return 500.0 if 10.3 < time_s < 14.7 else 100.0

    tape = Tape(counting_card())
    seen = [(t, p) for t, p in every(0.02, load_w, end_s=20) if not 10 < t < 15]
    before, after = [s for s in seen if s[0] <= 10], [s for s in seen if s[0] > 10]
    tape.feed(Readings(power=tuple(PowerSample(*s) for s in before[:100]), counter=CounterReading(2.0, 0.0)))
    tape.feed(Readings(power=tuple(PowerSample(*s) for s in before[100:])))
    gap_j = 4.4 * 500 + 0.6 * 100
    counted_j = 8 * 100 + gap_j + 0.5 * 100
    tape.feed(Readings(power=tuple(PowerSample(*s) for s in after[:25]), counter=CounterReading(15.5, counted_j)))
    figure = energy(tape, 5, 15.2)
    assert figure.energy_j == pytest.approx(5 * 100 + gap_j + 0.2 * 100, abs=10)
    assert figure.missed > 200


def test_a_counter_alone_is_read_by_difference():
    card = MeterCard(domain="cpu-package:0", name="package-0", source=Source.COUNTER, counter_period_s=0.001)
    tape = Tape(card)
    for time_s, energy_j in [(0.0, 1000.0), (0.1, 1005.0), (0.2, 1025.0)]:
        tape.feed(Readings(counter=CounterReading(time_s, energy_j)))
    assert energy(tape, 0, 0.2).energy_j == 25
    inside = energy(tape, 0.05, 0.2)
    assert inside.energy_j == pytest.approx(22.5)
    assert inside.error_j >= 2.5


def test_load_that_flickers_faster_than_a_sparse_sensor_looks_shows_in_the_error():
    """A sensor that looks a quarter of the time meets bursts of 15 ms in every 37 ms."""

    def burst_w(time_s):
        seen = [300.0 if (time_s - i / 1000) % 0.037 < 0.015 else 100.0 for i in range(25)]
        return sum(seen) / 25

    tape = tape_of(every(0.1, burst_w), polled_card(power_window_s=0.025))
    figure = energy(tape, 1, 9)
    truth_j = 8 * (100 + 200 * 15 / 37)
    assert abs(figure.energy_j - truth_j) <= figure.error_j
    assert figure.error_j > 0.05 * truth_j


# ---- laws

curves = st.lists(st.tuples(st.floats(0.01, 0.5), st.floats(0, 1000)), min_size=2, max_size=60)
cuts = st.lists(st.floats(0, 1), min_size=3, max_size=6)


def tape_from(curve, with_counter):
    """A tape fed in odd batches; with a counter that is off by a fifth, so that the curve gets corrected."""
    tape = Tape(counting_card() if with_counter else polled_card())
    time_s, energy_j, last_w = 0.0, 0.0, curve[0][1]
    for i, (gap_s, power_w) in enumerate(curve):
        time_s += gap_s
        energy_j += 1.2 * gap_s * (power_w + last_w) / 2
        last_w = power_w
        counter = CounterReading(time_s + 0.001, energy_j) if with_counter and i % 3 == 0 else None
        tape.feed(Readings(power=(PowerSample(time_s, power_w),), counter=counter))
    return tape, time_s


@given(curves, cuts, st.booleans())
def test_energy_is_additive_over_adjacent_windows(curve, cuts, with_counter):
    tape, end_s = tape_from(curve, with_counter)
    edges = sorted(cut * end_s for cut in cuts)
    parts_j = [energy(tape, a, b).energy_j for a, b in pairwise(edges)]
    assert sum(parts_j) == pytest.approx(energy(tape, edges[0], edges[-1]).energy_j, abs=1e-6)


@given(curves, cuts, st.booleans())
def test_a_nested_window_never_exceeds_its_parent(curve, cuts, with_counter):
    tape, end_s = tape_from(curve, with_counter)
    edges = sorted(cut * end_s for cut in cuts)
    assert energy(tape, edges[1], edges[-2]).energy_j <= energy(tape, edges[0], edges[-1]).energy_j + 1e-6


@given(curves, st.floats(0, 1), st.booleans())
def test_what_was_read_off_never_changes_afterwards(curve, cut, with_counter):
    tape, end_s = tape_from(curve, with_counter)
    before_j = tape.mark(cut * end_s).energy_j
    tape.feed(Readings(power=(PowerSample(end_s + 0.02, 999.0),), counter=CounterReading(end_s + 0.03, 1e6)))
    tape.feed(Readings(power=(PowerSample(end_s + 0.04, 999.0),)))
    assert tape.mark(cut * end_s).energy_j == before_j


@given(curves)
def test_power_alone_is_integrated_by_the_trapezoid_rule(curve):
    tape, end_s = tape_from(curve, with_counter=False)
    times_s = [sum(gap for gap, _ in curve[: i + 1]) for i in range(len(curve))]
    truth_j = sum((times_s[i + 1] - times_s[i]) * (curve[i][1] + curve[i + 1][1]) / 2 for i in range(len(curve) - 1))
    assert energy(tape, times_s[0], end_s).energy_j == pytest.approx(truth_j, abs=1e-6)
