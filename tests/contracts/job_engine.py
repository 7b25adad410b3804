"""What every engine of jobs promises, wherever it runs them: a test class per engine inherits this.

Jobs of these tests run on this machine, and write to a folder of it what a second run would write twice.
"""

import base64
import contextlib
import json
import os
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from wattsmith.terms.errors import BadTerm, Conflict, WattsmithError
from wattsmith.terms.jobs import AttemptOrder, Stage

SETTLED = (Stage.ENDED, Stage.LOST)
STARTER = """
import base64, pickle, sys, time
{making}
engine.start(pickle.loads(base64.b64decode(sys.argv[1])))
print("started", flush=True)
time.sleep(60)
"""
NOTE = """
import os, sys, time
def note(word):
    with open(sys.argv[1], "a") as file:
        print(word, os.getpid(), os.getppid(), file=file, flush=True)
"""


def python(attempt, code, *words, **more):
    """An order to run CODE."""
    return AttemptOrder(
        attempt=attempt, command=("python", "job.py", *map(str, words)), files={"job.py": code.encode()}, **more
    )


def settled(engine, attempt, within_s=20.0):
    """How ATTEMPT stands once that does not change any more."""
    return until(engine, attempt, lambda status: status.stage in SETTLED, within_s)


def until(engine, attempt, reached, within_s=20.0):
    give_up_s = time.monotonic() + within_s
    while not reached(status := engine.look(attempt)):
        assert time.monotonic() < give_up_s, f"{attempt} is still {status}"
        time.sleep(0.02)
    return status


def lines_of(path, at_least=0, within_s=10.0):
    """The words in the lines of PATH, once there are so many."""
    give_up_s = time.monotonic() + within_s
    while True:
        lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
        if len(lines) >= at_least:
            return lines
        assert time.monotonic() < give_up_s, f"{path} has only {lines}"
        time.sleep(0.01)


def is_gone(pid, within_s=5.0):
    give_up_s = time.monotonic() + within_s
    while time.monotonic() < give_up_s:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.01)
    return False


def runners_of(attempt):
    """Processes beside ATTEMPT, by their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"wattsmith.flows.job_runner" in words and any(word.endswith(attempt.encode()) for word in words):
            found.append(int(path.parent.name))
    return found


def _kill_runners(attempt, after_s):
    """Kill the processes beside ATTEMPT, so long after there are any."""
    give_up_s = time.monotonic() + 10
    while not runners_of(attempt) and time.monotonic() < give_up_s:
        time.sleep(0.005)
    time.sleep(after_s)
    for pid in runners_of(attempt):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class JobEngineContract:
    """Give fixtures `again`, which makes one more engine on the same place each time it is called, and `making`,
    code that makes `engine` in another process; and DEVICES of KIND that an attempt of two cards sees."""

    ROUNDS = 15
    KIND = "h200"
    DEVICES = ("0", "1")

    @pytest.fixture
    def engine(self, again):
        return again()

    @pytest.fixture
    def named(self, request):
        """A name of an attempt that no other test has."""
        return f"{re.sub('[^A-Za-z0-9]', '-', request.node.name)[:60]}.1"

    @pytest.fixture
    def start_elsewhere(self, making):
        """Starts an attempt from a process that can be killed."""
        started = []

        def start(order):
            script = STARTER.format(making=making)
            order_text = base64.b64encode(pickle.dumps(order)).decode()
            process = subprocess.Popen([sys.executable, "-c", script, order_text], stdout=subprocess.PIPE, text=True)
            started.append(process)
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()

    def test_a_command_runs_and_its_exit_code_and_output_come_back(self, engine, named):
        code = "import sys; print('häß ✓'); print('so far', file=sys.stderr); sys.exit(7)"
        engine.start(python(named, code))
        status = settled(engine, named)
        assert status.stage is Stage.ENDED
        assert status.result.exit_code == 7
        assert status.result.why is None
        assert status.node in [node.name for node in engine.nodes()]
        assert status.started_s == pytest.approx(time.time(), abs=30)
        assert engine.log(named).decode() == "häß ✓\n"
        assert engine.log(named, stream="stderr") == b"so far\n"

    def test_what_nobody_started_is_unknown_and_can_be_stopped_and_forgotten(self, engine, named):
        assert engine.look(named).stage is Stage.UNKNOWN
        engine.stop(named)
        engine.forget(named)
        assert engine.log(named) == b""
        assert engine.look(named).stage is Stage.UNKNOWN

    def test_started_twice_it_runs_once(self, engine, again, named, tmp_path):
        order = python(named, NOTE + "note('ran'); time.sleep(0.2)", tmp_path / "notes")
        together = threading.Barrier(4)
        refused = []

        def start():
            mine = again()
            together.wait()
            try:
                mine.start(order)
            except WattsmithError as why:
                refused.append(why)

        threads = [threading.Thread(target=start) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        engine.start(order)
        assert settled(engine, named).result.exit_code == 0
        engine.start(order)
        assert settled(again(), named).result.exit_code == 0
        assert refused == []
        assert len(lines_of(tmp_path / "notes")) == 1

    def test_bytes_of_any_kind_come_back_page_by_page(self, engine, named):
        code = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4000)"
        engine.start(python(named, code))
        assert settled(engine, named).result.exit_code == 0
        pages = []
        while page := engine.log(named, offset=sum(map(len, pages)), limit=300_000):
            pages.append(page)
        assert [len(page) for page in pages] == [300_000, 300_000, 300_000, 124_000]
        assert b"".join(pages) == bytes(range(256)) * 4000
        assert engine.log(named, offset=10**9) == b""
        with pytest.raises(BadTerm, match=r"stdout and stderr, not to '\.\./order\.json'"):
            engine.log(named, stream="../order.json")

    def test_a_log_is_there_while_the_job_runs_and_a_stopped_job_ends(self, engine, named, tmp_path):
        engine.start(python(named, NOTE + "note('ran'); print('begun'); time.sleep(60)", tmp_path / "notes"))
        ((_, pid, _),) = lines_of(tmp_path / "notes", 1)
        until(engine, named, lambda status: status.stage is Stage.RUNNING)
        assert engine.log(named) == b"begun\n"
        with pytest.raises(Conflict, match="running: stop it"):
            engine.forget(named)
        engine.stop(named)
        engine.stop(named)
        status = settled(engine, named)
        assert (status.result.exit_code, status.result.why) == (128 + signal.SIGTERM, "it was stopped")
        assert is_gone(pid)
        engine.stop(named)
        engine.forget(named)
        assert engine.look(named).stage is Stage.UNKNOWN

    def test_a_job_that_takes_too_long_is_ended_with_all_that_it_started(self, engine, named, tmp_path):
        code = (
            NOTE
            + """
import subprocess
note("ran")
for own_session in (True, False):
    with open(sys.argv[1], "a") as file:
        child = subprocess.Popen(["sleep", "60"], start_new_session=own_session)
        print("child", child.pid, file=file)
time.sleep(60)
"""
        )
        engine.start(python(named, code, tmp_path / "notes", timeout_s=1.0))
        result = settled(engine, named).result
        assert (result.exit_code, result.why) == (143, "it took longer than 1 s")
        assert 1.0 <= result.duration_s < 3.0
        pids = [line[1] for line in lines_of(tmp_path / "notes", 3)]
        assert [is_gone(pid) for pid in pids] == [True] * 3

    def test_what_cannot_be_run_says_why(self, engine, named):
        reasons = {
            ("no-such-command",): "command 'no-such-command' was not found",
            ("./no-such-file",): "'./no-such-file' cannot be run: No such file",
            ("./job.py",): "'./job.py' cannot be run: Permission denied",
            ("python", "a\0b"): "'python' cannot be run: embedded null byte",
        }
        for number, command in enumerate(reasons):
            engine.start(replace(python(f"{named}.{number}", "pass"), command=command))
        for number, why in enumerate(reasons.values()):
            result = settled(engine, f"{named}.{number}").result
            assert result.exit_code is None
            assert why in result.why

    def test_a_job_sees_a_clean_environment_and_its_own_cards(self, engine, named, monkeypatch, tmp_path):
        monkeypatch.setenv("SECRET_OF_THE_SERVICE", "1")
        order = python(
            named,
            "import json, os; print(json.dumps([os.getcwd(), dict(os.environ)]))",
            kind=self.KIND,
            devices=(0, 1),
            environment={"MINE": "α b", "CUDA_VISIBLE_DEVICES": "7", "LANG": "C"},
            data=str(tmp_path),
        )
        engine.start(order)
        status = settled(engine, named)
        assert status.result.exit_code == 0, engine.log(named, stream="stderr")
        folder, seen = json.loads(engine.log(named))
        assert set(seen) <= {
            *("PATH", "HOME", "LANG", "LC_CTYPE", "PYTHONUNBUFFERED", "MINE", "CUDA_VISIBLE_DEVICES"),
            *("CUDA_DEVICE_ORDER", "WATTSMITH_PROGRESS", "WATTSMITH_DATA", "WATTSMITH_JOB", "WATTSMITH_DEVICES"),
            "WATTSMITH_ATTEMPT",
        }
        assert seen["MINE"] == "α b"
        assert seen["LANG"] == "C"
        assert seen["CUDA_VISIBLE_DEVICES"] == ",".join(self.DEVICES)
        assert status.devices == tuple(map(int, self.DEVICES))
        assert seen["WATTSMITH_DEVICES"] == "2"
        assert seen["WATTSMITH_DATA"] == str(tmp_path)
        assert seen["WATTSMITH_JOB"] == named.removesuffix(".1")
        assert seen["HOME"] == folder

    def test_steps_are_counted_while_it_runs(self, engine, named):
        code = """
import os, time
with open(os.environ["WATTSMITH_PROGRESS"], "a") as file:
    for _ in range(4):
        time.sleep(0.05)
        print(time.time(), file=file, flush=True)
    time.sleep(1.2)
"""
        engine.start(python(named, code))
        assert until(engine, named, lambda status: status.steps == 4).stage is Stage.RUNNING
        result = settled(engine, named).result
        assert result.steps == 4
        assert result.step_s == pytest.approx(0.05, abs=0.03)
        assert result.first_step_s > 0.05
        assert result.step_spread_s < 0.05

    @pytest.mark.parametrize(
        "name",
        ["/etc/passwd", "../job.py", "a/../../b", "a//b", "./a", "a/", "", ".", "..", "a\0b", "x" * 256, "\ud800"],
    )
    def test_a_file_that_would_leave_the_folder_is_refused_before_anything_runs(self, engine, named, name):
        with pytest.raises(BadTerm, match="the name of a file must be"):
            engine.start(replace(python(named, "pass"), files={"job.py": b"", name: b""}))
        assert engine.look(named).stage is Stage.UNKNOWN

    def test_a_file_cannot_be_a_folder_and_a_name_of_an_attempt_no_path(self, engine, named):
        with pytest.raises(BadTerm, match="'a' cannot be a file and the folder of 'a/b/c'"):
            engine.start(replace(python(named, "pass"), files={"a": b"", "a/b/c": b""}))
        for attempt in ("../up", "a/b", "", ".", "..", "a\0"):
            with pytest.raises(BadTerm, match="the name of a attempt"):
                engine.start(python(attempt, "pass"))
            with pytest.raises(BadTerm):
                engine.look(attempt)

    def test_it_goes_on_when_who_started_it_is_killed_and_is_found_again(self, again, start_elsewhere, named, tmp_path):
        code = NOTE + "note('begun'); time.sleep(0.5); note('done'); print('told')"
        starter = start_elsewhere(python(named, code, tmp_path / "notes"))
        assert starter.stdout.readline() == "started\n"
        lines_of(tmp_path / "notes", 1)
        starter.kill()
        engine = again()
        status = settled(engine, named)
        assert (status.stage, status.result.exit_code) == (Stage.ENDED, 0)
        assert [line[0] for line in lines_of(tmp_path / "notes")] == ["begun", "done"]
        assert again().log(named) == b"told\n"

    def test_a_job_dies_with_the_process_beside_it_and_is_lost(self, engine, again, named, tmp_path):
        code = (
            NOTE
            + """
import subprocess
child = subprocess.Popen(["sleep", "60"], start_new_session=True)
note(f"ran {child.pid}")
time.sleep(60)
"""
        )
        engine.start(python(named, code, tmp_path / "notes"))
        ((_, child, pid, runner),) = lines_of(tmp_path / "notes", 1)
        until(engine, named, lambda status: status.stage is Stage.RUNNING)
        os.kill(int(runner), signal.SIGKILL)
        assert is_gone(pid)
        status = settled(engine, named)
        assert status.stage is Stage.LOST
        assert status.why
        assert is_gone(child)  # at the latest when it is said that it was lost
        engine.start(python(named, code, tmp_path / "notes"))
        assert settled(again(), named).stage is Stage.LOST
        assert len(lines_of(tmp_path / "notes")) == 1
        engine.forget(named)

    def test_killed_at_any_moment_nothing_runs_twice(self, again, start_elsewhere, named, tmp_path):
        chance = random.Random(9)
        ends = []
        code = NOTE + "note('begun'); time.sleep(0.2); note('done')"
        for number in range(self.ROUNDS):
            attempt = f"{named}.{number}"
            order = python(attempt, code, tmp_path / attempt)
            starter = start_elsewhere(order)
            if number % 3 == 0:  # who starts, at any moment of starting
                time.sleep(chance.uniform(0.1, 0.5))
                starter.kill()
            else:  # the process beside the job, at any moment of its life
                starter.stdout.readline()
                _kill_runners(attempt, 0.0 if number == 1 else chance.uniform(0.0, 0.7))
                starter.kill()
            engine = again()
            if engine.look(attempt).stage is Stage.UNKNOWN:
                engine.start(order)  # as a service does that has it written down
            status = settled(engine, attempt)
            notes = [line[0] for line in lines_of(tmp_path / attempt)]
            # A runner that is killed a moment before it sees that the command has ended takes that along.
            whole = ["begun", "done"]
            assert notes == whole if status.stage is Stage.ENDED else notes == whole[: len(notes)]
            assert all(map(is_gone, runners_of(attempt)))
            ends.append(status.stage)
        assert set(ends) == set(SETTLED)  # else the moments were badly chosen: the first runner is killed at once
