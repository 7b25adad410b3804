"""Configurations that keep limits, the best first, and what the others break."""

import pytest

torch = pytest.importorskip("torch", reason="CHOOSING IS NOT TESTED: torch is not installed")
pytest.importorskip("scipy", reason="CHOOSING IS NOT TESTED: scipy is not installed")

from tests.flows.knowing import few_runs, h200, on_device, written  # noqa: E402
from tests.flows.models_for_tests.small import Net  # noqa: E402

import wattsmith  # noqa: E402
from wattsmith.estimate.limits import Limit  # noqa: E402
from wattsmith.flows.choosing import Choice  # noqa: E402
from wattsmith.flows.devices import known_device  # noqa: E402
from wattsmith.flows.models import load_model  # noqa: E402
from wattsmith.terms.errors import BadInput  # noqa: E402


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """Somebody who has neither a record nor a cache yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def wide():
    """Products that keep a device busy: 16 million parameters in each of two layers."""
    return torch.nn.Sequential(*[torch.nn.Linear(4096, 4096, device="meta") for _ in range(2)])


def chosen(model=wide, inputs="4096", devices=None, counts=(1, 2, 4), batches=(256, 512, 1024), prices=None, **options):
    among = Choice(devices=devices or (h200(),), counts=counts, batches=batches, prices_per_hour=prices)
    return wattsmith.choose(model, inputs, among=among, **options)


def refused(*arguments, **options):
    with pytest.raises(BadInput) as told:
        chosen(*arguments, **options)
    return str(told.value)


def made(ranked):
    configuration = ranked.option.configuration
    return configuration.devices, configuration.precision, configuration.batch


def steps_s(ranking):
    return {made(one): one.figures["step"].value for one in (*ranking.fitting, *ranking.rejected)}


class TestRanking:
    def test_the_fastest_comes_first(self):
        ranking = chosen(samples=1_000_000)
        assert made(ranking.best)[:2] == (4, "bf16")
        assert len(ranking.fitting) == 3 * 2 * 3
        times = [one.figures["job"].value for one in ranking.fitting]
        assert times == sorted(times)
        assert [one.place for one in ranking.fitting] == list(range(1, 19))

    def test_the_leanest_is_another(self):
        ranking = chosen(samples=1_000_000, minimise="energy")
        assert made(ranking.best) == (1, "bf16", 1024)
        energies = [one.figures["energy"].value for one in ranking.fitting]
        assert energies == sorted(energies)

    def test_it_says_the_same_as_an_estimate(self):
        ranking = chosen(samples=1_000_000, epochs=3, counts=(1,), batches=(512,))
        for one in ranking.fitting:
            precision = one.option.configuration.precision
            alone = wattsmith.estimate(
                wide, "4096", batch=512, precision=precision, device=h200(), samples=1_000_000, epochs=3
            )
            assert one.figures["step"] == alone.step_s
            assert one.figures["memory"] == alone.memory.peak_held_bytes
            assert one.figures["epoch"].value == pytest.approx(alone.job.epoch_s.value)
            assert one.figures["energy"].value == pytest.approx(alone.job.energy_j.value)

    def test_batches_between_those_traced_lie_between_them(self):
        found = steps_s(chosen(counts=(1,), batches=(256, 512, 1024, 2048)))
        for precision in ("fp32", "bf16"):
            by_batch = [found[1, precision, batch] for batch in (256, 512, 1024, 2048)]
            assert by_batch == sorted(by_batch)

    def test_without_a_job_it_is_by_the_time_of_a_sample(self):
        ranking = chosen()
        times = [one.figures["time"].value for one in ranking.fitting]
        assert times == sorted(times)
        assert ranking.best.figures["epoch"] is None

    def test_accumulation_takes_in_more_samples_with_each_step(self):
        ranking = chosen(samples=4096, accumulation=4, counts=(1,), batches=(1024,))
        for one in ranking.fitting:
            assert one.figures["epoch"].value == pytest.approx(one.figures["step"].value)

    def test_replicas_that_infer_do_not_wait_for_each_other(self):
        found = steps_s(chosen(mode="infer", batches=(256,)))
        assert found[1, "bf16", 256] == found[4, "bf16", 256]

    def test_a_power_limit_holds_for_all(self):
        ranking = chosen(power_limit_w=400.0, counts=(1,))
        for one in ranking.fitting:
            assert one.figures["power"].high <= 400
            assert one.option.configuration.power_limit_w == 400

    def test_what_was_loaded_before(self):
        loaded = load_model(wide, inputs="4096", batch=1)
        assert steps_s(chosen(loaded, None)) == steps_s(chosen())


class TestLimits:
    def test_those_that_break_one_say_which(self):
        ranking = chosen(samples=1_000_000, limits=["gpus<=2"], minimise="energy")
        assert {made(one)[0] for one in ranking.fitting} == {1, 2}
        assert {made(one)[0] for one in ranking.rejected} == {4}
        for one in ranking.rejected:
            (breach,) = one.breaches
            assert str(breach) == "gpus 4, 100% beyond gpus at most 2"

    def test_times_are_held_against_the_far_end(self):
        free = chosen(samples=1_000_000, counts=(1,))
        slowest = max(free.fitting, key=lambda one: one.figures["epoch"].value).figures["epoch"]
        ranking = chosen(samples=1_000_000, counts=(1,), limits=[f"epoch<={slowest.value}s"])
        assert "epoch may be" in str(ranking.rejected[0].breaches[0])

    def test_none_may_be_left(self):
        ranking = chosen(samples=1_000_000, limits=["gpus<=2", "epoch<=1ms"])
        assert (ranking.best, ranking.fitting) == (None, ())
        assert len(ranking.rejected) == 18

    def test_a_limit_may_be_a_fact(self):
        limit = Limit(name="gpus", bound="at most", value=1)
        assert {made(one)[0] for one in chosen(limits=[limit]).fitting} == {1}

    @pytest.mark.parametrize(
        ("limit", "told"),
        [
            ("gups<=2", "did you mean gpus?"),
            ("colour<=2", "what can is gpus, batch, step, epoch, job, memory, power, energy, cost"),
            ("epoch<=20W", "W is a unit of power; write for instance 50ms or 20min"),
            ("epoch<=20", "'20' has no unit"),
            ("gpus<=two", "gpus is a whole number without a unit, not 'two'"),
            ("gpus", "write a name, <= and a value"),
            ("epoch<=20min", "say how many samples it has (--samples)"),
        ],
    )
    def test_one_that_cannot_be_understood(self, limit, told):
        assert told in refused(limits=[limit])


class TestDevices:
    def test_several_are_ranked_together(self):
        ranking = chosen(devices=(h200(), "a100"), counts=(1,), batches=(512,))
        assert {one.option.configuration.device for one in ranking.fitting} == {"NVIDIA H200", "NVIDIA A100 SXM4 40GB"}
        assert ranking.best.option.configuration.device == "NVIDIA H200"
        assert ranking.best.option.prediction.inside_record

    def test_one_named_twice_is_one(self):
        assert len(chosen(devices=(h200(), h200()), counts=(1,), batches=(512,)).fitting) == 2

    def test_without_names_all_that_a_record_knows_are_meant(self, home):
        record = written(home / "own.jsonl", [*on_device(few_runs(), name="Voyager"), *few_runs()])
        ranking = wattsmith.choose(Net, "8", among=Choice(counts=(1,), batches=(8,)), record=record)
        assert {one.option.configuration.device for one in ranking.fitting} == {"Voyager", "NVIDIA H200"}

    def test_no_device_at_all(self, home):
        with pytest.raises(BadInput, match="no record knows a device to choose among; take one with `wattsmith record"):
            wattsmith.choose(Net, "8", record=written(home / "empty.sqlite", []))

    def test_a_cpu_is_one_device(self, home):
        cpu = known_device("cpu", written(home / "cpu.jsonl", on_device(few_runs(), name="some CPU", kind="cpu")))
        assert {made(one)[0] for one in chosen(Net, "8", devices=(cpu,)).fitting} == {1}
        assert "a CPU is one device" in refused(Net, "8", devices=(cpu,), counts=(2,))

    def test_what_does_not_fit_is_left_out(self):
        ranking = chosen(batches=(256, 10_000_000), counts=(1,))
        assert {made(one)[2] for one in ranking.fitting} == {256}

    def test_where_nothing_fits_it_says_what_is_needed(self):
        told = refused(batches=(10_000_000,))
        assert "no configuration fits in memory: batch 10000000 in " in told
        assert told.endswith("of each device, and there is: NVIDIA H200 140 GiB")


class TestPrices:
    def test_are_by_any_name_that_a_device_goes_by(self):
        ranking = chosen(samples=3_600_000, minimise="cost", prices={"h200": 3.0}, counts=(1,), batches=(1024,))
        for one in ranking.fitting:
            assert one.figures["cost"].value == pytest.approx(3.0 * one.figures["job"].value / 3600)

    def test_are_of_each_device(self):
        ranking = chosen(samples=1_000_000, prices={"NVIDIA H200": 3.0}, batches=(1024,))
        for one in ranking.fitting:
            assert one.figures["cost"].value == pytest.approx(made(one)[0] * 3.0 * one.figures["job"].value / 3600)

    @pytest.mark.parametrize("asked", [{"minimise": "cost"}, {"limits": ["cost<=3"]}])
    def test_are_needed_for_what_a_job_costs(self, asked):
        assert "give it, as in --price h200=3.5" in refused(samples=1000, **asked)

    def test_of_a_device_that_is_not_there(self):
        told = refused(prices={"b900": 1.0})
        assert "there is a price of 'b900', which is not among the devices: NVIDIA H200" in told

    @pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
    def test_that_make_no_sense(self, price):
        assert "the price of h200 must be finite and not negative" in refused(prices={"h200": price})


class TestBadInput:
    @pytest.mark.parametrize(
        ("options", "told"),
        [
            ({"batch": 64}, "batch is chosen here; narrow it with among=Choice(batches=(64,))"),
            ({"device": "h200"}, "device is chosen here; narrow it with among=Choice(devices=('h200',))"),
            ({"precision": "bf16"}, "precision is chosen here; narrow it with among=Choice(precisions=('bf16',))"),
            ({"batchsize": 64}, "there is no option 'batchsize'"),
            ({"minimise": "joy"}, "'joy' cannot be minimised; what can is gpus, energy, time, cost, memory"),
            ({"epochs": 3}, "3 epochs of how many samples?"),
            ({"samples": -3}, "samples must be at least 1, got -3"),
            ({"mode": "test"}, "mode must be train or infer, got 'test'"),
        ],
    )
    def test_an_option_that_makes_no_sense(self, options, told):
        assert told in refused(**options)

    def test_shapes_that_do_not_fit(self):
        assert "wants 4096 features in the last dimension" in refused(inputs="9")

    @pytest.mark.parametrize(
        ("choice", "told"),
        [
            ({"batches": ()}, "there is nothing to choose among: batches is empty"),
            ({"counts": (1, 0)}, "each of counts must be at least 1, got 0"),
        ],
    )
    def test_a_choice_of_nothing(self, choice, told):
        with pytest.raises(BadInput, match=told):
            Choice(**choice)

    def test_a_precision_that_there_is_not(self):
        with pytest.raises(BadInput, match="precision must be fp32, tf32, bf16, fp16, got 'fp8'"):
            wattsmith.choose(wide, "4096", among=Choice(precisions=("bf16", "fp8")))
