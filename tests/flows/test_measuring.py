"""The Python door: `wattsmith.measure` around code, on a function, and by begin and end."""

import os
import subprocess
import sys
import time

import pytest

import wattsmith
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.terms.errors import BadInput, BadTerm


@pytest.fixture
def two_gpus(tmp_path):
    """Two simulated GPUs at 60 % and 20 % load, for a program of its own."""
    machine = SimulatedNvml.create(tmp_path, gpus=2)
    machine.play(0, 0.6)
    machine.play(1, 0.2)
    return machine


def run(machine, program, **more):
    """Run PROGRAM on a simulated machine; its standard output."""
    environment = os.environ | machine.environment() | more
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_a_window_around_code(two_gpus):
    printed = run(
        two_gpus,
        """
import time, wattsmith
with wattsmith.measure("work") as window:
    time.sleep(1.0)
result = window.result()
print(window.begin.time_s, window.finish.time_s, result.energy_j)
""",
    )
    begin_s, end_s, energy_j = map(float, printed.split())
    truth_j = sum(two_gpus.true_energy_j(gpu, begin_s, end_s) for gpu in (0, 1))
    assert energy_j == pytest.approx(truth_j, rel=0.01)


def test_a_measured_function_keeps_its_windows(two_gpus):
    printed = run(
        two_gpus,
        """
import time, wattsmith
@wattsmith.measure("train")
def train(duration_s):
    time.sleep(duration_s)
    return "trained"
assert train(0.2) == "trained"
assert train(duration_s=0.4) == "trained"
print(train.__name__, *(round(w.result().duration_s, 1) for w in train.windows), train.windows[1].energy_j > 50)
""",
    )
    assert printed.split() == ["train", "0.2", "0.4", "True"]


def test_begin_and_end_by_name(two_gpus):
    printed = run(
        two_gpus,
        """
import time, wattsmith
wattsmith.begin("epoch")
time.sleep(0.3)
print(wattsmith.end("epoch").energy_j > 0)
""",
    )
    assert printed == "True\n"


def test_only_the_visible_gpus_are_measured(two_gpus):
    program = "import wattsmith\nwith wattsmith.measure('x') as w: pass\nprint([d.domain for d in w.result().domains])"
    assert run(two_gpus, program, CUDA_VISIBLE_DEVICES="1") == "['gpu:1']\n"
    assert run(two_gpus, program, CUDA_VISIBLE_DEVICES=two_gpus.uuid(0)) == "['gpu:0']\n"


def test_a_forked_child_measures_for_itself(two_gpus):
    """As the worker processes of a data loader do."""
    printed = run(
        two_gpus,
        """
import os, time, wattsmith
with wattsmith.measure("parent"):
    child = os.fork()
    if child == 0:
        with wattsmith.measure("child") as window:
            time.sleep(0.5)
        os._exit(0 if 50 < window.energy_j < 800 else 1)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
    )
    assert printed == "0\n"


def test_a_machine_without_meters_says_unknown_and_why():
    if wattsmith.machine().meters:
        pytest.skip("this machine has meters")
    with wattsmith.measure("work") as window:
        time.sleep(0.01)
    result = window.result()
    assert result.energy_j is None
    assert result.power_w is None
    assert "nvidia-smi" in result.missing["nvidia"]


def test_work_that_torch_has_queued_is_waited_for_when_asked():
    """Without a GPU there is nothing to wait for, with or without torch."""
    pytest.importorskip("torch")
    with wattsmith.measure("step", sync=True) as window:
        pass
    assert window.result().duration_s >= 0


def test_the_verb_stays_a_function_whatever_is_imported():
    program = """
import wattsmith.measure.session
import wattsmith
assert callable(wattsmith.measure), wattsmith.measure
from wattsmith import measure
assert callable(measure)
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_absurd_arguments_are_refused():
    with pytest.raises(BadInput, match="poll_hz must be positive"):
        wattsmith.open_session(poll_hz=0)
    with pytest.raises(BadInput, match="there is no meter 'gppu'"):
        wattsmith.open_session("gppu")
    with pytest.raises(BadTerm, match="no window 'never begun' is open"):
        wattsmith.end("never begun")
    with pytest.raises(BadInput, match=r"such as \"auto\" or \"gpu,cpu\", got \['gpu'\]"):
        wattsmith.begin("epoch", meters=["gpu"])
    with pytest.raises(BadInput, match=r"a window has a name, such as measure\(\"epoch\"\), got <function"):
        wattsmith.measure(test_absurd_arguments_are_refused)
    with pytest.raises(BadInput, match="a window has a name"):
        wattsmith.end(3)
    with pytest.raises(BadInput, match="sync is True, or a function"):
        wattsmith.measure("epoch", sync="cuda")
