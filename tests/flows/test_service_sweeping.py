"""What a service forgets, and what it never does."""

import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.store.making import run_of
from tests.store.served import attempt_of, document_of, ended, job_of, kept

from wattsmith.flows import service_sweeping
from wattsmith.flows.service import open_service
from wattsmith.flows.service_devices import Learned
from wattsmith.flows.service_options import ServiceOptions
from wattsmith.flows.service_record import RecordView
from wattsmith.flows.service_sweeping import Sweeper
from wattsmith.store.opening import open_service_store, open_store
from wattsmith.terms.errors import Conflict
from wattsmith.terms.service import AuditEntry, JobState

DAY_S = 86_400.0
NOW_S = 1_000 * DAY_S


@pytest.fixture
def place(tmp_path):
    return str(tmp_path / "service.sqlite")


@pytest.fixture
def store(place):
    with open_service_store(place) as store:
        yield store


def sweeper(store, **keeping):
    return Sweeper(store, ServiceOptions(db="", home=Path(), **keeping), now_s=lambda: NOW_S)


def test_old_telemetry_matches_plans_and_replaced_schedules_go_and_all_else_stays(store, place):
    job = store.add_job(replace(job_of(), submitted_s=1.0), {"train.py": b"pass"})
    store.begin_attempt(attempt_of(job.id))
    store.end_attempt(replace(attempt_of(job.id), **ended(attempt_of(job.id))), state=JobState.DONE)
    store.audit(AuditEntry(time_s=1.0, who="ann", what="submit", on=job.id))
    with open_store(place) as record:
        record.add(run_of())
    for kind, key in (("structure", "s"), ("match", "m"), ("plan", "p"), ("schedule", "rack"), ("setting", "budget")):
        for time_s in (1.0, 2.0):
            store.keep_document(document_of(kind, key if kind != "structure" else f"s{time_s}", time_s=time_s))
    store.keep_reports([replace(kept("rack", number), received_s=number * DAY_S) for number in (969, 971)])

    assert sweeper(store).sweep() == 1 + 1 + 1 + 2 + 2  # a report, a schedule, a budget, matches and plans
    assert [one.report.number for one in store.reports("rack")] == [971]  # 30 days
    assert (store.documents("match"), store.documents("plan")) == ([], [])
    assert store.document("schedule", "rack").serial == store.document("setting", "budget").serial == 2
    assert len(store.documents("structure")) == 2
    assert store.job(job.id).attempts[0].result is not None
    assert store.job_files(job.id) == {"train.py": b"pass"}
    assert len(store.audit_log()) == 1
    with open_store(place) as record:
        assert record.count() == 1
    assert sweeper(store).sweep() == 0


def test_what_is_younger_stays(store):
    store.keep_document(document_of("plan", "p", time_s=NOW_S - 89 * DAY_S))
    assert sweeper(store).sweep() == 0
    assert sweeper(store, keep_decided_s=88 * DAY_S).sweep() == 1


def test_telemetry_is_bounded_by_number_however_young(store):
    store.keep_reports([replace(kept("rack", number), received_s=NOW_S) for number in range(1, 21)])
    assert sweeper(store, most_reports=5).sweep() == 15
    assert [one.report.number for one in store.reports("rack")] == [16, 17, 18, 19, 20]


def test_it_sweeps_at_its_start_and_ends_in_the_middle(store, monkeypatch):
    monkeypatch.setattr(service_sweeping, "BREATH_S", 60.0)
    store.keep_document(document_of("plan", "p", time_s=1.0))
    one = sweeper(store)
    one.start()
    until_gone = threading.Event()
    for _ in range(100):
        if not store.documents("plan"):
            break
        until_gone.wait(0.05)
    one.close()
    assert store.documents("plan") == []


def test_a_second_service_on_one_database_is_refused(place, tmp_path):
    options = ServiceOptions(db=place, home=tmp_path / "one", watch=False)
    with (
        open_service(options),
        pytest.raises(Conflict, match="another service works with"),
        open_service(replace(options, home=tmp_path / "two")),
    ):
        pass
    with open_service(replace(options, home=tmp_path / "two")):
        pass


def test_a_record_is_read_again_only_when_it_has_grown(store, place):
    view = RecordView(place, store.record_version)
    assert view.summary()["runs"] == 0
    assert view.runs() is view.runs()
    with open_store(place) as record:
        record.add(run_of())  # by another process, say
    assert view.summary()["runs"] == 1
    view.summary()["runs"] = 9
    assert view.summary()["runs"] == 1


def test_while_a_record_that_has_grown_is_read_anew_answers_are_from_what_it_was():
    read, go_on, forgotten = [], threading.Event(), threading.Event()

    def learn(name):
        read.append(name)
        assert len(read) == 1 or go_on.wait(10)
        return f"{name} of reading {len(read)}"

    devices = Learned(learn, relearned=forgotten.set)
    devices.refresh()
    assert devices.device("h200") == devices.device("h200") == "h200 of reading 1"
    devices.record_has_grown()
    devices.refresh()
    assert devices.device("h200") == "h200 of reading 1"
    go_on.set()
    assert forgotten.wait(10)
    assert devices.device("h200") == "h200 of reading 2"
    devices.record_has_grown()
    devices.refresh()  # not again within a minute
    assert read == ["h200", "h200"]
