"""A device, learned from runs whose calls were watched."""

import json
from dataclasses import replace
from statistics import median

import pytest

from wattsmith.estimate.device import (
    LEAST_DOUBT,
    DeviceModel,
    Known,
    Switches,
    computes,
    examples_of,
    switches_of,
    usable,
)
from wattsmith.estimate.host import HostModel
from wattsmith.estimate.operators import Peak
from wattsmith.estimate.sheets import sheet_of
from wattsmith.store.shipped import open_shipped
from wattsmith.terms.errors import BadInput
from wattsmith.terms.facts import as_plain
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.run import (
    Condition,
    Consumption,
    Device,
    OperatorCall,
    Provenance,
    Run,
    Status,
    StepTimes,
    Structure,
)
from wattsmith.terms.work import Setting, Workload

pytest.importorskip("numpy")
pytest.importorskip("scipy")

MIB = 2**20
PEAK = Peak(flops_per_s={"fp32": 1e13, "tf32": 1e14, "bf16": 2e14}, bandwidth_bytes_per_s=1e12)
HOST = HostModel(step_s=1e-4, light_s=1e-5, forward_s=2e-5, backward_s=3e-5, tensor_s=2e-6)
STRICT = Switches(conv_tf32=False, matmul_tf32=False)
DEVICE = Device(name="made up", kind="cuda")


def law_s(flops, moved_bytes, flops_per_s=1e13):
    """2 µs for a call, operations at half the peak, bytes at eight tenths of the bandwidth."""
    return 2e-6 + flops / flops_per_s / 0.5 + moved_bytes / 1e12 / 0.8


def product(m, n, k, calls=1, dtype="float32"):
    flops, moved_bytes = 2.0 * m * n * k, 4.0 * (m * k + k * n + m * n)
    return timed("mm", "matmul", ((m, k), (k, n)), flops, moved_bytes, calls, dtype)


def relu(m, n, calls=1):
    return timed("relu", "elementwise", ((m, n),), 0.0, 8.0 * m * n, calls)


def update(tensors, elements):
    return timed("_foreach_add_", "update", ((tensors, elements),), 0.0, 12.0 * elements)


def convolution(flops, moved_bytes):
    return timed("convolution", "conv", ((8, 64, 32, 32), (64, 64, 3, 3)), flops, moved_bytes)


def timed(operator, kind, shapes, flops, moved_bytes, calls=1, dtype="float32"):
    return OperatorCall(
        operator=operator,
        kind=kind,
        dtype=dtype,
        shapes=shapes,
        calls=calls,
        flops=calls * flops,
        moved_bytes=calls * moved_bytes,
        busy_s=calls * law_s(flops, moved_bytes),
    )


def layers(batch, width, depth):
    """What a step of a network of DEPTH equal layers calls."""
    return (
        product(batch, width, width, depth),
        product(width, width, batch, depth),
        product(batch, width, width // 2, depth),
        relu(batch, width, 2 * depth),
        update(depth, depth * width * width),
    )


def run_of(calls, family="mlp", kind="network", precision="fp32", **changes):
    """A run that does CALLS: 100 W, 300 W more while busy, and 10 MiB beside its tensors."""
    flops, moved_bytes = sum(one.flops for one in calls), sum(one.moved_bytes for one in calls)
    busy_s = sum(one.busy_s for one in calls)
    host_s = HOST.whole_s(calls)
    step_s = max(busy_s, host_s)
    run = Run(
        workload=Workload(
            family=family, parameters={"flops": flops, "bytes": moved_bytes}, batch=1, kind=kind, precision=precision
        ),
        device=DEVICE,
        setting=Setting(),
        status=Status.MEASURED,
        provenance=Provenance(measured_at="2026-11-16T12:00:00+00:00", session="monday", hostname="host"),
        structure=Structure(
            parameters=1,
            parameter_bytes=4,
            input_bytes=4,
            flops=flops,
            moved_bytes=moved_bytes,
            launches=len(calls),
            peak_bytes=100 * MIB,
        ),
        times=StepTimes(
            steps=20, mean_s=step_s, median_s=step_s, spread_s=0.0, error_ratio=0.0, first_s=1.0,
            busy_s=busy_s, host_s=host_s,
        ),
        consumption=Consumption(
            window_s=2.0,
            step_energy_j=100 * step_s + 300 * busy_s,
            peak_tensor_bytes=110 * MIB,
            peak_held_bytes=121 * MIB,
        ),
        condition=Condition(power_limit_w=700.0),
        calls=calls,
    )  # fmt: skip
    return replace(run, **changes)


def record():
    """Three families of networks, all of which keep the law, and single products."""
    networks = [
        run_of(layers(batch, width, depth), family)
        for family, width, depth in (("narrow", 512, 16), ("middle", 1024, 6), ("wide", 2048, 2))
        for batch in (128, 256, 512, 1024, 2048, 4096)
    ]
    operators = [run_of((product(m, n, 1024),), "matmul", "operator") for m in (64, 512, 4096) for n in (64, 512, 4096)]
    return [*networks, *operators]


@pytest.fixture(scope="module")
def model():
    return DeviceModel.learn(record(), PEAK)


def busy_s(model, calls):
    return model.time(calls, STRICT, trains=True).whole_s


def lawful_s(calls):
    return sum(one.busy_s for one in calls)


class TestTime:
    def test_a_measured_network_is_busy_as_long_as_it_was(self, model):
        calls = layers(1024, 2048, 6)
        assert busy_s(model, calls) == pytest.approx(lawful_s(calls), rel=0.05)

    def test_one_in_between_is_busy_as_long_as_its_calls_are(self, model):
        calls = layers(700, 1500, 9)
        assert busy_s(model, calls) == pytest.approx(lawful_s(calls), rel=0.1)

    def test_the_times_that_calls_come_with_are_not_looked_at(self, model):
        calls = layers(700, 1500, 9)
        untimed = tuple(replace(one, busy_s=None) for one in calls)
        assert busy_s(model, untimed) == busy_s(model, calls)

    def test_twice_the_calls_take_twice_the_time(self, model):
        assert busy_s(model, (product(64, 64, 64, calls=2),)) == pytest.approx(
            2 * busy_s(model, (product(64, 64, 64),))
        )

    def test_kinds_add_up_to_the_whole_the_longest_first(self, model):
        found = model.time(layers(4096, 2048, 6), STRICT, trains=True)
        assert list(found.by_kind()) == ["matmul", "elementwise", "update"]
        assert sum(found.by_kind().values()) == pytest.approx(found.whole_s)

    def test_a_call_on_no_tensors_is_passed_over(self, model):
        made = replace(relu(64, 64), operator="arange", shapes=())
        found = model.time((made, product(64, 64, 64)), STRICT, trains=True)
        assert [one.operator for one in found.calls] == ["mm"]

    def test_a_step_of_nothing_takes_no_time_and_leaves_nothing_uncovered(self, model):
        found = model.time((), STRICT, trains=True)
        assert (found.whole_s, found.doubt) == (0.0, 0.0)
        assert (found.covered_flops_ratio, found.covered_bytes_ratio) == (1.0, 1.0)

    def test_faster_arithmetic_that_was_never_measured_goes_by_its_peak(self, model):
        large = product(4096, 4096, 4096)
        quick = model.time((large,), Switches(matmul_tf32=True), trains=True)
        assert quick.whole_s < 0.5 * busy_s(model, (large,))
        assert quick.doubt > model.time((large,), STRICT, trains=True).doubt


class TestCovered:
    def test_operators_that_were_measured_are_covered(self, model):
        found = model.time(layers(700, 1500, 9), STRICT, trains=True)
        assert (found.covered_flops_ratio, found.covered_bytes_ratio) == (1.0, 1.0)

    def test_an_operator_never_seen_takes_its_share_away_and_adds_doubt(self, model):
        known = product(1024, 1024, 1024)
        novel = convolution(3 * known.flops, known.moved_bytes)
        found = model.time((known, novel), STRICT, trains=True)
        assert found.covered_flops_ratio == pytest.approx(0.25)
        assert found.covered_bytes_ratio == pytest.approx(0.5)
        assert found.doubt > model.time((known,), STRICT, trains=True).doubt

    def test_so_does_an_arithmetic_never_seen(self, model):
        found = model.time((product(64, 64, 64, dtype="bfloat16"),), STRICT, trains=True)
        assert found.covered_flops_ratio == 0.0


class TestLearning:
    def test_it_tells_what_it_rests_on(self, model):
        assert (model.runs, model.networks) == (27, 18)
        assert model.operators.kinds["matmul"] > 20

    def test_the_host_is_found_again(self, model):
        calls = layers(64, 64, 9)
        assert model.host.whole_s(calls) == pytest.approx(HOST.whole_s(calls), rel=0.1)

    def test_energy_is_found_again(self, model):
        calls = layers(700, 1500, 9)
        found = model.time(calls, STRICT, trains=True)
        step_s = 2 * found.whole_s
        assert model.energy.energy_j(model.activity(found, step_s)) == pytest.approx(250 * step_s, rel=0.1)
        assert model.energy.limit_w == 700.0

    def test_what_is_held_beside_the_tensors_is_found(self, model):
        assert model.fixed_bytes == 10 * MIB

    def test_families_left_out_were_nearly_right_where_all_keep_the_law(self, model):
        doubts = model.known.doubts
        assert len(doubts.busy.scores) == len(doubts.host.scores) == 18  # every network once
        assert doubts.busy.factor(0.9, LEAST_DOUBT) < 1.1
        assert doubts.host.factor() < 1.1
        assert doubts.energy.factor() < 1.2
        assert doubts.memory.factor() == pytest.approx(1.0)
        assert doubts.held.factor() == pytest.approx(1.1)
        assert 0 < doubts.usual <= doubts.large < 0.5

    def test_a_family_is_doubted_by_how_it_is_without_itself(self):
        """Wide networks take twice their time: they are known, but would not be if they had not been measured."""
        odd = [slowed(run, 2.0) if run.workload.family == "wide" else run for run in record()]
        found = DeviceModel.learn(odd, PEAK)
        (large,) = [run for run in odd if run.workload.family == "wide"][-1:]
        assert busy_s(found, large.calls) == pytest.approx(lawful_s(large.calls), rel=0.1)
        assert found.known.doubts.busy.factor(0.9, found.known.doubts.usual) > 1.5

    def test_an_allocator_that_still_has_what_came_before_tells_nothing(self):
        stray = [
            replace(run, consumption=replace(run.consumption, peak_held_bytes=1000 * MIB)) if at % 2 else run
            for at, run in enumerate(record())
        ]
        assert DeviceModel.learn(stray, PEAK).known.doubts.held.factor() == pytest.approx(1.1)

    def test_runs_that_failed_or_that_nobody_watched_are_passed_over(self):
        failed = replace(record()[0], status=Status.CRASHED, reason="it fell over")
        unwatched = replace(record()[0], calls=())
        found = DeviceModel.learn([failed, unwatched, *record()[:3]], PEAK)
        assert found.runs == 3
        assert not usable(failed)

    def test_a_record_that_nobody_watched_says_what_to_do(self):
        with pytest.raises(BadInput, match="take it anew"):
            DeviceModel.learn([replace(run, calls=()) for run in record()], PEAK)
        with pytest.raises(BadInput, match="take it anew"):
            DeviceModel.learn([], PEAK)


def slowed(run, factor):
    calls = tuple(replace(one, busy_s=factor * one.busy_s) for one in run.calls)
    return replace(run, calls=calls, times=replace(run.times, busy_s=factor * run.times.busy_s))


class TestTooLittle:
    """Records that tell something, but not everything."""

    def test_operators_alone_leave_the_usual_host_and_wide_doubt(self):
        found = DeviceModel.learn(record()[-9:], PEAK)
        doubts = found.known.doubts
        assert found.networks == 0
        assert found.host == HostModel.usual()
        assert doubts.busy.factor(0.9, doubts.usual) == pytest.approx(3.0)
        assert doubts.host.factor() == doubts.energy.factor() == doubts.memory.factor() == pytest.approx(3.0)

    def test_one_family_alone_cannot_be_left_out(self):
        doubts = DeviceModel.learn([run_of(layers(256, 512, depth)) for depth in range(1, 9)], PEAK).known.doubts
        assert doubts.host.factor() == pytest.approx(3.0)

    def test_a_host_that_nobody_timed_is_the_usual_one_with_wide_doubt(self):
        untimed = [replace(run, times=replace(run.times, host_s=None)) for run in record()]
        found = DeviceModel.learn([run for run in untimed if not run.times.host_bound], PEAK)
        assert found.host == HostModel.usual()
        assert found.known.doubts.host.factor() == pytest.approx(3.0)

    def test_without_a_meter_there_is_no_energy(self):
        unmetered = [replace(run, consumption=replace(run.consumption, step_energy_j=None)) for run in record()]
        found = DeviceModel.learn(unmetered, PEAK)
        assert found.energy is None
        assert found.known.doubts.energy is None

    def test_one_watched_run_is_enough_to_answer(self):
        calls = layers(256, 512, 2)
        assert busy_s(DeviceModel.learn([run_of(calls)], PEAK), calls) == pytest.approx(lawful_s(calls), rel=0.1)


class TestKnown:
    def test_it_goes_through_a_file_unchanged(self, model):
        text = json.dumps(as_plain(model.known))
        assert parse_fact(Known, json.loads(text)) == model.known

    def test_so_does_that_of_a_record_that_tells_too_little(self):
        known = DeviceModel.learn(record()[-9:], PEAK).known
        assert parse_fact(Known, json.loads(json.dumps(as_plain(known)))) == known

    def test_with_it_the_same_is_said_without_looking_for_it_again(self, model):
        told = []
        again = DeviceModel.learn(record(), PEAK, known=model.known, tell=told.append)
        calls = layers(700, 1500, 9)
        assert busy_s(again, calls) == pytest.approx(busy_s(model, calls))
        assert again.known == model.known
        assert told == ["learning how long operators take"]

    def test_reaches_that_it_tells_are_believed(self, model):
        reaches = {kind: replace(reach, noise=0.123) for kind, reach in model.known.reaches.items()}
        again = DeviceModel.learn(record(), PEAK, known=replace(model.known, reaches=reaches))
        assert again.operators.reaches == reaches

    def test_finding_it_is_told(self):
        told = []
        DeviceModel.learn(record()[:3], PEAK, tell=told.append)
        assert len(told) == 2


class TestRuns:
    def test_examples_are_of_one_call(self):
        (one, *_) = examples_of(run_of((product(64, 64, 64, calls=4),)))
        assert one.busy_s == pytest.approx(law_s(2 * 64**3, 12 * 64**2))
        assert one.features.flops == 2 * 64**3

    def test_calls_without_a_time_or_a_tensor_are_no_examples(self):
        known = product(64, 64, 64)
        assert len(examples_of(run_of((known, replace(known, busy_s=0.0), replace(known, shapes=()))))) == 1

    @pytest.mark.parametrize(("precision", "arithmetic"), [("fp32", "fp32"), ("tf32", "tf32"), ("bf16", "fp32")])
    def test_single_precision_uses_matrix_units_in_runs_that_were_allowed_to(self, precision, arithmetic):
        run = run_of((product(64, 64, 64),), precision=precision)
        assert examples_of(run)[0].features.arithmetic == arithmetic
        assert switches_of(run).allow("matmul") == switches_of(run).allow("conv") == (precision == "tf32")

    def test_by_default_convolutions_may_and_products_may_not(self):
        assert Switches().allow("conv")
        assert Switches().allow("grouped-conv")
        assert not Switches().allow("matmul")

    def test_a_step_without_products_is_not_like_what_is_asked_for(self):
        assert computes(run_of(layers(256, 512, 2)))
        assert not computes(run_of((relu(4096, 4096),)))
        assert not computes(run_of((relu(4096, 4096), product(8, 8, 8))))

    def test_nor_is_a_recurrent_one(self):
        recurrent = replace(product(512, 512, 512), operator="_cudnn_rnn")
        assert not computes(run_of((recurrent, product(512, 512, 512))))


def test_products_of_the_shipped_record_are_guessed_from_the_others():
    """Each product of the H200's record in turn, a fifth of them at a time; networks of dense layers stay in."""
    with open_shipped("h200") as store:
        runs = [run for run in store.runs() if usable(run) and run.workload.family in ("matmul", "mlp")]
    sheet = sheet_of("H200")
    peak = Peak(
        flops_per_s={one: sheet.peak(one) for one in ("fp32", "tf32", "bf16", "fp16")},
        bandwidth_bytes_per_s=sheet.bandwidth,
    )
    products = [run for run in runs if run.workload.family == "matmul"]
    off = []
    for part in range(5):
        out = products[part::5]
        keys = {run.workload.key for run in out}
        found = DeviceModel.learn([run for run in runs if run.workload.key not in keys], peak)
        for run in out:
            said_s = found.time(run.calls, switches_of(run), trains=run.workload.mode == "train").whole_s
            off.append(abs(said_s / lawful_s(run.calls) - 1))
    assert len(off) >= 40
    assert median(off) < 0.25
    assert sum(one < 0.4 for one in off) > 0.75 * len(off)
