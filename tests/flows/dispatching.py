"""A dispatcher on a real store and simulated machines, with ways to let both fail."""

import math
from contextlib import suppress

from wattsmith.flows.dispatching import Dispatcher
from wattsmith.flows.launching import Launch, keep_work
from wattsmith.sim.jobs import SimulatedJobEngine
from wattsmith.store.opening import open_service_store
from wattsmith.terms.errors import NotRead, NotWritten
from wattsmith.terms.schedule import Job, Need, OperatingPoint, PoolNode, Response
from wattsmith.terms.service import JobState, Predicted, ServedJob
from wattsmith.terms.work import Setting

AWAY = (NotWritten, NotRead)
WRITES = ("change_job", "begin_attempt", "place_attempt", "end_attempt", "keep_document")
READS = ("job", "jobs", "document", "job_files")
# A step a second on 200 W, two in three seconds on 100 W.
CURVE = Response(
    points=(
        OperatingPoint(setting=Setting(power_limit_w=200.0), rate=1.0, power_w=200.0),
        OperatingPoint(setting=Setting(power_limit_w=100.0), rate=2 / 3, power_w=100.0),
    )
)


class Killed(BaseException):
    """The process dies here."""


class Failing:
    """STORE or engine, some of whose next calls fail: before anything has happened, or on their way back."""

    def __init__(self, inner):
        self._inner = inner
        self.wait, self.fail, self.late, self.kill = 0, 0, False, False

    def fails(self, *, wait=0, calls=1, late=False, kill=False):
        """After WAIT more calls, CALLS of them fail, LATE ones after they were carried out; or the process dies."""
        self.wait, self.fail, self.late, self.kill = wait, calls, late, kill

    def __getattr__(self, name):
        real = getattr(self._inner, name)
        if name not in (*WRITES, *READS, "start"):
            return real

        def call(*words, **more):
            if self.fail == 0 or self.wait > 0:
                self.wait = max(0, self.wait - 1)
                return real(*words, **more)
            self.fail -= 1
            if self.late and name not in READS:
                real(*words, **more)
            if self.kill:
                raise Killed
            raise NotRead("the database is away") if name in READS else NotWritten("the database is away")

        return call


class Clock:
    now_s = 1000.0

    def __call__(self):
        return self.now_s


class Pool:
    """A service's jobs, without the service around them."""

    def __init__(self, path, nodes=(("n0", 2), ("n1", 1)), budget_w=math.inf, memory=None):
        self.real = open_service_store(path)
        gib = memory or {}
        self.machines = SimulatedJobEngine(
            PoolNode(name=name, kind="h200", count=count, memory_bytes=gib[name] * 2**30 if name in gib else None)
            for name, count in nodes
        )
        self.store, self.engine = Failing(self.real), Failing(self.machines)
        self.clock = Clock()
        self.budget_w = budget_w
        self.noticed = []  # what has changed, by kind and key
        self.done = []  # jobs that the dispatcher said were done
        self.works = {}  # what each job needs, as it was submitted
        self.restart()

    def restart(self):
        """Kill the dispatcher, and start another as soon as the database lets it."""
        for job in self.real.jobs(states=[JobState.WAITING], limit=1000):
            if self.real.document("work", job.id) is None:  # as the service does first
                keep_work(self.real, job, self.works[job.id], Launch(environment={}), self.clock())
        while True:
            self.dispatcher = Dispatcher(
                self.store,
                self.engine,
                now_s=self.clock,
                predict=lambda job, _devices, _point: Predicted(steps=job.steps),
                ended=lambda job, _result: self.done.append(job.id),
                notice=lambda kind, key: self.noticed.append((kind, key)),
            )
            with suppress(*AWAY, Killed):
                self.dispatcher.recover(self.budget_w)
                return

    def keep(self, name="one", retries=0):
        """A job as the service keeps it before the dispatcher hears of it."""
        return self.real.add_job(
            ServedJob(
                id="",
                name=name,
                by="kim",
                written="",
                state=JobState.WAITING,
                submitted_s=self.clock(),
                command=("python", "-V"),
                retries=retries,
            ),
            {"a.py": b"1"},
        )

    def hand_on(
        self, kept, devices=1, after=(), kind="h200", pausable=True, response=CURVE, memory=None, each=1, **more
    ):
        need = Need(kind=kind, devices=devices, response=response, memory_bytes=memory, steps_each=each)
        work = Job(name=kept.id, steps=100.0, needs=(need,), after=tuple(after), pausable=pausable, **more)
        self.works[kept.id] = work
        self.dispatcher.submit(kept, work, Launch(environment={}))
        return kept.id

    def submit(self, name="one", retries=0, **more):
        return self.hand_on(self.keep(name, retries), **more)

    def tick(self, after_s=1.0):
        self.clock.now_s += after_s
        self.dispatcher.tick()

    def job(self, job_id):
        return self.real.job(job_id)

    def now(self, job_id):
        """The job with what is known of it at this moment."""
        return self.dispatcher.seen([self.job(job_id)])[0]

    def state(self, job_id):
        return str(self.job(job_id).state)

    def states(self):
        return {str(job.state) for job in self.real.jobs(limit=1000)}

    def close(self):
        self.real.close()
