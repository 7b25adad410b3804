"""A step watched live: the same calls as on "meta", and where the time went."""

import pytest

from wattsmith.record.calls import CallKey
from wattsmith.record.families import build, workload_of
from wattsmith.record.live import Seen, Watched, attribute, if_unchanged, union_length, watch_cpu
from wattsmith.record.structure import Ledger, trace
from wattsmith.terms.run import OperatorCall

CALL = CallKey("mm", "matmul", "float32", ((2, 2), (2, 2)), ())
OTHER = CallKey("relu", "elementwise", "float32", ((2, 2),), ())


@pytest.mark.parametrize("family", ["residual", "grouped", "transformer-encoder", "mlp"])
def test_a_live_step_calls_what_the_trace_said(family):
    workload = workload_of(family, 2, parameters={}, mode="infer" if "transformer" in family else "train")
    with build(workload, "cpu") as program:
        live = watch_cpu(program.step, 1).calls
    with build(workload, "meta") as program:
        traced = trace(program.step, parameters=program.learning, inputs=program.inputs).calls
    assert sum(one.calls for one in live) == sum(one.calls for one in traced)
    assert sum(one.moved_bytes for one in live) == pytest.approx(sum(one.moved_bytes for one in traced), rel=0.01)


def test_calls_on_the_cpu_are_timed():
    with build(workload_of("matmul", 1, parameters={"m": 512, "n": 512, "k": 512}, mode="infer"), "cpu") as program:
        program.step()
        (call,) = watch_cpu(program.step, 3).calls
    assert call.operator == "mm"
    assert call.calls == 1
    assert call.flops == 2 * 512**3
    assert call.busy_s > 0


def test_a_kernel_belongs_to_the_call_that_queued_it():
    ledger = Ledger(device="cuda")
    for key in (CALL, OTHER):
        ledger.calls.add(key, 1.0, 1.0)
    # Two calls on the host, at 0-10 and 20-30; three kernels, queued at 5, 25 and 26, that ran much later.
    seen = Seen(
        kernels=[(100, 40, 1), (140, 7, 2), (150, 3, 3)],
        queued_at={1: 5, 2: 25, 3: 26},
        marks=[(0, 10, 0), (20, 30, 1)],
    )
    assert attribute(seen, [CALL, OTHER], ledger)
    assert ledger.calls.tallies[CALL].busy_s == pytest.approx(40e-9)
    assert ledger.calls.tallies[OTHER].busy_s == pytest.approx(10e-9)


def test_kernels_of_a_call_that_run_side_by_side_count_once():
    ledger = Ledger(device="cuda")
    ledger.calls.add(CALL, 1.0, 1.0)
    seen = Seen(kernels=[(100, 40, 1), (110, 40, 2)], queued_at={1: 5, 2: 6}, marks=[(0, 10, 0)])
    assert attribute(seen, [CALL], ledger)
    assert ledger.calls.tallies[CALL].busy_s == pytest.approx(50e-9)


def test_nothing_is_said_of_calls_when_too_much_is_unknown():
    ledger = Ledger(device="cuda")
    ledger.calls.add(CALL, 1.0, 1.0)
    # The second kernel was queued between two calls, the third by nobody.
    seen = Seen(kernels=[(100, 80, 1), (200, 15, 2), (300, 5, 3)], queued_at={1: 5, 2: 15}, marks=[(0, 10, 0)])
    assert not attribute(seen, [CALL], ledger)


def test_spans_that_overlap_count_once():
    assert union_length([(0, 10), (5, 15), (20, 30), (22, 25)]) == 25
    assert union_length([]) == 0


def test_calls_that_differ_in_nothing_are_counted_together():
    ledger = Ledger()
    for _ in range(4):
        ledger.calls.add(CALL, 16.0, 48.0)
    assert ledger.calls.of_one_step(2, timed=False) == (
        OperatorCall(
            operator="mm",
            kind="matmul",
            dtype="float32",
            shapes=((2, 2), (2, 2)),
            calls=2,
            flops=32.0,
            moved_bytes=96.0,
        ),
    )


@pytest.mark.parametrize(("recorded_s", "kept"), [(2.0, True), (2.4, True), (1.7, True), (2.6, False), (40.0, False)])
def test_calls_of_a_step_that_recording_changed_are_not_kept(recorded_s, kept):
    call = OperatorCall(
        operator="mm", kind="matmul", dtype="float32", shapes=((2, 2), (2, 2)), calls=1, flops=16.0, moved_bytes=48.0
    )
    seen = if_unchanged(Watched(busy_s=2.0), Watched(busy_s=recorded_s, calls=(call,)))
    assert seen == Watched(busy_s=2.0, calls=(call,) if kept else ())


@pytest.mark.gpu
def test_on_a_gpu_all_kernels_have_a_call():
    from wattsmith.record.live import watch

    with build(workload_of("residual", 8, parameters={}), "cuda:0") as program:
        for _ in range(2):
            program.step()
        seen = watch(program.step, "cuda:0", 1)
    assert seen.busy_s == pytest.approx(sum(one.busy_s for one in seen.calls), rel=0.02)
