import json
import shutil
import sys
import threading
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
from typer.testing import CliRunner

from wattsmith.cli import app
from wattsmith.flows.report_power import MetersSource, PtdSource
from wattsmith.flows.report_session import HowToRun, function_called, run
from wattsmith.report.analysis_folder import read_folder
from wattsmith.report.checks.findings import Layer, Outcome, Verdict
from wattsmith.report.checks.judging import judge_inference
from wattsmith.report.session import Director, SessionPlan, require_same_clock, run_session, session_name
from wattsmith.report.session_load import (
    NOT_LOADGEN,
    LoadPlan,
    command_work,
    generate,
    has_loadgen,
    own_logs,
    read_load,
)
from wattsmith.report.tiers import MeterKind, Tier
from wattsmith.report.window import Scenario
from wattsmith.sim.lpm01a import SimulatedLpm01a
from wattsmith.sim.ptd import SimulatedPtd
from wattsmith.terms.clock import RealClock
from wattsmith.terms.errors import (
    BadInput,
    CommandNotStarted,
    ExtraNeeded,
    MeterLost,
    MeterMissed,
    MeterUnavailable,
    NotWritten,
)

SHORT = SessionPlan(least_duration_s=0.25, settle_s=0.06, period_s=0.03)
needs_loadgen = pytest.mark.skipif(
    not has_loadgen(), reason="LOADGEN IS NOT CHECKED: mlcommons-loadgen is not installed"
)
# What cannot hold for a session of ours on a simulated analyzer, in a session of a second.
OURS = {"Check client sources checksum", "Check server sources checksum"}
SIMULATED = {
    "Check PTD commands and replies",
    "Check errors and warnings from PTD logs",  # the official one looks for the name of a real meter
    "Check PTD configuration",
    "Simulated analyzer",
}
LOGS = ("mlperf_log_detail.txt", "mlperf_log_summary.txt", "spl.txt")
POWER = {f"power/{name}" for name in ("client.json", "client.log", "server.json", "server.log", "ptd_logs.txt")}
SHORTENED = {"Coverage of the window", "Length of the run"}


def work(samples):
    time.sleep(0.002 * len(samples))


def short(**more):
    return HowToRun(**({"meters": "ptd:simulated", "plan": SHORT} | more))


@pytest.fixture(scope="module")
def sessions(tmp_path_factory):
    """The same work in two scenarios, with LoadGen where it is installed."""
    out = tmp_path_factory.mktemp("sessions")
    return {name: run(work, out, short(scenario=name)) for name in ("SingleStream", "Offline")} | {"out": out}


# ---- a whole session


@pytest.mark.parametrize("scenario", ["SingleStream", "Offline"])
def test_a_session_passes_every_check_that_is_not_about_the_analyzer_or_its_length(sessions, scenario):
    driven = sessions[scenario]
    judged = judge_inference(driven.folder, sessions["out"], "x", "v5.1")
    failed = {check.name for check in judged.checks if check.outcome is Outcome.FAILED}
    assert failed <= OURS | SIMULATED | SHORTENED
    assert judged.simulated
    assert judged.verdict(Layer.OFFICIAL) is Verdict.REJECTED
    assert judged.verdict(Layer.STRICT) is Verdict.REJECTED
    passed = {check.name for check in judged.checks if check.outcome is Outcome.PASSED}
    assert {"Check UUID", "Check time difference", "Check results checksum", "Ranges of the test"} <= passed
    assert {"Samples against the daemon's average", "Samples against the daemon's log", "One session"} <= passed


def test_the_layout_is_the_official_one_and_nothing_else_lies_in_it(sessions):
    folder = sessions["Offline"].folder
    logs = {f"{run}/{name}" for run in ("ranging", "run_1") for name in LOGS}
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} == logs | POWER


def test_the_daemon_is_asked_in_the_order_of_the_official_director(sessions):
    server = json.loads((sessions["Offline"].folder / "power" / "server.json").read_text())
    asked = [message["cmd"].partition(",")[0] for message in server["ptd_messages"]]
    assert asked == [
        *("Hello", "Identify", "RR", "SR", "SR", "SR", "Go", "Stop", "RL", "RL", "Uncertainty", "Watts"),
        *("SR", "SR", "Go", "Watts", "Uncertainty", "Stop", "RL", "RL", "Uncertainty", "Watts", "SR", "SR"),
    ]
    assert server["ptd_messages"][3]["cmd"] == "SR,V,Auto"
    assert server["ptd_messages"][-1]["cmd"] == "SR,A,5.000000"


def test_the_testing_range_is_a_tenth_above_the_largest_current_of_ranging(sessions):
    folder = sessions["SingleStream"].folder
    largest = max(float(line.split(",")[7]) for line in (folder / "ranging" / "spl.txt").read_text().splitlines())
    server = json.loads((folder / "power" / "server.json").read_text())
    set_to = [float(m["cmd"].split(",")[2]) for m in server["ptd_messages"] if m["cmd"].startswith("SR,A,1")]
    assert set_to == [pytest.approx(1.1 * largest, abs=1e-6)]


def test_the_figure_is_that_of_the_samples_in_the_window(sessions):
    driven = sessions["SingleStream"]
    assert driven.result.power_w == pytest.approx(300.0, rel=0.01)
    assert driven.result.metric == pytest.approx(driven.result.power_w * driven.result.window_s / driven.result.queries)
    assert driven.result.window_s >= 0.25


def test_its_disclosure_says_simulated_short_and_what_may_not_be_said(sessions):
    told = sessions["Offline"].disclosure
    assert told.standing.tier is Tier.F
    assert told.standing.may_be_called == "simulated energy"
    assert any("the rules ask for 60 s" in lack for lack in told.standing.lacks)
    assert any(remark.startswith("shortened: the load to 0.25 s") for remark in told.remarks)
    written = {path.name for path in sessions["Offline"].files}
    assert written == {"disclosure.json", "disclosure.txt", "analyzer_table.md", "power_settings.md"}


def test_results_of_sessions_can_be_compared_as_any_others(sessions):
    results, unread = read_folder(sessions["out"])
    assert unread == []
    assert {one.scenario for one in results} == {"singlestream", "offline"}


@needs_loadgen
def test_loadgen_makes_the_load_where_it_is_installed(sessions):
    assert sessions["Offline"].is_loadgen
    assert sessions["Offline"].generator.startswith("6.")


def test_without_loadgen_the_load_says_that_it_is_not(tmp_path):
    driven = run(work, tmp_path, short(loadgen=False))
    assert not driven.is_loadgen
    assert NOT_LOADGEN in (driven.folder / "run_1" / "mlperf_log_summary.txt").read_text()
    assert f"load: singlestream by {NOT_LOADGEN}" in driven.disclosure.remarks


def test_meters_of_this_machine_make_a_session_too(tmp_path):
    driven = run(work, tmp_path, short(meters="modelled:10W-65W", loadgen=False))
    assert 10.0 <= driven.result.power_w <= 66.0
    assert driven.disclosure.standing.tier is Tier.F
    names = [figure.name for figure in driven.disclosure.figures]
    assert names[:4] == [
        "duration of the phase",
        "energy of the phase",
        "mean power of the phase",
        "window of the load",
    ]
    assert "No power daemon took part" in (driven.folder / "power" / "ptd_logs.txt").read_text()
    assert (driven.folder / "run_1" / "spl.txt").read_text().count("Volts,-1.000000") > 5


def test_a_tiny_monitor_on_a_serial_port_makes_a_session_too(tmp_path):
    with SimulatedLpm01a(power_w=0.02) as monitor:
        driven = run(work, tmp_path, short(meters=f"tiny:{monitor.path}", loadgen=False))
    assert driven.result.power_w == pytest.approx(0.02, rel=0.05)
    assert driven.disclosure.standing.may_be_called == "simulated energy"


def test_a_command_is_started_once_for_each_query(tmp_path):
    seen = tmp_path / "seen"
    command = [sys.executable, "-S", "-c", f"open({str(seen)!r}, 'a').write('x')"]
    driven = run(command, tmp_path / "out", short(loadgen=False))
    assert len(seen.read_text()) > driven.result.queries  # those of ranging came before


# ---- what voids a session


def test_a_daemon_that_dies_voids_the_session_and_leaves_its_files_with_the_reason(tmp_path):
    with SimulatedPtd() as daemon:

        def deadly(samples):
            daemon.failure = "dies"
            work(samples)

        with pytest.raises(MeterLost, match="closed the connection"):
            run(deadly, tmp_path, short(meters=f"ptd:127.0.0.1:{daemon.port}", loadgen=False))
    (void,) = tmp_path.rglob("performance.void*")
    assert "closed the connection" in (void / "void.txt").read_text()
    assert not list(tmp_path.rglob("performance"))


def test_work_that_fails_voids_the_session_and_the_ranges_come_back(tmp_path):
    def broken(_samples):
        raise ZeroDivisionError("no")

    with SimulatedPtd() as daemon:
        with pytest.raises(ZeroDivisionError):
            run(broken, tmp_path, short(meters=f"ptd:127.0.0.1:{daemon.port}"))
        assert daemon.answer("RR") == "Ranges,0,5.000000,0,300.000000"
        assert daemon.answer("Stop") == "Error: no measurement to stop"


def test_a_current_beyond_every_range_voids_the_session(tmp_path):
    with pytest.raises(MeterMissed, match="range not supported"):
        run(work, tmp_path, short(meters="ptd:simulated:9kW", loadgen=False))


def test_a_result_is_never_overwritten(tmp_path):
    run(work, tmp_path, short(loadgen=False))
    with pytest.raises(NotWritten, match="there already"):
        run(work, tmp_path, short(loadgen=False))


@pytest.mark.parametrize("late_s", [-1.0, 10.0])
def test_a_meter_whose_clock_differs_voids_the_session(late_s):
    with pytest.raises(MeterUnavailable, match="the clocks differ"):
        require_same_clock(1_000.0, 1_000.0 + late_s, period_s=1.0)


def test_a_sample_of_just_now_is_no_trouble():
    require_same_clock(1_000.0, 1_000.9, period_s=1.0)
    require_same_clock(None, 0.0, period_s=1.0)


def test_a_daemon_whose_clock_is_an_hour_off_is_found_out(tmp_path):
    with (
        SimulatedPtd(wall_s=lambda: time.time() - 3_600) as daemon,
        pytest.raises(MeterUnavailable, match="the clocks differ"),
    ):
        run(work, tmp_path, short(meters=f"ptd:127.0.0.1:{daemon.port}", loadgen=False))


def test_a_daemon_of_an_unknown_version_is_refused_before_anything_is_written(tmp_path):
    with SimulatedPtd(version="3.0.0") as daemon, pytest.raises(MeterUnavailable, match=r"version 3\.0\.0"):
        run(work, tmp_path, short(meters=f"ptd:127.0.0.1:{daemon.port}"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"scenario": "Sideways"}, "is no scenario"),
        ({"scenario": "Server"}, "give --rate"),
        ({"scenario": "Server", "rate_hz": -1.0}, "a rate is positive"),
        ({"batch": 0}, "a batch holds"),
        ({"meters": "ptd:"}, "no address"),
        ({"meters": "telepathy"}, "there is no meter"),
        ({"ptd_log": Path("none"), "meters": "ptd:127.0.0.1:1"}, "no log of the power daemon"),
        ({"logs": Path("none")}, "not with a function"),
    ],
)
def test_what_makes_no_sense_is_named(tmp_path, how, said):
    with pytest.raises(BadInput, match=said):
        run(work, tmp_path, short(**how))


@pytest.mark.parametrize(
    "plan", [{"label": "a b"}, {"settle_s": -1.0}, {"period_s": 0.0}, {"label": "x" * 41}, {"period_s": float("nan")}]
)
def test_a_plan_that_makes_no_sense_is_refused(plan):
    with pytest.raises(BadInput):
        SessionPlan(**plan)


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden", "a b"])
def test_a_name_that_cannot_be_a_folder_is_refused(name):
    with pytest.raises(BadInput, match="cannot name a folder"):
        HowToRun(system=name)


def test_a_session_without_work_is_refused(tmp_path):
    with pytest.raises(BadInput, match="there is no work"):
        run([], tmp_path, short())


# ---- the conversation


def test_the_director_refuses_what_it_does_not_know():
    with SimulatedPtd() as daemon:
        source = PtdSource("127.0.0.1", daemon.port, SHORT, RealClock())
        director = Director(source, SHORT, RealClock())
        assert director.answer("mlcommons/power client v3") == "mlcommons/power server v3"
        assert director.answer("new,label,uuid").startswith("OK 2")
        for wrong in ("session,other,start,ranging", f"session,{director.session},dance,ranging", "stop it", ""):
            assert director.answer(wrong).startswith("Error")
        source.close()


def test_a_session_is_named_by_date_and_label():
    assert session_name(86_400.0, "") == "1970-01-02_00-00-00"
    assert session_name(86_400.0, "mine") == "1970-01-02_00-00-00_mine"


def test_channels_keep_their_names_in_spl(tmp_path):
    with SimulatedPtd(channels=2) as daemon:
        driven = run(work, tmp_path, short(meters=f"ptd:127.0.0.1:{daemon.port}", loadgen=False))
    first = (driven.folder / "run_1" / "spl.txt").read_text().splitlines()[0].split(",")
    assert first[10] == "Mark"
    assert [field for field in first if field.startswith("Ch")] == ["Ch1", "Ch2"]
    ptd_log = (driven.folder / "power" / "ptd_logs.txt").read_text()
    assert ptd_log.startswith("The daemon's own log was not given")


def test_meters_source_says_what_it_is():
    source = MetersSource("modelled:10W-65W", SHORT, RealClock())
    source.start("s_testing", None, None)
    time.sleep(0.3)
    recorded = source.stop("s_testing")
    source.close()
    assert len(recorded.lines) >= 3
    assert source.card.kind is MeterKind.MODELLED


def test_an_interrupted_session_is_void(tmp_path):
    def interrupted(_mode, _folder):
        raise KeyboardInterrupt

    with SimulatedPtd() as daemon:
        source = PtdSource("127.0.0.1", daemon.port, SHORT, RealClock())
        with pytest.raises(KeyboardInterrupt):
            run_session(source, interrupted, SHORT, tmp_path / "s", clock=RealClock(), sources={})
        source.close()
    assert "KeyboardInterrupt" in (tmp_path / "s.void" / "void.txt").read_text()


@pytest.mark.parametrize(("offset_s", "void"), [(0.1, False), (-0.5, True)])
def test_a_clock_that_is_off_voids_the_session(tmp_path, offset_s, void):
    asked = []

    def load(_mode, folder):
        return generate(
            work, LoadPlan(scenario=Scenario.SINGLE_STREAM, least_duration_s=0.1), folder, use_loadgen=False
        )

    def tell_offset_s():
        asked.append(offset_s)
        return offset_s

    with SimulatedPtd() as daemon:
        source = PtdSource("127.0.0.1", daemon.port, SHORT, RealClock())
        how = {"clock": RealClock(), "sources": {}, "offset_s": tell_offset_s}
        with pytest.raises(MeterUnavailable, match="time server") if void else nullcontext():
            run_session(source, load, SHORT, tmp_path / "s", **how)
        source.close()
    assert len(asked) == (1 if void else 2)


def test_one_void_session_does_not_stand_in_the_way_of_another(tmp_path):
    def broken(_mode, _folder):
        raise BadInput("no")

    with SimulatedPtd() as daemon:
        for _ in range(2):
            source = PtdSource("127.0.0.1", daemon.port, SHORT, RealClock())
            with pytest.raises(BadInput):
                run_session(source, broken, SHORT, tmp_path / "s", clock=RealClock(), sources={})
            source.close()
    assert {path.name for path in tmp_path.iterdir()} == {"s.void", "s.void.2"}


# ---- load


@pytest.mark.parametrize("use_loadgen", [pytest.param(True, marks=needs_loadgen), False])
@pytest.mark.parametrize("scenario", list(Scenario))
def test_every_scenario_has_a_window_and_lasts_long_enough(tmp_path, scenario, use_loadgen):
    rate_hz = 200.0 if scenario in (Scenario.SERVER, Scenario.INTERACTIVE) else None
    plan = LoadPlan(scenario=scenario, least_duration_s=0.2, rate_hz=rate_hz)
    loaded = generate(work, plan, tmp_path, use_loadgen=use_loadgen)
    assert loaded.is_loadgen is use_loadgen
    assert {path.name for path in tmp_path.iterdir()} == set(LOGS) - {"spl.txt"}


@pytest.mark.parametrize("use_loadgen", [pytest.param(True, marks=needs_loadgen), False])
def test_work_that_raises_in_another_thread_is_heard_of(tmp_path, use_loadgen):
    seen = []

    def broken(samples):
        seen.append(threading.current_thread())
        raise ValueError(f"cannot do {len(samples)}")

    plan = LoadPlan(scenario=Scenario.SERVER, least_duration_s=0.1, rate_hz=100.0)
    with pytest.raises(ValueError, match="cannot do 1"):
        generate(broken, plan, tmp_path, use_loadgen=use_loadgen)
    assert len(seen) == 1


@needs_loadgen
def test_offline_work_that_was_thought_slower_is_repeated_until_it_lasts(tmp_path):
    calls = []

    def warming_up(samples):
        calls.append(len(samples))
        time.sleep(0.05 if len(calls) < 6 else 0.001)  # slow while it is tried, fast under load

    plan = LoadPlan(scenario=Scenario.OFFLINE, least_duration_s=0.3)
    assert generate(warming_up, plan, tmp_path, use_loadgen=True).window_s >= 0.3


def test_a_command_that_fails_or_is_not_there_is_named():
    with pytest.raises(CommandNotStarted, match="ended with 3"):
        command_work([sys.executable, "-c", "raise SystemExit(3)"])([0])
    with pytest.raises(CommandNotStarted, match="cannot start"):
        command_work(["/no/such/program"])([0])


def test_a_command_that_runs_loadgen_itself_leaves_its_logs(tmp_path):
    logs, made, taken = tmp_path / "logs", tmp_path / "made", tmp_path / "taken"
    logs.mkdir()
    plan = LoadPlan(scenario=Scenario.SINGLE_STREAM, least_duration_s=0.05)
    generate(work, plan, made, use_loadgen=False)
    (logs / "mlperf_log_detail.txt").write_text("of an earlier run")
    copy = f"import shutil; shutil.copytree({str(made)!r}, {str(logs)!r}, dirs_exist_ok=True)"
    assert own_logs([sys.executable, "-c", copy], logs, taken).generator == NOT_LOADGEN
    shutil.rmtree(logs)
    with pytest.raises(BadInput, match=r"left no mlperf_log_detail\.txt"):
        own_logs([sys.executable, "-c", ""], logs, taken)


def test_a_log_without_its_window_is_named(tmp_path):
    (tmp_path / "mlperf_log_detail.txt").write_text("")
    with pytest.raises(BadInput, match="no power_begin"):
        read_load(tmp_path)


@pytest.mark.skipif(has_loadgen(), reason="LoadGen is installed here")
def test_loadgen_that_is_not_there_is_asked_for(tmp_path):
    with pytest.raises(ExtraNeeded, match=r"wattsmith\[loadgen\]"):
        generate(work, LoadPlan(scenario=Scenario.SINGLE_STREAM, least_duration_s=0.1), tmp_path, use_loadgen=True)


def test_a_function_is_found_by_its_name(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text("number = 3\ndef infer(samples): pass\n")
    assert function_called(f"{file}:infer")([1]) is None
    with pytest.raises(BadInput, match="not a function"):
        function_called(f"{file}:number")
    with pytest.raises(BadInput, match="names no function"):
        function_called("infer")


# ---- the command line


def test_the_command_runs_a_session_and_prints_its_tier(tmp_path):
    short_options = ["--duration", "0.2s", "--settle", "0s", "--period", "0.05s", "--no-loadgen"]
    place = ["--out", str(tmp_path), "--meters", "ptd:simulated"]
    done = CliRunner().invoke(app, ["report", "run", *place, *short_options, "--", "true"])
    assert done.exit_code == 0, done.output
    assert "Tier F: a simulation: nothing was measured" in done.output
    checked = CliRunner().invoke(app, ["report", "check", str(tmp_path)])
    assert checked.exit_code == 1


def test_the_command_wants_one_kind_of_work():
    done = CliRunner().invoke(app, ["report", "run"])
    assert isinstance(done.exception, BadInput)
