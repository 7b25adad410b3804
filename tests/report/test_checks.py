"""Each check of an inference result: a sound session passes, and one spoiled thing is named."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.report.session_folder import (
    LONG_S,
    SESSION,
    SOURCES_FAIL,
    STARTS_S,
    detail,
    rules,
    spl_of,
    two_channels,
    write_descriptors,
    write_session,
)

from wattsmith.report.checks.evidence import REQUIRED, gather
from wattsmith.report.checks.findings import Layer, Outcome, Verdict
from wattsmith.report.checks.judging import judge_inference
from wattsmith.report.checks.official import official_checks
from wattsmith.report.checks.rounds import ROUNDS, round_called, round_of, sources_digest
from wattsmith.report.checks.strict_records import strict_checks
from wattsmith.report.formats.ptd_log import ptd_line
from wattsmith.report.formats.spl import merged
from wattsmith.report.formats.stamps import stamp
from wattsmith.terms.errors import BadInput


@pytest.fixture
def folder(tmp_path):
    return write_session(tmp_path / "performance")


def failures(folder: Path, rules=None) -> dict[str, str]:
    """Names and evidence of the checks that fail, the sources aside."""
    checks = judge_with(folder, rules)
    return {one.name: one.evidence for one in checks if one.outcome is Outcome.FAILED and one.name not in SOURCES_FAIL}


def outcome(folder: Path, name: str, rules=None) -> tuple[Outcome, str]:
    return next((one.outcome, one.evidence) for one in judge_with(folder, rules) if one.name == name)


def judge_with(folder: Path, of=None):
    found = gather(folder, of or rules())
    return [*official_checks(found), *strict_checks(found)]


def spoil(folder: Path, path: str, change) -> None:
    """Change a text and renew the checksums, as whoever tampers would."""
    file = folder / path
    file.write_text(change(file.read_text()))
    write_descriptors(folder)


def change_json(folder: Path, side: str, change) -> None:
    file = folder / "power" / f"{side}.json"
    body = json.loads(file.read_text())
    change(body)
    file.write_text(json.dumps(body))


def test_a_sound_session_passes_all_checks_but_the_sources(folder):
    assert failures(folder) == {}
    assert {one.name for one in judge_with(folder) if one.outcome is Outcome.FAILED} == SOURCES_FAIL


def test_sources_pass_when_the_round_knows_them(folder):
    known = replace(rules(), sources=frozenset({sources_digest({"client.py": "0" * 40})}))
    assert not any(one.outcome is Outcome.FAILED for one in judge_with(folder, known))


class TestOfficial:
    @pytest.mark.parametrize(
        ("side", "change", "check", "evidence"),
        [
            ("client", lambda b: b["uuid"].update(server="x"), "Check UUID", "is none"),
            ("client", lambda b: b.update(session_name="2024-01-01_00-00-00"), "Check session name", "2024-01-01"),
            ("client", lambda b: b["messages"].append({"cmd": "time"}), "Check client server messages", "2 messages"),
            ("server", lambda b: b["messages"][0].update(reply="hello"), "Check client server messages", "hello"),
            ("server", lambda b: b.update(debug=True), "Check debug is disabled on server-side", "debug"),
            ("server", lambda b: b["ptd_config"].update(device_type=0), "Check PTD configuration", "device type 0"),
            ("server", lambda b: b["ptd_messages"][4].update(reply="Error"), "Check PTD commands and replies", "Error"),
            ("server", lambda b: b["ptd_messages"].pop(), "Check PTD commands and replies", "2 times"),
            ("client", lambda b: b["phases"]["testing"][1].__setitem__(0, 5.0), "Check time difference", "apart"),
            ("server", lambda b: b["results"].pop("run_1/spl.txt"), "Check results checksum", "run_1/spl.txt"),
        ],
    )  # fmt: skip
    def test_what_the_descriptors_get_wrong_is_named(self, folder, side, change, check, evidence):
        change_json(folder, side, change)
        assert evidence in failures(folder)[check]

    def test_another_version_of_the_daemon_fails_in_another_round(self, folder):
        assert "version 1.10.0" in outcome(folder, "Check PTD commands and replies", ROUNDS["v5.1"])[1]

    def test_a_file_that_changed_after_its_checksum_fails(self, folder):
        with (folder / "run_1" / "spl.txt").open("a") as file:
            file.write("\n")
        found = failures(folder)
        assert "run_1/spl.txt" in found["Check results checksum"]
        assert "run_1/spl.txt" in found["Checksums and line endings"]

    def test_line_endings_that_changed_are_told_apart_from_tampering(self, folder):
        path = folder / "run_1" / "spl.txt"
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        assert set(failures(folder)) == {"Check results checksum"}
        kind, evidence = outcome(folder, "Checksums and line endings")
        assert (kind, "only the line endings" in evidence) == (Outcome.REMARK, True)

    def test_testing_far_below_ranging_fails_from_v3_1_on(self, folder):
        path = folder / "run_1" / "spl.txt"
        path.write_text("".join(sample.line for sample in spl_of("testing", power_w=180.0)))
        assert "more than 5 % less" in failures(folder)["Check time difference"]

    def test_a_test_of_another_length_fails_up_to_v3_0(self, folder):
        begin_s = STARTS_S["testing"] - 0.5
        spoil(
            folder,
            "run_1/mlperf_log_detail.txt",
            lambda text: text.replace(stamp(begin_s + LONG_S), stamp(begin_s + 80)),
        )
        assert "20.0% apart" in outcome(folder, "Check time difference", ROUNDS["v3.0"])[1]
        assert outcome(folder, "Check time difference")[0] is Outcome.PASSED

    def test_power_begin_after_power_end_is_named(self, folder):
        swap = {"power_begin": "power_end", "power_end": "power_begin"}
        text = (folder / "run_1" / "mlperf_log_detail.txt").read_text()
        lines = [next((line.replace(a, b) for a, b in swap.items() if a in line), line) for line in text.splitlines()]
        spoil(folder, "run_1/mlperf_log_detail.txt", lambda _: "\n".join(lines))
        assert "is not before power_end" in failures(folder)["Check time difference"]
        assert "is not before power_end" in failures(folder)["Coverage of the window"]

    def test_a_missing_ranging_run_is_named(self, folder):
        for path in (folder / "ranging").iterdir():
            path.unlink()
        (folder / "ranging").rmdir()
        assert "ranging/spl.txt: there is no such file" in failures(folder)["Ranges of the test"]
        assert "ranging" in failures(folder)["Required files"]

    def test_errors_of_the_meter_outside_of_ranging_fail(self, folder):
        line = ptd_line(STARTS_S["testing"] + 50, "ERROR: Bad watts reading") + "\n"
        mark = f"Go with mark '{SESSION}_testing'\n"
        spoil(folder, "power/ptd_logs.txt", lambda text: text.replace(mark, mark + line))
        assert "outside of ranging" in failures(folder)["Check errors and warnings from PTD logs"]
        assert "1 errors of the meter in the window" in failures(folder)["The daemon's whole log"]

    def test_the_first_warning_ends_the_official_scan_and_not_ours(self, folder):
        unusual = ptd_line(STARTS_S["ranging"], "ERROR: Something unusual") + "\n"
        later = ptd_line(STARTS_S["testing"] + 50, "ERROR: Bad watts reading") + "\n"
        marks = [f"Go with mark '{SESSION}_{phase}'\n" for phase in STARTS_S]
        spoil(
            folder,
            "power/ptd_logs.txt",
            lambda text: text.replace(marks[0], marks[0] + unusual).replace(marks[1], marks[1] + later),
        )
        assert outcome(folder, "Check errors and warnings from PTD logs")[0] is Outcome.REMARK
        assert set(failures(folder)) == {"The daemon's whole log"}

    def test_times_of_v1_0_are_local(self, folder):
        for side, zone_s in (("client", 7200), ("server", 3600)):
            change_json(folder, side, lambda body, zone_s=zone_s: body.update(timezone=zone_s))
        found = gather(folder, ROUNDS["v1.0"])
        assert found.runs["run_1"].window.begin_s == STARTS_S["testing"] - 0.5 + 7200
        assert found.runs["run_1"].spl.first_s == STARTS_S["testing"] - 5 + 3600


class TestStrict:
    def test_halved_watts_are_seen_four_times_over(self, folder):
        for phase, run in (("ranging", "ranging"), ("testing", "run_1")):
            (folder / run / "spl.txt").write_text("".join(one.line for one in spl_of(phase, power_w=100.0)))
        write_descriptors(folder)
        assert set(failures(folder)) == {
            "Samples against the daemon's average", "Samples against the daemon's log", "Watts against volts and amps"
        }  # fmt: skip

    def test_deleted_samples_leave_the_window_uncovered(self, folder):
        kept = [one for place, one in enumerate(spl_of("testing")) if place % 3]
        spoil(folder, "run_1/spl.txt", lambda _: "".join(one.line for one in kept))
        found = failures(folder)
        assert "largest gap 2.00 s" in found["Coverage of the window"]
        assert "has 74 samples, the daemon gave 111" in found["Samples against the daemon's log"]

    def test_a_few_invalid_samples_are_a_remark_and_many_a_failure(self, folder):
        def with_invalid(count):
            lines = [one.line for one in spl_of("testing")]
            bad = [
                line.replace("Watts,200.0", "Watts,-220.0") if 50 <= n < 50 + count else line
                for n, line in enumerate(lines)
            ]
            spoil(folder, "run_1/spl.txt", lambda _: "".join(bad))
            return outcome(folder, "Invalid and over-range samples")

        assert with_invalid(1)[0] is Outcome.REMARK
        kind, evidence = with_invalid(6)
        assert kind is Outcome.FAILED
        assert "6 over-range or invalid samples in the window, 6.0% of all" in evidence
        assert "220.00 W in the mean, which would change the figure by +0.60%" in evidence

    def test_doubled_queries_disagree_with_rate_and_latency(self, folder):
        spoil(folder, "run_1/mlperf_log_detail.txt", lambda text: text.replace('"value": 1000}', '"value": 2000}'))
        assert "2000 queries; 10 a second for 100.0 s" in failures(folder)["Queries against the rate"]

    def test_a_doubled_rate_disagrees_with_the_summary(self, folder):
        new = detail("testing", 2_000, "SingleStream")
        spoil(folder, "run_1/mlperf_log_detail.txt", lambda _: new)
        assert "the summary says 10 QPS" in failures(folder)["LoadGen's own verdict"]

    def test_other_watts_replies_disagree_with_the_log(self, folder):
        change_json(
            folder, "server", lambda body: body["ptd_messages"][13].update(reply="Watts,100.0,100.0,100.0,111,0,111")
        )
        assert "the answer to Watts is" in failures(folder)["Recorded Watts replies"]

    @pytest.mark.parametrize(
        ("command", "evidence"),
        [("SR,A,Auto", "'Auto'; it must be fixed"), ("SR,A,1.0", "the range of the test is below")],
    )
    def test_ranges_of_the_test_come_from_ranging(self, folder, command, evidence):
        change_json(folder, "server", lambda body: body["ptd_messages"][9].update(cmd=command))
        assert evidence in failures(folder)["Ranges of the test"]

    def test_automatic_ranges_in_the_daemons_log_alone_are_seen(self, folder):
        line = ptd_line(STARTS_S["testing"] - 20, "Ampere range set to Auto") + "\n"
        text = (folder / "power" / "ptd_logs.txt").read_text()
        start = text.rindex("\n", 0, text.index(f"Go with mark '{SESSION}_testing'")) + 1
        spoil(folder, "power/ptd_logs.txt", lambda _: text[:start] + line + text[start:])
        assert "automatic ranges (Amp)" in failures(folder)["Ranges of the test"]

    def test_samples_without_a_mark_are_named(self, folder):
        spoil(folder, "run_1/spl.txt", lambda text: text.replace(f",Mark,{SESSION}_testing", "", 2))
        assert "2 samples without a mark" in failures(folder)["One session"]

    def test_a_wider_range_than_the_rule_is_a_remark(self, folder):
        change_json(folder, "server", lambda body: body["ptd_messages"][9].update(cmd="SR,A,5.0"))
        assert outcome(folder, "Ranges of the test")[0] is Outcome.REMARK

    def test_another_meter_in_the_log_than_in_the_answer_is_named(self, folder):
        line = ptd_line(STARTS_S["ranging"] - 15, "Analyzer identity response of 24 bytes: YOKOGAWA,WT310E,{},F1.04")
        activated = "is activated\n"
        text = (folder / "power" / "ptd_logs.txt").read_text()
        spoil(folder, "power/ptd_logs.txt", lambda _: text.replace(activated, activated + line.format(1) + "\n"))
        assert outcome(folder, "Identity of the analyzer")[0] is Outcome.PASSED
        spoil(folder, "power/ptd_logs.txt", lambda _: text.replace(activated, activated + line.format(2) + "\n"))
        assert "the daemon's log YOKOGAWA WT310E 2 F1.04" in failures(folder)["Identity of the analyzer"]

    def test_uncertainty_counts_by_the_clock_and_not_by_800_seconds(self, folder):
        words = "WARNING: Uncertainty 5.00%, which is above 1.00% limit for the last sample!"
        lines = "".join(ptd_line(STARTS_S["testing"] + 40 + n, words) + "\n" for n in range(3))
        mark = f"Go with mark '{SESSION}_testing'\n"
        spoil(folder, "power/ptd_logs.txt", lambda text: text.replace(mark, mark + lines))
        assert outcome(folder, "Check errors and warnings from PTD logs")[0] is Outcome.PASSED
        assert "3 samples in the window above 1 %, at worst 5.00%" in failures(folder)["Uncertainty in the window"]

    def test_an_unknown_uncertainty_of_the_test_fails(self, folder):
        change_json(
            folder, "server", lambda body: body["ptd_messages"][12].update(reply="Uncertainty,-1.0,0,0,111,0,0,111")
        )
        assert "unknown, as under automatic ranges" in failures(folder)["Uncertainty in the window"]

    def test_a_clock_that_goes_backwards_is_named_with_its_line(self, folder):
        samples = [one.line for one in spl_of("testing")]
        samples[50], samples[51] = samples[51], samples[50]
        spoil(folder, "run_1/spl.txt", lambda _: "".join(samples))
        assert "run_1/spl.txt, line 52: the clock goes backwards" in failures(folder)["Order of samples"]

    def test_a_truncated_line_is_named(self, folder):
        spoil(folder, "run_1/spl.txt", lambda text: text[:-70])
        assert "run_1/spl.txt, line 111: the line ends too early" in failures(folder)["Order of samples"]

    def test_samples_of_another_session_are_named(self, folder):
        spoil(folder, "run_1/spl.txt", lambda text: text.replace(f"{SESSION}_testing", "2020-01-01_00-00-00_testing"))
        assert "marked 2020-01-01_00-00-00_testing" in failures(folder)["One session"]

    def test_channels_must_make_the_sum(self, folder):
        times = [one.time_s for one in spl_of("testing")]
        lines = [two_channels(time_s, 200.0).line.replace("Ch2,Watts,100.0", "Ch2,Watts,10.0") for time_s in times]
        spoil(folder, "run_1/spl.txt", lambda _: "".join(lines))
        assert "the channels do not make the sum" in failures(folder)["Watts against volts and amps"]

    def test_two_meters_are_judged_by_their_sum(self, folder):
        for phase, run in (("ranging", "ranging"), ("testing", "run_1")):
            both = merged([spl_of(phase), spl_of(phase)])
            (folder / run / "spl.txt").write_text("".join(sample.line for sample in both))
        log = folder / "power" / "ptd_logs.txt"
        log.write_text(log.read_text() * 2)  # of one daemon after the other
        write_descriptors(folder, server={"ptd_config": [{"device_type": 49}] * 2})
        assert failures(folder, ROUNDS["v4.1"]) == {}
        assert "400.0000 W" in outcome(folder, "Samples against the daemon's average")[1]

    def test_a_clock_that_was_stepped_is_a_remark(self, folder):
        for side in ("client", "server"):
            change_json(folder, side, lambda body: body["phases"]["testing"][3].__setitem__(1, 0.0))
        kind, evidence = outcome(folder, "Clock agreement")
        assert (kind, "wall clock and monotonic clock drift" in evidence) == (Outcome.REMARK, True)

    def test_a_run_that_is_too_short_fails(self, folder):
        begin_s = STARTS_S["testing"] - 0.5
        spoil(
            folder,
            "run_1/mlperf_log_detail.txt",
            lambda text: text.replace(stamp(begin_s + LONG_S), stamp(begin_s + 30)),
        )
        assert "30.0 s and 30 samples" in failures(folder)["Length of the run"]

    def test_what_an_old_round_cannot_prove_is_said(self, folder):
        change_json(
            folder,
            "server",
            lambda body: body.update(ptd_messages=[one for one in body["ptd_messages"] if one["cmd"] != "Watts"]),
        )
        assert outcome(folder, "Recorded Watts replies")[0] is Outcome.NO_EVIDENCE


class TestSimulated:
    @pytest.mark.parametrize("identity", ["WattsmithSimulatedAnalyzer,1000,version=1.10.0-simulated", "X,SIMULATED"])
    def test_a_simulated_analyzer_is_never_accepted(self, tmp_path, identity):
        report = judge_inference(write_session(tmp_path / "x", identity=identity), tmp_path, "x", "v4.0")
        assert report.simulated
        assert {report.verdict(layer) for layer in Layer} == {Verdict.REJECTED}
        assert "never compliant" in next(one.evidence for one in report.checks if one.name == "Simulated analyzer")

    def test_the_daemons_log_alone_tells_too(self, folder):
        spoil(folder, "power/ptd_logs.txt", lambda text: "A simulated power daemon\n" + text)
        assert "Simulated analyzer" in failures(folder)


class TestFigures:
    def test_the_metric_is_that_of_the_folder_that_names_the_scenario(self, tmp_path):
        write_session(tmp_path / "multistream" / "performance")  # was run as SingleStream: × 8
        report = judge_inference(tmp_path / "multistream" / "performance", tmp_path, "x", "v4.0")
        assert report.figures["metric"] == 200.0 * 100.0 / 1_000 * 8
        assert (report.figures["scenario"], report.figures["scenario_run"]) == ("MultiStream", "SingleStream")

    def test_mean_and_integral_stand_side_by_side(self, folder):
        figures = judge_inference(folder, folder, "x", "v4.0").figures
        assert (figures["power_w"], figures["energy_j"], figures["integrated_j"]) == (
            200.0,
            20_000.0,
            pytest.approx(20_000.0),
        )


class TestRounds:
    def test_the_round_is_told_by_the_folders(self):
        assert round_of("/x/inference_results_v3.1/closed", "")[0].name == "v3.1"

    @pytest.mark.parametrize(
        ("session", "name"), [("2021-03-19_01-18-47", "v1.0"), ("2022-02-13_a", "v2.0"), ("2027-01-01_b", "v5.1")]
    )
    def test_else_by_the_day_of_the_session(self, session, name):
        assert round_of("/home/model-v1.5/x", session)[0].name == name

    def test_a_round_that_nothing_tells_is_said(self):
        assert round_of("/x", "mine") == (
            None,
            "neither the folders nor the session's name tell it; say it with --round",
        )

    def test_an_unknown_round_is_named(self):
        with pytest.raises(BadInput, match=r"no profile of a round 'v9.9'; there are v1.0, v1.1"):
            round_called("v9.9")

    def test_each_round_knows_its_rules(self):
        assert [(one.name, one.clock_limit_s, one.drops_non_positive, one.millijoules) for one in ROUNDS.values()] == [
            ("v1.0", 0.2, False, False), ("v1.1", 0.2, False, False), ("v2.0", 0.2, False, False),
            ("v2.1", 0.5, False, False), ("v3.0", 0.5, False, True), ("v3.1", 0.5, True, True),
            ("v4.0", 0.8, True, True), ("v4.1", 0.8, True, True), ("v5.0", 0.8, True, True), ("v5.1", 0.8, True, True),
        ]  # fmt: skip


BREAKS = st.sampled_from(["empty", "half", "utf16", "crlf", "binary", "missing", "folder", "json"])


@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(breaks=st.lists(st.tuples(st.sampled_from(REQUIRED), BREAKS), min_size=1, max_size=3))
def test_nothing_that_is_wrong_with_the_files_crashes_the_checker(tmp_path_factory, breaks):
    folder = write_session(tmp_path_factory.mktemp("broken") / "performance")
    for path, how in breaks:
        file = folder / path
        raw = file.read_bytes() if file.is_file() else b""
        if file.is_dir():
            continue
        file.unlink(missing_ok=True)
        if how == "folder":
            file.mkdir()
        elif how != "missing":
            new = {"empty": b"", "half": raw[: len(raw) // 2], "utf16": raw.decode("latin-1").encode("utf-16")}
            new |= {
                "crlf": raw.replace(b"\n", b"\r\n"),
                "binary": bytes(range(256)) * 4,
                "json": b'{"phases": [], "a": 1}',
            }
            file.write_bytes(new[how])
    report = judge_inference(folder, folder, "x", "v4.0")
    assert report.verdict(Layer.STRICT) is Verdict.REJECTED
    assert all(one.evidence for one in report.checks)


ODD = st.sampled_from([None, True, -1, 0, 1e308, float("nan"), "", "null", [], [[]], [None], {}, {"a": 1}, 10**30])


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data(), side=st.sampled_from(["client", "server"]))
def test_no_value_in_a_descriptor_crashes_the_checker(tmp_path_factory, data, side):
    folder = write_session(tmp_path_factory.mktemp("odd") / "performance")

    def spoil_one(value):
        keys = list(value) if isinstance(value, dict) else list(range(len(value))) if isinstance(value, list) else []
        if not keys or data.draw(st.integers(0, 4)) == 0:
            return data.draw(ODD)
        key = data.draw(st.sampled_from(keys))
        new = value.copy()
        new[key] = spoil_one(value[key])
        return new

    file = folder / "power" / f"{side}.json"
    file.write_text(json.dumps(spoil_one(json.loads(file.read_text()))))
    assert judge_inference(folder, folder, "x", "v4.0").verdict(Layer.STRICT) is Verdict.REJECTED


@pytest.mark.parametrize("value", ["0", "-5", "nan", "-inf", "1e400", "x", ""])
@pytest.mark.parametrize("place", [3, 5, 7, 9])
def test_no_value_in_a_sample_crashes_the_checker(folder, place, value):
    lines = (folder / "run_1" / "spl.txt").read_text().splitlines()
    fields = lines[50].split(",")
    fields[place] = value
    spoil(folder, "run_1/spl.txt", lambda _: "\n".join([*lines[:50], ",".join(fields), *lines[51:]]))
    assert "Samples against the daemon's log" in failures(folder) or place != 3
