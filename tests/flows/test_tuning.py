"""Tune a command, a function or a table: trials are kept, failures lived with, results told."""

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from wattsmith.flows.tuning import Goal, Manner, curve_in, knob_of, parse_knobs, tune
from wattsmith.flows.tuning_command import printed_metrics, tune_command
from wattsmith.flows.tuning_process import with_measured
from wattsmith.flows.tuning_served import Serves, served_metrics
from wattsmith.flows.tuning_table import replay_table
from wattsmith.terms.errors import BadInput, NotWritten
from wattsmith.terms.tuning import Failed

pytest.importorskip("scipy", reason="TUNING IS NOT TESTED: scipy is not installed")
np = pytest.importorskip("numpy")

BATCH = [knob_of("batch", [1, 2, 4, 8], "2")]


def serve(setting):
    """Large batches save energy and take time."""
    return {"energy_j": 10 / setting["batch"] + 1, "latency_s": 0.01 * setting["batch"]}


def test_a_function_is_tuned():
    found = tune(serve, BATCH, Goal(limits=("latency<=50ms",)))
    assert found.recommendation.setting == {"batch": 4}
    assert found.recommendation.kept


def test_knobs_by_name_are_at_their_first_level_now():
    asked = []
    found = tune(lambda setting: asked.append(setting) or serve(setting), {"batch": [2, 4, 8]})
    assert asked[0] == {"batch": 2}
    assert found.recommendation.setting == {"batch": 8}
    with pytest.raises(BadInput, match="knob 'batch' has no level"):
        tune(serve, {"batch": []})


def test_trials_in_a_file_are_not_tried_again(tmp_path):
    kept, asked = tmp_path / "trials.jsonl", []

    def counted(setting):
        asked.append(setting)
        return serve(setting)

    first = tune(counted, BATCH, Goal(limits=("latency<=50ms",)), trials=kept)
    before = len(asked)
    again = tune(counted, BATCH, Goal(limits=("latency<=50ms",)), trials=kept)
    assert len(kept.read_text().splitlines()) == before == len(asked)
    assert again.recommendation.setting == first.recommendation.setting


def test_a_search_that_was_cut_off_goes_on(tmp_path):
    kept = tmp_path / "trials.jsonl"

    def breaks(setting):
        if setting["batch"] == 4:
            raise KeyboardInterrupt
        return serve(setting)

    with pytest.raises(KeyboardInterrupt):
        tune(breaks, BATCH, trials=kept)
    with kept.open("a") as file:
        file.write('{"setting": {"batch"')  # the machine went off in the middle of a line
    found = tune(serve, BATCH, trials=kept)
    settings = [json.loads(line)["setting"]["batch"] for line in kept.read_text().splitlines()]
    assert settings[0] == 2
    assert found.recommendation.setting == {"batch": 8}


def test_trials_of_other_knobs_are_refused(tmp_path):
    kept = tmp_path / "trials.jsonl"
    tune(serve, BATCH, trials=kept)
    with pytest.raises(BadInput, match="line 1, is not a trial of these knobs"):
        tune(serve, [knob_of("threads", [1, 2], "1")], trials=kept)


def test_a_trials_file_that_is_something_else_is_refused(tmp_path):
    kept = tmp_path / "notes.txt"
    kept.write_text("hello\nworld\n")
    with pytest.raises(BadInput, match=r"notes\.txt, line 1"):
        tune(serve, BATCH, trials=kept)


def test_a_failed_setting_is_kept_as_such(tmp_path):
    kept = tmp_path / "trials.jsonl"
    found = tune(lambda one: Failed(why="out of memory") if one["batch"] > 4 else serve(one), BATCH, trials=kept)
    assert found.recommendation.setting == {"batch": 4}
    assert any(json.loads(line)["failed"] == "out of memory" for line in kept.read_text().splitlines())


def test_what_does_not_fit_into_memory_is_a_failed_setting():
    def measure(setting):
        if setting["batch"] > 4:
            raise MemoryError("8 do not fit")
        return serve(setting)

    found = tune(measure, BATCH)
    assert found.recommendation.setting == {"batch": 4}
    assert "MemoryError: 8 do not fit" in {one.trial.failed for one in found.trials}


@pytest.mark.parametrize("outcome", [None, 3.0, [1.0]])
def test_a_function_that_gives_no_metrics_is_told_what_to_give(outcome):
    with pytest.raises(BadInput, match="a trial gives metrics by name"):
        tune(lambda _: outcome, BATCH)


def test_a_file_may_be_given_by_its_name(tmp_path):
    tune(serve, BATCH, trials=str(tmp_path / "trials.jsonl"))
    assert (tmp_path / "trials.jsonl").read_text().startswith('{"setting": {"batch": 2}')


def test_numbers_may_be_numpys(tmp_path):
    found = tune(
        lambda one: {"energy_j": np.float32(1 / one["batch"]), "steps": np.int64(3), "note": "warm", "odd": np.nan},
        {"batch": np.array([1, 2, 4])},
        trials=tmp_path / "trials.jsonl",
    )
    assert found.recommendation.setting == {"batch": 4}
    assert found.trials[0].trial.metrics == {"energy_j": 1.0, "steps": 3.0}


@pytest.mark.parametrize(
    "line",
    [
        '{"setting": {"batch": 2}, "metrics": [1], "noise": {}, "failed": null}',
        '{"setting": {"batch": 2}, "metrics": {"energy_j": "much"}, "noise": {}, "failed": null}',
        '{"setting": {"batch": 2}, "metrics": {"energy_j": 1}, "noise": {"energy": "x"}, "failed": null}',
        '{"setting": {"batch": 2}, "metrics": {}, "noise": {}, "failed": 7}',
        "[]",
    ],
)
def test_a_line_that_is_no_trial_is_refused_with_its_place(tmp_path, line):
    kept = tmp_path / "trials.jsonl"
    tune(serve, BATCH, Goal(manner=Manner(budget=1)), trials=kept)
    with kept.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(BadInput, match=r"trials\.jsonl, line 2, is not a trial"):
        tune(serve, BATCH, trials=kept)


def test_trials_are_kept_in_plain_files_alone():
    with pytest.raises(NotWritten, match="no plain file"):
        tune(serve, BATCH, trials=Path("/dev/zero"))


def test_trials_of_another_workload_prime_a_search(tmp_path):
    kept = tmp_path / "other.jsonl"
    tune(lambda one: {"energy_j": 20 / one["batch"] + 3}, BATCH, Goal(manner=Manner(least_gain=0.0)), trials=kept)
    curve = curve_in(kept, BATCH)
    assert curve.space.knobs[0].present == 2
    found = tune(serve, BATCH, Goal(curves=(curve,)))
    assert found.recommendation.setting == {"batch": 8}


def test_trials_of_other_knobs_cannot_prime(tmp_path):
    kept = tmp_path / "other.jsonl"
    tune(serve, BATCH, trials=kept)
    with pytest.raises(BadInput, match="holds no trials of the knobs threads"):
        curve_in(kept, [knob_of("threads", [1, 2], "1")])


def test_a_file_to_prime_with_must_be_there(tmp_path):
    with pytest.raises(BadInput, match="cannot be read"):
        curve_in(tmp_path / "none.jsonl", BATCH)


def is_running(pid):
    """Whether a process has not ended yet; one that only waits to be buried has."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def wait_until(true, what):
    for _ in range(6000):
        if true():
            return
        time.sleep(0.01)
    raise AssertionError(f"waited in vain for: {what}")


def python(program):
    return [sys.executable, "-c", program]


SERVE = """
import json, os, sys
batch = int(os.environ["WATTSMITH_BATCH"])
if batch == 8:
    sys.exit("out of memory")
print("loading")
print(json.dumps({"energy_j": 10 / batch + 1, "latency_s": 0.01 * batch, "queries": 100}))
print("done")
"""


@pytest.fixture
def no_meters(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


@pytest.mark.usefixtures("no_meters")
class TestCommand:
    def test_a_command_is_tuned_and_its_failures_are_lived_with(self):
        found = tune_command(python(SERVE), BATCH, Goal(manner=Manner(budget=10)))
        assert found.recommendation.setting == {"batch": 4}
        assert "exit code 1: out of memory" in {one.trial.failed for one in found.trials}
        assert found.spent_j == pytest.approx(
            sum(100 * one.trial.metrics["energy_j"] for one in found.trials if one.objective is not None)
        )

    def test_its_arguments_are_filled_in(self):
        command = [*python("import sys; print('{\"energy_j\": ' + sys.argv[1] + '}')"), "{batch}"]
        assert tune_command(command, BATCH).recommendation.setting == {"batch": 1}

    def test_the_time_is_measured_when_it_is_not_printed(self):
        command = python("import time; time.sleep(0.02 * {batch}); print('{}')")
        found = tune_command(command, BATCH, Goal(objective="time", manner=Manner(budget=4), noise={"time": 0.2}))
        assert found.trials[0].trial.metrics["time_s"] > 0.04

    def test_without_a_meter_energy_must_be_printed(self):
        with pytest.raises(BadInput, match="no meter measures it here and the command tells no energy_j"):
            tune_command(python("print('{}')"), BATCH)

    def test_a_command_that_prints_nothing_says_what_is_needed(self):
        with pytest.raises(BadInput, match="printed no metrics"):
            tune_command(python("pass"), BATCH)

    def test_a_trial_that_takes_too_long_has_failed(self):
        command = ["sh", "-c", "test {batch} = 4 && sleep 60; echo '{\"energy_j\": 1}'"]
        found = tune_command(command, BATCH, Goal(manner=Manner(budget=3)), timeout_s=3.0)
        assert "it took longer than 3 s" in {one.trial.failed for one in found.trials}

    def test_what_a_command_leaves_running_is_ended_and_not_waited_for(self, tmp_path):
        left = tmp_path / "left"
        command = ["sh", "-c", f"sleep 600 & echo $! >> {left}; echo '{{\"energy_j\": 1}}'"]
        tune_command(command, BATCH, Goal(manner=Manner(budget=2)))
        pids = left.read_text().split()
        assert len(pids) == 2
        wait_until(lambda: not any(is_running(int(pid)) for pid in pids), "what was left has ended")

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
    def test_the_command_ends_with_the_search(self, tmp_path, number):
        left = tmp_path / "left"
        slow = f"echo $$ > {left}.new; mv {left}.new {left}; sleep 600 & wait"
        tuning = f"""
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from wattsmith.flows.tuning import knob_of
from wattsmith.flows.tuning_command import tune_command
tune_command(["sh", "-c", {slow!r}], [knob_of("batch", [1, 2], "1")])
"""
        search = subprocess.Popen(python(tuning), stderr=subprocess.DEVNULL)
        wait_until(left.exists, "the command has started")
        search.send_signal(number)
        assert search.wait(60) != 0
        assert not is_running(int(left.read_text()))

    def test_its_mean_power_can_be_limited_where_a_meter_tells_it(self):
        command = ["sh", "-c", "sleep 0.1; echo '{}'"]
        found = tune_command(
            command, BATCH, Goal(limits=("power<=1kW",), manner=Manner(budget=1)), meters="modelled:10W-65W"
        )
        metrics = found.trials[0].trial.metrics
        assert metrics["power_w"] == pytest.approx(metrics["energy_j"] / metrics["time_s"])

    def test_a_command_that_answered_nothing_is_a_failed_setting(self):
        command = ["sh", "-c", "echo '{\"energy_j\": 1, \"queries\": '$((4 - {batch}))'}'"]
        found = tune_command(command, BATCH)
        assert "it answered nothing: queries is 0" in {one.trial.failed for one in found.trials}

    def test_modelled_energy_is_said_to_be(self):
        said = []
        goal = Goal(objective="time", manner=Manner(budget=1))
        tune_command(["echo", "{}"], BATCH, goal, meters="modelled:10W-65W", say=said.append)
        assert "modelled from how busy the CPU is, not measured" in said[0]

    def test_a_command_that_is_not_there_is_an_error(self):
        with pytest.raises(BadInput, match="cannot be run"):
            tune_command(["no-such-program-anywhere"], BATCH)


SERVER = """
import json, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
port, batch = map(int, sys.argv[1:])
if batch == 8:
    sys.exit("out of memory")
asked = 0

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        global asked
        asked += 1
        told = {"energy_j": 10 / batch + 1, "latency_s": 0.01 * batch, "queries": 50 * asked}
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(told).encode())

    def log_message(self, *_):
        pass

HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""


@pytest.fixture
def port():
    """One that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.mark.usefixtures("no_meters")
class TestServingCommand:
    def test_a_command_that_serves_its_metrics_is_tuned(self, port):
        found = tune_command(
            [*python(SERVER), str(port), "{batch}"],
            BATCH,
            Goal(limits=("latency<=50ms",), manner=Manner(budget=4)),
            serves=Serves(url=f"http://127.0.0.1:{port}/metrics", window_s=0.1),
        )
        assert found.recommendation.setting == {"batch": 4}
        assert found.trials[0].trial.metrics["queries"] == 50  # from the beginning of its window to the end
        assert "it ended before it served anything: exit code 1: out of memory" in {
            one.trial.failed for one in found.trials
        }

    def test_one_that_never_serves_is_told(self, port):
        url = f"http://127.0.0.1:{port}/"
        with pytest.raises(BadInput, match="no metrics were served at"):
            tune_command(["sleep", "600"], BATCH, serves=Serves(url=url), timeout_s=0.2)

    def test_what_answers_before_the_command_is_started_is_not_taken_for_it(self, port):
        other = subprocess.Popen([*python(SERVER), str(port), "1"])
        url = f"http://127.0.0.1:{port}/"
        try:
            wait_until(lambda: answers(port), "another server answers")
            with pytest.raises(BadInput, match="something answers at"):
                tune_command(["sleep", "600"], BATCH, serves=Serves(url=url))
        finally:
            other.kill()
            other.wait()

    def test_what_answers_but_speaks_no_http_serves_no_metrics(self, port):
        listen = f"import socket; listening = socket.create_server(('127.0.0.1', {port}))"
        program = listen + "\nwhile True: listening.accept()[0].send(b'hello')"
        serves = Serves(url=f"http://127.0.0.1:{port}/")
        with pytest.raises(BadInput, match="no metrics were served at"):
            tune_command(python(program), BATCH, serves=serves, timeout_s=1.0)

    @pytest.mark.parametrize("url", ["localhost:8000", "file:///etc/passwd", ""])
    def test_an_address_that_is_none_is_refused(self, url):
        with pytest.raises(BadInput, match="such as http://localhost:8000/metrics"):
            Serves(url=url)


def answers(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_what_prometheus_reads_is_read_too():
    text = """# HELP queries_total Queries.
queries_total 120
latency_seconds{quantile="0.99"} 0.04
latency_seconds{quantile="0.5"} 0.01 1700000000000
http_requests{code="200"} 7
energy_joules 3.5
busy
"""
    assert served_metrics(text) == {"queries": 120.0, "latency_p99_s": 0.04, "latency_p50_s": 0.01, "energy_j": 3.5}


def test_the_last_line_of_json_counts():
    assert printed_metrics('{"a": 1}\n{"a": 2}\nbye\n{broken') == {"a": 2}
    assert printed_metrics("nothing\n") is None


def test_what_was_measured_is_told_per_query():
    metrics = with_measured({"queries": 10}, duration_s=5.0, energy_j=200.0)
    assert metrics["time_s"] == 0.5
    assert metrics["energy_j"] == 20.0
    assert metrics["spent_j"] == 200.0


def test_what_is_printed_goes_before_what_was_measured():
    assert with_measured({"time_s": 1.0}, duration_s=5.0, energy_j=None)["time_s"] == 1.0


TABLE = """batch,power_limit_w,gpu,energy_j,time_s
8,100,x,9,3
8,200,x,8,2
16,100,x,5,2.1
16,200,x,6,1
32,100,x,4,2
32,200,x,,
"""


def replayed(tmp_path, text=TABLE, names=None, **goal):
    path = tmp_path / "grid.csv"
    path.write_text(text)
    return replay_table(path, names or {"batch": "16", "power_limit_w": None}, Goal(**goal))


def test_a_table_is_searched_as_if_each_setting_had_to_be_tried(tmp_path):
    found = replayed(tmp_path, limits=("time<=2.05s",))
    assert found.trials[0].trial.setting == {"batch": 16, "power_limit_w": 200}
    assert found.recommendation.setting == {"batch": 32, "power_limit_w": 100}
    assert found.spent_j == sum(one.objective for one in found.trials if one.objective)


def test_a_row_without_figures_is_a_failed_setting(tmp_path):
    found = replayed(tmp_path)
    assert {one.objective for one in found.trials if one.trial.setting == {"batch": 32, "power_limit_w": 200}} == {None}


def test_rows_of_one_setting_are_given_in_turn(tmp_path):
    text = "batch,when,energy_j\n1,mon,4\n2,tue,2\n1,wed,6\n2,thu,3\n"
    found = replayed(tmp_path, text, {"batch": "2"}, manner=Manner(budget=4, least_gain=0.0))
    by_batch = {
        batch: [one.objective for one in found.trials if one.trial.setting["batch"] == batch] for batch in (1, 2)
    }
    assert by_batch[2][:2] == [2.0, 3.0]
    assert by_batch[1] == [4.0]


def test_a_table_that_a_spreadsheet_wrote_is_read(tmp_path):
    found = replayed(tmp_path, "\ufeffbatch,energy_j\n1,4\n2,3\n", {"batch": "1"})
    assert found.recommendation.setting == {"batch": 2}


def test_a_limit_nobody_keeps_is_said_with_the_nearest(tmp_path):
    found = replayed(tmp_path, limits=("time<=0.5s",))
    assert not found.recommendation.kept
    assert found.recommendation.setting == {"batch": 16, "power_limit_w": 200}


@pytest.mark.parametrize(
    ("text", "names", "said"),
    [
        ("", None, "holds no rows"),
        (TABLE, {"speed": None}, "no column speed"),
        (TABLE, {"batch": "7"}, "is at 7, which is not one of its levels"),
        (TABLE + "64\n", None, "row 7, does not say power_limit_w"),
        (TABLE + ",200,x,1,1\n", None, "row 7, does not say batch"),
        (TABLE + "64,200,x,1,1,1\n", None, "row 7, has more cells"),
        (
            TABLE + "8,100,y,1,1\n8,200,y,1,1\n",
            None,
            r"differ in gpu \(x, y\): keep the rows of one, or make gpu a knob",
        ),
    ],
)
def test_what_is_wrong_with_a_table_is_said(tmp_path, text, names, said):
    with pytest.raises(BadInput, match=said):
        replayed(tmp_path, text, names)


def test_knobs_are_read_as_people_write_them():
    batch, precision = parse_knobs(["batch=8, 16,32", "precision=fp32,bf16"], ["batch=16"])
    assert (batch.levels, batch.present, batch.saves) == ((8, 16, 32), 16, "up")
    assert (precision.levels, precision.present, precision.saves) == (("fp32", "bf16"), "bf16", None)


def test_a_power_limit_caps_power():
    assert knob_of("power_limit_w", [100, 200], None).caps == "power"


@pytest.mark.parametrize(
    ("knobs", "at", "said"),
    [
        (["batch"], [], "--knob must be like"),
        (["batch=1,2"], ["threads=1"], "which is no knob"),
        (["cpu:0/clock=1GHz,2GHz"], ["cpu:0/clock=1GHz"], "starts where it stands"),
        (["batch=1,2"], ["batch=3"], "not one of its levels"),
        (["batch=1,2", "batch=4"], [], "given twice"),
        (["batch=1,1"], [], "a level twice"),
        (["batch=1,2,"], [], "neither a number nor a word: ''"),
    ],
)
def test_what_is_wrong_with_a_knob_is_said(knobs, at, said):
    with pytest.raises(BadInput, match=said):
        parse_knobs(knobs, at)
