"""Every format: bytes in are bytes out; what is wrong has a file and a line, and nothing crashes."""

import json
import os
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wattsmith.report.formats.descriptor import read_descriptor
from wattsmith.report.formats.lines import Line, Unread, lines_of, written
from wattsmith.report.formats.mllog import LogEvent, loadgen_line, log_events, log_lines, training_line
from wattsmith.report.formats.ptd_log import averages_in, ptd_line, ptd_lines, range_in, uncertainty_in, watts_reply
from wattsmith.report.formats.spl import Channel, SplSample, merged, spl_lines, spl_sample, spl_samples
from wattsmith.report.formats.stamps import stamp, stamp_s
from wattsmith.report.formats.summary import read_summary
from wattsmith.report.formats.tiny import (
    read_results,
    read_timestamps,
    read_trials,
    timestamps_text,
    trace_bytes,
    trace_microjoules,
    trace_rate_hz,
)
from wattsmith.terms.errors import BadInput, BadTerm

SPL = b"Time,02-19-2024 23:12:54.593,Watts,117.140000,Volts,246.250000,Amps,0.581300,PF,0.818300,Mark,s_testing"
EVENT = b':::MLLOG {"key": "power_begin", "value": "02-19-2024 23:12:54.593", "time_ms": 12.5}'
SAID = b"02-19-2024 23:12:43.352: Uncertainty checking for YokogawaWT210 is activated"
PIECES = st.sampled_from(
    [
        SPL,
        EVENT,
        SAID,
        SPL[:40],
        EVENT[:30],
        SAID[:20],
        b"",
        b"\xff\xfe\x00",
        b"\r",
        b"Time,,,",
        b"{}",
        b"[1, 2]",
        b"\xf1",
    ]
)
MESSY = st.lists(
    st.tuples(PIECES | st.binary(max_size=30), st.sampled_from([b"\n", b"\r\n", b"", b"\r"])), max_size=10
).map(lambda parts: b"".join(piece + ending for piece, ending in parts))
LINE_READERS = {"lines": lines_of, "spl": spl_lines, "mllog": log_lines, "ptd": ptd_lines}


def refusal(read, raw, name):
    """What a reader says against RAW; None: nothing."""
    try:
        read(raw, name)
    except BadInput as refused:
        return str(refused)
    return None


@pytest.mark.parametrize("reader", LINE_READERS.values(), ids=LINE_READERS)
@given(raw=MESSY)
def test_whatever_a_line_reader_takes_it_gives_back_to_the_last_byte(reader, raw):
    refused = refusal(lambda raw, name: list(reader(raw, name)), raw, "x.txt")
    if refused is None:
        assert written(reader(raw)) == raw
    else:
        assert "x.txt, line 1" in refused  # UTF-16, zero bytes


@given(raw=MESSY)
def test_a_summary_is_given_back_to_the_last_byte(raw):
    refused = refusal(read_summary, raw, "x")
    if refused is None:
        assert read_summary(raw).encode() == raw
    else:
        assert "x, line 1" in refused


@given(
    body=st.dictionaries(st.text(max_size=8), st.none() | st.integers() | st.lists(st.text(max_size=5))),
    indent=st.none() | st.integers(0, 4),
    space=st.sampled_from(["", "\n", "\r\n  "]),
)
def test_a_descriptor_is_given_back_to_the_last_byte_with_fields_that_nobody_knows(body, indent, space):
    raw = (json.dumps(body, indent=indent) + space).encode()
    found = read_descriptor(raw, "client.json")
    assert (found.encode(), dict(found.body)) == (raw, body)


@given(raw=st.binary(max_size=60) | MESSY | st.text(max_size=60).map(str.encode))
def test_no_bytes_crash_a_reader(raw):
    whole = (read_descriptor, read_summary, read_timestamps, read_trials, read_results, trace_rate_hz)
    streamed = (*LINE_READERS.values(), spl_samples, log_events, trace_microjoules)
    said = [refusal(read, raw, "some.file") for read in whole]
    said += [refusal(lambda raw, name, read=read: list(read(raw, name)), raw, "some.file") for read in streamed]
    assert all(one is None or "some.file" in one for one in said)


@given(
    st.fixed_dictionaries(
        {},
        optional={
            name: st.none()
            | st.integers()
            | st.text(max_size=4)
            | st.lists(st.integers() | st.lists(st.none()), max_size=3)
            | st.dictionaries(
                st.sampled_from(["client", "ranging", "cmd"]), st.text(max_size=3) | st.lists(st.integers())
            )
            for name in (
                "timezone",
                "messages",
                "ptd_messages",
                "uuid",
                "results",
                "phases",
                "ptd_config",
                "sources",
                "debug",
            )
        },
    )
)
def test_no_content_of_a_descriptor_crashes_what_looks_into_it(body):
    found = read_descriptor(json.dumps(body).encode())
    assert found.session == ""
    for look in (
        "timezone_s",
        "results",
        "sources",
        "uuids",
        "messages",
        "ptd_messages",
        "analyzers",
        "identities",
        "missing",
    ):
        getattr(found, look)
    assert found.phases("ranging") == () or body["phases"]


class TestLines:
    def test_numbers_and_endings_are_kept(self):
        assert list(lines_of(b"a\r\nb\nc")) == [Line(1, "a", "\r\n"), Line(2, "b", "\n"), Line(3, "c", "")]

    @pytest.mark.parametrize(
        ("raw", "why"),
        [
            ("Time".encode("utf-16"), "line 1: this is UTF-16, not plain text"),
            (b"\x1f\x8b\x08", "line 1: this is gzip"),
            (b"Time\0,", "line 1: this is no text: it has zero bytes"),
        ],
    )
    def test_other_encodings_are_named(self, raw, why):
        with pytest.raises(BadInput, match=why):
            list(lines_of(raw, "spl.txt"))

    def test_a_file_of_two_gigabytes_is_refused_by_its_size_alone(self, tmp_path):
        path = tmp_path / "spl.txt"
        with path.open("wb") as file:
            file.truncate(2 << 30)  # sparse: it takes no place
        with pytest.raises(BadInput, match="refused: it has 2147483648 bytes"):
            list(lines_of(path))

    def test_a_line_without_end_is_refused(self):
        with pytest.raises(BadInput, match="line 1: the line is longer than"):
            list(lines_of(b"x" * ((1 << 24) + 1)))

    def test_what_is_no_file_is_named(self, tmp_path):
        with pytest.raises(BadInput, match="there is no such file"):
            list(lines_of(tmp_path / "none.txt"))
        with pytest.raises(BadInput, match="this is no regular file"):
            list(lines_of(tmp_path))
        os.mkfifo(tmp_path / "pipe")
        with pytest.raises(BadInput, match="this is no regular file"):
            list(lines_of(tmp_path / "pipe"))

    @pytest.mark.parametrize(
        ("read", "line"),
        [
            (spl_lines, SPL + b",Ch1,Watts,1,Volts,1,Amps,1,PF,1" * 30 + b"\n"),
            (log_lines, EVENT.replace(b"12.5}", b'12.5, "more": "' + b"x" * 1_000 + b'"}') + b"\n"),
            (ptd_lines, SAID + b"x" * 1_000 + b"\n"),
        ],
        ids=["spl", "mllog", "ptd"],
    )
    def test_ten_megabytes_are_read_in_little_memory(self, read, line, tmp_path):
        path = tmp_path / "log.txt"
        path.write_bytes(line * (10_000_000 // len(line) + 1))
        tracemalloc.start()
        for _ in read(path):
            pass
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak_bytes < 1 << 20


class TestStamps:
    def test_a_date_is_seconds_since_1970_in_utc(self):
        assert stamp_s("01-02-1970 00:00:01.250") == 86_401.25

    @given(st.integers(0, 4_000_000_000_000))
    def test_dates_come_back_as_they_were(self, milliseconds):
        assert round(stamp_s(stamp(milliseconds / 1_000)) * 1_000) == milliseconds

    @pytest.mark.parametrize(
        "text",
        ["", "13-01-2024 00:00:00.000", "02-30-2024 00:00:00.000", "02-19-2024 24:00:00.000", "02-19-2024 23:00:60.000",
         "2024-02-19 23:12:54.593", "02-19-2024 23:12:54", "02-19-2024 23:12:54.1", "02-19-2024 23:12:٥٤.593"],
    )  # fmt: skip
    def test_what_is_no_date_is_refused(self, text):
        with pytest.raises(ValueError, match=r"date|second"):
            stamp_s(text)


class TestSpl:
    def test_a_sample_has_its_values(self):
        (sample,) = spl_samples(SPL)
        assert (sample.power_w, sample.volts, sample.amps, sample.pf, sample.mark) == (
            117.14,
            246.25,
            0.5813,
            0.8183,
            "s_testing",
        )

    def test_a_new_sample_is_written_as_the_director_does(self):
        (read,) = spl_samples(SPL)
        made = spl_sample(read.time_s, 117.14, 246.25, 0.5813, 0.8183, "s_testing", ending="")
        assert made.line.encode() == SPL

    def test_channels_stand_behind_the_mark(self):
        parts = (Channel("Ch1", 60.0, 100.0, 0.6, 1.0), Channel("Ch2", 40.0, 100.0, 0.4, 1.0))
        made = spl_sample(0.0, 100.0, -1.0, -1.0, -1.0, "m", parts)
        (read,) = spl_samples(made.line.encode())
        assert (read.channels, read.analyzers) == (parts, ())

    def test_several_meters_are_merged_line_by_line(self):
        first = [spl_sample(float(second), 100.0, 230.0, 0.5, 0.9, "m") for second in range(3)]
        second = [spl_sample(second + 0.2, -50.0, 230.0, 0.3, 0.9, "m") for second in range(2)]
        both = list(merged([first, second]))
        assert [(one.time_s, one.power_w) for one in both] == [(0.0, 150.0), (1.0, 150.0)]  # the third has no partner
        (read, *_) = spl_samples(written(both))
        assert [(one.name, one.power_w) for one in read.analyzers] == [("Analyzer1", 100.0), ("Analyzer2", -50.0)]
        assert (read.volts, read.channels) == (-1.0, ())

    def test_blank_lines_are_kept_and_passed_over(self):
        raw = SPL + b"\r\n\r\n"
        kinds = [type(line) for line in spl_lines(raw)]
        assert (kinds, len(list(spl_samples(raw)))) == ([SplSample, Unread], 1)

    @pytest.mark.parametrize(
        ("line", "why"),
        [
            (SPL[:60], "line 2: the line ends too early"),
            (SPL.replace(b"117.14", b"many"), "line 2: could not convert"),
            (SPL.replace(b"02-19", b"19-02"), "line 2: .*no date"),
            (SPL.replace(b"Volts", b"Amps"), "line 2: labels are not"),
            (SPL.replace(b"PF", b"FP"), "line 2: there is no PF"),
        ],
    )
    def test_a_bad_line_is_named_with_file_and_line(self, line, why):
        with pytest.raises(BadInput, match=f"spl.txt, {why}"):
            list(spl_samples(SPL + b"\n" + line, "spl.txt"))

    def test_marks_cannot_break_the_line(self):
        with pytest.raises(BadTerm, match="commas"):
            spl_sample(0.0, 1.0, 1.0, 1.0, 1.0, "a,b")


class TestMllog:
    def test_an_event_has_key_value_time_and_fields_that_nobody_knows(self):
        (event,) = log_events(EVENT[:-1] + b', "colour": "red"}')
        assert (event.key, event.value, event.time_s, event.body["colour"]) == (
            "power_begin", "02-19-2024 23:12:54.593", 0.0125, "red"
        )  # fmt: skip

    def test_what_comes_before_the_token_is_kept(self):
        raw = b"0: " + EVENT
        (event,) = log_events(raw)
        assert (event.key, event.line.encode()) == ("power_begin", raw)

    def test_with_keys_other_events_are_not_taken_apart(self):
        lines = list(log_lines(EVENT + b'\n:::MLLOG {"key": "other", broken', keys={"power_begin"}))
        assert [type(line) for line in lines] == [LogEvent, Line]

    def test_a_broken_event_is_kept_with_its_line(self):
        (event,) = log_events(b'\n:::MLLOG {"key": ')
        assert (event.number, "JSON after :::MLLOG is broken" in event.why) == (2, True)

    def test_metadata_may_be_an_empty_text_and_values_the_text_null(self):
        (event,) = log_events(b':::MLLOG {"key": "power_reading", "value": "null", "metadata": ""}')
        assert (event.metadata, event.value, event.time_s) == ({}, "null", None)

    def test_new_lines_can_be_read(self):
        raw = f"{loadgen_line('power_begin', 'x', 0.5, pid=1)}\n{training_line('power_reading', 7, 1.5)}".encode()
        assert [(event.key, event.time_s) for event in log_events(raw)] == [
            ("power_begin", 0.5),
            ("power_reading", 1.5),
        ]


class TestPtdLog:
    def test_two_messages_may_share_a_line(self):
        raw = b"07-12-2025 23:37:38.870: Range A changed07-12-2025 23:37:38.875: Ampere range set to Auto"
        (line,) = ptd_lines(raw)
        assert [said.text for said in line.messages] == ["Range A changed", "Ampere range set to Auto"]
        assert [round(said.time_s % 1, 3) for said in line.messages] == [0.87, 0.875]

    def test_the_banner_and_what_the_meter_answered_have_no_messages(self):
        assert [line.messages for line in ptd_lines(b"SPEC PTDaemon Tool\nBuffer was 245.79E+00,nan\n")] == [(), ()]

    def test_averages_are_found_in_log_and_reply(self):
        logged = averages_in(
            "Avg watts 586.755698, min watts 117.14, max watts 606.63, samples 353, errors 2, valid 351"
        )
        assert logged == watts_reply("Watts,586.755698,117.14,606.63,353,2,351")
        assert (logged.mean_w, logged.samples, logged.valid) == (586.755698, 353, 351)

    def test_both_wordings_of_uncertainty_are_known(self):
        assert uncertainty_in("WARNING: Uncertainty 1.26% above 1.00% limit for the last measurement sample!") == 0.0126
        assert uncertainty_in("WARNING: Uncertainty 1.03%, which is above 1.00% limit for the last sample!") == 0.0103
        assert uncertainty_in("WARNING: Uncertainty unknown for the last measurement sample!") is None

    def test_ranges_are_found(self):
        assert range_in("Ampere range set to Auto") == ("Amp", "Auto")
        assert range_in("Amp range set to 5.000000A") == ("Amp", "5.000000A")
        assert range_in("Volt range set to 300.000000V") == ("Volt", "300.000000V")

    def test_a_new_line_can_be_read(self):
        (line,) = ptd_lines(ptd_line(1.5, "Completed test").encode())
        assert [(said.time_s, said.text) for said in line.messages] == [(1.5, "Completed test")]

    @pytest.mark.parametrize("reply", ["", "Watts,1,2", "Watts,a,b,c,1,2,3", "Volts,1,2,3,4,5,6"])
    def test_a_reply_that_says_nothing_is_none(self, reply):
        assert watts_reply(reply) is None


class TestTiny:
    @given(st.lists(st.floats(width=32, allow_nan=False), max_size=50))
    def test_a_trace_comes_back_as_it_was(self, energies):
        raw = trace_bytes(1000.0, energies)
        assert (trace_rate_hz(raw), list(trace_microjoules(raw))) == (1000.0, energies)
        assert trace_bytes(trace_rate_hz(raw), list(trace_microjoules(raw))) == raw

    @pytest.mark.parametrize(
        ("raw", "why"),
        [
            (b"", "ends after 0 bytes"),
            (b"\xf2\x00\x00\x7a\x44", "begins with byte 0xF1, this file with 0xF2"),
            (b"\xf1\x00\x00\x00\x00", "the sample rate of the trace makes no sense: 0.0 Hz"),
        ],
    )
    def test_what_is_no_trace_is_named(self, raw, why):
        with pytest.raises(BadInput, match=f"t.bin: .*{why}"):
            trace_rate_hz(raw, "t.bin")

    def test_a_trace_that_is_cut_off_is_named_with_the_byte(self):
        with pytest.raises(BadInput, match=r"t\.bin: the trace is cut off inside the sample at byte 9"):
            list(trace_microjoules(trace_bytes(1000.0, [1.0, 2.0])[:-2], "t.bin"))

    def test_timestamps_come_back_as_the_runner_writes_them(self):
        raw = b"[\n\t0.015,\n\t3.722,\n\t16.926\n]"
        assert timestamps_text(read_timestamps(raw)).encode() == raw

    def test_timestamps_that_go_backwards_are_named(self):
        with pytest.raises(BadInput, match=r"go backwards after the entry 1: 3.0 s, then 2.0 s"):
            read_timestamps(b"[3, 2]", "t.json")

    def test_results_of_both_runners_say_the_same_things(self):
        old = (
            b"00136.808 ulp-ml: Energy data for window 2 at time 3.72 for 13.20 sec.:\n"
            b"00136.809 ulp-ml:   Energy       :    94830.716 uJ\n00136.809 ulp-ml:   Power        :     7181.969 uW\n"
            b"00136.809 ulp-ml:   Energy/Inf.  :       31.610 uJ/inf.\n"
            b"00136.854 ulp-ml: Median energy cost is 31.610 uJ/inf.\n"
            b"00136.855 ulp-ml: Performance results for window 2:\n00136.856 ulp-ml:   # Inferences :         3000\n"
            b"00136.857 ulp-ml:   Runtime      :       13.200 sec.\n"
        )
        new = (
            b"Energy data for trial 2\r\n  Elapsed time  : 13.2\r\n  Inferences    : 3000\r\n"
            b"  Power         : 7.1 mW.\r\n  Total Energy  : 94830.716 uJ\r\n  Energy/Inf    : 31.610 uJ/inf\r\n"
            b"Median energy cost is 31.610 uJ/inf.\r\n"
        )
        assert read_results(old) == read_results(new)
        (window,) = read_results(old).windows
        assert (window.inferences, window.duration_s, window.energy_j) == (3000, 13.2, pytest.approx(0.094830716))

    def test_trials_are_read_and_given_back(self):
        trial = {
            "infer": {"iterations": 2},
            "power": {"samples": [1e-6, 2e-6, 3e-6], "timestamps": [["00", 1], ["01", 3]]},
        }
        raw = json.dumps([trial]).encode()
        found = read_trials(raw)
        assert (found.encode(), found.trials[0].edges, list(found.trials[0].energies_j)) == (
            raw,
            (1, 3),
            [1e-6, 2e-6, 3e-6],
        )

    def test_a_trial_without_samples_is_named(self):
        with pytest.raises(BadInput, match=r"r\.json: measurement 1 has no samples"):
            read_trials(b'[{"power": {}, "infer": {}}]', "r.json")


def test_new_descriptors_look_like_the_official_ones():
    found = read_descriptor(b'{\n    "session_name": "a"\n}')
    assert found.changed(session_name="b").text == '{\n    "session_name": "b"\n}'
