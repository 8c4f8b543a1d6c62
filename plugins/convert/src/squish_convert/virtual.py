"""Read any byte range of a target without writing it, for tasks of a job and for `as_format`."""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from itertools import accumulate
from pathlib import Path

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.regions import Region, sizes
from squish_core.codes import ErrorCode
from squish_core.errors import CodecError, FormatError, UsageError
from squish_core.file import File
from squish_core.guard import computing
from squish_core.io.source import Source
from squish_core.model import Part
from squish_core.specs import parse_format

from .activations import ActivationStatistics
from .execute import check_source
from .image import OutputFile, OutputImage, PartExtent
from .mapping.apply import apply_map
from .panels import EncodedPanels, Panels, RepackedPanels
from .plan import ConversionPlan, output_image, plan_mapped, uses_activations
from .rules import Encode
from .step import Step
from .streams import part_bytes, widened
from .targets import writable
from .verified_reader import check_copy, check_digests

CACHED = 256 << 20
"""Bytes of encoded panels for a reader to cache."""


class ImageReader:
    """Reads bytes of a target without writing it.

    A range of a copied part is read from the source; for an encoded or repacked part, the panels that cover it.
    Up to `cached` bytes of panels are cached, so that small reads in any order do not encode a panel each. Digests of
    the source are checked when their tensor is first read.
    """

    def __init__(
        self,
        plan: ConversionPlan,
        source: File,
        image: OutputImage,
        activations: File | None = None,
        *,
        cached: int = CACHED,
    ) -> None:
        self.image = image
        self.file = apply_map(source.without_caches(), plan.model_map, plan.options)
        check_source(plan, self.file)
        self._steps = {step.spec.name: step for step in plan.steps}
        self._statistics = None if activations is None else ActivationStatistics(activations, self.file)
        self._digests, self._begun = set[tuple[str, str]](), set[str]()
        self._panels: dict[str, PanelTable] = {}
        self._cache, self._cached = OrderedDict[tuple[str, int], dict[str, bytes]](), 0
        self._budget, self._lock = cached, threading.Lock()

    def read(self, file: OutputFile, start: int, stop: int) -> bytes:
        """Bytes `start` to `stop` of one output file."""
        return b"".join(self.chunks(file, start, stop))

    def chunks(self, file: OutputFile, start: int, stop: int) -> Iterator[bytes | memoryview]:
        """Yield the same bytes in pieces, each of one extent and at most one panel or 4 MiB."""
        self.file.source.check_open()
        for extent, low, high in file.between(start, stop):
            if isinstance(extent, PartExtent):
                yield from self._part(extent, low, high)
            else:
                yield memoryview(extent)[low:high]

    def copied_part(self, extent: PartExtent) -> Part | None:
        """Return the source's part with the same bytes; None if the target's bytes are computed."""
        step = self._steps[extent.tensor]
        if step.is_computed:
            return None
        stored, target = step.origin.parts[extent.role], step.spec.encodings[0].parts[extent.role]
        return stored if (stored.dtype, stored.byteorder) == (target.dtype, target.byteorder) else None

    def _part(self, extent: PartExtent, start: int, stop: int) -> Iterator[bytes | memoryview]:
        step = self._steps[extent.tensor]
        with self._lock:
            if extent.tensor not in self._begun:
                check_digests(self.file, step, self._digests)
                check_copy(self.file, step)
                self._begun.add(extent.tensor)
        if step.is_computed:
            yield from self._encoded(step, extent.role, start, stop)
        else:
            yield from stored_range(self.file, step, extent.role, start, stop)

    def _encoded(self, step: Step, role: str, start: int, stop: int) -> Iterator[bytes | memoryview]:
        with self._lock:
            table = self._panels.get(step.name) or self._panels.setdefault(step.name, self._table(step))
        starts = table.starts[role]
        for number in range(bisect_right(starts, start) - 1, len(table.regions)):
            low, high = starts[number], starts[number + 1]
            if low >= stop:
                return
            if max(low, start) < min(high, stop):
                yield memoryview(self._panel(step, table, number)[role])[max(start - low, 0) : stop - low]

    def _panel(self, step: Step, table: PanelTable, number: int) -> dict[str, bytes]:
        """Return the parts of one panel. Only one thread encodes at a time; others then use the cached panel."""
        key = step.name, number
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
            with computing(CodecError, "encoding", file=self.file.name, tensor=step.name):
                arrays = table.panels.parts(table.regions[number])
                parts = {role: bytes(part_bytes(array)) for role, array in arrays.items()}
            table.check(number, parts)
            self._cache[key] = parts
            self._cached += _size(parts)
            while self._cached > self._budget and len(self._cache) > 1:
                self._cached -= _size(self._cache.popitem(last=False)[1])
            return parts

    def _table(self, step: Step) -> PanelTable:
        return PanelTable(step, panels_of(self.file, step, self._statistics), self.file)


def stored_range(file: File, step: Step, role: str, start: int, stop: int) -> Iterator[bytes | memoryview]:
    """Bytes `start` to `stop` of a copied or widened part, at most 4 MiB or 2^20 numbers at a time."""
    array, target = file.array(step.origin.parts[role]), step.spec.encodings[0].parts[role]
    if (array.part.dtype, array.part.byteorder) == (target.dtype, target.byteorder):
        for low in range(start, stop, 4 << 20):
            yield array.bytes(low, min(4 << 20, stop - low))
        return
    stored, wide = dtypes.bits(array.part.dtype) // 8, dtypes.bits(target.dtype) // 8
    for low in range(start // wide, -(-stop // wide), 1 << 20):
        count = min(1 << 20, -(-stop // wide) - low)
        numbers = widened(array.bytes(low * stored, count * stored), array.part, role, target.dtype)
        yield numbers[max(start - low * wide, 0) : stop - low * wide]


def panels_of(file: File, step: Step, statistics: ActivationStatistics | None, *, memory: int = 0) -> Panels:
    """Return the panels of a tensor that is encoded or repacked; `memory`: bytes of its parts to keep in memory."""
    if step.action == "repack":
        return RepackedPanels(file, step, memory=memory)
    magnitudes = statistics.of(step.spec) if statistics and uses_activations(step, file.registry) else None
    return EncodedPanels(file, step, magnitudes, memory=memory)


class PanelTable:
    """Offsets of the panels of a tensor in its parts."""

    def __init__(self, step: Step, panels: Panels, file: File) -> None:
        self.panels, self.regions = panels, tuple(panels.regions())
        codec, spec = file.registry.codec(step.codec), step.spec
        encoding = spec.encodings[0]

        def lengths(region: Region) -> dict[str, int]:
            declared = codec.parts(evolve(spec, shape=sizes(region)))
            return {role: dtypes.nbytes(*declaration) for role, declaration in declared.items()}

        by_panel = [lengths(region) for region in self.regions]
        self.starts = {
            role: tuple(accumulate((panel.get(role, 0) for panel in by_panel), initial=0)) for role in encoding.parts
        }
        for role, part in encoding.parts.items():
            if self.starts[role][-1] != part.nbytes:
                raise UsageError(
                    "has parts whose ranges depend on the data",
                    file=file.name,
                    tensor=step.name,
                    code=ErrorCode.IMAGE,
                    found=str(step.codec),
                    hint="Write this target with `squish convert`, or choose another encoding.",
                )

    def check(self, number: int, parts: dict[str, bytes]) -> None:
        """Raise CodecError if a panel has another size than planned."""
        for role, starts in self.starts.items():
            if len(parts[role]) != starts[number + 1] - starts[number]:
                raise CodecError(
                    "a panel has another size than planned",
                    part=role,
                    expected=starts[number + 1] - starts[number],
                    found=len(parts[role]),
                    code="size",
                )


def _size(parts: dict[str, bytes]) -> int:
    return sum(map(len, parts.values()))


class VirtualSource(Source):
    """One file of an output image, or the folder with all of them.

    `plan` is the conversion; `reader` has its image, and reads any range of it.
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
        """The original file."""
        return self.reader.file

    def copied_part(self, offset: int, length: int) -> Part | None:
        """Return the part of `origin` with these bytes; None if they are computed.

        Parameters
        ----------
        offset, length
            The byte range of a part in this file.

        Returns
        -------
        Part or None
            Has the same bytes, before filters.
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
        Can be passed to `open` and `convert`. Has the bytes that `convert` would write, computed when they are read.

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
    """Return the source's name under the suffix of the format."""
    name, formats = Path(file.name).name, file.registry.containers
    file.registry.container(format_id)  # refused if it is not installed
    suffixes = [suffix for entry in formats.values() for suffix in entry.info.suffixes]
    stem = next((name[: -len(suffix)] for suffix in suffixes if name.lower().endswith(suffix)), "") or name
    return stem + next(iter(formats[format_id].info.suffixes), "")
