"""`--timeline` and `--replay`: what was recorded gives the same figures again, and a full disk loses none."""

import csv
import json
import os
import re
import subprocess
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cli.running import measured, wattsmith
from tests.measure.playing import PlayedMeter

from wattsmith.flows.measuring import replay
from wattsmith.measure.session import Session
from wattsmith.measure.timeline import Timeline, csv_to_parquet
from wattsmith.sim.clock import SimulatedClock
from wattsmith.sim.nvml import burst
from wattsmith.terms.errors import WattsmithError


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_replay_gives_exactly_the_same_figures(suffix, gpus, tmp_path):
    machine = gpus(0.2, 0.9)
    machine.play(0, burst(high=1.0, period_s=0.4))
    timeline = tmp_path / f"run.{suffix}"
    result = measured("--timeline", timeline, "--", "sleep", "2", environment=machine.environment())
    replayed = json.loads(wattsmith("measure", "--replay", timeline, "--json").stdout)
    assert replayed["windows"] == [result["window"]]
    assert result["timeline"] == {"path": str(timeline), "rows": rows_of(timeline), "failed": None}
    assert [path.name for path in tmp_path.glob("run*")] == [timeline.name]


def rows_of(path):
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return sum(1 for _ in csv.reader(file))
    from pyarrow import parquet

    return parquet.read_metadata(path).num_rows + 1  # and the header


def test_a_replay_shows_the_table(gpus, tmp_path):
    timeline = tmp_path / "run.csv"
    wattsmith("measure", "--timeline", timeline, "--", "sleep", "0.5", environment=gpus(0.5).environment())
    done = wattsmith("measure", "--replay", timeline)
    assert done.returncode == 0
    assert "sleep 0.5" in done.stderr
    assert "gpu:0 (simulated)" in done.stderr


def test_a_recorded_trace_serves_as_a_meter(no_meters, tmp_path):
    trace = tmp_path / "trace.csv"
    trace.write_text("time_s,power_w\n" + "".join(f"{i / 10},50\n" for i in range(100)))
    window = measured("--meters", f"replay:{trace}", "--", "sleep", "1", environment=no_meters)["window"]
    assert window["power_w"] == pytest.approx(50.0)
    assert "not this machine" in window["domains"][0]["why"]


def test_a_recorded_trace_replays_like_any_other_meter(no_meters, tmp_path):
    trace, timeline = tmp_path / "trace.csv", tmp_path / "run.csv"
    trace.write_text("time_s,power_w\n" + "".join(f"{i / 100},{50 + i % 7}\n" for i in range(200)))
    result = measured(
        "--meters", f"replay:{trace}", "--timeline", timeline, "--", "sleep", "0.7", environment=no_meters
    )
    assert json.loads(wattsmith("measure", "--replay", timeline, "--json").stdout)["windows"] == [result["window"]]


def test_a_full_disk_leaves_figures_and_exit_code(gpus, tmp_path):
    full = tmp_path / "full.csv"
    full.symlink_to("/dev/full")
    done = wattsmith(
        "measure",
        "--json",
        "--timeline",
        full,
        "--",
        "sh",
        "-c",
        "sleep 1; exit 5",
        environment=gpus(0.5).environment(),
    )
    assert done.returncode == 5
    assert "the timeline is incomplete" in done.stderr
    assert "No space left on device" in done.stderr
    result = json.loads(done.stdout)
    assert result["window"]["power_w"] == pytest.approx(400.0, rel=0.02)
    assert "No space left on device" in result["timeline"]["failed"]


def test_a_disk_that_fills_up_in_the_middle(gpus, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    options = ["-t", "tmpfs", "-o", "size=12k", "tmpfs", str(disk)]
    if os.geteuid() != 0 or subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("NOT CHECKED on a small disk: it takes root to mount one")
    try:
        done = wattsmith(
            *("measure", "--timeline", disk / "run.parquet", "--json", "--", "sleep", "3"),
            environment=gpus(0.5).environment(),
        )
        left = {path.name: path.stat().st_size for path in disk.iterdir()}
    finally:
        subprocess.run(["umount", str(disk)], check=True)
    assert done.returncode == 0
    result = json.loads(done.stdout)
    assert result["window"]["power_w"] == pytest.approx(400.0, rel=0.02)
    assert "run.parquet.partial.csv" in result["timeline"]["failed"]  # says where the rows are
    assert list(left) == ["run.parquet.partial.csv"]
    assert left["run.parquet.partial.csv"] > 0


@pytest.mark.parametrize(
    ("name", "said"), [("run.txt", ".csv or .parquet"), ("run", ".csv or .parquet"), ("no/run.csv", "No such file")]
)
def test_a_timeline_that_cannot_be_written_is_refused_before_the_command_runs(name, said, tmp_path):
    marker = tmp_path / "ran"
    done = wattsmith("measure", "--timeline", tmp_path / name, "--", "touch", marker)
    assert done.returncode == 2
    assert said in done.stderr
    assert not marker.exists()


# ---- files that are no timelines


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A timeline of one second with a window, a phase and a gap, as text."""
    path = tmp_path_factory.mktemp("recorded") / "run.csv"
    clock = SimulatedClock()
    timeline = Timeline(path)
    meter = PlayedMeter(clock, lambda _: 100.0, counts=True)
    timeline.start([meter.card], {"cpu": "none here"}, 0.0)
    session = Session(
        [meter],
        clock=clock,
        wall_ahead_s=0.0,
        listeners=[timeline.on_fed],
        span_listeners=[timeline.on_span],
        background=False,
    )
    with session.measure("work") as window, window.phase("compute"):
        for _ in range(10):
            clock.sleep_s(0.1)
            session.read()
    session.close()
    timeline.close()
    return path.read_text()


@given(data=st.data())
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_timeline_is_read_or_refused_clearly(recorded, tmp_path, data):
    path = tmp_path / "damaged.csv"
    path.write_text(damage(recorded, data), newline="")
    read_or_refused(path)


def damage(text, data):
    lines = text.splitlines()
    number = data.draw(st.integers(0, len(lines) - 1))
    kind = data.draw(st.sampled_from(["cell", "inside", "drop", "cut", "repeat", "swap"]))
    if kind == "cell":
        cells = next(csv.reader([lines[number]]))
        place = data.draw(st.integers(0, len(cells) - 1))
        cells[place] = data.draw(
            st.sampled_from(["", "x", "nan", "-1", "1e308", "{}", "[]", '{"missed": "x"}', "null"])
        )
        lines[number] = ",".join('"' + cell.replace('"', '""') + '"' for cell in cells)
    elif kind == "inside":
        values = list(re.finditer(r"(?<=: )[^,}]+", text))  # in the JSON of a detail
        chosen = data.draw(st.sampled_from(values))
        new = data.draw(st.sampled_from(["null", "-1", "1e14", "1e308", "NaN", "true", '""x""', "[]", "{}", "0"]))
        return text[: chosen.start()] + new + text[chosen.end() :]
    elif kind == "drop":
        del lines[number]
    elif kind == "cut":
        return "\n".join(lines)[: data.draw(st.integers(0, len(text)))]
    elif kind == "repeat":
        lines.insert(number, lines[number])
    else:
        other = data.draw(st.integers(0, len(lines) - 1))
        lines[number], lines[other] = lines[other], lines[number]
    return "\n".join(lines)


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".csv", ".parquet"]))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused_clearly(tmp_path, content, suffix):
    path = tmp_path / f"noise{suffix}"
    path.write_bytes(content)
    read_or_refused(path)


def read_or_refused(path):
    """Anything but an error of ours fails the test."""
    with suppress(WattsmithError):
        assert all(window.duration_s >= 0 for window in replay(path))


def test_a_parquet_file_of_something_else(recorded, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    path = tmp_path / "other.parquet"
    parquet.write_table(pa.table({"a": [1, 2]}), path)
    done = wattsmith("measure", "--replay", path)
    assert done.returncode == 2
    assert "is no timeline" in done.stderr
    source = tmp_path / "run.csv"
    source.write_text(recorded)
    csv_to_parquet(source, path)
    assert len(replay(path)) == 1


@pytest.mark.parametrize("name", ["missing.csv", "missing.parquet", "run.txt"])
def test_a_replay_of_a_file_that_is_not_there(name, tmp_path):
    done = wattsmith("measure", "--replay", tmp_path / name)
    assert done.returncode == 2
    assert done.stderr.startswith("wattsmith: ")
