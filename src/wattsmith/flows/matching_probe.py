"""A short trial at a second setting, under a lease that puts the knob back whatever happens."""

import time
from collections.abc import Callable
from pathlib import Path

from wattsmith.flows.controlling import hold
from wattsmith.match.features import fingerprint_of
from wattsmith.terms.control import KnobCard, Value
from wattsmith.terms.errors import BadInput
from wattsmith.terms.telemetry import Fingerprint, Probe, Telemetry

SETTLE_S = 1.0  # a sensor that averages over a second still sees what was before
PROBE_AT = 0.65


def probe_by_knob(
    look: Callable[[], Telemetry],
    knob: str = "gpu:0/power_limit",
    setting: float = PROBE_AT,
    *,
    usual: Fingerprint | None = None,
    socket: Path | None = None,
    shared: bool = True,
    settle_s: float = SETTLE_S,
) -> Probe:
    """What LOOK, telemetry of some seconds, shows with KNOB at SETTING times what it is, over what it showed before.

    A power limit goes to SETTING times what the program draws, where that is less than the limit.

    USUAL is what was seen before; None: it is looked at first. SOCKET is the daemon's, where this process may not turn
    knobs itself. The client keeps running, so the device is SHARED with it.
    """
    before = fingerprint_of(look()) if usual is None else usual
    device = knob.partition("/")[0]
    with hold([device], socket=socket, shared=shared) as lease:
        card = lease.card(knob)
        now = _level(lease.read(knob), card)
        # A power limit does nothing until it bites: what counts is how far below the program's own draw it is.
        bites = min(now, before.power_w) if card.unit == "W" and before.power_w else now
        wanted = max(bites * setting, card.ends[0]) if card.ends else bites * setting
        lease.set(knob, (card.ends[0] if card.ends else wanted, wanted) if card.pair else wanted)
        time.sleep(settle_s)
        during = fingerprint_of(look())
    return probe_between(before, during, wanted / now)


def probe_between(before: Fingerprint, during: Fingerprint, setting: float) -> Probe:
    """What changed from one look to another at SETTING times the usual: also of a batch or pace that the client set."""
    time_ratio = before.steps_per_s / during.steps_per_s if before.steps_per_s and during.steps_per_s else None
    power_ratio = during.power_w / before.power_w if before.power_w and during.power_w else None
    if time_ratio is None and power_ratio is None:
        raise BadInput("neither power nor progress was seen at both settings: the probe says nothing")
    return Probe(setting=setting, time_ratio=time_ratio, power_ratio=power_ratio)


def _level(value: Value, card: KnobCard) -> float:
    """How a knob stands as one number: the upper end of a pair, the most there is where it is not locked."""
    if isinstance(value, tuple):
        return float(value[1])
    if isinstance(value, int | float):
        return float(value)
    if card.ends is not None:
        return float(card.ends[1])
    raise BadInput(f"{card.name} cannot be turned to a share of what it is: it stands at {value!r}")
