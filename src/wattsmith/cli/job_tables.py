"""Jobs of a service as tables: what was predicted beside what was measured."""

from datetime import UTC, datetime
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from wattsmith.cli.tables import WIDTH_OF_FILES
from wattsmith.terms.quantity import format_quantity

Plain = dict[str, Any]
FIGURES = {  # what is predicted: its title, kind, and what of a result it is compared with
    "duration_s": ("time", "time", "duration_s"),
    "energy_j": ("energy", "energy", "energy_j"),
    "power_w": ("power", "power", "power_w"),
    "memory_bytes": ("memory of each", "memory", "peak_memory_bytes"),
    "step_s": ("step", "time", "step_s"),
}


def _console() -> Console:
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH_OF_FILES)


def _table(*headings: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for place, heading in enumerate(headings):
        table.add_column(heading, overflow="fold", no_wrap=place == 0)
    return table


def _value(number: float | None, kind: str) -> str:
    return "" if number is None else format_quantity(number, kind, 3)


def _measured(result: Plain, name: str, kind: str) -> str:
    """What an attempt came to; nothing while there is no result, and unknown where that does not tell."""
    return _value(result.get(name), kind) or ("unknown" if result else "")


def _clock(time_s: float | None) -> str:
    return "" if time_s is None else datetime.fromtimestamp(time_s, UTC).strftime("%d %b %H:%M:%S")


def result_of(job: Plain) -> Plain:
    """What its last attempt took; {} while there is nothing."""
    return (job["attempts"][-1].get("result") or {}) if job.get("attempts") else {}


def where_of(job: Plain) -> str:
    """Where it runs or ran; where it should run, while it waits."""
    if job.get("attempts"):
        last = job["attempts"][-1]
        devices = ",".join(map(str, last["devices"]))
        return f"{last['node']}:{devices}" if devices else str(last["node"])
    predicted = job.get("predicted") or {}
    return f"{predicted.get('devices') or 1} × {predicted['device']}" if predicted.get("device") else ""


def remarks(job: Plain) -> list[str]:
    """What else there is to say of a job: what it waits for, that it is late, what went wrong."""
    waits, reason, late_s = job.get("waits_because"), job.get("reason"), job.get("late_by_s")
    found = [str(one) for one in (waits, reason if reason != waits else None) if one]
    if late_s is not None:
        far = format_quantity(late_s, "time", 2)
        if job["state"] == "done":
            found.append(f"it ended {far} after its deadline")
        elif job["state"] == "waiting":
            found.append(f"it will miss its deadline by {far} at the least")
        else:
            found.append(f"it will miss its deadline by {far}")
    return [*found, *([str(job["trouble"])] if job.get("trouble") else [])]


def so_far(job: Plain) -> Plain:
    """What a job that runs has come to, by the names that a result has; {} where it does not run."""
    if job.get("duration_so_far_s") is None:
        return {}
    return {
        "duration_s": job["duration_so_far_s"],
        "energy_j": job.get("energy_so_far_j"),
        "power_w": job.get("power_so_far_w"),
        "energy_why": job.get("energy_why"),
        "energy_source": job.get("energy_source"),
        "simulated": job.get("simulated", False),
    }


def state_of(job: Plain) -> str:
    """Its state, and how far it is."""
    done = job.get("progress_ratio")
    return str(job["state"]) if done is None else f"{job['state']} {100 * done:.0f} %"


def job_line(job: Plain) -> str:
    """A job in one line, for people: its id, its state and what it should need."""
    predicted = job.get("predicted") or {}
    told = [
        _value((predicted.get(name) or {}).get("value"), kind)
        for name, kind in (("duration_s", "time"), ("energy_j", "energy"))
    ]
    needs = " and ".join(one for one in told if one)
    parts = [
        f"{job['id']} {job['name']}: {job['state']}",
        *([f"{needs} predicted"] if needs else []),
        *([f"on {where}"] if (where := where_of(job)) else []),
        *remarks(job),
    ]
    return ", ".join(parts)


def progress_text(job: Plain, power_w: float | None = None) -> str:
    """How a job stands while one waits for it."""
    parts = [f"{job['id']} {job['state']}"]
    if job.get("steps") is not None:
        of = (job.get("predicted") or {}).get("steps")
        parts.append(f"step {job['steps']:g}" + (f" of {of:g}" if of else ""))
    if power_w is not None:
        parts.append(_value(power_w, "power"))
    if job.get("energy_so_far_j") is not None:
        parts.append(_value(job["energy_so_far_j"], "energy"))
    parts += remarks(job)
    return " · ".join(map(escape, parts))


def print_jobs(jobs: list[Plain]) -> None:
    console = _console()
    if not jobs:
        console.print("no jobs; submit one with `wattsmith submit job.yaml`")
        return
    table = _table("job", "name", "state", "by", "time", "predicted", "energy", "predicted", "where")
    for job in jobs:
        predicted, result = job.get("predicted") or {}, so_far(job) or result_of(job)
        table.add_row(
            job["id"],
            escape(job["name"]),
            state_of(job),
            escape(job["by"]),
            _value(result.get("duration_s"), "time"),
            _value((predicted.get("duration_s") or {}).get("value"), "time"),
            _measured(result, "energy_j", "energy"),
            _value((predicted.get("energy_j") or {}).get("value"), "energy"),
            escape(where_of(job)),
        )
    console.print(table)
    for job in jobs:
        for remark in remarks(job):
            console.print(f"{job['id']}: {escape(remark)}", soft_wrap=True)


def print_job(job: Plain) -> None:
    console = _console()
    said = f"{job['id']}[/bold] {escape(job['name'])} by {escape(job['by'])}: [bold]{state_of(job)}"
    console.print(f"[bold]{said}[/bold]")
    for remark in remarks(job):
        console.print(escape(remark), soft_wrap=True)
    if where := where_of(job):
        console.print(f"on {escape(where)}, submitted {_clock(job['submitted_s'])} UTC")
    console.print(_compared(job))
    if job.get("ends_s") is not None:
        due = f", its deadline is {_clock(job['deadline_s'])}" if job.get("deadline_s") is not None else ""
        console.print(f"it should end {_clock(job['ends_s'])} UTC{due}")
    predicted = job.get("predicted") or {}
    if predicted.get("standing"):
        reasons = "; ".join(predicted.get("reasons") or [])
        console.print(
            escape(f"prediction: {predicted['standing']}" + (f", {reasons}" if reasons else "")), soft_wrap=True
        )
    if len(job["attempts"]) > 1 or any(one.get("lost") for one in job["attempts"]):
        console.print(_attempts(job["attempts"]))
    result = result_of(job)
    if result.get("exit_code") is not None:
        why = f", {result['why']}" if result.get("why") else ""
        console.print(f"exit code {result['exit_code']}{escape(why)}")
    measured = so_far(job) or result
    if measured.get("energy_j") is not None and measured.get("energy_source"):
        kind = "simulated meters" if measured.get("simulated") else "meters"
        console.print(f"energy from {kind}, source: {measured['energy_source']}")
    if measured.get("energy_why"):
        console.print(f"energy is unknown: {escape(measured['energy_why'])}", soft_wrap=True)
    if job.get("run"):
        console.print(f"its run joined the record as session {escape(job['run'])}")


def _compared(job: Plain) -> Table:
    running = so_far(job)
    table = _table("", "predicted", "90 % interval", "so far" if running else "measured")
    predicted, result = job.get("predicted") or {}, running or result_of(job)
    for name, (title, kind, measured) in FIGURES.items():
        interval, took = predicted.get(name), result.get(measured)
        if interval is None and took is None and measured not in running:
            continue
        span = "" if interval is None else f"{_value(interval['low'], kind)} … {_value(interval['high'], kind)}"
        said = _value((interval or {}).get("value"), kind) or ("unknown" if predicted else "")
        table.add_row(title, said, span, _measured(result, measured, kind) if measured in result else "")
    steps, done = predicted.get("steps"), result.get("steps", job.get("steps"))
    if steps is not None or done is not None:
        table.add_row("steps", "" if steps is None else f"{steps:g}", "", "" if done is None else f"{done:g}")
    return table


def _attempts(attempts: list[Plain]) -> Table:
    table = _table("attempt", "where", "from", "until", "came to")
    for one in attempts:
        result = one.get("result") or {}
        if one.get("lost"):
            ended = f"lost: {one['lost']}"
        elif result:
            code = result.get("exit_code")
            said = [None if code is None else f"exit code {code}", result.get("why")]
            ended = ", ".join(filter(None, said)) or "never started"
        else:
            ended = "runs"
        devices = ",".join(map(str, one["devices"]))
        table.add_row(
            str(one["number"]),
            escape(f"{one['node']}:{devices}"),
            _clock(one["started_s"]),
            _clock(one.get("ended_s")),
            escape(ended),
        )
    return table
