"""Wattsmith: time, memory, power and energy of machine-learning jobs.

with wattsmith.measure("epoch", sync=True) as window:
    train()
print(window.result().energy_j)
"""

import importlib
import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wattsmith.flows.callbacks import lightning_callback as lightning_callback
    from wattsmith.flows.callbacks import trainer_callback as trainer_callback
    from wattsmith.flows.checking import check as check
    from wattsmith.flows.choosing import Choice as Choice
    from wattsmith.flows.choosing import choose
    from wattsmith.flows.estimating import estimate
    from wattsmith.flows.feeding import Feeder
    from wattsmith.flows.layer_files import tell_layers as tell_layers
    from wattsmith.flows.machine import describe_machine as machine
    from wattsmith.flows.matching import match
    from wattsmith.flows.measuring import begin, end, measure, open_session, replay
    from wattsmith.flows.planning import plan as plan
    from wattsmith.flows.recording import record
    from wattsmith.flows.records import runs_of as runs_of
    from wattsmith.flows.serving import Load as Load
    from wattsmith.flows.serving import tune_serving as tune_serving
    from wattsmith.flows.splitting import boundary as boundary
    from wattsmith.flows.splitting import opaque as opaque
    from wattsmith.flows.splitting import split
    from wattsmith.flows.splitting import split_jax as split_jax
    from wattsmith.flows.tuning import Goal as Goal
    from wattsmith.flows.tuning import tune
    from wattsmith.terms.energy import Window
    from wattsmith.terms.errors import WattsmithError

__version__ = "0.1.0"
__all__ = [
    "Feeder",
    "WattsmithError",
    "Window",
    "begin",
    "choose",
    "end",
    "estimate",
    "machine",
    "match",
    "measure",
    "open_session",
    "record",
    "replay",
    "split",
    "tune",
]

# Loaded when first used, so that the import itself costs next to nothing.
_HOMES = {
    "Choice": ("wattsmith.flows.choosing", "Choice"),
    "Feeder": ("wattsmith.flows.feeding", "Feeder"),
    "Window": ("wattsmith.terms.energy", "Window"),
    "WattsmithError": ("wattsmith.terms.errors", "WattsmithError"),
    "begin": ("wattsmith.flows.measuring", "begin"),
    "choose": ("wattsmith.flows.choosing", "choose"),
    "end": ("wattsmith.flows.measuring", "end"),
    "estimate": ("wattsmith.flows.estimating", "estimate"),
    "machine": ("wattsmith.flows.machine", "describe_machine"),
    "match": ("wattsmith.flows.matching", "match"),
    "measure": ("wattsmith.flows.measuring", "measure"),
    "open_session": ("wattsmith.flows.measuring", "open_session"),
    "record": ("wattsmith.flows.recording", "record"),
    "replay": ("wattsmith.flows.measuring", "replay"),
    "split": ("wattsmith.flows.splitting", "split"),
    "tune": ("wattsmith.flows.tuning", "tune"),
    # Takes facts that live in terms.schedule, so that whoever calls it imports from there anyway.
    "plan": ("wattsmith.flows.planning", "plan"),
    # Marks that are written inside of a step; they belong to split, so that the list above stays short.
    "boundary": ("wattsmith.flows.splitting", "boundary"),
    "opaque": ("wattsmith.flows.splitting", "opaque"),
    "split_jax": ("wattsmith.flows.splitting", "split_jax"),
    # One line in a program that `wattsmith match` watches.
    "tell_layers": ("wattsmith.flows.layer_files", "tell_layers"),
    # Of use to whoever reads results of others; the list above is full.
    "check": ("wattsmith.flows.checking", "check"),
    # What goes with `tune`: its goal, and the search around a model that is served in this process.
    "Goal": ("wattsmith.flows.tuning", "Goal"),
    "Load": ("wattsmith.flows.serving", "Load"),
    "tune_serving": ("wattsmith.flows.serving", "tune_serving"),
    # What goes with `record`, `measure` and a framework's trainer.
    "lightning_callback": ("wattsmith.flows.callbacks", "lightning_callback"),
    "runs_of": ("wattsmith.flows.records", "runs_of"),
    "trainer_callback": ("wattsmith.flows.callbacks", "trainer_callback"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'wattsmith' has no attribute {name!r}")
    module, attribute = _HOMES[name]
    value = getattr(importlib.import_module(module), attribute)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


class _FrontHall(ModuleType):
    """Keeps a verb where a room has the same name: `wattsmith.measure` is the function, not the folder."""

    def __setattr__(self, name: str, value: Any) -> None:
        # Importing wattsmith.measure.session would otherwise put the folder in the function's place.
        if not (name in _HOMES and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _FrontHall
