"""What is sent and answered, as OpenAPI tells it. Facts travel as they are; the rest is written here."""

import base64
import binascii
import math
import re
from functools import cache
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError

from wattsmith.serve.failing import MOST_FIELDS, Failed, field
from wattsmith.terms.service import (
    AuditEntry,
    Client,
    ClientAbout,
    Document,
    KeptReport,
    Report,
    Role,
    ServedJob,
    Token,
)
from wattsmith.terms.telemetry import Match
from wattsmith.terms.work_schedule import WorkSchedule

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$"  # terms.service.NAME, as JSON Schema and paths have it
LARGEST = 2**53  # whole numbers that every reader of JSON holds exactly
LONGEST_PATH = 400
_FILE = re.compile(r"[\w.+@=-][\w.+@=, -]*(?:/[\w.+@=-][\w.+@=, -]*)*")
_NUL = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def _sound(value: dict[str, Any]) -> dict[str, Any]:
    """VALUE, if each number in it can be kept and sent again."""
    left: list[Any] = [value]
    while left:
        one = left.pop()
        if isinstance(one, dict):
            left.extend(one.values())
        elif isinstance(one, list):
            left.extend(one)
        elif isinstance(one, float) and not math.isfinite(one):
            raise ValueError("a number is not finite")
        elif isinstance(one, int) and not -(2**63) <= one < 2**63:
            raise ValueError("a whole number has more than 64 bits")
    return value


Name = Annotated[str, Field(pattern=NAME_PATTERN)]
Plain = Annotated[dict[str, Any], AfterValidator(_sound)]


class Sent(BaseModel):
    """A body, taken as it is: a text is no number, and nothing that is not known is passed over."""

    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class Told(BaseModel):
    """An answer."""


# ── sent ──
class Login(Sent):
    token: str = Field(max_length=200)


class NewToken(Sent):
    name: Name
    role: Role


class Budget(Sent):
    budget: str | float | None = Field(description='"10kW", a number of watts, or null for none')


class EstimateAsked(Sent):
    structure: Name | Plain = Field(description="the key of a structure, or one as POST /structures takes it")
    device: str = Field(max_length=100)
    devices: int = Field(1, ge=1, le=100_000)
    power_limit_w: float | None = Field(None, gt=0)
    samples: int | None = Field(None, ge=1, le=LARGEST)
    epochs: int = Field(1, ge=1, le=1_000_000)


class NewJob(Sent):
    job: str | Plain = Field(description="a job file, as YAML text or as an object")
    files: dict[str, str] = Field({}, description="by relative path, in base64")
    structure: Name | None = None
    once: Annotated[str, Field(min_length=1, max_length=100)] | None = Field(
        None, description="sent twice with the same word, it is one job"
    )


class About(RootModel[ClientAbout]):
    """What an agent tells of itself. Fields that are not known here are passed over: it may be newer than we are."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)


class Telemetry(BaseModel):
    """Reports of an agent. Fields that are not known here are passed over."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)
    reports: list[Report] = Field(max_length=10_000)


class MatchAsked(Sent):
    slowdown: float = Field(0.05, ge=0, le=10, description="that may be accepted to save energy")


class PlanAsked(Sent):
    jobs: str = Field(description="as `wattsmith plan` reads them, in YAML")
    pool: str
    budget: str | float | None = None
    objective: str | None = None
    deadline: str | None = None
    exact: bool = False
    carbon: str | None = Field(None, description="CSV of time and carbon_intensity, g per kWh")
    tariff: str | None = Field(None, description="CSV of time and price, money per kWh")


# ── told ──
class FieldWrong(Told):
    where: str
    line: int | None
    reason: str


class Wrong(Told):
    kind: str
    message: str
    fields: list[FieldWrong]


class ErrorTold(Told):
    error: Wrong


class Health(Told):
    status: str
    version: str
    time_s: float


class Key(Told):
    key: str


class TokenMade(Told):
    token: Token
    text: str = Field(description="shown this once; only a hash of it is kept")


class Tokens(Told):
    tokens: list[Token]


class Jobs(Told):
    jobs: list[ServedJob]


class Clients(Told):
    clients: list[Client]


class Reports(Told):
    reports: list[KeptReport]


class Runs(Told):
    runs: list[Plain]


class Matches(Told):
    matches: list[Document]


class Plans(Told):
    plans: list[Document]


class Entries(Told):
    entries: list[AuditEntry]


class Events(Told):
    events: list[Plain]
    after: int


class MatchMade(Told):
    key: str
    match: Match


class PlanMade(Told):
    key: str
    plan: Plain
    schedules: list[WorkSchedule]


class Greeting(Told):
    version: str
    note: str | None
    server_time_s: float
    serial: int | None = Field(description="of the work schedule that holds; null: there is none")


class ReportsKept(Told):
    accepted: int
    duplicates: int
    serial: int | None
    server_time_s: float


@cache
def reader(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def read(kind: Any, body: bytes) -> Any:
    """BODY as a KIND. Raises Failed that names every field that is wrong."""
    if b"\\u0000" in body and _NUL.search(body):
        raise Failed(422, "a text holds the character NUL, which cannot be kept", [field("body", "NUL in a text")])
    try:
        return reader(kind).validate_json(body, strict=True)
    except ValidationError as wrong:
        raise _failed(wrong) from wrong
    except RecursionError as deep:
        raise Failed(422, "the body is nested too deeply to be meant") from deep


def _failed(wrong: ValidationError) -> Failed:
    problems = wrong.errors(include_url=False, include_context=False, include_input=False)
    if problems[0]["type"] == "json_invalid":
        return Failed(400, f"the body is no JSON: {problems[0]['msg']}", [field("body", problems[0]["msg"])])
    fields = [field(_place(one["loc"]), one["msg"].removeprefix("Value error, ")) for one in problems[:MOST_FIELDS]]
    said = "; ".join(f"{one['where']}: {one['reason']}" for one in fields[:3])
    more = f"; and {len(problems) - 3} more" if len(problems) > 3 else ""
    return Failed(422, said + more, fields)


def _place(steps: tuple[int | str, ...]) -> str:
    """("reports", 0, "number") as "reports[0].number"."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)
    return text.removeprefix(".") or "body"


def files_in(files: dict[str, str]) -> dict[str, bytes]:
    """Files out of base64, by relative path. Raises Failed that names each that is none."""
    found, wrong = {}, []
    for name, text in files.items():
        if not _FILE.fullmatch(name) or len(name) > LONGEST_PATH or {".", ".."} & set(name.split("/")):
            wrong.append(field(f"files.{name}", "the path of a file is relative, of plain names with / between"))
            continue
        try:
            found[name] = base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            wrong.append(field(f"files.{name}", "this is no base64"))
    if wrong:
        raise Failed(422, f"{wrong[0]['where']}: {wrong[0]['reason']}", wrong[:MOST_FIELDS])
    return found
