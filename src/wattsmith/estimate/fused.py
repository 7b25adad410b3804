"""Compiled steps: products take what they take, most of the rest is done on the way, and the host queues far less."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TYPE_CHECKING

from wattsmith.estimate.shapes import PRODUCTS

if TYPE_CHECKING:
    from wattsmith.estimate.device import Timed

LASTING = (*PRODUCTS, "attention")  # what no compiler fuses away
FEWEST = 4  # compiled steps; fewer say nothing
SHARES = [at / 50 for at in range(1, 51)]
USUAL, PULL = (
    0.3,
    0.2,
)  # a share to expect, and how much it counts beside one measured step: products err more than that


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """A measured compiled step, and what the eager one should take."""

    eager: "Timed"
    eager_host_s: float
    busy_s: float
    host_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fused:
    """What is left of an eager step when it is compiled."""

    rest: float  # share of the time and bytes of what is no product
    host: float  # share of the host's time
    steps: int  # that it was learned from

    @classmethod
    def learn(cls, steps: Sequence[Compiled]) -> "Fused | None":
        if len(steps) < FEWEST:
            return None

        def off(rest: float) -> float:
            said = sum(abs(math.log(_whole_s(one.eager, rest) / one.busy_s)) for one in steps)
            return said + PULL * abs(math.log(rest / USUAL))

        return cls(
            rest=min(SHARES, key=off),
            host=median(one.host_s / one.eager_host_s for one in steps),
            steps=len(steps),
        )

    def applied(self, timed: "Timed") -> "Timed":
        """TIMED as it would be compiled: as many calls, those that are fused shorter by the share that is left."""
        shares = [1.0 if one.kind in LASTING else self.rest for one in timed.calls]
        return replace(
            timed,
            busy_s=tuple(share * took_s for share, took_s in zip(shares, timed.busy_s, strict=True)),
            features=tuple(
                replace(one, moved_bytes=share * one.moved_bytes)
                for share, one in zip(shares, timed.features, strict=True)
            ),
        )


def _whole_s(eager: "Timed", rest: float) -> float:
    return math.fsum(
        one.calls * took_s * (1.0 if one.kind in LASTING else rest)
        for one, took_s in zip(eager.calls, eager.busy_s, strict=True)
    )
