"""Run the demo: one stage after the other, whatever becomes of each, and write the page."""

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType

from wattsmith import __version__
from wattsmith.flows.demo import (
    estimate_stage,
    feeding_stage,
    machine_stage,
    measured_stage,
    record_stage,
    tuning_stage,
)
from wattsmith.flows.demo.facts import BROKE, DONE, LEFT_OUT, QUICK, Demo, Found, Scale, Stage, Tell, Told
from wattsmith.flows.demo.page import page_of
from wattsmith.terms.errors import NotWritten, WattsmithError

__all__ = ["Demo", "Stage", "run_demo"]

STAGES: dict[str, ModuleType] = {
    "machine": machine_stage,
    "record": record_stage,
    "estimate": estimate_stage,
    "measured": measured_stage,
    "tuning": tuning_stage,
    "feeding": feeding_stage,
}
PAGE = "index.html"
# Pools of threads of numpy's and PyTorch's libraries wait by spinning, which on a machine that also does other things
# makes everything many times slower. One thread each is quick enough here, and repeats better.
THREADS = 1
POOLS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


def run_demo(
    folder: Path,
    *,
    quick: bool = False,
    begins: Callable[[int, int, str], object] = lambda _number, _count, _title: None,
    tell: Tell = lambda _: None,
    ends: Callable[[Stage], object] = lambda _: None,
) -> Demo:
    """All stages, with what they leave in FOLDER. What cannot run says why, and the others go on.

    BEGINS is told of each stage before it runs, TELL how far it is, ENDS what it came to.
    """
    _calm()
    folder = _made(folder)
    began_at, began_s = datetime.now(UTC).isoformat(), time.perf_counter()
    found = Found(folder=folder, scale=QUICK if quick else Scale(), threads=THREADS)
    stages = []
    for number, (name, module) in enumerate(STAGES.items(), 1):
        begins(number, len(STAGES), module.TITLE)
        stages.append(_stage(name, module, found, tell))
        ends(stages[-1])
    page = folder / PAGE
    demo = Demo(
        version=__version__,
        began_at=began_at,
        took_s=time.perf_counter() - began_s,
        quick=quick,
        stages=tuple(stages),
        page=page,
    )
    try:
        page.write_text(page_of(demo), encoding="utf-8")
    except OSError as refused:
        raise NotWritten(f"the page {page} cannot be written: {refused.strerror}") from refused
    return demo


def _calm() -> None:
    for name in POOLS:
        os.environ.setdefault(name, str(THREADS))


def _made(folder: Path) -> Path:
    """FOLDER, there, and without a record of an earlier demo, which would be continued instead of taken."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / record_stage.RECORD).unlink(missing_ok=True)
    except OSError as refused:
        raise NotWritten(
            f"the folder {folder} cannot be used: {refused.strerror}; choose another with --out"
        ) from refused
    return folder.absolute()


def _stage(name: str, module: ModuleType, found: Found, tell: Tell) -> Stage:
    """What came of one stage, also when it could not run."""
    began_s = time.perf_counter()
    why, told = None, Told(means="It could not run here.")
    try:
        told, status = module.run(found, tell), DONE
    except WattsmithError as cannot:
        status, why = LEFT_OUT, str(cannot)
    except Exception as broke:  # noqa: BLE001 - the demo goes on, tells it, and ends with an exit code
        said = (str(broke).strip() or "no message").splitlines()[0]
        status, why = BROKE, f"{type(broke).__name__}: {said}"
    return Stage(
        name=name,
        title=module.TITLE,
        status=status,
        means=told.means,
        took_s=time.perf_counter() - began_s,
        why=why,
        figures=told.figures,
        pictures=told.pictures,
        notes=told.notes,
        tile=told.tile,
        yourself=module.YOURSELF,
    )
