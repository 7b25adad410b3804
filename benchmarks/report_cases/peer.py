"""The official power checker beside ours, from the user's copy of mlcommons/power-dev. Nothing of it is kept."""

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

REVISIONS = {
    "v1.0": "r1.0",
    "v1.1": "r1.1",
    "v2.0": "r2.0",
    "v2.1": "r2.1",
    "v3.0": "r3.0",
    "v3.1": "f59033d",
    "v4.0": "8d5d010",
    "v4.1": "8d5d010",
    "v5.0": "c4b3ad8",
    "v5.1": "c4b3ad8",
}
FILES = ("compliance/check.py", "compliance/sources_checksums.json")
_LINE = re.compile(r"\[(x| )\] (Check .+?)\s*$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerVerdict:
    accepted: bool
    checks: dict[str, bool]  # by name
    took_s: float


class OfficialChecker:
    """Runs the checker of each round in a process of its own."""

    def __init__(self, repository: Path, scratch: Path) -> None:
        self._repository = repository
        self._scratch = scratch

    def script(self, round_name: str) -> Path:
        revision = REVISIONS[round_name]
        folder = self._scratch / revision
        if not folder.exists():
            folder.mkdir(parents=True)
            for path in FILES:
                shown = subprocess.run(
                    ["git", "-C", str(self._repository), "show", f"{revision}:{path}"], capture_output=True, check=True
                )
                (folder / Path(path).name).write_bytes(shown.stdout)
        return folder / "check.py"

    def check(self, folder: Path, round_name: str) -> PeerVerdict:
        script = self.script(round_name)
        began_s = time.perf_counter()
        done = subprocess.run([sys.executable, str(script), str(folder)], capture_output=True, text=True, check=False)
        took_s = time.perf_counter() - began_s
        said = _LINE.findall(done.stdout + done.stderr)
        return PeerVerdict(
            accepted=done.returncode == 0, checks={name: sign == "x" for sign, name in said}, took_s=took_s
        )
