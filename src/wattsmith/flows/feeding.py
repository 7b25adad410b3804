"""Feeding a trainer: the door to `Feeder`, which needs torch."""

from wattsmith.terms.errors import ExtraNeeded

try:
    from wattsmith.feed.feeder import Feeder
except ModuleNotFoundError as missing:
    if missing.name not in {"torch", "numpy"}:
        raise
    raise ExtraNeeded(f"Feeder needs {missing.name}; install it with `pip install wattsmith[torch]`") from missing

__all__ = ["Feeder"]
