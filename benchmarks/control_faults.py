"""Kill -9 at random moments: are the settings back, and are they what they were? On a simulated driver and sysfs tree.

    python benchmarks/control_faults.py [--rounds 200] [--seed 1] [--json FILE]

In each round an administrator has set a GPU, a CPU and a Jetson's GPU to something else than the default; the GPU's
clocks alone are not locked, as NVML would not tell if they were. A tuner then turns their knobs as fast as it can,
under its own lease or through the daemon, and tuner, daemon and watchdog, or some of them, are killed at a random
moment: before, while or after the lease is taken, in the middle of a change, while settings are put back. Where a
watchdog or the daemon is left, every value must be back within 2 s; where none is, after `restore`. Exits with 1 when a
value came back late or as another one. Nothing real is touched.
"""

import argparse
import json
import os
import random
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from results.shape import bar, table
from wattsmith.control.client import DaemonLease
from wattsmith.control.journal import journal_files
from wattsmith.control.lease import Lease
from wattsmith.control.restoring import restore_left_behind
from wattsmith.flows.controlling import serve
from wattsmith.sim.nvml import SimulatedNvml
from wattsmith.sim.sysfs import SimulatedSysfs

BACK_WITHIN_S = 2.0
DEVICES = ["gpu:0", "cpu:0", "cpu-package:0", "soc-gpu:0"]
# Who is killed, in which order; "tuner" alone holds by itself, with a daemon it asks that.
SCENARIOS: dict[str, tuple[bool, tuple[str, ...]]] = {
    "tuner": (False, ("tuner",)),
    "tuner, then its watchdog": (False, ("tuner", "watchdog")),
    "watchdog, then tuner": (False, ("watchdog", "tuner")),
    "tuner of a daemon": (True, ("tuner",)),
    "daemon": (True, ("daemon",)),
    "tuner and daemon": (True, ("tuner", "daemon")),
    "daemon and tuner": (True, ("daemon", "tuner")),
    "tuner, daemon, watchdog": (True, ("tuner", "daemon", "watchdog")),
    "watchdog, daemon, tuner": (True, ("watchdog", "daemon", "tuner")),
}
GPU_LEVELS_HZ = [306e6, 408e6, 510e6, 612e6, 714e6, 816e6, 918e6]
FILES = {
    "cpu least": "devices/system/cpu/cpufreq/policy0/scaling_min_freq",
    "cpu most": "devices/system/cpu/cpufreq/policy0/scaling_max_freq",
    "governor": "devices/system/cpu/cpufreq/policy0/scaling_governor",
    "package limit": "class/powercap/intel-rapl:0/constraint_0_power_limit_uw",
    "soc-gpu least": "class/devfreq/17000000.gpu/min_freq",
    "soc-gpu most": "class/devfreq/17000000.gpu/max_freq",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of one round."""

    scenario: str
    changed: bool  # whether anything stood elsewhere just before the first kill
    by: str  # "at once": back, or never changed, at the first look after the kill; "watchdog or daemon"; "restore"
    back_s: float  # after the last kill; of a restore, how long it took
    late: bool
    wrong: Mapping[str, tuple[str, str]]  # what stands elsewhere than before: before, now


class Bench:
    """A machine that is not there, with settings of its own."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.state.mkdir()
        self.socket = folder / "socket"
        self.allow = folder / "allow.toml"
        self.allow.write_text(f'[[allow]]\nusers = [{os.getuid()}]\nknobs = ["*"]\n')
        self.allow.chmod(0o600)
        self.tree = SimulatedSysfs(folder / "sys")
        self.tree.add_cpufreq(0, min_hz=800e6, max_hz=3e9, governor=chance.choice(["performance", "schedutil"]))
        self.tree.add_zone("intel-rapl:0", "package-0")
        self.tree.add_power_limits("intel-rapl:0", {"long_term": chance.randrange(150, 250)}, max_w=250.0)
        self.tree.add_devfreq("17000000.gpu", GPU_LEVELS_HZ)
        self.gpu = SimulatedNvml.create(folder / "nvml")
        self.gpu.play(0, 0.8)
        self.gpu.load_here()
        self._set_as_administrator(chance)
        self.before = self.values()

    def _set_as_administrator(self, chance: random.Random) -> None:
        import pynvml

        pynvml.nvmlInit()
        gpu = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceSetPowerManagementLimit(gpu, chance.randrange(400, 690) * 1000)
        pynvml.nvmlDeviceSetApplicationsClocks(gpu, 3201, 345 + 15 * chance.randrange(20, 100))
        pynvml.nvmlShutdown()
        low = chance.randrange(9, 15)
        for name, number in {
            "cpu least": low * 100_000,
            "cpu most": chance.randrange(low, 30) * 100_000,
            "soc-gpu least": round(chance.choice(GPU_LEVELS_HZ[1:3])),
            "soc-gpu most": round(chance.choice(GPU_LEVELS_HZ[3:-1])),
        }.items():
            (self.tree.root / FILES[name]).write_text(f"{number}\n")

    def values(self) -> dict[str, str]:
        """Everything that can be turned, as it stands."""
        setting = asdict(self.gpu.setting(0))
        # The first line: a kill may leave the end of a longer value in a plain file, where the kernel's would not.
        files = {name: (self.tree.root / path).read_text().partition("\n")[0] for name, path in FILES.items()}
        return {name: str(value) for name, value in setting.items()} | files

    def elsewhere(self) -> dict[str, tuple[str, str]]:
        now = self.values()
        return {name: (self.before[name], now[name]) for name in now if now[name] != self.before[name]}

    def start(self, role: str, *, seed: int = 0, through_daemon: bool = False) -> "subprocess.Popen[str]":
        """A tuner or a daemon; it is ready, or about to take its lease, when this returns."""
        variables = self.gpu.environment() | {"WATTSMITH_SYSFS": str(self.tree.root)}
        words = ["--as", role, "--folder", str(self.folder), "--seed", str(seed)]
        process = subprocess.Popen(
            [sys.executable, __file__, *words, *(["--through-daemon"] if through_daemon else [])],
            env=os.environ | variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        _wait_for_line(process, "ready")
        return process

    def watchdogs(self) -> list[int]:
        """The watchdogs of this machine: their command lines name its state folder."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    words = (folder / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if b"wattsmith.control.watchdog" in words and str(self.state.resolve()).encode() in words:
                    found.append(int(folder.name))
        return found


def play_round(scenario: str, seed: int) -> Outcome:
    """Start everybody, kill whom the scenario names at a random moment, and see what becomes of the settings."""
    chance = random.Random(seed)
    through_daemon, victims = SCENARIOS[scenario]
    with tempfile.TemporaryDirectory(prefix="wattsmith-faults-") as folder:
        bench = Bench(Path(folder), chance)
        with _people(bench, seed, through_daemon=through_daemon) as people:
            if chance.random() < 0.3:
                time.sleep(chance.uniform(0.0, 0.4))  # while the lease is taken, mostly
            else:
                _wait_for_line(people["tuner"], "turning")
                time.sleep(chance.uniform(0.0, 0.2))
            changed = bool(bench.elsewhere())
            for victim in victims:
                _kill(bench, people, victim)
                time.sleep(chance.choice([0.0, chance.uniform(0.0, 0.03)]))
            killed_s = time.monotonic()
            left = bool(bench.watchdogs()) or (through_daemon and "daemon" not in victims)
            outcome = _watch(bench, scenario, killed_s, by_itself=left, changed=changed)
        for pid in bench.watchdogs():
            _wait_for_end(pid)
        return outcome


@contextmanager
def _people(bench: Bench, seed: int, *, through_daemon: bool) -> Iterator[dict[str, "subprocess.Popen[str]"]]:
    people: dict[str, subprocess.Popen[str]] = {}
    try:
        if through_daemon:
            people["daemon"] = bench.start("daemon")
        people["tuner"] = bench.start("tuner", seed=seed, through_daemon=through_daemon)
        yield people
    finally:
        for process in people.values():
            process.kill()
            process.communicate()


def _wait_for_line(process: "subprocess.Popen[str]", wanted: str) -> None:
    assert process.stdout is not None
    while wanted not in (line := process.stdout.readline()):
        if not line:
            raise RuntimeError(f"a process ended before it said {wanted!r}")


def _kill(bench: Bench, people: Mapping[str, "subprocess.Popen[str]"], victim: str) -> None:
    if victim == "watchdog":
        for pid in bench.watchdogs():
            with suppress(ProcessLookupError):  # it had done its work
                pidfd = os.pidfd_open(pid)
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                select.select([pidfd], [], [], 5.0)  # dying takes a moment, in which it must not pass for alive
                os.close(pidfd)
        return
    people[victim].kill()
    people[victim].wait()


def _watch(bench: Bench, scenario: str, killed_s: float, *, by_itself: bool, changed: bool) -> Outcome:
    """Wait until all is back and nothing is noted any more; call restore where nobody is left to do it."""
    if not bench.elsewhere() and not journal_files(bench.state):
        back_s, late, by = 0.0, False, "at once"
    elif by_itself:
        while (bench.elsewhere() or journal_files(bench.state)) and time.monotonic() - killed_s < BACK_WITHIN_S:
            time.sleep(0.002)
        back_s = time.monotonic() - killed_s
        late = bool(bench.elsewhere() or journal_files(bench.state))
        by = "watchdog or daemon"
    else:
        began_s = time.monotonic()
        outcomes = restore_left_behind(bench.state, wait_s=BACK_WITHIN_S)
        back_s, late, by = time.monotonic() - began_s, any(each.problems for each in outcomes), "restore"
    time.sleep(0.05)  # nobody may change it again behind our back
    restore_left_behind(bench.state, wait_s=BACK_WITHIN_S)  # twice is harmless
    return Outcome(scenario=scenario, changed=changed, by=by, back_s=back_s, late=late, wrong=bench.elsewhere())


def _wait_for_end(pid: int) -> None:
    deadline_s = time.monotonic() + 5.0
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline_s:
        time.sleep(0.01)


# ---- the two that are killed


def tuner(bench_folder: Path, seed: int, *, through_daemon: bool) -> None:
    """Turn every knob to and fro until killed."""
    chance = random.Random(seed + 1)
    state, sysfs = bench_folder / "state", bench_folder / "sys"
    _say("ready")
    if through_daemon:
        lease: Lease | DaemonLease = DaemonLease.take(DEVICES, socket_path=bench_folder / "socket", duration_s=60.0)
    else:
        lease = Lease.take(DEVICES, duration_s=60.0, state=state, sysfs=sysfs)
    _say("turning")
    while True:
        low, high = sorted(chance.choices(range(9, 30), k=2))
        small, large = sorted(chance.choices(GPU_LEVELS_HZ, k=2))
        clock_low, clock_high = sorted(chance.choices(range(345, 1980, 15), k=2))
        lease.set("gpu:0/power_limit", float(chance.randrange(200, 700)))
        lease.set("gpu:0/clock", (clock_low * 1e6, clock_high * 1e6))
        lease.set("gpu:0/application_clock", (345 + 15 * chance.randrange(100)) * 1e6)
        lease.set("cpu:0/clock", (low * 1e8, high * 1e8))
        lease.set("cpu:0/governor", chance.choice(["powersave", "performance", "schedutil"]))
        lease.set("cpu-package:0/power_limit_long_term", float(chance.randrange(50, 150)))
        lease.set("soc-gpu:0/clock", (small, large))


def daemon(bench_folder: Path) -> None:
    def say(line: str) -> None:
        _say("ready" if "listening" in line else line)

    serve(bench_folder / "socket", bench_folder / "allow.toml", state=bench_folder / "state", say=say)


def _say(line: str) -> None:
    print(line, flush=True)


# ---- telling


def rows_of(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    """The table, its head first."""
    head = (
        "killed",
        "rounds",
        "changed",
        "at once",
        "by itself",
        "median",
        "slowest",
        "by restore",
        "late",
        "another value",
    )
    rows = [head]
    for scenario in [*SCENARIOS, "all"]:
        of = [each for each in outcomes if scenario in (each.scenario, "all")]
        times_s = [each.back_s for each in of if each.by == "watchdog or daemon"]
        rows.append(
            (
                scenario,
                str(len(of)),
                str(sum(each.changed for each in of)),
                str(sum(each.by == "at once" for each in of)),
                str(len(times_s)),
                f"{statistics.median(times_s) * 1000:.0f} ms" if times_s else "-",
                f"{max(times_s) * 1000:.0f} ms" if times_s else "-",
                str(sum(each.by == "restore" for each in of)),
                str(sum(each.late for each in of)),
                str(sum(bool(each.wrong) for each in of)),
            )
        )
    return rows


def show(outcomes: Sequence[Outcome]) -> None:
    rows = rows_of(outcomes)
    if not all(sum(each.by == by for each in outcomes) for by in ("watchdog or daemon", "restore")):
        print("too few rounds: one of the two ways back was never needed")
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for row in rows:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    for each in outcomes:
        if each.late or each.wrong:
            print(f"FAILED {each}")


def passes(outcomes: Sequence[Outcome]) -> bool:
    """No value late, none another, and kills that met something to put back."""
    return not any(each.late or each.wrong for each in outcomes) and any(each.changed for each in outcomes)


def told_of(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    head, *rows = rows_of(outcomes)
    late, wrong = sum(each.late for each in outcomes), sum(bool(each.wrong) for each in outcomes)
    changed = sum(each.changed for each in outcomes)
    return {
        "rounds": [asdict(each) for each in outcomes],
        "tables": [table("Rounds of kill -9 on a simulated driver and sysfs tree", head, rows)],
        "bars": [
            bar(f"everything back within {BACK_WITHIN_S:g} s, or after a restore", f"{late} late", not late),
            bar("nothing comes back as another value", f"{wrong} wrong", not wrong),
            bar("the kills met something to put back", f"{changed} of {len(outcomes)}", changed > 0),
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write every round to this file")
    parser.add_argument("--data", type=Path, help="accepted like in all benchmarks; not needed here")
    for name in ("--as", "--folder"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    parser.add_argument("--through-daemon", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    role = getattr(options, "as")
    if role == "tuner":
        tuner(Path(options.folder), options.seed, through_daemon=options.through_daemon)
    if role == "daemon":
        daemon(Path(options.folder))
        return 0
    print(f"{options.rounds} rounds of kill -9 on a SIMULATED driver and sysfs tree, seed {options.seed}")
    turns = islice(cycle(SCENARIOS), options.rounds)
    outcomes = [play_round(scenario, options.seed * 10_000 + place) for place, scenario in enumerate(turns)]
    show(outcomes)
    if options.json:
        options.json.write_text(json.dumps(told_of(outcomes), indent=1) + "\n")
    print("PASSED" if passes(outcomes) else "FAILED")
    return 0 if passes(outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
