"""Jobs and their attempts, whatever happens to them in whatever order, beside a model in plain dicts."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, multiple, rule, run_state_machine_as_test
from tests.store.served import attempt_of, ended, job_of

from wattsmith.store.opening import open_service_store
from wattsmith.terms.service import JobState, ServedJob

states = st.sampled_from(JobState)
_stories = itertools.count()


class Jobs(RuleBasedStateMachine):
    """Two stores on one place take turns; both must always say what the model says. Give `stores` in a subclass."""

    stores: tuple
    ids = Bundle("ids")

    def __init__(self) -> None:
        super().__init__()
        self.story = f"story-{next(_stories)}"  # one place takes all stories: each has a submitter of its own
        self.model: dict[str, ServedJob] = {}
        self.turn = itertools.cycle(self.stores)

    @rule(target=ids, once=st.sampled_from([None, "a", "b"]), retries=st.integers(0, 2))
    def submit(self, once, retries):
        job = next(self.turn).add_job(job_of(by=self.story, once=once, retries=retries), {})
        same = [known for known in self.model.values() if once is not None and known.once == once]
        if same:
            assert job == same[0]
            return multiple()
        assert job.id not in self.model
        assert job.id > max(self.model, default="")
        self.model[job.id] = job_of(by=self.story, once=once, retries=retries, id=job.id)
        return job.id

    @rule(id_=ids, among=st.sets(states), state=states, reason=st.sampled_from([None, "why"]))
    def change(self, id_, among, state, reason):
        changed = next(self.turn).change_job(id_, among=tuple(among), state=state, reason=reason)
        if self.model[id_].state in among:
            self.model[id_] = replace(self.model[id_], state=state, reason=reason)
            assert changed == self.model[id_]
        else:
            assert changed is None

    @rule(id_=ids, number=st.integers(1, 3))
    def begin(self, id_, number):
        job = self.model[id_]
        attempt = attempt_of(id_, number)
        may = job.state is JobState.WAITING and number not in {one.number for one in job.attempts}
        assert next(self.turn).begin_attempt(attempt) is may
        if may:
            attempts = tuple(sorted([*job.attempts, attempt], key=lambda one: one.number))
            self.model[id_] = replace(job, state=JobState.STARTING, attempts=attempts)

    @rule(id_=ids, number=st.integers(1, 3), state=states, exit_code=st.integers(0, 1))
    def end(self, id_, number, state, exit_code):
        job = self.model[id_]
        over = replace(attempt_of(id_, number), **ended(attempt_of(id_, number), exit_code=exit_code))
        job_then = next(self.turn).end_attempt(over, state=state, steps=5.0)
        if any(one.number == number and one.ended_s is None for one in job.attempts):
            attempts = tuple(over if one.number == number else one for one in job.attempts)
            self.model[id_] = replace(job, state=state, steps=5.0, attempts=attempts)
            assert job_then == self.model[id_]
        else:
            assert job_then is None

    @rule(wanted=st.sets(states, min_size=1))
    def look(self, wanted):
        found = next(self.turn).jobs(by=self.story, states=tuple(wanted))
        newest_first = [self.model[id_] for id_ in sorted(self.model, reverse=True)]
        assert found == [job for job in newest_first if job.state in wanted]

    @invariant()
    def both_tell_what_happened(self):
        for store in self.stores:
            assert {job.id: job for job in store.jobs(by=self.story)} == self.model


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_jobs_are_always_what_the_model_says(kind, request, tmp_path):
    place = tmp_path / "r.sqlite" if kind == "sqlite" else request.getfixturevalue("postgres_place")
    with open_service_store(place) as one, open_service_store(place) as other:
        machine = type("JobsHere", (Jobs,), {"stores": (one, other)})
        run_state_machine_as_test(machine, settings=settings(max_examples=12, stateful_step_count=20, deadline=None))
        counted = sum(one.count_jobs().values())
        assert counted == len(one.jobs(limit=100_000))
