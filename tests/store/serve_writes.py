"""A process that changes what a service keeps: `python -m tests.store.serve_writes URL write|begin NAME`.

`write` goes on until it is killed, and says what is safe; `begin` waits for a line, then tries to begin every job.
"""

import sys
from dataclasses import replace
from itertools import count

from tests.store.served import attempt_of, ended, job_of, kept

from wattsmith.store.opening import open_service_store
from wattsmith.terms.service import JobState


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def write(store, name: str) -> None:
    for post in count():
        store.keep_reports([kept("rack", 20 * post + number, boot=name) for number in range(1, 21)])
        say("reports")
        job = store.add_job(job_of(by=name), {"train.py": b"pass"})
        say("job")
        attempt = attempt_of(job.id)
        store.begin_attempt(attempt)
        say("begun")
        store.end_attempt(replace(attempt, **ended(attempt)), state=JobState.DONE)
        say("ended")


def begin(store, name: str) -> None:
    sys.stdin.readline()
    for job in reversed(store.jobs(limit=1_000)):
        if store.begin_attempt(attempt_of(job.id, node=name)):
            say(job.id)


def main(url: str, what: str, name: str) -> None:
    with open_service_store(url) as store:
        say("open")
        {"write": write, "begin": begin}[what](store, name)


if __name__ == "__main__":
    main(*sys.argv[1:])
