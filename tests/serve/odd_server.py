"""A small HTTP server that answers as it is told to: of another version, away for a while, or hung up on."""

import json
import threading
import time
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class OddServer:
    """Keeps what it is sent. `answers` are used up one after the other; then it answers as a service would."""

    def __init__(self):
        self.asked = []  # method, path, body
        self.headers = []
        self.answers = []  # (status, headers, body), or None: the connection is closed without a word
        self.reports = {}  # by (boot, number), in the order in which they came
        self.posts = []  # sizes
        self.skew_s = 0.0
        self.schedule = None
        self.says = {}  # in place of fields of the answer to telemetry; None: the field is left out
        self.forgets_answer = 0  # so often what was sent is kept, and the connection closed
        self.port = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def now_s(self):
        return time.time() + self.skew_s

    def answer(self, path, body, headers):
        if self.answers:
            return self.answers.pop(0)
        serial = None if self.schedule is None else self.schedule["serial"]
        if path.endswith("/hello"):
            return 200, {}, {"version": "9.9", "note": None, "server_time_s": self.now_s(), "serial": serial}
        if path.endswith("/telemetry"):
            return 200, {}, self.kept(body["reports"], serial)
        if path.endswith("/schedule"):
            tag = f'"{serial}"'
            same = headers.get("If-None-Match") == tag
            return (304, {"ETag": tag}, None) if same else (200, {"ETag": tag}, self.schedule)
        return 404, {}, {"error": {"kind": "no such thing", "message": f"there is no {path}", "fields": []}}

    def kept(self, reports, serial):
        new = [one for one in reports if (one["boot"], one["number"]) not in self.reports]
        self.reports |= {(one["boot"], one["number"]): one for one in reports}
        self.posts.append(len(reports))
        told = {
            "accepted": len(new),
            "duplicates": len(reports) - len(new),
            "serial": serial,
            "server_time_s": self.now_s(),
        }
        return {name: value for name, value in {**told, **self.says}.items() if value is not None or name == "serial"}

    def numbers(self, boot=None):
        """Numbers that came, in order; those of BOOT, or of the only one."""
        boots = list(dict.fromkeys(one for one, _ in self.reports))
        boot = boot or (boots[0] if boots else None)
        return [number for one, number in self.reports if one == boot]

    @contextmanager
    def running(self, port=0):
        """Answers at PORT inside the block; may be entered again."""
        outer = self
        open_now = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self):
                super().setup()
                open_now.append(self.connection)

            def do_GET(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                outer.asked.append((self.command, self.path, body))
                outer.headers.append(dict(self.headers))
                told = outer.answer(self.path.partition("?")[0], body, self.headers)
                if told is None or (outer.forgets_answer and self.path.endswith("/telemetry")):
                    outer.forgets_answer = max(0, outer.forgets_answer - 1)
                    self.close_connection = True
                    self.connection.shutdown(2)
                    return
                status, headers, plain = told
                content = b"" if plain is None else plain if isinstance(plain, bytes) else json.dumps(plain).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(content))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_POST = do_GET  # noqa: N815 - what the library calls

            def log_message(self, *_):
                pass

        server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        server.daemon_threads = True
        self.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield self
        finally:
            server.shutdown()
            for connection in open_now:  # as when its process ends
                with suppress(OSError):
                    connection.shutdown(2)
            server.server_close()
            thread.join()
