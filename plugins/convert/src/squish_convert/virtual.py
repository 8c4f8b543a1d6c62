"""A checkpoint presented as another format: a source whose bytes are computed on reading."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from squish_core.codes import ErrorCode
from squish_core.errors import FormatError
from squish_core.file import File
from squish_core.io.source import Source
from squish_core.model import Part
from squish_core.specs import parse_format

from .image import OutputFile, PartExtent
from .plan import ConversionPlan, output_image, plan_mapped, writable
from .ranges import ImageReader
from .rules import Encode


class VirtualSource(Source):
    """One file of an output image, or the folder of all.

    `plan` is the conversion that it presents; `reader` has its image, and reads any range of it.
    """

    def __init__(self, name: str, plan: ConversionPlan, reader: ImageReader, file: OutputFile | None = None) -> None:
        self.plan, self.reader, self._file = plan, reader, file
        self.is_dir = file is None
        self._folder = name if file is None else name.removesuffix(f"/{file.name}")
        super().__init__(name, file.size if file else 0)

    def _view(self, offset: int, length: int) -> memoryview:
        assert self._file is not None
        return memoryview(self.reader.read(self._file, offset, offset + length))

    @property
    def origin(self) -> File:
        """The file that is presented in another format."""
        return self.reader.file

    def copied_part(self, offset: int, length: int) -> Part | None:
        """The part of `origin` whose bytes these are; None if they are computed.

        Parameters
        ----------
        offset, length
            Where a part of the target lies in this file.

        Returns
        -------
        Part or None
            With the same bytes, before its filters.
        """
        assert self._file is not None
        for extent, start, stop in self._file.between(offset, offset + length):
            if isinstance(extent, PartExtent) and (start, stop) == (0, length) == (0, extent.nbytes):
                return self.reader.copied_part(extent)
        return None

    def _names(self, folder: str = "") -> tuple[str, ...]:
        start = f"{folder}/" if folder else ""
        names = (file.name.removeprefix(start) for file in self.reader.image.files if file.name.startswith(start))
        return tuple(sorted(name for name in names if name and "/" not in name))

    def _open_member(self, name: str) -> Source:
        for file in self.reader.image.files:
            if file.name == name:
                return VirtualSource(f"{self._folder}/{name}", self.plan, self.reader, file)
        raise FormatError("there is no such file", file=f"{self._folder}/{name}", code=ErrorCode.MISSING)


def as_format(
    file: File,
    format: str,  # noqa: A002
    encode: Encode | None = None,
    *,
    only: str | Iterable[str] | None = None,
    rename: str | None = None,
    activations: File | None = None,
    requantize: bool = False,
) -> VirtualSource:
    """Present a file in another format without writing it.

    Parameters
    ----------
    file
        An open file; it must stay open.
    format, encode
        `to` and `encode` of `squish.convert`.
    only, rename, requantize
        As in `squish.convert`.
    activations
        An open file with activation statistics.

    Returns
    -------
    Source
        What `open` and `convert` take. Its bytes are those that `convert` would write, made as they are read.

    Raises
    ------
    UsageError
        The format's layout depends on the data (code `image`).

    Examples
    --------
    >>> with squish.open("model.safetensors") as file, squish.open(squish.as_format(file, "gguf")) as virtual:
    ...     print(virtual.format, virtual.source.size == squish.convert(file, "copy.gguf").size)
    gguf True
    """
    format_id, _ = parse_format(format, file.registry.writing_options)
    name = _name(file, format_id)
    plan, _ = plan_mapped(
        file, Path(name), format, encode, only=only, rename=rename, activations=activations, requantize=requantize
    )
    image = output_image(plan, file)
    reader = ImageReader(plan, file, image, activations)
    folder = writable(plan.format, file.registry).writes_folder(plan.options)
    return VirtualSource(name, plan, reader, None if folder else image.files[0])


def _name(file: File, format_id: str) -> str:
    """The source's name under the suffix of the format."""
    name, formats = Path(file.name).name, file.registry.containers
    file.registry.container(format_id)  # refused if it is not installed
    suffixes = [suffix for entry in formats.values() for suffix in entry.info.suffixes]
    stem = next((name[: -len(suffix)] for suffix in suffixes if name.lower().endswith(suffix)), "") or name
    return stem + next(iter(formats[format_id].info.suffixes), "")
