"""Remote files and folders as sources: cached bytes, requests for others, and their failures."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from attrs import evolve, frozen

from squish_core.api import ErrorCode, EventLoop, Pin, Problem, Source, SquishError, Statement, Traffic, closed

from .failures import check_response, error_of
from .folder_cache import FolderCache
from .pieces import Range, merge, split
from .read_ahead import ReadAhead
from .settings import Settings
from .statements import Statements
from .store import RequestError, Response

HEAD, TAIL = 64 << 10, 64
"""Bytes at the start and end of each file to cache."""
SETTLE = 1.0
"""Seconds to wait for cancelled requests."""


class Requests(Protocol):
    """The requests of a store; see `store.Store`. Failures are `RequestError`."""

    async def range(self, path: str, start: int, stop: int, *, tag: str | None, version: str | None) -> Response:
        """Return a byte range."""
        ...

    async def whole(self, path: str, limit: int) -> Response:
        """Return a small file."""
        ...

    async def names(self, folder: str) -> list[str]:
        """Return the files of a folder."""
        ...


@frozen(kw_only=True)
class StoreFolder:
    """A folder of a store. `address`: for messages. `prefix`: path of the folder in the store."""

    source_id: str
    store: Requests
    prefix: str
    address: str
    is_listed: bool = False
    version: str | None = None
    """Version of the file at the address."""
    commit: str | None = None
    """Version to which the address pins all files."""
    listing: Mapping[str, tuple[str, ...]] | None = None
    """Folder -> names of its files, if already listed."""


class OpenFile:
    """The pin, the first bytes and, once read, the last bytes of an open file."""

    def __init__(self, path: str, pin: Pin, head: memoryview) -> None:
        self.path, self.pin, self.head = path, pin, head
        self.tail = memoryview(b"")

    def cached(self, offset: int, length: int) -> memoryview | None:
        """Return a range within the cached bytes."""
        if offset + length <= len(self.head):
            return self.head[offset : offset + length]
        start = self.pin.size - len(self.tail)
        return self.tail[offset - start : offset - start + length] if offset >= start else None


class Connection:
    """The requests of an open file and its neighbors: one thread, `in_flight` requests at once."""

    def __init__(self, root: StoreFolder, settings: Settings) -> None:
        self.root, self.settings = root, settings
        self._loop = EventLoop()
        self._slots = asyncio.Semaphore(settings.in_flight)
        self._files: dict[str, OpenFile] = {}
        self._listings = dict(root.listing or {})
        self.read_ahead = ReadAhead(self.request, settings)
        self.statements = Statements()
        self.requests = self.fetched = self.cached = self.used = 0
        self._cache = FolderCache(Path(settings.cache), settings.cache_size) if settings.cache else None

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """Run a coroutine in the event loop; raise ClosedError if the source is closed meanwhile."""
        future = self._loop.submit(coroutine)
        try:
            return future.result()
        except CancelledError:
            pass
        except BaseException:
            future.cancel()  # for example after an interrupt, so that no request remains
            raise
        raise closed(self.root.address)

    def close(self) -> None:
        """Cancel pending requests."""
        self._loop.close()

    def address(self, path: str) -> str:
        """Return the address of a file, for messages."""
        return f"{self.root.address}{path}"

    def enter(self, folder: str) -> None:
        """Continue in a subfolder."""
        root = self.root
        self.root = evolve(root, prefix=f"{root.prefix}{folder}/", address=f"{root.address}{folder}/")
        self._listings, self._files = {"": self._listings[folder]}, {}

    async def open(self, name: str) -> OpenFile:
        """Open a file of the folder by its first bytes, once, so that all readers see the same content."""
        if name not in self._files:
            file = await self._first(name)
            self._files.setdefault(name, file)
        return self._files[name]

    async def present(self, names: Sequence[str]) -> tuple[str, ...]:
        """Open the named files; return the names of those that exist."""
        results = await asyncio.gather(*map(self.open, names), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and getattr(result, "code", None) not in (
                ErrorCode.MISSING,
                ErrorCode.DENIED,
            ):
                raise result
        return tuple(name for name, result in zip(names, results) if isinstance(result, OpenFile))

    async def names(self, folder: str) -> tuple[str, ...]:
        """List the files of a folder, once; a missing subfolder is empty."""
        if folder not in self._listings and self.root.listing is not None:
            return ()
        if folder not in self._listings:
            failure, listing = None, list[str]()
            try:
                listing = await self.root.store.names("/".join(filter(None, (self.root.prefix.rstrip("/"), folder))))
            except RequestError as refusal:
                failure = refusal
            if failure is not None and not (folder and failure.kind == "missing"):
                raise error_of(failure, self.address(folder), self.root.source_id, None, self.settings)
            self._listings[folder] = tuple(sorted(listing))
        return self._listings[folder]

    async def request(self, file: OpenFile, start: int, stop: int) -> memoryview:
        """Return one verified byte range of an open file, from the folder cache if possible."""
        cache = self._cache if file.pin.tag or file.pin.version or file.pin.modified else None
        if cache and (data := await asyncio.to_thread(cache.read, file.pin, start, stop)) is not None:
            self.cached += stop - start
            return data
        self.requests += 1
        self.fetched += stop - start
        response = await self._range(file.path, start, stop, file.pin)
        check_response(response, self.address(file.path), start, stop, self.settings, file.pin)
        if cache:
            await asyncio.to_thread(cache.write, file.pin, start, response.data)
        return response.data

    async def fetch(self, file: OpenFile, ranges: Sequence[Range]) -> list[memoryview]:
        """Fetch byte ranges: adjacent ranges in one request, long ones in several."""
        pieces = merge(ranges, self.settings.gap, self.settings.piece)
        contents = await _all(self._piece(file, split(piece, self.settings.piece)) for piece in pieces)
        views = []
        for offset, length in ranges:
            number = next(n for n, p in enumerate(pieces) if p.start <= offset and offset + length <= p.stop)
            start = offset - pieces[number].start
            views.append(contents[number][start : start + length])
        return views

    async def _piece(self, file: OpenFile, requests: Sequence[Range]) -> memoryview:
        if len(requests) == 1:
            return await self.request(file, *requests[0])
        begin, end = requests[0][0], requests[-1][1]
        out = np.empty(end - begin, np.uint8).data

        async def fill(start: int, stop: int) -> None:
            out[start - begin : stop - begin] = await self.request(file, start, stop)

        await _all(fill(*request) for request in requests)
        return out.toreadonly()

    async def _first(self, name: str) -> OpenFile:
        """Open a file by its first bytes, or read a small file whole if the server has no byte ranges."""
        address, version = self.address(name), self.root.version
        try:
            response = await self._range(name, 0, HEAD, None)
        except SquishError as error:
            if error.code != ErrorCode.BYTE_RANGE:
                raise
            response = await self._whole(name, error)
        check_response(response, address, 0, min(HEAD, response.size), self.settings)
        pin = Pin(
            url=address,
            size=response.size,
            tag=response.tag,
            modified=response.modified,
            version=response.version or version or self.root.commit,
        )
        return OpenFile(name, pin, response.data)

    async def _whole(self, name: str, refusal: SquishError) -> Response:
        try:
            return await self.root.store.whole(self.root.prefix + name, HEAD)
        except RequestError:
            pass
        raise refusal

    async def _range(self, name: str, start: int, stop: int, pin: Pin | None) -> Response:
        tag = pin.tag if pin and self.settings.pin == "match" and not (pin.tag or "W/").startswith("W/") else None
        version = pin.version if pin and not self.root.commit else self.root.version
        async with self._slots:
            try:
                return await self.root.store.range(self.root.prefix + name, start, stop, tag=tag, version=version)
            except RequestError as failure:
                error = error_of(
                    failure,
                    self.address(name),
                    self.root.source_id,
                    start or None,
                    self.settings,
                    is_open=pin is not None,
                )
        raise error


class RemoteSource(Source):
    """A remote file; its first 64 KiB and last 64 bytes are cached, other bytes are fetched on access."""

    is_remote = True

    def __init__(self, connection: Connection, file: OpenFile, *, is_root: bool = True) -> None:
        super().__init__(connection.address(file.path), file.pin.size)
        self.filename = file.path.rpartition("/")[2]
        self.lists_members = connection.root.is_listed
        self.pin: Pin | None = file.pin
        self._connection, self._file, self._is_root = connection, file, is_root
        if file.pin.tag is None and file.pin.modified is None and file.pin.version is None:
            message = "the server sends neither a tag nor a time, so only a change of size is detected"
            self.findings = (Problem(code="unpinned", severity="note", where=self.filename, message=message),)

    def unmapped(self) -> Source:
        return self

    def read_ranges(self, ranges: Sequence[Range], what: str = "data") -> list[memoryview]:
        for offset, length in ranges:
            self._check(offset, length, what)
        return self._ranges(ranges)

    def traffic(self) -> Traffic:
        connection = self._connection
        unused = max(0, connection.fetched + connection.cached - connection.used)
        return Traffic(connection.requests, connection.fetched, min(unused, connection.fetched))

    def read_ahead(self, ranges: Iterable[Range]) -> None:
        if not self._closed:
            announced = self._connection.statements.with_content(self._file.path, ranges)
            self._connection.run(self._connection.read_ahead.announce(self._file, announced))

    def expect(self, statements: Iterable[Statement]) -> bool:
        self._connection.statements.add(statements, self._file.path)
        return True

    def close(self) -> None:
        super().close()
        if self._is_root:
            self._connection.close()

    def _view(self, offset: int, length: int) -> memoryview:
        return self._ranges([(offset, length)])[0]

    def _ranges(self, ranges: Sequence[Range]) -> list[memoryview]:
        due = self._connection.statements.due(self._file.path, ranges)
        content = [(offset, len(data)) for statement in due for offset, data in statement.content]
        apart = [piece for piece in dict.fromkeys(content) if not any(map(partial(_contains, piece), ranges))]
        views = self._unchecked([*ranges, *apart])
        if due:
            stored = dict(zip((*ranges, *apart), views))
            self._connection.statements.check(due, {piece[0]: _within(piece, stored) for piece in content}, self.name)
        return views[: len(ranges)]

    def _unchecked(self, ranges: Sequence[Range]) -> list[memoryview]:
        views = [self._file.cached(offset, length) if length else memoryview(b"") for offset, length in ranges]
        missing = [range_ for range_, view in zip(ranges, views) if view is None]
        if not missing:
            return views  # type: ignore[return-value]
        fetched = iter(self._connection.run(self._fetch(missing)))
        self._connection.used += sum(length for _, length in missing)
        return [next(fetched) if view is None else view for view in views]

    async def _fetch(self, ranges: Sequence[Range]) -> list[memoryview]:
        if len(ranges) == 1 and ranges[0][0] >= self.size - TAIL and len(self._file.tail) < TAIL:
            (self._file.tail,) = await self._connection.fetch(self._file, [(self.size - TAIL, TAIL)])
            view = self._file.cached(*ranges[0])
            return [] if view is None else [view]
        announced = {range_: await self._connection.read_ahead.take(self._file, *range_) for range_ in ranges}
        others = [range_ for range_, view in announced.items() if view is None]
        fetched = dict(zip(others, await self._connection.fetch(self._file, others)))
        return [announced[range_] or fetched[range_] for range_ in ranges]

    def _names(self, folder: str = "") -> tuple[str, ...]:
        names: tuple[str, ...] = self._connection.run(self._connection.names(folder))
        return names

    def _folder_names(self, folder: str = "") -> tuple[str, ...]:
        """Return the subfolders if they are already listed; do not request a listing."""
        prefix = f"{folder}/" if folder else ""
        listed = self._connection.root.listing or {}
        below = (path.removeprefix(prefix) for path in listed if path.startswith(prefix) and path != folder)
        return tuple({path.partition("/")[0] for path in below})

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        paths = [f"{folder}/{name}" if folder else name for name in names]
        present = set(self._connection.run(self._connection.present(paths)))
        return tuple(name for name, path in zip(names, paths) if path in present)

    def _open_member(self, name: str) -> Source:
        return RemoteSource(self._connection, self._connection.run(self._connection.open(name)), is_root=False)


class RemoteFolder(RemoteSource):
    """A remote folder, which may have no listing."""

    is_dir = True

    def __init__(self, connection: Connection) -> None:
        address = connection.address("")
        super().__init__(connection, OpenFile("", Pin(url=address, size=0, tag="folder"), memoryview(b"")))
        self.filename, self.pin = address.rstrip("/").rpartition("/")[2], None


def _contains(piece: Range, range_: Range) -> bool:
    return range_[0] <= piece[0] and sum(piece) <= sum(range_)


def _within(piece: Range, stored: Mapping[Range, memoryview]) -> memoryview:
    """Return the bytes of a piece, from the range that contains it."""
    offset, length = piece
    range_ = next(range_ for range_ in stored if _contains(piece, range_))
    return stored[range_][offset - range_[0] : offset - range_[0] + length]


async def _all(coroutines: Iterable[Coroutine[Any, Any, Any]]) -> list[Any]:
    """Run coroutines concurrently and return their results; the first error cancels the others."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=SETTLE)  # no request is pending when the error is raised
        raise
