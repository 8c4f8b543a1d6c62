"""Requests for byte ranges and listings, and their failures; the only module that uses obstore."""

from __future__ import annotations

import asyncio
import os
import re
import time
import weakref
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import obstore
from attrs import frozen
from obstore.exceptions import AlreadyExistsError, BaseError, NotSupportedError, PreconditionError
from obstore.store import HTTPStore, MemoryStore, from_url

RETRIES = 10
"""Maximum retries of one request; usually the deadline ends them earlier."""
PAUSES = (0.4, 1.2)
"""Seconds before each retry of a refused connection, if the server has never answered."""
GRACE = 2.0
"""Seconds to wait at exit for cancelled requests."""
_ALLOW_HTTP = {"s3": "AWS_ALLOW_HTTP", "gs": "GOOGLE_ALLOW_HTTP", "az": "AZURE_ALLOW_HTTP"}
"""Environment variables of the clients that explicit client options would override."""
_UNDATED = 0
"""obstore's time stamp for answers without Last-Modified."""
_STATUS = re.compile(r"inner: Status \{\s*status: (\d{3})")
_RETRIES = re.compile(r"\n\s*retries: (\d+),")
_RANGE = re.compile(r"source: (UnexpectedRange|NoContentRange|ParseContentRange|RangeNotSupported)")
_HOST = re.compile(r'"dns error".*(not known|nor servname|No address associated|No such host)', re.DOTALL)
_REFUSED_CONNECTION = re.compile(r"kind: ConnectionRefused\b")
_CERTIFICATE = re.compile(r"error: InvalidCertificate\b")
_REDIRECT = re.compile(r"kind: Redirect\b|URL scheme is not allowed|BadScheme")


class RequestError(Exception):
    """A request that failed: `kind` is "missing", "denied", "changed", "range", "redirect", "refused", "exists",
    "host", "connection" (refused), "certificate" or "unreachable".

    It contains no text of the client, which may contain passwords and signatures.
    """

    def __init__(self, kind: str, status: int | None = None, retries: int | None = None) -> None:
        super().__init__(kind)
        self.kind, self.status, self.retries = kind, status, retries


@frozen
class Response:
    """Bytes from `start`, and the size, tag and time of the file."""

    data: memoryview
    start: int
    size: int
    tag: str | None
    modified: str | None
    version: str | None
    encoding: str | None


class Store:
    """One server or bucket. Requests are coroutines with a deadline."""

    def __init__(self, url: str, deadline: float, headers: dict[str, str] | None = None) -> None:
        limit = timedelta(seconds=deadline)
        client: dict[str, Any] = {
            "timeout": limit, "connect_timeout": min(limit, timedelta(seconds=5)), "read_timeout": 0.4 * limit,
            "default_headers": {"accept-encoding": "identity", **(headers or {})},
        }  # fmt: skip
        retry: Any = {
            "max_retries": max(RETRIES - 1, 0),
            "retry_timeout": 0.75 * limit,  # its error is more specific than the deadline's
            "backoff": {
                "init_backoff": min(timedelta(milliseconds=100), limit / 40),
                "max_backoff": min(timedelta(seconds=15), limit / 8),
                "base": 2,
            },
        }  # fmt: skip
        self._deadline = deadline
        is_web = url.startswith(("http://", "https://"))
        allows = os.environ.get(_ALLOW_HTTP.get(url.partition(":")[0], ""), "").lower() in ("1", "true")
        client |= {"allow_http": True} if url.startswith("http://") or (allows and not is_web) else {}
        make: Any = HTTPStore.from_url if is_web else from_url
        self._store: Any = make(url, client_options=client, retry_config=retry)
        once: Any = {**retry, "max_retries": 0}
        self._first: Any = make(url, client_options=client, retry_config=once)

    async def range(self, path: str, start: int, stop: int, *, tag: str | None, version: str | None) -> Response:
        """Return a byte range; with `tag`, only if the content still has this tag."""
        options: dict[str, Any] = {"range": (start, stop)}
        options |= {"if_match": tag} if tag else {}
        options |= {"version": version} if version else {}
        return await self._answer(path, options, None)

    async def whole(self, path: str, limit: int) -> Response:
        """Return a file of at most `limit` bytes; raise RequestError "range" for a larger one before reading it."""
        return await self._answer(path, {}, limit)

    async def names(self, folder: str) -> list[str]:
        """Return the names of the files in a folder."""
        listing = await self._read(lambda store: _tracked(obstore.list_with_delimiter_async(store, folder or None)))
        return [meta["path"].rpartition("/")[2] for meta in listing["objects"]]

    async def has(self, path: str) -> bool:
        """Return whether an object exists."""
        try:
            await self._read(lambda store: _tracked(obstore.head_async(store, path)))
        except RequestError as failure:
            if failure.kind == "missing":
                return False
            raise
        return True

    async def below(self, folder: str) -> list[str]:
        """Return the paths of all objects below a folder."""
        listing = await self._read(lambda store: _tracked(obstore.list(store, folder).collect_async()))
        return [meta["path"].removeprefix(f"{folder}/") for meta in listing]

    async def put(self, path: str, data: bytes, *, create: bool) -> None:
        """Write a small object; with `create`, raise RequestError "exists" if it exists."""
        mode: Any = "create" if create else "overwrite"
        await self._within(_tracked(obstore.put_async(self._store, path, data, mode=mode, use_multipart=False)))

    async def upload(self, path: str, chunks: AsyncIterator[Any], part: int, concurrency: int) -> None:
        """Write a large object in parts of `part` bytes; an error of `chunks` aborts the upload and is raised again."""
        upload: Any = obstore.put_async(
            self._store, path, chunks, use_multipart=True, chunk_size=part, max_concurrency=concurrency
        )
        await self._run(_tracked(upload))

    async def remove(self, path: str) -> None:
        """Remove an object."""
        await self._within(_tracked(obstore.delete_async(self._store, path)))

    async def _answer(self, path: str, options: dict[str, Any], limit: int | None) -> Response:
        return await self._read(lambda store: self._get(store, path, options, limit))

    async def _get(self, store: Any, path: str, options: Any, limit: int | None) -> Response:
        result = await _tracked(obstore.get_async(store, path, options=options))
        meta = result.meta
        if limit is not None and meta["size"] > limit:
            raise RequestError("range")
        start, _ = result.range
        modified: datetime = meta["last_modified"]
        return Response(
            data=memoryview(await _tracked(result.bytes_async())),
            start=start,
            size=meta["size"],
            tag=meta["e_tag"],
            modified=modified.isoformat() if modified.timestamp() != _UNDATED else None,
            version=meta["version"],
            encoding=result.attributes.get("Content-Encoding"),
        )

    async def _read(self, request: Callable[[Any], Any]) -> Any:
        """Run a request; the first request to a store fails early if a retry cannot help.

        The client would retry an unknown host, an untrusted certificate or a refused connection until the deadline.
        """
        end, first, self._first = time.monotonic() + self._deadline, self._first, None
        if first is None:
            return await self._within(request(self._store))
        try:
            return await self._first_answer(request, first, end)
        except RequestError as failure:
            if failure.kind != "unreachable" or time.monotonic() >= end:
                raise
            attempts = (failure.retries or 0) + 1
        try:
            return await self._within(request(self._store), end - time.monotonic())
        except RequestError as failure:
            failure.retries = None if failure.retries is None else failure.retries + attempts
            raise

    async def _first_answer(self, request: Callable[[Any], Any], client: Any, end: float) -> Any:
        """Run a request with a client without retries; retry refused connections after PAUSES."""
        retries = 0
        while True:
            try:
                return await self._within(request(client), end - time.monotonic())
            except RequestError as failure:
                failure.retries = None if failure.retries is None else retries
                is_last = retries == len(PAUSES) or time.monotonic() + PAUSES[retries] >= end
                if failure.kind != "connection" or is_last:
                    raise
            await asyncio.sleep(PAUSES[retries])
            retries += 1

    async def _within(self, request: Any, seconds: float | None = None) -> Any:
        return await self._run(asyncio.wait_for(request, self._deadline if seconds is None else seconds))

    async def _run(self, request: Any) -> Any:
        """Run a request; convert every error of the client to RequestError."""
        try:
            return await request
        except TimeoutError:
            failure = RequestError("unreachable")
        except (BaseError, OSError, ValueError) as error:
            failure = _failure(error)
        raise failure  # outside the handlers, so that the client's error is not attached


_requests: weakref.WeakSet[Any] = weakref.WeakSet()
"""Futures of obstore's requests; its threads hold each until they have called back, even after cancellation."""


def _tracked(request: Any) -> Any:
    _requests.add(request)
    return request


def _await_callbacks(process: int) -> None:
    """Wait at most GRACE for cancelled requests.

    A thread that calls back during interpreter shutdown aborts the process, and the exit status is lost.
    """
    end = time.monotonic() + (GRACE if os.getpid() == process else 0)
    while _requests and time.monotonic() < end:
        time.sleep(0.001)
        MemoryStore()  # any call of obstore releases what its threads left


# Finalizers run in reverse order: this one, made before any loop, after those that cancel the requests.
weakref.finalize(RequestError, _await_callbacks, os.getpid())


def _failure(error: Exception) -> RequestError:
    text = str(error)
    status, retries = (int(match[1]) if match else None for match in (_STATUS.search(text), _RETRIES.search(text)))
    if isinstance(error, FileNotFoundError) or status in (404, 410):
        return RequestError("missing", status)
    if isinstance(error, AlreadyExistsError):
        return RequestError("exists", status)
    if isinstance(error, PreconditionError):
        return RequestError("changed", status)
    if status in (401, 403):
        return RequestError("denied", status)
    if isinstance(error, NotSupportedError) or status == 416 or _RANGE.search(text):
        return RequestError("range", status)
    if _HOST.search(text):
        return RequestError("host")
    if _REFUSED_CONNECTION.search(text):
        return RequestError("connection", status, retries)
    if _CERTIFICATE.search(text):
        return RequestError("certificate")
    if _REDIRECT.search(text) or (status is not None and 300 <= status < 400):
        return RequestError("redirect", status)
    if isinstance(error, ValueError) or (status is not None and 400 <= status < 500 and status not in (408, 429)):
        return RequestError("refused", status)
    return RequestError("unreachable", status, retries)
