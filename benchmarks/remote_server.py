"""The server of the group `remote`, in its own process: byte ranges, each after a wait, and how many there were."""

from __future__ import annotations

import http.server
import json
import time
from pathlib import Path
from typing import ClassVar

LATENCY = 0.02
"""Seconds before each answer."""


class Handler(http.server.BaseHTTPRequestHandler):
    """Ranges of the files in the current folder, each after `LATENCY`; `/counts` says how many and starts anew."""

    protocol_version, disable_nagle_algorithm = "HTTP/1.1", True
    counts: ClassVar[list[int]] = [0, 0]

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/counts":
            body = json.dumps(self.counts).encode()
            Handler.counts = [0, 0]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return None
        path, byte_range = Path(self.path[1:]), self.headers.get("Range", "")
        time.sleep(LATENCY)
        if not path.is_file():
            return self.send_error(404)
        size = path.stat().st_size
        low, high = (int(text) for text in byte_range.removeprefix("bytes=").split("-"))
        high = min(high, size - 1)
        Handler.counts = [Handler.counts[0] + 1, Handler.counts[1] + high - low + 1]
        self.send_response(206)
        for key, value in {
            "ETag": f'"{size}"',
            "Content-Range": f"bytes {low}-{high}/{size}",
            "Content-Length": str(high - low + 1),
        }.items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.flush()
        with path.open("rb") as file:
            self.connection.sendfile(file, low, high - low + 1)
        return None


class Server(http.server.ThreadingHTTPServer):
    """A thread for each connection; a client that opens a hundred at once is not kept waiting for a place."""

    request_queue_size, daemon_threads = 1024, True


if __name__ == "__main__":
    listening = Server(("127.0.0.1", 0), Handler)
    print(listening.server_port, flush=True)
    listening.serve_forever()
