"""A whole service for tests of its door: a real store, a real engine of processes, and a client without a network."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.testclient import TestClient

from wattsmith.flows.service import Service, ServiceOptions, open_service
from wattsmith.serve import running
from wattsmith.serve.app import ServeOptions, make_app
from wattsmith.terms.service import Role


@dataclass
class Here:
    """A service, and who may call it, by a word for each."""

    service: Service
    app: FastAPI
    client: TestClient
    home: Path
    tokens: dict[str, str] = field(default_factory=dict)
    ids: dict[str, str] = field(default_factory=dict)

    def add_token(self, name: str, role: Role) -> str:
        token, text = self.service.add_token(name, role, "tests")
        self.ids[text] = token.id
        return text

    def revoke(self, caller: str) -> None:
        self.service.revoke_token(self.ids[self.tokens[caller]], "tests")

    def ask(self, caller: str | None, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The answer to CALLER, a word of `tokens`; None: nobody."""
        headers = dict(more.pop("headers", {}))
        if caller is not None:
            headers["Authorization"] = f"Bearer {self.tokens[caller]}"
        if body is not None:
            more["json"] = body
        return self.client.request(method, f"/api/v1{path}", headers=headers, **more)

    @contextmanager
    def browser(self) -> Iterator[TestClient]:
        """A client with cookies of its own."""
        with_cookies = TestClient(self.app, base_url="http://localhost")
        with_cookies.portal = self.client.portal  # what was started with the application is there once
        yield with_cookies

    @contextmanager
    def listening(self, **options: Any) -> Iterator[str]:
        """The service behind a real socket; its URL."""
        ready = threading.Event()
        server = running.server(self.service, ServeOptions(rate_hz=1e6, burst=1e6, **options), ready=ready.set)
        socket = running.listen("127.0.0.1", 0)
        url = running.url_of(socket)
        thread = threading.Thread(target=running.run, args=(server, socket))
        thread.start()
        try:
            assert ready.wait(20)
            yield url
        finally:
            server.stop()
            thread.join(30)


@contextmanager
def serving(home: Path, **options: Any) -> Iterator[Here]:
    """A service with tokens of every role; the agent's is that of client rack-1."""
    with open_service(ServiceOptions(db=str(home / "service.sqlite"), home=home, watch=False)) as service:
        app = make_app(service, ServeOptions(**options))
        with TestClient(app, base_url="http://localhost", raise_server_exceptions=False) as client:
            here = Here(service, app, client, home)
            for role in Role:
                here.tokens[role.value] = here.add_token("rack-1" if role is Role.AGENT else role.value, role)
            yield here
