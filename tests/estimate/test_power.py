"""Energy of a step, from what the device does in it."""

import pytest
from hypothesis import given
from hypothesis.strategies import floats

from wattsmith.estimate.power import Activity, EnergyModel
from wattsmith.estimate.shapes import Features

np = pytest.importorskip("numpy")
pytest.importorskip("scipy")

TERA = 1e12
# What step_s, the four groups' busy seconds, the tera-operations of the four arithmetics and terabytes cost.
FACTORS = (100.0, 300.0, 200.0, 150.0, 250.0, 10.0, 4.0, 1.0, 1.0, 50.0)


def work(model, flops=0.0, moved_bytes=0.0, arithmetic="fp32"):
    return Features(
        model=model, sizes=(), words=(), flops=flops, moved_bytes=moved_bytes, serial=1.0, arithmetic=arithmetic
    )


def activity(step_s, *parts):
    """PARTS: features, busy seconds of all calls, and calls."""
    return Activity(
        step_s=step_s,
        features=[features for features, _, _ in parts],
        busy_s=[busy_s for _, busy_s, _ in parts],
        calls=[calls for _, _, calls in parts],
    )


def model(limit_w=None):
    return EnergyModel(np.array(FACTORS), limit_w)


IDLE = activity(2.0)


def some_activities(count=60):
    chance = np.random.default_rng(0)
    found = []
    for _ in range(count):
        busy_s = chance.uniform(0.1, 1.0, 5)
        flops = chance.uniform(1, 50, 5) * TERA
        found.append(
            activity(
                float(busy_s.sum() + chance.uniform(0.0, 2.0)),
                (work("matmul", flops[0], 1e11, "bf16"), busy_s[0], 2),
                (work("conv", flops[1], 2e11, "tf32"), busy_s[1], 1),
                (work("depthwise", flops[2], 1e11), busy_s[2], 3),
                (work("batch-norm", moved_bytes=5e11), busy_s[3], 1),
                (work("elementwise", moved_bytes=1e12 * busy_s[4]), busy_s[4], 1),
                (work("attention", flops[4], 1e10, "fp16"), 0.1, 1),
            )
        )
    return found


class TestTerms:
    def test_an_idle_step_is_nothing_but_time(self):
        assert IDLE.terms() == [2.0] + [0.0] * 9

    def test_busy_time_is_told_by_how_much_of_the_device_works(self):
        parts = [
            (work(kind), 1.0, 1) for kind in ("matmul", "conv", "attention", "grouped", "batch-norm", "copy", "norm")
        ]
        assert activity(8.0, *parts).terms()[1:5] == [3.0, 1.0, 1.0, 2.0]

    def test_operations_count_by_arithmetic_and_call(self):
        parts = [(work("matmul", 1 * TERA, 0.0, "bf16"), 1.0, 3), (work("conv", 2 * TERA, 0.0, "tf32"), 1.0, 1)]
        assert activity(2.0, *parts).terms()[5:9] == [0.0, 2.0, 3.0, 0.0]

    def test_operations_of_light_work_do_not_count(self):
        assert activity(1.0, (work("elementwise", 5 * TERA), 1.0, 1)).terms()[5:9] == [0.0] * 4

    def test_an_arithmetic_without_units_of_its_own_counts_as_fp32(self):
        assert activity(1.0, (work("matmul", 5 * TERA, 0.0, "float64"), 1.0, 1)).terms()[5] == 5.0

    def test_bytes_of_all_calls_count(self):
        parts = [(work("copy", 0.0, 0.25 * TERA), 1.0, 4), (work("matmul", 0.0, 0.5 * TERA), 1.0, 1)]
        assert activity(2.0, *parts).terms()[9] == 1.5


class TestEnergy:
    def test_an_idle_step_draws_what_is_drawn_anyway(self):
        assert model().energy_j(IDLE) == pytest.approx(200.0)
        assert model().idle_w == 100.0

    def test_a_busy_one_adds_its_time_its_operations_and_its_bytes(self):
        one = activity(1.0, (work("matmul", 20 * TERA, 0.1 * TERA, "bf16"), 0.5, 2))
        assert model().energy_j(one) == pytest.approx(100 + 150 + 40 + 10)

    def test_what_made_the_energies_is_found_again(self):
        rows = [(one, model().energy_j(one)) for one in some_activities()]
        found = EnergyModel.fit(rows, None)
        for one in some_activities(80)[60:]:
            assert found.energy_j(one) == pytest.approx(model().energy_j(one), rel=1e-3)
        assert found.idle_w == pytest.approx(100.0, rel=0.01)

    def test_noise_leaves_energies_about_right(self):
        chance = np.random.default_rng(1)
        rows = [(one, model().energy_j(one) * chance.lognormal(0.0, 0.05)) for one in some_activities()]
        found = EnergyModel.fit(rows, None)
        for one in some_activities(80)[60:]:
            assert found.energy_j(one) == pytest.approx(model().energy_j(one), rel=0.1)

    def test_no_factor_is_ever_negative(self):
        chance = np.random.default_rng(2)
        found = EnergyModel.fit([(one, float(chance.uniform(1, 1000))) for one in some_activities()], None)
        assert np.all(found.factors >= 0)


class TestLimit:
    BUSY = activity(2.0, (work("matmul", 200 * TERA, 0.0, "bf16"), 2.0, 1))  # 1,000 J: 500 W

    def test_a_step_that_would_draw_more_than_the_limit_draws_the_limit(self):
        assert model().energy_j(self.BUSY) == pytest.approx(1000.0)
        assert model(limit_w=400.0).energy_j(self.BUSY) == pytest.approx(800.0)

    def test_one_that_draws_less_is_left_alone(self):
        assert model(limit_w=400.0).energy_j(IDLE) == pytest.approx(200.0)

    def test_a_limit_asked_for_counts_if_it_is_the_lower(self):
        assert model(limit_w=400.0).energy_j(self.BUSY, limit_w=300.0) == pytest.approx(600.0)
        assert model(limit_w=400.0).energy_j(self.BUSY, limit_w=600.0) == pytest.approx(800.0)

    @given(floats(1.0, 1000.0), floats(0.01, 10.0))
    def test_mean_power_never_exceeds_the_limit(self, limit_w, step_s):
        one = activity(step_s, (work("matmul", 100 * TERA), step_s, 1))
        assert 0 < model(limit_w).energy_j(one) <= limit_w * step_s * (1 + 1e-9)

    def test_a_device_that_is_on_draws_something(self):
        assert EnergyModel(np.zeros(10), None).energy_j(IDLE) > 0
