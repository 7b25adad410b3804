"""`wattsmith tune`, as typed."""

import json
import sys

import pytest
from typer.testing import CliRunner

from wattsmith.cli.tuning import tune
from wattsmith.terms.errors import BadInput

pytest.importorskip("scipy", reason="TUNING IS NOT TESTED: scipy is not installed")

PROGRAM = "import json; print(json.dumps(dict(energy_j=10 / {batch} + 1, latency_s=0.01 * {batch})))"
COMMAND = [sys.executable, "-c", PROGRAM]


@pytest.fixture(autouse=True)
def no_meters(tmp_path, monkeypatch):
    monkeypatch.setenv("WATTSMITH_SYSFS", str(tmp_path))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")


def typed(*arguments):
    done = CliRunner().invoke(tune, list(map(str, arguments)))
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done


def test_a_command_behind_two_dashes_is_run_at_each_setting():
    done = typed("--knob", "batch=1,2,4,8", "--at", "batch=2", "--limit", "latency<=50ms", "--", *COMMAND)
    assert done.exit_code == 0
    assert "batch=4: least of the settings that keep all limits" in done.output.replace("\n", " ")


def test_json_holds_everything():
    done = typed("run", "--knob", "batch=1,2,4", "--json", "--", *COMMAND)
    found = json.loads(done.stdout)
    assert found["recommendation"]["setting"] == {"batch": 4}
    assert found["trials"][0]["trial"]["metrics"]["latency_s"] == 0.04


def test_limits_that_nothing_keeps_exit_with_one():
    done = typed("--knob", "batch=2,4", "--limit", "latency<=1ms", "--", *COMMAND)
    assert done.exit_code == 1
    assert "no setting that was tried keeps the limits" in done.output.replace("\n", " ")


def test_a_table_is_replayed(tmp_path):
    table = tmp_path / "grid.csv"
    table.write_text("batch,energy_j,time_s\n1,9,1\n2,5,1.05\n4,4,2\n")
    done = typed("replay", table, "--knob", "batch=1", "--limit", "slowdown<=10%")
    assert done.exit_code == 0
    assert "batch=2" in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--", *COMMAND), "no knob to turn"),
        (("--knob", "batch=1,2", "--limit", "latency<50ms", "--", *COMMAND), "uses '<'"),
        (("--knob", "batch=1,2", "--limit", "power<=1W", "--limit", "power>=2W", "--", *COMMAND), "keep both"),
        (("--knob", "batch=1,2", "--noise", "energy=lots", "--", *COMMAND), "must be a share"),
        (("--knob", "batch=1,2", "--noise", "latency=3%", "--", *COMMAND), "noise is told of 'latency', but"),
        (("--knob", "batch=1,2", "--"), "no command to tune"),
        (("--knob", "batch=1,2"), "no command to tune"),
        (("replay", "grid.csv", "--knob", "batch=1", "--knob", "batch=2"), "a knob is given twice"),
    ],
)
def test_what_is_wrong_is_said(arguments, said):
    with pytest.raises(BadInput, match=said):
        typed(*arguments)
