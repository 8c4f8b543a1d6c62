"""Serve a checkpoint as another format: HTTP/1.1 over the output image; nothing is written.

Responses follow RFC 9110: one byte range (a request for several gets the whole file), If-Match, If-None-Match and
If-Range against a strong tag made of the job and the file's name. HEAD has no ranges.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

from aiohttp import web
from squish_convert.api import VirtualSource, job_document, job_id, source_pins

from squish_core.api import File, Source, UsageError

PIECE = 256 << 10
"""Bytes per send."""
READS = 4
"""Number of ranges to read or encode concurrently; other clients wait."""


SHUTDOWN = 1.0
"""Seconds for open connections to end after an interrupt."""


class ImageServer:
    """Files of an output image by name.

    Parameters
    ----------
    source
        The open file to serve; it must not change.
    virtual
        `squish.as_format(source, ...)`.
    """

    def __init__(self, source: File, virtual: Source) -> None:
        assert isinstance(virtual, VirtualSource)
        self._source, self._reader = source, virtual.reader
        self.format = virtual.plan.format
        job = job_id(job_document(virtual.plan, source, {}))
        self.files = {file.name or virtual.filename: file for file in virtual.reader.image.files}
        self._tags = {name: f'"{sha256(f"{job}/{name}".encode()).hexdigest()[:32]}"' for name in self.files}
        self._pins = list(source_pins(source))
        self._reads = asyncio.Semaphore(READS)

    def application(self) -> web.Application:
        """Return the application, which serves files by name and 404 for any other path."""
        application = web.Application()
        application.router.add_get("/{name:.+}", self._answer, allow_head=True)
        return application

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        name = request.match_info["name"]
        file = self.files.get(name)
        if file is None:
            raise web.HTTPNotFound
        if list(source_pins(self._source)) != self._pins:
            text = "the source has changed since it was opened\n"
            raise web.HTTPServiceUnavailable(text=text, headers={"Connection": "close"})
        tag = self._tags[name]
        if not _matches(request.headers.get("If-Match"), tag, default=True):
            raise web.HTTPPreconditionFailed
        if _matches(request.headers.get("If-None-Match"), tag, default=False, weak=True):
            return web.Response(status=304, headers={"ETag": tag})
        start, stop = 0, file.size
        takes_range = request.method == "GET" and request.headers.get("If-Range", tag) == tag
        range_header = request.headers.get("Range") if takes_range else None
        bounds = byte_range(range_header, file.size) if range_header else None
        if bounds is not None:
            start, stop = bounds
            if start >= stop:
                return web.Response(status=416, headers={"Content-Range": f"bytes */{file.size}", "ETag": tag})
        headers = {"ETag": tag, "Accept-Ranges": "bytes", "Content-Type": "application/octet-stream"}
        if bounds is not None:
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{file.size}"
        response = web.StreamResponse(status=200 if bounds is None else 206, headers=headers)
        response.content_length = stop - start
        await response.prepare(request)
        if request.method != "HEAD":
            await self._send(response, request, self._reader.chunks(file, start, stop))
            await response.write_eof()
        return response

    async def _send(self, response: web.StreamResponse, request: web.Request, chunks: Iterator[Any]) -> None:
        """Send the chunks; close the connection after an error or a change of the source."""
        try:
            while True:
                async with self._reads:
                    chunk = await asyncio.to_thread(next, chunks, None)
                if chunk is None:
                    return
                if list(source_pins(self._source)) != self._pins:
                    raise ConnectionError
                for low in range(0, len(chunk), PIECE):
                    await response.write(bytes(chunk[low : low + PIECE]))
        except Exception:
            if request.transport is not None:
                request.transport.abort()
            raise


def byte_range(header: str, size: int) -> tuple[int, int] | None:
    """Parse a Range header to start and stop; an empty range if unsatisfiable, None if it must be ignored.

    Source: RFC 9110, section 14.

    Examples
    --------
    >>> byte_range("bytes=2-4", 10), byte_range("bytes=-3", 10), byte_range("bytes=12-", 10)
    ((2, 5), (7, 10), (10, 10))
    >>> byte_range("bytes=0-1,4-5", 10) is None
    True
    """
    unit, _, text = header.partition("=")
    first, dash, last = text.strip().partition("-")
    if unit.strip().lower() != "bytes" or not dash or not (first or last):
        return None
    if not all(piece == "" or (piece.isascii() and piece.isdigit() and len(piece) < 20) for piece in (first, last)):
        return None
    if not first:
        return max(size - int(last), 0), size
    if last and int(last) < int(first):
        return None
    return min(int(first), size), min(int(last) + 1, size) if last else size


def run(server: ImageServer, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve until interrupted; `ready` receives the address. Raise UsageError if the port cannot be opened."""

    async def main() -> None:
        runner = web.AppRunner(server.application(), access_log=None, shutdown_timeout=SHUTDOWN)
        await runner.setup()
        try:
            try:
                await web.TCPSite(runner, host, port).start()
            except OSError as error:
                raise UsageError(
                    f"cannot listen: {str(error.strerror).rpartition(': ')[2]}",
                    found=f"{host}:{port}",
                    code="port",
                    hint="Choose a --host of this machine, and another --port; 0 takes a free one.",
                ) from None
            address = runner.addresses[0]
            ready(f"http://{f'[{address[0]}]' if ':' in address[0] else address[0]}:{address[1]}")
            await asyncio.Event().wait()
        finally:
            await runner.cleanup()

    asyncio.run(main())


def _matches(header: str | None, tag: str, *, default: bool, weak: bool = False) -> bool:
    """Return whether a list of tags contains this one (`weak`: by weak comparison); `default` without a header."""
    if header is None:
        return default
    tags = [item.strip() for item in header.split(",")]
    return tags == ["*"] or tag in tags or (weak and f"W/{tag}" in tags)
