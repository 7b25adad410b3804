"""JAX steps in two halves: the same bits as the whole, whatever of it is data work, and what is refused."""

import pickle

import pytest

pytest.importorskip("jax", reason="CUTS OF JAX STEPS ARE NOT TESTED: jax is not installed")
pytest.importorskip("flatbuffers", reason="CUTS OF JAX STEPS ARE NOT TESTED: flatbuffers is not installed")

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis.strategies import integers, lists, sampled_from, tuples

from wattsmith.split.jaxprs import split_jax
from wattsmith.split.pricing import CPU_TRAINER, GPU_TRAINER, Prices
from wattsmith.split.problems import NotSplittable

SEND_LITTLE = Prices(link_bytes_per_s=1e6, trainer_call_s=0)  # bytes are dear
MEAN = jnp.array([0.4, 0.5, 0.6])
WEIGHTS = {"w": jnp.arange(12.0).reshape(3, 4) / 7}


def batch(samples=8):
    chance = np.random.default_rng(samples)
    return {"x": chance.integers(0, 256, (samples, 3), dtype=np.uint8), "y": chance.integers(0, 4, samples)}


def same(ones, others):
    pairs = zip(jax.tree.leaves(ones), jax.tree.leaves(others), strict=True)
    return all(np.asarray(one).tobytes() == np.asarray(other).tobytes() for one, other in pairs)


def loss(state, batch, seed):
    """Flips by chance, normalises, makes soft labels; a layer with dropout."""
    flips, drops = jax.random.split(jax.random.key(seed))
    x = batch["x"].astype(jnp.float32) / 255 - MEAN
    x = jnp.where(jax.random.bernoulli(flips, 0.5, (len(x), 1)), x[:, ::-1], x)
    soft = jax.nn.one_hot(batch["y"], 4) * 0.9 + 0.025
    h = jax.nn.relu(x @ state["w"])
    h = h * jax.random.bernoulli(drops, 0.9, h.shape)
    return -jnp.mean(jax.nn.log_softmax(h) * soft)


@jax.jit
def step(state, batch, seed):
    """One step of training, which gives the state after it."""
    value, slope = jax.value_and_grad(loss)(state, batch, seed)
    return jax.tree.map(lambda w, g: w - 0.1 * g, state, slope), value


def test_training_in_halves_gives_the_bits_of_the_whole_step():
    made = split_jax(step, WEIGHTS, batch())
    half, train = pickle.loads(pickle.dumps(made.data)), jax.jit(made.train)
    whole = ours = WEIGHTS
    for seed in range(5):
        some = {name: np.roll(value, seed, 0) for name, value in batch().items()}
        whole, wanted = step(whole, some, np.uint32(seed))
        ours, got = train(ours, *half(some, seed))
        assert same((whole, wanted), (ours, got))


def test_what_does_not_depend_on_the_state_is_data_work():
    made = split_jax(step, WEIGHTS, batch(), prices=CPU_TRAINER)
    stays = [one for one in made.cut.places if one.side == "training"]
    assert {one.why for one in stays} == {"depends on state['w']"}
    drawn = [one.side for one in made.cut.places if one.operator == "random_bits"]
    assert drawn == ["data", "data"]


def test_a_loss_cut_in_two_has_the_gradients_of_the_whole():
    made = split_jax(loss, WEIGHTS, batch())
    wanted = jax.jit(jax.value_and_grad(loss))(WEIGHTS, batch(), np.uint32(3))
    assert same(wanted, jax.jit(jax.value_and_grad(made.train))(WEIGHTS, *made.data(batch(), 3)))


def test_bytes_cross_instead_of_floats_where_bytes_are_dear():
    made = split_jax(lambda state, x, _: (x[:, ::-1] / 255) @ state, WEIGHTS["w"], batch()["x"], prices=SEND_LITTLE)
    assert [(one.name, one.dtype, one.size_bytes) for one in made.cut.crossing] == [("rev_0", "uint8", 24)]


@pytest.mark.parametrize("kind", ["threefry2x32", "rbg"])
def test_keys_cross_as_numbers_where_they_are_used_in_training(kind):
    def draws(state, x, seed):
        key = jax.random.key(seed, impl=kind)
        return (state - x).sum() * jax.lax.cond(state[0] > 0, jax.random.normal, jax.random.uniform, key)

    state, x = jnp.ones(3), np.full((2, 3), 3, np.float32)
    made = split_jax(draws, state, x)
    assert [one.dtype for one in made.cut.crossing] == [
        "float32",
        {"rbg": "key<rbg>", "threefry2x32": "key<fry>"}[kind],
    ]
    assert same(made(state, x, 5), jax.jit(draws)(state, x, np.uint32(5)))


def test_constants_are_made_on_both_sides_and_do_not_cross():
    def uses_twice(state, x, _):
        wave = jnp.sin(jnp.arange(3.0))
        return ((x + wave) * state + wave).sum()

    made = split_jax(uses_twice, jnp.ones(3), np.ones((2, 3), np.float32))
    assert [one.name.partition("_")[0] for one in made.cut.crossing] == ["add"]
    assert next(one.side for one in made.cut.places if one.operator == "sin") == "both"


def test_what_xla_would_round_otherwise_stays_with_training():
    # Compiled in one piece, the product is not rounded before the sum: alone, its bits differ.
    x = np.random.default_rng(0).random((64, 3)).astype(np.float32)
    made = split_jax(lambda state, x, _: -x[::-1] * MEAN + state, jnp.ones(3) / 3, x)
    assert [one.name.partition("_")[0] for one in made.cut.crossing] == ["neg"]
    assert made.cut.notes == ()


def test_a_feeder_runs_the_data_half_in_its_workers():
    pytest.importorskip("torch", reason="JAX HALVES IN A FEEDER ARE NOT TESTED: torch is not installed")
    from wattsmith.feed.feeder import Feeder

    rows = [np.full(3, number, np.float32) for number in range(4)]
    made = split_jax(lambda state, x, _: (-x * state).sum(), jnp.ones(3), np.stack(rows[:2]))
    given = [
        np.asarray(x).tolist()
        for (x,) in Feeder(rows, batch_size=2, num_workers=1, data=made.data, multiprocessing_context="spawn")
    ]
    assert given == [[[0.0] * 3, [-1.0] * 3], [[-2.0] * 3, [-3.0] * 3]]


def prints(state, x, _):
    jax.debug.print("{}", x)
    return -x * state


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda _state, x, _: -x, "nothing in the step depends on its state"),
        (lambda state, x, _: x * state, "there is no data work to cut"),
        (
            lambda state, x, _: -x * state if x.sum() > 0 else state,
            "JAX cannot run the step: TracerBoolConversionError",
        ),
        (lambda state, x: -x * state, "JAX cannot run the step: TypeError"),
        (prints, "prints or calls back into Python"),
    ],
)
def test_what_cannot_be_cut_is_told_so(wrong, said):
    with pytest.raises(NotSplittable, match=said):
        split_jax(wrong, jnp.ones(3), np.ones((2, 3), np.float32))


# Each takes two values of 4×4, a weight and a key.
LINES = {
    "turn": lambda a, _b, _w, _k: a.T,
    "sum": lambda a, b, _w, _k: a + b,
    "scale": lambda a, _b, _w, _k: a * jnp.arange(4.0) / 3,
    "bytes": lambda a, _b, _w, _k: jnp.clip(a, 0, 9).astype(jnp.uint8).astype(jnp.float32),
    "noise": lambda a, _b, _w, k: a + jax.random.uniform(k, (4, 4)),
    "loop": lambda a, b, _w, _k: jax.lax.fori_loop(0, 3, lambda _at, x: -x + b, a),
    "branch": lambda a, b, _w, _k: jax.lax.cond(a.sum() > 0, jnp.negative, jnp.square, b),
    "relu": lambda a, _b, _w, _k: jax.nn.relu(a),
    "layer": lambda a, _b, w, _k: a @ w,
    "gain": lambda a, _b, w, _k: a * w[0],
}


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    lines=lists(tuples(sampled_from(sorted(LINES)), integers(0, 9), integers(0, 9)), min_size=2, max_size=8),
    prices=sampled_from([CPU_TRAINER, GPU_TRAINER, SEND_LITTLE]),
)
def test_a_step_of_any_kind_gives_the_same_cut_and_whole_or_says_that_it_does_not(lines, prices):
    def program(w, x, seed):
        values, key = [-x, x * 2], jax.random.key(seed)
        for at, (name, first, second) in enumerate(lines):
            a, b = values[first % len(values)], values[second % len(values)]
            values.append(LINES[name](a, b, w, jax.random.fold_in(key, at)))
        return [*values, values[0] @ w]

    weights, x = jnp.arange(16.0).reshape(4, 4) / 9, np.arange(16, dtype=np.float32).reshape(4, 4) % 5
    made = split_jax(program, weights, x, prices=prices)
    got = jax.jit(made.train)(weights, *made.data(x, 3))
    assert made.cut.notes or same(got, jax.jit(program)(weights, x, np.uint32(3)))
