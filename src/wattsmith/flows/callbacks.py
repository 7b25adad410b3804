"""Energy of training runs of Hugging Face's Trainer and of Lightning, in their own logs.

    trainer = Trainer(..., callbacks=[trainer_callback()])
    trainer = lightning.Trainer(..., callbacks=[lightning_callback()])

Names carry units (`train_energy_j`, `step_power_w`) and say what a figure is not: `simulated_`, `modelled_`,
`incomplete_`. What is unknown is not logged. The packages are needed only when these functions are called.
"""

import logging
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from wattsmith.flows.measuring import session_for, wait_for_torch
from wattsmith.measure.session import OpenWindow
from wattsmith.terms.energy import Phase, Source, Window
from wattsmith.terms.errors import ExtraNeeded

WORTH_WAITING_S = 2.0  # for the last readings of a stretch of steps this long, a training run can wait 20 ms

_log = logging.getLogger("wattsmith")


class TrainingMeter:
    """Windows over a training run, its epochs and evaluations, and stretches of steps.

    The run and its epochs are split into phases: `data` until a step begins, `compute` until it has ended,
    `evaluate`, `save`. With SYNC, the device's work is waited for at every edge, without which a GPU's `compute`
    runs on into the phases behind it.
    """

    def __init__(self, meters: str, *, sync: bool) -> None:
        self.run: Window | None = None  # once it is over
        self.epochs: list[Window] = []
        self._meters = meters
        self._sync = wait_for_torch if sync else None
        self._run: OpenWindow | None = None
        self._epoch: OpenWindow | None = None
        self._evaluation: OpenWindow | None = None
        self._steps: OpenWindow | None = None
        self._step_count = 0
        self._finished_steps: deque[tuple[OpenWindow, int]] = deque()
        self._finished_epochs: deque[OpenWindow] = deque()
        self._phase = ExitStack()
        self._phase_name: str | None = None
        self._warned = False

    # ---- what happens

    def begin_run(self) -> None:
        self.abandon()
        self.run, self.epochs = None, []
        self._run = self._begin("train")

    def begin_epoch(self) -> None:
        self._epoch = self._begin("epoch")
        self.begin_data()

    def begin_data(self) -> None:
        """The next step's data are being made; outside an epoch there is no next step."""
        self._turn("data" if self._epoch else None)
        if self._epoch is not None and self._steps is None:
            self._steps, self._step_count = self._begin("steps"), 0

    def begin_compute(self) -> None:
        self._turn("compute")

    def end_step(self) -> None:
        self._step_count += 1

    def begin_other(self, phase: str) -> None:
        """Something that belongs to no step begins: "evaluate", "save"."""
        self._end_steps()
        self._turn(phase)
        if phase == "evaluate":
            self._evaluation = self._begin(phase)

    def end_epoch(self) -> None:
        self._end_steps()
        self._turn(None)
        if self._epoch is not None:
            self._finished_epochs.append(self._epoch.end())
            self._epoch = None

    def abandon(self) -> None:
        """End what a run that failed left open, without a figure."""
        self._turn(None)
        for window in (self._run, self._epoch, self._evaluation, self._steps):
            if window is not None:
                window.end()
        self._run = self._epoch = self._evaluation = self._steps = None
        self._finished_steps.clear()
        self._finished_epochs.clear()

    # ---- what it cost

    def step_figures(self) -> dict[str, float]:
        """Mean joules and watts of the steps since the last time, as far as their readings are in."""
        self._end_steps()
        if self._phase_name == "data":
            self.begin_data()
        ready = []
        while self._finished_steps and _is_ready(self._finished_steps[0][0]):
            ready.append(self._finished_steps.popleft())
        windows = [window.result() for window, _ in ready]
        steps, energy_j = sum(count for _, count in ready), _sum_j(windows)
        if energy_j is None or not steps:
            return {}
        mark = _mark(windows)
        return {
            f"{mark}step_energy_j": energy_j / steps,
            f"{mark}step_power_w": energy_j / sum(window.duration_s for window in windows),
            "measured_steps": steps,
        }

    def epoch_figures(self) -> dict[str, float]:
        """The epochs that have ended since the last time; of several, the latest."""
        figures: dict[str, float] = {}
        while self._finished_epochs:
            self.epochs.append(self._finished_epochs.popleft().result())
            figures = _figures("epoch", self.epochs[-1])
            if figures:
                figures["measured_epochs"] = len(self.epochs)
        return figures

    def evaluation_figures(self) -> dict[str, float]:
        """The evaluation that has just ended."""
        if self._evaluation is None:
            return {}
        window = self._evaluation.end().result()
        self._evaluation = None
        return _figures("evaluate", window)

    def run_figures(self) -> dict[str, float]:
        """The whole run, which ends here, and its phases."""
        self.end_epoch()
        if self._run is None:
            return {}
        self.run = self._run.end().result()
        self._run = None
        self.epoch_figures()
        self.abandon()
        self._warn_if_unknown(self.run)
        return _figures("train", self.run) | dict(_phase_figures(self.run))

    # ---- inside

    def _begin(self, name: str) -> OpenWindow:
        return session_for(self._meters).begin(name, sync=self._sync)

    def _turn(self, phase: str | None) -> None:
        if phase == self._phase_name and phase is not None:
            return
        self._phase.close()
        self._phase_name = phase
        for window in (self._run, self._epoch):
            if phase is not None and window is not None:
                self._phase.enter_context(window.phase(phase))

    def _end_steps(self) -> None:
        """End the stretch of steps; data made for a step that did not come are nobody's."""
        if self._steps is None:
            return
        self._steps.end()
        if self._step_count:
            self._finished_steps.append((self._steps, self._step_count))
        self._steps, self._step_count = None, 0

    def _warn_if_unknown(self, window: Window) -> None:
        if window.energy_j is None and not self._warned:
            self._warned = True
            reasons = [d.why for d in window.domains if d.why] or ["no meter was found"]
            _log.warning(
                "the energy of this training run is unknown: %s. `wattsmith machine` says what to do.", reasons[0]
            )


def _is_ready(steps: OpenWindow) -> bool:
    return steps.settled or steps.duration_s >= WORTH_WAITING_S


def _sum_j(windows: list[Window]) -> float | None:
    known_j = [window.energy_j for window in windows if window.energy_j is not None]
    return sum(known_j) if known_j and len(known_j) == len(windows) else None


def _mark(windows: list[Window]) -> str:
    """What the figures are not, for the front of their names."""
    counted = [domain for window in windows for domain in window.counted]
    marks = {
        "simulated_": any(domain.simulated for domain in counted),
        "modelled_": any(domain.source == Source.MODELLED for domain in counted),
        "incomplete_": not all(domain.complete for domain in counted),
    }
    return "".join(mark for mark, holds in marks.items() if holds)


def _figures(name: str, window: Window) -> dict[str, float]:
    """Energy, its error bound and mean power; nothing when they are unknown."""
    if window.energy_j is None or window.error_j is None or window.power_w is None:
        return {}
    mark = _mark([window])
    return {
        f"{mark}{name}_energy_j": window.energy_j,
        f"{mark}{name}_energy_error_j": window.error_j,
        f"{mark}{name}_power_w": window.power_w,
    }


def _phase_figures(window: Window) -> Iterator[tuple[str, float]]:
    if window.energy_j is None:
        return
    counted = [domain.domain for domain in window.counted]
    for phase in window.phases:
        yield f"{_mark([window])}train_{phase.name}_energy_j", _phase_energy_j(phase, counted)


def _phase_energy_j(phase: Phase, domains: list[str]) -> float:
    return sum(phase.energy_j[domain] for domain in domains)


# ---- Hugging Face


def trainer_callback(*, meters: str = "auto", sync: bool = False, trainer: Any = None) -> Any:
    """A callback for `transformers.Trainer`; its `meter` holds the windows of the run afterwards.

    Pass it as `Trainer(..., callbacks=[trainer_callback()])`. Reporters such as TensorBoard are called before it and
    do not see what it adds; given an existing TRAINER it puts itself in front of them.
    """
    try:
        from transformers import TrainerCallback
    except ImportError as missing:
        raise ExtraNeeded(
            "this callback needs Hugging Face's Trainer: `pip install transformers accelerate`"
        ) from missing

    class WattsmithTrainerCallback(TrainerCallback):  # type: ignore[misc]  # untyped
        """Energy by run, epoch, evaluation and step in the Trainer's logs."""

        def __init__(self) -> None:
            self.meter = TrainingMeter(meters, sync=sync)

        def on_train_begin(self, *_: Any, **__: Any) -> None:
            self.meter.begin_run()

        def on_epoch_begin(self, *_: Any, **__: Any) -> None:
            self.meter.begin_epoch()

        def on_step_begin(self, *_: Any, **__: Any) -> None:
            self.meter.begin_compute()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.meter.end_step()
            self._what_comes_next(control)

        def on_epoch_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.meter.end_epoch()
            self._what_comes_next(control)

        def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
            self.meter.evaluation_figures()  # for a Trainer that did not log it
            if control.should_save:
                self.meter.begin_other("save")
            else:
                self.meter.begin_data()

        def on_save(self, *_: Any, **__: Any) -> None:
            self.meter.begin_data()

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:  # noqa: ARG002
            if logs is None:
                return
            if "train_runtime" in logs:  # the Trainer's last word on a run
                figures = self.meter.run_figures()
            elif any(name.startswith("eval_") for name in logs):
                figures = self.meter.evaluation_figures()
            else:
                figures = self.meter.step_figures() | self.meter.epoch_figures()
            logs.update(figures)
            if state.log_history:
                state.log_history[-1].update(figures)  # which has a copy of LOGS

        def _what_comes_next(self, control: Any) -> None:
            """The Trainer has decided what it will do before the next step."""
            if control.should_evaluate:
                self.meter.begin_other("evaluate")
            elif control.should_save:
                self.meter.begin_other("save")
            else:
                self.meter.begin_data()

    callback = WattsmithTrainerCallback()
    if trainer is not None:
        trainer.callback_handler.callbacks.insert(1, callback)  # behind the one that decides what comes next
    return callback


# ---- Lightning


def lightning_callback(*, meters: str = "auto", sync: bool = False) -> Any:
    """A callback for `lightning.Trainer`; its `meter` holds the windows of the run afterwards."""
    base = _lightning_base()

    class WattsmithLightningCallback(base):  # type: ignore[misc, valid-type]  # untyped
        """Energy by run, epoch, evaluation and step through Lightning's own logging."""

        def __init__(self) -> None:
            super().__init__()
            self.meter = TrainingMeter(meters, sync=sync)

        def on_train_start(self, *_: Any) -> None:
            self.meter.begin_run()

        def on_train_epoch_start(self, *_: Any) -> None:
            self.meter.begin_epoch()

        def on_train_batch_start(self, *_: Any) -> None:
            self.meter.begin_compute()

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            self.meter.end_step()
            self.meter.begin_data()
            if trainer.global_step % trainer.log_every_n_steps == 0:
                pl_module.log_dict(self.meter.step_figures())

        def on_validation_start(self, trainer: Any, *_: Any) -> None:
            if not trainer.sanity_checking:
                self.meter.begin_other("evaluate")

        def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                pl_module.log_dict(self.meter.evaluation_figures())

        def on_validation_end(self, trainer: Any, *_: Any) -> None:
            if not trainer.sanity_checking:
                self.meter.begin_data()

        def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            self.meter.end_epoch()
            pl_module.log_dict(self.meter.epoch_figures())

        def on_exception(self, *_: Any) -> None:
            self.meter.abandon()

        def on_train_end(self, trainer: Any, *_: Any) -> None:
            figures = self.meter.run_figures()
            for logger in trainer.loggers if figures else ():
                logger.log_metrics(figures, step=trainer.global_step)  # log_dict is closed by now

    return WattsmithLightningCallback()


def _lightning_base() -> Any:
    """The Callback of the Lightning that is in use: it comes as two packages."""
    if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
        from pytorch_lightning import Callback

        return Callback
    try:
        from lightning.pytorch import Callback
    except ImportError as missing:
        raise ExtraNeeded("this callback needs Lightning: `pip install lightning`") from missing
    return Callback
