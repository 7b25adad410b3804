"""Checks of training and tiny results, made here with values that one can check in the head."""

import json

import pytest

from wattsmith.report.checks.findings import Layer, Outcome, Verdict
from wattsmith.report.checks.tiny import judge_tiny
from wattsmith.report.checks.training import judge_training
from wattsmith.report.formats.mllog import training_line
from wattsmith.report.formats.tiny import timestamps_text, trace_bytes

T0_S = 1_700_000_000.0


def failed(report):
    return {one.name: one.evidence for one in report.checks if one.outcome is Outcome.FAILED}


def remarks(report):
    return {one.name: one.evidence for one in report.checks if one.outcome is Outcome.REMARK}


# ---- training: three runs of 100 s, two nodes at 1000 W and one switch of 100 W


def write_training(folder, runs=3, every_s=1.0, before_s=0.0, **more):
    for run in range(runs):
        start_s = T0_S + 1_000 * run
        lines = [
            training_line("run_start", None, start_s, "INTERVAL_START"),
            training_line("run_stop", None, start_s + 100 + run, "INTERVAL_END", status=more.get("status", "success")),
        ]
        (folder / "power" / f"result_{run}").mkdir(parents=True)
        (folder / f"result_{run}.txt").write_text("\n".join(lines) + "\n")
        for node in range(2):
            power = folder / "power" / f"result_{run}" / f"node_{node}.txt"
            power.write_text(
                node_log(start_s, run, every_s, before_s, 1_000 + node * more.get("differs_w", 0.001), more)
            )
        switch = training_line("interconnect_power_est", 100, start_s)
        (folder / "power" / f"result_{run}" / "sw_0.txt").write_text(switch + "\n")
    return folder


def node_log(start_s, run, every_s, before_s, power_w, more):
    count = round((100 + run + before_s) / every_s)
    times_s = [start_s - before_s + every_s * place for place in range(count + 1)]
    stop_s = times_s[0] if more.get("stop_at_start") else times_s[-1]
    lines = [training_line("power_measurement_start", "null", times_s[0], "INTERVAL_START")]
    if "ratio" in more:
        lines.append(training_line("conversion_eff", more["ratio"], times_s[0], measurement_type="AC"))
    lines += [
        training_line("power_reading", 0.0 if time_s <= start_s and before_s else power_w, time_s) for time_s in times_s
    ]
    lines.append(training_line("power_measurement_stop", "null", stop_s, "INTERVAL_END"))
    return "\n".join(lines) + "\n"


class TestTraining:
    def test_energy_of_nodes_and_switches_of_the_middle_run(self, tmp_path):
        report = judge_training(write_training(tmp_path, differs_w=0), tmp_path, "x")
        # 101 s: two nodes at 1000 W and a switch of 100 W
        assert report.figures["energy_j"] == pytest.approx(101 * 2_100)
        assert (report.figures["switches_j"], report.figures["time_to_train_s"]) == (10_100.0, 101.0)

    def test_a_sound_result_is_accepted(self, tmp_path):
        report = judge_training(write_training(tmp_path), tmp_path, "x")
        assert (failed(report), report.verdict(Layer.STRICT)) == ({}, Verdict.ACCEPTED)

    def test_the_scaling_factor_counts(self, tmp_path):
        (write_training(tmp_path, differs_w=0) / "scaling.json").write_text('{"scaling_factor": 2.0}')
        assert judge_training(tmp_path, tmp_path, "x").figures["energy_j"] == pytest.approx(2 * 101 * 2_100)

    def test_a_conversion_efficiency_is_applied_and_shown(self, tmp_path):
        report = judge_training(write_training(tmp_path, differs_w=0, ratio=0.9), tmp_path, "x")
        assert report.figures["energy_j"] == pytest.approx(101 * (0.9 * 2_000 + 100))
        assert report.figures["conversion_ratio"] == 0.9

    def test_readings_every_two_seconds_are_too_few(self, tmp_path):
        report = judge_training(write_training(tmp_path, every_s=2.0), tmp_path, "x")
        assert "a reading every 2.00 s" in failed(report)["Sampling"]
        assert report.verdict(Layer.OFFICIAL) is Verdict.ACCEPTED

    def test_idle_padding_is_shown_with_what_it_changes(self, tmp_path):
        report = judge_training(write_training(tmp_path, before_s=60.0), tmp_path, "x")
        assert "60 s before" in failed(report)["Padding"]
        assert report.figures["energy_in_window_j"] > 1.5 * report.figures["energy_j"]

    def test_a_stop_mark_at_the_start_is_named(self, tmp_path):
        report = judge_training(write_training(tmp_path, stop_at_start=True), tmp_path, "x")
        assert "node_0.txt" in failed(report)["Marks"]
        assert report.figures["energy_j"] == pytest.approx(101 * 2_100, rel=1e-3)

    def test_nodes_with_the_same_readings_are_a_remark(self, tmp_path):
        report = judge_training(write_training(tmp_path, differs_w=0), tmp_path, "x")
        assert "same readings in 3 pairs" in remarks(report)["Same logs"]

    def test_a_run_without_logs_and_one_that_failed_are_named(self, tmp_path):
        write_training(tmp_path, status="aborted")
        (tmp_path / "result_9.txt").write_text("")
        found = failed(judge_training(tmp_path, tmp_path, "x"))
        assert "result_9" in found["Power logs for each run"]
        assert "result_0 (aborted)" in found["Runs that succeeded"]
        assert "no run_start" in found["Readable files"]

    def test_broken_logs_are_named_with_file_and_line(self, tmp_path):
        write_training(tmp_path)
        (tmp_path / "power" / "result_0" / "node_0.txt").write_text(':::MLLOG {"key": "power_reading", "va')
        found = failed(judge_training(tmp_path, tmp_path, "x"))
        assert "power/result_0/node_0.txt, line 1: the JSON" in found["Readable files"]

    def test_a_log_that_lies_elsewhere_is_not_read(self, tmp_path):
        inside = write_training(tmp_path / "inside")
        log = inside / "power" / "result_0" / "node_0.txt"
        log.rename(tmp_path / "outside.txt")
        log.symlink_to(tmp_path / "outside.txt")
        assert "node_0.txt: refused: it is a link" in failed(judge_training(inside, inside, "x"))["Readable files"]


# ---- tiny: five windows of 12 s at 1 kHz, 2 µJ each sample, 1000 inferences


WINDOWS = [(2.0 + 14 * place, 14.0 + 14 * place) for place in range(5)]


def write_old(folder, per_sample=2.0, said=None):
    energies = [per_sample + 0.001 * (index // 14_000) for index in range(72_000)]
    (folder / "trace1-energy.bin").write_bytes(trace_bytes(1000.0, energies))
    (folder / "trace1-timestamps.json").write_text(timestamps_text([0.1, *(edge for pair in WINDOWS for edge in pair)]))
    sums = [sum(energies[int(a * 1_000) + 1 : int(b * 1_000)]) for a, b in WINDOWS]
    write_results(folder, said or sums)
    (folder / "log.txt").write_text("io dut infer 1000 1\n")
    return folder


def write_results(folder, sums):
    lines = []
    for place, energy in enumerate(sums):
        lines += [f"Energy data for window {2 * place + 2} at time 1 for 12 sec.:", f"  Energy       : {energy:.3f} uJ"]
        lines += [f"  Energy/Inf.  : {energy / 1000:.3f} uJ/inf.", f"Performance results for window {2 * place + 2}:"]
        lines += ["  # Inferences : 1000", "  Runtime      : 12.000 sec."]
    lines.append(f"Median energy cost is {sorted(sums)[len(sums) // 2] / 1000:.3f} uJ/inf.")
    (folder / "results.txt").write_text("\n".join(lines) + "\n")


def write_new(folder, trials=5):
    entries = []
    text = []
    for number in range(trials):
        samples = [2e-6 + 1e-9 * number] * 13_000
        power = {"samples": samples, "timestamps": [["00", 500], ["01", 12_500]]}
        entries.append({"infer": {"iterations": 1_000}, "power": power, "file": f"{number}.bin"})
        total = sum(samples[500:12_500]) * 1e6
        text += [f"Energy data for trial {number}", "  Elapsed time  : 12.0", "  Inferences    : 1000"]
        text += [f"  Total Energy  : {total:.3f} uJ", f"  Energy/Inf    : {total / 1000:.3f} uJ/inf"]
    text.append("Median energy cost is 24.024 uJ/inf.")
    (folder / "results.json").write_text(json.dumps(entries))
    (folder / "results.txt").write_text("\r\n".join(text) + "\r\n")
    (folder / "log.txt").write_text("Running inference with 1/1000 (warmup/measured) iterations ...\r\n")
    return folder


class TestTiny:
    def test_the_median_of_an_old_trace(self, tmp_path):
        report = judge_tiny(write_old(tmp_path), tmp_path, "x")
        assert failed(report) == {}
        assert report.figures["energy_per_inference_j"] == pytest.approx(24.0e-6, rel=2e-3)  # 12 000 samples of 2 µJ

    def test_the_median_of_a_new_trace(self, tmp_path):
        report = judge_tiny(write_new(tmp_path), tmp_path, "x")
        assert failed(report) == {}
        assert report.figures["energy_per_inference_j"] == pytest.approx(24.024e-6)
        assert report.figures["layout"] == "MLCommons runner"

    def test_results_that_the_trace_does_not_show_are_named(self, tmp_path):
        report = judge_tiny(write_old(tmp_path, said=[12_000.0 + place for place in range(5)]), tmp_path, "x")
        assert report.verdict(Layer.OFFICIAL) is Verdict.ACCEPTED
        assert "window 2: 12000.000 µJ stated" in failed(report)["Trace against results"]

    def test_four_measurements_are_too_few(self, tmp_path):
        assert (
            "4 measurements; 5 are needed"
            in failed(judge_tiny(write_new(tmp_path, 4), tmp_path, "x"))["Five measurements"]
        )

    def test_a_stream_is_measured_once_and_told_as_power(self, tmp_path):
        folder = tmp_path / "sww" / "energy"
        folder.mkdir(parents=True)
        (folder / "results.txt").write_text(
            "Energy data for trial 0\n  Elapsed time  : 1200.0\n  Inferences    : 1\n  Total Energy  : 36000000.0 uJ\n"
            "  Energy/Inf    : 36000000.0 uJ/inf\nMedian energy cost is 36000000.0 uJ/inf.\n"
        )
        report = judge_tiny(folder, tmp_path, "x")
        assert (failed(report), report.figures["power_w"]) == ({}, 0.03)

    def test_copied_measurements_are_named(self, tmp_path):
        write_new(tmp_path)
        entries = json.loads((tmp_path / "results.json").read_text())
        (tmp_path / "results.json").write_text(json.dumps([entries[0]] * 5))
        assert (
            "same energy to the last digit" in failed(judge_tiny(tmp_path, tmp_path, "x"))["Measurements of their own"]
        )

    def test_a_trace_that_is_cut_off_is_named(self, tmp_path):
        write_old(tmp_path)
        trace = tmp_path / "trace1-energy.bin"
        trace.write_bytes(trace.read_bytes()[:100_003])
        assert "the trace is cut off" in failed(judge_tiny(tmp_path, tmp_path, "x"))["Whole trace"]

    def test_another_count_of_inferences_than_the_runner_logged_is_named(self, tmp_path):
        (write_old(tmp_path) / "log.txt").write_text("io dut infer 10 1\n")
        assert "1000 inferences" in failed(judge_tiny(tmp_path, tmp_path, "x"))["Runner's log"]

    def test_a_simulated_monitor_is_never_accepted(self, tmp_path):
        (write_old(tmp_path) / "log.txt").write_text("simulated monitor\nio dut infer 1000 1\n")
        report = judge_tiny(tmp_path, tmp_path, "x")
        assert {report.verdict(layer) for layer in Layer} == {Verdict.REJECTED}

    @pytest.mark.parametrize("name", ["results.txt", "trace1-timestamps.json", "trace1-energy.bin", "log.txt"])
    def test_no_broken_file_crashes(self, tmp_path, name):
        (write_old(tmp_path) / name).write_bytes(b"\xff\xfe\x00broken")
        assert judge_tiny(tmp_path, tmp_path, "x").verdict(Layer.STRICT) is Verdict.REJECTED
