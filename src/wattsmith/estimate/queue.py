"""A step on a host that queues operators and a device that works them off: which of the two sets the pace.

The host takes a while for each operator and goes on; the device takes them in order, as soon as they are queued. Steps
follow one another, so the queue carries over from one to the next. Where a step asks a tensor for its value, the host
waits until the device has come so far.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from wattsmith.terms.trace import WAIT

STEPS = 4  # by then the queue is as it stays
DEEP = 1024  # operators that may wait in the queue; then the host waits for the device
BUSY_ENOUGH = 0.9  # share of a step in which the device must be busy to set the pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """How long a step takes, and what it waits for."""

    step_s: float
    busy_s: float
    host_s: float

    @property
    def host_bound(self) -> bool:
        """Whether the device waits for the host for a good part of the time."""
        return self.busy_s < BUSY_ENOUGH * self.step_s


def paced(order: Sequence[int], busy_s: Sequence[float], host_s: Sequence[float], apart_s: float = 0.0) -> Paced:
    """The step that calls operators in ORDER, of BUSY_S and HOST_S each; APART_S is the host's own time per step."""
    host_at = device_at = last_s = 0.0
    ends = [0.0] * DEEP  # when the operators of late are done
    place = 0
    for _ in range(STEPS):
        began_s = max(host_at, device_at)
        host_at += apart_s
        for one in order:
            if one == WAIT:
                host_at = max(host_at, device_at)
                continue
            host_at = max(host_at + host_s[one], ends[place])
            device_at = max(device_at, host_at) + busy_s[one]
            ends[place] = device_at
            place = (place + 1) % DEEP
        last_s = max(host_at, device_at) - began_s
    counted = [one for one in order if one != WAIT]
    return Paced(
        step_s=last_s,
        busy_s=sum(busy_s[one] for one in counted),
        host_s=apart_s + sum(host_s[one] for one in counted),
    )
