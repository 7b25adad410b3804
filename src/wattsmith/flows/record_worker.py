"""The process that measures points: `python -m wattsmith.flows.record_worker`. Started by `flows.recording`.

It says hello with what it runs on, then answers each question, a workload and a setting, with a run.
"""

import argparse
import ctypes
import json
import os
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from wattsmith import __version__
from wattsmith.flows.machine import describe_machine
from wattsmith.flows.measuring import open_session
from wattsmith.measure.gpm import GpmReader
from wattsmith.measure.host import this_host
from wattsmith.record.bench import Effort, Measured, bench
from wattsmith.record.bench import Program as BenchProgram
from wattsmith.record.concurrent import Concurrent
from wattsmith.record.families import build
from wattsmith.record.program import Program
from wattsmith.record.runner import Host, read_question
from wattsmith.record.together import ANSWER_S, Leading, Replicas, follow
from wattsmith.record.worker import Worker, WorkerDied, WorkerHung
from wattsmith.terms.errors import BadTerm, MeterLost, MeterMissed, MeterUnavailable, WattsmithError
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Device, Provenance, Run, Status
from wattsmith.terms.work import Setting, Workload

PR_SET_PDEATHSIG = 1
OUT_OF_MEMORY_WORDS = ("out of memory", "can't allocate memory", "not enough memory", "defaultcpuallocator")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", required=True)
    parser.add_argument("--meters", required=True)
    parser.add_argument("--session", required=True)
    parser.add_argument("--effort", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--follows", action="store_true", help="be one of the other replicas of a data-parallel point")
    options = parser.parse_args()
    # A parent that was killed leaves no worker behind to spoil other people's measurements.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever libraries print must not come between the answers
    if options.follows:
        for line in sys.stdin:
            _say(answers, "here")  # before the meeting, where a dead replica would be waited for
            _say(answers, follow_along(json.loads(line), options.seed))
        return
    try:
        desk = Desk(options.device, options.meters, options.session, options.effort, options.seed)
    except WattsmithError as refused:
        _say(answers, {"refused": str(refused)})
        return
    _say(answers, as_plain(desk.host))
    for line in sys.stdin:
        _say(answers, desk.answer(json.loads(line)))


def _say(answers: TextIO, message: Any) -> None:
    answers.write(json.dumps(message) + "\n")
    answers.flush()


def counters_of(domains: Sequence[str]) -> GpmReader | None:
    """Activity counters of the GPU among DOMAINS, where it has any."""
    gpu = next((one for one in domains if one.startswith("gpu:") and one[4:].isdigit()), None)
    if gpu is None:
        return None
    try:
        return GpmReader(int(gpu[4:]))
    except MeterUnavailable:
        return None


class Desk:
    """A device, its meters, and the points that are measured with them."""

    def __init__(self, device: str, meters: str, session: str, effort: str, seed: int) -> None:
        import torch

        self._device = device
        self._seed = seed
        self._threads = torch.get_num_threads()
        self._followers: list[Worker] = []
        self._effort = parse_fact(Effort, json.loads(effort), "effort")
        described = describe_device(device)
        self._windows = open_session(meters)
        self._found = [card.domain for card in self._windows.cards]
        machine = describe_machine(meters)
        own = domains_of(device, self._found)
        self._counters = counters_of(own)
        device_id = next((gpu.uuid for gpu in machine.gpus if gpu.domain in own), None)
        self.host = Host(device=described, provenance=_provenance(session, machine.driver, device_id))

    def answer(self, question: Any) -> dict[str, Any]:
        """The run, and whether this process is of no further use."""
        workload, setting = read_question(question)
        run, worn_out = self._measure(workload, setting)
        return {"run": as_plain(run), "worn_out": worn_out}

    def _measure(self, workload: Workload, setting: Setting) -> tuple[Run, bool]:
        try:
            return self._bench(workload, setting), False
        except BadTerm as refused:
            return self._failed(workload, setting, Status.CRASHED, str(refused)), False
        except (WorkerDied, WorkerHung) as lost:
            return self._failed(workload, setting, Status.CRASHED, f"a replica failed: {lost}"), True
        except (RuntimeError, MemoryError, NotImplementedError) as failed:
            memory = isinstance(failed, MemoryError) or any(w in str(failed).lower() for w in OUT_OF_MEMORY_WORDS)
            status = Status.OUT_OF_MEMORY if memory else Status.CRASHED
            first_line = (str(failed).strip() or "no message").splitlines()[0]
            run = self._failed(workload, setting, status, f"{type(failed).__name__}: {first_line}")
            return run, not self._clean_up()

    def _bench(self, workload: Workload, setting: Setting) -> Run:
        import torch

        torch.set_num_threads(setting.threads or self._threads)
        domains = domains_of(self._device, self._found, workload.devices)
        together = setting.concurrency or 1
        with self._program(workload, together) as (program, facts):
            measured = bench(
                program,
                device=self._device,
                domains=domains,
                windows=self._windows,
                effort=self._effort,
                look=lambda: self._windows.look_at(domains[0]) if domains else None,
                count=self._counted if workload.devices == 1 else dict,
                storage_bytes=facts.parameter_bytes,
                by_call=not workload.compiled and workload.devices == 1 and together == 1,
                inputs=facts.inputs,
            )
            shape = facts.sample_shape
        self._clean_up()
        return self._measured(workload, setting, measured, shape)

    def _counted(self) -> dict[str, float]:
        """How busy the parts of the chip were since this was last asked; empty: not told."""
        with suppress(MeterMissed, MeterLost):  # a point without counters is better than none
            return {} if self._counters is None else self._counters.read()
        return {}

    @contextmanager
    def _program(self, workload: Workload, together: int = 1) -> Iterator[tuple[BenchProgram, Program]]:
        """What is stepped, and what is known of it: TOGETHER of them at once, or replicas that follow."""
        if workload.devices == 1:
            with ExitStack() as open_ones:
                programs = [
                    open_ones.enter_context(build(workload, self._device, self._seed + at)) for at in range(together)
                ]
                if together == 1:
                    yield programs[0], programs[0]
                else:
                    several = Concurrent(programs, self._device)
                    open_ones.callback(several.close)
                    yield several, programs[0]
            return
        if together > 1:
            raise BadTerm(f"replicas are not run {together} at once: give one of the two")
        places = replica_devices(self._device, workload.devices)
        while len(self._followers) < workload.devices - 1:
            self._followers.append(Worker([*_own_command(), "--follows"]))
        with tempfile.TemporaryDirectory(prefix="wattsmith-meeting-") as folder:
            meeting = Path(folder) / "meeting"
            for rank, (place, follower) in enumerate(zip(places[1:], self._followers, strict=False), start=1):
                part = {"workload": as_plain(workload), "rank": rank, "meeting": str(meeting), "device": place}
                follower.put(part)
            for follower in self._followers[: workload.devices - 1]:
                follower.answer(ANSWER_S)
            replicas = Replicas(rank=0, count=workload.devices, meeting=meeting, device=self._device)
            try:
                program = build(workload, self._device, self._seed, replicas.wrap)
                leading = Leading(program, replicas.say)
                try:
                    yield leading, program
                finally:
                    leading.close()
                for follower in self._followers[: workload.devices - 1]:
                    follower.answer(ANSWER_S)
            except BaseException:
                for follower in self._followers:  # they may wait for words that never come
                    follower.kill()
                self._followers.clear()
                raise
            finally:
                replicas.close()

    def _measured(self, workload: Workload, setting: Setting, measured: Measured, sample_shape: tuple[int, ...]) -> Run:
        return Run(
            workload=workload,
            device=self.host.device,
            setting=setting,
            status=Status.MEASURED,
            provenance=self._now(),
            times=measured.times,
            consumption=measured.consumption,
            condition=measured.condition,
            input_shape=sample_shape,
            calls=measured.calls,
        )

    def _failed(self, workload: Workload, setting: Setting, status: Status, reason: str) -> Run:
        return Run(
            workload=workload,
            device=self.host.device,
            setting=setting,
            status=status,
            reason=reason,
            provenance=self._now(),
        )

    def _now(self) -> Provenance:
        return replace(self.host.provenance, measured_at=datetime.now(UTC).isoformat())

    def _clean_up(self) -> bool:
        """Give memory back; whether the device still answers."""
        if not self._device.startswith("cuda"):
            return True
        import torch

        try:
            torch.cuda.synchronize(self._device)
            torch.cuda.empty_cache()
        except RuntimeError:
            return False  # an error on the device stays for the life of the process
        return True


def follow_along(part: Any, seed: int) -> dict[str, int]:
    """Be one replica of a data-parallel point, from beginning to end."""
    workload = parse_fact(Workload, part["workload"], "workload")
    replicas = Replicas(rank=part["rank"], count=workload.devices, meeting=Path(part["meeting"]), device=part["device"])
    try:
        with build(workload, part["device"], seed + part["rank"], replicas.wrap) as program:
            return {"steps": follow(program, replicas.hear)}
    finally:
        replicas.close()


def _own_command() -> list[str]:
    return [sys.executable, "-m", "wattsmith.flows.record_worker", *sys.argv[1:]]


def replica_devices(device: str, count: int) -> list[str]:
    """Where COUNT replicas run: GPUs from DEVICE on, or all on the CPU."""
    if device == "cpu":
        return ["cpu"] * count
    import torch

    first = _gpu_number(device)
    if first + count > torch.cuda.device_count():
        raise BadTerm(f"{count} replicas from {device} on need more GPUs than the {torch.cuda.device_count()} here")
    return [f"cuda:{first + i}" for i in range(count)]


def domains_of(device: str, domains: list[str], count: int = 1) -> tuple[str, ...]:
    """Those of DOMAINS whose energy is that of COUNT devices from DEVICE on. GPUs stand in PyTorch's order."""
    if device == "cpu":
        return tuple(d for d in domains if d.startswith(("cpu-package:", "dram:")))
    gpus = [d for d in domains if d.startswith("gpu:")]
    number = _gpu_number(device)
    return tuple(gpus[number : number + count])


def describe_device(device: str) -> Device:
    """What DEVICE is. Raises BadTerm when it is not there."""
    if device == "cpu":
        host = this_host()
        return Device(name=host.cpu, kind="cpu", memory_bytes=host.memory_bytes)
    import torch

    number = _gpu_number(device)
    if not torch.cuda.is_available():
        raise BadTerm(f"{device} was asked for, but PyTorch {torch.__version__} sees no GPU here; use --device cpu")
    if number >= torch.cuda.device_count():
        raise BadTerm(f"{device} was asked for, but PyTorch sees {torch.cuda.device_count()} GPU(s)")
    facts = torch.cuda.get_device_properties(number)
    return Device(name=facts.name, kind="cuda", memory_bytes=facts.total_memory)


def _gpu_number(device: str) -> int:
    kind, _, index = device.partition(":")
    if kind != "cuda" or (index and not index.isdigit()):
        raise BadTerm(f"device must be 'cpu' or 'cuda:N', got {device!r}")
    return int(index or 0)


def _provenance(session: str, driver: str | None, device_id: str | None) -> Provenance:
    import torch

    versions = {"torch": torch.__version__, "wattsmith": __version__, "python": sys.version.split()[0]}
    if torch.version.cuda:
        versions["cuda"] = torch.version.cuda
        versions["cudnn"] = str(torch.backends.cudnn.version())
    return Provenance(
        measured_at=datetime.now(UTC).isoformat(),
        session=session,
        hostname=this_host().hostname,
        device_id=device_id,
        driver=driver,
        versions=versions,
    )


if __name__ == "__main__":
    main()
