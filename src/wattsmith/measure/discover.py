"""What this machine can be measured with, and what is missing and why."""

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from wattsmith.measure.amd import find_amd, find_amd_gauges
from wattsmith.measure.ipmi import find_ipmi
from wattsmith.measure.jetson import find_jetson
from wattsmith.measure.lpm01a import find_lpm01a
from wattsmith.measure.modelled import find_modelled
from wattsmith.measure.nvml import find_nvml
from wattsmith.measure.ptd import find_ptd
from wattsmith.measure.rapl import find_rapl
from wattsmith.measure.redfish import find_redfish
from wattsmith.measure.replay import find_replay
from wattsmith.terms.energy import MeterCard, Readings, Source
from wattsmith.terms.errors import BadInput, MeterUnavailable
from wattsmith.terms.machine import Gpu
from wattsmith.terms.ports import Clock, Gauge, Meter

AUTO = "auto"  # everything that needs no address, password or model
SYSFS_VARIABLE = "WATTSMITH_SYSFS"  # another tree than /sys, such as a simulated one


@dataclass(slots=True)
class Found:
    """Meters and gauges that were found, and the kinds that were not."""

    meters: list[Meter] = field(default_factory=list)
    gauges: list[Gauge] = field(default_factory=list)
    gpus: list[Gpu] = field(default_factory=list)
    driver: str | None = None
    missing: dict[str, str] = field(default_factory=dict)


def find_meters(wanted: str, clock: Clock, *, poll_hz: float | None = None, use_counter: bool = True) -> Found:
    """The meters that WANTED names, such as "auto", "gpu,cpu", "gpu,redfish:https://bmc", "modelled:10W-65W".

    With "auto" a kind that is not there goes into `missing`; a kind asked for by name must be there.
    POLL_HZ sets how often the meters are sampled; one whose driver takes samples at least as often by itself is left as
    it is. Without USE_COUNTER, GPU energy is integrated from power alone.
    """
    found = Found()
    if not isinstance(wanted, str):
        raise BadInput(f'meters are one text, such as "auto" or "gpu,cpu", got {wanted!r}')
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if not names:
        raise BadInput(f"no meter is named in {wanted!r}; write for instance `auto` or `gpu,cpu`")
    for name in names:
        if name == AUTO:
            _find_all(found, clock, use_counter)
        else:
            _find_named(name, found, clock, use_counter)
    _refuse_twice(found.meters)
    if poll_hz is not None:
        found.meters = [_sampled(meter, 1 / poll_hz) for meter in found.meters]
    return found


def _refuse_twice(meters: Sequence[Meter]) -> None:
    """The same joules must not be counted twice."""
    domains = [meter.card.domain for meter in meters]
    twice = sorted({domain for domain in domains if domains.count(domain) > 1})
    if twice:
        raise BadInput(f"{', '.join(twice)} would be measured twice; name each meter once")
    packages = [meter.card for meter in meters if meter.card.kind == "cpu-package"]
    if len({card.source is Source.MODELLED for card in packages}) == 2:
        raise BadInput("this machine measures its CPU; a modelled one beside it would count it twice: leave one out")


def _find_all(found: Found, clock: Clock, use_counter: bool) -> None:
    for kind, find in _LOCAL.items():
        try:
            find(found, clock, use_counter)
        except MeterUnavailable as absent:
            found.missing[kind] = str(absent)
    found.missing["node"] = (
        "not asked for: with a management controller, add `ipmi` or `redfish:https://user@address` to the meters"
    )


def _find_named(name: str, found: Found, clock: Clock, use_counter: bool) -> None:
    kind, _, argument = name.partition(":")
    if kind == "gpu" and not argument:
        _find_any_gpu(found, clock, use_counter)
    elif kind in _LOCAL and not argument:
        _LOCAL[kind](found, clock, use_counter)
    elif name == "ipmi":
        found.meters += find_ipmi(clock)
    elif kind in _WITH_ARGUMENT and argument:
        found.meters += _WITH_ARGUMENT[kind](argument, clock)
    else:
        known = [AUTO, "gpu", *_LOCAL, "ipmi", *(f"{kind}:{what}" for kind, what in _ARGUMENTS.items())]
        raise BadInput(f"there is no meter {name!r}; write one of: {', '.join(known)}")


def _find_any_gpu(found: Found, clock: Clock, use_counter: bool) -> None:
    reasons = []
    for find in (_find_nvidia, _find_amd):
        try:
            find(found, clock, use_counter)
        except MeterUnavailable as absent:
            reasons.append(str(absent))
    if not any(meter.card.kind == "gpu" for meter in found.meters):
        raise MeterUnavailable(" ".join(reasons))


def _find_nvidia(found: Found, clock: Clock, use_counter: bool) -> None:
    nvml = find_nvml(clock, use_counter=use_counter)
    found.meters += nvml.meters
    found.gauges += nvml.gauges
    found.gpus += nvml.gpus
    found.driver = nvml.driver


def _find_amd(found: Found, clock: Clock, use_counter: bool) -> None:  # noqa: ARG001 - one shape for all finders
    first = 1 + max((int(gpu.domain.split("/")[0].partition(":")[2]) for gpu in found.gpus), default=-1)
    found.meters += find_amd(clock, first=first)
    found.gauges += find_amd_gauges(clock, first=first)


def _find_cpu(found: Found, clock: Clock, use_counter: bool) -> None:  # noqa: ARG001
    found.meters += find_rapl(clock, _sysfs())


def _find_soc(found: Found, clock: Clock, use_counter: bool) -> None:  # noqa: ARG001
    found.meters += find_jetson(clock, _sysfs())


def _sysfs() -> Path:
    return Path(os.environ.get(SYSFS_VARIABLE, "/sys"))


_LOCAL: dict[str, Callable[[Found, Clock, bool], None]] = {
    "nvidia": _find_nvidia,
    "amd": _find_amd,
    "cpu": _find_cpu,
    "soc": _find_soc,
}
_ARGUMENTS = {
    "redfish": "URL",
    "redfish-insecure": "URL",
    "ptd": "HOST:PORT",
    "tiny": "PORT",
    "modelled": "10W-65W",
    "replay": "FILE",
}
_WITH_ARGUMENT: dict[str, Callable[[str, Clock], Sequence[Meter]]] = {
    "redfish": lambda url, clock: find_redfish(clock, url),
    "redfish-insecure": lambda url, clock: find_redfish(clock, url, insecure=True),
    "ptd": lambda address, clock: find_ptd(clock, address),
    "tiny": lambda place, clock: find_lpm01a(clock, place),
    "modelled": lambda model, clock: find_modelled(clock, model),
    "replay": lambda path, clock: find_replay(Path(path), clock),
}


def _sampled(meter: Meter, period_s: float) -> Meter:
    """METER, sampled every PERIOD_S or more often."""
    card = meter.card
    # Fetching more often what the driver has kept costs time and brings no more samples.
    samples_itself = card.history_s is not None and card.sample_period_s <= period_s
    return meter if samples_itself else AtRate(meter, period_s)


class AtRate:
    """A meter that is read at another rate than it asks for."""

    def __init__(self, meter: Meter, poll_period_s: float) -> None:
        self._meter = meter
        # A sample is taken at every read unless the driver keeps them, so the rate is part of what the meter is.
        self.card: MeterCard = dataclasses.replace(meter.card, poll_period_s=poll_period_s)

    def read(self, *, counter: bool) -> Readings:
        return self._meter.read(counter=counter)

    def close(self) -> None:
        self._meter.close()
