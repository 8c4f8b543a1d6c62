"""Digests of the parts that a conversion reads: while they are read, or before if reading twice is cheap."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from itertools import accumulate

from attrs import define

from squish_core.checking.check import check_empty, check_part, digest_error
from squish_core.file import File
from squish_core.io.digest import Digest, compare_digests, is_supported
from squish_core.io.source import Source
from squish_core.io.wrapped import WrappedSource
from squish_core.model import Part

from .mapping.mapped import MappedFile
from .naming import stored_parts
from .step import Step

Listener = Callable[[str, int, memoryview], None]
"""Called with a file's name, an offset, and the bytes read there."""


class ObservedSource(WrappedSource):
    """Passes all bytes read from a source and its members to a listener."""

    def __init__(self, inner: Source, listener: Listener) -> None:
        super().__init__(inner)
        self._listener = listener

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self.inner.read_into(offset, out, what)
        self._listener(self.filename, offset, out)

    def _view(self, offset: int, length: int) -> memoryview:
        view = self.inner.view(offset, length)
        self._listener(self.filename, offset, view)
        return view

    def _wrapped(self, member: Source) -> Source:
        return ObservedSource(member, self._listener)


@define
class _Part:
    """A part in one byte range, with the digest of what has been read so far, in order."""

    name: str
    role: str
    part: Part
    digest: Digest
    position: int

    @property
    def stop(self) -> int:
        segment = self.part.segments[0]
        return segment.offset + segment.length


class Digests:
    """Checks the digests of the parts that steps read. Read through `file`, which replaces the original file.

    With `on_the_way`, and for a source without cheap views, parts are hashed while they are read, so that no part is
    fetched twice, and `finish` compares the digests. Otherwise `check` reads a part before it is used.
    """

    def __init__(self, file: File, *, on_the_way: bool) -> None:
        self._checked = set[tuple[str, str]]()
        self._parts: dict[str, list[_Part]] = {}
        self._starts: dict[str, list[int]] = {}
        self._stops: dict[str, list[int]] = {}
        self._on_the_way = on_the_way and not file.source.cheap_views and not isinstance(file, MappedFile)
        self.file = file
        if self._on_the_way:
            self.file = File(ObservedSource(file.source, self._update), file.index, file.registry, file.limits)
        self._original = file.original if isinstance(file, MappedFile) else self.file

    def expect(self, file: File, steps: Iterable[Step]) -> None:
        """Register the parts that the steps will read, of the mapped or original file."""
        if not self._on_the_way:
            return
        for step in steps:
            for name, role, part in stored_parts(file, step):
                if (name, role) in self._checked or not _passes_whole(part):
                    continue
                (segment,) = part.segments
                digest = Digest(str(part.digest).partition(":")[0].lower())
                filename = self._original.index.files[segment.file].name
                self._parts.setdefault(filename, []).append(_Part(name, role, part, digest, segment.offset))
                self._checked.add((name, role))
        for filename, parts in self._parts.items():
            parts.sort(key=lambda entry: entry.part.segments[0].offset)
            self._starts[filename] = [entry.part.segments[0].offset for entry in parts]
            self._stops[filename] = list(accumulate((entry.stop for entry in parts), max))

    def read_through(self, file: File) -> None:
        """Check through this file, which wraps `self.file`."""
        self._original = file.original if isinstance(file, MappedFile) else file

    def check(self, file: File, step: Step) -> None:
        """Raise FormatError if a digest does not match or an empty part cannot be read; skips registered parts."""
        for name, role, part in stored_parts(file, step):
            if (name, role) not in self._checked:
                self._checked.add((name, role))
                check_part(self._original, name, role, part)
                check_empty(self._original, name, role, part)

    def finish(self) -> None:
        """Raise FormatError if a registered part does not match its digest."""
        for parts in self._parts.values():
            for entry in parts:
                segment = entry.part.segments[0]
                if entry.position < entry.stop:
                    source = self._original.source_for(segment.file)
                    for start in range(entry.position, entry.stop, 4 << 20):
                        source.view(start, min(4 << 20, entry.stop - start))  # the listener hashes it
                assert entry.part.digest is not None
                verdict = compare_digests(entry.part.digest, entry.digest)
                if verdict.state == "wrong":
                    raise digest_error(entry.part, verdict).within(
                        file=self._original.name, tensor=entry.name, part=entry.role
                    )

    def _update(self, filename: str, offset: int, data: memoryview) -> None:
        starts = self._starts.get(filename)
        if starts is None:
            return
        stop, first = offset + len(data), bisect_left(starts, offset)
        while first and self._stops[filename][first - 1] > offset:  # parts may share bytes
            first -= 1
        for entry in self._parts[filename][first:]:
            if entry.part.segments[0].offset >= stop:
                return
            if offset <= entry.position < min(stop, entry.stop):
                end = min(stop, entry.stop)
                entry.digest.update(data[entry.position - offset : end - offset])
                entry.position = end


def _passes_whole(part: Part) -> bool:
    """Whether a part has a supported digest of a single byte range."""
    of_stored_bytes = part.digest_of == "stored" or not part.filters
    return part.digest is not None and is_supported(part.digest) and of_stored_bytes and len(part.segments) == 1
