"""Pinned batches: a device may read them by itself, late, and still finds what was sent."""

import time

import pytest
import torch
from tests.feed.sets import Chancy, Plain

from wattsmith import Feeder
from wattsmith.feed.pinning import Pinner, pin_device


def test_nothing_is_pinned_unless_it_was_asked_for():
    assert pin_device(wanted=False, device="cuda") is None


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_every_tensor_of_a_batch_is_pinned_wherever_it_stands(workers):
    images, indices, chance, more = next(iter(Feeder(Chancy(8), 4, num_workers=workers, pin_memory=True, seed=1)))
    assert all(part.is_pinned() for part in (images, indices, chance, more))


@pytest.mark.gpu
@pytest.mark.parametrize("workers", [0, 2])
def test_pinned_batches_are_those_that_come_unpinned(workers):
    plain, pinned = (
        [batch[0] for batch in Feeder(Chancy(40), 4, num_workers=workers, pin_memory=pin, seed=1)]
        for pin in (False, True)
    )
    assert len(plain) == 10
    assert all(torch.equal(one, other) for one, other in zip(plain, pinned, strict=True))


@pytest.mark.gpu
def test_copies_to_the_device_are_right_while_later_batches_arrive_in_the_same_memory():
    plain = [batch[0] for batch in Feeder(Chancy(400, side=256), 8, num_workers=2, seed=1)]
    fed = Feeder(Chancy(400, side=256), 8, num_workers=2, pin_memory=True, seed=1)
    sent = []
    for images, *_ in fed:
        torch.cuda._sleep(2_000_000)  # the copy begins when this is over; the batch has long been let go then
        sent.append(images.to("cuda", non_blocking=True))
        del images
    torch.cuda.synchronize()
    assert all(torch.equal(one, there.cpu()) for one, there in zip(plain, sent, strict=True))


@pytest.mark.gpu
def test_a_trainer_that_is_busy_finds_the_next_batch_pinned():
    fed, waits_s = iter(Feeder(Chancy(64, side=2048), 4, num_workers=2, pin_memory=True, seed=1)), []
    for _ in range(12):
        time.sleep(0.3)  # computing
        began_s = time.perf_counter()
        images = next(fed)[0]
        waits_s.append(time.perf_counter() - began_s)
    began_s = time.perf_counter()
    images.clone().pin_memory()
    assert sorted(waits_s[4:])[4] < (time.perf_counter() - began_s) / 2


@pytest.mark.gpu
def test_an_epoch_left_in_the_middle_does_not_disturb_the_next():
    fed = Feeder(Plain(40), 2, num_workers=2, pin_memory=True, persistent_workers=True)
    next(iter(fed))
    assert [batch.tolist() for batch in fed] == [[first, first + 1] for first in range(0, 40, 2)]
    fed.close()


@pytest.mark.gpu
def test_what_cannot_be_pinned_is_told_to_who_waits_for_it():
    class Bad:
        def pin_memory(self):
            raise ValueError("not this one")

    pinner = Pinner("cuda")
    with pytest.raises(ValueError, match="not this one"):
        pinner.submit(Bad()).result(timeout=10)
    pinner.close()
