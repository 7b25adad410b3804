"""Wattsmith: time, memory, power and energy of machine-learning jobs."""

__version__ = "0.1.0"
