"""`import wattsmith` is quick and brings nothing heavy along."""

import statistics
import subprocess
import sys

HEAVY = {
    *("fastapi", "numpy", "pandas", "psutil", "pyarrow", "pynvml", "ray"),
    *("rich", "scipy", "sklearn", "torch", "typer"),
}
ROUNDS = 7


def run_s(code: str) -> float:
    """Seconds of the processor that a new Python takes for CODE, whatever else runs on it."""
    told = f"{code}\nimport time; print(time.process_time())"
    return float(subprocess.run([sys.executable, "-c", told], check=True, capture_output=True, text=True).stdout)


def test_a_bare_import_loads_nothing_heavy():
    code = "import sys, wattsmith; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split()
    assert "wattsmith" in loaded
    assert HEAVY & {module.partition(".")[0] for module in loaded} == set()


def test_a_bare_import_takes_about_a_tenth_of_a_second():
    # In turns, so that a busy machine slows both alike.
    rounds = [(run_s("pass"), run_s("import wattsmith")) for _ in range(ROUNDS)]
    assert statistics.median(ours_s - bare_s for bare_s, ours_s in rounds) < 0.1
