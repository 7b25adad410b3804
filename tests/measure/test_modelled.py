import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.contracts.meter import MeterContract

from wattsmith.measure.modelled import PowerModel, find_modelled, parse_model
from wattsmith.sim.clock import SimulatedClock
from wattsmith.terms.clock import RealClock
from wattsmith.terms.energy import Source
from wattsmith.terms.errors import BadTerm


class Cpus:
    """CPU seconds of work, as told."""

    def __init__(self) -> None:
        self.busy_s = 1_000.0

    def __call__(self) -> float:
        return self.busy_s


@pytest.fixture
def clock() -> SimulatedClock:
    return SimulatedClock(100.0)


@pytest.fixture
def cpus() -> Cpus:
    return Cpus()


class TestModelledMeter(MeterContract):
    @pytest.fixture
    def meter(self, clock, cpus):
        return find_modelled(clock, "10W-65W", busy_s=cpus, cpus=4)[0]

    @pytest.fixture
    def advance(self, clock, cpus):
        def advance(duration_s: float) -> None:
            clock.sleep_s(duration_s)
            cpus.busy_s += duration_s

        return advance


class TestModelledMeterOnThisMachine(MeterContract):
    @pytest.fixture
    def clock(self) -> RealClock:
        return RealClock()

    @pytest.fixture
    def meter(self, clock):
        return find_modelled(clock, "10W-65W")[0]

    @pytest.fixture
    def advance(self, clock):
        return lambda duration_s: clock.sleep_s(duration_s / 10)


def counted_j(meter) -> float:
    return meter.read(counter=True).counter.energy_j


def test_a_model_is_idle_and_busy_power():
    assert parse_model("10W-65W") == PowerModel(idle_w=10.0, busy_w=65.0)
    assert parse_model(" 500mW - 0.2kW ") == PowerModel(idle_w=0.5, busy_w=200.0)


@pytest.mark.parametrize(
    "text", ["", "65W", "10-65", "10-65W", "10W-65J", "65W-10W", "0W-0W", "-5W-65W", "10W-", "W-W"]
)
def test_what_is_no_model_is_refused(text):
    with pytest.raises(BadTerm):
        parse_model(text)


@given(st.text())
def test_any_text_is_a_model_or_refused(text):
    try:
        model = parse_model(text)
    except BadTerm:
        return
    assert 0 <= model.idle_w <= model.busy_w


def test_an_idle_cpu_costs_idle_power(clock, cpus):
    meter = find_modelled(clock, "10W-65W", busy_s=cpus, cpus=4)[0]
    clock.sleep_s(20.0)
    assert counted_j(meter) == pytest.approx(200.0)


def test_one_of_four_cpus_busy_costs_a_quarter_of_the_way_up(clock, cpus):
    meter = find_modelled(clock, "10W-50W", busy_s=cpus, cpus=4)[0]
    clock.sleep_s(10.0)
    cpus.busy_s += 10.0
    assert counted_j(meter) == pytest.approx(200.0)


def test_no_more_than_busy_power_is_ever_counted(clock, cpus):
    meter = find_modelled(clock, "10W-65W", busy_s=cpus, cpus=4)[0]
    clock.sleep_s(1.0)
    cpus.busy_s += 400.0
    assert counted_j(meter) == pytest.approx(65.0)


def test_a_tick_that_comes_late_is_counted_later_at_no_more_than_busy_power(clock, cpus):
    meter = find_modelled(clock, "10W-50W", busy_s=cpus, cpus=1)[0]
    clock.sleep_s(1.0)
    assert counted_j(meter) == pytest.approx(10.0)
    cpus.busy_s += 2.0  # the whole second before, and this one
    clock.sleep_s(1.0)
    assert counted_j(meter) == pytest.approx(60.0)
    clock.sleep_s(1.0)
    assert counted_j(meter) == pytest.approx(110.0)  # three seconds, two of them busy


@given(steps=st.lists(st.tuples(st.floats(0, 10), st.floats(-1, 50)), max_size=10))
def test_between_two_readings_power_lies_between_idle_and_busy(steps):
    clock, cpus = SimulatedClock(), Cpus()
    meter = find_modelled(clock, "10W-65W", busy_s=cpus, cpus=4)[0]
    before_j = 0.0
    for duration_s, busy_s in steps:
        clock.sleep_s(duration_s)
        cpus.busy_s += busy_s
        now_j = counted_j(meter)
        assert 10 * duration_s - 1e-9 <= now_j - before_j <= 65 * duration_s + 1e-9
        before_j = now_j


@given(steps=st.lists(st.tuples(st.floats(0, 10), st.floats(-1, 10)), max_size=10))
def test_the_counter_never_goes_back_even_if_busy_time_does(steps):
    clock, cpus = SimulatedClock(), Cpus()
    meter = find_modelled(clock, "10W-65W", busy_s=cpus, cpus=4)[0]
    seen = []
    for duration_s, busy_s in steps:
        clock.sleep_s(duration_s)
        cpus.busy_s += busy_s
        seen.append(counted_j(meter))
    assert seen == sorted(seen)


def test_the_card_says_that_nothing_was_measured_and_by_what_formula(clock, cpus):
    card = find_modelled(clock, "10W-65W", busy_s=cpus, cpus=4)[0].card
    assert card.source is Source.MODELLED
    assert card.name == "modelled: 10 W idle … 65 W busy"
    assert card.note.startswith("nothing was measured: CPU power = 10 W + 55 W × share of 4 CPUs")
    assert card.kind == "cpu-package"
