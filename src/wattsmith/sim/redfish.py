"""A simulated Redfish service: a real HTTP server on this machine's loopback, before a node that is not there."""

import base64
import json
import ssl
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

CHASSIS = "/redfish/v1/Chassis/Self"
LAYOUTS = ("environment", "power", "mean")  # EnvironmentMetrics; Power; Power that tells a mean of minutes alone
FAILURES = ("slow", "refused", "broken", "error", "null", "gone")


class SimulatedRedfish:
    """Serves while entered. Set `power_w` and `failure`; `documents` replaces single answers by path."""

    def __init__(
        self,
        *,
        layout: str = "environment",
        power_w: float = 300.0,
        energy_j: float | None = None,
        user: str | None = None,
        password: str | None = None,
        token: str | None = None,
        slow_s: float = 0.5,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.layout = layout
        self.power_w = power_w
        self.energy_j = energy_j  # None: no counter. Shown in whole watt-hours
        self.failure: str | None = None
        self.documents: dict[str, Any] = {}
        self._basic = None if user is None else base64.b64encode(f"{user}:{password}".encode()).decode()
        self._token = token
        self._slow_s = slow_s
        self._user = user
        self._scheme = "http" if tls is None else "https"
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_for(self))
        if tls is not None:
            self._server.socket = tls.wrap_socket(self._server.socket, server_side=True, do_handshake_on_connect=False)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)

    @property
    def url(self) -> str:
        user = "" if self._user is None else f"{self._user}@"
        return f"{self._scheme}://{user}127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def advance(self, duration_s: float) -> None:
        """Let time pass for the energy counter, where there is one."""
        if self.energy_j is not None:
            self.energy_j += self.power_w * duration_s

    def answer(self, path: str, headers: Any) -> tuple[int, bytes]:
        """Status and body for a GET of PATH."""
        if self.failure == "slow":
            time.sleep(self._slow_s)
        if self.failure == "refused" or not self._allows(path, headers):
            return 401, b"{}"
        if self.failure == "error":
            return 503, b"busy"
        if self.failure == "gone":
            return 404, b"{}"
        if self.failure == "broken":
            return 200, b'{"PowerWatts": {"Read'
        document = self.documents.get(path, self._document(path))
        return (404, b"{}") if document is None else (200, json.dumps(document).encode())

    def _allows(self, path: str, headers: Any) -> bool:
        if path == "/redfish/v1/" or (self._basic is None and self._token is None):
            return True
        by_token = self._token is not None and headers.get("X-Auth-Token") == self._token
        return by_token or (self._basic is not None and headers.get("Authorization") == f"Basic {self._basic}")

    def _document(self, path: str) -> Any:
        power_w = None if self.failure == "null" else self.power_w
        if path == "/redfish/v1/":
            return {
                "Name": "Wattsmith simulated Redfish service",
                "Vendor": "Wattsmith (simulated)",
                "Chassis": {"@odata.id": "/redfish/v1/Chassis"},
            }
        if path == "/redfish/v1/Chassis":
            return {"Members": [{"@odata.id": CHASSIS}]}
        if path == CHASSIS:
            link = "EnvironmentMetrics" if self.layout == "environment" else "Power"
            return {
                "Name": "simulated chassis",
                "ChassisType": "RackMount",
                link: {"@odata.id": f"{CHASSIS}/{link}"},
            }
        if path == f"{CHASSIS}/EnvironmentMetrics" and self.layout == "environment":
            counted = {} if self.energy_j is None else {"EnergykWh": {"Reading": round(self.energy_j / 3.6e6, 3)}}
            return {"PowerWatts": {"Reading": power_w}, **counted}
        if path == f"{CHASSIS}/Power" and self.layout == "power":
            return {"PowerControl": [{"Name": "Server Power Control", "PowerConsumedWatts": power_w}]}
        if path == f"{CHASSIS}/Power" and self.layout == "mean":
            return {"PowerControl": [{"PowerMetrics": {"IntervalInMin": 1, "AverageConsumedWatts": power_w}}]}
        return None


def _handler_for(service: SimulatedRedfish) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 5

        def do_GET(self) -> None:
            status, body = service.answer(self.path, self.headers)
            try:
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:
                return  # whoever asked did not wait

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return  # a TLS handshake that was broken off

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Nothing: requests are no news."""

    return Handler
