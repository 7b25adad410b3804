"""One job as a service takes it: what `wattsmith plan` reads, and beside it the command, its files and its limits."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from wattsmith.schedule.job_files import (
    WrittenJob,
    count_at,
    number_at,
    positive_at,
    written_job,
)
from wattsmith.schedule.yaml_tree import Value, Wrongs, read_tree, tree_of, tree_of_object
from wattsmith.terms.errors import BadInput, BadTerm
from wattsmith.terms.service import check_name

RUN = ("command", "files", "environment", "data", "retries", "timeout", "power_budget", "cpus")
MOST_RETRIES = 100
MOST_FILES = 1_000
MOST_WORDS = 1_000
MOST_TEXT = 1 << 18  # characters of a job: one that is longer was not written by a person
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What the service itself sets: PATH decides which program a command is, and the rest which devices a job sees.
SET_BY_US = ("PATH", "HOME", "CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
OURS = "WATTSMITH_"


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job that is to be run."""

    work: WrittenJob  # what it needs, how much there is to do, until when
    command: tuple[str, ...]
    files: tuple[str, ...] = ()  # relative to the folder of the job file
    environment: Mapping[str, str] = field(default_factory=dict)
    data: str | None = None  # a folder below the service's data
    retries: int = 0
    timeout_s: float | None = None  # None: it may take as long as it likes
    power_budget_w: float | None = None  # of all its devices; None: whatever the pool has
    cpus: float = 1.0

    @property
    def name(self) -> str:
        return self.work.name


def read_job(path: Path, now_s: float) -> SubmittedJob:
    """The job in a file. Raises BadInput with everything that is wrong, each with its line."""
    return _submitted(read_tree(path), now_s)


def submitted_job(job: str | Mapping[str, object], now_s: float, file: str = "the job") -> SubmittedJob:
    """The job in a text (YAML) or an object; FILE is what errors call it."""
    if isinstance(job, str):
        if len(job) > MOST_TEXT:
            raise BadInput(f"{file} is longer than {MOST_TEXT // 1024} KiB; put what is long into files")
        return _submitted(tree_of(job, file), now_s)
    return _submitted(tree_of_object(job, file), now_s)


def _submitted(at: Value, now_s: float) -> SubmittedJob:
    wrongs = Wrongs()
    if isinstance(at.plain, dict) and "jobs" in at.plain:
        raise at.plain["jobs"].wrong("one job at a time is submitted: write its fields at the top, without a list")
    work = written_job(at, now_s, wrongs, RUN)
    fields = at.plain if isinstance(at.plain, dict) else {}
    if "name" in fields and work.name:
        with wrongs.gathered():
            _check_name("job", fields["name"])
    if fields and "command" not in fields:
        wrongs.add(at.wrong("what is to be run? Give its command, such as [python, train.py]"))
    job = SubmittedJob(
        work=work,
        command=wrongs.read(fields, "command", _command, ("",)),
        files=wrongs.read(fields, "files", _files, ()),
        environment=wrongs.read(fields, "environment", _environment, {}),
        data=wrongs.read(fields, "data", _data, None),
        retries=wrongs.read(fields, "retries", _retries, 0),
        timeout_s=wrongs.read(fields, "timeout", lambda one: positive_at(one, "time"), None),
        power_budget_w=wrongs.read(fields, "power_budget", lambda one: positive_at(one, "power"), None),
        cpus=wrongs.read(fields, "cpus", lambda one: number_at(one, positive=True), 1.0),
    )
    wrongs.tell()
    return job


def _check_name(what: str, at: Value) -> str:
    try:
        check_name(what, at.text())
    except BadTerm as refused:
        raise at.wrong(str(refused)) from refused
    return at.text()


def _command(at: Value) -> tuple[str, ...]:
    if isinstance(at.plain, str):
        raise at.wrong(f"must be a list of words, such as [python, train.py]: no shell will read {at.plain!r:.80}")
    wrongs, words = Wrongs(), []
    for one in at.items():
        with wrongs.gathered():
            words.append(_word(one))
    wrongs.tell()
    if not words or len(words) > MOST_WORDS or not words[0]:
        raise at.wrong(f"must name a program and its arguments, up to {MOST_WORDS} words")
    return tuple(words)


def _word(at: Value) -> str:
    if not isinstance(at.plain, str) or "\0" in at.plain:
        raise at.wrong(f"must be a word without NUL; got {at.said}")
    return at.plain


def _files(at: Value) -> tuple[str, ...]:
    wrongs = Wrongs()
    names: dict[str, None] = {}
    for one in at.items():
        with wrongs.gathered():
            name = _file(one)
            if name in names:
                raise one.wrong(f"{name} is named twice; keep one")
            names[name] = None
    wrongs.tell()
    if len(names) > MOST_FILES:
        raise at.wrong(f"names {len(names)} files, and {MOST_FILES} are the most; put large sets under data")
    return tuple(names)


def _file(at: Value) -> str:
    text = at.text()
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or str(path) == "." or any(ord(one) < 32 for one in text):
        raise at.wrong(f"must be a file in the folder of the job file, or below it; got {text!r:.80}")
    if "\\" in text or any(len(part.encode()) > 255 for part in path.parts) or len(text) > 1_000:
        raise at.wrong(f"cannot be the name of a file everywhere: {text!r:.80}")
    return str(path)


def _environment(at: Value) -> dict[str, str]:
    if not isinstance(at.plain, dict):
        raise at.wrong(f"must hold names with texts, such as OMP_NUM_THREADS: 4; got {at.said}")
    wrongs, found = Wrongs(), {}
    for name, value in at.plain.items():
        with wrongs.gathered():
            if not NAME.fullmatch(name):
                raise value.wrong(f"{name!r:.60} is no name of a variable: letters, digits and _")
            if name in SET_BY_US or name.startswith(OURS):
                raise value.wrong(f"{name} is set by the service, and cannot be chosen")
            found[name] = "" if value.plain is None else _word(value)
    wrongs.tell()
    return found


def _data(at: Value) -> str:
    try:
        return _check_name("data set", at)
    except BadInput as refused:
        raise at.wrong("must be the name of a folder below the service's data, without /") from refused


def _retries(at: Value) -> int:
    retries = count_at(at, least=0)
    if retries > MOST_RETRIES:
        raise at.wrong(f"must be at most {MOST_RETRIES}, got {at.said}")
    return retries
