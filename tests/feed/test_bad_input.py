"""What goes wrong in a worker is told to the trainer, in words, and at the batch where it went wrong."""

import resource
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.feed.sets import Picky, Plain, Shards, Slow, Whole

from wattsmith import Feeder
from wattsmith.feed.slots import SlotTooSmall
from wattsmith.terms.errors import BadTerm

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
MIB = 1 << 20


class Odd(Exception):
    """With arguments that make it hard to rebuild."""

    def __init__(self, one, two):
        super().__init__(one, two)


def lock(_):
    return threading.Lock()


def growing(index):
    return torch.full((20_000 * (index % 7 + 1), 3), index, dtype=torch.uint8)


def as_it_is(samples):
    return samples[0]


def a_mebibyte(index):
    return torch.full((MIB,), index % 256, dtype=torch.uint8)


def too_much(index):
    return torch.zeros(10 * MIB if index == 3 else 10)


def out_of_memory(index):
    return bytearray(1 << 60) if index == 2 else index


def leaves(index):
    return sys.exit(3) if index == 2 else index


def raises(_):
    raise KeyError("in worker_init_fn")


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_in_a_dataset_has_its_type_and_comes_at_its_batch(workers):
    feeder = iter(Feeder(Picky(ValueError("sample is bad")), 2, num_workers=workers))
    assert [next(feeder).tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="sample is bad") as caught:
        next(feeder)
    if workers:
        assert "in DataLoader worker process 0 at index 5, batch 2" in str(caught.value)
        assert "sets.py" in str(caught.value)  # the traceback's text
    assert next(feeder).tolist() == [6, 7]


def test_an_error_that_cannot_be_rebuilt_still_arrives():
    with pytest.raises((Odd, RuntimeError), match="hard"):
        list(Feeder(Picky(Odd("hard", "to rebuild")), num_workers=1))


def test_an_error_type_that_only_the_worker_knows_still_arrives():
    class Local(Exception):
        pass

    with pytest.raises(RuntimeError, match="Local"):
        list(Feeder(Picky(Local("here")), num_workers=1))


def test_an_error_in_worker_init_fn_is_raised_where_iteration_begins():
    with pytest.raises(KeyError, match="in worker_init_fn"):
        iter(Feeder(Plain(4), num_workers=2, worker_init_fn=raises))


def test_a_sample_that_cannot_be_pickled_is_named():
    with pytest.raises(TypeError, match=r"cannot pickle '_thread.lock' object"):
        list(Feeder(Whole(3, lock), batch_size=None, num_workers=1))


def test_a_worker_out_of_memory_says_so_and_the_others_go_on():
    feeder = iter(Feeder(Whole(6, out_of_memory), num_workers=2))
    assert [next(feeder).tolist() for _ in range(2)] == [[0], [1]]
    with pytest.raises(MemoryError):
        next(feeder)
    assert [batch.tolist() for batch in feeder] == [[3], [4], [5]]


def test_a_sample_that_makes_workers_leave_is_named():
    with pytest.raises(RuntimeError, match=r"exited unexpectedly: each of them .* samples \[2\]"):
        list(Feeder(Whole(4, leaves), num_workers=2))


def test_going_on_after_closing_says_what_to_do():
    feeder = Feeder(Plain(9), num_workers=1)
    iterator = iter(feeder)
    next(iterator)
    feeder.close()
    with pytest.raises(RuntimeError, match=r"was closed.*Iterate over it anew"):
        next(iterator)
    assert len(list(feeder)) == 9


def test_batches_of_changing_shape_arrive_whole():
    feeder = Feeder(Whole(40, growing), num_workers=2, collate_fn=as_it_is)
    kept = []
    for index, batch in enumerate(feeder):
        assert batch.shape == (20_000 * (index % 7 + 1), 3)
        assert bool((batch == index).all())
        kept.append(batch if index % 5 == 0 else None)
    assert all(bool((batch == 5 * place).all()) for place, batch in enumerate(kept[::5]))


def test_a_batch_beyond_the_limit_is_an_error_that_says_what_to_do():
    iterator = iter(Feeder(Whole(6, too_much), batch_size=None, num_workers=1, memory_limit_bytes=8 * MIB))
    for _ in range(2):
        with pytest.raises(SlotTooSmall, match="Give Feeder a larger memory_limit_bytes"):
            list(iterator)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_user_who_keeps_everything_gets_everything_within_the_limit(in_order):
    feeder = Feeder(
        Whole(40, a_mebibyte), batch_size=None, num_workers=2, memory_limit_bytes=3 * MIB, in_order=in_order
    )
    iterator = iter(feeder)
    kept = list(iterator)
    assert sorted(int(batch[0]) for batch in kept) == list(range(40))
    assert all(bool((batch == batch[0]).all()) for batch in kept)
    assert iterator._engine._places.slots.used_bytes <= 3 * MIB


def small_then_large(index):
    return torch.full((MIB if index == 8 else MIB // 8,), index, dtype=torch.uint8)


def test_a_large_batch_arrives_though_the_user_has_filled_the_memory_with_small_ones():
    feeder = Feeder(Whole(10, small_then_large), batch_size=None, num_workers=2, memory_limit_bytes=MIB)
    kept = list(feeder)
    assert [(int(batch[0]), len(batch)) for batch in kept] == [(n, MIB if n == 8 else MIB // 8) for n in range(10)]


def test_epochs_that_are_broken_off_give_their_memory_back():
    feeder = Feeder(
        Whole(20, a_mebibyte), batch_size=None, num_workers=3, memory_limit_bytes=3 * MIB, persistent_workers=True
    )
    for _ in range(20):
        assert int(next(iter(feeder))[0]) == 0
    assert [int(batch[0]) for batch in feeder] == list(range(20))


def test_one_slot_is_enough():
    feeder = Feeder(Whole(20, a_mebibyte), batch_size=None, num_workers=3, memory_limit_bytes=MIB)
    assert [int(batch[0]) for batch in feeder] == list(range(20))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"memory_limit_bytes": 10}, "memory_limit_bytes must be at least 65536 bytes, got 10"),
        ({"seed": "a"}, "seed must be a whole number, got 'a'"),
        ({"lease_s": 0}, "lease_s must be positive, got 0"),
        ({"lease_s": -1}, "lease_s must be positive, got -1"),
        ({"data": 5}, "data is the data half of a split, called with a batch and a seed, got 5"),
        ({"num_workers": "auto", "max_workers": 0}, "max_workers must be at least 1, got 0"),
        ({"num_workers": "auto", "step_s": 0}, "step_s is a number of seconds above 0"),
        ({"num_workers": "auto", "step_s": True}, "step_s is a number of seconds above 0"),
        ({"num_workers": 2, "step_s": 0.1}, 'step_s are for num_workers="auto", got 2'),
        ({"num_workers": "2"}, "num_workers is a whole number or \"auto\", got '2'"),
        ({"num_workers": 1.5}, 'num_workers is a whole number or "auto", got 1.5'),
        ({"window": 3}, "window is one of wattsmith.measure"),
    ],
)
def test_settings_that_make_no_sense_are_refused_at_once(settings, said):
    with pytest.raises(BadTerm, match=said):
        Feeder(Plain(4), **{"num_workers": 1, **settings})


def test_a_timeout_is_honoured():
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.2 seconds"):
        next(iter(Feeder(Slow(4, 1.0), num_workers=1, timeout=0.2)))


def test_waiting_with_a_timeout_that_is_long_enough_is_no_error():
    assert len(list(Feeder(Slow(4, 0.02), num_workers=2, timeout=20))) == 4


def test_resizing_to_nothing_and_resizing_shards_are_refused():
    with pytest.raises(BadTerm, match="at least 1"):
        Feeder(Plain(4), num_workers=1).resize(0)
    with pytest.raises(BadTerm, match="num_workers=0"):
        Feeder(Plain(4)).resize(2)
    feeder = Feeder(Shards(40), num_workers=2)
    iterator = iter(feeder)
    with pytest.raises(BadTerm, match='num_workers="auto"'):
        feeder.resize(1)
    assert len(list(iterator)) == 40


def test_a_machine_that_grants_few_descriptors_says_what_to_raise():
    code = (
        "import os, resource, sys; sys.path.insert(0, os.getcwd())\n"
        "from tests.feed.sets import Plain; from wattsmith import Feeder\n"
        "import torch.utils.data\n"
        "feeder = Feeder(Plain(100), num_workers=20)\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (30, {resource.getrlimit(resource.RLIMIT_NOFILE)[1]}))\n"
        "try:\n    list(feeder)\nexcept RuntimeError as few: print(few)\n"
    )
    said = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=True,
    )
    assert "ulimit -n" in said.stdout


def test_numbers_of_every_kind_are_indices():
    sampler = [np.int64(2), torch.tensor(1), 0]
    assert [batch.tolist() for batch in Feeder(Plain(3), sampler=sampler, num_workers=1)] == [[2], [1], [0]]
