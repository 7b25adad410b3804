"""Window arithmetic, with values that one can check in the head."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.report.window import (
    LoadWindow,
    Metric,
    NodeLog,
    RunEnergy,
    Scenario,
    edge_windows,
    held_energy_j,
    inference_metric,
    median_j,
    node_energy,
    queries_at_rate,
    sample_windows,
    samples_per_joule,
    scenario_called,
    trace_energies,
    training_score,
    window_power,
)
from wattsmith.terms.errors import BadTerm

TEN = LoadWindow(begin_s=0.0, end_s=10.0)


def each_second(power_w, first=-1, last=11):
    return [(float(second), float(power_w)) for second in range(first, last + 1)]


class TestMeanAndIntegral:
    def test_a_steady_load_has_its_power_as_mean_and_power_times_time_as_integral(self):
        power = window_power(each_second(200), TEN)
        assert (power.mean_w, power.integral_j, power.energy_j) == (200.0, 2000.0, 2000.0)

    def test_only_samples_strictly_inside_count(self):
        assert window_power(each_second(200), TEN).samples == 9  # 1 … 9; those at 0 and 10 lie on the edges

    def test_a_ramp_shows_how_mean_and_integral_differ(self):
        # 0 W at 0 s, 10 W more each second; the window ends at 9.5 s, between two samples.
        ramp = [(float(second), 10.0 * second) for second in range(1, 12)]
        power = window_power([(0.0, 1e-9), *ramp], LoadWindow(begin_s=0.0, end_s=9.5))
        assert power.mean_w == 50.0  # of 10, 20 … 90
        assert power.integral_j == pytest.approx(0.5 * 9.5 * 95.0)

    def test_the_integral_cuts_the_line_between_two_samples_at_the_edge(self):
        power = window_power([(0.0, 100.0), (2.0, 300.0)], LoadWindow(begin_s=1.0, end_s=2.0))
        assert power.integral_j == pytest.approx(250.0)  # from 200 W to 300 W

    def test_where_no_sample_lies_beyond_an_edge_the_nearest_is_held_and_that_is_said(self):
        power = window_power([(4.0, 100.0), (6.0, 100.0)], TEN)
        assert (power.integral_j, power.held_s) == (1000.0, 8.0)

    def test_failed_readings_are_dropped_from_v3_1_on_and_averaged_in_before(self):
        samples = [(1.0, 100.0), (2.0, -2.0), (3.0, 100.0), (4.0, 100.0)]
        assert window_power(samples, TEN).mean_w == 100.0
        assert window_power(samples, TEN, drop_non_positive=False).mean_w == 74.5
        assert window_power(samples, TEN).invalid == 1

    def test_no_sample_gives_no_mean_and_no_integral(self):
        power = window_power([], TEN)
        assert (power.mean_w, power.integral_j, power.energy_j, power.coverage_ratio) == (None, None, None, 0.0)

    def test_what_is_no_number_is_counted_and_left_out(self):
        power = window_power([(1.0, math.nan), (2.0, math.inf), (3.0, 5.0)], TEN)
        assert (power.mean_w, power.invalid) == (5.0, 2)

    def test_a_hole_of_four_seconds_leaves_three_uncovered(self):
        power = window_power([one for one in each_second(200) if one[0] not in (4, 5, 6)], TEN)
        assert (power.largest_gap_s, power.uncovered_s, power.coverage_ratio) == (4.0, 3.0, 0.7)

    def test_a_clock_that_goes_backwards_is_counted_and_does_not_spoil_the_integral(self):
        power = window_power([*each_second(200, -1, 5), (3.0, 200.0), *each_second(200, 6, 11)], TEN)
        assert (power.out_of_order, power.integral_j, power.samples) == (1, 2000.0, 10)

    def test_a_window_that_ends_before_it_begins_is_refused(self):
        with pytest.raises(BadTerm, match="not after its begin"):
            LoadWindow(begin_s=2.0, end_s=2.0)

    def test_durations_are_exact_to_the_microsecond(self):
        assert LoadWindow(begin_s=1_708_384_750.123, end_s=1_708_385_350.129).duration_s == 600.006


@given(
    watts=st.lists(st.floats(1, 1000), min_size=3, max_size=50),
    begin_s=st.floats(0.0, 1.0),
    part=st.floats(0.05, 1.0),
)
def test_mean_and_integral_lie_between_the_least_and_the_largest_sample(watts, begin_s, part):
    samples = [(float(second), power_w) for second, power_w in enumerate(watts)]
    window = LoadWindow(begin_s=begin_s, end_s=begin_s + part * len(watts))
    power = window_power(samples, window)
    low_w, high_w = min(watts), max(watts)
    if power.mean_w is not None:
        assert low_w * 0.999999 <= power.mean_w <= high_w * 1.000001
    if power.integral_j is not None:
        assert low_w * 0.9999 <= power.integral_j / (window.end_s - window.begin_s) <= high_w * 1.0001


@given(st.lists(st.tuples(st.floats(-5, 25), st.floats(allow_nan=True)), max_size=40))
def test_no_sequence_of_samples_is_too_wild(samples):
    power = window_power(samples, TEN)
    assert 0 <= power.coverage_ratio <= 1
    assert power.samples + power.invalid == sum(0 < time_s < 10 for time_s, _ in samples)


@given(cut=st.floats(0.1, 9.9), watts=st.lists(st.floats(1, 1000), min_size=12, max_size=12))
def test_the_integral_of_two_parts_is_that_of_the_whole(cut, watts):
    samples = [(float(second - 1), power_w) for second, power_w in enumerate(watts)]
    parts = [window_power(samples, LoadWindow(begin_s=a, end_s=b)).integral_j for a, b in ((0.0, cut), (cut, 10.0))]
    assert sum(parts) == pytest.approx(window_power(samples, TEN).integral_j)


class TestMetric:
    def test_offline_server_and_interactive_are_watts(self):
        for scenario in (Scenario.OFFLINE, Scenario.SERVER, Scenario.INTERACTIVE):
            metric = inference_metric(scenario, scenario, 300.0, 600.0, None)
            assert (metric.value, metric.unit) == (300.0, "W")

    def test_single_stream_is_energy_per_query(self):
        metric = inference_metric(Scenario.SINGLE_STREAM, Scenario.SINGLE_STREAM, 50.0, 600.0, 3000)
        assert (metric.value, metric.unit) == (10.0, "J/query")

    def test_multi_stream_that_was_inferred_counts_eight_queries_as_one(self):
        inferred = inference_metric(Scenario.MULTI_STREAM, Scenario.SINGLE_STREAM, 50.0, 600.0, 3000)
        run = inference_metric(Scenario.MULTI_STREAM, Scenario.MULTI_STREAM, 50.0, 600.0, 3000)
        assert (inferred.value, run.value) == (80.0, 10.0)
        assert "× 8" in inferred.formula

    def test_offline_that_was_inferred_keeps_the_watts(self):
        assert inference_metric(Scenario.OFFLINE, Scenario.SINGLE_STREAM, 50.0, 600.0, 3000).value == 50.0

    def test_without_queries_there_is_no_energy_per_query(self):
        with pytest.raises(BadTerm, match="number of queries"):
            inference_metric(Scenario.SINGLE_STREAM, Scenario.SINGLE_STREAM, 50.0, 600.0, 0)

    def test_old_rounds_counted_queries_by_their_rate(self):
        assert queries_at_rate(5.0, 600.0) == 3000.0

    def test_samples_per_joule_never_mix_queries_and_samples(self):
        per_query = Metric(scenario=Scenario.MULTI_STREAM, power_w=1.0, energy_per_query_j=4.0, formula="")
        power = Metric(scenario=Scenario.OFFLINE, power_w=50.0, energy_per_query_j=None, formula="")
        assert samples_per_joule(per_query, None) == 2.0  # eight samples for 4 J
        assert samples_per_joule(power, 100.0) == 2.0
        assert samples_per_joule(power, None) is None

    @pytest.mark.parametrize("name", ["multistream", "MultiStream", "multi_stream", "MULTI-STREAM"])
    def test_scenarios_are_known_however_they_are_written(self, name):
        assert scenario_called(name) is Scenario.MULTI_STREAM

    def test_an_unknown_scenario_is_named(self):
        with pytest.raises(BadTerm, match="'Batch' is no scenario"):
            scenario_called("Batch")


class TestTraining:
    def test_each_reading_holds_since_the_one_before(self):
        assert held_energy_j([(0.0, 999.0), (1.0, 100.0), (3.0, 200.0)], TEN) == (500.0, 3.0)

    def test_a_log_that_fits_the_run_gives_both_formulas_the_same(self):
        log = NodeLog(start_s=0.0, stop_s=10.0, readings=each_second(100, 0, 10))
        energy = node_energy(log, TEN)
        assert (energy.summarised_j, energy.in_window_j, energy.dilution_ratio) == (1000.0, 1000.0, 0.0)
        assert (energy.coverage_ratio, energy.largest_gap_s, energy.readings_inside) == (1.0, 1.0, 11)

    def test_idle_padding_dilutes_the_summarised_energy(self):
        # 10 s at 100 W inside the run, 10 s at 0 W before it: the mean over the log is half.
        readings = [*each_second(0, -10, 0), *each_second(100, 1, 10)]
        energy = node_energy(NodeLog(start_s=-10.0, stop_s=10.0, readings=readings), TEN)
        assert (energy.summarised_j, energy.in_window_j, energy.before_s) == (500.0, 1000.0, 10.0)
        assert energy.dilution_ratio == 1.0

    def test_a_stop_mark_at_the_start_means_the_whole_log(self):
        energy = node_energy(NodeLog(start_s=0.0, stop_s=0.0, readings=each_second(100, 0, 10)), TEN)
        assert energy.summarised_j == 1000.0

    def test_the_first_reading_holds_since_the_start_mark(self):
        log = NodeLog(start_s=0.0, stop_s=10.0, readings=[(4.0, 50.0), *each_second(100, 5, 10)])
        assert node_energy(log, TEN).summarised_j == 4 * 50 + 6 * 100

    def test_lines_out_of_order_are_summed_as_they_stand_and_sorted_for_the_window(self):
        readings = [(0.0, 1.0), (2.0, 100.0), (1.0, 100.0), *each_second(100, 3, 10)]
        energy = node_energy(NodeLog(start_s=0.0, stop_s=10.0, readings=readings), TEN)
        assert (energy.summarised_j, energy.in_window_j) == (1000.0, 1000.0)

    def test_readings_at_the_wall_are_converted(self):
        log = NodeLog(start_s=0.0, stop_s=10.0, readings=each_second(100, 0, 10), conversion_ratio=0.9)
        assert node_energy(log, TEN).summarised_j == pytest.approx(900.0)

    def test_no_readings_give_no_energy(self):
        energy = node_energy(NodeLog(start_s=None, stop_s=None, readings=[]), TEN)
        assert (energy.summarised_j, energy.in_window_j, energy.coverage_ratio) == (None, None, 0.0)

    def test_the_quickest_and_the_slowest_run_are_dropped_and_the_rest_scaled(self):
        runs = [
            RunEnergy(duration_s=duration_s, nodes_j=energy_j, nodes_in_window_j=energy_j, switches_j=10.0)
            for duration_s, energy_j in ((100, 1), (110, 100), (120, 200), (999, 7777))
        ]
        score = training_score(runs, scaling_ratio=2.0)
        assert (score.energy_j, score.switches_j, score.duration_s, score.kept) == (320.0, 20.0, 230.0, 2)

    def test_too_few_runs_have_no_score(self):
        with pytest.raises(BadTerm, match="2 runs are too few"):
            training_score([RunEnergy(duration_s=1, nodes_j=1, nodes_in_window_j=1, switches_j=0)] * 2)


class TestTiny:
    def test_windows_lie_between_every_second_pair_of_edges(self):
        assert edge_windows([0.0, 1.0, 11.0, 12.0, 22.0]) == [(2, 1.0, 11.0), (4, 12.0, 22.0)]

    def test_an_edge_without_a_partner_makes_no_window(self):
        assert edge_windows([0.0, 1.0, 11.0, 12.0]) == [(2, 1.0, 11.0)]

    def test_samples_strictly_inside_are_added(self):
        # Four samples a second, of 1, 2, 3 … at 0, 0.25, 0.5 …; 0.25 and 1.0 lie on the edges.
        assert trace_energies([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 4.0, [(0.25, 1.0)]) == [(7.0, 2)]

    def test_a_trace_that_ends_early_gives_what_there_is(self):
        assert trace_energies([1.0, 1.0, 1.0], 1.0, [(0.5, 9.0), (10.0, 11.0)]) == [(2.0, 2), (0.0, 0)]

    def test_the_last_two_edges_enclose_a_trial(self):
        assert sample_windows([2061, 10568, 21144]) == (10568, 21144)
        assert sample_windows([5]) is None

    def test_the_score_is_the_median_per_inference(self):
        assert median_j([10.0, 30.0, 20.0], [10, 10, 10]) == 2.0

    def test_no_inference_has_no_energy(self):
        with pytest.raises(BadTerm, match="0 inferences"):
            median_j([1.0], [0])
