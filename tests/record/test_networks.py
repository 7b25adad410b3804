"""Families of networks: what they are made of, and that they run and learn."""

import dataclasses
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattsmith.record.families import FAMILIES, build, workload_of
from wattsmith.terms.errors import BadTerm

torch = pytest.importorskip("torch")

NETWORKS = [name for name, family in FAMILIES.items() if family.kind == "network"]
TRAINED = [name for name in NETWORKS if "train" in FAMILIES[name].modes]
INFERRED = [name for name in NETWORKS if "infer" in FAMILIES[name].modes]
IMAGES = [name for name in NETWORKS if "channels-last" in FAMILIES[name].layouts]
SMALL = {"image": 8, "width": 8, "blocks": 1, "stages": 2, "layers": 1, "sequence": 8, "cache": 8, "heads": 1}


def small(name, **how):
    """The family's smallest sensible workload."""
    parameters = {key: value for key, value in SMALL.items() if key in FAMILIES[name].parameters}
    batch = min(2, FAMILIES[name].batch.high)
    return workload_of(name, batch, parameters=parameters, **how)


def weights_of(program):
    return [one.detach().clone() for one in program.learning]


def count(**parameters):
    with build(workload_of("cnn", 1, parameters=parameters, mode="infer"), "meta") as program:
        return program.parameters


@given(
    before=st.integers(1, 300),
    added=st.integers(1, 300),
    base=st.integers(1, 32),
    size=st.sampled_from([1, 3, 5, 7]),
    nodes=st.integers(1, 32),
)
@settings(max_examples=15)
def test_parameters_are_linear_in_the_filters_of_a_given_layer(before, added, base, size, nodes):
    fixed = {"base_filters": base, "filter_size": size, "base_nodes": nodes}
    grown = count(filters=before + added, **fixed) - count(filters=before, **fixed)
    # Each filter has a weight per place and depth before it, a bias, and a weight to every node behind it.
    assert grown == added * (base * size**2 + 1 + nodes)


@given(before=st.integers(1, 300), added=st.integers(1, 300), base=st.integers(1, 64), classes=st.integers(2, 100))
@settings(max_examples=15)
def test_parameters_are_linear_in_the_nodes_of_a_given_layer(before, added, base, classes):
    fixed = {"base_nodes": base, "classes": classes}
    grown = count(nodes=before + added, **fixed) - count(nodes=before, **fixed)
    assert grown == added * (base + 1 + classes)


@given(layers=st.integers(0, 5), base=st.integers(1, 32), size=st.sampled_from([1, 3, 5]))
@settings(max_examples=10)
def test_every_convolutional_layer_added_brings_the_same_number_of_parameters(layers, base, size):
    fixed = {"base_filters": base, "filter_size": size}
    grown = count(conv_layers=layers, **fixed) - count(conv_layers=0, **fixed)
    assert grown == layers * base * (base * size**2 + 1)


@given(layers=st.integers(0, 5), base=st.integers(1, 64))
@settings(max_examples=10)
def test_every_fully_connected_layer_added_brings_the_same_number_of_parameters(layers, base):
    grown = count(dense_layers=layers, base_nodes=base) - count(dense_layers=0, base_nodes=base)
    assert grown == layers * base * (base + 1)


def test_every_family_has_a_line_in_the_manual():
    manual = (Path(__file__).parents[2] / "docs" / "record.md").read_text()
    assert [name for name in FAMILIES if f"| `{name}` |" not in manual] == []


def test_the_base_of_the_original_grid_is_small():
    assert count(conv_layers=0, dense_layers=0) < 2_000


@pytest.mark.parametrize("name", TRAINED)
@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_training_step_changes_the_parameters_and_has_a_finite_loss(name, optimizer):
    with build(small(name, mode="train", optimizer=optimizer), "cpu", seed=1) as program:
        before = weights_of(program)
        loss = program.step()
        assert loss is None or bool(torch.isfinite(loss))
        assert any(not torch.equal(old, new) for old, new in zip(before, program.learning, strict=True))
        if program.module is not None:
            assert all(one.grad is None for one in program.learning)


@pytest.mark.parametrize("name", INFERRED)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_inference_gives_finite_numbers_in_its_precision_and_changes_nothing(name, precision):
    with build(small(name, mode="infer", precision=precision), "cpu", seed=1) as program:
        before = weights_of(program)
        output = program.step()
        assert output.dtype == (torch.bfloat16 if precision == "bf16" else torch.float32)
        assert bool(torch.isfinite(output).all())
        assert all(torch.equal(old, new) for old, new in zip(before, program.learning, strict=True))


@pytest.mark.parametrize("name", ["cnn", "mlp", "transformer-encoder"])
def test_low_precision_training_runs_layers_low_and_keeps_weights_in_fp32(name):
    with build(small(name, mode="train", precision="bf16", optimizer="sgd"), "cpu", seed=1) as program:
        seen = []
        for layer in program.module.modules():
            if isinstance(layer, torch.nn.Linear | torch.nn.Conv2d):
                layer.register_forward_hook(lambda _layer, _given, output: seen.append(output.dtype))
        loss = program.step()
        assert set(seen) == {torch.bfloat16}
        assert {one.dtype for one in program.learning} == {torch.float32}
        assert bool(torch.isfinite(loss))


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_half_precision_trains(name):
    with build(small(name, mode="train", precision="fp16", optimizer="adamw"), "cpu", seed=1) as program:
        before = weights_of(program)
        assert bool(torch.isfinite(program.step()))
        assert any(not torch.equal(old, new) for old, new in zip(before, program.learning, strict=True))


@pytest.mark.parametrize("name", IMAGES)
def test_channels_last_reaches_inputs_filters_and_outputs(name):
    with build(small(name, mode="infer", layout="channels-last"), "cpu") as program:
        assert program.inputs[0].is_contiguous(memory_format=torch.channels_last)
        seen = []
        for layer in program.module.modules():
            if isinstance(layer, torch.nn.Conv2d):
                assert layer.weight.is_contiguous(memory_format=torch.channels_last)
                layer.register_forward_hook(
                    lambda _layer, _given, output: seen.append(output.is_contiguous(memory_format=torch.channels_last))
                )
        program.step()
        assert seen
        assert all(seen)


def test_gradients_of_two_passes_add_up_before_one_update():
    """Halved losses over the same batch twice give the update of one pass."""
    once, twice = (
        build(small("mlp", mode="train", optimizer="sgd", accumulation=passes), "cpu", seed=3) for passes in (1, 2)
    )
    with once, twice:
        once.step()
        twice.step()
        for one, other in zip(once.learning, twice.learning, strict=True):
            torch.testing.assert_close(one, other)


def test_the_same_seed_gives_the_same_network_and_inputs_and_another_does_not():
    first, same, other = (build(small("mlp", mode="infer"), "cpu", seed=seed) for seed in (5, 5, 6))
    with first, same, other:
        assert torch.equal(first.step(), same.step())
        assert not torch.equal(first.inputs[0], other.inputs[0])


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(0)
    before = torch.get_rng_state()
    build(small("mlp", mode="infer"), "cpu", seed=9).close()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize(("precision", "allowed"), [("tf32", True), ("fp32", False), ("bf16", False)])
def test_tf32_is_set_while_a_program_lives_and_then_put_back(precision, allowed):
    def as_found():
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32

    before = as_found()
    with build(small("mlp", mode="infer", precision=precision), "cpu") as program:
        program.step()
        assert as_found() == (("high", True) if allowed else ("highest", False))
    assert as_found() == before


def test_inputs_are_never_zeros():
    for name in NETWORKS:
        with build(small(name), "cpu", seed=2) as program:
            for one in program.inputs:
                assert one.float().abs().sum() > 0


def test_a_sample_has_the_shape_of_the_family():
    with build(workload_of("cnn", 4, parameters={"image": 28, "channels": 1}), "meta") as program:
        assert program.sample_shape == (1, 28, 28)
        assert program.parameter_bytes == 4 * program.parameters


def test_decoding_writes_the_new_token_into_its_cache():
    with build(small("transformer-decode"), "cpu", seed=4) as program:
        cache = program.resident[-1]
        before = cache.clone()
        program.step()
        assert torch.equal(before[:, :, :-1], cache[:, :, :-1])
        assert not torch.equal(before[:, :, -1], cache[:, :, -1])


def test_a_wrapped_network_is_the_one_that_runs():
    class Twice(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return 2 * self.inner(x)

    plain = build(small("mlp", mode="infer"), "cpu", seed=1)
    doubled = build(small("mlp", mode="infer"), "cpu", seed=1, wrap=Twice)
    with plain, doubled:
        torch.testing.assert_close(2 * plain.step(), doubled.step())


def test_a_closed_program_takes_no_step_and_closes_again_in_peace():
    program = build(small("mlp"), "cpu")
    program.close()
    program.close()
    with pytest.raises(BadTerm, match="closed"):
        program.step()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"family": "vgg"}, "there is no family 'vgg'; there are: cnn, residual"),
        ({"parameters": {}}, "filters is missing"),
        ({"parameters": {"filters": 0}}, "filters must be a whole number from 1 to 4096, got 0"),
        ({"parameters": {"filters": 8.5}}, "filters must be a whole number"),
        ({"parameters": {"filter_size": 4}}, "filter_size must be 3 or 1 or 5 or 7, got 4"),
        ({"parameters": {"depth": 3}}, "has no parameter depth; it has image"),
        ({"batch": 1_000_000}, "batch must be a whole number from 1 to 8192, got 1000000"),
        ({"mode": "infer", "optimizer": "sgd"}, "optimizer must be None, got 'sgd'"),
        ({"optimizer": "lion"}, "optimizer must be None or 'sgd' or 'adamw', got 'lion'"),
        ({"mode": "infer", "accumulation": 2}, "accumulation must be 1"),
        ({"kind": "operator"}, "kind must be 'network', got 'operator'"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(change, message):
    good = workload_of("cnn", 1, parameters={})
    parameters = change.get("parameters")
    if parameters:
        change = {**change, "parameters": {**good.parameters, **parameters}}
    with pytest.raises(BadTerm) as refused:
        build(dataclasses.replace(good, **change), "meta")
    assert message in str(refused.value)


def test_heads_that_do_not_share_the_width_are_refused():
    with pytest.raises(BadTerm, match="width over heads must be a multiple of 8"):
        build(workload_of("transformer-encoder", 1, parameters={"width": 60, "heads": 4}), "meta")


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:RNN module weights")  # PyTorch flattens none in bf16: whoever casts an LSTM sees it
@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_steps_on_a_gpu_in_every_precision(name):
    family = FAMILIES[name]
    for precision in family.precisions:
        for mode in family.modes:
            optimizer = "adamw" if mode == "train" else None
            with build(small(name, mode=mode, precision=precision, optimizer=optimizer), "cuda:0", seed=1) as program:
                for _ in range(2):
                    given = program.step()
                assert given is None or bool(torch.isfinite(given).all())


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, when it loads its compiler
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
@pytest.mark.timeout(600)  # a C++ compiler, beside other tests
def test_a_compiled_network_gives_what_the_eager_one_gives():
    eager, compiled = (build(small("mlp", mode="infer", compiled=one), "cpu", seed=1) for one in (False, True))
    with eager, compiled:
        torch.testing.assert_close(eager.step(), compiled.step())
