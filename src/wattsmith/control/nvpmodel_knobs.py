"""The power mode of a Jetson, by NVIDIA's own `nvpmodel`: a preset of clocks, cores and power for the whole board.

A mode sets the clocks' limits too, so that whoever turns those and the mode under one lease should set the mode first.
Modes that need a restart of the board are refused: nobody could put them back without another one.
"""

import re
import shutil
import subprocess
from pathlib import Path

from wattsmith.control.sysfs_knobs import MARKER, SYSFS, identity_of
from wattsmith.terms.control import Knob, KnobCard, KnobLost, NotPermitted, Value, Verified
from wattsmith.terms.errors import BadTerm

CONFIG = Path("/etc/nvpmodel.conf")
ANSWERS_WITHIN_S = 20.0
_MODE = re.compile(r"<\s*POWER_MODEL\s+ID=(\d+)\s+NAME=(\S+?)\s*>")
_RESTART = re.compile(r"reboot", re.IGNORECASE)


def find_nvpmodel_knobs(root: Path = SYSFS) -> list[Knob]:
    """The power mode, where there is `nvpmodel`; beside a simulated tree, the one that lies in it."""
    config = CONFIG if root == SYSFS else root / "nvpmodel.conf"
    command = shutil.which("nvpmodel") if root == SYSFS else str(root / "nvpmodel")
    try:
        modes = {name: int(number) for number, name in _MODE.findall(config.read_text())}
    except OSError:
        return []
    if command is None or not modes:
        return []
    simulated = (root / MARKER).exists()
    card = KnobCard(
        name="soc/power_mode",
        device="soc",
        identity=identity_of(root, "nvpmodel"),
        title="power mode of the board" + " (simulated)" * simulated,
        unit="",
        levels=tuple(modes),
        simulated=simulated,
    )
    return [PowerMode(card, command, modes)]


class PowerMode:
    """One of the board's presets, by name."""

    def __init__(self, card: KnobCard, command: str, modes: dict[str, int]) -> None:
        self.card = card
        self._command, self._modes = command, modes

    def read(self) -> Value:
        told = self._run("-q")
        found = re.search(r"NV Power Mode:\s*(\S+)", told)
        if found is None or found[1] not in self._modes:
            raise KnobLost(f"{self.card.name}: nvpmodel tells no mode that its configuration knows: {told[:80]!r}")
        return found[1]

    def set(self, value: Value) -> None:
        if value not in self._modes:
            raise BadTerm(f"{self.card.name} cannot be set to {value}: there is {', '.join(self._modes)}")
        told = self._run("-m", str(self._modes[str(value)]))
        if _RESTART.search(told) and self.read() != value:
            raise BadTerm(f"{self.card.name} cannot be set to {value}: that needs a restart of the board")

    def verify(self, value: Value) -> Verified:
        told = self.read()
        note = "" if told == value else f"nvpmodel keeps {told}"
        return Verified(knob=self.card.name, asked=value, told=told, in_force=told == value, note=note)

    def _run(self, *arguments: str) -> str:
        """What nvpmodel prints. Asked whether to restart the board, it finds nobody who says yes."""
        try:
            done = subprocess.run(
                [self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                check=False,
                timeout=ANSWERS_WITHIN_S,
            )
        except (OSError, subprocess.TimeoutExpired) as failed:
            raise KnobLost(f"{self.card.name}: {self._command} does not answer ({failed})") from failed
        words = " ".join(done.stdout.split())
        if done.returncode and re.search(r"permission|root|privilege", words, re.IGNORECASE):
            raise NotPermitted(
                f"{self.card.name}: not permitted ({words[:120]}). Run as root, or go through "
                "`wattsmith control serve`."
            )
        if done.returncode and not _RESTART.search(words):
            raise KnobLost(f"{self.card.name}: nvpmodel {' '.join(arguments)} failed: {words[:200]}")
        return done.stdout
