"""Devices that tests estimate for: the H200 of the shipped record, learned once for all of them, and small records."""

from dataclasses import replace
from functools import cache

from wattsmith.estimate.device import usable
from wattsmith.flows.devices import KnownDevice, known_device
from wattsmith.flows.records import runs_of
from wattsmith.store.opening import open_store


@cache
def h200() -> KnownDevice:
    return known_device("h200", "h200")


@cache
def few_runs():
    """Ten networks and six operators of the shipped record, those of fewest calls: learned from in a moment."""
    watched = sorted((run for run in runs_of("h200") if usable(run)), key=lambda run: len(run.calls))
    networks = [run for run in watched if run.workload.kind == "network"]
    operators = [run for run in watched if run.workload.kind == "operator"]
    return (*networks[:10], *operators[:6])


def without_calls(runs):
    """The same as another tool would have recorded them: whole steps alone."""
    return [replace(run, calls=()) for run in runs]


def on_device(runs, **changes):
    """The same on another device."""
    return [replace(run, device=replace(run.device, **changes)) for run in runs]


def written(path, runs) -> str:
    """A record at PATH that holds RUNS."""
    with open_store(path) as store:
        for run in runs:
            store.add(run)
    return str(path)
