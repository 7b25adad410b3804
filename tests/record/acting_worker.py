"""A worker without PyTorch: does what each workload's family says, so that every way to fail can be played.

python acting_worker.py [hello | refuse | die | mute]
"""

import json
import os
import signal
import sys
import time

HOST = {
    "device": {"name": "stage", "kind": "cpu"},
    "provenance": {"measured_at": "2026-01-01T00:00:00+00:00", "session": "played", "hostname": "here"},
}


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def run(question):
    return {
        "workload": question["workload"],
        "setting": question["setting"],
        "device": HOST["device"],
        "provenance": {**HOST["provenance"], "measured_at": f"2026-01-01T00:00:00.{os.getpid():06d}+00:00"},
        "status": "measured",
        "times": {"steps": 20, "mean_s": 0.1, "median_s": 0.1, "spread_s": 0.0, "error_ratio": 0.0, "first_s": 1.0},
        "consumption": {"window_s": 2.0},
    }


def act(question):
    part = question["workload"]["family"]
    if part == "hangs":
        time.sleep(3600)
    if part == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if part == "segfaults":
        os.kill(os.getpid(), signal.SIGSEGV)
    if part == "exits":
        sys.stderr.write("assertion failed somewhere deep\n")
        sys.exit(3)
    if part == "slow":
        time.sleep(0.3)
    if part == "talks nonsense":
        say({"run": {**run(question), "times": None}, "worn_out": False})
        return
    say({"run": run(question), "worn_out": part == "wears out"})


start = sys.argv[1] if len(sys.argv) > 1 else "hello"
if start == "refuse":
    say({"refused": "cuda:0 was asked for, but there is no GPU"})
elif start == "die":
    sys.exit("no torch here")
elif start == "mute":
    time.sleep(3600)
else:
    say(HOST)
    for line in sys.stdin:
        act(json.loads(line))
