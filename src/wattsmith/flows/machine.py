"""What this machine is, what it can be measured with, and what is missing and why."""

from dataclasses import replace

from wattsmith.measure.discover import find_meters
from wattsmith.measure.host import this_host
from wattsmith.terms.clock import RealClock
from wattsmith.terms.machine import Machine


def describe_machine(meters: str = "auto") -> Machine:
    """This machine with the meters that METERS names ("auto", "gpu,cpu", …). Nothing stays open."""
    found = find_meters(meters, RealClock())
    try:
        return replace(
            this_host(),
            gpus=tuple(found.gpus),
            driver=found.driver,
            meters=tuple(meter.card for meter in found.meters),
            missing=dict(found.missing),
        )
    finally:
        for meter in found.meters:
            meter.close()
