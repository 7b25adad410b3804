"""Each route by each role, and by nobody. The table below is held against the routes that the application has."""

import pytest
from starlette.routing import Route
from tests.serve.serving_here import serving

from wattsmith.serve.app import DOORS
from wattsmith.serve.page.page import page_router
from wattsmith.serve.routing import Access
from wattsmith.terms.service import Role

# Written by hand, so that a route whose access changes by mistake is seen here.
TABLE = {
    "GET /api/v1/health": "open",
    "GET /api/v1/openapi.json": "open",
    "POST /api/v1/login": "open",
    "POST /api/v1/logout": "open",
    "GET /api/v1/whoami": "any",
    "GET /api/v1/pool": "read",
    "PUT /api/v1/pool/budget": "admin",
    "GET /api/v1/record": "read",
    "GET /api/v1/record/runs": "read",
    "POST /api/v1/structures": "submit",
    "GET /api/v1/structures/{key}": "read",
    "POST /api/v1/estimates": "read",
    "POST /api/v1/jobs": "submit",
    "GET /api/v1/jobs": "read",
    "GET /api/v1/jobs/{job}": "read",
    "POST /api/v1/jobs/{job}/cancel": "submit",
    "GET /api/v1/jobs/{job}/log": "read",
    "POST /api/v1/clients/{name}/hello": "agent",
    "POST /api/v1/clients/{name}/telemetry": "agent",
    "GET /api/v1/clients/{name}/schedule": "agent",
    "PUT /api/v1/clients/{name}/schedule": "admin",
    "GET /api/v1/clients": "read",
    "GET /api/v1/clients/{name}": "read",
    "GET /api/v1/clients/{name}/telemetry": "read",
    "POST /api/v1/clients/{name}/match": "submit",
    "POST /api/v1/matches": "submit",
    "GET /api/v1/matches": "read",
    "GET /api/v1/matches/{key}": "read",
    "POST /api/v1/plans": "submit",
    "GET /api/v1/plans": "read",
    "GET /api/v1/plans/{key}": "read",
    "POST /api/v1/tokens": "admin",
    "GET /api/v1/tokens": "admin",
    "DELETE /api/v1/tokens/{token}": "admin",
    "GET /api/v1/audit": "admin",
    "GET /api/v1/events": "read",
    "GET /metrics": "read",
}
MAY = {
    "open": {"nobody", "read", "submit", "admin", "agent", "other agent", "revoked"},
    "any": {"read", "submit", "admin", "agent", "other agent"},
    "read": {"read", "submit", "admin"},
    "submit": {"submit", "admin"},
    "admin": {"admin"},
    "agent": {"agent", "admin"},
}
CALLERS = ("nobody", "unknown", "revoked", "read", "submit", "agent", "other agent", "admin")
PLACES = {"{key}": "no-such-key", "{job}": "j-999999", "{name}": "rack-1", "{token}": "no-such-token"}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    with serving(tmp_path_factory.mktemp("roles"), rate_hz=1e6, burst=1e6) as here:
        here.tokens["other agent"] = here.add_token("rack-2", Role.AGENT)
        here.tokens["revoked"] = here.add_token("gone", Role.ADMIN)
        here.revoke("revoked")
        here.tokens["unknown"] = "ws_nobody_" + "0" * 43
        yield here


def test_every_route_of_the_application_stands_in_the_table(here):
    routes = {
        f"{method} {route.path}"
        for route in here.app.routes
        if isinstance(route, Route) and hasattr(route, "methods")
        for method in route.methods
    }
    assert routes == set(TABLE)
    assert {f"{plate.method} {plate.path}": plate.access.value for plate, _ in DOORS} == TABLE


def test_a_route_without_a_plate_lets_nobody_in(here):
    documented = {
        f"{method.upper()} {path}": operation["x-access"]
        for path, operations in here.app.openapi()["paths"].items()
        for method, operation in operations.items()
    }
    assert documented == TABLE


@pytest.mark.parametrize("route", sorted(TABLE))
def test_only_those_come_in_who_may(here, route):
    method, path = route.split()
    for word, place in PLACES.items():
        path = path.replace(word, place)
    path += "?wait_s=0" if path.endswith("/events") else ""
    let_in = set()
    for caller in CALLERS:
        token = here.tokens.get(caller)
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        answer = here.client.request(method, path, headers=headers, json=[] if method in ("POST", "PUT") else None)
        status = answer.status_code
        assert status < 500, answer.text
        if status == 401 and route != "POST /api/v1/login":
            assert caller in ("nobody", "unknown", "revoked")
            assert answer.headers["www-authenticate"] == "Bearer"
        elif status == 403:
            assert caller not in ("nobody", "unknown", "revoked")
        else:
            let_in.add(caller)
    expected = MAY[TABLE[route]] | ({"unknown"} if TABLE[route] == Access.OPEN else set())
    assert let_in == expected


def test_a_refusal_says_which_role_would_do(here):
    refused = here.ask("read", "PUT", "/pool/budget", {"budget": None})
    assert refused.status_code == 403
    assert "needs the role admin" in refused.json()["error"]["message"]
    other = here.ask("other agent", "GET", "/clients/rack-1/schedule")
    assert "the agent's of client rack-2" in other.json()["error"]["message"]


def test_a_revoked_token_is_told_when_that_was(here):
    message = here.ask("revoked", "GET", "/whoami").json()["error"]["message"]
    assert "this token was revoked at 20" in message
    assert "UTC" in message


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ", "Basic YTpi", "bearer x", "Bearer " + "x" * 5000, "Bearer ws_\xff_x", "ws_a_b"]
)
def test_what_is_no_token_is_nobody(here, header):
    answer = here.client.get("/api/v1/whoami", headers={"Authorization": header.encode("latin-1")})
    assert answer.status_code == 401


def test_half_of_a_token_is_not_known(here):
    token = here.tokens["admin"]
    for wrong in (token[:-1], token + "0", token[:-1] + "!", token.rpartition("_")[0], token.replace("ws_", "")):
        assert here.client.get("/api/v1/whoami", headers={"Authorization": f"Bearer {wrong}"}).status_code == 401


def test_the_scheme_may_be_written_small(here):
    token = here.tokens["read"]
    answer = here.client.get("/api/v1/whoami", headers={"Authorization": f"bearer {token}"})
    assert answer.json()["role"] == "read"


def test_no_page_shows_anything_to_who_is_not_signed_in(here):
    paths = [route.path.replace("{key}", "x") for route in page_router(here.service).routes]
    shown = {
        path
        for path in paths
        if "{" not in path and here.client.get(path, follow_redirects=False).status_code not in (302, 303, 307, 401)
    }
    assert shown == {"/login"}
    assert len(paths) > 10
