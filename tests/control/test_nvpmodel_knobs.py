"""The power mode of a board, by a stand-in for `nvpmodel` that lies in the simulated tree."""

import pytest

from wattsmith.control.find import find_knobs
from wattsmith.control.lease import Lease
from wattsmith.control.nvpmodel_knobs import find_nvpmodel_knobs
from wattsmith.terms.control import KnobLost, NotPermitted
from wattsmith.terms.errors import BadTerm

CONFIG = """
< POWER_MODEL ID=0 NAME=MAXN >
CPU_ONLINE CORE_0 1
< POWER_MODEL ID=1 NAME=15W >
< POWER_MODEL ID=2 NAME=RESTART >
"""
STAND_IN = """#!/bin/sh
here=$(dirname "$0")
if [ "$1" = -q ]; then
  echo "NV Fan Mode:quiet"; echo "NV Power Mode: $(cat "$here/mode")"; echo 0
elif [ -e "$here/ordinary" ]; then
  echo "NVPM ERROR: must be run as root"; exit 1
elif [ "$2" = 2 ]; then
  echo "NVPM WARN: Reboot required for changing to this power mode: 2. Reboot now? [YES/no]"; exit 1
elif [ -e "$here/broken" ]; then
  echo "NVPM ERROR: failed to set"; exit 4
else
  echo "$([ "$2" = 0 ] && echo MAXN || echo 15W)" > "$here/mode"
fi
"""


@pytest.fixture
def board(tree):
    (tree.root / "nvpmodel.conf").write_text(CONFIG)
    (tree.root / "nvpmodel").write_text(STAND_IN)
    (tree.root / "nvpmodel").chmod(0o755)
    (tree.root / "mode").write_text("MAXN\n")
    return tree.root


def the_mode(board):
    (knob,) = find_nvpmodel_knobs(board)
    return knob


def test_the_mode_is_read_set_and_verified(board):
    knob = the_mode(board)
    assert (knob.card.name, knob.card.levels, knob.card.simulated) == (
        "soc/power_mode",
        ("MAXN", "15W", "RESTART"),
        True,
    )
    assert knob.read() == "MAXN"
    knob.set("15W")
    assert knob.read() == "15W"
    assert knob.verify("15W").in_force
    assert knob.verify("MAXN").note == "nvpmodel keeps 15W"


def test_a_mode_that_needs_a_restart_is_refused(board):
    with pytest.raises(BadTerm, match="needs a restart of the board"):
        the_mode(board).set("RESTART")
    assert the_mode(board).read() == "MAXN"


def test_refusals_are_told_apart(board):
    (board / "ordinary").touch()
    with pytest.raises(NotPermitted, match="must be run as root"):
        the_mode(board).set("15W")
    (board / "ordinary").unlink()
    (board / "broken").touch()
    with pytest.raises(KnobLost, match="failed to set"):
        the_mode(board).set("15W")
    (board / "mode").write_text("STRANGE\n")
    with pytest.raises(KnobLost, match="tells no mode"):
        the_mode(board).read()
    (board / "nvpmodel").unlink()
    with pytest.raises(KnobLost, match="does not answer"):
        the_mode(board).read()


def test_a_machine_that_is_no_jetson_has_none(tree):
    assert find_nvpmodel_knobs(tree.root) == []


def test_a_lease_puts_the_mode_back(board, state):
    assert "soc/power_mode" in find_knobs(board)
    with Lease.take(["soc"], state=state, sysfs=board) as lease:
        lease.set("soc/power_mode", "15W")
        assert the_mode(board).read() == "15W"
    assert the_mode(board).read() == "MAXN"
