"""What each part of the page shows, gathered from the service. Nothing here knows HTML."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from wattsmith.flows.service import Service
from wattsmith.serve.page.attention import SILENT_S, notices
from wattsmith.serve.page.drawings import Compared
from wattsmith.serve.page.history import History
from wattsmith.serve.page.words import DIGITS
from wattsmith.terms.jobs import JobResult
from wattsmith.terms.quantity import format_quantity
from wattsmith.terms.service import Client, JobState, KeptReport, Role, ServedJob, Token

Facts = dict[str, Any]
PER_PAGE = 50
LIVE = tuple(state for state in JobState if not state.is_over)
SHORT = 12  # of a list on the overview
SPARK_S = 600.0
SPARK_POINTS = 40
CHART_POINTS = 360
MOST_LINES = 64  # of one chart
LATE_S = 7 * 86400.0  # an agent that was cut off keeps reports for some days
AHEAD_S = 60.0
SPANS_S = {"10min": 600.0, "1h": 3600.0, "6h": 6 * 3600.0, "24h": 86400.0}
STATES = {"live": LIVE, **{state.value: (state,) for state in JobState}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Who asks for a part of the page, and for which."""

    token: Token
    key: str = ""  # of a job, a machine, a match or a plan
    query: Mapping[str, str] = field(default_factory=dict)

    def number(self, name: str, most: int = 10**6) -> int:
        """A whole number of the query, 0 where it makes no sense."""
        text = self.query.get(name, "")
        return min(most, int(text)) if text.isascii() and text.isdigit() and len(text) < 10 else 0

    def choice(self, name: str, among: Sequence[str]) -> str:
        """One of AMONG, the first where the query names none of them."""
        asked = self.query.get(name, "")
        return asked if asked in among else among[0]


View = Callable[[Service, Asked], Facts]


def may_submit(token: Token) -> bool:
    return token.role in (Role.SUBMIT, Role.ADMIN)


def may_cancel(token: Token, job: ServedJob) -> bool:
    """Whether there is anything to cancel, and this bearer may."""
    if job.state.is_over or job.state is JobState.STOPPING:
        return False
    return token.role is Role.ADMIN or (token.role is Role.SUBMIT and token.name == job.by)


# Overview


def overview(service: Service, asked: Asked, history: History) -> Facts:
    now_s = service.now_s()
    pool, clients = service.pool(), service.clients()
    live = service.jobs(states=LIVE, limit=200)
    recent = service.jobs(limit=50)
    names = {job.id: job.name for job in live}
    return {
        "pool": pool,
        "history": history.points(),
        "jobs": sorted(live, key=_live_order)[:SHORT],
        "more_jobs": max(0, len(live) - SHORT),
        "job_names": names,
        "ended": [job for job in recent if job.state.is_over][:5],
        "clients": len(clients),
        "heard": sum(1 for one in clients if now_s - one.last_seen_s <= SILENT_S),
        "clients_w": _sum_w(clients, now_s),
        "notices": notices(
            _unique([*live, *recent]), clients, pool, runs=service.record_summary()["runs"], now_s=now_s
        ),
        "may_budget": asked.token.role is Role.ADMIN,
    }


def _live_order(job: ServedJob) -> tuple[bool, float]:
    return job.state is JobState.WAITING, job.submitted_s


def _unique(jobs: Sequence[ServedJob]) -> list[ServedJob]:
    return list({job.id: job for job in jobs}.values())


def _sum_w(clients: Sequence[Client], now_s: float) -> float | None:
    known = [power_of(one.latest.domains) for one in clients if one.latest and now_s - one.last_seen_s <= SILENT_S]
    told = [power_w for power_w in known if power_w is not None]
    return sum(told) if told else None


def power_of(domains: Mapping[str, Any]) -> float | None:
    """What the devices of a report drew together, as far as they tell."""
    told = [one.power_w for one in domains.values() if one.power_w is not None]
    return sum(told) if told else None


# Jobs


def jobs(service: Service, asked: Asked) -> Facts:
    state = asked.choice("state", ["", *STATES])
    mine = asked.query.get("by") == "me"
    offset = asked.number("from")
    found = service.jobs(
        states=STATES.get(state, ()), by=asked.token.name if mine else None, limit=PER_PAGE + 1, offset=offset
    )
    return {
        "jobs": found[:PER_PAGE],
        "state": state,
        "states": list(STATES),
        "mine": mine,
        "offset": offset,
        "earlier": max(0, offset - PER_PAGE) if offset else None,
        "later": offset + PER_PAGE if len(found) > PER_PAGE else None,
        "any": bool(found) or bool(service.jobs(limit=1)),
    }


def job(service: Service, asked: Asked) -> Facts:
    one = service.job(asked.key)
    attempt = one.attempts[-1] if one.attempts else None
    stream = asked.choice("stream", ["stdout", "stderr"])
    numbers = [str(each.number) for each in reversed(one.attempts)]
    number = int(asked.choice("attempt", numbers)) if numbers else None
    return {
        "job": one,
        "attempt": attempt,
        "figures": compared(one, service.now_s()),
        "may_cancel": may_cancel(asked.token, one),
        "stream": stream,
        "number": number,
    }


def compared(one: ServedJob, now_s: float) -> list[Compared]:
    """Figures of a job: as predicted, and as measured in its last attempt."""
    said = one.predicted
    attempt = one.attempts[-1] if one.attempts else None
    result = None if attempt is None else attempt.result
    running = attempt is not None and attempt.ended_s is None
    duration_s = (
        now_s - attempt.started_s if attempt is not None and running else None if result is None else result.duration_s
    )
    return [
        Compared(name="Time", kind="time", predicted=said and said.duration_s, measured=duration_s, so_far=running),
        Compared(
            name="Energy",
            kind="energy",
            predicted=said and said.energy_j,
            measured=one.energy_so_far_j if result is None else result.energy_j,
            so_far=result is None,
            note=_energy_note(one, result),
        ),
        Compared(
            name="Power",
            kind="power",
            predicted=said and said.power_w,
            measured=one.power_so_far_w if result is None else result.power_w,
            note=None if one.power_now_w is None else f"now {format_quantity(one.power_now_w, 'power', DIGITS)}",
        ),
        Compared(
            name="Step", kind="time", predicted=said and said.step_s, measured=None if result is None else result.step_s
        ),
        Compared(
            name="Memory of each device",
            kind="memory",
            predicted=said and said.memory_bytes,
            measured=None if result is None else result.peak_memory_bytes,
        ),
    ]


def _energy_note(one: ServedJob, result: JobResult | None) -> str | None:
    if result is None:
        source = one.energy_source if one.energy_so_far_j is not None else None
        return one.energy_why if source is None else f"source: {source}"
    return None if result.energy_j is None or result.energy_source is None else f"source: {result.energy_source}"


def is_simulated(one: ServedJob) -> bool:
    """Whether what was measured of it comes from simulated meters."""
    result = one.attempts[-1].result if one.attempts else None
    return one.simulated if result is None else result.simulated


def progress(one: ServedJob) -> float | None:
    """Share of its steps that a job has done; None: it does not say, or nobody knows how many there are."""
    if one.progress_ratio is not None:
        return min(1.0, one.progress_ratio)
    if one.predicted is None or not one.predicted.steps or one.steps is None:
        return None
    return min(1.0, one.steps / one.predicted.steps)


# Machines

_ORDERS: dict[str, Callable[[Client], Any]] = {
    "name": lambda one: _natural(one.name),
    "power": lambda one: -((one.latest and power_of(one.latest.domains)) or 0.0),
    "seen": lambda one: one.last_seen_s,
    "reports": lambda one: -one.reports,
}


def _natural(name: str) -> list[tuple[bool, int, str]]:
    """node-2 before node-10."""
    parts: list[tuple[bool, int, str]] = []
    digits, letters = "", ""
    for character in [*name, ""]:
        if character.isascii() and character.isdigit():
            if letters:
                parts.append((True, 0, letters))
            letters, digits = "", digits + character
        else:
            if digits:
                parts.append((False, int(digits), ""))
            digits, letters = "", letters + character
    return [*parts, (True, 0, letters)] if letters else parts


def machines(service: Service, asked: Asked) -> Facts:
    now_s, every = service.now_s(), service.clients()
    words = asked.query.get("q", "")[:100].lower().split()
    sort = asked.choice("sort", list(_ORDERS))
    found = sorted((one for one in every if _is_meant(one, words)), key=_ORDERS[sort])
    pages = max(1, math.ceil(len(found) / PER_PAGE))
    page = min(asked.number("page"), pages - 1)
    shown = found[page * PER_PAGE : (page + 1) * PER_PAGE]
    return {
        "every": len(every),
        "found": len(found),
        "heard": sum(1 for one in every if now_s - one.last_seen_s <= SILENT_S),
        "clients_w": _sum_w(every, now_s),
        "rows": [(one, one.latest and power_of(one.latest.domains), spark(service, one.name, now_s)) for one in shown],
        "q": asked.query.get("q", "")[:100],
        "sort": sort,
        "page": page,
        "pages": pages,
        "silent_s": SILENT_S,
    }


def _is_meant(one: Client, words: Sequence[str]) -> bool:
    if not words:
        return True
    about = one.about
    says = f"{one.name} {about.host} {' '.join(each.name for each in about.devices)}" if about else one.name
    return all(word in says.lower() for word in words)


def spark(service: Service, name: str, now_s: float) -> list[tuple[float, float | None]]:
    kept = service.client_reports(name, since_s=now_s - SPARK_S, limit=SPARK_POINTS)
    return sorted(((one.report.time_s, power_of(one.report.domains)) for one in kept), key=lambda point: point[0])


def machine(service: Service, asked: Asked) -> Facts:
    one = service.client(asked.key)
    span = asked.choice("span", list(SPANS_S))
    now_s = service.now_s()
    kept = service.client_reports(one.name, since_s=now_s - SPANS_S[span], limit=10_000)
    schedule = service.schedule_for(one.name)
    return {
        "client": one,
        "span": span,
        "spans": list(SPANS_S),
        "charts": {name: lines_of(kept, name, one.skew_s or 0.0) for name in CHANNELS},
        "schedule": schedule,
        "own_record": service.record_place,
        "expired": schedule is not None and schedule.valid_until_s < now_s,
        "may_match": may_submit(asked.token),
        "silent_s": SILENT_S,
        "reports": len(kept),
    }


CHANNELS = ("power_w", "busy_ratio", "memory_used_bytes", "clock_hz", "temperature_c")


def lines_of(kept: Sequence[KeptReport], channel: str, skew_s: float) -> dict[str, list[tuple[float, float | None]]]:
    """CHANNEL of each device over time, thinned to what a chart can show. Devices that do not tell are left out.

    By when it was seen, on the service's clock: an agent that was cut off sends much at once.
    """
    every = max(1, math.ceil(len(kept) / CHART_POINTS))
    thin = sorted(((seen_s(one, skew_s), one.report.domains) for one in kept[::every]), key=lambda each: each[0])
    domains = dict.fromkeys(domain for _, seen in thin for domain in seen)
    lines = {
        domain: [(at_s, getattr(seen.get(domain), channel, None)) for at_s, seen in thin]
        for domain in sorted(domains)[:MOST_LINES]
    }
    return {domain: points for domain, points in lines.items() if any(value is not None for _, value in points)}


def seen_s(kept: KeptReport, skew_s: float) -> float:
    """When it was seen, by the service's clock; where its own clock tells nonsense, when it came."""
    at_s = kept.report.time_s - skew_s
    return at_s if kept.received_s - LATE_S < at_s < kept.received_s + AHEAD_S else kept.received_s


# The record


def record(service: Service, asked: Asked) -> Facts:
    family, device = asked.query.get("family") or None, asked.query.get("device") or None
    offset = asked.number("from")
    runs = service.record_runs(family=family, device=device, limit=PER_PAGE + 1, offset=offset)
    summary = service.record_summary()
    return {
        "record": summary,
        "points": summary["points"],
        "devices": list(summary["devices"]),
        "families": summary["by_family"],
        "runs": runs[:PER_PAGE],
        "family": family,
        "device": device,
        "earlier": max(0, offset - PER_PAGE) if offset else None,
        "later": offset + PER_PAGE if len(runs) > PER_PAGE else None,
    }


# What was decided


def matches(service: Service, _asked: Asked) -> Facts:
    return {"matches": [{"key": one.key, "time_s": one.time_s, "by": one.by, **one.body} for one in service.matches()]}


def match(service: Service, asked: Asked) -> Facts:
    return {"key": asked.key, "own_record": service.record_place, **service.a_match(asked.key)}


def plans(service: Service, asked: Asked) -> Facts:
    return {
        "plans": [{"key": one.key, "time_s": one.time_s, "by": one.by, **one.body} for one in service.plans()],
        "may_plan": may_submit(asked.token),
        "pool_text": _pool_text(service.pool()["nodes"]),
    }


def _pool_text(nodes: Sequence[Mapping[str, Any]]) -> str:
    """The machines of the service as a plan takes them, to begin with; "": too many to be written out."""
    if len(nodes) > PER_PAGE:
        return ""
    each = [f"  - {{name: {one['name']}, device: {one['kind']}, count: {one['count']}}}\n" for one in nodes]
    return "".join(["nodes:\n", *each]) if each else ""


def plan(service: Service, asked: Asked) -> Facts:
    found = service.a_plan(asked.key)
    works = [(one["client"], work) for one in found["schedules"] for work in one["works"]]
    # Plans that were made before signals were kept have them where their works run.
    signals = found.get("signals") or [window for _, work in works for window in work["timing"].get("signals", ())]
    return {"key": asked.key, "plan": found["plan"], "works": works, "signals": signals}


# For admins


def audit(service: Service, asked: Asked) -> Facts:
    offset = asked.number("from")
    entries = service.audit_log(limit=PER_PAGE + 1, offset=offset)
    return {
        "entries": entries[:PER_PAGE],
        "earlier": max(0, offset - PER_PAGE) if offset else None,
        "later": offset + PER_PAGE if len(entries) > PER_PAGE else None,
    }


def tokens(service: Service, _asked: Asked) -> Facts:
    return {"tokens": service.tokens(), "roles": [role.value for role in Role]}
