"""Jobs that are done join the record; of those that could not it is known why, until they can."""

import time
from collections.abc import Callable

from wattsmith.flows.service_estimates import Estimates
from wattsmith.flows.service_jobs import Jobs
from wattsmith.flows.service_record import RecordView
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.service import JobState, ServedJob, ServiceStore

MOST = 200  # jobs, the newest, that are looked at again
AGAIN_S = 60.0  # after which that is done


class Joining:
    """KIND_OF gives the kind of device of a node; NOTICE is told what has changed, by kind and key."""

    def __init__(
        self,
        *,
        store: ServiceStore,
        jobs: Jobs,
        record: RecordView,
        estimates: Estimates,
        kind_of: Callable[[str], str],
        notice: Callable[[str, str], None],
    ) -> None:
        self._store, self._jobs, self._record, self._estimates = store, jobs, record, estimates
        self._kind_of, self._notice = kind_of, notice
        self._why_not: dict[str, str] = {}  # by job
        self._tried_s = time.monotonic()

    def why_not(self, job_id: str) -> str | None:
        """Why a job that is done is not in the record; None: it is, or need not be."""
        return self._why_not.get(job_id)

    def join(self, job: ServedJob, result: JobResult) -> None:
        """A job that is done joins the record, if it told enough of its steps."""
        try:
            run = self._jobs.run_of(job, result, self._kind_of(job.attempts[-1].node) if job.attempts else "cpu")
            if run is not None:
                self._record.add(run)
                self._estimates.record_has_grown()
                self._store.change_job(job.id, among=(JobState.DONE,), run=run.provenance.session)
                self._notice("record", run.provenance.session)
            self._why_not.pop(job.id, None)
        except WattsmithError as failed:  # the job is done all the same
            self._why_not[job.id] = f"its run did not join the record, and is tried again: {failed}"
        self._notice("job", job.id)

    def try_again(self) -> None:
        """Every now and then, with those that could not."""
        if self._why_not and time.monotonic() - self._tried_s > AGAIN_S:
            self.join_those_left()

    def join_those_left(self) -> None:
        """Let all that are done and have not joined do so."""
        self._tried_s = time.monotonic()
        for job in self._store.jobs(states=(JobState.DONE,), limit=MOST):
            result = job.attempts[-1].result if job.attempts else None
            if job.run is None and job.structure is not None and result is not None:
                self.join(job, result)
