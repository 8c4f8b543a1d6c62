"""A web server with faults: each is a mode, the first piece of the path."""

from __future__ import annotations

import contextlib
import gzip
import http.server
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

DATA = Path(__file__).with_name("data")


@dataclass
class Request:
    """What a client asked for."""

    path: str
    range: str | None
    headers: dict[str, str]
    sent: int = 0


PATIENCE = 120.0
"""Seconds after which a wait counts as a fault, however loaded the machine is."""
LARGE = 100_000
"""Bytes of requests that are for tensors: one for a header comes alone."""


@dataclass
class FaultServer:
    """Serves `files` by name; `mode` is the path's first piece, `/ok/name` a faultless answer.

    Until `gather` requests were in flight at once, no LARGE one is answered. Requests that the server stalls wait for
    `released`, which comes after the test, or for PATIENCE.
    """

    files: dict[str, bytes] = field(default_factory=dict)
    latency: float = 0.0
    gather: int = 1
    requests: list[Request] = field(default_factory=list)
    in_flight: int = 0
    most_in_flight: int = 0
    stalled: int = 0
    times: dict[str, int] = field(default_factory=dict)
    lock: threading.Condition = field(default_factory=threading.Condition)
    released: threading.Event = field(default_factory=threading.Event)
    tag: str | None = '"one"'
    port: int = 0
    other_port: int = 0
    moved_to: str = ""

    def url(self, name: str, mode: str = "ok") -> str:
        return f"http://127.0.0.1:{self.port}/{mode}/{name}"

    @property
    def sent(self) -> int:
        """Bytes of bodies."""
        return sum(request.sent for request in self.requests)

    def forget(self) -> None:
        """Count from here."""
        self.requests.clear()
        self.most_in_flight = 0

    def enter(self, size: int) -> None:
        """Count a request for so many bytes, and wait for others to be in flight together."""
        with self.lock:
            self.in_flight += 1
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self.lock.notify_all()
            self.lock.wait_for(lambda: size < LARGE or self.most_in_flight >= self.gather, PATIENCE)

    def leave(self) -> None:
        """Count a request no longer: before its answer, since a client that has it may send the next at once."""
        with self.lock:
            self.in_flight -= 1

    def stall(self) -> None:
        """Do not answer."""
        with self.lock:
            self.stalled += 1
            self.lock.notify_all()
        self.released.wait(PATIENCE)

    def wait_for_stalled(self, count: int) -> None:
        """Wait until so many requests are stalled."""
        with self.lock:
            assert self.lock.wait_for(lambda: self.stalled >= count, PATIENCE)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Any

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(OSError):  # the client has gone
            super().handle()

    def do_HEAD(self) -> None:
        self.send_error(405)

    def do_GET(self) -> None:
        state: FaultServer = self.server.state
        low, _, high = (self.headers.get("Range") or "").removeprefix("bytes=").partition("-")
        state.enter(int(high) - int(low) + 1 if low and high else 0)
        time.sleep(state.latency)
        state.leave()
        self._answer(state)

    def _answer(self, state: FaultServer) -> None:
        _, mode, name = unquote(urlsplit(self.path).path).split("/", 2)
        request = Request(name, self.headers.get("Range"), {key.lower(): value for key, value in self.headers.items()})
        with state.lock:
            state.requests.append(request)
            state.times[mode] = state.times.get(mode, 0) + 1
            count = state.times[mode]
        if self._failed(state, mode, count, name):
            return None
        data = state.files.get(name)
        if data is None:
            return self._status(404)
        tag = {"weak": 'W/"one"', "none": None, "balanced": f'"{count}"', "dated": None}.get(mode, state.tag)
        if tag and mode != "deaf" and self.headers.get("If-Match") not in (None, tag):
            return self._status(412)
        return self._send(request, mode, data, tag)

    def _failed(self, state: FaultServer, mode: str, count: int, name: str) -> bool:
        if mode.isdigit():
            self._status(int(mode))
        elif mode.startswith("twice") and count <= 2:
            self._status(int(mode[5:]), {"Retry-After": "0"})
        elif mode == "expiring" and count > 2:
            self._status(403)
        elif mode == "silent" or (mode == "stalls" and count > 2):
            state.stall()
            self.close_connection = True
        elif mode == "moved":
            self._status(302, {"Location": f"http://localhost:{state.other_port}/ok/{name}"})
        elif mode == "loop":
            self._status(302, {"Location": self.path})
        elif mode == "elsewhere":
            self._status(302, {"Location": state.moved_to})
        else:
            return False
        return True

    def _status(self, code: int, headers: dict[str, str] | None = None) -> None:
        self.send_response(code)
        for key, value in {**(headers or {}), "Content-Length": "0"}.items():
            self.send_header(key, value)
        self.end_headers()

    def _send(self, request: Request, mode: str, data: bytes, tag: str | None) -> None:
        size, byte_range = len(data), request.range
        if not byte_range or mode == "ignores":
            code, start, body = 200, 0, data
        else:
            low, high = byte_range.removeprefix("bytes=").split("-")
            start, stop = int(low), min(int(high) + 1, size)
            if start >= size:
                return self._status(416, {"Content-Range": f"bytes */{size}"})
            code, body = 206, data[start:stop]
        declared = start + 7 if mode == "shifts" else start
        body = body[: len(body) // 2] if mode == "short" else body + b"more" if mode == "long" else body
        headers = {"Content-Range": f"bytes {declared}-{declared + len(body) - 1}/{'*' if mode == 'star' else size}"}
        if mode == "long":
            headers["Content-Range"] = f"bytes {declared}-{declared + len(body) - 5}/{size}"
        if code == 200 or mode == "unsaid":
            headers = {}
        if mode == "huge":
            headers["Content-Range"] = f"bytes {declared}-{declared + len(body) - 1}/{2**63 - 1}"
        if mode == "gzip":
            body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
        if tag:
            headers["ETag"] = tag
        if mode == "dated":
            headers["Last-Modified"] = "Wed, 21 Oct 2015 07:28:00 GMT"
        self.send_response(code)
        for key, value in {**headers, "Content-Length": str(len(body))}.items():
            self.send_header(key, value)
        self.end_headers()
        if mode == "drips" and request.range and "bytes=0-" not in request.range:
            for byte in body[: int(PATIENCE / 0.2)]:
                self.wfile.write(bytes([byte]))
                if self.server.state.released.wait(0.2):
                    break
            self.close_connection = True
            return None
        cuts = mode == "cuts" or (mode == "cuts-once" and self.server.state.times[mode] in (2, 3))
        body = body[: len(body) // 2] if cuts else body
        request.sent += len(body)
        self.wfile.write(body)
        if cuts:
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        return None


class _Server(http.server.ThreadingHTTPServer):
    state: FaultServer
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[FaultServer]:
    """A fault server on a port of its own, and a second one that has the same files."""
    state = FaultServer()
    servers = [_Server(("127.0.0.1", 0), _Handler) for _ in range(2)]
    for server in servers:
        server.state = state
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    state.port, state.other_port = (server.server_port for server in servers)
    yield state
    state.released.set()
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def secure_url(server: FaultServer) -> Iterator[str]:
    """The address of the same files over TLS, with a certificate of an authority that nobody trusts."""
    secure = _Server(("127.0.0.1", 0), _Handler)
    secure.state = server  # type: ignore[attr-defined]
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(DATA / "localhost.pem")
    secure.socket = context.wrap_socket(secure.socket, server_side=True)
    threading.Thread(target=secure.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    yield f"https://localhost:{secure.server_port}"
    secure.shutdown()
    secure.server_close()


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port that refuses connections, and that nobody else can take."""
    with socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        yield refusing.getsockname()[1]
