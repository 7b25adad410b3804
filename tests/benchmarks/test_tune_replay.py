"""The replay counts trials as it says, and misses no bar in silence. What it finds is in docs/tune.md."""

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
HEADER = "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\n"


@pytest.fixture
def parts(monkeypatch):
    """The benchmark's own modules, found as the script finds them."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("tuning.grids"), importlib.import_module("tuning.replay")


@pytest.fixture
def data(tmp_path):
    """One grid of four settings, and one with a hole."""
    folder = tmp_path / "zeus-traces" / "nsdi23"
    folder.mkdir(parents=True)
    rows = ("16,a,100,2.0,90", "16,a,200,1.5,150", "32,a,100,1.6,90", "32,a,200,1,170")
    whole = "".join(f"squad,bert,{row}\n" for row in rows)
    for gpu in ("v100", "a40", "rtx6000", "p100"):
        text = whole + "imagenet,net,8,a,100,1,1\nimagenet,net,16,a,200,1,1\n" if gpu == "v100" else ""
        (folder / f"summary_power_{gpu}.csv").write_text(HEADER + text)
    return tmp_path


def test_only_complete_grids_are_used_and_the_default_is_the_largest_limit(parts, data):
    (grid,) = parts[0].zeus_grids(data)
    assert grid.space.setting(grid.space.present) == {"batch": 32, "power_limit_w": 200}
    assert grid.energy_j[grid.space.present] == 170.0


def test_the_optimum_keeps_the_limit(parts, data):
    (grid,) = parts[0].zeus_grids(data)
    assert grid.best(1.1) == grid.space.present  # all others are slower
    assert grid.space.setting(grid.best(1.6)) == {"batch": 32, "power_limit_w": 100}  # 1.6 s × 90 W = 144 J


class InOrder:
    """Tries every setting in turn."""

    def __init__(self, space):
        self.space, self._left = space, [space.present, *[one for one in space.cells() if one != space.present]]

    def ask(self):
        return self.space.setting(self._left.pop(0)) if self._left else None

    def tell(self, setting, outcome, noise=None):
        pass


def test_trials_are_counted_to_the_first_that_is_near(parts, data):
    (grid,) = parts[0].zeus_grids(data)
    done = parts[1].replayed(
        grid,
        1.6,
        InOrder(grid.space),
        lambda _: grid.space.setting(grid.space.present),
        (0, 0),
        np.random.default_rng(0),
    )
    assert (done.trials, done.hit, done.infeasible) == (4, 4, 1)
    assert done.spent == pytest.approx((170 + 180 + 225 + 144) / 170)
    assert done.excess[0] == pytest.approx(170 / 144 - 1)
    assert done.excess[19] == 0
    assert not done.violates
    assert done.chosen_excess == pytest.approx(170 / 144 - 1)


def test_without_data_it_says_so(tmp_path):
    command = [sys.executable, str(BENCHMARKS / "tune_replay.py"), "--data", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "NOT DONE: there are no grids" in done.stdout
