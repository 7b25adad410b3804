"""Families of single operators, alone and with their backward."""

import dataclasses

import pytest

from wattsmith.record.families import FAMILIES, build, workload_of
from wattsmith.terms.errors import BadTerm

torch = pytest.importorskip("torch")

OPERATORS = [name for name, family in FAMILIES.items() if family.kind == "operator"]
CASES = [(name, mode) for name in OPERATORS for mode in FAMILIES[name].modes]
SHAPES = [
    {"image": 9, "depth": 4, "filters": 8, "filter_size": 3, "stride": 1, "groups": 1},
    {"image": 8, "depth": 4, "filters": 8, "filter_size": 5, "stride": 2, "groups": 4},
    {"image": 8, "depth": 6, "filters": 6, "filter_size": 3, "stride": 1, "groups": "depth"},
]


@pytest.mark.parametrize(("name", "mode"), CASES)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_operator_steps_in_its_precision(name, mode, precision):
    if precision not in FAMILIES[name].precisions:
        pytest.skip(f"{name} has no {precision}")
    with build(workload_of(name, parameters={}, mode=mode, precision=precision), "cpu", seed=1) as program:
        program.step()
        output = program.step()
        if output is not None:
            assert output.dtype == {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
            assert bool(torch.isfinite(output).all())


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", ["contiguous", "channels-last"])
def test_the_two_gradients_of_a_convolution_are_those_of_autograd(shape, layout):
    groups = shape["depth"] if shape["groups"] == "depth" else shape["groups"]
    for name, which in (("conv-grad-input", 0), ("conv-grad-weight", 1)):
        with build(workload_of(name, 2, parameters=shape, layout=layout), "cpu", seed=7) as program:
            gradient, image, weight = (one.clone().requires_grad_() for one in program.inputs)
            output = torch.nn.functional.conv2d(
                image, weight, stride=shape["stride"], padding=shape["filter_size"] // 2, groups=groups
            )
            expected = torch.autograd.grad(output, (image, weight), gradient)[which]
            torch.testing.assert_close(program.step(), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_way_forward_is_the_convolution(shape):
    groups = shape["depth"] if shape["groups"] == "depth" else shape["groups"]
    with build(workload_of("conv", 2, parameters=shape, mode="infer"), "cpu", seed=7) as program:
        image, weight = program.inputs
        expected = torch.nn.functional.conv2d(
            image, weight, stride=shape["stride"], padding=shape["filter_size"] // 2, groups=groups
        )
        torch.testing.assert_close(program.step(), expected)


@pytest.mark.parametrize(("batch", "shape"), [(1, (4, 3)), (5, (5, 4, 3))])
def test_one_matrix_product_is_plain_and_several_are_batched(batch, shape):
    with build(workload_of("matmul", batch, parameters={"m": 4, "n": 3, "k": 2}, mode="infer"), "cpu") as program:
        assert program.step().shape == shape


def test_attention_that_is_causal_sees_nothing_of_what_follows():
    parameters = {"sequence": 4, "heads": 1, "head_width": 32, "causal": True}
    with build(workload_of("attention", 1, parameters=parameters, mode="infer"), "cpu", seed=1) as program:
        first = program.step()[0, 0, 0]
        torch.testing.assert_close(first, program.inputs[2][0, 0, 0])


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_an_update_moves_every_element(optimizer):
    workload = workload_of("optimizer-update", parameters={"elements": 64}, optimizer=optimizer)
    with build(workload, "cpu", seed=1) as program:
        before = program.learning[0].detach().clone()
        program.step()
        assert int((before != program.learning[0]).sum()) > 60


def test_channels_last_reaches_operators():
    for name in ("conv", "pool", "batch-norm"):
        with build(workload_of(name, parameters={}, layout="channels-last"), "cpu") as program:
            assert program.inputs[0].is_contiguous(memory_format=torch.channels_last)
            assert program.step().is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("softmax", {"precision": "tf32"}, "precision must be 'fp32' or 'bf16' or 'fp16', got 'tf32'"),
        ("matmul", {"optimizer": "sgd"}, "optimizer must be None, got 'sgd'"),
        ("optimizer-update", {"optimizer": None}, "optimizer must be 'sgd' or 'adamw', got None"),
        ("copy", {"mode": "train"}, "mode must be 'infer', got 'train'"),
        ("launch", {"batch": 2}, "batch must be a whole number from 1 to 1, got 2"),
        ("matmul", {"layout": "channels-last"}, "layout must be 'contiguous', got 'channels-last'"),
    ],
)
def test_an_operator_that_makes_no_sense_is_refused(name, change, message):
    with pytest.raises(BadTerm) as refused:
        build(dataclasses.replace(workload_of(name, parameters={}), **change), "meta")
    assert message in str(refused.value)


def test_groups_that_do_not_share_the_depth_are_refused():
    with pytest.raises(BadTerm, match="multiples of the 4 groups, got 6 and 8"):
        build(workload_of("conv", 1, parameters={"depth": 6, "filters": 8, "groups": 4}), "meta")


@pytest.mark.gpu
@pytest.mark.parametrize(("name", "mode"), CASES)
def test_every_operator_steps_on_a_gpu_in_every_precision(name, mode):
    for precision in FAMILIES[name].precisions:
        with build(workload_of(name, parameters={}, mode=mode, precision=precision), "cuda:0", seed=1) as program:
            for _ in range(2):
                given = program.step()
            assert given is None or bool(torch.isfinite(given).all())
