"""Routes of the service itself: how it is, who asks, the pool, the record, events, metrics."""

from typing import Annotated

from fastapi import Query, Request
from starlette.responses import PlainTextResponse, Response

from wattsmith import __version__
from wattsmith.serve.access import COOKIE, COOKIE_S, Body, By, Serving, checked
from wattsmith.serve.answering import Limit, Offset, Word, power_w, told
from wattsmith.serve.bell import Bell
from wattsmith.serve.bodies import LARGEST, Budget, Events, Health, Login, Plain, Runs, read
from wattsmith.serve.routing import Access, Routes
from wattsmith.terms.service import Token

LONGEST_POLL_S = 25.0  # below what proxies wait for an answer
ROUTES = Routes("service")
door = ROUTES.door


@door("GET", "/health", Access.OPEN, "Whether the service answers.", gives=Health)
async def health(service: Serving) -> Response:
    return told({"status": "ok", "version": __version__, "time_s": service.now_s()})


@door("GET", "/openapi.json", Access.OPEN, "This document.", gives=Plain)
def openapi(request: Request) -> Response:
    return told(request.app.openapi())


@door("GET", "/whoami", Access.ANY, "Whose token this is, and its role.", gives=Token)
async def whoami(by: By) -> Response:
    return told(by)


@door("POST", "/login", Access.OPEN, "Keep a token in a cookie, for the page.", takes=Login, gives=Token, fails=(401,))
def login(request: Request, body: Body) -> Response:
    asked: Login = read(Login, body)
    token = checked(request, asked.token)
    answer = told(token)
    secure = request.url.scheme == "https"
    answer.set_cookie(COOKIE, asked.token, max_age=COOKIE_S, httponly=True, samesite="strict", secure=secure)
    return answer


@door("POST", "/logout", Access.OPEN, "Forget the cookie.", status=204)
async def logout() -> Response:
    answer = Response(status_code=204)
    answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
    return answer


@door("GET", "/pool", Access.READ, "The machines, what runs there, and power against the budget.", gives=Plain)
def pool(service: Serving) -> Response:
    return told(service.pool())


@door("PUT", "/pool/budget", Access.ADMIN, "Set the power budget of the pool.", takes=Budget, gives=Plain)
def set_budget(service: Serving, by: By, body: Body) -> Response:
    service.set_budget(power_w(read(Budget, body).budget), by)
    return told(service.pool())


@door("GET", "/record", Access.READ, "What the record holds, and what it covers.", gives=Plain)
def record(service: Serving) -> Response:
    return told(service.record_summary())


@door("GET", "/record/runs", Access.READ, "Runs of the record.", gives=Runs, fails=(422,))
def record_runs(
    service: Serving, family: Word = None, device: Word = None, limit: Limit = 100, offset: Offset = 0
) -> Response:
    return told({"runs": service.record_runs(family=family, device=device, limit=limit, offset=offset)})


@door("GET", "/events", Access.READ, "What has changed, as soon as something does.", gives=Events, fails=(422,))
async def events(
    request: Request,
    after: Annotated[int, Query(ge=0, le=LARGEST)] = 0,
    wait_s: Annotated[float, Query(ge=0, le=LONGEST_POLL_S, allow_inf_nan=False)] = LONGEST_POLL_S,
) -> Response:
    bell: Bell = request.app.state.bell
    found = await bell.events(after, wait_s)
    return told({"events": found, "after": max((event["number"] for event in found), default=after)})


@door("GET", "/metrics", Access.READ, "Figures for Prometheus.", prefix="", media="text/plain", fails=(501,))
def metrics(service: Serving) -> Response:
    return PlainTextResponse(service.metrics(), media_type="text/plain; version=0.0.4; charset=utf-8")
