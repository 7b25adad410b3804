"""A Feeder is a DataLoader: same arguments, same batches, same errors."""

import contextlib
import os
import pickle
import random
import time

import numpy as np
import pytest
import torch
from tests.feed.sets import Chancy, Counting, Plain, Shards, Whole, all_gone, digest
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, get_worker_info

from wattsmith import Feeder
from wattsmith.terms.energy import DomainEnergy, Phase, Source, Window

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def listed(loader):
    return [batch.tolist() for batch in loader]


def flat(loader):
    return [number for batch in listed(loader) for number in batch]


def who(_):
    info = get_worker_info()
    return torch.tensor([info.id, info.num_workers, info.seed, torch.initial_seed() == info.seed])


def seed_by_hand(_):
    torch.manual_seed(12345)


def initial_seed(_):
    return torch.initial_seed()


def large(index):
    return torch.full((200_000,), index)


def text(index):
    return {"name": f"s{index}", "at": (index, [index, None])}


def doubled(batch, seed):
    return batch * 2, torch.tensor(seed)


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 4},
        {"batch_size": 4, "drop_last": True},
        {"batch_size": None},
        {"sampler": [3, 1, 2]},
        {"batch_sampler": [[0, 9], [5]]},
        {"batch_size": 3, "sampler": SequentialSampler(range(10))},
    ],
    ids=lambda how: " ".join(how),
)
def test_it_gives_what_a_data_loader_gives(workers, how):
    expected = [torch.as_tensor(batch).tolist() for batch in DataLoader(Plain(10), **how)]
    got = [torch.as_tensor(batch).tolist() for batch in Feeder(Plain(10), num_workers=workers, **how)]
    assert got == expected


class Named(Dataset):
    """Sample i: the id of its worker. The first takes a while."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        time.sleep(0.2 if index == 0 else 0)
        return pickle.loads(pickle.dumps(get_worker_info())).id


def test_where_a_dataset_asks_which_worker_it_is_in_they_take_turns():
    assert flat(Feeder(Named(), num_workers=3)) == [0, 1, 2] * 4


def test_what_cannot_be_pickled_for_a_worker_is_told_with_what_to_do():
    feeder = Feeder(Plain(4), num_workers=1, multiprocessing_context="spawn", collate_fn=lambda batch: batch)
    with (
        pytest.warns(UserWarning, match="Got pickle error when.*top level of a module"),
        pytest.raises((AttributeError, pickle.PicklingError)),
    ):
        iter(feeder)


def test_it_is_a_data_loader_with_its_attributes_and_length():
    feeder = Feeder(Plain(10), 4, num_workers=2)
    assert isinstance(feeder, DataLoader)
    assert len(feeder) == 3
    assert (feeder.batch_size, feeder.num_workers, feeder.prefetch_factor, feeder.drop_last) == (4, 2, 2, False)
    assert isinstance(feeder.sampler, SequentialSampler)
    assert isinstance(feeder.batch_sampler, BatchSampler)


@pytest.mark.parametrize(
    "how",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"prefetch_factor": 2},
        {"persistent_workers": True},
        {"sampler": [1], "shuffle": True},
        {"batch_size": None, "drop_last": True},
        {"multiprocessing_context": "fork"},
        {"num_workers": "many"},
    ],
    ids=str,
)
def test_arguments_that_make_no_sense_are_value_errors(how):
    with pytest.raises(ValueError, match=r"\w"):
        Feeder(Plain(10), **how)


@pytest.mark.parametrize("workers", [0, 2])
def test_shuffling_gives_every_sample_once_in_an_order_that_a_seed_repeats(workers):
    orders = [flat(Feeder(Plain(50), 7, shuffle=True, seed=seed, num_workers=workers)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == list(range(50))


def test_every_epoch_has_an_order_of_its_own():
    feeder = Feeder(Plain(50), 50, shuffle=True, seed=1)
    assert listed(feeder) != listed(feeder)


def test_seeding_torch_repeats_everything_and_seeding_it_again_begins_anew():
    feeder = Feeder(Chancy(12), 3, shuffle=True)
    torch.manual_seed(5)
    first = digest(feeder)
    torch.manual_seed(5)
    again = digest(feeder)
    torch.manual_seed(6)
    assert first == again != digest(feeder)


def test_batches_are_the_same_with_any_number_of_workers():
    assert len({digest(Feeder(Chancy(40), 3, shuffle=True, seed=1, num_workers=workers)) for workers in (0, 1, 3)}) == 1


def test_the_trainers_own_generators_are_left_as_they_are():
    feeder = Feeder(Chancy(4), seed=1)
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    expected = torch.rand(1).item(), random.random(), np.random.rand()
    torch.manual_seed(1), random.seed(1), np.random.seed(1)
    list(feeder)
    assert (torch.rand(1).item(), random.random(), np.random.rand()) == expected


def test_workers_know_who_they_are_and_have_seeds_in_a_row():
    rows = [batch.tolist() for batch in Feeder(Counting(1), num_workers=2, collate_fn=who, seed=3)]
    assert [row[:2] for row in rows] == [[0, 2], [1, 2]]
    assert rows[1][2] == rows[0][2] + 1


def test_who_seeds_torch_in_a_worker_gets_that_seed():
    feeder = Feeder(Whole(4, initial_seed), num_workers=2, worker_init_fn=seed_by_hand)
    assert listed(feeder) == [[12345]] * 4


@pytest.mark.parametrize("workers", [0, 2])
def test_large_tensors_and_plain_objects_both_arrive(workers):
    assert [int(batch[0, -1]) for batch in Feeder(Whole(5, large), num_workers=workers)] == [0, 1, 2, 3, 4]
    batch = list(Feeder(Whole(3, text), batch_size=None, num_workers=workers))[2]
    assert batch == {"name": "s2", "at": [2, [2, None]]}  # default_convert makes lists of tuples


def test_a_batch_that_is_kept_stays_what_it_was():
    kept = list(Feeder(Whole(30, large), num_workers=2))
    assert [int(batch.sum()) for batch in kept] == [200_000 * index for index in range(30)]


def test_a_batch_can_be_written_to_and_saved_alone(tmp_path):
    batch = next(iter(Feeder(Whole(3, large), num_workers=1)))
    batch += 1
    assert int(batch[0, 0]) == 1
    torch.save(batch, tmp_path / "b")
    assert (tmp_path / "b").stat().st_size < 1.01 * 200_000 * 8 + 4096


def test_copied_batches_have_memory_of_their_own():
    feeder = Feeder(Whole(6, large), num_workers=1, copy_out=True)
    iterator = iter(feeder)
    kept = [next(iterator) for _ in range(4)]
    assert iterator._engine._places.slots.held == 0
    assert [int(batch[0, 0]) for batch in kept] == [0, 1, 2, 3]


def test_shards_of_an_iterable_dataset_take_turns_and_lose_nothing():
    numbers = [batch[0].tolist() for batch in Feeder(Shards(11), 2, num_workers=2)]
    assert numbers == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9]]


def test_without_an_order_the_same_batches_come():
    got = sorted(flat(Feeder(Plain(40), 3, num_workers=3, in_order=False)))
    assert got == list(range(40))


def test_a_data_half_runs_in_the_workers_with_the_seed_of_its_batch():
    runs = [list(Feeder(Plain(6), 2, num_workers=workers, data=doubled, seed=4)) for workers in (0, 2)]
    assert [batch[0].tolist() for batch in runs[0]] == [[0, 2], [4, 6], [8, 10]]
    assert [int(batch[1]) for batch in runs[0]] == [int(batch[1]) for batch in runs[1]]
    assert len({int(batch[1]) for batch in runs[0]}) == 3


def test_workers_that_stay_serve_every_epoch():
    feeder = Feeder(Plain(8), 2, num_workers=2, persistent_workers=True)
    first = iter(feeder)
    pids = [worker.pid for worker in first._workers]
    assert listed(first) == listed(feeder)
    assert [worker.pid for worker in iter(feeder)._workers] == pids
    del first, feeder
    assert all_gone(pids)


def test_an_epoch_that_is_broken_off_does_not_disturb_the_next():
    feeder = Feeder(Whole(20, large), num_workers=2, persistent_workers=True)
    next(iter(feeder))
    assert [int(batch[0, 0]) for batch in feeder] == list(range(20))


def test_workers_go_when_the_iterator_is_dropped():
    iterator = iter(Feeder(Plain(100), num_workers=2))
    next(iterator)
    workers = iterator._workers
    del iterator
    assert all_gone([worker.pid for worker in workers])
    assert [worker.exitcode for worker in workers] == [0, 0]


def test_two_feeders_at_once_do_not_interfere():
    one, other = iter(Feeder(Plain(6), 2, num_workers=1)), iter(Feeder(Plain(60), 20, num_workers=1))
    pairs = [(a.tolist()[0], b.tolist()[0]) for a, b in zip(one, other, strict=True)]
    assert pairs == [(0, 0), (2, 20), (4, 40)]


@pytest.mark.parametrize("workers", [0, 2])
def test_an_empty_dataset_has_no_batches(workers):
    assert list(Feeder(Plain(0), num_workers=workers)) == []


def test_more_workers_than_samples_are_no_trouble():
    assert listed(Feeder(Plain(2), num_workers=4)) == [[0], [1]]


def test_pinning_is_harmless_without_an_accelerator():
    assert listed(Feeder(Plain(3), num_workers=1, pin_memory=True)) == [[0], [1], [2]]


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_are_pinned_and_right(workers):
    for index, batch in enumerate(Feeder(Whole(50, large), num_workers=workers, pin_memory=True)):
        assert batch.is_pinned()
        on_device = batch.to("cuda", non_blocking=True)
        del batch
        assert int(on_device.sum()) == 200_000 * index


@pytest.mark.parametrize("workers", [0, 1])
def test_a_feeder_can_be_pickled_even_after_it_has_begun(workers):
    feeder = Feeder(Plain(4), 2, num_workers=workers)
    assert listed(pickle.loads(pickle.dumps(feeder))) == [[0, 1], [2, 3]]
    iterator = iter(feeder)
    next(iterator)
    assert listed(pickle.loads(pickle.dumps(feeder))) == [[0, 1], [2, 3]]


def test_it_reports_what_it_did():
    feeder = Feeder(Whole(10, large), num_workers=1)
    list(feeder)
    report = feeder.report()
    assert (report.batches, report.bytes, report.redone, report.lost) == (10, 10 * 1_600_000, 0, 0)
    assert 0 < report.waiting <= 1
    assert str(report).startswith("10 batches, 1 workers, waiting ")  # who has gone home by now


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sampler_without_a_length_needs_none_unless_it_is_asked_for(workers):
    feeder = Feeder(range(9), batch_size=2, sampler=(index for index in (7, 1, 4)), num_workers=workers)
    iterator = iter(feeder)
    assert listed(iterator) == [[7, 1], [4]]
    with pytest.raises(TypeError, match="has no len"):
        len(iterator)


def test_samplers_with_replacement_and_more_samples_than_there_are():
    sampler = RandomSampler(range(5), replacement=True, num_samples=12, generator=torch.Generator().manual_seed(3))
    assert len(flat(Feeder(Plain(5), 4, sampler=sampler, num_workers=2))) == 12


class Metered:
    """A window of 100 J, of which 30 J fell to waiting."""

    def __init__(self, source=Source.COUNTER, *, simulated=False):
        self.phases, self.source, self.simulated = [], source, simulated

    @contextlib.contextmanager
    def phase(self, name):
        self.phases.append(name)
        yield

    def so_far(self):
        parts = tuple(Phase(name=n, duration_s=1.0, energy_j={"gpu:0": j}) for n, j in [("data", 30.0), ("rest", 70.0)])
        known = DomainEnergy(
            domain="gpu:0",
            name="GPU",
            source=self.source,
            energy_j=100.0,
            error_j=0.0,
            resolution_s=None,
            simulated=self.simulated,
        )
        return Window(name="train", began_at="", duration_s=2.0, domains=(known,), phases=parts)


def test_joules_are_those_of_the_window_and_waiting_is_a_phase_of_it():
    window = Metered()
    feeder = Feeder(Plain(4), 2, num_workers=1, window=window)
    list(feeder)
    assert set(window.phases) == {"data"}
    assert feeder.report().energy_j == 100.0
    assert feeder.report().waiting_j == 30.0
    assert str(feeder.report()).endswith("100 J (30 J waiting)")


def test_joules_that_nobody_measured_say_so():
    def told(window):
        feeder = Feeder(Plain(4), 2, window=window)
        list(feeder)
        return str(feeder.report())

    assert told(Metered(simulated=True)).endswith("100 J (30 J waiting), simulated")
    assert told(Metered(Source.MODELLED)).endswith("100 J (30 J waiting), modelled")


def test_a_live_line_shows_the_report(capsys):
    list(Feeder(Plain(4), 2, live=True))
    assert "1 batches, 0 workers, waiting " in capsys.readouterr().err


class Straggler(Dataset):
    """Sample 0 takes as long as all others together; each tells which worker made it."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.4 if index == 0 else 0.01)
        return os.getpid()


def test_a_slow_batch_keeps_nobody_else_from_working():
    made_by = torch.cat(list(Feeder(Straggler(), 1, num_workers=2, prefetch_factor=8))).tolist()
    slow, other = made_by[:2]
    assert made_by[:16] == [slow, other] * 8  # given out before anyone knew
    assert made_by[16:22] == [other] * 6


def test_where_workers_are_told_apart_by_hand_each_has_its_batches():
    made_by = torch.cat(list(Feeder(Straggler(), 1, num_workers=2, worker_init_fn=lambda _: None))).tolist()
    assert made_by == made_by[:2] * 20
