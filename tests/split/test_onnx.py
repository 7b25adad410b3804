"""ONNX models in two halves: what runs where, the same bits as the whole, and what is refused."""

import pickle

import pytest

pytest.importorskip("onnx", reason="CUTS OF ONNX MODELS ARE NOT TESTED: onnx is not installed")

import numpy as np
import onnx
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from, tuples
from onnx import numpy_helper, parser
from onnx.reference import ReferenceEvaluator

from wattsmith.split.onnx_halves import OnnxModel, usual_runtime
from wattsmith.split.onnx_whole import same_bits, split_onnx
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER
from wattsmith.split.problems import BatchDoesNotFit, NotSplittable
from wattsmith.terms.errors import BadInput

HEAD = '<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1, "ai.onnx.ml" : 3]>'


def model(text, **weights):
    """What TEXT tells, with WEIGHTS beside it."""
    made = parser.parse_model(f"{HEAD} g {text}")
    made.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return made


def ramp(*shape, dtype=np.float32):
    return (np.arange(np.prod(shape)) % 7).reshape(shape).astype(dtype)


def run_whole(whole, batch):
    """What the model gives in one piece, run by what runs the halves too."""
    return OnnxModel(whole.SerializeToString(), usual_runtime()).run(batch)


def sides(made):
    return {one.name: one.side for one in made.cut.places}


def why(made, name):
    return next(one.why for one in made.cut.places if one.name == name)


def crossing(made):
    return [one.name for one in made.crossing]


def constants_of(half):
    return {one.name for one in onnx.load_from_string(half.model.written).graph.initializer}


def pictures():
    """Pictures as bytes, turned, made floats, normalised and convolved; labels made soft."""
    return model(
        """(uint8[N,64,64,3] x, int64[N] y) => (float[N,2,62,62] seen, float[N,10] soft)
        <float[3,1,1] mean = {1, 2, 3}, float scale = {255}, int64 ten = {10}, float[2] off_on = {0, 1}> {
            turned = Transpose<perm=[0, 3, 1, 2]>(x)
            floats = Cast<to=1>(turned)
            small = Div(floats, scale)
            centred = Sub(small, mean)
            seen = Conv(centred, w)
            soft = OneHot(y, ten, off_on)
        }""",
        w=ramp(2, 3, 3, 3),
    )


PICTURES = {"x": ramp(4, 64, 64, 3, dtype=np.uint8), "y": np.array([1, 0, 9, 3])}
ROWS = {"x": ramp(4, 3)}


def test_a_gpu_gets_bytes_and_a_cpu_gets_floats():
    on_gpu, on_cpu = (split_onnx(pictures(), PICTURES, prices=one) for one in (GPU_TRAINER, CPU_TRAINER))
    assert crossing(on_gpu) == ["turned", "soft"]
    assert on_gpu.cut.bytes_per_step == 4 * 3 * 64 * 64 + 4 * 10 * 4
    assert "makes 196608 bytes of 49152" in why(on_gpu, "floats")
    assert crossing(on_cpu) == ["centred", "soft"]
    assert on_cpu.cut.bytes_per_step == 4 * 4 * 3 * 64 * 64 + 4 * 10 * 4
    assert why(on_cpu, "seen") == "depends on w, a weight"


def test_constants_stand_in_the_half_that_uses_them_and_weights_stay():
    made = split_onnx(pictures(), PICTURES, prices=CPU_TRAINER)
    assert constants_of(made.data) == {"mean", "scale", "ten", "off_on"}
    assert constants_of(made.train) == {"w"}


def test_two_files_run_one_after_the_other_give_the_bits_of_the_whole(tmp_path):
    made = split_onnx(pictures(), PICTURES)
    made.data.save(tmp_path / "data.onnx")
    made.train.save(tmp_path / "rest.onnx")
    first, second = (onnx.load(tmp_path / name) for name in ("data.onnx", "rest.onnx"))
    onnx.checker.check_model(first, full_check=True)
    onnx.checker.check_model(second, full_check=True)
    sent = ReferenceEvaluator(first).run(None, PICTURES)
    got = ReferenceEvaluator(second).run(None, dict(zip([one.name for one in second.graph.input], sent, strict=True)))
    assert same_bits(ReferenceEvaluator(pictures()).run(None, PICTURES), got)


def test_names_of_the_graph_mean_nothing():
    step = model(
        "(float[N,3] data) => (float[N,3] out) { training = Neg(data)  out = MatMul(training, sent) }", sent=ramp(3, 3)
    )
    assert sides(split_onnx(step, ramp(4, 3))) == {"data": "data", "training": "data", "out": "training"}


def test_other_numbers_of_samples_may_come_where_the_file_leaves_them_open():
    made = split_onnx(pictures(), PICTURES)
    assert made.cut.any_batch
    fewer = {name: value[:1] for name, value in PICTURES.items()}
    assert same_bits(made(fewer, 0), run_whole(pictures(), fewer))


def test_an_example_is_made_of_what_the_file_tells():
    made = split_onnx(pictures(), batch=2)
    assert made.cut.batch == 2
    assert made.cut.raw_bytes == 2 * 64 * 64 * 3 + 2 * 8


def test_a_data_half_travels_as_bytes_and_takes_dicts_tuples_and_tensors():
    torch = pytest.importorskip("torch", reason="TENSORS IN ONNX HALVES ARE NOT TESTED: torch is not installed")
    half = split_onnx(pictures(), PICTURES).data
    wanted = half(PICTURES, 0)
    assert same_bits(pickle.loads(pickle.dumps(half))(tuple(PICTURES.values()), 1), wanted)
    assert same_bits(half({name: torch.from_numpy(value) for name, value in PICTURES.items()}, 2), wanted)


@pytest.mark.parametrize(
    ("line", "holds"),
    [
        ("z = MatMul(h, w)", True),
        ("z = MatMul(w, h)", True),
        ("t = Transpose(w)  z = MatMul(h, t)", True),
        ("z = Gemm(h, w)", True),
        ('z = Einsum<equation="ij,jk->ik">(h, w)', True),
        ("at = Cast<to=7>(h)  z = Gather(w, at)", True),
        ("z = PRelu(h, w)", True),
        ("z = com.acme.Layer(h)", True),
        ("z = ai.onnx.ml.LinearRegressor<coefficients=[1.0, 1.0, 1.0]>(h)", True),
        ("z = RandomNormalLike(h)", True),
        ("z = Bernoulli(h)", True),
        ("z = Dropout(h, , yes)", True),
        ("z = Dropout(h)", False),
        ("z = Mul(h, w)", False),
        ("z = MatMul(h, h)", False),
        ("at = Cast<to=7>(h)  z = Gather(list, at)", False),
        ("z = ai.onnx.ml.Scaler<offset=[1.0], scale=[2.0]>(h)", False),
    ],
)
def test_what_holds_weights_or_draws_stays_with_training(line, holds):
    made = model(
        f"(float[3,3] x) => (int64 n, float[3,3] out) <float[3] list = {{1, 2, 3}}, bool yes = {{1}}> "
        f"{{ h = Abs(x)  {line}  n = Size(z)  out = PRelu(h, slope) }}",
        w=ramp(3, 3),
        slope=ramp(3),
    )
    cut = split_onnx(made, {"x": ramp(3, 3)}, check=False)
    assert sides(cut)["h"] == "data"
    assert (sides(cut)["z"] == "training") is holds


def test_chance_and_unknown_operators_stay_with_their_reason():
    made = split_onnx(model("(float[N,3] x) => (float[N,3] z) { h = Abs(x)  z = RandomNormalLike(h) }"), ROWS)
    assert why(made, "z").startswith("depends on chance, and an operator of ONNX cannot be given the seed of a batch")
    assert "not compared with the model itself: it draws at random" in made.cut.notes
    made = split_onnx(
        model("(float[N,3] x) => (float[N,3] z) { h = Abs(x)  z = com.acme.Layer(h) }"), ROWS, check=False
    )
    assert why(made, "z") == "depends on com.acme.Layer, an operator of which nothing is known here"


def test_what_takes_a_weight_elsewhere_stays_too():
    made = split_onnx(
        model(
            "(float[N,3] x) => (float[N,3] z) { h = Mul(x, w)  k = Abs(x)  y = MatMul(k, w)  z = Add(h, y) }",
            w=ramp(3, 3),
        ),
        {"x": ramp(3, 3)},
    )
    assert (sides(made)["h"], sides(made)["k"]) == ("training", "data")


def test_names_of_state_and_constants_correct_the_rule():
    text = "(float[N,3] x) => (float[N,3] z) { h = MatMul(x, bank)  k = Mul(h, gain)  z = MatMul(k, w) }"
    weights = {"bank": ramp(3, 3), "gain": ramp(3), "w": ramp(3, 3)}
    made = split_onnx(model(text, **weights), ROWS, constants=["bank"])
    assert sides(made) == {"x": "data", "h": "data", "k": "data", "z": "training"}
    made = split_onnx(model(text, **weights), ROWS, constants=["bank"], state=["gain"])
    assert sides(made) == {"x": "data", "h": "data", "k": "training", "z": "training"}
    with pytest.raises(BadInput, match="no input or constant 'bonk'"):
        split_onnx(model(text, **weights), ROWS, constants=["bonk"])


def test_weights_that_come_as_an_input_go_to_the_training_half_alone():
    step = model(
        "(float[N,3] x, float[3,3] w) => (float[N,3] z, float[3,3] v) { h = Abs(x)  z = MatMul(h, w)  v = Neg(w) }"
    )
    made = split_onnx(step, {**ROWS, "w": ramp(3, 3)}, state=["w"])
    sent = made.data(ROWS, 0)
    assert crossing(made) == ["h"]
    assert made.train(*sent, w=ramp(3, 3))[0].tolist() == (ramp(4, 3) @ ramp(3, 3)).tolist()
    with pytest.raises(BatchDoesNotFit, match="the batch has no w"):
        made.train(*sent)


def test_what_a_training_graph_updates_is_state():
    step = model("(float[N,3] x) => (float[N,3] z) { h = Abs(x)  k = Mul(h, gain)  z = Neg(k) }", gain=ramp(3))
    step.training_info.add().update_binding.add(key="gain", value="gain_after")
    step.training_info[0].algorithm.CopyFrom(
        parser.parse_graph("update (float[N,3] x) => (float[3] gain_after) { gain_after = Neg(gain) }")
    )
    assert sides(split_onnx(step, ROWS)) == {"x": "data", "h": "data", "k": "training", "z": "training"}


BRANCHES = """(float[N,3] x) => (float[N,3] z) <float limit = {5}> {
    top = ReduceMax<keepdims=0>(x)
    high = Greater(top, limit)
    h = If (high) <
        then_branch = one () => (float[N,3] a) { a = Neg(x) },
        else_branch = two () => (float[N,3] b) { b = INSIDE }
    >
    z = MatMul(h, w)
}"""


@pytest.mark.parametrize(
    ("inside", "side"), [("Abs(x)", "data"), ("MatMul(x, v)", "training"), ("Bernoulli(x)", "training")]
)
def test_branches_stay_whole_on_one_side(inside, side):
    made = split_onnx(model(BRANCHES.replace("INSIDE", inside), w=ramp(3, 3), v=ramp(3, 3)), ROWS)
    assert sides(made)["h"] == side
    assert crossing(made) == (["h"] if side == "data" else ["x", "high"])


LOOP = """(float[3,3] x) => (float[3,3] z) <int64 three = {3}, bool yes = {1}> {
    k = Abs(x)
    h = Loop (three, yes, k) <
        body = once (int64 at, bool on, float[3,3] was) => (bool go, float[3,3] now) { go = Identity(on)  now = INSIDE }
    >
    z = MatMul(h, w)
}"""


@pytest.mark.parametrize(("inside", "sent"), [("Neg(was)", "h"), ("MatMul(was, w)", "k")])
def test_a_loop_stays_whole_on_one_side(inside, sent):
    made = split_onnx(model(LOOP.replace("INSIDE", inside), w=ramp(3, 3)), {"x": ramp(3, 3)})
    assert crossing(made) == [sent]


def test_sizes_that_depend_on_numbers_are_those_of_the_example():
    text = """(float[N,2] x) => (float[K,2] z) {
        large = ReduceMax<axes=[1], keepdims=0>(x)
        is_large = Cast<to=9>(large)
        some = Compress<axis=0>(x, is_large)
        z = MatMul(some, w)
    }"""
    batch = np.array([[0, 0], [1, 2], [0, 3]], np.float32)
    made = split_onnx(model(text, w=ramp(2, 2)), batch)
    assert [(one.name, one.shape) for one in made.crossing] == [("some", (2, 2))]
    assert made(batch[:2], 0)[0].tolist() == [[4.0, 7.0]]


def test_recurrent_layers_stay_and_their_lengths_are_data():
    made = split_onnx(
        model(
            """(int16[T,N,2] x, int32[N] length) => (float[T,1,N,4] y) <int32 most = {3}> {
                h = Cast<to=1>(x)
                short = Min(length, most)
                y = LSTM<hidden_size=4>(h, w, r, , short)
            }""",
            w=ramp(1, 16, 2),
            r=ramp(1, 16, 4),
        ),
        {"x": ramp(5, 2, 2, dtype=np.int16), "length": np.array([2, 9], np.int32)},
        prices=CPU_TRAINER,
        check=False,  # the evaluator of onnx does not know lengths
    )
    assert crossing(made) == ["h", "short"]


def test_strict_keeps_what_differs_between_machines():
    step = model("(float[N,3] x) => (float[N,3] z) { h = Neg(x)  k = Exp(h)  z = MatMul(k, w) }", w=ramp(3, 3))
    assert split_onnx(step, ROWS).cut.unlike == ("k",)
    made = split_onnx(step, ROWS, strict=True)
    assert (crossing(made), made.cut.unlike) == (["h"], ())


def test_a_feeder_runs_the_data_half_in_its_workers():
    pytest.importorskip("torch", reason="ONNX HALVES IN A FEEDER ARE NOT TESTED: torch is not installed")
    from wattsmith.feed.feeder import Feeder

    rows = [{"x": ramp(3) + number} for number in range(4)]
    step = model("(float[N,3] x) => (float[N,3] z) { h = Neg(x)  z = MatMul(h, w) }", w=ramp(3, 3))
    made = split_onnx(step, {"x": np.stack([one["x"] for one in rows])})
    given = [np.asarray(h).tolist() for (h,) in Feeder(rows, batch_size=2, num_workers=1, data=made.data)]
    assert given == [[[0, -1, -2], [-1, -2, -3]], [[-2, -3, -4], [-3, -4, -5]]]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("(float[N,3] x) => (float[N,3] z) { h = Abs(x)  z = Neg(h) }", "no operator of the model holds weights"),
        (
            "(float[N,3] x) => (float[N,3] z) { h = MatMul(x, w)  z = Neg(h) }",
            "no data work to cut: the first node, MatMul",
        ),
        ("(float[N,K] x) => (float[N,K] z) { h = Abs(x)  z = MatMul(h, w) }", "sizes left open: .* --input x=128"),
        ("(float[N,3] x) => (float[N,3] z) { z = Abs(nothing) }", "'nothing' of node"),
        ("(float[N,3] x) => (float[N,3] z) { z = Absolute(x) }", "No Op registered for Absolute"),
        (
            "(string[N] x, float[N,3] y) => (string[N] x, float[N,3] z) { h = Abs(y)  z = MatMul(h, w) }",
            "no tensor of numbers",
        ),
    ],
)
def test_what_cannot_be_cut_is_told_so(text, said):
    with pytest.raises(BadInput, match=said):
        split_onnx(model(text, w=ramp(3, 3)))


def test_files_that_are_no_models_are_told_so(tmp_path):
    path = tmp_path / "broken.onnx"
    path.write_bytes(b"no model")
    with pytest.raises(BadInput, match="cannot be read as ONNX"):
        split_onnx(path)
    path.write_bytes(b"")
    with pytest.raises(BadInput, match="holds no graph"):
        split_onnx(path)
    with pytest.raises(BadInput, match=r"cannot be read as ONNX .*No such file"):
        split_onnx(tmp_path / "missing.onnx")
    old = pictures()
    old.opset_import[0].version = 6
    with pytest.raises(NotSplittable, match="of opset 6, and 7 is the oldest"):
        split_onnx(old)


def test_weights_in_a_file_that_is_missing_are_asked_for(tmp_path):
    path = tmp_path / "model.onnx"
    onnx.save_model(pictures(), path, save_as_external_data=True, location="weights", size_threshold=0)
    assert sides(split_onnx(path, PICTURES))["seen"] == "training"
    with pytest.raises(BadInput, match=r"give the name of the \.onnx file"):
        split_onnx(onnx.load(path, load_external_data=False))
    (tmp_path / "weights").unlink()
    with pytest.raises(BadInput, match="in another file, which is not there"):
        split_onnx(path)


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"x": ramp(4, 3)}, "the batch has no y"),
        ({"x": ramp(4, 3), "y": np.zeros(4, np.int64)}, "x is 4×3 float32; the model takes N×64×64×3 uint8"),
    ],
)
def test_a_batch_that_does_not_fit_is_told_so(batch, said):
    with pytest.raises(BatchDoesNotFit, match=said):
        split_onnx(pictures(), batch)


# Each makes OUT of one or two values of 4×4.
LINES = [
    "OUT = Neg(ONE)",
    "OUT = Max(ONE, TWO)",
    "OUT = Mul(ONE, mean)",
    "OUT = Transpose(ONE)",
    "OUT = MatMul(ONE, TWO)",
    "OUT_low = Clip(ONE, zero, nine)  OUT_bytes = Cast<to=2>(OUT_low)  OUT = Cast<to=1>(OUT_bytes)",
    "OUT_left, OUT_right = Split<axis=1>(ONE)  OUT = Concat<axis=1>(OUT_right, OUT_left)",
    "OUT_turned = Transpose(w)  OUT = MatMul(ONE, OUT_turned)",
    "OUT = LayerNormalization(ONE, gain)",
    "OUT = Add(ONE, gain)",
]


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    lines=lists(tuples(sampled_from(LINES), integers(0, 9), integers(0, 9)), min_size=2, max_size=9),
    prices=sampled_from([CPU_TRAINER, GPU_TRAINER]),
)
def test_a_graph_of_any_kind_gives_the_same_cut_and_whole(lines, prices):
    names, body = ["x"], ["start = Abs(x)  last = MatMul(start, w)"]
    for at, (line, first, second) in enumerate(lines):
        one, two = names[first % len(names)], names[second % len(names)]
        body.append(line.replace("OUT", f"v{at}").replace("ONE", one).replace("TWO", two))
        names.append(f"v{at}")
    outputs = ", ".join(f"float[N,4] {name}" for name in (*names[1:], "last"))
    whole = model(
        f"(float[N,4] x) => ({outputs}) <float zero = {{0}}, float nine = {{9}}, float[4] mean = {{1, 2, 3, 4}}> "
        f"{{ {' '.join(body)} }}",
        w=ramp(4, 4),
        gain=ramp(4),
    )
    batch = {"x": ramp(4, 4) / 3 - 1}
    made = split_onnx(whole, batch, state=["gain"], prices=prices, check=False)
    assert same_bits(run_whole(whole, batch), made(batch, 0))
    assert constants_of(made.data).isdisjoint({"w", "gain"})
