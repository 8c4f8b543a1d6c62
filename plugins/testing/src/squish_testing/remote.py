"""Tests that a format suits files on other machines: few requests, no listing, no path, and no byte read twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from squish_convert.convert import convert

from squish_core.errors import MissingPluginError, SquishError
from squish_core.io.source import SNIFFED, Source
from squish_core.model import Index

from .sources import CountingSource, Range, assert_read_once, fetched_part, source_of
from .suite import Suite

if TYPE_CHECKING:
    from squish_core.file import File
    from squish_core.tensor import Tensor


class WebSource(CountingSource):
    """A file or folder on a web server: no path and no listing, but names can be looked up."""

    def __init__(self, inner: Source, log: list[Range] | None = None) -> None:
        super().__init__(inner, log)
        self.path, self.lists_members, self.is_remote = None, False, True

    def _present(self, folder: str, names: Sequence[str]) -> tuple[str, ...]:
        return tuple(name for name in names if self.inner.has(name, folder))

    def _wrapped(self, member: Source) -> Source:
        return WebSource(member, self.log)


class RemoteReads(Suite):
    """Tests of what is read.

    `requests`: ranges beyond a file's first 64 KiB that opening may read, per file. `listed`: the format needs the
    names of the files in a folder, so that it does not open from a web server.
    """

    requests = 5
    listed = False

    def sample(self, name: str) -> Any:
        """One sample."""
        raise NotImplementedError

    def open(self, target: Any) -> File:
        """Open as the format under test."""
        raise NotImplementedError

    def index(self, source: Any) -> Index:
        """Read the Index, without detection."""
        raise NotImplementedError

    def test_opening_takes_few_requests(self, sample: str) -> None:
        """Beyond each file's first 64 KiB: at most `requests` ranges, and 1.3 times their distinct bytes."""
        source = CountingSource(self._source(sample)) if self.listed else WebSource(self._source(sample))
        self.index(source)
        for name, ranges in _by_file(source.log).items():
            beyond = [(offset, length) for offset, length in ranges if offset + length > SNIFFED]
            count, size = len(beyond), sum(length for _, length in beyond)
            assert count <= self.requests, f"{sample}: opening reads {count} ranges of {name}: {beyond[:10]}"
            distinct = _distinct(beyond)
            assert size <= 1.3 * distinct, (
                f"{sample}: opening reads {size} bytes of {name}, {distinct} of them distinct"
            )

    def test_a_model_without_a_path_and_a_listing_opens(self, sample: str) -> None:
        """A web server has no listing, yet the Index, metadata and assets equal those of the local model."""
        if self.listed:
            pytest.skip("listed = True: this format needs a listing")
        with self.open(self._source(sample)) as local:
            try:
                remote = self.open(WebSource(self._source(sample)))
            except SquishError as error:
                raise AssertionError(f"{sample}: {len(local)} tensors here, none from a web server: {error}") from error
            assert list(remote) == list(local), f"{sample}: tensors are {list(remote)}, expected {list(local)}"
            for tensor, expected in zip(readable(remote), readable(local)):
                assert tensor.numpy().tobytes() == expected.numpy().tobytes(), f"{sample}: {tensor.name} differs"

    def test_a_tensor_is_decoded_from_bytes_that_are_read_once(self, sample: str) -> None:
        """`t.numpy()` reads no stored byte twice."""
        source = CountingSource(self._source(sample))
        assert_read_once(readable(self.open(source)), source)

    def test_all_tensors_are_read_once(self, sample: str) -> None:
        """`file.numpy()` reads no stored byte twice, and no view is longer than a part."""
        source = CountingSource(self._source(sample))
        with self.open(source) as file:
            tensors = list(readable(file))
            if len(tensors) != len(file) or len(tensors) == 0:
                pytest.skip("not every tensor can be read")
            source.log.clear()
            file.numpy()
            encodings = {tensor.name: tensor.bound.encoding for tensor in tensors}
            self._assert_once(sample, source, file, encodings)
            longest = max(part.stored for encoding in encodings.values() for part in encoding.parts.values())
            view = max((length for _, _, length in source.log), default=0)
            assert view <= longest, f"{sample}: a view of {view} bytes, the longest part has {longest}"

    def test_a_conversion_reads_each_stored_byte_once(self, sample: str, tmp_path: Path) -> None:
        """Writing a copy reads no stored byte twice, those with digests included."""
        if not self.entry().info.can_write or sample in getattr(self, "not_rewritten", ()):
            pytest.skip("it is not written in its own format")
        source = CountingSource(self._source(sample))
        with self.open(source) as file:
            source.log.clear()
            report = convert(file, tmp_path / "copy", file.format)
            origins = {step.name: step.origin for step in report.steps}
            self._assert_once(sample, source, file, origins)

    def _source(self, sample: str) -> Source:
        return source_of(self.sample(sample))

    def _assert_once(self, sample: str, source: CountingSource, file: File, encodings: Mapping[str, Any]) -> None:
        shared = _shared(file.index)
        for name, encoding in encodings.items():
            for role, part in encoding.parts.items():
                if part.segments and not any(segment in shared for segment in part.segments):
                    size = fetched_part(source.log, file.index, part)
                    message = f"{sample}: {name}/{role}: {size} bytes are read of {part.stored}"
                    assert size <= part.stored, message


def readable(file: File) -> Iterator[Tensor]:
    """Yield the tensors whose codecs are installed."""
    for name in file:
        tensor = file[name]
        if tensor.spec.problem is None:
            try:
                tensor.bound  # noqa: B018 - raises if a codec is missing
            except MissingPluginError:
                continue
            yield tensor


def _shared(index: Index) -> set[Any]:
    """Byte ranges that several parts share."""
    segments = [
        segment
        for spec in index.tensors.values()
        for encoding in spec.encodings
        for part in encoding.parts.values()
        for segment in part.segments
    ]
    return {segment for segment in segments if segments.count(segment) > 1}


def _by_file(log: Sequence[Range]) -> dict[str, list[tuple[int, int]]]:
    files: dict[str, list[tuple[int, int]]] = {}
    for name, offset, length in log:
        files.setdefault(name, []).append((offset, length))
    return files


def _distinct(ranges: Sequence[tuple[int, int]]) -> int:
    total, reached = 0, 0
    for offset, length in sorted(ranges):
        total += max(0, offset + length - max(offset, reached))
        reached = max(reached, offset + length)
    return total
