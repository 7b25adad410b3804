"""Batches are put together as torch does it, in ordinary memory."""

import pytest
import torch
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils import collate as torchs

from wattsmith.feed.making import Maker, Recipe
from wattsmith.feed.messages import Begin, Task
from wattsmith.feed.seeding import chance_of_its_own

SAMPLES = [({"a": torch.tensor([1, 2]), "b": 1.5}, "one"), ({"a": torch.tensor([3, 4]), "b": 2.5}, "two")]


@pytest.fixture
def made():
    """Makes one batch of two samples as a worker would."""
    with chance_of_its_own():

        def make(collate, samples=SAMPLES):
            recipe = Recipe(
                dataset=samples,
                iterable=False,
                grouped=True,
                batch_size=None,
                drop_last=False,
                collate=collate,
                data=None,
                init=None,
                seeds_win=False,
            )
            maker = Maker(recipe, 0, 1)
            maker.enter(0)
            try:
                maker.begin(Begin(0, 0, 0, (), True, None, None))
                return maker.make(Task(1, 0, 1, [0, 1], 0, 0, False, None))
            finally:
                maker.leave()

        yield make


def test_a_batch_is_what_torch_makes_of_it(made):
    fields, names = made(default_collate)
    assert fields["a"].tolist() == [[1, 2], [3, 4]]
    assert fields["b"].tolist() == [1.5, 2.5]
    assert names == ("one", "two")


def test_a_worker_takes_no_shared_memory_to_put_a_batch_together(made):
    fields, _ = made(default_collate)
    assert not fields["a"].is_shared()


def test_a_collate_of_ones_own_knows_its_worker(made):
    assert made(lambda samples: (len(samples), get_worker_info().num_workers)) == (2, 1)


def test_torchs_collate_as_one_has_changed_it_is_used_as_it_is(made, monkeypatch):
    monkeypatch.setitem(torchs.default_collate_fn_map, torch.Tensor, lambda tensors, **_: len(tensors))
    assert made(default_collate)[0]["a"] == 2


def test_a_further_type_that_torchs_collate_was_told_is_known(made, monkeypatch):
    monkeypatch.setitem(torchs.default_collate_fn_map, str, lambda names, **_: "+".join(names))
    assert made(default_collate)[1] == "one+two"


def test_tensors_that_cannot_be_stacked_are_refused_and_the_worker_stays_known(made, monkeypatch):
    known, leave = [], Maker.leave
    monkeypatch.setattr(Maker, "leave", lambda maker: (known.append(get_worker_info()), leave(maker)))
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        made(default_collate, [torch.zeros(1), torch.zeros(2)])
    assert known[0].id == 0
