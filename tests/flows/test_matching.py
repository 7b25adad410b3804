"""Telemetry from files, from programs that run, and a loop on the simulated driver: a load is played and recognised."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import wattsmith
from wattsmith.flows.matching import benchmarks_in, best_setting, match, match_process, relative_curve, where_to_probe
from wattsmith.flows.telemetry_files import read_telemetry, write_telemetry
from wattsmith.match.features import fingerprint_of
from wattsmith.sim.nvml import PROFILES, SimulatedNvml
from wattsmith.terms.errors import BadInput, ExtraNeeded
from wattsmith.terms.run import OperatorCount, Structure
from wattsmith.terms.telemetry import Benchmark, Fingerprint, Probe, RelativeResponse, Series, Telemetry

PROFILE = PROFILES["h200"]
SETTINGS = tuple(place / 10 for place in range(4, 11))


def power_w(load, setting=1.0):
    """What the simulated card draws."""
    return PROFILE.idle_w + load * PROFILE.full_load_w(setting * PROFILE.clock_max_hz, PROFILE.memory_clocks_hz[0])


def played(load):
    """A program that gives the card LOAD, and takes as much longer as it is loaded when the clock falls."""
    return Benchmark(
        name=f"load {load:.2f}",
        group=f"load {load:.2f}",
        family="light" if load < 0.5 else "heavy",
        features={
            "power_mean": power_w(load) / PROFILE.limit_default_w,
            "busy": load,
            "sm": load * PROFILE.sm_ratio,
            "dram": load * PROFILE.dram_ratio,
            "tensor": load * PROFILE.tensor_ratio,
        },
        response=RelativeResponse(
            settings=SETTINGS,
            time_ratio=tuple(1 + load * (1 / one - 1) for one in SETTINGS),
            power_ratio=tuple(power_w(load, one) / power_w(load) for one in SETTINGS),
        ),
    )


RECORD = [played(place / 10) for place in range(1, 11)]


def telemetry(load, length_s=20.0):
    times_s = tuple(place * 0.1 for place in range(round(length_s * 10)))
    flat = {"power_w": power_w(load), "busy_ratio": load, "sm_ratio": 0.95 * load, "dram_ratio": 0.16 * load}
    return Telemetry(
        series={name: Series(time_s=times_s, values=(value,) * len(times_s)) for name, value in flat.items()},
        power_limit_w=700.0,
    )


def test_telemetry_comes_back_from_a_file_as_it_went(tmp_path):
    given = telemetry(0.5)
    write_telemetry(given, tmp_path / "t.parquet")
    read = read_telemetry(tmp_path / "t.parquet")
    assert read.series == given.series
    assert read.power_limit_w == 700.0


def test_a_plain_table_is_telemetry_too(tmp_path):
    rows = ["time_s,power_w,power_limit_w", *(f"{at},300,600" for at in range(10))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    read = read_telemetry(tmp_path / "t.csv")
    assert read.series["power_w"].values == (300.0,) * 10
    assert read.power_limit_w == 600.0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("time_s,power_w\n", "no rows"),
        ("colour\nred\n", "no column time_s"),
        ("time_s,colour\n1,red\n", "none of the channels"),
        ("time_ms,power_w\n1,5\n", "no column time_s, in seconds, but time_ms, power_w"),
        ("time_s,power_w\n2026-11-17T00:00,5\n", "must hold seconds .* the first is '2026-11-17T00:00'"),
        ("time_s,power_w\n1700000000000000000,5\n", "must hold seconds"),
    ],
)
def test_files_that_are_no_telemetry_are_refused_by_name(tmp_path, text, says):
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(BadInput, match=says):
        read_telemetry(tmp_path / "t.csv")


@pytest.mark.parametrize("power", ["nan", "-5", "much"])
def test_broken_readings_are_noted_and_the_rest_is_used(tmp_path, power):
    values = [power if at == 3 else "300" for at in range(20)]
    rows = ["time_s,power_w,busy_ratio,power_limit_w", *(f"{at},{one},0.5,600" for at, one in enumerate(values))]
    (tmp_path / "t.csv").write_text("\n".join(rows))
    found = match(tmp_path / "t.csv", RECORD)
    assert any(note.startswith("power_w: 1 of 20 values") for note in found.notes)


def test_a_timeline_of_two_seconds_is_refused_with_its_length(tmp_path):
    write_telemetry(telemetry(0.5, length_s=2.1), tmp_path / "short.parquet")
    with pytest.raises(BadInput, match=r"2\.0 s long"):
        match(tmp_path / "short.parquet", RECORD)


def test_a_meter_that_only_counts_gives_power_by_what_it_counted(tmp_path):
    from wattsmith.measure.timeline import Timeline
    from wattsmith.measure.track import Fed
    from wattsmith.terms.energy import CounterReading, MeterCard, Readings, Source

    timeline = Timeline(tmp_path / "t.csv")
    card = MeterCard(domain="cpu-package:0", name="package-0", source=Source.COUNTER, counter_period_s=0.001)
    timeline.start([card], {}, 0.0)
    for at in range(11):
        counter = CounterReading(float(at), 1000.0 + 50.0 * at)
        timeline.on_fed(Fed(domain="cpu-package:0", readings=Readings(counter=counter)))
    timeline.close()
    read = read_telemetry(tmp_path / "t.csv")
    assert read.domain == "cpu-package:0"
    assert read.series["power_w"].values == (50.0,) * 10
    assert read.series["energy_j"].values[-1] == 1500.0


def test_a_parquet_file_that_is_none_is_refused(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"no such thing")
    with pytest.raises(BadInput, match="is not a Parquet file"):
        match(tmp_path / "t.parquet", RECORD)


def test_matching_is_in_the_front_hall():
    assert wattsmith.match(telemetry(0.7), RECORD).neighbours[0].name == "load 0.70"


def test_an_unknown_option_names_those_there_are():
    with pytest.raises(BadInput, match="no option 'colour'"):
        match(telemetry(0.7), RECORD, colour="red")


def test_a_record_that_is_too_small_says_what_to_do():
    with pytest.raises(BadInput, match="wattsmith record run"):
        match(telemetry(0.7), RECORD[:2])


def test_an_own_record_that_is_empty_gives_way_to_a_shipped_one(tmp_path, monkeypatch):
    from wattsmith.store.opening import default_path, open_store

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with open_store(None):
        pass
    assert default_path().exists()
    assert match(telemetry(0.7)).record == "h200"


def test_telemetry_that_shares_too_little_with_a_record_says_what_would_help():
    alone = Telemetry(series={"power_w": telemetry(0.7).series["power_w"]})
    with pytest.raises(BadInput, match=r"share 0 features .*--power-limit.*--steps-per-s.*--model"):
        match(alone, RECORD)


def test_layers_stand_in_for_a_device_that_did_nothing():
    conv = OperatorCount(calls=40, flops=1e9, moved_bytes=1e7)
    step = Structure(
        parameters=1, parameter_bytes=4, input_bytes=1, flops=1e9, moved_bytes=1e7, launches=50, peak_bytes=10,
        operators={"conv": conv},
    )  # fmt: skip
    found = match(telemetry(0.0), benchmarks_in("h200"), structure=step)
    assert found.family.family == "convolutional"
    assert any(note.startswith("compared by its layers alone: gpu:0 did nothing") for note in found.notes)


def test_a_program_about_to_run_is_recognised_by_its_layers():
    def of(kind, size):
        return Structure(
            parameters=size, parameter_bytes=4 * size, input_bytes=size, flops=1e9 * size, moved_bytes=1e7 * size,
            launches=50, peak_bytes=10,
            operators={kind: OperatorCount(calls=40, flops=1e9 * size, moved_bytes=1e7 * size)},
        )  # fmt: skip

    from wattsmith.match.features import layer_features

    points = [
        Benchmark(name=f"{kind} {size}", group=f"{kind} {size}", family=kind, features=layer_features(of(kind, size)))
        for kind in ("conv", "matmul")
        for size in (1, 2, 4, 8)
    ]
    assert match(of("matmul", 3), points).family.family == "matmul"


def test_the_shipped_record_recognises_its_own_networks():
    points = benchmarks_in("h200")
    for one in points[:: len(points) // 4]:
        found = match(Fingerprint(features=one.features), points)
        assert found.neighbours[0].name == one.name
        assert found.family is not None


@pytest.fixture
def card(tmp_path, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    machine = SimulatedNvml.create(tmp_path / "nvml")
    try:
        machine.environment()
    except ExtraNeeded as no_compiler:
        pytest.skip(f"NOT CHECKED on simulated GPUs: {no_compiler}")
    return machine


WATCH = """
import json, os, sys
from wattsmith.flows.matching import match_process
from wattsmith.terms.facts import as_plain
sys.path.insert(0, sys.argv[1])
from tests.flows.test_matching import RECORD
from wattsmith.terms.telemetry import Probe
probes = tuple(Probe(setting=a, time_ratio=b, power_ratio=c) for a, b, c in json.loads(sys.argv[2]))
found = match_process(os.getpid(), seconds_s=3.6, meters="gpu", benchmarks=RECORD, probes=probes)
print(json.dumps(as_plain(found)))
"""


def watched(machine, probes=()):
    """What a process on MACHINE is recognised as, by another that looks at its card."""
    here = str(Path(__file__).parents[2])
    done = subprocess.run(
        [sys.executable, "-c", WATCH, here, json.dumps(probes)],
        env=os.environ | machine.environment(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_load_that_is_played_is_recognised_and_its_curve_holds_the_truth(card):
    card.play(0, 0.72, start_s=card.booted_s)
    probe = (0.6, 1 + 0.72 * (1 / 0.6 - 1), power_w(0.72, 0.6) / power_w(0.72))
    found = watched(card, [probe])
    assert found["simulated"]
    assert found["neighbours"][0]["name"] == "load 0.70"
    assert found["family"]["family"] == "heavy"
    assert found["refused"] is None
    assert found["fingerprint"]["features"]["sm"] == pytest.approx(0.95 * 0.72, abs=0.01)
    assert set(found["used"]) == {"sm", "dram", "tensor"}
    curve = found["response"]
    for place, setting in enumerate(curve["settings"]):
        truth = power_w(0.72, setting)
        assert curve["power_w"][place]["low"] * 0.99 <= truth <= curve["power_w"][place]["high"] * 1.01
        truth = 1 + 0.72 * (1 / setting - 1)
        assert curve["time_ratio"][place]["low"] * 0.99 <= truth <= curve["time_ratio"][place]["high"] * 1.01


def test_the_curve_for_who_plans_has_intervals_at_every_setting():
    seen = fingerprint_of(telemetry(0.65))
    guess = relative_curve(RECORD, seen, [Probe(setting=0.6, time_ratio=1.43, power_ratio=0.6)])
    assert guess.settings == SETTINGS
    assert all(one.low <= one.value <= one.high for one in guess.time_ratio)
    assert guess.power_w[-1].value == pytest.approx(power_w(0.65))


def test_where_to_probe_and_what_to_choose():
    assert where_to_probe(RECORD) in (0.6, 0.7)
    found = match(telemetry(0.2), RECORD, probes=(Probe(setting=0.6, time_ratio=1.133, power_ratio=0.73),))
    assert 0.7 <= best_setting(found, 0.06) <= 0.9  # 1 + 0.2 (1 / 0.8 - 1) = 1.05


def test_a_process_that_is_not_there_is_refused():
    with pytest.raises(BadInput, match="no process"):
        match_process(2**22 + 1, benchmarks=RECORD)


PROBE = """
import json, os, sys
from dataclasses import replace
from wattsmith.flows.matching_live import watch_process
from wattsmith.flows.matching_probe import probe_by_knob
from wattsmith.terms.facts import as_plain
speeds = iter([20.0, 16.0])
def look():
    seen = watch_process(os.getpid(), seconds_s=3.3, meters="gpu", tell=lambda _: None)
    return replace(seen, steps_per_s=next(speeds))
print(json.dumps(as_plain(probe_by_knob(look, settle_s=0.2))))
"""


def test_a_probe_turns_the_limit_for_a_while_and_puts_it_back(card, tmp_path):
    card.play(0, 0.9, start_s=card.booted_s)  # 640 W
    done = subprocess.run(
        [sys.executable, "-c", PROBE],
        env=os.environ | card.environment() | {"XDG_STATE_HOME": str(tmp_path)},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["setting"] == pytest.approx(0.65 * 640 / 700, rel=0.01)  # of what it draws: a limit must bite
    assert found["power_ratio"] == pytest.approx(0.65, rel=0.01)
    assert found["time_ratio"] == 1.25
    assert card.setting(0).power_limit_w == 700.0


def test_a_probe_may_be_of_the_clients_own_making():
    from wattsmith.flows.matching_probe import probe_between

    found = probe_between(
        Fingerprint(features={}, power_w=400.0, steps_per_s=10.0),
        Fingerprint(features={}, power_w=300.0, steps_per_s=8.0),
        0.5,
    )
    assert (found.time_ratio, found.power_ratio) == (1.25, 0.75)
    with pytest.raises(BadInput, match="says nothing"):
        probe_between(Fingerprint(features={}), Fingerprint(features={}), 0.5)
