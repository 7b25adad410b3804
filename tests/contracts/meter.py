"""What every meter promises, whatever it reads: a test class per meter inherits this."""

from collections.abc import Callable

from wattsmith.terms.energy import Readings
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.ports import Clock, Meter

Advance = Callable[[float], None]


class MeterContract:
    """Give fixtures `clock`, `meter` (reading by that clock) and `advance` (lets seconds pass for both)."""

    def test_its_card_names_a_domain_with_a_kind(self, meter: Meter) -> None:
        kind, colon, rest = meter.card.domain.partition(":")
        assert kind
        assert colon
        assert rest
        assert meter.card.kind == kind

    def test_its_card_states_a_resolution_and_a_pace(self, meter: Meter) -> None:
        assert meter.card.resolution_s > 0
        assert meter.card.poll_period_s > 0

    def test_its_name_tells_when_it_is_simulated(self, meter: Meter) -> None:
        if meter.card.simulated:
            assert "simulated" in meter.card.name.lower()

    def test_it_tells_something_new_after_a_while(self, meter: Meter, advance: Advance) -> None:
        meter.read(counter=True)
        advance(2 * meter.card.poll_period_s + 2 * meter.card.resolution_s)
        readings = meter.read(counter=True)
        assert readings.power or readings.counter is not None

    def test_it_gives_what_its_card_promises_and_nothing_else(self, meter: Meter, advance: Advance) -> None:
        seen = _read_often(meter, advance)
        assert (meter.card.counter_period_s is not None) == any(r.counter is not None for r in seen)
        assert (meter.card.power_period_s is not None) == any(r.power for r in seen)

    def test_its_counter_never_goes_back(self, meter: Meter, advance: Advance) -> None:
        counted = [r.counter.energy_j for r in _read_often(meter, advance) if r.counter is not None]
        assert counted == sorted(counted)

    def test_its_counter_readings_are_in_order_of_time(self, meter: Meter, advance: Advance) -> None:
        times_s = [r.counter.time_s for r in _read_often(meter, advance) if r.counter is not None]
        assert times_s == sorted(times_s)

    def test_each_power_sample_is_later_than_all_before(self, meter: Meter, advance: Advance) -> None:
        times_s = [sample.time_s for r in _read_often(meter, advance) for sample in r.power]
        assert times_s == sorted(set(times_s))

    def test_no_power_is_negative(self, meter: Meter, advance: Advance) -> None:
        assert all(sample.power_w >= 0 for r in _read_often(meter, advance) for sample in r.power)

    def test_its_times_lie_on_the_given_clock(self, meter: Meter, clock: Clock, advance: Advance) -> None:
        before_s = clock.now_s()
        meter.read(counter=True)
        advance(2 * meter.card.poll_period_s)
        readings = meter.read(counter=True)
        after_s = clock.now_s()
        # A power sample may be older than this read, but not older than the one before it.
        assert all(before_s - meter.card.resolution_s <= s.time_s <= after_s for s in readings.power)
        assert readings.counter is None or before_s <= readings.counter.time_s <= after_s

    def test_reading_without_waiting_is_legal(self, meter: Meter) -> None:
        for _ in range(3):
            assert isinstance(meter.read(counter=False), Readings)
            assert isinstance(meter.read(counter=True), Readings)

    def test_a_closed_meter_tells_nothing(self, meter: Meter) -> None:
        meter.close()
        try:
            readings = meter.read(counter=True)
        except WattsmithError:
            return
        assert readings == Readings()

    def test_closing_twice_is_harmless(self, meter: Meter) -> None:
        meter.close()
        meter.close()


def _read_often(meter: Meter, advance: Advance, times: int = 6) -> list[Readings]:
    seen = []
    for turn in range(times):
        seen.append(meter.read(counter=turn % 2 == 0))
        advance(meter.card.poll_period_s)
    return seen
