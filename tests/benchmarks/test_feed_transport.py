"""The comparison of transports runs. What it finds is in docs/feed_machines.md."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "feed_transport.py"


def test_two_transports_are_measured_and_compared(tmp_path):
    wrote = tmp_path / "figures.json"
    only = ["--only", "memcpy", "--only", "ours, slots"]
    command = [sys.executable, str(SCRIPT), "--quick", *only, "--json", str(wrote)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr  # how busy this machine is decides which
    told = json.loads(wrote.read_text())
    assert {(row["transport"], row["dtype"]) for row in told["rows"]} == {
        (name, dtype) for name in ("memcpy", "ours, slots") for dtype in ("uint8", "float32")
    }
    assert all(row["bytes_per_s"] > 1e7 for row in told["rows"])
    assert "ours, slots ÷ memcpy, uint8" in done.stdout
