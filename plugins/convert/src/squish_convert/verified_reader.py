"""Verified reading for conversions: finds damage before it is copied, and fetches no byte twice."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate
from typing import Any

from attrs import define

from squish_core.checking.check import SourceReader, check_empty, check_part, digest_error
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.guard import computing
from squish_core.io.digest import Digest, compare_digests, is_supported
from squish_core.model import Part

from .model_map import stored_parts
from .step import Step


@define
class _HashedPart:
    """A part in one byte range, with the digest of the bytes read so far, in order."""

    name: str
    role: str
    part: Part
    digest: Digest
    position: int

    @property
    def stop(self) -> int:
        segment = self.part.segments[0]
        return segment.offset + segment.length


class VerifiedReader(SourceReader):
    """Reads the source of a conversion, and checks what its steps read.

    Call `begin` with the steps that read whole tensors, before anything is written. Execute the steps in a `with`
    block, read through `file` (or that file mapped), and call `check` before each step.

    A copy would propagate damage, so the parts of copies are checked as decoding would check them: all by `begin` if
    reading twice is cheap, else each by `check`, which caches the bytes for the copy. `check` also compares digests.
    If reading twice is expensive, digests are computed while the parts are read and compared at the end of the block,
    unless `hash_while_reading` is False.
    """

    def __init__(self, file: File, *, hash_while_reading: bool = True) -> None:
        super().__init__(file, listener=self._hash)
        self.cache.is_complete = True  # except in `check`
        self._hashes = hash_while_reading and self.is_wrapped
        self._copies, self._digests = set[str](), set[tuple[str, str]]()
        self._parts: dict[str, list[_HashedPart]] = {}
        self._starts: dict[str, list[int]] = {}
        self._stops: dict[str, list[int]] = {}
        self._ahead: AbstractContextManager[None] = nullcontext()

    def begin(self, file: File, steps: Iterable[Step]) -> None:
        """Check all copies if that is cheap, and register the parts of these steps."""
        steps = list(steps)
        self._ahead = file.original.reading_ahead(part for step in steps for _, _, part in stored_parts(file, step))
        for step in steps:
            if not self.is_wrapped:
                self._check_copy(file, step)
            elif self._hashes:
                self._expect(file, step)
        for filename, parts in self._parts.items():
            parts.sort(key=lambda entry: entry.part.segments[0].offset)
            self._starts[filename] = [entry.part.segments[0].offset for entry in parts]
            self._stops[filename] = list(accumulate((entry.stop for entry in parts), max))

    def check(self, file: File, step: Step) -> None:
        """Raise a SquishError if a copy cannot be decoded, a digest does not match or an empty part cannot be read.

        Skips parts that are already checked, or hashed while they are read.
        """
        self.cache.is_complete = False
        try:
            self._check_copy(file, step)
            check_digests(file, step, self._digests)
        finally:
            self.cache.is_complete = True

    def __enter__(self) -> VerifiedReader:
        self._ahead.__enter__()
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if kind is None:
                self._compare()
        finally:
            self._ahead.__exit__(None, None, None)

    def _hash(self, filename: str, offset: int, data: memoryview) -> None:
        """Update the digests of registered parts with bytes that are read."""
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

    def _check_copy(self, file: File, step: Step) -> None:
        if step.name not in self._copies:
            self._copies.add(step.name)
            check_copy(file, step)

    def _expect(self, file: File, step: Step) -> None:
        """Register the parts of a step to hash while they are read."""
        for name, role, part in stored_parts(file, step):
            if (name, role) in self._digests or not _passes_whole(part):
                continue
            (segment,) = part.segments
            digest = Digest(str(part.digest).partition(":")[0].lower())
            filename = self.file.index.files[segment.file].name
            self._parts.setdefault(filename, []).append(_HashedPart(name, role, part, digest, segment.offset))
            self._digests.add((name, role))

    def _compare(self) -> None:
        """Raise FormatError if a registered part does not match its digest."""
        for parts in self._parts.values():
            for entry in parts:
                segment = entry.part.segments[0]
                if entry.position < entry.stop:
                    source = self.file.source_for(segment.file)
                    for start in range(entry.position, entry.stop, 4 << 20):
                        source.view(start, min(4 << 20, entry.stop - start))  # the listener hashes it
                assert entry.part.digest is not None
                verdict = compare_digests(entry.part.digest, entry.digest)
                if verdict.state == "wrong":
                    raise digest_error(entry.part, verdict).within(
                        file=self.file.name, tensor=entry.name, part=entry.role
                    )


def check_copy(file: File, step: Step) -> None:
    """Raise an error if parts that are copied without decoding cannot be decoded."""
    spec = file.index.tensors[step.name]
    if step.is_computed or spec.stored_values(step.origin) is not None:  # any bytes are values
        return
    if file.registry.missing(step.origin) is None:
        with computing(TensorError, "checking parts", file=file.name, tensor=step.name):
            bound = file.bind(spec, step.origin)
            bound.codec.check_parts(bound.parts, bound.spec)


def check_digests(file: File, step: Step, checked: set[tuple[str, str]]) -> None:
    """Raise FormatError if a digest does not match or an empty part cannot be read; skips parts in `checked`."""
    for name, role, part in stored_parts(file, step):
        if (part.digest is not None or part.filters) and (name, role) not in checked:
            checked.add((name, role))
            check_part(file.original, name, role, part)
            check_empty(file.original, name, role, part)


def _passes_whole(part: Part) -> bool:
    """Return whether a part has a supported digest of a single byte range."""
    of_stored_bytes = part.digest_of == "stored" or not part.filters
    return part.digest is not None and is_supported(part.digest) and of_stored_bytes and len(part.segments) == 1
