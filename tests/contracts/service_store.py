"""What every store of a service promises, wherever it keeps things: a test class per store inherits this."""

import itertools
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.store import served
from tests.store.making import run_of
from tests.store.served import ABOUT, attempt_of, document_of, ended, job_of, kept, report_of

from wattsmith.store.opening import open_service_store, open_store
from wattsmith.terms.errors import BadTerm, Conflict
from wattsmith.terms.service import AuditEntry, ClientAbout, JobState, KeptReport, Role, Token
from wattsmith.terms.work import Setting

# One store takes all examples of a law: each has names of its own, or the store counts on.
ONE_STORE = settings(
    max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.differing_executors]
)
_number = itertools.count()
ANN = Token(id="t1", name="ann", role=Role.SUBMIT, created_s=1.0)


class ServiceStoreContract:
    """Give a fixture `place`: the path or URL of a database that does not exist yet, or is empty."""

    @pytest.fixture
    def store(self, place):
        with open_service_store(place) as store:
            yield store

    @pytest.fixture
    def waiting(self, store):
        """The id of a job that waits."""
        return store.add_job(job_of(), {}).id

    def test_a_new_store_is_empty(self, store):
        assert (store.tokens(), store.jobs(), store.clients(), store.audit_log()) == ([], [], [], [])
        assert set(store.count_jobs().values()) == {0}
        assert (store.job("j-000001"), store.token("t1"), store.client("c"), store.document("plan", "a")) == (None,) * 4
        assert (store.job_files("j-000001"), store.reports("c"), store.documents("plan")) == ({}, [], [])

    def test_it_remembers_after_it_was_closed_and_shares_its_place_with_the_record(self, place):
        with open_service_store(place) as store:
            job = store.add_job(job_of(), {"train.py": b"pass"})
            store.keep_reports([kept("rack", 1)])
        with open_store(place) as record:
            assert record.count() == 0
        with open_service_store(place) as store:
            assert store.jobs() == [job]
            assert store.job_files(job.id) == {"train.py": b"pass"}
            assert store.client("rack").reports == 1

    # Tokens

    def test_a_token_is_kept_with_the_hash_of_its_secret(self, store):
        store.add_token(ANN, b"\x00\xff hash")
        assert store.token("t1") == (ANN, b"\x00\xff hash")
        assert store.tokens() == [ANN]

    def test_a_token_is_revoked_once_and_stays(self, store):
        store.add_token(ANN, b"hash")
        assert [store.revoke("t1", 5.0), store.revoke("t1", 6.0), store.revoke("t2", 5.0)] == [True, False, False]
        assert store.tokens() == [replace(ANN, revoked_s=5.0)]

    def test_a_second_token_of_the_same_id_is_refused(self, store):
        store.add_token(ANN, b"hash")
        with pytest.raises(Conflict, match="there is a token t1 already"):
            store.add_token(replace(ANN, name="bob"), b"other")
        assert store.token("t1") == (ANN, b"hash")

    # Jobs

    def test_jobs_are_numbered_in_the_order_they_come(self, store):
        ids = [store.add_job(job_of(id="mine"), {}).id for _ in range(3)]
        assert ids == ["j-000001", "j-000002", "j-000003"]
        assert [job.id for job in store.jobs()] == ids[::-1]

    def test_a_job_sent_twice_with_the_same_word_is_one_job(self, store):
        first = store.add_job(job_of(once="monday"), {"a": b"1"})
        assert store.add_job(job_of("renamed", once="monday"), {"a": b"2"}) == first
        assert store.job_files(first.id) == {"a": b"1"}
        others = [job_of(once="tuesday"), job_of(by="bob", once="monday"), job_of(), job_of()]
        assert len({first.id} | {store.add_job(job, {}).id for job in others}) == 5

    def test_files_come_back_to_the_last_byte(self, store):
        files = {"train.py": bytes(range(256)), "net/éè.py": b"", "big": b"\0" * 3_000_000}
        job = store.add_job(job_of(), files)
        assert store.job_files(job.id) == files

    def test_jobs_are_found_by_state_and_submitter(self, store):
        ids = [store.add_job(job_of(by=by), {}).id for by in ("ann", "bob", "ann", "bob", "ann")]
        store.change_job(ids[0], among=[JobState.WAITING], state=JobState.DONE)
        store.change_job(ids[1], among=[JobState.WAITING], state=JobState.FAILED)

        def found(**only):
            return [ids.index(job.id) for job in store.jobs(**only)]

        assert found(by="ann") == [4, 2, 0]
        assert found(states=[JobState.DONE, JobState.FAILED]) == [1, 0]
        assert found(states=[JobState.WAITING], by="ann") == [4, 2]
        assert found(limit=2, offset=1) == [3, 2]
        assert (found(limit=0), found(limit=-1), found(offset=9), found(limit=10**30, offset=10**30)) == ([],) * 4
        counted = store.count_jobs()
        assert (counted[JobState.WAITING], counted[JobState.DONE], counted[JobState.RUNNING]) == (3, 1, 0)
        assert set(counted) == set(JobState)

    def test_what_is_no_id_of_a_job_finds_none(self, store, waiting):
        assert waiting == "j-000001"
        for id_ in ("", "j-1", "j-0000001", "j--00001", "J-000001", "j-000001.1", "j-٠٠٠٠٠١", "j-" + "9" * 40, "j-0\0"):
            assert (store.job(id_), store.job_files(id_)) == (None, {})
            assert store.change_job(id_, among=list(JobState), reason="x") is None
            assert store.begin_attempt(attempt_of(id_)) is False
            assert store.place_attempt(attempt_of(id_)) is False
            assert store.end_attempt(attempt_of(id_, ended_s=1.0), state=JobState.DONE) is None

    def test_a_job_is_changed_only_from_the_states_that_are_named(self, store, waiting):
        assert store.change_job(waiting, among=[JobState.RUNNING], state=JobState.DONE) is None
        assert store.change_job(waiting, among=[], state=JobState.DONE) is None
        changed = store.change_job(waiting, among=[JobState.WAITING], state=JobState.REFUSED, reason="no", ended_s=7.0)
        assert (changed.state, changed.reason, changed.ended_s) == (JobState.REFUSED, "no", 7.0)
        assert store.job(waiting) == changed
        assert store.change_job("j-000099", among=list(JobState), reason="x") is None

    def test_what_no_job_can_change_is_refused(self, store, waiting):
        for changes in ({"id": "j-000002"}, {"attempts": ()}, {"colour": "red"}):
            with pytest.raises(TypeError, match="that can be changed"):
                store.change_job(waiting, among=list(JobState), **changes)

    def test_an_attempt_begins_once_and_only_on_a_job_that_waits(self, store, waiting):
        first = attempt_of(waiting)
        assert store.begin_attempt(first) is True
        assert store.begin_attempt(first) is False
        assert store.begin_attempt(attempt_of(waiting, 2)) is False
        assert store.begin_attempt(attempt_of("j-000099")) is False
        job = store.job(waiting)
        assert (job.state, job.attempts) == (JobState.STARTING, (first,))

    def test_how_an_attempt_ended_and_what_its_job_is_then_are_kept_together(self, store, waiting):
        first = attempt_of(waiting)
        store.begin_attempt(first)
        over = replace(first, node="elsewhere", devices=(3,), **ended(first))
        job = store.end_attempt(over, state=JobState.DONE, ended_s=161.0, steps=20.0)
        assert (job.state, job.ended_s, job.steps, job.attempts) == (JobState.DONE, 161.0, 20.0, (over,))
        assert store.job(waiting) == job
        again = replace(first, **ended(first, exit_code=1))
        assert store.end_attempt(again, state=JobState.FAILED, reason="late") is None
        assert store.end_attempt(replace(again, number=2), state=JobState.FAILED) is None
        assert store.job(waiting) == job

    def test_an_attempt_is_kept_where_it_really_runs_until_it_has_ended(self, store, waiting):
        first = attempt_of(waiting)
        elsewhere = replace(first, node="elsewhere", devices=(3, 4))
        assert store.place_attempt(elsewhere) is False
        store.begin_attempt(first)
        assert store.place_attempt(elsewhere) is True
        assert store.job(waiting).attempts == (elsewhere,)
        over = replace(elsewhere, **ended(first))
        store.end_attempt(over, state=JobState.DONE)
        assert store.place_attempt(first) is False
        assert store.job(waiting).attempts == (over,)

    def test_an_attempt_that_was_lost_lets_the_job_begin_again(self, store, waiting):
        first, second = attempt_of(waiting), attempt_of(waiting, 2)
        store.begin_attempt(first)
        gone = replace(first, ended_s=110.0, lost="its node was lost")
        assert store.end_attempt(gone, state=JobState.WAITING, steps=None).state is JobState.WAITING
        assert store.begin_attempt(first) is False
        assert store.begin_attempt(second) is True
        assert store.jobs()[0].attempts == (gone, second)

    def test_an_end_without_a_time_is_no_end(self, store, waiting):
        store.begin_attempt(attempt_of(waiting))
        with pytest.raises(BadTerm, match=rf"attempt {waiting}\.1: say when it ended"):
            store.end_attempt(attempt_of(waiting), state=JobState.DONE)

    # Client devices

    def test_a_report_that_comes_twice_is_kept_once(self, store):
        assert store.keep_reports([kept("rack", 1), kept("rack", 2), kept("rack", 1)]) == [True, True, False]
        assert store.keep_reports([kept("rack", 2), kept("rack", 3), kept("desk", 2)]) == [False, True, True]
        assert store.keep_reports([kept("rack", 3, boot="tuesday")]) == [True]
        assert store.keep_reports([]) == []
        assert {client.name: client.reports for client in store.clients()} == {"desk": 1, "rack": 4}
        assert [one.report.number for one in store.reports("rack")] == [1, 2, 3, 3]

    def test_a_client_shows_its_latest_report_and_how_far_its_clock_is_ahead(self, store):
        store.keep_reports([kept("rack", 1), kept("rack", 2)])
        rack = store.client("rack")
        assert (rack.first_seen_s, rack.last_seen_s, rack.skew_s) == (999.0, 1_000.0, 2.0)
        assert rack.latest == report_of(2)
        assert store.clients() == [rack]

    def test_a_report_that_comes_late_is_not_the_latest(self, store):
        store.keep_reports([kept("rack", 5)])
        store.keep_reports([kept("rack", 3, received_s=1_010.0), kept("rack", 4, received_s=1_010.0)])
        rack = store.client("rack")
        assert (rack.latest.number, rack.skew_s, rack.last_seen_s, rack.reports) == (5, 2.0, 1_010.0, 3)

    def test_after_a_restart_the_report_that_came_last_is_the_latest_whatever_the_clock_says(self, store):
        store.keep_reports([kept("rack", 900)])
        store.keep_reports([kept("rack", 1, boot="tuesday", time_s=10.0, received_s=2_000.0)])
        rack = store.client("rack")
        assert (rack.latest.boot, rack.latest.number, rack.skew_s) == ("tuesday", 1, -1_990.0)

    def test_a_duplicate_shows_that_the_client_is_there_and_nothing_else(self, store):
        store.keep_reports([kept("rack", 1)])
        before = store.client("rack")
        store.keep_reports([kept("rack", 1, received_s=5_000.0)])
        assert store.client("rack") == replace(before, last_seen_s=5_000.0)

    def test_a_client_tells_of_itself_before_or_after_its_first_report(self, store):
        store.keep_about("rack", ABOUT, 990.0)
        assert store.client("rack").latest is None
        store.keep_reports([kept("rack", 1), kept("desk", 1)])
        store.keep_about("desk", ClientAbout(version="0.2.0", host="desk"), 990.0)
        store.keep_about("rack", replace(ABOUT, version="0.3.0"), 1_005.0)
        desk, rack = store.clients()
        assert (rack.about.version, rack.first_seen_s, rack.last_seen_s, rack.reports) == ("0.3.0", 990.0, 1_005.0, 1)
        assert (desk.about.host, desk.last_seen_s) == ("desk", 999.0)

    def test_reports_are_found_by_when_they_came(self, store):
        store.keep_reports([kept("rack", number) for number in (4, 1, 3, 2)] + [kept("desk", 9)])

        def numbers(**only):
            return [one.report.number for one in store.reports("rack", **only)]

        assert numbers() == [1, 2, 3, 4]
        assert numbers(limit=2) == [3, 4]
        assert numbers(since_s=1_000.0) == [2, 3, 4]
        assert numbers(since_s=1_000.0, until_s=1_002.0) == [2, 3]
        assert store.reports("rack")[0] == kept("rack", 1)
        assert store.reports("nobody") == []

    def test_old_reports_are_forgotten_and_the_client_is_not(self, store):
        store.keep_reports([kept(name, number) for name in ("rack", "desk") for number in range(1, 11)])
        assert store.drop_reports(1_003.0) == 8
        assert store.drop_reports(1_003.0) == 0
        assert [one.report.number for one in store.reports("rack")] == [5, 6, 7, 8, 9, 10]
        assert store.drop_reports(9_999.0) == 12
        assert [(client.reports, client.latest.number) for client in store.clients()] == [(10, 10), (10, 10)]
        assert store.keep_reports([kept("rack", 11)]) == [True]

    def test_more_reports_than_one_question_takes_are_kept_and_forgotten(self, store):
        many = [kept(f"c{client}", number) for number in range(1, 6) for client in range(1_200)]
        assert all(store.keep_reports(many))
        assert not any(store.keep_reports(many[::7]))
        assert {client.reports for client in store.clients()} == {5}
        assert [store.drop_reports(2_000.0) for _ in range(3)] == [5_000, 1_000, 0]

    def test_a_clock_of_the_service_that_is_set_back_makes_nobody_heard_of_in_the_future(self, store):
        store.keep_reports([replace(kept("rack", 1), received_s=9_000.0)])
        store.keep_reports([replace(kept("rack", 2), received_s=8_999.0)])  # written a moment late
        assert store.client("rack").last_seen_s == 9_000.0
        store.keep_reports([replace(kept("rack", 3), received_s=5_400.0)])
        assert store.client("rack").last_seen_s == 5_400.0
        store.keep_about("rack", ABOUT, 1_800.0)
        assert store.client("rack").last_seen_s == 1_800.0

    def test_of_too_many_reports_the_oldest_go_first(self, store):
        store.keep_reports([kept("rack", number) for number in range(1, 11)])
        assert store.drop_reports(0.0, most=4) == 6
        assert [one.report.number for one in store.reports("rack")] == [7, 8, 9, 10]
        assert (store.drop_reports(0.0, most=4), store.drop_reports(0.0)) == (0, 0)

    def test_a_client_whose_name_is_no_name_is_refused_and_nothing_is_kept(self, store):
        for bad in ("", "../up", "a\0b", "\ud800", "x" * 101):
            with pytest.raises(BadTerm, match="the name of a client"):
                store.keep_reports([kept("rack", 1), kept(bad, 1)])
            with pytest.raises(BadTerm, match="the name of a client"):
                store.keep_about(bad, ABOUT, 1.0)
        assert store.clients() == []

    @ONE_STORE
    @given(chance=st.randoms(use_true_random=False), posts=st.integers(1, 8))
    def test_however_reports_come_each_is_kept_once(self, store, chance, posts):
        """Two boots of three clients, resent at random and in any order."""
        base = f"law-{next(_number)}"
        all_ = [
            kept(f"{base}-{client}", number, boot=f"b{boot}")
            for client in range(3)
            for boot in range(2)
            for number in range(1, 6)
        ]
        answers: dict[tuple, list[bool]] = {}
        sent = [chance.choices(all_, k=chance.randint(1, 20)) for _ in range(posts)] + [chance.sample(all_, len(all_))]
        for post in sent:
            for one, new in zip(post, store.keep_reports(post), strict=True):
                answers.setdefault((one.client, one.report.boot, one.report.number), []).append(new)
        assert all(said[0] and not any(said[1:]) for said in answers.values())
        for client in range(3):
            assert store.client(f"{base}-{client}").reports == len(store.reports(f"{base}-{client}")) == 10

    # What was decided

    def test_of_documents_of_a_kind_and_key_the_last_one_holds(self, store):
        first = store.keep_document(document_of(body={"n": 1}))
        assert (first.serial, first.body) == (1, {"n": 1})
        store.keep_document(document_of(key="b", body=[]))
        second = store.keep_document(document_of(body={"n": 2}))
        other = store.keep_document(document_of(kind="match"))
        assert (second.serial, other.serial) == (2, 1)
        assert store.document("plan", "a") == second
        assert [(one.key, one.serial) for one in store.documents("plan")] == [("a", 2), ("b", 1)]
        assert [one.key for one in store.documents("plan", limit=1)] == ["a"]
        assert (store.document("plan", "c"), store.documents("none")) == (None, [])

    def test_old_documents_are_forgotten_and_the_last_of_each_key_only_where_that_is_asked_for(self, store):
        for time_s in (1.0, 2.0, 3.0):
            store.keep_document(document_of("schedule", "rack", time_s=time_s))
            store.keep_document(document_of("plan", f"p{time_s:.0f}", time_s=time_s))
        assert store.drop_documents("schedule", 9.0) == 2
        assert store.document("schedule", "rack").serial == 3
        assert store.keep_document(document_of("schedule", "rack")).serial == 4  # no serial is given twice
        assert store.drop_documents("plan", 9.0) == 0
        assert store.drop_documents("plan", 2.5, last_too=True) == 2
        assert [one.key for one in store.documents("plan")] == ["p3"]

    def test_one_service_at_a_time_works_with_it(self, store, place):
        store.hold()
        store.hold()
        with open_service_store(place) as other:
            with pytest.raises(Conflict, match="another service works with"):
                other.hold()
            assert other.tokens() == []
            store.close()
            other.hold()

    def test_a_run_that_joins_the_record_changes_its_version(self, store, place):
        before = store.record_version()
        with open_store(place) as record:
            record.add(run_of())
        assert store.record_version() > before == store.record_version() - 1

    def test_a_fact_in_a_document_becomes_plain(self, store):
        document = store.keep_document(document_of(body={"at": Setting(threads=2), "w": float("inf"), "who": (1,)}))
        assert document.body["at"]["threads"] == 2
        assert (document.body["w"], document.body["who"]) == (None, [1])
        assert store.document("plan", "a") == document

    def test_the_audit_log_has_the_newest_first(self, store):
        entries = [
            AuditEntry(time_s=float(n), who="ann", what="cancel", on=f"j-{n}", detail={"n": n}) for n in range(5)
        ]
        for entry in entries:
            store.audit(entry)
        assert store.audit_log() == entries[::-1]
        assert store.audit_log(limit=2, offset=1) == [entries[3], entries[2]]

    # What comes back

    @ONE_STORE
    @given(job=served.any_jobs, files=st.dictionaries(served.texts, st.binary(max_size=20), max_size=3))
    def test_a_job_comes_back_equal(self, store, job, files):
        added = store.add_job(job, files)
        assert added == replace(job, id=added.id) == store.job(added.id)
        assert store.job_files(added.id) == files

    @ONE_STORE
    @given(
        setting=served.settings_of_machines,
        result=served.maybe(served.any_results),
        node=served.texts,
        devices=st.lists(served.counts, max_size=3).map(tuple),
        times=st.tuples(served.numbers, served.numbers),
        lost=served.maybe(served.texts),
    )
    def test_an_attempt_comes_back_equal(self, store, setting, result, node, devices, times, lost):
        job = store.add_job(job_of(), {})
        begun = attempt_of(job.id, setting=setting, node=node, devices=devices, started_s=times[0])
        assert store.begin_attempt(begun)
        assert store.job(job.id).attempts == (begun,)
        over = replace(begun, ended_s=times[1], result=result, lost=lost)
        assert store.end_attempt(over, state=JobState.FAILED).attempts == (over,)
        assert store.job(job.id).attempts == (over,)

    @ONE_STORE
    @given(report=served.any_reports, received_s=served.numbers, client=served.names)
    def test_a_report_comes_back_equal(self, store, report, received_s, client):
        one = KeptReport(client=client, received_s=received_s, report=report)
        if store.keep_reports([one]) == [True]:
            assert one in store.reports(client)
            assert store.client(client).latest is not None

    @ONE_STORE
    @given(about=served.any_abouts, client=served.names, token=served.any_tokens, secret_hash=st.binary(max_size=64))
    def test_clients_and_tokens_come_back_equal(self, store, about, client, token, secret_hash):
        store.keep_about(client, about, 1.0)
        assert store.client(client).about == about
        if store.token(token.id) is None:
            store.add_token(token, secret_hash)
            assert store.token(token.id) == (token, secret_hash)
            assert token in store.tokens()

    @ONE_STORE
    @given(body=served.any_json, kind=served.texts, key=served.texts)
    def test_documents_and_the_audit_log_come_back_equal(self, store, body, kind, key):
        document = store.keep_document(replace(document_of(kind, key), body=body))
        assert document.body == body
        assert store.document(kind, key) == document == store.documents(kind, limit=1)[0]
        entry = AuditEntry(time_s=1.0, who=kind, what=key, on=key, detail={"given": body})
        store.audit(entry)
        assert store.audit_log(limit=1) == [entry]

    @ONE_STORE
    @given(
        text=st.text(st.characters(codec=None, categories=None), max_size=10)
        | st.sampled_from(["\0", "\\u0000", "a\ud800", "'; --"])
    )
    def test_a_text_is_kept_as_it_is_or_refused(self, store, text):
        def attempt_all():
            job = store.add_job(job_of(reason=text, by=text, once=None), {text: b""})
            assert store.jobs(by=text)[0] == store.job(job.id) == job
            assert store.change_job(job.id, among=[JobState.WAITING], run=text).run == text
            begun = attempt_of(job.id, node=text)
            assert store.begin_attempt(begun)
            lost = replace(begun, ended_s=1.0, lost=text)
            assert store.end_attempt(lost, state=JobState.WAITING, reason=text).attempts == (lost,)
            assert store.keep_document(document_of(text, text, {text: text})).body == {text: text}
            store.audit(AuditEntry(time_s=1.0, who=text, what=text, on=text, detail={text: text}))
            store.keep_about("fuzzed", ClientAbout(version=text, host=text), 1.0)
            assert store.client("fuzzed").about.host == text

        storable = "\0" not in text and not any("\ud800" <= letter <= "\udfff" for letter in text)
        if storable:
            attempt_all()
            return
        refusals = [
            lambda: store.add_job(job_of(reason=text), {}),
            lambda: store.add_job(job_of(), {text: b""}),
            lambda: store.change_job("j-000001", among=list(JobState), reason=text),
            lambda: store.begin_attempt(attempt_of("j-000001", node=text)),
            lambda: store.end_attempt(attempt_of("j-000001", ended_s=1.0, lost=text), state=JobState.DONE),
            lambda: store.keep_reports([kept("fuzzed", 1, refused=(text,))]),
            lambda: store.keep_about("fuzzed", ClientAbout(version=text, host=""), 1.0),
            lambda: store.keep_document(document_of(body={"inside": [{"deep": text}]})),
            lambda: store.keep_document(document_of(text)),
            lambda: store.audit(AuditEntry(time_s=1.0, who=text, what="", on="")),
            lambda: store.add_token(replace(ANN, id=text), b""),
        ]
        store.add_job(job_of(), {})
        for refused in refusals:
            with pytest.raises(BadTerm, match="holds a NUL or half a surrogate pair"):
                refused()
        assert (store.token(text), store.revoke(text, 1.0), store.client(text)) == (None, False, None)
        assert (store.jobs(by=text), store.reports(text), store.document(text, text), store.documents(text)) == (
            [],
            [],
            None,
            [],
        )

    @pytest.mark.parametrize("bad", [float("nan"), float("inf"), 2**63])
    def test_a_number_that_no_database_keeps_is_refused(self, store, waiting, bad):
        for refused in (
            lambda: store.add_job(job_of(steps=bad), {}),
            lambda: store.change_job(waiting, among=[JobState.WAITING], deadline_s=bad),
            lambda: store.begin_attempt(attempt_of(waiting, started_s=bad)),
            lambda: store.keep_reports([KeptReport(client="rack", received_s=bad, report=report_of(1))]),
            lambda: store.keep_about("rack", ABOUT, bad),
        ):
            with pytest.raises(BadTerm, match=r"not a finite number|does not fit in 64 bits"):
                refused()
        assert store.job(waiting) == replace(job_of(), id=waiting)
        assert store.clients() == []

    # Many at once

    def test_of_many_threads_that_change_a_job_one_wins(self, store):
        ids = [store.add_job(job_of(), {}).id for _ in range(5)]
        ready = threading.Barrier(8)

        def change(thread: int) -> list[str]:
            ready.wait()
            new = {"state": JobState.RUNNING, "reason": str(thread)}
            return [id_ for id_ in ids if store.change_job(id_, among=[JobState.WAITING], **new)]

        with ThreadPoolExecutor(8) as pool:
            won = list(pool.map(change, range(8)))
        assert sorted(id_ for mine in won for id_ in mine) == ids
        assert all(str(won.index(mine)) == store.job(id_).reason for mine in won for id_ in mine)

    def test_threads_that_submit_and_report_at_once_lose_nothing(self, store):
        def work(thread: int) -> list[bool]:
            chance = random.Random(thread)
            store.add_job(job_of(by=f"t{thread}"), {"f": b"x"})
            store.add_job(job_of(by="all", once="one"), {})
            numbers = list(range(1, 31))
            chance.shuffle(numbers)
            new = []
            for first in range(0, 30, 10):
                new += store.keep_reports([kept("rack", number) for number in numbers[first : first + 10]])
                store.clients()
            return new

        with ThreadPoolExecutor(8) as pool:
            new = [one for answers in pool.map(work, range(8)) for one in answers]
        assert sum(new) == 30 == store.client("rack").reports == len(store.reports("rack"))
        assert len(store.jobs()) == 9
        assert len({job.id for job in store.jobs()}) == 9

    def test_of_two_processes_that_begin_attempts_one_wins_each(self, place, start_process):
        with open_service_store(place) as store:
            ids = [store.add_job(job_of(), {}).id for _ in range(30)]
            others = [start_process("tests.store.serve_writes", str(place), "begin", f"node-{n}") for n in (1, 2)]
            for other in others:
                assert other.stdout.readline() == "open\n"
            for other in others:
                other.stdin.write("go\n")
                other.stdin.flush()
            won = [other.communicate()[0].split() for other in others]
            assert sorted(won[0] + won[1]) == ids
            for number, mine in enumerate(won, start=1):
                assert all(store.job(id_).attempts[0].node == f"node-{number}" for id_ in mine)

    def test_a_process_killed_at_any_moment_leaves_all_that_it_had_confirmed_and_nothing_by_halves(
        self, place, start_process
    ):
        chance = random.Random(5)
        for boot in ("first", "second"):
            writer = start_process("tests.store.serve_writes", str(place), "write", boot)
            lines = [writer.stdout.readline() for _ in range(chance.randint(5, 40))]
            writer.kill()
            lines += writer.communicate()[0].splitlines(keepends=True)
            said = [line.split() for line in lines if line.endswith("\n") and line != "open\n"]
            confirmed = Counter(one[0] for one in said)
            with open_service_store(place) as store:
                reports = [one for one in store.reports("rack") if one.report.boot == boot]
                assert [one.report.number for one in reports] == list(range(1, len(reports) + 1))
                assert len(reports) % 20 == 0
                assert confirmed["reports"] <= len(reports) // 20 <= confirmed["reports"] + 1
                assert store.client("rack").reports == len(store.reports("rack"))
                jobs = store.jobs(by=boot, limit=10_000)
                assert confirmed["job"] <= len(jobs) <= confirmed["job"] + 1
                assert all(store.job_files(job.id) == {"train.py": b"pass"} for job in jobs[:5])
                over = [job for job in jobs if job.state is JobState.DONE]
                assert confirmed["ended"] <= len(over) <= confirmed["ended"] + 1
                assert all(job.attempts[0].ended_s is not None for job in over)
                assert all((job.state is JobState.WAITING) == (job.attempts == ()) for job in jobs)
                assert store.add_job(job_of(), {}).id == f"j-{len(store.jobs(limit=10_000)):06d}"
