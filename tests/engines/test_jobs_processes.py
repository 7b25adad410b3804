"""Jobs as processes of this machine."""

import os
import subprocess
import sys
import time

import pytest
from tests.contracts.job_engine import NOTE, JobEngineContract, python, settled, until

from wattsmith.engines import processes
from wattsmith.engines.processes import ProcessEngine
from wattsmith.flows.job_runner import RUNNER
from wattsmith.terms.errors import NotWritten
from wattsmith.terms.jobs import Stage
from wattsmith.terms.schedule import PoolNode

NODES = (PoolNode(name="here", kind="h200", count=2),)


class TestProcessEngine(JobEngineContract):
    @pytest.fixture
    def again(self, tmp_path, monkeypatch):
        monkeypatch.setattr(processes, "BEGIN_S", 0.7)
        return lambda: ProcessEngine(tmp_path / "home", NODES, RUNNER)

    @pytest.fixture
    def making(self, tmp_path):
        return f"""
from pathlib import Path
from wattsmith.engines.processes import ProcessEngine
from wattsmith.flows.job_runner import RUNNER
engine = ProcessEngine(Path({str(tmp_path / "home")!r}), (), RUNNER)
"""

    def test_it_knows_its_nodes(self, engine):
        assert engine.nodes() == NODES

    def test_no_ended_runner_stays_behind_as_a_zombie(self, engine):
        for number in range(3):
            engine.start(python(f"j.{number}", "pass"))
        for number in range(3):
            settled(engine, f"j.{number}")
        give_up_s = time.monotonic() + 5
        while time.monotonic() < give_up_s:
            engine.close()
            if not _zombies():
                return
            time.sleep(0.02)
        raise AssertionError(f"zombies: {_zombies()}")

    def test_a_runner_that_cannot_begin_makes_the_attempt_lost_and_its_last_words_are_told(self, tmp_path):
        engine = ProcessEngine(tmp_path, NODES, ["sh", "-c", "echo no python here >&2; exit 1"])
        engine.start(python("j.1", "pass"))
        status = settled(engine, "j.1")
        assert status.why == "the process that was to run it never began; it said: no python here"
        ProcessEngine(tmp_path, NODES, RUNNER).start(python("j.1", "pass"))
        assert engine.look("j.1").stage is Stage.LOST

    def test_who_is_stopped_before_it_begins_never_does(self, engine, tmp_path):
        engine.start(python("j.1", NOTE + "note('ran')", tmp_path / "notes"))
        engine.stop("j.1")
        status = settled(engine, "j.1")
        assert status.stage is Stage.ENDED
        assert status.result.exit_code is None
        assert status.result.why.startswith("it was stopped")
        assert not (tmp_path / "notes").exists()

    def test_a_job_on_a_leash_dies_with_who_started_it(self, tmp_path, making):
        code = making.replace("RUNNER)", "RUNNER, leash=True)")
        order = """
from wattsmith.terms.jobs import AttemptOrder
import time
engine.start(AttemptOrder(attempt="j.1", command=("sleep", "60")))
while engine.look("j.1").stage != "running":
    time.sleep(0.02)
"""
        subprocess.run([sys.executable, "-c", code + order], check=True, timeout=30)
        engine = ProcessEngine(tmp_path / "home", NODES, RUNNER)
        assert settled(engine, "j.1").stage is Stage.LOST

    def test_a_home_that_cannot_be_written_says_so(self, tmp_path):
        (tmp_path / "attempts").write_text("in the way")
        with pytest.raises(NotWritten, match=r"attempt j\.1 cannot be laid out"):
            ProcessEngine(tmp_path, NODES, RUNNER).start(python("j.1", "pass"))

    def test_a_job_that_does_not_listen_is_killed_after_a_while(self, tmp_path):
        quick = [*RUNNER[:2], "-c", "import sys; from wattsmith.flows import job_runner as r; r.GRACE_S = 0.5; "
                 "sys.exit(r.main(sys.argv[1:]))"]  # fmt: skip
        engine = ProcessEngine(tmp_path, NODES, quick)
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf'); time.sleep(60)"
        engine.start(python("j.1", code))
        until(engine, "j.1", lambda _: engine.log("j.1") == b"deaf\n")
        engine.stop("j.1")
        assert settled(engine, "j.1").result.exit_code == 137


def _zombies():
    below = subprocess.run(
        ["ps", "--ppid", str(os.getpid()), "-o", "stat=,args="], capture_output=True, text=True, check=False
    )
    return [line for line in below.stdout.splitlines() if line.startswith("Z")]
