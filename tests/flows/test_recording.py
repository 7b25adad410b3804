"""What is recorded next."""

import pytest

from wattsmith.flows.recording import HowToRecord, planned, record
from wattsmith.flows.records import runs_of
from wattsmith.terms.errors import BadInput
from wattsmith.terms.run import Device

pytest.importorskip("scipy")
CPU = Device(name="a CPU", kind="cpu", memory_bytes=8 * 2**30)


def test_a_record_is_continued_where_estimates_fail_most(tmp_path):
    place = str(tmp_path / "record.jsonl")
    record(HowToRecord(preset="smoke", device="cpu", record=place, window_s=0.05))
    runs = runs_of(place)
    how = HowToRecord(preset="basic", design="worst")
    points = planned(how, runs[0].device, runs)
    measured = {run.workload.key for run in runs}
    assert len(points) == 20
    assert not measured & {point.workload.key for point in points}
    assert {point.workload.kind for point in points} == {"network"}


def test_without_a_record_there_is_no_worst():
    with pytest.raises(BadInput, match="take one first"):
        planned(HowToRecord(preset="smoke", design="worst"), CPU)


def test_what_is_recorded_is_said_by_name():
    with pytest.raises(BadInput, match=r"as in record\(preset=\"smoke\"\), got 'smoke'"):
        record("smoke")
    with pytest.raises(BadInput, match="there is no option 'presett'; there are preset, design"):
        record(presett="smoke")
