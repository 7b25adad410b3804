"""Instructions are counted where the kernel lets us; elsewhere it says why not."""

import os

import pytest

from wattsmith.measure.perf import PerfCounters
from wattsmith.terms.errors import MeterLost, MeterUnavailable


def test_work_is_counted_or_refused_with_a_reason():
    try:
        counters = PerfCounters(os.getpid())
    except MeterUnavailable as refused:
        pytest.skip(f"NOT CHECKED: {refused}")
    before = counters.read()
    sum(range(1_000_000))
    after = counters.read()
    counters.close()
    assert after["instructions"] - before["instructions"] > 1_000_000
    with pytest.raises(MeterLost):
        counters.read()


def test_a_process_that_is_not_there_is_refused():
    with pytest.raises(MeterUnavailable, match="no process"):
        PerfCounters(2**22 + 1)
