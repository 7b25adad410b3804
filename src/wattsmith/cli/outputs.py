"""What each command prints with `--json`, as a type; its JSON Schema follows from it.

`bash scripts/schemas` writes the schemas anew into the package, where `wattsmith schema` finds them.
"""

import difflib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from wattsmith.cli.answers import (
    Forgotten,
    JobReady,
    Planned,
    Replayed,
    Serving,
    TokenList,
    TokenMade,
    TokenRevoked,
)
from wattsmith.flows.checking import Verdicts
from wattsmith.flows.choosing import Ranking
from wattsmith.flows.commands import Measured
from wattsmith.flows.controlling import KnobState
from wattsmith.flows.demo.running import Demo
from wattsmith.flows.estimating import Estimate
from wattsmith.flows.following import Tick
from wattsmith.flows.matching import Match
from wattsmith.flows.recording import Recorded
from wattsmith.flows.report_analysis import Summary
from wattsmith.flows.report_disclosure import Disclosure
from wattsmith.flows.report_session import Driven
from wattsmith.flows.serving_live import LiveWindow
from wattsmith.flows.splitting import Cut
from wattsmith.terms.control import PutBack
from wattsmith.terms.errors import BadInput
from wattsmith.terms.machine import Machine
from wattsmith.terms.run import Run
from wattsmith.terms.schema import schema_of
from wattsmith.terms.service import ServedJob
from wattsmith.terms.tuning import Tuned
from wattsmith.terms.work_schedule import VERSION as SCHEDULE_VERSION

SCHEMAS = Path(__file__).parents[1] / "schemas"
SUFFIX = ".schema.json"


@dataclass(frozen=True, slots=True)
class Output:
    """What one command prints."""

    kind: Any
    says: str
    lines: bool = False  # a value a line, again and again


OUTPUTS: dict[str, Output] = {
    "demo": Output(Demo, "what each stage of the demo came to; its pictures are in the page"),
    "machine": Output(Machine, "what this machine has, and can be measured with"),
    "measure": Output(Measured | Replayed, "what a command cost; with --replay, the windows of a timeline"),
    "record run": Output(Recorded, "what a recording came to"),
    "record show": Output(tuple[Run, ...], "runs of a record; each line of a .jsonl record is one of them"),
    "estimate": Output(Estimate | Ranking, "what a step needs; with --limit or --minimise, a ranking"),
    "match": Output(Match, "what a program is, by its telemetry"),
    "plan": Output(Planned, "a plan, and its work schedules"),
    "tune run": Output(Tuned, "trials, the recommended setting and what it saves"),
    "tune replay": Output(Tuned, "the same, of a table"),
    "tune serve": Output(Tuned | tuple[LiveWindow, ...], "the same, of a served model; with --live, its windows"),
    "split": Output(Cut, "where each part of a step runs, and what crosses"),
    "report check": Output(Verdicts, "figures, checks and verdicts of results"),
    "report run": Output(Driven, "a measured session, and what its figures may be called"),
    "report from": Output(tuple[Disclosure, ...], "what the figures of a run may be called"),
    "report summarise": Output(Summary, "many results compared, in tables"),
    "restore": Output(tuple[PutBack, ...] | Forgotten, "what was put back; with --forget, the journal removed"),
    "control show": Output(tuple[KnobState, ...], "knobs, and how they are set"),
    "control follow": Output(Tick, "how a work schedule stands, whenever something was done or said", lines=True),
    "serve": Output(Serving, "where the service is, once it answers"),
    "serve token add": Output(TokenMade, "a new token"),
    "serve token list": Output(TokenList, "all tokens, without their secrets"),
    "serve token revoke": Output(TokenRevoked, "the token that holds no longer"),
    "submit": Output(ServedJob | JobReady, "the job; with --dry-run, what would be sent"),
    "jobs list": Output(tuple[ServedJob, ...], "jobs, the newest first"),
    "jobs show": Output(ServedJob, "one job"),
    "jobs cancel": Output(ServedJob, "the job, as it was stopped"),
}
# A file that commands write and read, whose schema is published beside its reader.
WORK_SCHEDULE = "work schedule"
_FILES = {WORK_SCHEDULE: SCHEMAS.with_name("schedule") / f"work_schedule.v{SCHEDULE_VERSION}{SUFFIX}"}


def file_of(name: str) -> Path:
    """Where the schema of NAME is published."""
    return _FILES.get(name) or SCHEMAS / f"{name.replace(' ', '-')}{SUFFIX}"


def schema_text(name: str) -> str:
    """The schema of what NAME prints, from its type."""
    output = OUTPUTS[name]
    made = schema_of(output.kind, name=f"{name.replace(' ', '-')}:1", title=f"wattsmith {name}: {output.says}")
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def schema_command(
    words: Annotated[
        list[str] | None,
        typer.Argument(help="A command with --json, such as record show.", metavar="[COMMAND]", show_default=False),
    ] = None,
) -> None:
    """Print the JSON Schema of what a command prints with --json; alone, list them.

    Example: wattsmith schema record show
    """
    if not words:
        width = max(map(len, OUTPUTS))
        for name, output in OUTPUTS.items():
            typer.echo(f"{name:<{width}}  {output.says}{' (a value a line)' if output.lines else ''}")
        typer.echo(f"{WORK_SCHEDULE:<{width}}  the file that `wattsmith plan --schedules` writes")
        return
    name = " ".join(words).replace("-", " ").removeprefix("wattsmith ")
    if name not in OUTPUTS and name not in _FILES:
        near = difflib.get_close_matches(name, [*OUTPUTS, *_FILES], n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise BadInput(f"no command {name!r} prints JSON.{hint} `wattsmith schema` lists those that do.")
    typer.echo(file_of(name).read_text(encoding="utf-8"), nl=False)


def publish() -> None:
    """Write all schemas into the package."""
    SCHEMAS.mkdir(exist_ok=True)
    for stale in set(SCHEMAS.glob(f"*{SUFFIX}")) - {file_of(name) for name in OUTPUTS}:
        stale.unlink()
    for name in OUTPUTS:
        file_of(name).write_text(schema_text(name), encoding="utf-8")
