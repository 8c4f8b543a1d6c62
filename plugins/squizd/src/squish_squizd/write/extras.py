"""What a SQUIZD file carries beside the model: a draft head from another file, a CoreML package."""

from __future__ import annotations

import struct
import tempfile
import zipfile
from pathlib import Path
from typing import IO, Any, Self

from squish_core import api
from squish_core.api import FormatError, OutgoingTensor, Refusal, Sink, SquishError, Stream, kind_of

from ..read.blocks import ALIGNMENT
from ..read.header import DRAFT_KEY
from . import place
from .accept import accepts
from .place import Placed, Wanted


class Draft:
    """The draft head: tensors of another file, as INT4 and NPCL blocks."""

    def __init__(self, path: str | None) -> None:
        self._file = api.open(path) if path else None
        self._tensors: dict[int, list[OutgoingTensor]] = {}
        self._streams: dict[str, Any] = {}
        if self._file is not None:
            self._gather(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._file is not None:
            self._file.close()

    def names(self) -> dict[int, list[str]]:
        """Names by draft layer."""
        return {layer: [outgoing.spec.name for outgoing in tensors] for layer, tensors in self._tensors.items()}

    def place(self) -> list[Placed]:
        """Blocks as if the section began at 0, for their ids."""
        return [
            block
            for layer, tensors in self._tensors.items()
            for block in place.place_blocks([outgoing.spec for outgoing in tensors], DRAFT_KEY + layer, 0)[0]
        ]

    def collect(self, block: Placed, entries: Any) -> None:
        """The table of a block, ahead of the block itself: tables come before the draft head."""
        entries.add(block, self._streams[block.spec.name])

    def write_to(self, sink: Sink) -> bytes:
        """The section; returns the header's metadata (empty without a draft head)."""
        if self._file is None:
            return b""
        sink.pad(ALIGNMENT)
        start = sink.tell()
        sink.write(struct.pack("<4sI", b"EGDH", len(self._tensors)))
        for tensors in self._tensors.values():
            for block, outgoing in zip(
                place.place_blocks([outgoing.spec for outgoing in tensors], 0, sink.tell())[0], tensors
            ):
                sink.pad(ALIGNMENT)
                sink.write(block.header)
                for role, stream in outgoing.parts.items():
                    if role != "table":
                        stream.write_to(sink)
        return struct.pack("<QQII8x", start, sink.tell() - start, len(self._tensors), self._vocabulary())

    def _gather(self, file: Any) -> None:
        layers: dict[int, list[OutgoingTensor]] = {}
        for name, spec in file.index.tensors.items():
            made: Any = Refusal(why=spec.problem or "it has no encoding")
            if spec.encodings:
                made = accepts(spec, spec.encodings[0], Wanted())
            if not isinstance(made, Refusal) and spec.encodings[0].codec.id not in ("dense", "squizd.int4"):
                made = Refusal(
                    why=f"it holds dense and INT4 tensors as SQUIZD has them, not {spec.encodings[0].codec.id}"
                )
            if isinstance(made, Refusal):
                raise FormatError(
                    f"cannot be a draft head: {made.why}", file=file.name, tensor=name, code="draft",
                    hint="Convert it to SQUIZD with --encode int4 first.",
                )  # fmt: skip
            held = api.TensorSpec(name=name, shape=spec.shape, dtype=spec.dtype, encodings=(made,))
            arrays = {role: file.array(part) for role, part in spec.encodings[0].parts.items()}
            self._streams[name] = {
                role: Stream(made.parts[role], arrays[role].chunks, arrays[role]) for role in made.parts
            }
            layers.setdefault(place.layer_of(name) or 0, []).append(OutgoingTensor(held, self._streams[name]))
        if not layers:
            raise FormatError("has no tensors to make a draft head of", file=file.name, code="draft")
        # Blocks must divide evenly over the layers (P7); where they do not, they count as one layer.
        even = len({len(tensors) for tensors in layers.values()}) == 1
        every = [outgoing for layer in sorted(layers) for outgoing in layers[layer]]
        self._tensors = dict(enumerate(layers[layer] for layer in sorted(layers))) if even else {0: every}

    def _vocabulary(self) -> int:
        shapes = {outgoing.spec.name: outgoing.spec.shape for tensors in self._tensors.values() for outgoing in tensors}
        heads = [
            shape[0] for name, shape in shapes.items() if len(shape) == 2 and kind_of(name) in ("head", "embedding")
        ]
        return max([1, *(heads or (shape[0] for shape in shapes.values() if shape))])


def write_coreml(sink: Sink, path: str | None) -> bool:
    """An .mlpackage folder as a zip, entries sorted and undated: the same input gives the same bytes."""
    if not path:
        return False
    root = Path(path)
    files = sorted(item for item in root.rglob("*") if item.is_file() and not item.is_symlink())
    if not files:
        raise SquishError("is not a folder with a CoreML package", file=path, code="coreml")
    with tempfile.TemporaryFile() as spool:
        with zipfile.ZipFile(spool, "w", zipfile.ZIP_STORED) as archive:
            for item in files:
                entry = zipfile.ZipInfo(item.relative_to(root).as_posix(), (1980, 1, 1, 0, 0, 0))
                entry.external_attr = 0o100644 << 16
                with (
                    item.open("rb") as source,
                    archive.open(entry, "w", force_zip64=item.stat().st_size >= 1 << 31) as out,
                ):
                    while chunk := source.read(1 << 20):
                        out.write(chunk)
        length = spool.tell()
        sink.pad(ALIGNMENT)
        sink.write(struct.pack("<4sQ", b"ANLX", length))
        _copy(spool, sink)
    return True


def _copy(spool: IO[bytes], sink: Sink) -> None:
    spool.seek(0)
    while chunk := spool.read(1 << 20):
        sink.write(chunk)
