"""What a trace would get wrong is refused, with the line that does it; what it can do works."""

import random
import time

import numpy as np
import pytest

pytest.importorskip("torch", reason="CUTS ARE NOT TESTED: torch is not installed")

import torch

from wattsmith.split.handing import structure_of
from wattsmith.split.marks import boundary
from wattsmith.split.pricing import Prices
from wattsmith.split.problems import BatchDoesNotFit, FrozenRandomness, NotSplittable
from wattsmith.split.randomness import traced_twice
from wattsmith.split.state import held_by
from wattsmith.split.symbolic import symbolic
from wattsmith.split.watching import leaf_of
from wattsmith.split.whole import split
from wattsmith.terms.errors import BadInput, BadTerm

layer = torch.nn.Linear(4, 4)
generator = torch.Generator().manual_seed(5)
own_python = random.Random(3)
own_numpy = np.random.default_rng(3)


def batch(samples=6):
    return torch.arange(4.0 * samples).reshape(samples, 4) / 10


def by_fx(step):
    """The trace of STEP by torch.fx alone."""
    structure, leaves = structure_of(batch())
    told, values = [leaf_of(path, value) for path, value in leaves], [value for _, value in leaves]
    held = held_by(step)
    return traced_twice(lambda: symbolic(step, batch(), structure, told, values, held), held)


def python_random(x):
    return layer(x * random.random()).sum()


def numpy_random(x):
    return layer(x * np.random.rand()).sum()


def private_python_random(x):
    return layer(x * own_python.random()).sum()


def private_numpy_random(x):
    return layer(x * own_numpy.random()).sum()


def chance_of_a_branch(x):
    return layer(x.flip(-1) if random.getrandbits(1) else x).sum()


def fixed_size(x):
    return layer(x + torch.rand(4)).sum()


def explicit_generator(x):
    return layer(x + torch.rand(4, generator=generator)).sum()


def generator_inside(x):
    return layer(x + torch.rand(4, generator=torch.Generator().manual_seed(1))).sum()


def branch_on_value(x):
    if x.sum() > 0:
        x = x * 2
    return layer(x).sum()


def branch_by_cond(x):
    x = torch.cond(x.sum() > 0, lambda one: one * 2, lambda one: one + 1, (x,))
    return layer(x).sum()


def item_then_slice(x):
    count = (x.sum() > 0).long().item() + 1
    torch._check(count >= 0)
    torch._check(count <= 4)
    return layer(x).sum() + x.narrow(1, 0, count).sum()


def branch_by_chance(x):
    if torch.rand(1) < 0.5:
        x = x.flip(-1)
    return layer(x).sum()


def numpy_round_trip(x):
    return layer(torch.from_numpy(x.numpy() * 2)).sum()


def loop_over_batch(x):
    return layer(torch.stack([one * at for at, one in enumerate(x)])).sum()


FROZEN = [python_random, numpy_random, private_python_random, private_numpy_random, chance_of_a_branch]


@pytest.mark.parametrize("step", [*FROZEN, generator_inside], ids=lambda one: one.__name__)
def test_frozen_randomness_is_refused_with_its_line(step):
    with pytest.raises(FrozenRandomness, match=rf"test_refusals.py, line {step.__code__.co_firstlineno + 1}"):
        split(step, batch())


@pytest.mark.parametrize("step", [*FROZEN, fixed_size, explicit_generator], ids=lambda one: one.__name__)
def test_torch_fx_freezes_more_and_that_is_refused_too(step):
    with pytest.raises(FrozenRandomness):
        by_fx(step)


def test_a_generator_that_was_advanced_by_a_refused_trace_is_as_before():
    random.seed(4)
    before = random.getstate(), generator.get_state().clone()
    with pytest.raises(FrozenRandomness):
        split(python_random, batch())
    with pytest.raises(FrozenRandomness):
        by_fx(explicit_generator)
    assert random.getstate() == before[0]
    assert torch.equal(generator.get_state(), before[1])


def test_a_fixed_size_is_drawn_anew_for_every_batch():
    made = split(fixed_size, batch())
    assert made(batch(), 1) == made(batch(), 1)
    assert made(batch(), 1) != made(batch(), 2)


def test_a_generator_that_the_step_holds_gives_way_to_the_seed_of_the_batch():
    made = split(explicit_generator, batch())
    state = generator.get_state().clone()
    generator.manual_seed(11)
    whole = explicit_generator(batch())
    assert torch.equal(made(batch(), 11), whole)
    generator.set_state(state)
    assert any("generator of its own" in note for note in made.report().notes)


@pytest.mark.parametrize("step", [branch_on_value, branch_by_chance, numpy_round_trip], ids=lambda one: one.__name__)
def test_what_looks_at_values_says_where_and_names_two_ways_out(step):
    with pytest.raises(NotSplittable, match=r"test_refusals.py, line \d+.*Two ways out.*opaque.*boundary.*Dataset"):
        split(step, batch())


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("step", [branch_by_cond, item_then_slice], ids=lambda one: one.__name__)
def test_what_can_be_traced_of_values_gives_the_same(step):
    made = split(step, batch())
    assert torch.equal(made(batch(), 0), step(batch()))
    assert torch.equal(made(-batch(3), 0), step(-batch(3)))


def test_a_loop_over_the_batch_works_for_batches_of_that_size_and_refuses_others():
    made = split(loop_over_batch, batch())
    assert torch.equal(made(batch(), 0), loop_over_batch(batch()))
    assert not made.report().any_batch
    with pytest.raises(BatchDoesNotFit, match=r"batch.shape\[0\] == 6, and got 3.*drop_last"):
        made(batch(3), 0)


def test_a_step_that_goes_another_way_for_odd_batches_refuses_them():
    def step(x):
        if x.shape[0] % 2 == 0:
            x = x * 2
        return layer(x).sum()

    made = split(step, batch())
    assert torch.equal(made(batch(4), 0), step(batch(4)))
    with pytest.raises(BatchDoesNotFit, match="% 2"):
        made(batch(5), 0)


def test_a_step_that_calls_backward_is_told_to_return_the_loss():
    def step(x):
        loss = layer(x).sum()
        loss.backward()
        return loss.detach()

    with pytest.raises(NotSplittable, match="Return the loss"):
        split(step, batch())
    assert layer.weight.grad is None


kept = {"calls": torch.zeros(())}


class SetUpByData(torch.nn.Module):
    """Goes another way in its first step, by a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("is_set_up", torch.tensor(0))
        self.layer, self.middle = torch.nn.Linear(4, 4), torch.nn.Parameter(torch.zeros(4))

    def forward(self, x):
        if self.is_set_up.item() == 0:
            self.middle.data.copy_(x.mean(0))
            self.is_set_up.fill_(1)
        return self.layer(x - self.middle).sum()


def by_a_tensor_in_a_dict(x):
    kept["calls"].add_(1)
    return layer(x).sum() * (float(kept["calls"]) / 10)


@pytest.mark.parametrize("step", [SetUpByData(), by_a_tensor_in_a_dict], ids=["buffer", "dict"])
def test_a_way_that_is_chosen_by_state_is_not_frozen(step):
    with pytest.raises(NotSplittable, match="decides by the value of a tensor"):
        split(step, batch())


def test_a_clock_is_refused_with_what_it_changes():
    def step(x):
        return layer(x).sum(), time.perf_counter()

    with pytest.raises(NotSplittable, match=r"output 1 is [\d.]+, then [\d.]+.*clock"):
        split(step, batch())


def test_a_step_that_gives_an_object_back_is_told_which():
    with pytest.raises(NotSplittable, match=r"gives a Cache back as \['cache'\].*use_cache=False"):
        split(lambda x: {"loss": layer(x).sum(), "cache": type("Cache", (), {})()}, batch())


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_model_of_torch_jit_is_to_be_given_as_it_was():
    compiled = torch.jit.script(torch.nn.Linear(4, 4))
    with pytest.raises(NotSplittable, match=r"compiled was compiled by torch\.jit"):
        split(lambda x: compiled(x).sum(), batch())


def test_lazy_modules_are_to_be_called_first():
    with pytest.raises(NotSplittable, match=r"weight of a lazy module has no size yet.*Call the step once"):
        split(torch.nn.LazyLinear(4), batch())


def test_a_step_that_looks_into_texts_is_told_the_line():
    def step(texts, x):
        return layer(x).sum() * len(list(texts))

    with pytest.raises(NotSplittable, match=r"test_refusals\.py, line \d+: `return layer\(x\)"):
        split(step, (["a", "b"], batch(2)))


def test_gradients_inside_that_cannot_be_traced_are_told_with_their_line():
    def step(x):
        x = torch.rand(len(x), 4).requires_grad_()
        (slope,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
        return slope.square().sum()

    with pytest.raises(NotSplittable, match=r"asks for gradients itself at .*: `\(slope,\)"):
        split(step, batch())


def test_a_value_that_becomes_a_text_is_told():
    def step(x):
        loss = layer(x).sum()
        return loss, f"{loss.item():.3f}"

    with pytest.raises(NotSplittable, match=r"makes a text of a value.*outside of it"):
        split(step, batch())


def test_a_step_that_seeds_by_itself_is_told():
    def step(x):
        with torch.random.fork_rng():
            torch.manual_seed(3)
            return layer(x + torch.randn(4)).sum()

    with pytest.raises(NotSplittable, match=r"fork_rng"):
        split(step, batch())


def test_a_boundary_after_the_weights_is_refused():
    with pytest.raises(NotSplittable, match=r"boundary .* depends on layer\.weight.*test_refusals\.py"):
        split(lambda x: boundary(layer(x)).sum(), batch())


@pytest.mark.parametrize(
    ("step", "example", "said"),
    [
        (torch.nn.Linear, torch.ones(2, 4), "got the class Linear"),
        (3, torch.ones(2, 4), "got a int"),
        (layer, None, "an example batch is needed"),
        (layer, torch.ones(0, 4), "holds no samples"),
        (layer, "text", "neither a tensor"),
        (layer, torch.ones(2, 5), "the step fails with the example"),
        (lambda a, b: a + b, torch.ones(2), "takes 2 arguments"),
        (lambda x: layer(x["a"]), {None: torch.ones(2, 4)}, "keys that are neither"),
    ],
)
def test_what_is_no_step_or_no_batch_is_refused(step, example, said):
    with pytest.raises(NotSplittable, match=said):
        split(step, example)


def test_settings_that_make_no_sense_are_refused():
    with pytest.raises(BadInput, match="batch, all, none"):
        split(layer, torch.ones(2, 4), sizes="some")
    with pytest.raises(BadTerm, match="link_bytes_per_s"):
        Prices(link_bytes_per_s=0)
    with pytest.raises(BadTerm, match="negative"):
        Prices(worker_ratio=-1)
