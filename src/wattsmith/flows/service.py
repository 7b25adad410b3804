"""The service of a team: who may do what, estimates, jobs on a pool, client devices and their schedules.

HTTP, the page and tests call these methods; nothing here knows of them. All may be called from any thread.
"""

import contextlib
import secrets
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from wattsmith.flows import service_clients, service_record
from wattsmith.flows.dispatching import Dispatcher
from wattsmith.flows.job_joining import Joining
from wattsmith.flows.service_estimates import Estimates, parse_structure, structure_key
from wattsmith.flows.service_events import Events
from wattsmith.flows.service_jobs import Jobs, checked_power_w, rules_of
from wattsmith.flows.service_known_tokens import KnownTokens
from wattsmith.flows.service_metrics import metrics_text
from wattsmith.flows.service_nodes import nothing_to_do, schedule_of
from wattsmith.flows.service_options import Kept, OnePost, Post, ServiceOptions
from wattsmith.flows.service_plans import planned
from wattsmith.flows.service_pool import engine_for, measured_w, owner_of, pool_view
from wattsmith.flows.service_runs import way_of
from wattsmith.flows.service_sweeping import Sweeper
from wattsmith.flows.service_tokens import Tokens
from wattsmith.flows.service_watch import Watch, watch_nodes
from wattsmith.store.opening import open_service_store
from wattsmith.terms.errors import BadInput, NoSuch, NotAllowed, WattsmithError
from wattsmith.terms.estimate import Estimate
from wattsmith.terms.facts import as_plain
from wattsmith.terms.jobs import JobEngine
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.service import (
    AuditEntry,
    Client,
    ClientAbout,
    Document,
    JobState,
    KeptReport,
    Report,
    Role,
    ServedJob,
    ServiceStore,
    Token,
    check_name,
)
from wattsmith.terms.telemetry import Match, Telemetry
from wattsmith.terms.work_schedule import WorkSchedule

__all__ = ["Kept", "Service", "ServiceOptions", "open_service"]

TICK_S = 0.5
MATCHED_S = 600.0  # of a client's latest reports are matched
MANY_CLIENTS = 10_000  # that a service takes
HEARD_S = 60.0
RENEW_S = 200.0  # a node's schedule is made anew when it is so old


class Service:
    """All that can be asked of the service. `open` it, and `close` it: jobs go on without it."""

    def __init__(self, options: ServiceOptions, *, engine: JobEngine | None = None) -> None:
        self._options = options
        options.home.mkdir(parents=True, exist_ok=True)
        self._store: ServiceStore = open_service_store(options.db)
        self._sweeper = Sweeper(self._store, options, now_s=self.now_s)
        self._owner = owner_of(self._store, self.now_s())
        self._engine = engine or engine_for(options, self._owner)
        self._tokens = Tokens(store=self._store, now_s=self.now_s)
        self._known = KnownTokens(self._tokens)
        self._events = Events()
        self._record = service_record.RecordView(options.db, self._store.record_version)
        self._estimates = Estimates(options.db, self._structure_body)
        self._jobs = Jobs(store=self._store, estimates=self._estimates, rules=rules_of(options), now_s=self.now_s)
        self._lock = threading.RLock()  # of the dispatcher
        self._dispatcher = Dispatcher(
            self._store,
            self._engine,
            now_s=self.now_s,
            predict=self._predict,
            ended=lambda job, result: self._joining.join(job, result),
            notice=self._events.add,
        )
        self._joining = Joining(
            store=self._store,
            jobs=self._jobs,
            record=self._record,
            estimates=self._estimates,
            kind_of=self._kind_of,
            notice=self._events.add,
        )
        self._serials: dict[str, int] = {}  # of the work schedules that hold, by client
        self._schedules = threading.Lock()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None
        self._watch: Watch | None = None
        self._told: dict[str, tuple[Any, float]] = {}  # by node: settings of its last schedule, and when
        self._not_watched: str | None = None
        self.trouble: str | None = None  # what keeps the dispatcher from going on

    def open(self) -> None:
        """Find what there is, and go on with it. Raises Conflict where another service works with the database."""
        self._store.hold()
        kept = self._store.document("setting", "budget")
        given_w = self._options.budget_w
        budget_w = given_w if given_w is not None else (kept.body if kept is not None else None)
        with self._lock:
            self._jobs.hand_on_what_was_kept(self._engine.nodes(), checked_power_w(budget_w))
            self._dispatcher.recover(checked_power_w(budget_w))
            self._joining.join_those_left()
        for one in self._store.documents("schedule", limit=MANY_CLIENTS):
            self._serials[one.key] = one.serial
        self._thread = threading.Thread(target=self._go_on, name="dispatcher", daemon=True)
        self._thread.start()
        self._sweeper.start()
        self._watch_nodes()

    def close(self) -> None:
        """Stop deciding; settings of machines go back, jobs that run go on."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._watch is not None:
            self._watch.close()
        self._sweeper.close()
        self._engine.close()
        self._store.close()

    def now_s(self) -> float:
        return time.time()

    # Who may do what

    def whoami(self, token: str) -> Token | None:
        """Whose TOKEN this is, revoked ones included; None: nobody's."""
        return self._known.whoami(token)

    def known(self, token: str) -> Token | None:
        """Whose TOKEN this is, if that was found out a moment ago; None: ask `whoami`. Never waits."""
        return self._known.at_once(token)

    def add_token(self, name: str, role: Role, by: Token | str) -> tuple[Token, str]:
        """A new token, and its text, which nobody can tell again."""
        return self._tokens.add_token(name, role, by)

    def revoke_token(self, token_id: str, by: Token | str) -> None:
        self._known.revoke(token_id, by)

    def tokens(self) -> list[Token]:
        return self._store.tokens()

    def audit_log(self, limit: int = 100, offset: int = 0) -> list[AuditEntry]:
        return self._store.audit_log(limit=limit, offset=offset)

    # Estimates

    def keep_structure(self, body: Mapping[str, Any], by: Token) -> str:
        """Keep a traced step; its key."""
        structured = parse_structure(body)
        key = structure_key(body)
        if self._store.document("structure", key) is None:
            self._keep("structure", key, by, dict(body))
        self._estimates.learn(key, structured)
        return key

    def structure(self, key: str) -> dict[str, Any]:
        body = self._structure_body(key)
        if body is None:
            raise NoSuch(f"there is no structure {key!r:.80}; send it first")
        return dict(body)

    def _structure_body(self, key: str) -> Any | None:
        kept = self._store.document("structure", key)
        return None if kept is None else kept.body

    def estimate(self, structure: str, **on: Any) -> Estimate:
        """What a kept structure should cost ON `device`: `devices`, `power_limit_w`, `samples`, `epochs`."""
        structured = self._estimates.structure(structure)
        if structured is None:
            raise NoSuch(f"there is no structure {structure!r:.80}; send it first")
        return self._estimates.estimate(structure, structured, **on)

    # Jobs

    def submit(
        self,
        job: str | Mapping[str, object],
        *,
        files: Mapping[str, bytes],
        structure: str | None = None,
        once: str | None = None,
        by: Token,
    ) -> ServedJob:
        """Keep a job, to be run when its turn comes. Sent again with the same ONCE it is the same job."""
        with self._lock:
            state = self._dispatcher.state
        there = [node for name, node in state.nodes.items() if name not in state.lost]
        kept, work, launch = self._jobs.accept(
            job, there, files=files, structure=structure, once=once, by=by, budget_w=state.budget_w
        )
        if work is not None:
            self._tokens.audit(by, "submit", kept.id, name=kept.name, command=list(kept.command))
            with self._lock:
                self._dispatcher.submit(kept, work, launch)
        return self.job(kept.id)

    def cancel(self, job_id: str, by: Token) -> ServedJob:
        """Cancel a job: one's own, or as an admin any."""
        job = self.job(job_id)
        if job.by != by.name and by.role is not Role.ADMIN:
            raise NotAllowed(f"{job_id} was submitted by {job.by}; only they and an admin may cancel it")
        with self._lock:
            cancelled = self._dispatcher.cancel(job_id, by.name)
        self._tokens.audit(by, "cancel", job_id)
        return self._seen([cancelled])[0]

    def job(self, job_id: str) -> ServedJob:
        """A job, with what is known of it at this moment."""
        found = self._store.job(job_id)
        if found is None:
            raise NoSuch(f"there is no job {job_id!r:.80}")
        return self._seen([found])[0]

    def jobs(
        self, *, states: Sequence[JobState] = (), by: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[ServedJob]:
        return self._seen(self._store.jobs(states=states, by=by, limit=limit, offset=offset))

    def _seen(self, jobs: Sequence[ServedJob]) -> list[ServedJob]:
        return [replace(job, trouble=self._joining.why_not(job.id)) for job in self._dispatcher.seen(jobs)]

    def job_log(
        self, job_id: str, *, attempt: int | None = None, stream: str = "stdout", offset: int = 0, limit: int = 1 << 16
    ) -> bytes:
        """What an attempt has printed, the last one if none is named."""
        job = self.job(job_id)
        if not job.attempts:
            return b""
        number = attempt if attempt is not None else job.attempts[-1].number
        found = next((one for one in job.attempts if one.number == number), None)
        if found is None:
            raise NoSuch(f"{job_id} has {len(job.attempts)} attempts, and none is number {number}")
        return self._engine.log(found.id, stream=stream, offset=offset, limit=limit)

    def _kind_of(self, name: str) -> str:
        node = self._dispatcher.state.nodes.get(name)
        return "cpu" if node is None else node.kind

    def _predict(self, work: Any, devices: int, point: Any) -> Any:
        job = self._store.job(work.name)
        return self._jobs.predict_at(work, way_of(work, devices, point), point, job.structure if job else None)

    # The pool

    def pool(self) -> dict[str, Any]:
        """The machines, who uses them, and power: measured, believed, and how much there may be."""
        # Not under the lock: a state is never changed, and a cluster that does not answer may hold the dispatcher up.
        state = self._dispatcher.state
        statuses = {name: self._dispatcher.status_of(name) for name in state.running}
        trouble = self.trouble or (self._not_watched if self._watch is None else self._watch.trouble)
        return {
            **pool_view(state, statuses),
            "power_w": measured_w(self._store, state.nodes, self.now_s()),
            "trouble": trouble,
        }

    def set_budget(self, budget_w: float | None, by: Token) -> None:
        """So much power for the pool from now on; None: as much as it takes."""
        limit_w = checked_power_w(budget_w)
        with self._lock:
            idle_w = self._dispatcher.state.idle_w
            if limit_w < idle_w:
                raise BadInput(
                    f"the pool draws {format_quantity(idle_w, 'power')} when idle, more than a budget of "
                    f"{format_quantity(limit_w, 'power')}"
                )
            self._keep("setting", "budget", by, budget_w)
            self._dispatcher.set_budget(limit_w)
        self._tokens.audit(by, "budget", "pool", budget_w=budget_w)

    def _go_on(self) -> None:
        """The dispatcher's own thread."""
        while not self._over.wait(TICK_S):
            try:
                self._store.hold()  # which a server that was started again has let go of
                with self._lock:
                    self._dispatcher.tick()
                    self._set_nodes()
                    self._joining.try_again()
                self.trouble = None
            except WattsmithError as failed:  # a database that is away: nothing is lost, and it will come back
                self.trouble = str(failed)
            except Exception as failed:  # noqa: BLE001 - one job must not end the dispatching of all others
                self.trouble = f"{type(failed).__name__}: {failed}"

    # Its machines

    def _watch_nodes(self) -> None:
        nodes = self._engine.nodes()
        try:
            self._watch = watch_nodes(
                self._options, nodes, self._owner, now_s=self.now_s, keep=self.keep_posts, hello=self.keep_about
            )
        except WattsmithError as failed:
            self._not_watched = f"machines are not measured: {failed}"

    def _set_nodes(self) -> None:
        """Tell a node how to be set when that has changed, or its schedule runs out."""
        state, now_s = self._dispatcher.state, self.now_s()
        for name in state.nodes:
            if name in state.lost:
                self._told.pop(name, None)
                continue
            settings = {
                one.job.name: (one.devices, one.point.setting) for one in state.running.values() if one.node == name
            }
            # Of a node of which nothing is known here an agent may still follow what it was told before.
            before, when_s = self._told.get(name, ({} if self._options.engine == "local" else None, 0.0))
            if settings == before and (not settings or now_s - when_s < RENEW_S):
                continue
            made = schedule_of(state, name, now_s, 0)
            if made is None:
                made = nothing_to_do(state.nodes[name], now_s)
            given = self._keep_schedule(name, made, "dispatcher")
            self._told[name] = (settings, now_s)
            if self._watch is not None:
                self._watch.accept(given)

    # Client devices

    def keep_posts(self, posts: Sequence[Post]) -> list[Kept]:
        """Keep what several agents sent, in one go."""
        now_s = self.now_s()
        kept = [KeptReport(client=post.client, received_s=now_s, report=one) for post in posts for one in post.reports]
        new = iter(self._store.keep_reports(kept))
        answers = []
        for post in posts:
            accepted = sum(next(new) for _ in post.reports)
            answers.append(
                Kept(accepted=accepted, duplicates=len(post.reports) - accepted, serial=self._serials.get(post.client))
            )
        for client in {post.client for post in posts}:
            self._events.add("client", client)
        return answers

    def keep_reports(self, client: str, reports: Sequence[Report], by: Token | None = None) -> Kept:  # noqa: ARG002
        """Keep what one agent sent."""
        check_name("client", client)
        return self.keep_posts([OnePost(client=client, reports=reports)])[0]

    def keep_about(self, client: str, about: ClientAbout) -> None:
        check_name("client", client)
        self._store.keep_about(client, about, self.now_s())
        self._events.add("client", client)

    def client(self, name: str) -> Client:
        found = self._store.client(name)
        if found is None:
            raise NoSuch(f"there is no client {name!r:.80}; its agent has never called")
        return found

    def clients(self) -> list[Client]:
        return self._store.clients()

    def client_reports(self, name: str, since_s: float | None = None, limit: int = 10_000) -> list[KeptReport]:
        return self._store.reports(name, since_s=since_s, limit=limit)

    def schedule_for(self, client: str) -> WorkSchedule | None:
        """The last work schedule of a client; None: it never had one."""
        kept = self._store.document("schedule", client)
        return None if kept is None else parse_fact(WorkSchedule, kept.body, f"schedule of {client}")

    def put_schedule(self, client: str, schedule: WorkSchedule, by: Token) -> WorkSchedule:
        """SCHEDULE takes the place of the one that the client has; its serial is given here."""
        check_name("client", client)
        if schedule.client != client:
            raise BadInput(f"this is the schedule of {schedule.client!r:.80}, not of {client!r:.80}")
        given = self._keep_schedule(client, schedule, by.name)
        self._tokens.audit(by, "schedule", client, serial=given.serial)
        return given

    def _keep_schedule(self, client: str, schedule: WorkSchedule, by: str) -> WorkSchedule:
        with self._schedules:
            before = self._serials.get(client, 0)
            given = replace(schedule, serial=before + 1)
            kept = self._keep("schedule", client, by, as_plain(given))
            if kept.serial != given.serial:  # another process wrote one as well
                given = replace(given, serial=kept.serial + 1)
                kept = self._keep("schedule", client, by, as_plain(given))
            self._serials[client] = kept.serial
        self._events.add("client", client)
        return given

    # Matches and plans

    def match_client(self, client: str, by: Token, slowdown: float = 0.05) -> tuple[str, Match]:
        """What runs on a client, by its latest reports; and its work schedule from that."""
        known = self.client(client)
        kept = self._store.reports(client, since_s=self.now_s() - MATCHED_S, limit=2_000)
        telemetry = service_clients.telemetry_of(known, kept)
        found = service_clients.matched(telemetry, self._options.db)
        key = self._keep_match(found, by, client)
        made = service_clients.schedule_from(found, known, telemetry, now_s=self.now_s(), slowdown=slowdown)
        self._keep_schedule(client, made, by.name)
        self._tokens.audit(by, "match", client, key=key)
        return key, found

    def match(self, telemetry: Mapping[str, Any], by: Token) -> tuple[str, Match]:
        """What a client's telemetry, as facts in JSON, is most like."""
        found = service_clients.matched(parse_fact(Telemetry, telemetry, "telemetry"), self._options.db)
        return self._keep_match(found, by, None), found

    def _keep_match(self, found: Match, by: Token, client: str | None) -> str:
        key = f"m-{secrets.token_hex(6)}"
        self._keep("match", key, by, {"match": as_plain(found), "client": client})
        self._events.add("match", key)
        return key

    def _match_of(self, key: str) -> Match | None:
        kept = self._store.document("match", key)
        return None if kept is None else parse_fact(Match, kept.body["match"], key)

    def a_match(self, key: str) -> dict[str, Any]:
        return self._decided("match", key)

    def matches(self) -> list[Document]:
        return self._store.documents("match")

    def plan(self, jobs: str, pool: str, wishes: Mapping[str, Any], by: Token) -> tuple[str, dict[str, Any]]:
        """A plan of jobs on a pool, both as `wattsmith plan` reads them; models in it must have figures."""
        home = self._options.home
        found, schedules, signals = planned(jobs, pool, wishes, now_s=self.now_s(), home=home, a_match=self._match_of)
        key, made = f"p-{secrets.token_hex(6)}", {"plan": as_plain(found), "schedules": as_plain(schedules)}
        self._keep("plan", key, by, {**made, "signals": as_plain(signals)})
        self._tokens.audit(by, "plan", key)
        self._events.add("plan", key)
        return key, {"plan": as_plain(found), "schedules": schedules}

    def a_plan(self, key: str) -> dict[str, Any]:
        return self._decided("plan", key)

    def plans(self) -> list[Document]:
        return self._store.documents("plan")

    def _decided(self, kind: str, key: str) -> dict[str, Any]:
        kept = self._store.document(kind, key)
        if kept is None:
            raise NoSuch(f"there is no {kind} {key!r:.80}")
        return {"key": key, "time_s": kept.time_s, "by": kept.by, **kept.body}

    def _keep(self, kind: str, key: str, by: Token | str, body: Any) -> Document:
        who = by if isinstance(by, str) else by.name
        return self._store.keep_document(Document(kind=kind, key=key, serial=0, time_s=self.now_s(), by=who, body=body))

    # The record, and all in figures

    @property
    def record_place(self) -> str:
        return self._options.db

    def record_summary(self) -> dict[str, Any]:
        return self._record.summary()

    def record_runs(
        self, *, family: str | None = None, device: str | None = None, limit: int = 100, offset: int = 0
    ) -> list[dict[str, Any]]:
        return self._record.page(family=family, device=device, limit=limit, offset=offset)

    def metrics(self) -> str:
        now_s, clients = self.now_s(), self._store.clients()
        return metrics_text(
            jobs=self._store.count_jobs(),
            clients=len(clients),
            heard=sum(1 for one in clients if now_s - one.last_seen_s < HEARD_S),
            pool=self.pool(),
            late=len(self._dispatcher.late),
            runs=len(self._record.runs()),
        )

    def events(self, after: int, wait_s: float) -> list[dict[str, Any]]:
        """What has changed since the change number AFTER, as soon as something has."""
        return self._events.after(after, wait_s)


@contextlib.contextmanager
def open_service(options: ServiceOptions, *, engine: JobEngine | None = None) -> Iterator[Service]:
    """A service that goes on with what it finds, until it is closed."""
    service = Service(options, engine=engine)
    try:
        service.open()
        yield service
    finally:
        service.close()
