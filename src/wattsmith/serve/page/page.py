"""The page that a person keeps open: views of the service as HTML, whole or in parts that are fetched again."""

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from wattsmith import __version__
from wattsmith.flows.service import Service
from wattsmith.serve.access import checked, token_text
from wattsmith.serve.failing import Failed, failed_by
from wattsmith.serve.page import charts, drawings, views, words
from wattsmith.serve.page.history import History
from wattsmith.serve.page.views import Asked, Facts
from wattsmith.terms.errors import WattsmithError
from wattsmith.terms.service import Role, Token

STATIC = Path(__file__).parent / "static"
MEDIA = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
LOG_CHUNK = 1 << 17
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b[@-_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """One page: where it is, what it shows, and when that is fetched again."""

    path: str
    title: str
    part: str  # template of what changes
    gather: Callable[[Service, Asked], Facts]
    kinds: str = ""  # of events after which it is fetched again
    every_s: int = 0  # it is also fetched so often, for figures that change without an event; 0: it is not
    above: str | None = None  # templates of what stays as it is, above and below
    below: str | None = None
    admin: bool = False
    place: str | None = None  # in the menu; None: it is under the one that its path begins with


def screens(history: History) -> tuple[Screen, ...]:
    return (
        Screen(
            path="/",
            title="Overview",
            part="overview.html",
            gather=partial(views.overview, history=history),
            kinds="job pool record",
            every_s=5,
            place="Overview",
        ),
        Screen(path="/jobs", title="Jobs", part="jobs.html", gather=views.jobs, kinds="job", every_s=15, place="Jobs"),
        Screen(
            path="/jobs/{key}",
            title="Job",
            part="job.html",
            gather=views.job,
            kinds="job",
            every_s=5,
            below="log.html",
        ),
        Screen(
            path="/machines",
            title="Machines",
            part="machines.html",
            gather=views.machines,
            kinds="client schedule",
            every_s=10,
            above="search.html",
            place="Machines",
        ),
        Screen(
            path="/machines/{key}",
            title="Machine",
            part="machine.html",
            gather=views.machine,
            kinds="client schedule match",
            every_s=10,
        ),
        Screen(path="/record", title="Record", part="record.html", gather=views.record, kinds="record", place="Record"),
        Screen(
            path="/matches", title="Matches", part="matches.html", gather=views.matches, kinds="match", place="Matches"
        ),
        Screen(path="/matches/{key}", title="Match", part="match.html", gather=views.match),
        Screen(
            path="/plan",
            title="Plans",
            part="plans.html",
            gather=views.plans,
            kinds="plan",
            below="plan_form.html",
            place="Plans",
        ),
        Screen(path="/plans/{key}", title="Plan", part="plan.html", gather=views.plan),
        Screen(
            path="/tokens",
            title="Tokens",
            part="tokens.html",
            gather=views.tokens,
            kinds="token",
            below="token_form.html",
            admin=True,
            place="Tokens",
        ),
        Screen(path="/audit", title="Audit log", part="audit.html", gather=views.audit, admin=True, place="Audit"),
    )


def page_router(service: Service) -> APIRouter:
    """All pages, for the application that serves SERVICE."""
    history = History(lambda: (service.now_s(), service.pool()["power_w"]))

    @asynccontextmanager
    async def looking(_: Any) -> AsyncIterator[None]:
        with history.looking():
            yield

    router = APIRouter(lifespan=looking, include_in_schema=False)
    every = screens(history)
    places = [(screen.path, screen.place, screen.admin) for screen in every if screen.place is not None]
    desk = Desk(service, places)
    router.add_api_route("/page/static/{name}", static, methods=["GET"], response_model=None)
    router.add_api_route("/page/log/{key}", desk.log, methods=["GET"], response_model=None)
    router.add_api_route("/login", desk.login, methods=["GET"], response_model=None)
    for screen in every:
        for prefix, whole in (("", True), ("/page/fragment", False)):
            show = partial(desk.show, screen=screen, whole=whole)
            router.add_api_route(prefix + screen.path, _route(show), methods=["GET"], response_model=None)
    return router


def _route(show: Callable[[Request], Response]) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        return show(request)

    return answer


class Desk:
    """Answers requests for pages."""

    def __init__(self, service: Service, places: list[tuple[str, str, bool]]) -> None:
        self._service = service
        self._places = places

    def show(self, request: Request, screen: Screen, whole: bool) -> Response:
        """SCREEN, or only the part of it that changes."""
        try:
            token = checked(request, _shown(request))
        except Failed as refused:
            return self._turned_away(request, refused, whole)
        needed = (Role.ADMIN,) if screen.admin else (Role.READ, Role.SUBMIT, Role.ADMIN)
        if token.role not in needed:
            who = f"the role of token {token.name} is {token.role}"
            return self._failed(token, Failed(403, f"This page is for the role {needed[0]}, and {who}."))
        asked = Asked(token=token, key=request.path_params.get("key", ""), query=dict(request.query_params))
        try:
            facts = screen.gather(self._service, asked)
        except WattsmithError as error:
            return self._failed(token, failed_by(error))
        said = {**self._usual(request, token, screen), **facts, "screen": screen}
        return HTMLResponse(_templates().get_template("page.html" if whole else f"parts/{screen.part}").render(said))

    def login(self, request: Request) -> Response:
        """Where a token is asked for; it says what is wrong with the one that was shown before, if there was one."""
        why = None
        if (text := _shown(request)) != "":
            try:
                token = checked(request, text)
                if token.role is not Role.AGENT:
                    return RedirectResponse("/", 303)
                why = f"Token {token.name} is an agent's: it sends telemetry, and sees nothing. Log in with another."
            except Failed as refused:
                why = f"{refused.message[:1].upper()}{refused.message[1:]}."
        return HTMLResponse(
            _templates()
            .get_template("login.html")
            .render(
                title="Log in", token=None, version=__version__, why=why, after=_local(request.query_params.get("next"))
            )
        )

    def log(self, request: Request, key: str) -> Response:
        """What a job has printed from an offset on, fit to be shown; X-Next-Offset says where to go on."""
        try:
            checked(request, _shown(request))
            asked = {name: request.query_params.get(name, "") for name in ("attempt", "offset")}
            attempt, offset = (int(text) if text.isdecimal() and len(text) < 16 else None for text in asked.values())
            stream = "stderr" if request.query_params.get("stream") == "stderr" else "stdout"
            printed = self._service.job_log(key, attempt=attempt, stream=stream, offset=offset or 0, limit=LOG_CHUNK)
        except Failed as refused:
            return refused.answer()
        whole = printed[: _whole_characters(printed)]
        headers = {"X-Next-Offset": str((offset or 0) + len(whole)), "X-More": str(int(len(printed) == LOG_CHUNK))}
        return PlainTextResponse(without_control(whole.decode(errors="replace")), headers=headers)

    def _turned_away(self, request: Request, refused: Failed, whole: bool) -> Response:
        if refused.status != 401:
            return self._failed(None, refused)
        if not whole:
            return refused.answer()
        asked_for = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse("/login" if asked_for == "/" else f"/login?next={quote(asked_for)}", 303)

    def _failed(self, token: Token | None, failed: Failed) -> Response:
        titles = {403: "Not for you", 404: "There is no such thing", 429: "Too many requests", 503: "Not now"}
        said = {"title": titles.get(failed.status, "This did not work"), "message": failed.message, "here": None}
        usual = {"token": token, "version": __version__, "places": self._menu(token)}
        return HTMLResponse(_templates().get_template("error.html").render(**said, **usual), failed.status)

    def _menu(self, token: Token | None) -> list[tuple[str, str]]:
        return [(path, name) for path, name, admin in self._places if not admin or (token and token.role is Role.ADMIN)]

    def _usual(self, request: Request, token: Token, screen: Screen) -> Facts:
        """What every page needs beside its own facts."""
        query = dict(request.query_params)
        now_s = self._service.now_s()

        def link_with(name: str, value: object) -> str:
            kept = {key: text for key, text in query.items() if key not in (name, "from", "page")}
            return "?" + urlencode({**kept, name: value})

        here = next((path for path, _, _ in reversed(self._places) if _is_under(screen.path, path)), None)
        return {
            "title": screen.title,
            "token": token,
            "version": __version__,
            "places": self._menu(token),
            "here": here,
            "query": query,
            "link_with": link_with,
            "now_s": now_s,
            "after": max((event["number"] for event in self._service.events(0, 0.0)), default=0),
            "origin": f"{request.url.scheme}://{request.url.netloc}",
            "when": partial(words.when, now_s=now_s),
        }


def _shown(request: Request) -> str:
    shown = token_text(request)
    return "" if shown is None else shown[0]


def _is_under(path: str, place: str) -> bool:
    return path == place or (place != "/" and path.startswith((place + "/", place + "s/")))


def _local(path: str | None) -> str:
    """PATH if it leads into this very site, else the overview."""
    return path if path and re.fullmatch(r"/(?![/\\])[\w./?=&%~-]*", path) else "/"


def _whole_characters(printed: bytes) -> int:
    """How many bytes of PRINTED are whole characters: the last one may have been cut."""
    for back in range(1, min(4, len(printed)) + 1):
        byte = printed[-back]
        if byte & 0xC0 == 0xC0:  # the first byte of a character of 2, 3 or 4
            needed = 2 if byte < 0xE0 else 3 if byte < 0xF0 else 4
            return len(printed) - back if needed > back else len(printed)
        if byte & 0x80 == 0:
            break
    return len(printed)


def without_control(text: str) -> str:
    """TEXT without colours and bells; of a line that was written over, what was written last."""
    lines = _CONTROL.sub("", text.replace("\r\n", "\n")).split("\n")
    return "\n".join(line.rstrip("\r").rpartition("\r")[2] for line in lines)


def static(name: str) -> Response:
    """A file that every page uses. NAME is looked up, never used as a path."""
    found = {path.name: path for path in STATIC.iterdir()}.get(name)
    if found is None:
        raise Failed(404, f"there is no file {name!r:.100}")
    headers = {"Cache-Control": "private, max-age=3600"}
    return Response(found.read_bytes(), media_type=MEDIA.get(found.suffix, "application/octet-stream"), headers=headers)


@cache
def _templates() -> Environment:
    env = Environment(
        loader=PackageLoader("wattsmith.serve.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters |= words.FILTERS
    env.globals |= {
        "age": words.age,
        "attempt_lanes": drawings.attempt_lanes,
        "bar": charts.bar,
        "beside": drawings.beside,
        "channel_over_time": drawings.channel_over_time,
        "compared": views.compared,
        "coverage": drawings.coverage,
        "is_as_found": words.is_as_found,
        "is_simulated": views.is_simulated,
        "per_page": views.PER_PAGE,
        "plan_lanes": drawings.plan_lanes,
        "plan_power": drawings.plan_power,
        "plan_signal": drawings.plan_signal,
        "power_over_time": drawings.power_over_time,
        "progress": views.progress,
        "response_curve": drawings.response_curve,
        "sparkline": charts.sparkline,
    }
    return env
