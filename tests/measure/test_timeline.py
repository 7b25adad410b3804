"""Timelines: nothing is lost on the way to disk, and a replay gives the same figures."""

import csv
import json
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.measure.playing import LOST, MISSED, PlayedMeter

from wattsmith.measure.replay import find_replay, read_power_trace, replay_windows
from wattsmith.measure.session import Session
from wattsmith.measure.timeline import Timeline
from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.errors import BadInput, NotWritten

FORMATS = ["csv", "parquet"]


def recorded(path, clock, meters, **options):
    """A session that writes a timeline."""
    timeline = Timeline(path)
    timeline.start([meter.card for meter in meters], {"cpu": "no RAPL"}, wall_ahead_s=1e9)
    session = Session(
        meters,
        clock=clock,
        background=False,
        missing={"cpu": "no RAPL"},
        wall_ahead_s=1e9,
        listeners=[timeline.on_fed],
        gauge_listeners=[timeline.on_gauge],
        span_listeners=[timeline.on_span],
        **options,
    )
    return timeline, session


def work(session, clock, steps=20, step_s=0.13):
    for _ in range(steps):
        clock.sleep_s(step_s)
        session.read()


def wavy(time_s):
    return 200.0 + 100.0 * (int(time_s * 7) % 3)


@pytest.mark.parametrize("kind", FORMATS)
def test_replaying_a_timeline_gives_the_same_figures(tmp_path, kind):
    clock, path = SimulatedClock(100.0), tmp_path / f"run.{kind}"
    meters = [PlayedMeter(clock, wavy, counts=True), PlayedMeter(clock, wavy, domain="gpu:1", period_s=0.1)]
    timeline, session = recorded(path, clock, meters)
    with session.measure("epoch") as epoch:
        for _ in range(3):
            with session.measure('step, "quoted"\nand broken') as step, step.phase("data"):
                work(session, clock)
            with epoch.phase("compute"):
                work(session, clock)
    session.close()
    timeline.close()
    replayed = replay_windows(path)
    assert len(replayed) == 4
    assert replayed[-1] == epoch.result()
    assert replayed[-2] == step.result()


@pytest.mark.parametrize("failure", [LOST, MISSED], ids=["lost", "missed"])
def test_a_measurement_with_failures_replays_to_the_same_figures(tmp_path, failure):
    clock, path = SimulatedClock(100.0), tmp_path / "run.csv"
    meters = [PlayedMeter(clock, wavy, keeps=False), PlayedMeter(clock, wavy, domain="gpu:1")]
    timeline, session = recorded(path, clock, meters)
    with session.measure("work") as window:
        work(session, clock)
        meters[0].fails_with = failure
        work(session, clock)
    result = window.result()
    session.close()
    timeline.close()
    assert replay_windows(path) == [result]
    assert (result.domains[0].missed > 0) == (failure is MISSED)
    assert result.domains[0].complete == (failure is MISSED)


@settings(max_examples=25)
@given(
    st.lists(st.tuples(st.floats(0.001, 2.0), st.floats(0, 1e6)), min_size=2, max_size=30),
    st.booleans(),
    st.sampled_from(FORMATS),
)
def test_any_curve_replays_to_the_last_digit(tmp_path_factory, curve, counts, kind):
    clock, path = SimulatedClock(50.0), tmp_path_factory.mktemp("law") / f"run.{kind}"
    meter = PlayedMeter(clock, lambda t: curve[int(t * 10) % len(curve)][1], counts=counts)
    timeline, session = recorded(path, clock, [meter])
    windows = []
    for gap_s, _ in curve:
        with session.measure("piece") as window:
            clock.sleep_s(gap_s)
            session.read()
        windows.append(window)
    session.close()
    timeline.close()
    assert replay_windows(path) == [window.result() for window in windows]


def test_a_timeline_is_a_plain_table(tmp_path):
    clock, path = SimulatedClock(100.0), tmp_path / "run.csv"
    timeline, session = recorded(path, clock, [PlayedMeter(clock, lambda _: 250.0)])
    with session.measure("work"):
        work(session, clock)
    session.close()
    timeline.close()
    rows = list(csv.DictReader(path.read_text().splitlines()))
    powers_w = [float(row["power_w"]) for row in rows if row["power_w"]]
    assert set(powers_w) == {250.0}
    assert len(powers_w) >= 100
    assert [json.loads(row["detail"])["window"] for row in rows if row["event"] == "window"] == ["work"]


def test_parquet_holds_typed_columns(tmp_path):
    import pyarrow.parquet

    clock, path = SimulatedClock(100.0), tmp_path / "run.parquet"
    timeline, session = recorded(path, clock, [PlayedMeter(clock, lambda _: 250.0)])
    work(session, clock)
    session.close()
    timeline.close()
    schema = pyarrow.parquet.read_schema(path)
    assert str(schema.field("power_w").type) == "double"
    assert str(schema.field("event").type) == "string"
    assert list(tmp_path.iterdir()) == [path]


def test_a_full_disk_stops_the_timeline_and_not_the_measurement(tmp_path):
    clock = SimulatedClock(100.0)
    path = tmp_path / "run.csv"
    path.symlink_to("/dev/full")
    timeline = Timeline(path)
    session = Session([PlayedMeter(clock, lambda _: 100.0)], clock=clock, background=False, listeners=[timeline.on_fed])
    with session.measure("work") as window:
        work(session, clock, steps=2000)
    assert window.result().energy_j == pytest.approx(100 * window.duration_s)
    session.close()
    with pytest.raises(NotWritten, match="No space left on device"):
        timeline.close()


def test_a_place_that_cannot_be_written_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(NotWritten, match="No such file or directory"):
        Timeline(tmp_path / "nowhere" / "run.csv")
    with pytest.raises(BadInput, match=r"\.csv or \.parquet"):
        Timeline(tmp_path / "run.xlsx")


def test_a_killed_measurement_leaves_what_it_had_written(tmp_path):
    """kill -9 in the middle: the rows until about a second before it can be replayed as a power trace."""
    path = tmp_path / "run.parquet"
    program = f"""
import time
from contextlib import suppress
from pathlib import Path
from tests.measure.playing import PlayedMeter
from wattsmith.measure.session import Session
from wattsmith.measure.timeline import Timeline
from wattsmith.terms.clock import RealClock
timeline, clock = Timeline(Path({str(path)!r})), RealClock()
meter = PlayedMeter(clock, lambda _: 100.0)
timeline.start([meter.card], {{}}, 0.0)
session = Session([meter], clock=clock, listeners=[timeline.on_fed])
print("started", flush=True)
time.sleep(60)
"""
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, cwd=Path.cwd())
    assert child.stdout.readline() == "started\n"
    time.sleep(3.0)
    child.kill()
    child.wait()
    child.stdout.close()
    assert os.listdir(tmp_path) == ["run.parquet.partial.csv"]  # noqa: PTH208
    trace = read_power_trace(tmp_path / "run.parquet.partial.csv")["gpu:0"]
    assert trace[-1].time_s - trace[0].time_s >= 2.0


# ---- reading what others wrote


def test_a_plug_meters_trace_plays_as_a_meter(tmp_path):
    path = tmp_path / "plug.csv"
    path.write_text("time_s,power_w\n" + "".join(f"{1000 + i},{300}\n" for i in range(11)))
    clock = SimulatedClock(5.0)
    session = Session(find_replay(path, clock), clock=clock, background=False)
    with session.measure("ten seconds") as window:
        work(session, clock, steps=80, step_s=0.125)
    assert window.result().energy_j == pytest.approx(3000)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("time_s,power_w\n0,abc\n", "line 2: power_w is 'abc', not a number"),
        ("time_s,power_w\n0,1\n0,2\n", "line 3: time_s 0.0 does not come after 0.0"),
        ("time_s,power_w\n0,-5\n", "line 2: power_w is negative"),
        ("time_s,power_w\n0,nan\n", "not a finite number"),
        ("time_s,power_w\n,5\n", "line 2: time_s is empty"),
        ("seconds,watts\n0,5\n", "has no column time_s; it has: seconds, watts"),
        ("time_s,power_w\n", "holds no power samples"),
        ("", "holds no power samples"),
    ],
)
def test_a_broken_trace_is_refused_with_its_line(tmp_path, text, complaint):
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(BadInput, match=complaint):
        read_power_trace(path)


def test_what_is_no_timeline_is_refused(tmp_path):
    path = tmp_path / "other.csv"
    path.write_text("time_s,power_w\n0,5\n")
    with pytest.raises(BadInput, match="is no timeline"):
        replay_windows(path)
    with pytest.raises(BadInput, match="there is no file"):
        replay_windows(tmp_path / "absent.csv")
    parquet = tmp_path / "broken.parquet"
    parquet.write_bytes(b"PAR1 nonsense")
    with pytest.raises(BadInput, match="not a Parquet file"):
        replay_windows(parquet)


@settings(max_examples=150)
@given(st.data())
def test_a_damaged_timeline_is_refused_or_read_but_never_crashes(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    clock = SimulatedClock(100.0)
    timeline, session = recorded(folder / "run.csv", clock, [PlayedMeter(clock, wavy, counts=True)])
    with session.measure("work"):
        work(session, clock, steps=3)
    session.close()
    timeline.close()
    lines = (folder / "run.csv").read_text().splitlines()
    place = data.draw(st.integers(0, len(lines) - 1))
    lines[place] = data.draw(
        st.one_of(st.just(""), st.text(max_size=40), st.just(lines[place][: len(lines[place]) // 2]))
    )
    (folder / "run.csv").write_text("\n".join(lines))
    with suppress(BadInput):
        replay_windows(folder / "run.csv")
