"""`wattsmith submit` and `wattsmith jobs`: work for a service, and what became of it."""

import json
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from wattsmith.cli.answers import JobReady
from wattsmith.cli.asking import PATIENCE, AsJson, Patience, ServerUrl, TokenFile, server_of
from wattsmith.cli.job_tables import job_line, print_job, print_jobs, progress_text
from wattsmith.cli.tables import warn
from wattsmith.flows.submitting import ReadyJob, ready_job
from wattsmith.serve.client import Server
from wattsmith.terms.facts import as_plain

LOOK_EVERY_S = 0.5
LONGEST_LOOK_S = 3.0
OVER = ("done", "failed", "cancelled", "refused")
INTERRUPTED = 130


class JobsGroup(typer.core.TyperGroup):
    """`wattsmith jobs --state running` is `wattsmith jobs list --state running`."""

    def parse_args(self, context: Any, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] != "--help"):
            args = ["list", *args]
        return super().parse_args(context, args)


jobs = typer.Typer(cls=JobsGroup, help="Jobs of a service: what they should need, and what they took.")


def submit_command(
    path: Annotated[Path, typer.Argument(help="The job, in YAML.", metavar="JOB.yaml")],
    wait: Annotated[bool, typer.Option("--wait", help="Until it has ended; the exit code is then the job's.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="As --wait, and print what the job prints.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read, check and trace; nothing is sent, and no service is needed.")
    ] = False,
    server: ServerUrl = None,
    token_file: TokenFile = None,
    patience: Patience = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Submit a job: its file is checked and its model traced here, then both are sent.

    Example: wattsmith submit job.yaml --wait
    """
    if dry_run:
        _tell_ready(_ready(path), as_json)
        return
    with server_of(server, token_file, patience) as asked:
        ready = _ready(path)
        key = None if ready.structure is None else asked.keep_structure(ready.structure)
        job = asked.submit(ready.written, ready.files, structure=key, once=uuid.uuid4().hex)
        if wait or follow:
            if not as_json:
                typer.echo(job_line(job), err=True)
            job = _followed(asked, job["id"], follow=follow)
    typer.echo(json.dumps(job)) if as_json else print_job(job)
    if wait or follow or job["state"] == "refused":
        raise typer.Exit(exit_code_of(job))


def _ready(path: Path) -> ReadyJob:
    # What a model prints while it is loaded is no part of the answer.
    with redirect_stdout(sys.stderr), Console(stderr=True).status("…") as status:
        return ready_job(path, status.update)


def _tell_ready(ready: ReadyJob, as_json: bool) -> None:
    how = None if ready.structure is None else ready.structure["how"]
    if as_json:
        job, files = ready.job, tuple(sorted(ready.files))
        told = JobReady(name=job.name, command=tuple(job.command), files=files, how=how, notes=ready.notes)
        typer.echo(json.dumps(as_plain(told)))
        return
    typer.echo(f"{ready.job.name} can be submitted: {' '.join(ready.job.command)}, with {len(ready.files)} files")
    if how is not None:
        typer.echo(f"its step was traced: batch {how['batch']}, {how['precision']}, {how['mode']}")
    for note in ready.notes:
        typer.echo(f"note: {note}")


def exit_code_of(job: dict[str, Any]) -> int:
    """That of its last attempt; 1 where it was refused or cancelled, or failed without one."""
    if job["state"] == "done":
        return 0
    result = (job["attempts"][-1].get("result") or {}) if job["attempts"] else {}
    code = int(result.get("exit_code") or 1) if job["state"] == "failed" else 1
    return 128 - code if code < 0 else code


def _followed(asked: Server, job_id: str, *, follow: bool) -> dict[str, Any]:
    """The job once it has ended. Interrupted, it goes on without us."""
    log = Log(asked, job_id) if follow else None
    pause_s = LOOK_EVERY_S
    try:
        shown = not follow and sys.stderr.isatty()
        with _status(wanted=shown) as tell:
            while True:
                job: dict[str, Any] = asked.job(job_id)
                if log is not None:
                    log.print_new(job)
                if job["state"] in OVER:
                    return job
                if shown:
                    tell(progress_text(job, asked.power_of(job_id)))
                time.sleep(pause_s)
                pause_s = min(1.2 * pause_s, LONGEST_LOOK_S)
    except KeyboardInterrupt:
        warn(f"{job_id} goes on; see it with `wattsmith jobs show {job_id}`, stop it with `wattsmith jobs cancel`")
        raise typer.Exit(INTERRUPTED) from None


@contextmanager
def _status(*, wanted: bool) -> Iterator[Callable[[str], None]]:
    if not wanted:
        yield lambda _: None
        return
    with Console(stderr=True).status("…") as status:
        yield status.update


class Log:
    """Prints what a job has printed since the last look, attempt after attempt."""

    def __init__(self, asked: Server, job_id: str, *, stream: str = "stdout", attempt: int | None = None) -> None:
        self._asked = asked
        self._job_id = job_id
        self._stream = stream
        self._only = attempt
        self._attempt = attempt
        self._offset = 0

    def print_new(self, job: dict[str, Any]) -> None:
        numbers = [one["number"] for one in job["attempts"]] if self._only is None else [self._only]
        for number in numbers:
            if self._attempt is not None and number < self._attempt:
                continue
            if number != self._attempt:
                self._attempt, self._offset = number, 0
            while new := self._asked.log(self._job_id, stream=self._stream, offset=self._offset, attempt=number):
                self._offset += len(new)
                sys.stdout.buffer.write(new) if hasattr(sys.stdout, "buffer") else sys.stdout.write(new.decode())
            sys.stdout.flush()


@jobs.callback()
def all_jobs() -> None:
    """Jobs of a service: what they should need, and what they took. Alone it lists them.

    Example: wattsmith jobs
    """


@jobs.command("list")
def list_jobs(
    state: Annotated[
        str | None, typer.Option(help="Only those that are waiting, running, done, failed …", metavar="STATE")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many, the newest first.", metavar="N", min=1, max=1000)] = 30,
    server: ServerUrl = None,
    token_file: TokenFile = None,
    patience: Patience = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """List the jobs of a service, the newest first.

    Example: wattsmith jobs list --state running
    """
    with server_of(server, token_file, patience) as asked:
        found = asked.jobs(state=state, limit=limit)
    typer.echo(json.dumps(found)) if as_json else print_jobs(found)


JobId = Annotated[str, typer.Argument(help="Its id, such as j-000017.", metavar="ID")]


@jobs.command("show")
def show_job(
    job: JobId,
    server: ServerUrl = None,
    token_file: TokenFile = None,
    patience: Patience = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Show one job: predicted beside measured, and each attempt.

    Example: wattsmith jobs show j-000017
    """
    with server_of(server, token_file, patience) as asked:
        found = asked.job(job)
    typer.echo(json.dumps(found)) if as_json else print_job(found)


@jobs.command("log")
def job_log(
    job: JobId,
    follow: Annotated[bool, typer.Option("--follow", help="Until the job has ended.")] = False,
    errors: Annotated[bool, typer.Option("--stderr", help="What it wrote to standard error instead.")] = False,
    attempt: Annotated[
        int | None, typer.Option(help="Of this attempt alone.", metavar="N", min=1, show_default="all")
    ] = None,
    server: ServerUrl = None,
    token_file: TokenFile = None,
    patience: Patience = PATIENCE,
) -> None:
    """Print what a job has printed.

    Example: wattsmith jobs log j-000017 --follow
    """
    with server_of(server, token_file, patience) as asked:
        log = Log(asked, job, stream="stderr" if errors else "stdout", attempt=attempt)
        while True:
            found = asked.job(job)
            log.print_new(found)
            if not follow or found["state"] in OVER:
                return
            time.sleep(LOOK_EVERY_S)


@jobs.command("cancel")
def cancel_job(
    job: JobId,
    server: ServerUrl = None,
    token_file: TokenFile = None,
    patience: Patience = PATIENCE,
    as_json: AsJson = False,
) -> None:
    """Stop a job that waits or runs.

    Example: wattsmith jobs cancel j-000017
    """
    with server_of(server, token_file, patience) as asked:
        found = asked.cancel(job)
    typer.echo(json.dumps(found)) if as_json else typer.echo(job_line(found))
