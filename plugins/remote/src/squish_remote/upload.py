"""Writing files to a bucket: one request for a small file, a multipart upload for a large one."""

from __future__ import annotations

import asyncio
import json
import os
import platform
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

from squish_core.api import EventLoop, RemoteTarget, SquishError, WriteError, target_exists

from .failures import error_of
from .settings import Settings
from .store import RequestError, Store

PARTS = 9000
"""Maximum number of parts of an upload; S3 allows 10,000."""
UNKNOWN = 64 << 20
"""Part size for files of unknown size: enough for 500 GB."""
LOCK = ".squish-lock"
"""Suffix of the lock object of a large file: only one writer can create it, so only one completes the file."""


class Abandoned(Exception):  # noqa: N818 - it ends an upload on purpose
    """Aborts a client's multipart upload."""


class BucketTarget(RemoteTarget):
    """An object of a bucket, or the objects below a prefix."""

    def __init__(self, url: str, key: str, store: Store, settings: Settings, source_id: str) -> None:
        super().__init__(url)
        self._key, self._store, self._settings, self._source_id = key, store, settings, source_id
        self._loop = EventLoop()

    def existing(self) -> tuple[str, ...]:
        own = ("",) if self.run(self._store.has(self._key)) else ()
        return (*own, *self.run(self._store.below(self._key)))

    @contextmanager
    def new_file(self, path: str, *, size: int | None, overwrite: bool) -> Iterator[Callable[[memoryview], object]]:
        upload = _Upload(self, path, size, overwrite)
        try:
            yield upload.write
            upload.finish()
        except BaseException:
            upload.abandon()
            raise

    def remove(self, path: str) -> None:
        self.run(self._store.remove(self.key(path)), path)

    def close(self) -> None:
        self._loop.close()

    def key(self, path: str) -> str:
        """Return the key of a path."""
        return f"{self._key}/{path}" if path else self._key

    def address(self, path: str) -> str:
        """Return the address of a path, for messages."""
        return f"{self.name}/{path}" if path else self.name

    def run(self, coroutine: Coroutine[Any, Any, Any], path: str = "") -> Any:
        """Run requests; convert their failure to a SquishError."""
        try:
            return self._loop.submit(coroutine).result()
        except RequestError as failure:
            if failure.kind == "exists":
                error: SquishError = target_exists(self.address(path))
            else:
                error = error_of(failure, self.address(path), self._source_id, None, self._settings)
        raise error

    @contextmanager
    def finishing(self, path: str) -> Iterator[None]:
        """Hold the lock of a large new file, so that only one writer, or one job, completes it."""
        owner = {
            "host": platform.node(), "process": os.getpid(), "since": datetime.now(UTC).isoformat(), "job": self.job,
        }  # fmt: skip
        lock = self.key(path) + LOCK
        try:
            self.run(self._store.put(lock, json.dumps(owner).encode(), create=True), path)
        except WriteError:
            if not self._is_lock_of_job(lock):
                raise WriteError(
                    "another writer completes it",
                    file=self.address(path),
                    code="locked",
                    hint=f"If none is running, remove {self.address(path)}{LOCK}.",
                ) from None
        try:
            if self.run(self._store.has(self.key(path)), path):
                raise target_exists(self.address(path))
            yield
        finally:
            with suppress(SquishError):
                self.run(self._store.remove(lock), path)

    def _is_lock_of_job(self, lock: str) -> bool:
        """Return whether the lock belongs to the same job, whose processes write the same bytes."""
        with suppress(SquishError, ValueError):
            owner = json.loads(self.run(self._store.whole(lock, 1 << 16)).data.tobytes())
            return bool(self.job) and isinstance(owner, dict) and owner.get("job") == self.job
        return False


class _Upload:
    """One file: bytes are buffered until they fill a part; a file smaller than one part takes one request."""

    def __init__(self, target: BucketTarget, path: str, size: int | None, overwrite: bool) -> None:
        settings = target._settings
        self._target, self._path, self._overwrite = target, path, overwrite
        self._part = max(settings.piece, 5 << 20, UNKNOWN if size is None else -(-size // PARTS))
        self._concurrency = max(1, min(settings.in_flight, settings.memory // self._part))
        self._buffer = bytearray()
        self._parts = asyncio.Queue[bytearray | None](maxsize=1)
        self._task: asyncio.Task[None] | None = None
        self._is_abandoned = False

    def write(self, data: memoryview) -> None:
        """Append bytes; wait while the maximum number of parts is pending."""
        while len(data):
            room = self._part - len(self._buffer)
            self._buffer += data[:room]
            data = data[room:]
            if len(self._buffer) == self._part:
                self._send(self._buffer)
                self._buffer = bytearray()

    def finish(self) -> None:
        """Complete the file."""
        target = self._target
        if self._task is None:
            put = target._store.put(target.key(self._path), bytes(self._buffer), create=not self._overwrite)
            target.run(put, self._path)
            return
        if self._buffer:
            self._send(self._buffer)
        if self._overwrite:
            self._send(None)
            return
        with target.finishing(self._path):
            self._send(None)

    def abandon(self) -> None:
        """Abort a pending upload, so that no object appears and no part remains."""
        if self._task is not None:
            with suppress(SquishError):
                self._target.run(self._end(), self._path)

    def _send(self, part: bytearray | None) -> None:
        """Upload a part; None completes the upload and waits for it."""
        self._target.run(self._hand_over(part), self._path)

    async def _hand_over(self, part: bytearray | None) -> None:
        if self._task is None:
            target = self._target
            upload = target._store.upload(target.key(self._path), self._chunks(), self._part, self._concurrency)
            self._task = asyncio.ensure_future(upload)
        put = asyncio.ensure_future(self._parts.put(part))
        await asyncio.wait({put, self._task}, return_when=asyncio.FIRST_COMPLETED)
        if self._task.done():
            put.cancel()
        if self._task.done() or part is None:
            await self._task

    async def _end(self) -> None:
        self._is_abandoned = True
        while not self._parts.empty():
            self._parts.get_nowait()
        self._parts.put_nowait(None)
        assert self._task is not None
        with suppress(Abandoned, TimeoutError):
            await asyncio.wait_for(self._task, self._target._settings.deadline)

    async def _chunks(self) -> AsyncIterator[bytearray]:
        while (part := await self._parts.get()) is not None:
            yield part
        if self._is_abandoned:
            raise Abandoned
