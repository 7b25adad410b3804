"""What a step does, found on meta tensors."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wattsmith.record.families import FAMILIES, build, workload_of
from wattsmith.record.structure import structure_of, trace_step

torch = pytest.importorskip("torch")
nn = torch.nn

HEAVY = ("conv", "grouped-conv", "matmul", "attention")
KIB = 2**10


def heavy_flops(structure):
    return sum(count.flops for name, count in structure.operators.items() if name in HEAVY)


def structure(name, batch=None, *, parameters, **how):
    return structure_of(workload_of(name, batch, parameters=parameters, **how))


def flops_by_torch(workload):
    """As torch counts them, on meta and without our stand-ins."""
    from torch.utils.flop_counter import FlopCounterMode

    with build(workload, "meta") as program:
        program.step()
        with FlopCounterMode(display=False) as counter:
            program.step()
    return counter.get_total_flops()


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("cnn", {"mode": "infer"}),
        ("cnn", {"mode": "train", "optimizer": "sgd"}),
        ("residual", {"mode": "train", "optimizer": "adamw"}),
        ("bottleneck", {"mode": "train", "layout": "channels-last"}),
        ("mlp", {"mode": "train", "optimizer": "adamw"}),
        ("transformer-encoder", {"mode": "infer"}),
        ("embedding-mlp", {"mode": "train"}),
        ("matmul", {"mode": "train"}),
        ("conv", {"mode": "train"}),
        ("conv-grad-weight", {"mode": "infer"}),
    ],
)
def test_products_and_convolutions_are_counted_as_torch_counts_them(name, how):
    workload = workload_of(name, parameters={}, **how)
    assert heavy_flops(structure_of(workload)) == flops_by_torch(workload)


def test_a_matrix_product_takes_two_operations_per_multiplication_and_moves_three_matrices():
    found = structure("matmul", 1, parameters={"m": 4, "n": 5, "k": 6}, mode="infer")
    assert found.flops == 2 * 4 * 5 * 6
    assert found.moved_bytes == 4 * (4 * 6 + 6 * 5 + 4 * 5)
    assert found.launches == 1
    assert found.operators["matmul"].calls == 1


def test_backward_of_a_matrix_product_is_two_more():
    found = structure("matmul", 1, parameters={"m": 4, "n": 5, "k": 6}, mode="train")
    assert found.flops == 3 * 2 * 4 * 5 * 6


@pytest.mark.parametrize("groups", [1, 4, "depth"])
def test_both_gradients_of_a_convolution_take_what_the_way_forward_takes(groups):
    parameters = {"image": 8, "depth": 32, "filters": 32, "groups": groups}
    forward = structure("conv", 2, parameters=parameters, mode="infer").flops
    assert forward == 2 * (2 * 8 * 8) * 32 * (32 // (32 if groups == "depth" else groups)) * 9
    assert structure("conv", 2, parameters=parameters, mode="train").flops == 3 * forward
    assert structure("conv-grad-input", 2, parameters=parameters).flops == forward
    assert structure("conv-grad-weight", 2, parameters=parameters).flops == forward


def test_causal_attention_takes_half():
    both = [structure("attention", 1, parameters={"causal": one}, mode="infer").flops for one in (False, True)]
    assert both[0] == 2 * both[1] == 2 * 2 * 4 * 64 * 64 * 64


def test_attention_keeps_nothing_of_size_length_by_length():
    parameters = {"sequence": 4096, "heads": 1, "head_width": 64}
    found = structure("attention", 1, parameters=parameters, precision="bf16", mode="train")
    assert found.operators["attention"].calls == 2
    assert found.peak_bytes < 4096 * 4096 * 2 / 2


def test_a_copy_reads_once_and_writes_once():
    found = structure("copy", 1, parameters={"rows": 16, "columns": 16})
    assert found.moved_bytes == 2 * 16 * 16 * 4
    assert found.flops == 0


def test_of_a_table_only_the_rows_asked_for_are_read():
    found = structure("embedding", 2, parameters={"rows": 10**6, "width": 8, "lookups": 3}, mode="infer")
    assert found.moved_bytes == 2 * (2 * 3 * 8 * 4) + 2 * 3 * 8  # rows read and written, and numbers of rows
    assert found.peak_bytes > 10**6 * 8 * 4


def test_launches_are_those_of_the_launch_family():
    assert structure("launch", parameters={"launches": 7}).launches == 7


@pytest.mark.parametrize(("optimizer", "copies"), [("sgd", 3), ("adamw", 4)])
def test_an_optimizer_holds_weights_gradients_and_its_state(optimizer, copies):
    """Weights, gradients and momentum; or two moments. What a step needs in between comes on top."""
    found = structure("optimizer-step", parameters={"tensors": 4, "width": 64}, optimizer=optimizer)
    held = copies * 4 * 64 * 64 * 4
    assert held <= found.peak_bytes <= held + 2 * 4 * 64 * 64 * 4
    assert found.parameters == 4 * 64 * 64


def test_peak_of_inference_is_weights_and_two_activations():
    """A chain of wide layers: while one output is made, its input is still there."""
    found = structure("mlp", 256, parameters={"features": 64, "width": 64, "layers": 8, "classes": 64}, mode="infer")
    activation = 256 * 64 * 4
    assert found.peak_bytes == found.parameter_bytes + activation + 2 * activation


def test_peak_of_training_keeps_every_activation_for_backward():
    def peak(layers):
        parameters = {"features": 64, "width": 64, "layers": layers, "classes": 64}
        found = structure("mlp", 4096, parameters=parameters, mode="train")
        return found.peak_bytes - 2 * found.parameter_bytes

    # A rectified activation is its own memory of where it was positive, and the linear layer's output is gone.
    per_layer = (peak(9) - peak(5)) / 4 / (4096 * 64 * 4)
    assert per_layer == pytest.approx(1.0, abs=0.02)


@given(width=st.integers(1, 8), batch=st.integers(1, 32))
@settings(max_examples=10)
def test_operations_and_memory_are_affine_in_the_batch(width, batch):
    one, two, three = (
        structure("mlp", size, parameters={"width": 8 * width}, mode="train", optimizer="sgd")
        for size in (batch, 2 * batch, 3 * batch)
    )
    assert heavy_flops(three) - heavy_flops(two) == heavy_flops(two) - heavy_flops(one)
    assert three.moved_bytes - two.moved_bytes == two.moved_bytes - one.moved_bytes


def test_layers_and_their_strength_are_found():
    parameters = {"conv_layers": 2, "base_filters": 4, "filters": 16, "base_nodes": 8, "nodes": 32, "dense_layers": 1}
    for precision in ("fp32", "bf16"):
        for accumulation in (1, 2):
            found = structure("cnn", 2, parameters=parameters, precision=precision, accumulation=accumulation)
            assert (found.conv_layers, found.dense_layers) == (4, 4)
            assert found.conv_strength == 4 * 3 + 4 * 4 + 4 * 4 + 16 * 4
            assert found.dense_strength == 8 * 16 + 8 * 8 + 32 * 8 + 10 * 32


def test_autocast_halves_what_activations_take_and_adds_casts():
    parameters = {"image": 32, "width": 32, "blocks": 2, "stages": 2}
    full, low = (structure("residual", 64, parameters=parameters, precision=one) for one in ("fp32", "bf16"))
    assert low.flops == pytest.approx(full.flops, rel=0.02)
    assert 0.5 < low.peak_bytes / full.peak_bytes < 0.6
    assert low.launches > full.launches
    assert low.parameter_bytes == full.parameter_bytes


def test_autocast_keeps_norms_and_losses_in_fp32():
    from wattsmith.record.meta import autocast_rules

    x, weight = torch.randn(4, 8, device="meta"), torch.nn.Parameter(torch.randn(8, 8, device="meta"))
    with autocast_rules(torch.bfloat16):
        low = torch.nn.functional.linear(x, weight)
        assert low.dtype == torch.bfloat16
        assert (low @ low.t()).dtype == torch.bfloat16
        assert low.relu().dtype == torch.bfloat16
        assert (low + x).dtype == torch.float32
        assert torch.nn.functional.layer_norm(low, (8,)).dtype == torch.float32
        assert low.softmax(-1).dtype == torch.float32
        truth = torch.zeros(4, dtype=torch.long, device="meta")
        loss = torch.nn.functional.cross_entropy(low, truth)
        assert loss.dtype == torch.float32
        loss.backward()
    assert weight.grad.dtype == torch.float32


def recurrent_structure(layer, given, device="meta"):
    batch = [one for one in (given if isinstance(given, tuple) else [given]) if one is not None]
    return trace_step(lambda: layer(given), parameters=list(layer.parameters()), inputs=batch, device=device)


def test_recurrent_layers_are_counted_each_way_and_taken_as_a_gpu_takes_them():
    with torch.device("meta"):
        words = torch.empty(5, 7, 16)  # 5 steps, 7 sequences
        lstm = recurrent_structure(nn.LSTM(16, 32, 2, batch_first=True), words)
        gru = recurrent_structure(nn.GRU(16, 32, bidirectional=True), words)
        plain = recurrent_structure(nn.RNN(16, 32, bias=False), words)
        narrow = recurrent_structure(nn.LSTM(16, 32, proj_size=8), words)
        dense = recurrent_structure(nn.Linear(16, 32), words)
    assert [one.recurrent_layers for one in (lstm, gru, plain, narrow, dense)] == [2, 2, 1, 1, 0]
    # Per step and sequence: 3 gates of 32, from 16 inputs and 32 states, two ways.
    assert gru.operators["matmul"].flops == 2 * (5 * 7) * (3 * 32) * (16 + 32) * 2
    assert gru.operators["matmul"].calls == 4
    assert plain.operators["matmul"].flops == 2 * (5 * 7) * 32 * (16 + 32)


def test_recurrent_layers_are_counted_where_they_are_taken_apart_too():
    sequences = torch.randn(5, 3, 16)
    packed = nn.utils.rnn.pack_padded_sequence(sequences, torch.tensor([5, 4, 2]))
    assert recurrent_structure(nn.GRU(16, 32, 2), packed, device="cpu").recurrent_layers == 2
    assert recurrent_structure(nn.LSTM(16, 32, 2), packed, device="cpu").recurrent_layers == 2
    assert recurrent_structure(nn.LSTMCell(16, 32), sequences[0], device="cpu").recurrent_layers == 1


def test_an_lstm_counts_its_products_whatever_its_length():
    parameters = {"sequence": 100, "features": 16, "width": 32, "layers": 2}
    found = structure("lstm", 4, parameters=parameters, mode="infer")
    gates = 2 * 4 * 100 * 4 * 32 * ((16 + 32) + (32 + 32))
    assert found.operators["matmul"].flops == gates + 2 * 4 * 32 * 10
    assert found.operators["matmul"].calls == 5
    assert found.launches > 200


def test_a_users_own_model_is_traced_too():
    model = torch.nn.Sequential(
        torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True), torch.nn.Linear(32, 3)
    ).to("meta")
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    batch = torch.randn(2, 10, 32, device="meta")

    def step():
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()

    found = trace_step(step, inputs=[batch])
    assert found.parameters == sum(one.numel() for one in model.parameters())
    assert found.input_bytes == 2 * 10 * 32 * 4
    assert found.operators["attention"].calls == 2
    assert found.dense_layers == 5
    assert found.peak_bytes >= 4 * found.parameter_bytes
    low = trace_step(step, inputs=[batch], precision="bf16")
    assert low.parameter_bytes == found.parameter_bytes
    assert low.launches > found.launches


def test_large_networks_are_traced_in_seconds():
    began_s = time.process_time()
    resnet = {"image": 224, "width": 64, "blocks": 4, "stages": 4, "classes": 1000}
    structure("bottleneck", 32, parameters=resnet, optimizer="adamw")
    bert = {"sequence": 512, "width": 768, "heads": 12, "layers": 12, "vocabulary": 30_522}
    structure("transformer-encoder", 8, parameters=bert, optimizer="adamw")
    assert time.process_time() - began_s < 6


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_has_a_structure(name):
    for mode in FAMILIES[name].modes:
        found = structure(name, parameters={}, mode=mode)
        assert found.launches > 0
        assert found.moved_bytes > 0
        assert found.peak_bytes > 0


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("bottleneck", {"image": 128, "width": 64, "blocks": 3, "stages": 3}),
        ("transformer-encoder", {"sequence": 512, "width": 768, "heads": 12, "layers": 6, "vocabulary": 30_000}),
        ("transformer-decoder", {"sequence": 512, "width": 768, "heads": 12, "layers": 6, "vocabulary": 30_000}),
        ("lstm", {"sequence": 128, "features": 512, "width": 1024, "layers": 2}),
        ("mlp", {"features": 1024, "width": 4096, "layers": 6}),
    ],
)
def test_live_tensors_are_most_of_what_a_gpu_allocates(name, parameters, precision):
    """What kernels take to work in (a fifth, for bf16 convolutions) is the estimate's part: estimate/memory.py."""
    workload = workload_of(name, 32, parameters=parameters, mode="train", optimizer="adamw", precision=precision)
    with build(workload, "cuda:0", seed=1) as program:
        program.step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        program.step()
        torch.cuda.synchronize()
        measured = torch.cuda.max_memory_allocated()
    assert 0.75 * measured <= structure_of(workload).peak_bytes <= 1.02 * measured
