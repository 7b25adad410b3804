"""What decides the time of a call: sizes as doublings, and words."""

import math

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, floats, integers, lists, sampled_from, text, tuples

from wattsmith.estimate.shapes import SIZES, features_of, tiles
from wattsmith.terms.run import OperatorCall


def call(operator, kind, *shapes, dtype="float32", calls=1, flops=0.0, moved_bytes=0.0, **options):
    return OperatorCall(
        operator=operator,
        kind=kind,
        dtype=dtype,
        shapes=shapes,
        options=options,
        calls=calls,
        flops=flops,
        moved_bytes=moved_bytes,
    )


def seen(one, tf32=False, trains=True):
    return features_of(one, tf32=tf32, trains=trains)


def doublings(*sizes):
    """SIZES, which are powers of two, as a call's sizes."""
    return tuple([math.log2(one) for one in sizes] + [0.0] * (SIZES - len(sizes)))


class TestProducts:
    def test_a_product_is_known_by_its_three_sizes_and_the_tiles_of_its_result(self):
        found = seen(call("mm", "matmul", (64, 1024), (1024, 256)))
        assert found.model == "matmul"
        assert found.sizes == doublings(64, 256, 1024, 1, 2)
        assert found.serial == 1024
        assert found.words == ("mm", "fp32", "cc", "even")

    def test_a_product_with_a_bias_is_the_same_product(self):
        plain = seen(call("mm", "matmul", (64, 1024), (1024, 256)))
        assert seen(call("addmm", "matmul", (256,), (64, 1024), (1024, 256))) == plain

    def test_a_batch_of_products_is_one_size_more(self):
        found = seen(call("bmm", "matmul", (8, 64, 1024), (8, 1024, 256)))
        assert found.sizes == doublings(64, 256, 1024, 8, 8)
        assert found.words[0] == "bmm"

    def test_tiles_are_begun_even_if_they_are_not_filled(self):
        assert tiles(128, 128) == tiles(1, 1) == 1
        assert tiles(129, 257) == 6

    @pytest.mark.parametrize("size", [100, 1001])
    def test_sizes_that_are_no_multiples_of_eight_are_odd(self, size):
        assert seen(call("mm", "matmul", (64, size), (size, 256))).words[3] == "odd"

    def test_a_transposed_factor_is_another_word(self):
        assert seen(call("mm", "matmul", (64, 64), (64, 64), order="tc")).words[2] == "tc"


class TestConvolutions:
    IMAGE, WEIGHT, RESULT = (32, 64, 64, 64), (128, 64, 4, 4), (32, 128, 32, 32)

    def test_a_convolution_is_known_by_places_channels_and_window(self):
        found = seen(call("convolution", "conv", self.IMAGE, self.WEIGHT, stride="2,2", groups=1))
        assert found.model == "conv"
        assert found.sizes == doublings(32 * 32 * 32, 64, 128, 16, 4, 32, 1)
        assert found.serial == 64 * 16

    def test_its_backward_has_the_sizes_of_its_forward_and_sums_over_places(self):
        ahead = seen(call("convolution", "conv", self.IMAGE, self.WEIGHT, stride="2,2"))
        shapes = (self.RESULT, self.IMAGE, self.WEIGHT)
        back = seen(call("convolution_backward", "conv", *shapes, stride="2,2", wanted="1,1,0"))
        assert back.sizes == ahead.sizes
        assert back.serial == 32 * 32 * 32
        assert back.words[0] == "convolution_backward 1,1"

    def test_a_backward_that_needs_no_gradient_of_its_image_is_another_operator(self):
        shapes = (self.RESULT, self.IMAGE, self.WEIGHT)
        first = seen(call("convolution_backward", "conv", *shapes, wanted="0,1,0"))
        assert first.words[0] == "convolution_backward 0,1"

    @pytest.mark.parametrize(("groups", "depth", "model"), [(1, 64, "conv"), (8, 8, "grouped"), (64, 1, "depthwise")])
    def test_groups_decide_the_model(self, groups, depth, model):
        found = seen(call("convolution", "grouped-conv", self.IMAGE, (128, depth, 3, 3), groups=groups))
        assert found.model == model
        assert found.sizes[6] == math.log2(groups)

    def test_three_channels_are_odd(self):
        assert seen(call("convolution", "conv", (8, 3, 64, 64), (64, 3, 3, 3))).words[3] == "odd"

    def test_one_along_a_line_is_a_convolution_too(self):
        found = seen(call("convolution", "conv", (8, 16, 128), (32, 16, 4), stride="2"))
        assert found.sizes == doublings(8 * 64, 16, 32, 4, 2, 8, 1)

    def test_one_that_does_not_tell_its_weights_is_a_light_operator(self):
        assert seen(call("convolution", "conv", (8, 16, 128))).model == "elementwise"


class TestAttention:
    Q, K = (2, 8, 256, 64), (2, 8, 512, 64)

    def test_it_is_known_by_heads_lengths_and_width(self):
        found = seen(call("_scaled_dot_product_flash_attention", "attention", self.Q, self.K, self.K, causal=False))
        assert found.model == "attention"
        assert found.sizes == doublings(16, 256, 512, 64, 1, 1)
        assert found.words[0] == "attention"

    def test_its_backward_skips_the_gradient_that_comes_first(self):
        name = "_scaled_dot_product_flash_attention_backward"
        found = seen(call(name, "attention", self.Q, self.Q, self.K, self.K, self.Q, (2, 8, 256)))
        assert found.sizes == doublings(16, 256, 512, 64, 1, 1)
        assert found.words[0] == "attention-back"

    def test_looking_back_only_is_a_doubling(self):
        plain = seen(call("attention", "attention", self.Q, self.Q, self.Q, causal=False))
        causal = seen(call("attention", "attention", self.Q, self.Q, self.Q, causal=True))
        assert causal.sizes[4] - plain.sizes[4] == 1

    @pytest.mark.parametrize("kernel", ["_efficient_attention", "_cudnn_attention"])
    def test_a_mask_is_seen_in_both_directions(self, kernel):
        mask, lse = (2, 1, 256, 512), (2, 8, 256, 1)
        ahead = call(kernel, "attention", self.Q, self.K, self.K, mask)
        rest = (mask, self.Q) if kernel == "_efficient_attention" else (self.Q, lse, (), (), mask)
        back = call(kernel + "_backward", "attention", self.Q, self.Q, self.K, self.K, *rest)
        assert seen(ahead).sizes[5] == seen(back).sizes[5] == 1

    def test_a_result_as_wide_as_it_is_long_is_no_mask(self):
        square = (2, 8, 64, 64)
        back = call("_efficient_attention_backward", "attention", *[square] * 5, (2, 8, 64))
        assert seen(back).sizes[5] == 0


class TestNormsAndReductions:
    IMAGE = (16, 32, 8, 8)

    def test_a_batch_norm_that_trains_takes_each_channels_elements_one_after_the_other(self):
        found = seen(call("native_batch_norm", "norm", self.IMAGE, (32,), (32,)))
        assert found.model == "batch-norm"
        assert found.sizes == doublings(16 * 32 * 64, 32, 64)
        assert found.serial == 16 * 64

    def test_one_that_infers_only_scales(self):
        assert seen(call("native_batch_norm", "norm", self.IMAGE, (32,)), trains=False).model == "norm"

    def test_a_layer_norm_goes_along_its_width(self):
        found = seen(call("native_layer_norm", "norm", (8, 128, 512), (512,), (512,)))
        assert (found.model, found.serial) == ("norm", 512)
        assert found.sizes == doublings(8 * 128 * 512, 512)

    @pytest.mark.parametrize(
        ("dim", "along", "inner"),
        [
            ({"dim": "0"}, 64, 16 * 32),
            ({"dim": "1"}, 16, 32),
            ({"dim": "-1"}, 32, 1),
            ({"dim": "-1,-2"}, 16 * 32, 1),
            ({}, 64 * 16 * 32, 1),
            ({"dim": "7"}, 64 * 16 * 32, 1),  # not of this tensor: as if it were not told
        ],
    )
    def test_a_sum_is_known_by_what_it_goes_along_and_what_lies_within(self, dim, along, inner):
        found = seen(call("sum", "reduce", (64, 16, 32), **dim))
        assert found.model == "reduce"
        assert found.sizes == doublings(64 * 16 * 32, along, inner)
        assert found.serial == along

    def test_a_softmax_goes_along_a_dimension_too(self):
        assert seen(call("_softmax", "softmax", (64, 16), dim="-1")).sizes == doublings(1024, 16, 1)

    def test_a_pool_has_a_window(self):
        assert seen(call("avg_pool2d", "pool", (2, 4, 8, 8), kernel="4,4")).sizes == doublings(512, 16)


class TestLightOnes:
    def test_what_only_moves_bytes_is_known_by_them_and_its_largest_tensors(self):
        found = seen(call("add", "elementwise", (8,), (16, 64), moved_bytes=8192.0))
        assert found.model == "elementwise"
        assert found.sizes == doublings(8192, 1024, 8)

    def test_an_operator_nobody_heard_of_is_a_light_one(self):
        found = seen(call("fold_space", "unheard-of", (16, 64), moved_bytes=4096.0))
        assert (found.model, found.words[0]) == ("elementwise", "fold_space")

    @pytest.mark.parametrize("kind", ["copy", "embedding"])
    def test_copies_and_look_ups_have_models_of_their_own(self, kind):
        assert seen(call("clone", kind, (64,))).model == kind

    def test_in_place_is_the_same_operator(self):
        assert seen(call("relu_", "elementwise", (64,))) == seen(call("relu", "elementwise", (64,)))

    def test_a_cast_is_known_by_what_it_casts_to(self):
        assert seen(call("_to_copy", "copy", (64,), to="bfloat16")).words[0] == "cast bfloat16"

    def test_an_update_is_known_by_its_bytes_its_tensors_and_their_size(self):
        found = seen(call("_foreach_add_", "update", (16, 16 * 1024), moved_bytes=2.0**20))  # 16 tensors, told as one
        assert found.model == "update"
        assert found.sizes == doublings(2**20, 16, 1024)

    def test_an_update_that_tells_each_tensor_is_known_by_the_largest(self):
        found = seen(call("_fused_adam_", "update", (1024,), (8, 8), (8,), (1,), moved_bytes=8192.0))
        assert found.sizes == doublings(8192, 4, 1024)


class TestArithmetic:
    @pytest.mark.parametrize("kind", ["conv", "grouped-conv", "matmul"])
    def test_tf32_is_for_products_of_float32(self, kind):
        one = call("product", kind, (64, 64), (64, 64))
        assert seen(one, tf32=True).arithmetic == "tf32"
        assert seen(one, tf32=False).arithmetic == "fp32"

    @pytest.mark.parametrize("kind", ["elementwise", "norm", "attention", "reduce"])
    def test_it_changes_nothing_else(self, kind):
        one = call("other", kind, (64, 64))
        assert seen(one, tf32=True) == seen(one, tf32=False)

    @pytest.mark.parametrize(
        ("dtype", "arithmetic"), [("bfloat16", "bf16"), ("float16", "fp16"), ("float64", "float64"), ("int64", "int64")]
    )
    def test_nor_any_other_type(self, dtype, arithmetic):
        found = seen(call("mm", "matmul", (64, 64), (64, 64), dtype=dtype), tf32=True)
        assert found.arithmetic == found.words[1] == arithmetic


def test_costs_are_of_one_call():
    found = seen(call("mm", "matmul", (8, 8), (8, 8), calls=4, flops=4096.0, moved_bytes=3072.0))
    assert (found.flops, found.moved_bytes) == (1024.0, 768.0)


KINDS = ("attention", "conv", "copy", "elementwise", "grouped-conv", "matmul", "norm", "pool", "reduce", "softmax")
shape = lists(integers(0, 64), min_size=2, max_size=4).map(tuple)


@given(
    kind=sampled_from((*KINDS, "update")) | text(max_size=8),
    operator=sampled_from(["mm", "convolution_backward", "native_batch_norm", "attention_backward"]),
    shapes=lists(shape, min_size=1, max_size=6),
    amounts=tuples(floats(0, 1e15), floats(0, 1e12), integers(1, 100)),
    dim=sampled_from(["", "0", "-1", "0,1", "1,-4"]),
    how=tuples(booleans(), booleans()),
)
def test_every_call_has_features_whatever_its_shapes(kind, operator, shapes, amounts, dim, how):
    flops, moved_bytes, calls = amounts
    one = call(operator, kind, *shapes, flops=flops, moved_bytes=moved_bytes, calls=calls, dim=dim)
    found = features_of(one, tf32=how[0], trains=how[1])
    assert len(found.sizes) == SIZES
    assert all(0 <= size < 64 for size in found.sizes)
    assert len(found.words) == 4
    assert found.serial >= 0
