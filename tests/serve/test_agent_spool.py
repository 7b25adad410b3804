"""Reports that wait on disk: none is lost, none comes out of order, and they never fill the disk."""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattsmith.serve.agent_clock import ServerClock
from wattsmith.serve.agent_spool import Spool
from wattsmith.terms.errors import NotWritten


def numbers(batch):
    return [report["number"] for report in batch.reports]


@pytest.fixture
def spool(tmp_path):
    made = Spool(tmp_path)
    yield made
    made.close()


def fill(spool, first, last):
    for number in range(first, last + 1):
        spool.append({"number": number})


def test_reports_come_out_in_order_and_stay_until_they_are_acknowledged(spool):
    fill(spool, 1, 5)
    first = spool.waiting(3)
    assert numbers(first) == [1, 2, 3]
    assert numbers(spool.waiting(3)) == [1, 2, 3]
    spool.acknowledge(first)
    assert numbers(spool.waiting(3)) == [4, 5]
    spool.acknowledge(first)  # twice is harmless
    assert numbers(spool.waiting()) == [4, 5]


def test_what_was_sent_takes_no_room(tmp_path):
    spool = Spool(tmp_path, segment_bytes=100)
    fill(spool, 1, 100)
    while (batch := spool.waiting(7)).reports:
        spool.acknowledge(batch)
    spool.close()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) < 100


def test_a_batch_has_no_more_bytes_than_asked_for_but_at_least_one_report(spool):
    for number in range(3):
        spool.append({"number": number, "text": "x" * 1000})
    assert numbers(spool.waiting(10, most_bytes=2500)) == [0, 1]
    assert numbers(spool.waiting(10, most_bytes=10)) == [0]


def test_a_full_spool_drops_the_oldest_and_counts_them(tmp_path):
    said = []
    spool = Spool(tmp_path, most_bytes=1000, segment_bytes=100, tell=said.append)
    fill(spool, 1, 500)
    left = numbers(spool.waiting(1000))
    assert left == list(range(spool.dropped + 1, 501))
    assert 0 < spool.size_bytes <= 1000
    assert f"{spool.dropped} reports found no room" in said[-1]
    spool.close()


def test_what_is_dropped_while_it_is_being_sent_is_not_acknowledged_for_others(tmp_path):
    spool = Spool(tmp_path, most_bytes=200, segment_bytes=50)
    fill(spool, 1, 10)
    sending = spool.waiting(2)
    fill(spool, 11, 40)
    first = numbers(spool.waiting())[0]
    spool.acknowledge(sending)
    assert numbers(spool.waiting())[0] == first
    spool.close()


def test_one_process_at_a_time_has_the_folder(spool, tmp_path):
    with pytest.raises(NotWritten, match="an agent keeps its reports in"):
        Spool(tmp_path)
    assert numbers(spool.waiting()) == []


def test_half_a_line_of_one_that_was_killed_is_no_report(tmp_path):
    spool = Spool(tmp_path)
    fill(spool, 1, 2)
    spool.close()
    (segment,) = tmp_path.glob("*.jsonl")
    segment.write_bytes(segment.read_bytes() + b'{"number": 3, "tex')
    again = Spool(tmp_path)
    fill(again, 10, 10)
    assert numbers(again.waiting()) == [1, 2, 10]
    again.close()


def test_what_a_disk_made_of_a_line_is_passed_over(tmp_path):
    spool = Spool(tmp_path)
    fill(spool, 1, 3)
    spool.close()
    (segment,) = tmp_path.glob("*.jsonl")
    segment.write_bytes(segment.read_bytes().replace(b'{"number":2}', b"\x00" * 12))
    again = Spool(tmp_path)
    assert numbers(again.waiting()) == [1, 3]
    again.close()


def test_a_disk_that_takes_nothing_costs_nothing_while_there_is_memory(tmp_path):
    said = []
    spool = Spool(tmp_path, tell=said.append)
    fill(spool, 1, 2)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, before[1]))  # room for two reports and a half in a file
    try:
        spool.append({"number": 3, "text": "too long for what is left"})
        spool.append({"number": 4, "text": "too long for what is left"})
        assert numbers(spool.waiting()) == [1, 2]
        spool.acknowledge(spool.waiting())
        sending = spool.waiting()
        assert numbers(sending) == [3, 4]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    spool.append({"number": 5})
    spool.acknowledge(sending)  # they went to the disk meanwhile, from where they are sent once more
    assert numbers(spool.waiting()) == [3, 4, 5]
    assert len([one for one in said if "kept in memory" in one]) == 1
    assert spool.dropped == 0
    spool.close()


KILLED = """
import sys
from pathlib import Path
from wattsmith.serve.agent_spool import Spool
spool = Spool(Path(sys.argv[1]), segment_bytes=2000)
number = 0
while True:
    number += 1
    spool.append({"number": number, "text": "x" * 50})
    sys.stdout.write(f"{number}\\n")
    sys.stdout.flush()
    if number % 20 == 0:
        spool.acknowledge(spool.waiting(10))
"""


def test_kill_9_loses_nothing_that_was_kept(tmp_path):
    child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(500):
            child.stdout.readline()
        child.kill()
        kept = [int(line) for line in child.stdout.read().split("\n")[:-1]]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    last = kept[-1] if kept else 500
    spool = Spool(tmp_path)
    found = numbers(spool.waiting(10**6, 10**9))
    assert found == list(range(found[0], found[-1] + 1))  # no gap
    assert found[-1] >= last
    assert found[0] <= last // 2 + 1  # at most half of them were acknowledged
    spool.close()


DEEDS = st.lists(st.sampled_from(["append", "append", "append", "sent", "answer lost", "killed", "ended"]), max_size=40)


@given(deeds=DEEDS, segment_bytes=st.sampled_from([10, 40, 10**6]))
@settings(max_examples=60)
def test_whatever_happens_every_report_arrives_in_order_the_first_time(deeds, segment_bytes):
    with tempfile.TemporaryDirectory() as folder:
        spool, arrived, made = Spool(Path(folder), segment_bytes=segment_bytes), [], 0
        for deed in [*deeds, "sent"]:
            if deed == "append":
                made += 1
                spool.append({"number": made})
            elif deed in ("sent", "answer lost"):
                batch = spool.waiting(3 if deed == "answer lost" else 1000)
                arrived += [number for number in numbers(batch) if number not in arrived]
                if deed == "sent":
                    spool.acknowledge(batch)
            else:  # what is on disk is the same, however it ended
                spool.close()
                spool = Spool(Path(folder), segment_bytes=segment_bytes)
        assert arrived == list(range(1, made + 1))
        assert numbers(spool.waiting()) == []
        spool.close()


# The service's clock


@pytest.fixture
def clock(tmp_path):
    """A clock whose own time is in a list."""
    now = [100.0]
    return ServerClock(tmp_path / "clock.json", now_s=lambda: now[0], boot="first"), now


def test_the_services_time_goes_on_from_the_middle_of_the_round_trip(clock):
    server, now = clock
    assert server.now_s() is None
    server.hear(1000.0, 99.0, 101.0)
    assert server.now_s() == 1000.0
    now[0] = 160.0
    assert server.now_s() == 1060.0


def test_an_answer_that_took_long_does_not_spoil_one_that_came_quickly(clock):
    server, _ = clock
    server.hear(1000.0, 99.99, 100.01)
    server.hear(1003.0, 98.0, 106.0)  # was on its way for 7 s: fits, but says little
    assert server.now_s() == pytest.approx(1000.0)


def test_a_clock_that_was_set_is_believed(clock):
    server, _ = clock
    server.hear(1000.0, 99.99, 100.01)
    server.hear(4600.0, 98.0, 102.0)
    assert server.now_s() == pytest.approx(4600.0)


def test_the_offset_outlives_the_agent_and_not_the_machine(clock, tmp_path):
    server, now = clock
    server.hear(1000.0, 99.0, 101.0)
    now[0] = 130.0
    assert ServerClock(tmp_path / "clock.json", now_s=lambda: now[0], boot="first").now_s() == 1030.0
    assert ServerClock(tmp_path / "clock.json", now_s=lambda: now[0], boot="second").now_s() is None
    (tmp_path / "clock.json").write_text("{")
    assert ServerClock(tmp_path / "clock.json", now_s=lambda: now[0], boot="first").now_s() is None
