"""Routes of client devices: what their agents send and fetch, and what is known of them; matches."""

import asyncio
from typing import Annotated

from fastapi import Header, Query, Request
from starlette.responses import Response

from wattsmith import __version__
from wattsmith.serve.access import Body, By, Serving
from wattsmith.serve.answering import Named, told
from wattsmith.serve.bodies import (
    About,
    Clients,
    Greeting,
    MatchAsked,
    Matches,
    MatchMade,
    Plain,
    Reports,
    ReportsKept,
    Telemetry,
    read,
)
from wattsmith.serve.routing import Access, Routes
from wattsmith.serve.telemetry_writer import Post, TelemetryWriter
from wattsmith.terms.errors import BadTerm, NoSuch
from wattsmith.terms.parse import parse_fact
from wattsmith.terms.service import Client, ClientAbout
from wattsmith.terms.work_schedule import WorkSchedule

LONG_BODY_BYTES = 1 << 16  # read in a thread of its own, so that nobody waits for it
MOST_REPORTS = 10_000
ROUTES = Routes("clients")
door = ROUTES.door


@door("POST", "/clients/{name}/hello", Access.AGENT, "An agent tells what it is.", takes=About, gives=Greeting)
def hello(service: Serving, name: Named, body: Body) -> Response:
    about: ClientAbout = read(About, body).root
    service.keep_about(name, about)
    schedule = service.schedule_for(name)
    return told(
        {
            "version": __version__,
            "note": version_note(about.version),
            "server_time_s": service.now_s(),
            "serial": None if schedule is None else schedule.serial,
        }
    )


def version_note(theirs: str) -> str | None:
    """What an agent of version THEIRS should know. None: it is of ours."""
    if theirs.split(".")[:2] == __version__.split(".")[:2]:
        return None
    return (
        f"this service is wattsmith {__version__} and the agent {theirs!r:.50}: its reports are taken as far as they "
        "are understood; install the same version on both"
    )


@door(
    *("POST", "/clients/{name}/telemetry", Access.AGENT, "An agent sends what it saw."),
    takes=Telemetry,
    gives=ReportsKept,
)
async def post_telemetry(request: Request, service: Serving, by: By, name: Named, body: Body) -> Response:
    few = len(body) <= LONG_BODY_BYTES
    sent: Telemetry = read(Telemetry, body) if few else await asyncio.to_thread(read, Telemetry, body)
    writer: TelemetryWriter = request.app.state.writer
    kept = await writer.keep(Post(client=name, reports=sent.reports, by=by))
    return told(
        {
            "accepted": kept.accepted,
            "duplicates": kept.duplicates,
            "serial": kept.serial,
            "server_time_s": service.now_s(),
        }
    )


@door(
    *("GET", "/clients/{name}/schedule", Access.AGENT, "An agent fetches its work schedule."),
    gives=WorkSchedule,
    also=(304,),
    fails=(404, 422),
    headers=("ETag",),
)
def schedule(
    service: Serving, name: Named, if_none_match: Annotated[str | None, Header(max_length=200)] = None
) -> Response:
    found = service.schedule_for(name)
    if found is None:
        raise NoSuch(f"there is no work schedule for client {name} yet")
    headers = {"ETag": f'"{found.serial}"', "Cache-Control": "no-cache"}
    known = {tag.strip().removeprefix("W/") for tag in (if_none_match or "").split(",")}
    if known & {headers["ETag"], "*"}:
        return Response(status_code=304, headers=headers)
    return told(found, headers=headers)


@door(
    *("PUT", "/clients/{name}/schedule", Access.ADMIN, "Give a client a work schedule."),
    takes=WorkSchedule,
    gives=WorkSchedule,
    fails=(404, 409),
)
def put_schedule(service: Serving, by: By, name: Named, body: Body) -> Response:
    given = parse_fact(WorkSchedule, read(Plain, body), "schedule")
    if given.client != name:
        raise BadTerm(f"client: this work schedule is for {given.client!r:.120}, and not for {name}")
    service.put_schedule(name, given, by)
    return told(service.schedule_for(name))


@door("GET", "/clients", Access.READ, "All client devices.", gives=Clients)
def clients(service: Serving) -> Response:
    return told({"clients": service.clients()})


@door("GET", "/clients/{name}", Access.READ, "A client device.", gives=Client, fails=(404, 422))
def client(service: Serving, name: Named) -> Response:
    return told(service.client(name))


@door(
    *("GET", "/clients/{name}/telemetry", Access.READ, "What a client sent, the oldest first."),
    gives=Reports,
    fails=(404, 422),
)
def telemetry(
    service: Serving,
    name: Named,
    since_s: Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)] = None,
    limit: Annotated[int, Query(ge=1, le=MOST_REPORTS)] = 1000,
) -> Response:
    return told({"reports": service.client_reports(name, since_s=since_s, limit=limit)})


@door(
    *("POST", "/clients/{name}/match", Access.SUBMIT, "Recognise what a client runs."),
    takes=MatchAsked,
    gives=MatchMade,
    status=201,
    fails=(404, 501),
)
def match_client(service: Serving, by: By, name: Named, body: Body) -> Response:
    asked: MatchAsked = read(MatchAsked, body or b"{}")
    key, found = service.match_client(name, by, slowdown=asked.slowdown)
    return told({"key": key, "match": found}, 201)


@door("POST", "/matches", Access.SUBMIT, "Recognise telemetry.", takes=Plain, gives=MatchMade, status=201, fails=(501,))
def match(service: Serving, by: By, body: Body) -> Response:
    key, found = service.match(read(Plain, body), by)
    return told({"key": key, "match": found}, 201)


@door("GET", "/matches", Access.READ, "Matches, the newest first.", gives=Matches)
def matches(service: Serving) -> Response:
    return told({"matches": service.matches()})


@door("GET", "/matches/{key}", Access.READ, "A match with its evidence.", gives=Plain, fails=(404, 422))
def a_match(service: Serving, key: Named) -> Response:
    return told(service.a_match(key))
