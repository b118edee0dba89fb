"""A W&B server on this machine, over HTTP."""

import base64
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import unquote, urlsplit

from .operations import Operations, RefusedError, operation_name
from .recorded import Fault, Recorded, Request, Run

KEY = "0123456789" * 4
"""The API key that it takes."""

_TELEMETRY = "/sdk/otel/"
"""The client's own measurements, which are not recorded."""

_FILE_STREAM = re.compile(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream")


class WandbServer:
    """A server that the unmodified client, its wandb-core and its command line take for W&B; it lives inside `with`.

    It answers from what it was sent and computes nothing. `runs` and `recorded` are what it knows; read them when
    clients are done, or hold `lock`.
    """

    def __init__(self, port: int = 0) -> None:
        self.recorded = Recorded()
        self.faults: list[Fault] = []
        self.key = KEY
        self.lock = threading.RLock()
        self._http = _HttpServer(self, port)
        self.port: int = self._http.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._operations = Operations(self.recorded, self.url)

    def __enter__(self) -> Self:
        self._http.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._http.end()

    @property
    def environment(self) -> dict[str, str]:
        """Variables that lead a client here."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": KEY}

    @property
    def runs(self) -> list[Run]:
        with self.lock:
            return list(self.recorded.runs.values())

    @contextmanager
    def failing(self, fault: Fault) -> Iterator[None]:
        """``fault`` happens inside."""
        self.faults.append(fault)
        try:
            yield
        finally:
            self.faults.remove(fault)

    @contextmanager
    def away(self) -> Iterator[None]:
        """It takes no connections inside."""
        self.refuse()
        try:
            yield
        finally:
            self.accept()

    def refuse(self) -> None:
        """From here on connections are refused, and those there are get closed."""
        self._http.end()

    def accept(self) -> None:
        """Be back at the same address, after `refuse`."""
        self._http = _HttpServer(self, self.port)
        self._http.begin()

    def answer(self, method: str, path: str, authorization: str, body: bytes) -> tuple[int, bytes]:
        """Status and body for a request; status 0 stands for none at all."""
        operation, call = "", None
        if path == "/graphql":
            call = json.loads(body)
            operation = operation_name(call["query"])
        with self.lock:
            fault = next((fault for fault in self.faults if fault.strikes(path, operation)), Fault(status=200))
        time.sleep(fault.delay_s)
        with self.lock:
            if not path.startswith(_TELEMETRY):
                self.recorded.requests.append(Request(path, operation, body))
            if fault.status == 200:
                return self._reach(method, path, authorization, body, call)
            if fault.is_heard:
                self._reach(method, path, authorization, body, call)
            return fault.status, b'{"error": "a fault"}'

    def _reach(
        self, method: str, path: str, authorization: str, body: bytes, call: dict[str, Any] | None
    ) -> tuple[int, bytes]:
        if path.startswith("/storage/"):
            return self._stored(method, path.removeprefix("/storage/"), body)
        if path.startswith(_TELEMETRY):
            return 200, b""
        if authorization != "Basic " + base64.b64encode(f"api:{self.key}".encode()).decode():
            return 401, b'{"errors": [{"message": "user is not logged in"}]}'
        if call is not None:
            return self._query(call)
        if match := _FILE_STREAM.fullmatch(path):
            run = self.recorded.runs.get((match[1], match[2], match[3]))
            if run is not None:
                return 200, json.dumps(run.take(json.loads(body))).encode()
        return 404, b'{"error": "not found"}'

    def _query(self, call: dict[str, Any]) -> tuple[int, bytes]:
        try:
            data = self._operations.answer(call["query"], call.get("variables") or {})
        except RefusedError as error:
            return error.status, json.dumps({"data": None, "errors": [{"message": str(error)}]}).encode()
        return 200, json.dumps({"data": data}).encode()

    def _stored(self, method: str, place: str, body: bytes) -> tuple[int, bytes]:
        """Files of runs and artifacts, under the addresses that were handed out for them."""
        kind, _, rest = place.partition("/")
        if kind == "runs":
            entity, project, name, key = rest.split("/", 3)
            files = self.recorded.runs[entity, project, name].files
        else:
            id, key = rest.split("/", 1)
            (files,) = [artifact.files for artifact in self.recorded.artifacts if artifact.id == id]
        if method == "PUT":
            files[key] = body
            return 200, b""
        return (200, files[key]) if key in files else (404, b"")


class _HttpServer(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, owner: WandbServer, port: int) -> None:
        self.owner = owner
        self._connections: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), _Handler)

    def begin(self) -> None:
        self._thread = threading.Thread(target=self.serve_forever, args=(0.02,), name="wandb server", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.shutdown()
        self._thread.join()
        self.server_close()
        for connection in tuple(self._connections):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that go away are nothing to report; whatever else is wrong comes to light as a dropped connection."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _HttpServer

    def _serve(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        path = unquote(urlsplit(self.path).path)
        status, answer = self.server.owner.answer(self.command, path, self.headers.get("Authorization", ""), body)
        if status == 0:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815  (http.server's names)

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are recorded instead."""
