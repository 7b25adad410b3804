"""Takes a record: one point after the other, whatever happens to any of them."""

import fcntl
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wattsmith.record.worker import Worker, WorkerDied, WorkerHung
from wattsmith.terms.errors import BadInput, WattsmithError
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import Device, Provenance, Run, Status, Structure
from wattsmith.terms.work import Setting, Workload

START_S = 180.0  # importing PyTorch and starting CUDA on a slow disk
COMPILE_S = 300.0
STARTS = 3  # a worker that does not come up so often in a row ends the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """What is to be measured."""

    workload: Workload
    structure: Structure | None = None
    setting: Setting = field(default_factory=Setting)


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """Where a worker runs, as it says itself when it has come up."""

    device: Device
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a record has come."""

    done: int
    total: int
    measured: int
    failed: int
    elapsed_s: float
    inside_s: float  # of that, spent inside measurement windows
    remaining_s: float | None  # None before the first point
    latest: Run | None = None


class Runner:
    """Measures points with a warm worker, which it replaces when it dies."""

    def __init__(self, start: Callable[[], Worker], *, point_s: float, hang_s: float = 60.0) -> None:
        """START starts a worker. A point takes at most POINT_S, and is taken for hung HANG_S after that."""
        self._start = start
        self._answer_s = point_s + hang_s
        self._worker: Worker | None = None
        self._host: Host | None = None

    @property
    def host(self) -> Host:
        """Where the points are measured; starts a worker if there is none."""
        if self._host is None or self._worker is None:
            self._worker, self._host = self._bring_up()
        return self._host

    def _bring_up(self) -> tuple[Worker, Host]:
        problems: list[str] = []
        for _ in range(STARTS):
            worker = self._start()
            try:
                hello = worker.answer(START_S)
                if "refused" in hello:
                    worker.kill()
                    raise BadInput(str(hello["refused"]))
                return worker, parse_fact(Host, hello, "worker")
            except (WorkerDied, WorkerHung) as failed:
                problems.append(str(failed))
        raise WattsmithError(f"no worker could be started, {STARTS} times in a row: {problems[-1]}")

    def measure(self, point: Point) -> Run:
        """The run that POINT gave, also when it failed."""
        host = self.host
        assert self._worker is not None
        patience_s = self._answer_s + (COMPILE_S if point.workload.compiled else 0.0)
        question = {"workload": as_plain(point.workload), "setting": as_plain(point.setting)}
        try:
            answer = self._worker.ask(question, patience_s)
        except WorkerHung as hung:
            self._worker = None
            return _failed(point, host, Status.HUNG, str(hung))
        except WorkerDied as died:
            self._worker = None
            status = Status.KILLED if died.exit_code < 0 else Status.CRASHED
            return _failed(point, host, status, str(died))
        if answer.get("worn_out"):
            self.close()  # its device context is broken; the next point gets a new worker
        try:
            run = parse_fact(Run, answer["run"], "worker")
        except BadInput as nonsense:  # a figure that is none, such as a mean of nothing
            return _failed(point, host, Status.CRASHED, f"the worker's answer makes no sense: {nonsense}")
        return replace(run, structure=point.structure)

    def close(self) -> None:
        if self._worker is not None:
            self._worker.kill()
            self._worker = None


def _failed(point: Point, host: Host, status: Status, reason: str) -> Run:
    return Run(
        workload=point.workload,
        device=host.device,
        setting=point.setting,
        status=status,
        reason=reason,
        structure=point.structure,
        provenance=replace(host.provenance, measured_at=datetime.now(UTC).isoformat()),
    )


def take_record(
    points: Sequence[Point],
    runner: Runner,
    *,
    lock: str,
    known: Callable[[Point], bool],
    keep: Callable[[Run], object],
    tell: Callable[[Progress], object] = lambda _: None,
    budget_s: float | None = None,
) -> Progress:
    """Measure POINTS one by one and KEEP each run as soon as it is there. What is KNOWN already is passed over.

    LOCK names the device: no two records are taken on it at the same moment. Ends after BUDGET_S. Whatever ends it
    earlier loses the point being measured and no other.
    """
    begin_s = time.monotonic()
    progress = Progress(done=0, total=len(points), measured=0, failed=0, elapsed_s=0.0, inside_s=0.0, remaining_s=None)
    tell(progress)
    skipped = 0
    for number, point in enumerate(points, start=1):
        if budget_s is not None and time.monotonic() - begin_s >= budget_s:
            break
        with one_at_a_time(lock):
            # Asked anew before every point: somebody else may be filling the same record.
            if known(point):
                skipped += 1
                run = None
            else:
                run = runner.measure(point)
                keep(run)
        progress = _next(progress, run, number, skipped, time.monotonic() - begin_s, budget_s)
        tell(progress)
    return progress


def _next(
    before: Progress, run: Run | None, number: int, skipped: int, elapsed_s: float, budget_s: float | None
) -> Progress:
    measured = before.measured + (run is not None and run.status is Status.MEASURED)
    failed = before.failed + (run is not None and run.status is not Status.MEASURED)
    consumption = run.consumption if run is not None else None
    tried = number - skipped
    remaining_s = elapsed_s / tried * (before.total - number) if tried else None
    if remaining_s is not None and budget_s is not None:
        remaining_s = max(0.0, min(remaining_s, budget_s - elapsed_s))
    return Progress(
        done=number,
        total=before.total,
        measured=measured,
        failed=failed,
        elapsed_s=elapsed_s,
        inside_s=before.inside_s + (consumption.window_s if consumption else 0.0),
        remaining_s=remaining_s,
        latest=run,
    )


@contextmanager
def one_at_a_time(device: str) -> Iterator[None]:
    """One measurement at a time on a DEVICE of this machine: two would spoil each other."""
    name = "".join(c if c.isalnum() else "-" for c in device)
    path = Path(tempfile.gettempdir()) / f"wattsmith-{os.getuid()}-record-{name}.lock"
    with path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def read_question(question: Any) -> tuple[Workload, Setting]:
    """What a worker is asked, read back."""
    return (
        parse_fact(Workload, question["workload"], "workload"),
        parse_fact(Setting, question["setting"], "setting"),
    )
