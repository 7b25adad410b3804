"""The small process beside each job: `python -m wattsmith.flows.job_runner FOLDER [--leash]`.

It runs the command that FOLDER/order.json names, measures it, and says what became of it, whether or not the service
that started it is still there. The command ends with it, however it ends. With --leash it ends, and all of the job
with it, as soon as its input is closed.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from wattsmith.engines.attempt_folder import (
    ATTEMPT_VARIABLE,
    claim,
    read_order,
    write_ended,
    write_result,
    write_status,
)
from wattsmith.flows.job_energy import CPU, JobEnergy, JobMeters
from wattsmith.flows.job_family import (
    adopt_orphans,
    die_with_parent,
    end_descendants,
    kill_descendants,
    largest_resident_bytes,
)
from wattsmith.flows.job_steps import LOOK_S, Steps
from wattsmith.terms.errors import CommandNotStarted
from wattsmith.terms.jobs import AttemptOrder, AttemptStatus, JobResult, Stage

RUNNER = (sys.executable, "-P", "-m", "wattsmith.flows.job_runner")  # -P: what lies around is not imported
GRACE_S = 10.0  # between asking a job to end and ending it
TELL_S = 1.0
ENOUGH_LOOKS = 5  # LOOK_S apart, to say how much memory it took
KEEP_TRYING_S = 600.0  # to write the result down: a disk that is full may be emptied
OWN_PYTHON = ("python", "python3")
AMD = ("amd", "mi", "radeon", "gfx")  # how the names of AMD's kinds begin


def environment_of(order: AttemptOrder, folder: Path) -> dict[str, str]:
    """All that the command sees of variables."""
    cards = () if order.kind == CPU else order.devices
    named = ",".join(map(str, cards))
    # Those that hide AMD's cards apply one after the other: the second counts what the first has left.
    left = ",".join(map(str, range(len(cards))))
    amd = order.kind.lower().startswith(AMD)
    seen = {"ROCR_VISIBLE_DEVICES": named, "HIP_VISIBLE_DEVICES": left} if amd else {}
    path = ":".join(filter(None, (str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath))))
    return {
        "PATH": path,
        "HOME": str(folder / "files"),
        "LANG": os.environ.get("LANG", "C.UTF-8"),
        "PYTHONUNBUFFERED": "1",  # so that its log can be followed
        **order.environment,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as meters count them
        "CUDA_VISIBLE_DEVICES": left if amd else named,
        **seen,
        "WATTSMITH_JOB": order.attempt.rpartition(".")[0] or order.attempt,
        "WATTSMITH_DEVICES": str(len(cards)),
        "WATTSMITH_PROGRESS": str(folder / "progress"),
        **({} if order.data is None else {"WATTSMITH_DATA": order.data}),
        ATTEMPT_VARIABLE: str(folder),
    }


def program_of(order: AttemptOrder, environment: Mapping[str, str], files: Path) -> str:
    """The file to run. Raises CommandNotStarted where there is none."""
    name = order.command[0]
    if name in OWN_PYTHON:
        return sys.executable
    if os.sep in name:
        return str(files / name)
    found = shutil.which(name, path=environment.get("PATH"))
    if found is None:
        raise CommandNotStarted(f"command {name!r} was not found; check its name and PATH", exit_code=127)
    return found


class Doorbell:
    """Waits for signals, and for the leash."""

    def __init__(self, leash: bool) -> None:
        self._inner, outer = os.pipe()
        os.set_blocking(self._inner, False)
        os.set_blocking(outer, False)
        signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])  # whatever was held back where this process was started
        for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda *_: None)
        self._leash = leash
        self.slipped = False  # whoever held the leash is gone
        self.told: signal.Signals | None = None  # to end

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, at most TIMEOUT_S."""
        doors = [self._inner, *([0] if self._leash else [])]
        ready, _, _ = select.select(doors, [], [], max(0.0, timeout_s))
        if 0 in ready and not os.read(0, 4096):
            self.slipped = True
        if self._inner in ready:
            for number in os.read(self._inner, 4096):
                if number != signal.SIGCHLD:
                    self.told = signal.Signals(number)


@dataclass(slots=True)
class Command:
    """The command as a child that waits to be let go. Made while this process has no other thread."""

    pid: int
    _go: int
    _said: int

    @classmethod
    def make(cls, order: AttemptOrder, folder: Path) -> "Command":
        environment = environment_of(order, folder)
        files = folder / "files"
        program = program_of(order, environment, files)
        wait, go = os.pipe()
        said, say = os.pipe()
        runner = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(runner)
                os.setsid()
                os.close(go)
                if os.read(wait, 1):
                    _become(program, order.command, environment, folder)
            except (OSError, ValueError) as refused:
                os.write(say, str(getattr(refused, "strerror", None) or refused).encode())
            finally:
                os._exit(127)
        os.close(wait)
        os.close(say)
        return cls(pid, go, said)

    def go(self) -> None:
        """Let it run. Raises CommandNotStarted."""
        with contextlib.suppress(BrokenPipeError):  # somebody has killed it
            os.write(self._go, b"!")
        os.close(self._go)
        with os.fdopen(self._said, "rb") as said:
            refused = said.read().decode(errors="replace")  # until the child has become another program
        if refused:
            raise CommandNotStarted(refused)


def _become(program: str, command: Sequence[str], environment: Mapping[str, str], folder: Path) -> None:
    """Turn this process into the command."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)  # Python ignores these; programs count on them
    os.chdir(folder / "files")
    output = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(os.open(folder / "stdout", output, 0o600), 1)
    os.dup2(os.open(folder / "stderr", output, 0o600), 2)
    os.execve(program, list(command), dict(environment))


class Run:
    """One attempt from its start to its result."""

    def __init__(self, folder: Path, order: AttemptOrder, bell: Doorbell) -> None:
        self._folder, self._order, self._bell = folder, order, bell
        self._why: str | None = None  # it was told to end
        self._kill_s: float | None = None  # when it is killed
        self._began_s = 0.0  # of the clock that only goes forward
        self._tell_s = 0.0
        self._seen_bytes: int | None = None  # the most that one process of it was seen to hold
        self._looks = 0
        self._steps = Steps(folder / "progress", time.time())
        self._status = AttemptStatus(stage=Stage.STARTING, node=order.node, devices=order.devices)

    def result(self) -> JobResult:
        write_status(self._folder, self._status)
        try:
            command = Command.make(self._order, self._folder)
        except CommandNotStarted as refused:
            return JobResult(exit_code=None, duration_s=0.0, why=str(refused))
        meters = JobMeters(self._order)
        try:
            self._bell.wait(0.0)
            if (why := self._to_end()) is not None or self._bell.slipped:
                return JobResult(exit_code=None, duration_s=0.0, why=f"{why} before it began")
            return self._run(command, meters)
        finally:
            end_descendants()
            meters.close()

    def _run(self, command: Command, meters: JobMeters) -> JobResult:
        self._steps.began_s = time.time()
        self._began_s = began_s = time.monotonic()
        meters.begin()
        try:
            command.go()
        except CommandNotStarted as refused:
            name = self._order.command[0]
            return JobResult(exit_code=None, duration_s=0.0, why=f"{name!r} cannot be run: {refused}")
        self._status = replace(self._status, stage=Stage.RUNNING, started_s=self._steps.began_s)
        while (ended := _wait_for(command.pid)) is None:
            self._tick(command.pid, meters, time.monotonic() - began_s)
            self._bell.wait(LOOK_S)
        duration_s = time.monotonic() - began_s
        # Meters take up to half a second to be read to the end; that it has ended is safe before.
        cut_short = JobEnergy(why="its runner was killed before the meters were read")
        with contextlib.suppress(OSError):  # a full disk: the result is tried for longer
            write_ended(self._folder, self._result(ended[0], duration_s, cut_short, None, None))
        energy = meters.end()
        end_descendants()
        self._steps.look(time.time())
        self._tell(meters)
        code, largest_bytes = ended
        taken_bytes = memory_taken(largest_bytes, self._seen_bytes, self._looks)
        return self._result(code, duration_s, energy, meters.peak_memory_bytes, taken_bytes)

    def _tick(self, pid: int, meters: JobMeters, passed_s: float) -> None:
        if self._bell.slipped:
            end_descendants()
            os._exit(1)  # nobody asks for a result any more; it may be running elsewhere by now
        self._steps.look(time.time())
        meters.look()
        self._looks += 1
        if self._order.kind == CPU and (seen_bytes := largest_resident_bytes()) is not None:
            self._seen_bytes = max(self._seen_bytes or 0, seen_bytes)
        timeout_s = self._order.timeout_s
        if self._kill_s is None:
            if timeout_s is not None and passed_s >= timeout_s:
                self._end(pid, f"it took longer than {timeout_s:g} s")
            elif (why := self._to_end()) is not None:
                self._end(pid, why)
        elif time.monotonic() >= self._kill_s:
            kill_descendants()
        if time.monotonic() >= self._tell_s:
            self._tell_s = time.monotonic() + TELL_S
            self._tell(meters)

    def _to_end(self) -> str | None:
        """Why it is to end; None: it may go on."""
        if (self._folder / "stop").exists():
            return "it was stopped"
        return None if self._bell.told is None else f"its runner was ended by {self._bell.told.name}"

    def _end(self, pid: int, why: str) -> None:
        self._why = why
        self._kill_s = time.monotonic() + GRACE_S
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGTERM)

    def _tell(self, meters: JobMeters) -> None:
        energy = meters.so_far()
        self._status = replace(
            self._status,
            steps=float(self._steps.count) if self._steps.count else None,
            energy_j=energy.energy_j,
            energy_source=energy.source,
            energy_why=energy.why,
            simulated=energy.simulated,
            power_w=meters.power_w(),
            duration_s=time.monotonic() - self._began_s,
        )
        with contextlib.suppress(OSError):  # a full disk; the next time may do
            write_status(self._folder, self._status)

    def _result(
        self, code: int, duration_s: float, energy: JobEnergy, peak_memory_bytes: int | None, largest_bytes: int | None
    ) -> JobResult:
        steps = self._steps
        return JobResult(
            exit_code=code,
            duration_s=duration_s,
            energy_j=energy.energy_j,
            energy_error_j=energy.error_j,
            energy_source=energy.source,
            energy_why=energy.why,
            power_w=None if energy.energy_j is None or not duration_s else energy.energy_j / duration_s,
            steps=float(steps.count) if steps.count else None,
            step_s=steps.mean_s,
            step_spread_s=steps.spread_s,
            first_step_s=steps.first_s,
            peak_memory_bytes=largest_bytes if self._order.kind == CPU else peak_memory_bytes,
            device=energy.device,
            simulated=energy.simulated,
            why=self._why,
        )


def memory_taken(told_bytes: int | None, seen_bytes: int | None, looks: int) -> int | None:
    """The most that one process of it held: as the kernel told at its end, or as was seen in so many LOOKS.

    Of what ended a moment after it began only the beginning was seen, before it had taken what it needs.
    """
    known = [told_bytes, seen_bytes if looks >= ENOUGH_LOOKS else None]
    return max((one for one in known if one is not None), default=None)


def _wait_for(pid: int) -> tuple[int, int | None] | None:
    """Exit code of our child PID and the memory of the largest process of it, once it has ended; orphans are let go."""
    import resource

    our_peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while True:
        ended, status, used = os.wait4(-1, os.WNOHANG)
        if ended == pid:
            code = os.waitstatus_to_exitcode(status)
            # Between fork and exec a child counts its parent's memory as its own.
            largest_bytes = used.ru_maxrss * 1024 if used.ru_maxrss > our_peak_kib else None
            return (code if code >= 0 else 128 - code), largest_bytes
        if ended == 0:
            return None


def run_attempt(folder: Path, *, leash: bool = False) -> int:
    """Run the attempt of FOLDER, unless somebody does or did. Exit code: 0 once its result is written."""
    if not claim(folder):
        return 0
    adopt_orphans()
    bell = Doorbell(leash)
    began_s = time.monotonic()
    try:
        result = Run(folder, read_order(folder), bell).result()
    except Exception as failed:  # noqa: BLE001 - without a result it would be taken for lost, and run again for ever
        end_descendants()
        duration_s = time.monotonic() - began_s
        result = JobResult(
            exit_code=None, duration_s=duration_s, why=f"its runner failed: {type(failed).__name__}: {failed}"
        )
    if bell.slipped:
        return 1
    give_up_s = time.monotonic() + KEEP_TRYING_S
    while True:
        try:
            write_result(folder, result)
            return 0
        except OSError:
            if time.monotonic() > give_up_s:
                raise
            bell.wait(TELL_S)


def main(arguments: Sequence[str]) -> int:
    """The life of a runner."""
    return run_attempt(Path(arguments[0]).resolve(), leash="--leash" in arguments[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
