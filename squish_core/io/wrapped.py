"""Sources around other sources: one that forwards everything, and one that caches what it reads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from threading import Lock

from squish_core.io.pin import Statement, Traffic
from squish_core.io.source import Source

Range = tuple[int, int]
"""(offset, length)"""
Listener = Callable[[str, int, memoryview], None]
"""Called with a file's name, an offset, and the bytes read there."""


class WrappedSource(Source):
    """Forwards to another source; subclasses change how bytes are read. Its views are never cheap."""

    def __init__(self, inner: Source) -> None:
        super().__init__(inner.name, inner.size)
        self.filename, self.is_dir, self.path, self.pin = inner.filename, inner.is_dir, inner.path, inner.pin
        self.packed, self.findings, self.lists_members = inner.packed, inner.findings, inner.lists_members
        self.is_remote = inner.is_remote
        self.inner = inner

    def read_ahead(self, ranges: Iterable[Range]) -> None:
        self.inner.read_ahead(ranges)

    def expect(self, statements: Iterable[Statement]) -> bool:
        return self.inner.expect(statements)

    def traffic(self) -> Traffic | None:
        return self.inner.traffic()

    def check_size(self) -> None:
        self.inner.check_size()

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return self.inner.members(folder)

    def _folder_names(self, folder: str = "") -> tuple[str, ...]:
        return self.inner.subfolders(folder)

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        return self.inner.members(folder, names)

    def _open_member(self, name: str) -> Source:
        folder, _, filename = name.rpartition("/")
        return self._wrapped(self.inner.member(filename, folder))

    def _wrapped(self, member: Source) -> Source:
        raise NotImplementedError


class RangeCache:
    """Byte ranges of the files of a model, up to `budget` bytes: added until `is_complete`, then returned once each.

    `missed`: bytes that were read but not cached. `budget`: what is left of it.
    """

    def __init__(self, budget: int) -> None:
        self.is_complete, self.missed = False, 0
        self.budget, self._size, self._lock = budget, budget, Lock()
        self._ranges: dict[str, dict[int, memoryview]] = {}

    def clear(self) -> None:
        """Drop all ranges, and cache again what is read."""
        with self._lock:
            self.is_complete, self.budget, self._ranges = False, self._size, {}

    def add(self, file: str, offset: int, view: memoryview) -> None:
        """Cache a range of a file."""
        with self._lock:
            if self.is_complete:
                return
            if len(view) > self.budget:
                self.missed += len(view)
                return
            self.budget -= len(view)
            self._ranges.setdefault(file, {})[offset] = view

    def cut(self, file: str, start: int, stop: int) -> list[tuple[int, int, memoryview | None]]:
        """Split a range of a file into cached and missing pieces, in order: start, stop, and bytes or None."""
        pieces: list[tuple[int, int, memoryview | None]] = []
        with self._lock:
            ranges = sorted(self._ranges.get(file, {}).items())
        for offset, view in ranges:
            low, high = max(offset, start), min(offset + len(view), stop)
            if low < high:
                if start < low:
                    pieces.append((start, low, None))
                pieces.append((low, high, view[low - offset : high - offset]))
                start = high
        if start < stop:
            pieces.append((start, stop, None))
        return pieces

    def take(self, file: str, start: int, stop: int) -> list[tuple[int, int, memoryview | None]]:
        """Like `cut`; once the cache is complete, returned pieces are dropped."""
        pieces = self.cut(file, start, stop)
        with self._lock:
            ranges = self._ranges.get(file, {})
            for offset, view in list(ranges.items()) if self.is_complete else ():
                low, high = max(offset, start), min(offset + len(view), stop)
                if low < high:
                    del ranges[offset]
                    self.budget += high - low
                    ranges |= {offset: view[: low - offset]} if offset < low else {}
                    ranges |= {high: view[high - offset :]} if high < offset + len(view) else {}
        return pieces


class CachedSource(WrappedSource):
    """Caches the byte ranges that are read, so that no byte is read again; `listener` gets what callers read."""

    def __init__(self, inner: Source, cache: RangeCache, listener: Listener | None = None) -> None:
        super().__init__(inner)
        self.cache, self._listener = cache, listener

    def read_ranges(self, ranges: Sequence[Range], what: str = "data") -> list[memoryview]:
        absent = [range_ for range_ in ranges if not self._is_cached(*range_)]
        fetched = dict(zip(absent, self.inner.read_ranges(absent, what)))
        for (offset, _), view in fetched.items():
            self.cache.add(self.filename, offset, view)
        return [
            self._notify(range_[0], fetched[range_]) if range_ in fetched else self.view(*range_, what)
            for range_ in ranges
        ]

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        for low, high, view in self.cache.take(self.filename, offset, offset + len(out)):
            if view is None:
                self.inner.read_into(low, out[low - offset : high - offset], what)
            else:
                out[low - offset : high - offset] = view
        self._notify(offset, out)

    def read_ahead(self, ranges: Iterable[Range]) -> None:
        self.inner.read_ahead(
            [
                (low, high - low)
                for offset, length in ranges
                for low, high, view in self.cache.cut(self.filename, offset, offset + length)
                if view is None
            ]
        )

    def _is_cached(self, offset: int, length: int) -> bool:
        return all(view is not None for _, _, view in self.cache.cut(self.filename, offset, offset + length))

    def _view(self, offset: int, length: int) -> memoryview:
        views = [
            self._fetch(low, high) if view is None else view
            for low, high, view in self.cache.take(self.filename, offset, offset + length)
        ]
        return self._notify(offset, views[0] if len(views) == 1 else memoryview(b"".join(views)))

    def _notify(self, offset: int, view: memoryview) -> memoryview:
        if self._listener is not None:
            self._listener(self.filename, offset, view)
        return view

    def _fetch(self, start: int, stop: int) -> memoryview:
        view = self.inner.view(start, stop - start)
        self.cache.add(self.filename, start, view)
        return view

    def _wrapped(self, member: Source) -> Source:
        return CachedSource(member, self.cache, self._listener)
