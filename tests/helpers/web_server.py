"""A web server of the current folder that answers byte ranges, as a file host does."""

from __future__ import annotations

import contextlib
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers for the files of the current folder, with a tag."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self.answer(b"")

    def do_GET(self) -> None:
        self.answer(None)

    def answer(self, body: bytes | None) -> None:
        path = Path(self.path.lstrip("/"))
        if not path.is_file():
            return self.send_error(404)
        data = path.read_bytes()
        low, high = 0, len(data)
        if byte_range := self.headers.get("Range"):
            first, _, last = byte_range.removeprefix("bytes=").partition("-")
            low, high = int(first), min(int(last or high) + 1, high)
        self.send_response(206 if byte_range else 200)
        self.send_header("ETag", f'"{len(data)}"')
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Range", f"bytes {low}-{high - 1}/{len(data)}")
        self.send_header("Content-Length", str(high - low))
        self.end_headers()
        self.wfile.write(data[low:high] if body is None else body)
        return None


@contextlib.contextmanager
def serving() -> Iterator[str]:
    """Serve the current folder; gives the address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
