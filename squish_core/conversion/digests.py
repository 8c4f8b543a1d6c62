"""Digests of what a conversion reads: over the bytes on their way, or before where a second look costs nothing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence

from attrs import define

from squish_core.analysis.verify import check_empty, check_part, digest_error
from squish_core.conversion.naming import stored_parts
from squish_core.conversion.step import Step
from squish_core.file import File
from squish_core.io.digest import Digest, compared, is_supported
from squish_core.io.source import Source
from squish_core.mapping.mapped import MappedFile
from squish_core.model import Part

Listener = Callable[[str, int, memoryview], None]
"""Called with a file's name, an offset, and the bytes that were read there."""


class HeardSource(Source):
    """Another source that tells a listener all bytes that are read from it and its members."""

    def __init__(self, inner: Source, listener: Listener) -> None:
        super().__init__(inner.name, inner.size)
        self.filename, self.is_dir, self.path, self.pin = inner.filename, inner.is_dir, inner.path, inner.pin
        self.packed, self.findings, self.lists_members = inner.packed, inner.findings, inner.lists_members
        self.is_remote = inner.is_remote
        self._inner, self._listener = inner, listener

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self._inner.read_into(offset, out, what)
        self._listener(self.filename, offset, out)

    def read_ahead(self, ranges: Iterable[tuple[int, int]]) -> None:
        self._inner.read_ahead(ranges)

    def _view(self, offset: int, length: int) -> memoryview:
        view = self._inner.view(offset, length)
        self._listener(self.filename, offset, view)
        return view

    def _names(self, folder: str = "") -> tuple[str, ...]:
        return self._inner.members(folder)

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        return self._inner.members(folder, names)

    def _open_member(self, name: str) -> Source:
        folder, _, plain = name.rpartition("/")
        return HeardSource(self._inner.member(plain, folder), self._listener)


@define
class _Part:
    """A part in one range of a file, and its digest as far as it was read in order."""

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
    """The digests of the parts that some steps read of `file`, which stands for the file given.

    With `on_the_way`, and from a source without cheap views, parts are hashed while they are read for the work, and
    `finish` compares: a part is not fetched twice. Elsewhere they are read for the digest first.
    """

    def __init__(self, file: File, *, on_the_way: bool) -> None:
        self._checked = set[tuple[str, str]]()
        self._parts: dict[str, list[_Part]] = {}
        self._starts: dict[str, list[int]] = {}
        self._on_the_way = on_the_way and not file.source.cheap_views and not isinstance(file, MappedFile)
        self.file = file
        if self._on_the_way:
            self.file = File(HeardSource(file.source, self._hear), file.index, file.registry, file.limits)
        self._original = file.original if isinstance(file, MappedFile) else self.file

    def expect(self, file: File, steps: Iterable[Step]) -> None:
        """Learn which parts will be read of the file, mapped or not."""
        if not self._on_the_way:
            return
        for step in steps:
            for name, role, part in stored_parts(file, step):
                if (name, role) in self._checked or not _passes_whole(part):
                    continue
                (segment,) = part.segments
                digest = Digest(str(part.digest).partition(":")[0].lower())
                place = self._original.index.files[segment.file].name
                self._parts.setdefault(place, []).append(_Part(name, role, part, digest, segment.offset))
                self._checked.add((name, role))
        for place, parts in self._parts.items():
            parts.sort(key=lambda heard: heard.part.segments[0].offset)
            self._starts[place] = [heard.part.segments[0].offset for heard in parts]

    def check(self, file: File, step: Step) -> None:
        """FormatError if a part that is not hashed on its way does not match its digest, or an empty part cannot be
        read."""
        for name, role, part in stored_parts(file, step):
            if (name, role) not in self._checked:
                self._checked.add((name, role))
                check_part(self._original, name, role, part)
                check_empty(self._original, name, role, part)

    def finish(self) -> None:
        """FormatError if a part that was hashed on its way does not match its digest."""
        for parts in self._parts.values():
            for heard in parts:
                segment = heard.part.segments[0]
                if heard.position < heard.stop:
                    source = self._original.source_for(segment.file)
                    for start in range(heard.position, heard.stop, 4 << 20):
                        source.view(start, min(4 << 20, heard.stop - start))  # which is heard
                assert heard.part.digest is not None
                verdict = compared(heard.part.digest, heard.digest)
                if verdict.state == "wrong":
                    raise digest_error(heard.part, verdict).within(
                        file=self._original.name, tensor=heard.name, part=heard.role
                    )

    def _hear(self, place: str, offset: int, data: memoryview) -> None:
        starts = self._starts.get(place)
        if starts is None:
            return
        stop = offset + len(data)
        for heard in self._parts[place][max(0, bisect_right(starts, offset) - 1) :]:
            if heard.part.segments[0].offset >= stop:
                return
            if offset <= heard.position < min(stop, heard.stop):
                end = min(stop, heard.stop)
                heard.digest.update(data[heard.position - offset : end - offset])
                heard.position = end


def _passes_whole(part: Part) -> bool:
    """Whether a part has a digest of bytes that all pass in one stretch."""
    plain = part.digest_of == "stored" or not part.filters
    return part.digest is not None and is_supported(part.digest) and plain and len(part.segments) == 1
