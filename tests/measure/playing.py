"""A meter that plays a power curve against any clock, for tests of windows."""

import math

from wattsmith.terms.energy import CounterReading, MeterCard, PowerSample, Readings, Source
from wattsmith.terms.errors import MeterLost, MeterMissed


class PlayedMeter:
    """Samples every PERIOD_S what POWER_W(time_s) gives, as a driver with a history would keep them."""

    def __init__(
        self, clock, power_w, *, domain="gpu:0", period_s=0.02, counts=False, encloses=(), keeps=True, counted_j=None
    ):
        self.clock = clock
        self.power_w = power_w
        self.counted_j = counted_j or (lambda _: 0.0)
        self.fails_with = None
        self.reads = 0
        self.closed = False
        self._index = math.ceil((clock.now_s() - 1.0) / period_s)
        self.card = MeterCard(
            domain=domain,
            name="played",
            source=Source.COUNTER if counts else Source.POLLED,
            counter_period_s=0.1 if counts else None,
            power_period_s=period_s,
            power_window_s=period_s,
            history_s=1e9 if keeps else None,
            poll_period_s=0.1,
            encloses=encloses,
        )

    def read(self, *, counter):
        self.reads += 1
        if self.fails_with is not None:
            raise self.fails_with
        fresh = []
        period_s = self.card.power_period_s
        while self._index * period_s <= self.clock.now_s():
            fresh.append(PowerSample(self._index * period_s, self.power_w(self._index * period_s)))
            self._index += 1
        count = (
            CounterReading(self.clock.now_s(), self.counted_j(self.clock.now_s()))
            if counter and self.card.counter_period_s
            else None
        )
        return Readings(power=tuple(fresh), counter=count)

    def close(self):
        self.closed = True


LOST = MeterLost("GPU is lost")
MISSED = MeterMissed("timeout")
