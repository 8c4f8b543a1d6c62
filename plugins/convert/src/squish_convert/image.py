"""The output image: the offset of every byte of a target, before any is written.

The format's own `write` builds it on a sink that records offsets, so one code path decides the layout.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NoReturn

from attrs import define, field, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import UsageError
from squish_core.formats.assets import LazyAssets
from squish_core.formats.base import Options, WritableContainer
from squish_core.formats.composite import (
    Companions,
    CompositeContainer,
    OutgoingChild,
    OutgoingCompanions,
    OutgoingWhole,
)
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.io.digest import Digest
from squish_core.io.sink import Sink
from squish_core.io.source import Source, check_file_name
from squish_core.model import Part, TensorSpec

_COPIED = 1 << 20
"""Minimum bytes of a view that an image does not copy: it belongs to another file, such as the weights of a graph."""


@frozen
class PartExtent:
    """The bytes of one part of a tensor, by the tensor's name in the target."""

    tensor: str
    role: str
    nbytes: int


@frozen
class OpenExtent:
    """Bytes that are unknown until the target is written: computed from parts, or copied from another file."""

    nbytes: int


Extent = bytes | PartExtent | OpenExtent


@frozen
class OutputFile:
    """One file of the target: literal bytes (headers, padding, assets) and parts, in order.

    Attributes
    ----------
    name
        Path in the target's folder, or "" if the target is one file.
    extents
        bytes, PartExtent or OpenExtent.
    starts
        Offset of each extent, and the size of the file.
    """

    name: str
    extents: tuple[Extent, ...] = field(repr=False)
    starts: tuple[int, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.starts[-1]

    def between(self, start: int, stop: int) -> Iterator[tuple[bytes | PartExtent, int, int]]:
        """Yield the extents that cover a byte range of a final image, each with the range within it."""
        first = max(bisect_right(self.starts, start) - 1, 0)
        for extent, low in zip(self.extents[first:], self.starts[first:]):
            if low >= stop:
                return
            assert not isinstance(extent, OpenExtent)
            high = min(stop - low, _nbytes(extent))
            if max(start - low, 0) < high:
                yield extent, max(start - low, 0), high


@frozen
class OutputImage:
    """The files of a target, as plain data.

    Attributes
    ----------
    files
        In the order in which writing begins them.
    is_final
        Whether every byte outside the tensors is known. If not, sizes and offsets are, but some bytes depend on tensors
        or large assets, which planning does not read; then no literal bytes are kept.
    revises
        Whether writing changes earlier bytes, such as header fields that depend on the data.
    """

    files: tuple[OutputFile, ...]
    is_final: bool = True
    revises: bool = False

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.files)

    @property
    def places(self) -> dict[tuple[str, str], tuple[str, int]]:
        """(tensor, role) -> the name of its file and the offset in it."""
        return {
            (extent.tensor, extent.role): (file.name, start)
            for file in self.files
            for extent, start in zip(file.extents, file.starts)
            if isinstance(extent, PartExtent)
        }

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: literal bytes as their SHA-256.

        Returns
        -------
        dict
            `files`: of each `name`, `size` and `extents`, [offset, bytes, tensor, role] or [offset, bytes, sha256].
        """
        return {"files": [{"name": file.name, "size": file.size, "extents": _rows(file)} for file in self.files]}


class UnreadAsset(bytes):
    """Zeros in place of a large asset, which planning does not read."""


def lay_out(
    container: WritableContainer,
    specs: Iterable[TensorSpec],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: Options,
    companions: Companions | None = None,
    name: str = "",
) -> OutputImage | None:
    """Lay out a target without writing it: call `write` with a sink that records offsets, and parts without bytes.

    Parameters
    ----------
    container, meta, assets, options
        The format, and the arguments of its `write`.
    specs
        The tensors as the target holds them.
    companions
        Companions for a composite format.
    name
        Name of the target's file, for a format with files beside it.

    Returns
    -------
    OutputImage or None
        None if sizes depend on the stored bytes, as with compression.

    Examples
    --------
    >>> image = lay_out(squish.registry().container("gguf"), [], {"general.name": "empty"}, {}, {})
    >>> image.size, image.is_final
    (64, True)
    """
    recording = _Recording()
    sink = ImageSink(recording, name if container.writes_beside(options) else "")
    tensors = [
        OutgoingTensor(spec, {role: _Placeholder(recording, part, spec.name, role) for role, part in parts.items()})
        for spec in specs
        for parts in [spec.encodings[0].parts]
    ]
    extra: tuple[OutgoingCompanions, ...] = ()
    if isinstance(container, CompositeContainer) and companions is not None:
        extra = (_outgoing_companions(recording, companions),)
    try:
        container.write(sink, tensors, meta, recording.watched(assets), options, *extra)
    except UsageError as error:
        if error.code != ErrorCode.IMAGE:
            raise
        return None
    files = tuple(sink.files(is_folder=container.writes_folder(options)))
    return OutputImage(files, recording.is_final, recording.revises)


def _outgoing_companions(recording: _Recording, companions: Companions) -> OutgoingCompanions:
    """Companions whose parts have no bytes."""

    def streams(parts: Mapping[str, Part]) -> dict[str, Stream]:
        return {role: _Placeholder(recording, part) for role, part in parts.items()}

    return OutgoingCompanions(
        children={
            name: OutgoingChild(
                tensors=[OutgoingTensor(spec, streams(spec.encodings[0].parts)) for spec in child.tensors.values()],
                meta=child.meta,
                assets={key: UnreadAsset(part.nbytes) for key, part in child.assets.items()},
            )
            for name, child in companions.children.items()
        },
        whole=[OutgoingWhole(encoding=encoding, parts=streams(encoding.parts)) for encoding in companions.whole],
    )


@define
class _Recording:
    """What laying out a target finds; see `OutputImage`."""

    is_final: bool = True
    revises: bool = False

    def watched(self, assets: Mapping[str, bytes]) -> Mapping[str, bytes]:
        """Return the assets; the image is not final if one was not read."""

        def read(name: str) -> bytes:
            data = assets[name]
            self.is_final = self.is_final and not isinstance(data, UnreadAsset)
            return data

        return LazyAssets(assets, read)


class ImageSink(Sink):
    """A sink that writes nothing and records the offsets of all bytes."""

    records = True

    def __init__(self, recording: _Recording, name: str = "") -> None:
        super().__init__(None, None, None, name=name)
        self._recording = recording
        self._extents: list[bytearray | PartExtent | OpenExtent] = []
        self._sinks: list[ImageSink] = []

    def write(self, data: Any) -> None:
        """Record literal bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return
        if not self._recording.is_final or (isinstance(data, memoryview) and view.nbytes > _COPIED):
            self.skip(view.nbytes)
            return
        if not self._extents or not isinstance(self._extents[-1], bytearray):
            self._extents.append(bytearray())
        last = self._extents[-1]
        assert isinstance(last, bytearray)
        last += view.cast("B")
        self._advance(view.nbytes)

    def place(self, extent: PartExtent) -> None:
        """Record the offset of a part."""
        if extent.nbytes:
            self._extents.append(extent)
            self._advance(extent.nbytes)

    def skip(self, length: int) -> None:
        """Record bytes that depend on those of parts."""
        self._recording.is_final = False
        if length:
            self._extents.append(OpenExtent(length))
            self._advance(length)

    def copy(self, source: Source, offset: int, length: int) -> None:
        """Record bytes of another file."""
        self.skip(length)

    def fill(self, read_into: Any, length: int, grain: int = 1, *, in_order: bool = False) -> None:
        """Record bytes of another file."""
        self.skip(length)

    def patch(self, offset: int, data: bytes) -> None:
        """Change literal bytes."""
        self._recording.revises = True
        if not self._recording.is_final:
            return
        for extent, start in zip(self._extents, _starts(self._extents)):
            if isinstance(extent, bytearray) and start <= offset and offset + len(data) <= start + len(extent):
                extent[offset - start : offset - start + len(data)] = data
                return
        _refuse()

    def read_back(self, offset: int, length: int) -> bytes:
        _refuse()

    def truncate(self, offset: int) -> None:
        _refuse()

    @contextmanager
    def _member(self, path: str) -> Iterator[Sink]:
        member = ImageSink(self._recording, path.lstrip("/"))
        self._sinks.append(member)
        yield member

    def member(self, name: str, folder: str = "") -> Any:
        """As in `Sink`."""
        for piece in (*folder.split("/"), name) if folder else (name,):
            check_file_name(piece, "the target")
        return self._member(f"{folder}/{name}")

    def files(self, *, is_folder: bool) -> Iterator[OutputFile]:
        """Yield the recorded files."""
        if not is_folder:
            literal = bytes if self._recording.is_final else lambda data: OpenExtent(len(data))
            extents = tuple(literal(extent) if isinstance(extent, bytearray) else extent for extent in self._extents)
            yield OutputFile(self.name, extents, tuple(_starts(extents)))
        for sink in self._sinks:
            yield from sink.files(is_folder=False)


class _Placeholder(Stream):
    """A part without bytes; one of a companion has no name."""

    def __init__(self, recording: _Recording, part: Part, tensor: str = "", role: str = "") -> None:
        super().__init__(part, _refuse)
        self._recording, self._tensor, self._role = recording, tensor, role

    def read(self) -> bytes:
        self._recording.is_final = False
        return bytes(self.part.nbytes)

    def write_to(self, sink: Sink, digest: Digest | None = None) -> None:
        if not isinstance(sink, ImageSink):  # compressed by the format
            _refuse()
        self._recording.is_final = self._recording.is_final and digest is None
        if self._tensor:
            sink.place(PartExtent(self._tensor, self._role, self.part.nbytes))
        else:
            sink.skip(self.part.nbytes)


def _refuse() -> NoReturn:
    """Raise UsageError: the format inspects tensor data while it writes."""
    raise UsageError("the layout of this format depends on the stored bytes", code=ErrorCode.IMAGE, hint=HINT)


HINT = "Write it with convert."


def _nbytes(extent: bytes | bytearray | PartExtent | OpenExtent) -> int:
    return len(extent) if isinstance(extent, (bytes, bytearray)) else extent.nbytes


def _starts(extents: Iterable[bytes | bytearray | PartExtent | OpenExtent]) -> Iterator[int]:
    """Offset of each extent, and the end of the last."""
    return accumulate(map(_nbytes, extents), initial=0)


def _rows(file: OutputFile) -> list[list[Any]]:
    from hashlib import sha256

    return [
        [start, extent.nbytes, extent.tensor, extent.role]
        if isinstance(extent, PartExtent)
        else [start, _nbytes(extent), sha256(extent).hexdigest() if isinstance(extent, bytes) else ""]
        for start, extent in zip(file.starts, file.extents)
    ]
