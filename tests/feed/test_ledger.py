"""Every batch leaves the ledger exactly once, whatever workers do."""

from hypothesis import given
from hypothesis import strategies as st

from wattsmith.feed.ledger import VOID, Item, Ledger


def ledger_of(count, **how):
    ledger = Ledger(**how)
    for number in range(count):
        ledger.draw(Item(number))
    return ledger


def test_batches_leave_in_order_though_they_arrive_in_another():
    ledger = ledger_of(2)
    ledger.lease(0, 1, 10, 0.0)
    ledger.lease(1, 2, 11, 0.0)
    assert ledger.commit(11, "b")
    assert ledger.deliver() is None
    assert ledger.commit(10, "a")
    assert [ledger.deliver()[1], ledger.deliver()[1]] == ["a", "b"]
    assert len(ledger) == 0


def test_without_an_order_they_leave_as_they_arrive():
    ledger = ledger_of(2, in_order=False)
    ledger.lease(0, 1, 10, 0.0)
    ledger.lease(1, 2, 11, 0.0)
    ledger.commit(11, "b")
    assert ledger.deliver()[1] == "b"


def test_what_a_dead_worker_had_is_the_next_to_be_given():
    ledger = ledger_of(3)
    ledger.lease(0, 1, 10, 0.0)
    ledger.lease(1, 2, 11, 0.0)
    assert [lease.item.number for lease in ledger.take_back(1)] == [0]
    again = ledger.lease(1, 2, 12, 0.0)
    assert (again.item.number, again.attempt) == (0, 2)
    assert ledger.redone == 1


def test_a_second_copy_is_dropped():
    ledger = ledger_of(1)
    ledger.lease(0, 1, 10, 0.0)
    ledger.doubt(1)
    ledger.lease(1, 2, 11, 5.0)
    assert ledger.commit(11, "quick")
    assert not ledger.commit(10, "late")
    assert ledger.deliver()[1] == "quick"


def test_a_batch_of_which_all_makers_are_late_or_dead_waits_for_another():
    ledger = ledger_of(1)
    for worker in (1, 2):
        ledger.lease(0, worker, worker, 0.0)
        ledger.doubt(worker)
        assert ledger.waiting == 1
    ledger.lease(0, 3, 3, 0.0)
    ledger.take_back(3)
    assert ledger.waiting == 1


def test_a_late_worker_that_is_first_after_all_counts():
    ledger = ledger_of(1)
    ledger.lease(0, 1, 10, 0.0)
    ledger.doubt(1)
    assert ledger.commit(10, "late")
    assert ledger.lease(1, 2, 11, 5.0) is None


def test_a_lease_that_nobody_gave_commits_nothing():
    assert not ledger_of(1).commit(99, "forged")


def test_a_batch_with_a_home_waits_for_it():
    ledger = Ledger()
    ledger.draw(Item(0, home=1))
    assert ledger.lease(0, 1, 10, 0.0) is None
    assert ledger.lease(1, 2, 11, 0.0).item.number == 0


def test_batches_of_an_earlier_life_are_skipped():
    ledger = Ledger(first=3)
    ledger.skip(3)
    assert ledger.deliver() == (Item(3), VOID)


def test_leases_become_overdue():
    ledger = ledger_of(2)
    ledger.lease(0, 1, 10, 1.0)
    ledger.lease(1, 2, 11, 4.0)
    assert [lease.serial for lease in ledger.overdue(3.0)] == [10]


@given(st.data(), st.integers(1, 12), st.booleans())
def test_each_batch_leaves_once_under_any_sequence_of_losses(data, count, in_order):
    ledger, serial, worker, left, given = ledger_of(count, in_order=in_order), 0, 1, [], []
    for _ in range(60):
        step = data.draw(st.sampled_from(["lease", "commit", "again", "die", "late", "deliver"]))
        if step == "lease":
            serial += 1
            lease = ledger.lease(0, worker, serial, 0.0)
            given += [] if lease is None else [lease]
        elif step in {"commit", "again"} and given:
            lease = data.draw(st.sampled_from(given))
            ledger.commit(lease.serial, lease.item.number)
        elif step == "die":
            ledger.take_back(worker)
            worker += 1
        elif step == "late":
            ledger.doubt(worker)
            worker += 1
        elif step == "deliver" and (found := ledger.deliver()) is not None:
            left.append(found)
    while len(ledger):
        serial += 1
        if (lease := ledger.lease(0, 10_000, serial, 0.0)) is not None:
            ledger.commit(serial, lease.item.number)
        elif (found := ledger.deliver()) is not None:
            left.append(found)
        else:
            for other in [lease for lease in given if ledger.find(lease.serial) is not None]:
                ledger.commit(other.serial, other.item.number)
    assert sorted(item.number for item, _ in left) == list(range(count))
    assert all(item.number == batch for item, batch in left)
    if in_order:
        assert [item.number for item, _ in left] == list(range(count))
