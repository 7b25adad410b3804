"""Facts of a service as rows of its tables, and back."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields
from enum import Enum
from functools import lru_cache
from typing import Any

from wattsmith.store.identity import LARGEST_INT, check_kept
from wattsmith.store.service_tables import columns_of
from wattsmith.terms.errors import BadTerm
from wattsmith.terms.facts import as_plain
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.service import (
    SEEN_NOW,
    Attempt,
    AuditEntry,
    Client,
    ClientAbout,
    Document,
    DomainReport,
    JobState,
    Predicted,
    Report,
    Role,
    ServedJob,
    Token,
    check_name,
)
from wattsmith.terms.work import Setting

Row = dict[str, Any]

_TOKEN = columns_of(Token)
_JOB = columns_of(ServedJob, but=("id", *SEEN_NOW))
_ATTEMPT = columns_of(Attempt, but=("job",))
_CLIENT = columns_of(Client)
_DOCUMENT = columns_of(Document, but=("body",))
_AUDIT = columns_of(AuditEntry)
_JOB_ID = re.compile(r"j-([0-9]{6,18})")


class Written(str):
    """JSON that is written already."""

    __slots__ = ()


def as_json(plain: Any) -> str:
    """PLAIN as the text that a column of JSON takes."""
    if isinstance(plain, Written):
        return plain
    return json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def _values(fact: Any, names: Sequence[str]) -> Row:
    return {name: _value(getattr(fact, name)) for name in names}


def _value(value: Any) -> Any:
    if isinstance(value, tuple):
        return list(value)
    return value.value if isinstance(value, Enum) else value


def token_row(token: Token) -> Row:
    check_kept(token, "Token")
    return _values(token, _TOKEN)


def token_of(row: Mapping[str, Any]) -> Token:
    return Token(**{name: row[name] for name in _TOKEN} | {"role": Role(row["role"])})


def job_id(number: int) -> str:
    return f"j-{number:06d}"


def job_number(id_: str) -> int | None:
    """17 of "j-000017"; None: no job is ever called that."""
    found = _JOB_ID.fullmatch(id_)
    number = int(found[1]) if found else None
    return number if number is not None and job_id(number) == id_ else None


def job_row(job: ServedJob) -> Row:
    """All of JOB but its id and its attempts."""
    check_kept(job, "ServedJob")
    return _values(job, _JOB) | {"predicted": None if job.predicted is None else as_plain(job.predicted)}


def job_of(row: Mapping[str, Any], attempts: Sequence[Attempt]) -> ServedJob:
    values = {name: row[name] for name in _JOB}
    values |= {"command": tuple(row["command"]), "state": JobState(row["state"])}
    predicted = None if row["predicted"] is None else parse_fact(Predicted, row["predicted"])
    return ServedJob(id=job_id(row["number"]), predicted=predicted, attempts=tuple(attempts), **values)


def attempt_row(attempt: Attempt) -> Row:
    """All of ATTEMPT but which job it belongs to."""
    check_kept(attempt, "Attempt")
    result = None if attempt.result is None else as_plain(attempt.result)
    return _values(attempt, _ATTEMPT) | {"setting": as_plain(attempt.setting), "result": result}


def attempt_of(row: Mapping[str, Any]) -> Attempt:
    values = {name: row[name] for name in _ATTEMPT} | {"devices": tuple(row["devices"])}
    result = None if row["result"] is None else parse_fact(JobResult, row["result"])
    return Attempt(job=job_id(row["job_number"]), setting=Setting(**row["setting"]), result=result, **values)


def about_plain(client: str, about: ClientAbout) -> Any:
    check_name("client", client)
    check_kept(about, "ClientAbout")
    return as_plain(about)


@lru_cache(maxsize=4096)  # it changes when an agent starts, and a thousand clients are asked for every second
def _about_of(written: str) -> ClientAbout:
    return parse_fact(ClientAbout, json.loads(written))


def client_of(row: Mapping[str, Any]) -> Client:
    """The client whose row is ROW, with `about` as the JSON that is kept."""
    about = None if row["about"] is None else _about_of(row["about"])
    latest = None if row["latest"] is None else report_of(row["latest"])
    return Client(about=about, latest=latest, **{name: row[name] for name in _CLIENT})


_REPORT_PARTS = ("domains", "in_force")
_REPORT = tuple(field.name for field in fields(Report) if field.name not in _REPORT_PARTS)
_DOMAIN = tuple(field.name for field in fields(DomainReport))
_SETTING = tuple(field.name for field in fields(Setting))


def report_json(report: Report) -> Written:
    """REPORT as JSON. Thousands come each second, so this is as_plain and check_kept for one kind alone."""
    plain: Row = {name: getattr(report, name) for name in _REPORT}
    plain["domains"] = {name: _told(domain, _DOMAIN) for name, domain in report.domains.items()}
    plain["in_force"] = {name: _told(setting, _SETTING) for name, setting in report.in_force.items()}
    try:
        written = json.dumps(plain, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        written.encode()
    except ValueError as refused:  # a number that is not finite, or half a surrogate pair
        check_kept(report, "Report")
        raise BadTerm(f"Report: {refused}") from refused
    if "\\u0000" in written or report.number > LARGEST_INT:
        check_kept(report, "Report")
    return Written(written)


def _told(fact: Any, names: Sequence[str]) -> Row:
    """What FACT tells: what it does not is left out, which makes a report half as long."""
    told = {}
    for name in names:
        value = getattr(fact, name)
        if value is not None:
            told[name] = value
    return told


def report_of(plain: Mapping[str, Any]) -> Report:
    """The report that `report_json` wrote: what was checked then is not checked again in every detail."""
    values = dict(plain)
    values["domains"] = {name: DomainReport(**domain) for name, domain in plain["domains"].items()}
    values["in_force"] = {name: Setting(**setting) for name, setting in plain["in_force"].items()}
    values["refused"] = tuple(plain["refused"])
    return Report(**values)


def document_row(document: Document) -> Row:
    """All of DOCUMENT but its serial."""
    row = _values(document, _DOCUMENT) | {"body": as_plain(document.body)}
    check_kept(row, "Document")
    del row["serial"]
    return row


def document_of(row: Mapping[str, Any]) -> Document:
    return Document(body=row["body"], **{name: row[name] for name in _DOCUMENT})


def audit_row(entry: AuditEntry) -> Row:
    row = _values(entry, _AUDIT) | {"detail": as_plain(entry.detail)}
    check_kept(row, "AuditEntry")
    return row


def audit_of(row: Mapping[str, Any]) -> AuditEntry:
    return AuditEntry(detail=row["detail"], **{name: row[name] for name in _AUDIT})
