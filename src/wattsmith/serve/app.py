"""The HTTP service as an application: routes over a Service, behind guards."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from wattsmith import __version__
from wattsmith.flows.service import Service
from wattsmith.serve import routes_admin, routes_clients, routes_jobs, routes_pool
from wattsmith.serve.access import Buckets, LetIn
from wattsmith.serve.bell import Bell
from wattsmith.serve.document import document
from wattsmith.serve.failing import MOST_FIELDS, Failed, failed_by, field
from wattsmith.serve.guards import LOOPBACK, Guard
from wattsmith.serve.page.page import page_router
from wattsmith.serve.routing import Plate
from wattsmith.serve.telemetry_writer import TelemetryWriter
from wattsmith.terms.errors import WattsmithError

DOORS = [door for routes in (routes_pool, routes_jobs, routes_clients, routes_admin) for door in routes.ROUTES.doors]
NO_TELEMETRY = {"tracing": False, "metrics": False, "logs": False, "operation_spans": False, "auto_configure": False}
log = logging.getLogger("wattsmith.serve")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """How the door is guarded."""

    hosts: frozenset[str] | None = LOOPBACK  # names by which the service may be called; None: any
    rate_hz: float = 50.0  # requests of each token
    burst: float = 200.0
    most_body_bytes: int = 16 << 20
    body_wait_s: float = 60.0
    head_wait_s: float = 80.0  # longer than a connection is kept that is not used


def make_app(service: Service, options: ServeOptions | None = None) -> FastAPI:
    """The application that serves SERVICE. It does not close it."""
    options = options or ServeOptions()
    app = FastAPI(
        title="Wattsmith",
        version=__version__,
        openapi_url=None,  # routes_pool has it, with its plate
        redirect_slashes=False,
        lifespan=_alive,
        telemetry=NO_TELEMETRY,  # type: ignore[arg-type]  # what a request tells stays here
    )
    app.state.service = service
    app.state.buckets = Buckets(options.rate_hz, options.burst)
    for plate, function in DOORS:
        app.add_api_route(
            plate.path,
            function,
            methods=[plate.method],
            dependencies=[LetIn],
            response_model=None,
            operation_id=function.__name__,
            tags=[plate.path.removeprefix("/api/v1").split("/")[1]],
        )
    app.openapi = lambda: _document(app, [plate for plate, _ in DOORS])  # type: ignore[method-assign]
    app.include_router(page_router(service))
    app.add_exception_handler(Failed, _failed)
    app.add_exception_handler(WattsmithError, _refused)
    app.add_exception_handler(RequestValidationError, _not_valid)
    app.add_exception_handler(HTTPException, _not_routed)
    app.add_exception_handler(Exception, _broken)
    app.add_middleware(
        Guard, hosts=options.hosts, most_body_bytes=options.most_body_bytes, body_wait_s=options.body_wait_s
    )
    return app


@asynccontextmanager
async def _alive(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    app.state.writer = TelemetryWriter(service.keep_posts)
    app.state.bell = Bell(service)
    try:
        yield
    finally:
        app.state.bell.close()
        app.state.writer.close()


def _document(app: FastAPI, plates: list[Plate]) -> dict[str, Any]:
    if app.openapi_schema is None:
        app.openapi_schema = document(app, plates)
    return app.openapi_schema


async def _failed(_: Request, failed: Exception) -> Response:
    assert isinstance(failed, Failed)
    return failed.answer()


async def _refused(_: Request, error: Exception) -> Response:
    assert isinstance(error, WattsmithError)
    answer = failed_by(error)
    if answer.status == 500:
        log.error("not answered for: %s", error, exc_info=error)
    return answer.answer()


async def _not_valid(_: Request, wrong: Exception) -> Response:
    """A parameter in the path or the query."""
    assert isinstance(wrong, RequestValidationError)
    fields = [field(".".join(map(str, one["loc"])), one["msg"]) for one in wrong.errors()[:MOST_FIELDS]]
    return Failed(422, "; ".join(f"{one['where']}: {one['reason']}" for one in fields[:3]), fields).answer()


async def _not_routed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: f"there is nothing at {request.url.path!r:.200}", 405: f"{request.method} is not known here"}
    headers = dict(error.headers or {})
    return Failed(error.status_code, said.get(error.status_code, str(error.detail)), headers=headers).answer()


async def _broken(_: Request, __: Exception) -> Response:
    # The server writes the reason to its log; what it is tells strangers too much.
    return Failed(500, "something went wrong in the service; its log says what").answer()
