"""Several programs at once: a step is one step of each, and what goes wrong in one is told."""

import threading

import pytest

from wattsmith.flows.recording import HowToRecord, record
from wattsmith.flows.records import runs_of
from wattsmith.record.concurrent import Concurrent


class Counting:
    """Waits in each step until as many others are in theirs: a test that they truly run at once."""

    def __init__(self, meeting):
        self._meeting = meeting
        self.steps = 0
        self.closed = False

    def step(self):
        self._meeting.wait(timeout=10)
        self.steps += 1

    def close(self):
        self.closed = True


def test_a_step_is_one_step_of_each_at_once():
    meeting = threading.Barrier(3)
    programs = [Counting(meeting) for _ in range(3)]
    several = Concurrent(programs, "cpu")
    several.step()
    several.step()
    several.close()
    assert [one.steps for one in programs] == [2, 2, 2]
    assert all(one.closed for one in programs)


def test_what_goes_wrong_in_one_is_told():
    class Broken(Counting):
        def step(self):
            raise RuntimeError("out of memory")

    several = Concurrent([Broken(None)], "cpu")
    with pytest.raises(RuntimeError, match="out of memory"):
        several.step()
    several.close()


def test_a_record_with_concurrency_says_so(tmp_path):
    place = str(tmp_path / "record.jsonl")
    record(HowToRecord(preset="smoke", device="cpu", record=place, budget_s=4, concurrency=2, window_s=0.1))
    runs = runs_of(place)
    assert runs
    assert {run.setting.concurrency for run in runs} == {2}
    assert not any(run.calls for run in runs)  # whose they are could not be told
