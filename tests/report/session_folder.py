"""Makes the folder of a measured session that passes every check, so that a test can spoil one thing.

Ranging and testing take 100 s each at 200 W; samples lie at whole seconds, the windows between half seconds.
"""

import hashlib
import json
from pathlib import Path

from wattsmith.report.checks.rounds import ROUNDS
from wattsmith.report.formats.ptd_log import ptd_line
from wattsmith.report.formats.spl import Channel, spl_sample
from wattsmith.report.formats.stamps import stamp, stamp_s

SESSION = "2024-02-20_10-00-00"
BEGAN_S = stamp_s("02-20-2024 10:00:00.000")
STARTS_S = {"ranging": BEGAN_S + 20, "testing": BEGAN_S + 200}
RUN_OF = {"ranging": "ranging", "testing": "run_1"}
LONG_S, POWER_W, VOLTS, AMPS = 100, 200.0, 100.0, 2.0
IDENTITY = (
    "YokogawaWT310E,1000,1,1,1,1,0,0,1,version=1.10.0-0-20220817,OS=Linux,mode=power,1,1,1,0,0,no_cal_date,"
    "YOKOGAWA;WT310E;1;F1.04"
)
SOURCES_FAIL = {"Check client sources checksum", "Check server sources checksum"}  # ours are not the published ones


def write_session(folder: Path, identity: str = IDENTITY, queries: int = 1_000, scenario: str = "SingleStream") -> Path:
    """A session of v4.0 in FOLDER: power, ranging and run_1."""
    for name in ("power", "ranging", "run_1"):
        (folder / name).mkdir(parents=True)
    for phase, run in RUN_OF.items():
        samples = spl_of(phase)
        (folder / run / "spl.txt").write_text("".join(sample.line for sample in samples))
        (folder / run / "mlperf_log_detail.txt").write_text(detail(phase, queries, scenario))
        (folder / run / "mlperf_log_summary.txt").write_text(
            f"Scenario : {scenario}\nResult is : VALID\nQPS w/ loadgen overhead         : {queries / LONG_S}\n"
        )
    (folder / "power" / "ptd_logs.txt").write_text(daemon_log(identity))
    for side in ("client", "server"):
        (folder / "power" / f"{side}.log").write_text(f"log of the {side}\n")
    write_descriptors(folder, identity)
    return folder


def spl_of(phase: str, power_w: float = POWER_W):
    start_s = STARTS_S[phase]
    return [
        spl_sample(start_s + second, power_w, VOLTS, AMPS, 1.0, f"{SESSION}_{phase}")
        for second in range(-5, LONG_S + 6)
    ]


def two_channels(time_s: float, power_w: float):
    parts = [Channel(f"Ch{number}", power_w / 2, VOLTS, AMPS / 2, 1.0) for number in (1, 2)]
    return spl_sample(time_s, power_w, -1.0, -1.0, -1.0, f"{SESSION}_testing", parts)


def detail(phase: str, queries: int, scenario: str) -> str:
    begin_s = STARTS_S[phase] - 0.5
    values = {
        "effective_scenario": scenario,
        "effective_samples_per_query": 1,
        "power_begin": stamp(begin_s),
        "power_end": stamp(begin_s + LONG_S),
        "result_validity": "VALID",
        "result_query_count": queries,
        "result_qps_with_loadgen_overhead": queries / LONG_S,
        "result_mean_latency_ns": 1e9 * LONG_S / queries,
    }
    return "".join(f":::MLLOG {json.dumps({'key': key, 'value': value})}\n" for key, value in values.items())


def daemon_log(identity: str) -> str:
    lines = ["Power daemon, Version 1.10.0", ptd_line(BEGAN_S, "Uncertainty checking for YokogawaWT310E is activated")]
    for phase, start_s in STARTS_S.items():
        begun_s, samples = start_s - 6, spl_of(phase)
        ended_s = samples[-1].time_s + 1
        lines += [
            ptd_line(begun_s, f"Go with mark '{SESSION}_{phase}'"),
            ptd_line(ended_s, "Completed test"),
            ptd_line(ended_s, averages(len(samples))),
            ptd_line(ended_s, f"Response to client sent: Last {len(samples)} samples"),
            *(",".join(sample.fields[:10]) for sample in samples),
            ptd_line(ended_s, f"Response to client sent: {identity}"),
        ]
    return "\n".join(lines) + "\n"


def averages(count: int) -> str:
    w = f"{POWER_W:.6f}"
    return f"Avg watts {w}, min watts {w}, max watts {w}, samples {count}, errors 0, valid {count}"


def write_descriptors(folder: Path, identity: str = IDENTITY, **more) -> None:
    count = len(spl_of("testing"))
    watts = f"Watts,{POWER_W:.6f},{POWER_W:.6f},{POWER_W:.6f},{count},0,{count}"
    started = "Starting untimed measurement, maximum 500000 samples at 1000ms with 0 rampup samples"
    talk = [
        *(("Hello", "Hello, PTDaemon here!"), ("Identify", identity), ("RR", "Ranges,1,5.0,1,300.0")),
        *(("SR,V,Auto", "Range V changed"), ("SR,A,Auto", "Range A changed")),
        *((f"Go,1000,0,{SESSION}_ranging", started), ("Stop", "Stopping untimed measurement"), ("Watts", watts)),
        *((f"SR,V,{VOLTS}", "Range V changed"), (f"SR,A,{AMPS * 1.1}", "Range A changed")),
        (f"Go,1000,0,{SESSION}_testing", started),
        *(
            ("Stop", "Stopping untimed measurement"),
            ("Uncertainty", f"Uncertainty,0.005,0.004,0.006,{count},0,{count},0"),
        ),
        *(("Watts", watts), ("Stop", "Error: no measurement to stop")),
        *(("SR,V,Auto", "Range V changed"), ("SR,A,Auto", "Range A changed")),
    ]
    phases = {
        phase: [[start_s + step, start_s + step - BEGAN_S] for step in (-10, -2, LONG_S + 2, LONG_S + 10)]
        for phase, start_s in STARTS_S.items()
    }
    common = {
        "version": "1.0",
        "timezone": 0,
        "modules": {},
        "sources": {"client.py": "0" * 40},
        "messages": [{"cmd": "mlcommons/power client v3", "reply": "mlcommons/power server v3"}],
        "uuid": {side: f"00000000-0000-4000-8000-00000000000{n}" for n, side in enumerate(("client", "server"))},
        "session_name": SESSION,
        "phases": phases,
    }
    hashed = {
        "client": [
            "power/client.log",
            *(f"{run}/mlperf_log_{kind}.txt" for run in RUN_OF.values() for kind in ("detail", "summary")),
        ],
        "server": ["power/server.log", "power/ptd_logs.txt", "ranging/spl.txt", "run_1/spl.txt"],
    }
    for side, paths in hashed.items():
        there = [path for path in paths if (folder / path).is_file()]
        results = {path: hashlib.sha1((folder / path).read_bytes()).hexdigest() for path in there}
        own = {"ptd_messages": [{"cmd": a, "reply": b} for a, b in talk], "ptd_config": {"device_type": 49}}
        body = {**common, "results": results, **(own if side == "server" else {}), **more.get(side, {})}
        (folder / "power" / f"{side}.json").write_text(json.dumps(body, indent=4))


def rules():
    return ROUNDS["v4.0"]
