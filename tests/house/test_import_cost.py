"""`import wattsmith` is quick and brings nothing heavy along."""

import statistics
import subprocess
import sys
import time

HEAVY = {
    *("fastapi", "numpy", "pandas", "psutil", "pyarrow", "pynvml", "ray"),
    *("rich", "scipy", "sklearn", "torch", "typer"),
}
ROUNDS = 7


def run_s(code: str) -> float:
    began_s = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True)
    return time.perf_counter() - began_s


def test_a_bare_import_loads_nothing_heavy():
    code = "import sys, wattsmith; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "wattsmith" in loaded
    assert HEAVY & {module.partition(".")[0] for module in loaded} == set()


def test_a_bare_import_takes_about_a_tenth_of_a_second():
    # In turns, so that a busy machine slows both alike; what it still adds is why the limit is above a tenth.
    rounds = [(run_s("pass"), run_s("import wattsmith")) for _ in range(ROUNDS)]
    assert statistics.median(ours_s - bare_s for bare_s, ours_s in rounds) < 0.15
