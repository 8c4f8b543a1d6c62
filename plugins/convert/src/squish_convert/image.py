"""The output image: the place of every byte of a target, before any is written.

The format's own `write` builds it, on a sink that records the places of parts: one code path decides all offsets.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, NoReturn

from attrs import field, frozen

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, UsageError
from squish_core.file import File
from squish_core.formats.composite import CompositeContainer
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.guard import computing, gc_paused
from squish_core.io.sink import Sink
from squish_core.io.source import check_file_name
from squish_core.model import Part

from .carried import asset_bytes, carried_assets
from .mapping.mapped import apply_map
from .plan import ConversionPlan


@frozen
class PartExtent:
    """The bytes of one part of a tensor, by the tensor's name in the target."""

    tensor: str
    role: str
    nbytes: int


@frozen
class OutputFile:
    """One file of the target: literal bytes (headers, padding, assets) and parts, in order.

    Attributes
    ----------
    name
        Path in the target's folder, or "" if the target is one file.
    extents
        bytes or PartExtent.
    starts
        Offset of each extent, and the size of the file.
    """

    name: str
    extents: tuple[bytes | PartExtent, ...] = field(repr=False)
    starts: tuple[int, ...] = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.starts[-1]

    def between(self, start: int, stop: int) -> Iterator[tuple[bytes | PartExtent, int, int]]:
        """The extents that cover a byte range, each with the range within it."""
        first = max(bisect_right(self.starts, start) - 1, 0)
        for extent, low in zip(self.extents[first:], self.starts[first:]):
            if low >= stop:
                return
            high = min(stop - low, _nbytes(extent))
            if max(start - low, 0) < high:
                yield extent, max(start - low, 0), high


@frozen
class OutputImage:
    """The files of a target, as plain data."""

    files: tuple[OutputFile, ...]

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
            for extent, start in zip(file.extents, file.starts) if isinstance(extent, PartExtent)
        }  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON: literal bytes as their SHA-256.

        Returns
        -------
        dict
            `files`: of each `name`, `size` and `extents`, [offset, bytes, tensor, role] or [offset, bytes, sha256].
        """
        return {"files": [{"name": file.name, "size": file.size, "extents": _rows(file)} for file in self.files]}


@gc_paused()
def output_image(plan: ConversionPlan, source: File) -> OutputImage:
    """Lay out a target without writing it.

    Parameters
    ----------
    plan
        Made by `plan_conversion`.
    source
        The file that was planned, open: metadata and assets are read from it, no tensor.

    Returns
    -------
    OutputImage
        Every byte of the target, as literal bytes or as part of a tensor.

    Raises
    ------
    UsageError
        The format has no image (code `image`): bytes outside the tensors depend on what is in them.

    Examples
    --------
    >>> from pathlib import Path
    >>> from squish_convert.api import plan_conversion
    >>> _ = squish.save("ones.safetensors", {"w": np.ones((2, 64), "f4")})
    >>> with squish.open("ones.safetensors") as file:
    ...     image = output_image(plan_conversion(file, Path("ones.gguf"), encode="q8_0"), file)
    >>> image.files[0].extents[1]
    PartExtent(tensor='w', role='data', nbytes=136)
    """
    source = apply_map(source.without_caches(), plan.model_map, plan.options)
    container = source.registry.container(plan.format)
    if plan.packing or isinstance(container, CompositeContainer) or container.writes_beside(plan.options):
        what = f"a file compressed whole ({plan.packing})" if plan.packing else plan.format
        raise UsageError(
            f"{what} has no image before it is written", file=plan.target, code=ErrorCode.IMAGE, hint=_HINT
        )
    sink = ImageSink(plan.format)
    assets = asset_bytes(source, carried_assets(source, plan.format)[0])
    tensors = [
        OutgoingTensor(step.spec, {role: _Placeholder(step.spec.name, role, part) for role, part in parts.items()})
        for step in plan.steps
        for parts in [step.spec.encodings[0].parts]
    ]
    with computing(FormatError, f"laying out the {plan.format} file", file=plan.target):
        container.write(sink, tensors, {**source.index.meta, **plan.recorded}, assets, plan.options)
    return OutputImage(tuple(sink.files(container.writes_folder(plan.options))))


def image_if_any(plan: ConversionPlan, source: File) -> OutputImage | None:
    """The image, or None for a target that cannot be laid out before it is written."""
    try:
        return output_image(plan, source)
    except UsageError as error:
        if error.code != ErrorCode.IMAGE:
            raise
        return None


class ImageSink(Sink):
    """A sink that writes nothing and records the place of all bytes."""

    def __init__(self, format_id: str, name: str = "") -> None:
        super().__init__(None, None, None)
        self._format, self._name = format_id, name
        self._extents: list[bytearray | PartExtent] = []
        self._sinks: list[ImageSink] = []

    def write(self, data: Any) -> None:
        """Record literal bytes."""
        view = memoryview(data)
        if not view.nbytes:
            return
        if not self._extents or isinstance(self._extents[-1], PartExtent):
            self._extents.append(bytearray())
        last = self._extents[-1]
        assert isinstance(last, bytearray)
        last += view.cast("B")
        self._advance(view.nbytes)

    def place(self, extent: PartExtent) -> None:
        """Record the place of a part."""
        if extent.nbytes:
            self._extents.append(extent)
            self._advance(extent.nbytes)

    def patch(self, offset: int, data: bytes) -> None:
        """Change literal bytes."""
        for extent, start in zip(self._extents, _starts(self._extents)):
            if isinstance(extent, bytearray) and start <= offset and offset + len(data) <= start + len(extent):
                extent[offset - start : offset - start + len(data)] = data
                return
        self.refuse()

    def read_back(self, offset: int, length: int) -> bytes:
        self.refuse()

    def truncate(self, offset: int) -> None:
        self.refuse()

    def refuse(self) -> NoReturn:
        """Raise UsageError: the format inspects tensor data while it writes."""
        raise UsageError(
            f"{self._format} has no image before it is written: its layout depends on the stored bytes",
            code=ErrorCode.IMAGE, hint=_HINT,
        )  # fmt: skip

    @contextmanager
    def _member(self, path: str) -> Iterator[Sink]:
        member = ImageSink(self._format, path.lstrip("/"))
        self._sinks.append(member)
        yield member

    def member(self, name: str, folder: str = "") -> Any:
        """As in `Sink`."""
        for piece in (*folder.split("/"), name) if folder else (name,):
            check_file_name(piece, self._format)
        return self._member(f"{folder}/{name}")

    def files(self, is_folder: bool) -> Iterator[OutputFile]:
        """The recorded image."""
        if not is_folder:
            extents = tuple(bytes(extent) if isinstance(extent, bytearray) else extent for extent in self._extents)
            yield OutputFile(self._name, extents, tuple(_starts(extents)))
        for sink in self._sinks:
            yield from sink.files(is_folder=False)


class _Placeholder(Stream):
    """A part in an image."""

    def __init__(self, tensor: str, role: str, part: Part) -> None:
        super().__init__(part, lambda: ())
        self._extent = PartExtent(tensor, role, part.nbytes)

    def chunks(self) -> Iterator[Any]:
        raise UsageError(
            "the layout of this format depends on the bytes of a part", tensor=self._extent.tensor,
            code=ErrorCode.IMAGE, hint=_HINT,
        )  # fmt: skip

    def write_to(self, sink: Sink) -> None:
        assert isinstance(sink, ImageSink)
        sink.place(self._extent)


_HINT = "Write the target with convert; it can be laid out before that only where no byte depends on a tensor's."


def _nbytes(extent: bytes | bytearray | PartExtent) -> int:
    return extent.nbytes if isinstance(extent, PartExtent) else len(extent)


def _starts(extents: Iterable[bytes | bytearray | PartExtent]) -> Iterator[int]:
    """Offset of each extent, and the end of the last."""
    return accumulate(map(_nbytes, extents), initial=0)


def _rows(file: OutputFile) -> list[list[Any]]:
    from hashlib import sha256

    return [
        [start, extent.nbytes, extent.tensor, extent.role]
        if isinstance(extent, PartExtent)
        else [start, len(extent), sha256(extent).hexdigest()]
        for start, extent in zip(file.starts, file.extents)
    ]
