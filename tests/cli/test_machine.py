"""`wattsmith machine`, and the command line as a whole."""

import json
import os
import subprocess

from tests.cli.keeping import keeps
from tests.cli.running import WATTSMITH, wattsmith

from wattsmith import __version__


def test_alone_it_shows_help():
    done = wattsmith()
    assert done.returncode == 0
    assert "machine" in done.stdout
    assert "measure" in done.stdout


def test_it_tells_its_version():
    assert wattsmith("--version").stdout == f"wattsmith {__version__}\n"


def test_every_command_shows_an_example():
    for command in ("machine", "measure"):
        assert f"Example: wattsmith {command}" in wattsmith(command, "--help").stdout


def test_without_meters_it_says_what_is_missing_and_what_to_do(no_meters):
    done = wattsmith("machine", environment=no_meters)
    assert done.returncode == 0
    assert "energy is unknown on this machine" in done.stdout
    for kind in ("nvidia", "cpu", "soc", "node"):
        assert f"\n  {kind} " in done.stdout
    assert "--meters modelled:10W-65W" in " ".join(done.stdout.split())


def test_every_row_of_a_simulated_gpu_says_so(gpus):
    done = wattsmith("machine", environment=gpus(0.0, 0.0).environment())
    rows = [line for line in done.stdout.splitlines() if line.startswith("gpu:")]
    assert len(rows) == 4  # two meters, two GPUs
    assert all("(simulated)" in row for row in rows)
    assert "200 W … 700 W" in done.stdout
    assert "20 ms" in done.stdout
    assert "not stated by vendor" in done.stdout


def test_json_holds_the_same_facts(gpus):
    machine = gpus(0.0)
    told = wattsmith("machine", "--json", environment=machine.environment()).stdout
    keeps("machine", told)
    described = json.loads(told)
    assert described["simulated"]
    assert [gpu["uuid"] for gpu in described["gpus"]] == [machine.uuid(0)]
    assert described["gpus"][0]["power_limit_range_w"] == [200.0, 700.0]
    assert described["meters"][0]["source"] == "counter"
    assert described["missing"].keys() >= {"cpu", "node"}


def test_mig_instances_are_named_as_such(gpus):
    done = wattsmith("machine", environment=gpus(0.0, mig=("1g.18gb", "2g.35gb")).environment())
    assert "gpu:0/mig:1" in done.stdout
    assert "the whole card, which 2 MIG" in done.stdout


def test_a_meter_asked_for_by_name_must_be_there(no_meters):
    done = wattsmith("machine", "--meters", "cpu", environment=no_meters)
    assert done.returncode == 2
    assert done.stderr.startswith("wattsmith: no RAPL package")
    assert done.stdout == ""


def test_a_full_disk_behind_standard_output_is_one_message(no_meters):
    with open("/dev/full", "w") as full:  # noqa: PTH123 - not a path of ours
        done = subprocess.run(
            [WATTSMITH, "machine", "--json"],
            env=os.environ | no_meters,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr
