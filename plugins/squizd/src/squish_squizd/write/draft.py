"""The draft head of a new file, from the source or from another model: INT4 and NPCL blocks."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from attrs import evolve, frozen

from squish_core import api
from squish_core.api import (
    DENSE,
    Encoding,
    File,
    FormatError,
    OutgoingChild,
    OutgoingTensor,
    Part,
    Refusal,
    Sink,
    Stream,
    TensorSpec,
    counted,
    kind_of,
)

from ..read.blocks import ALIGNMENT
from ..read.header import DRAFT_KEY
from . import place
from .accept import accepts
from .entries import Entries
from .place import PlacedBlock, WriteOptions

CHILD, CONFIG = "eagle", "config.json"
LAYERS, VOCABULARY = "squizd.draft_layers", "squizd.draft_vocab"
"""Keys of the child's metadata."""
_CODECS = ("dense", "squizd.int4")
MAX_CONFIG = 1 << 20
EXACT = 1 << 24
"""Integers up to here are exact in float32."""


@frozen(kw_only=True)
class Draft:
    """A draft head: its tensors by layer, the size of its vocabulary, and its config.json."""

    layers: Mapping[int, Sequence[OutgoingTensor]]
    vocabulary: int
    config: bytes = b""

    @property
    def names(self) -> dict[int, list[str]]:
        """Tensor names by layer key."""
        return {
            DRAFT_KEY + layer: [each.spec.name for each in tensors] for layer, tensors in self.layers.items() if tensors
        }

    def blocks(self, position: int) -> list[tuple[PlacedBlock, OutgoingTensor]]:
        """Place the blocks; the first starts at the next multiple of 64 from `position`."""
        pairs: list[tuple[PlacedBlock, OutgoingTensor]] = []
        for layer, tensors in self.layers.items():
            blocks, position = place.place_blocks([each.spec for each in tensors], DRAFT_KEY + layer, position)
            pairs += zip(blocks, tensors)
        return pairs

    def collect(self, entries: Entries) -> None:
        """Collect the tables of all blocks, which are written before the draft head."""
        for block, outgoing in self.blocks(0):
            entries.add(block, outgoing.parts)

    def write_to(self, sink: Sink) -> bytes:
        """Write the section; returns its metadata for the header."""
        sink.pad(ALIGNMENT)
        start = sink.tell()
        sink.write(struct.pack("<4sI", b"EGDH", len(self.layers)))
        for block, outgoing in self.blocks(sink.tell()):
            sink.pad(ALIGNMENT)
            sink.write(block.header)
            for role, stream in outgoing.parts.items():
                if role != "table":
                    stream.write_to(sink)
        return struct.pack("<QQII8x", start, sink.tell() - start, len(self.layers), self.vocabulary)


def draft_of_child(child: OutgoingChild) -> Draft | Refusal:
    """Convert a child of the source to a draft head, or refuse if SQUIZD cannot store it."""
    layers, vocabulary = child.meta.get(LAYERS), child.meta.get(VOCABULARY)
    config = child.assets.get(CONFIG, b"")
    tensors = []
    for outgoing in child.tensors:
        spec = _as_block(outgoing.spec)
        if isinstance(spec, Refusal):
            return evolve(spec, why=f"{outgoing.spec.name}: {spec.why}")
        tensors.append(OutgoingTensor(spec, outgoing.parts))
    if type(layers) is not int or type(vocabulary) is not int:
        return _draft(tensors, config) if tensors else Refusal(why="it has no tensors")
    if layers < 0 or not 0 < vocabulary < 1 << 32 or (len(tensors) % layers if layers else tensors):
        count = counted(len(tensors), "tensor")
        return Refusal(why=f"its {count} cannot be divided evenly among {counted(layers, 'layer')}")
    per_layer = len(tensors) // layers if layers else 0
    return Draft(
        layers={layer: tensors[layer * per_layer : (layer + 1) * per_layer] for layer in range(layers)},
        vocabulary=vocabulary,
        config=config,
    )


def draft_of_file(path: str, stack: ExitStack) -> Draft:
    """Make a draft head from another file's tensors; the file is closed with `stack`."""
    file = stack.enter_context(api.open(path))
    tensors = []
    for name, stored in file.index.tensors.items():
        if _is_integers(stored):
            tensors.append(_as_floats(file, stored))
            continue
        spec = _as_block(stored)
        if isinstance(spec, Refusal):
            raise FormatError(
                f"not usable as a draft head: {spec.why}",
                file=file.name,
                tensor=name,
                code="draft",
                hint="Convert it to SQUIZD with --encode int4 first.",
            )
        parts = spec.encodings[0].parts
        arrays = {role: file.array(part) for role, part in stored.encodings[0].parts.items()}
        streams = {role: Stream(parts[role], arrays[role].chunks, arrays[role]) for role in parts}
        tensors.append(OutgoingTensor(spec, streams))
    if not tensors:
        raise FormatError("not usable as a draft head: it has no tensors", file=file.name, code="draft")
    return _draft(tensors, _config_of(file))


def _config_of(file: File) -> bytes:
    """Return the config.json of a head; FormatError if it is larger than any config."""
    size = file.index.assets[CONFIG].nbytes if CONFIG in file.assets else 0
    if size > MAX_CONFIG:
        raise FormatError(
            "not usable as a draft head: its config is too large",
            file=file.name,
            part=CONFIG,
            code="draft",
            expected=f"at most {MAX_CONFIG:,} bytes",
            found=f"{size:,} bytes",
        )
    return bytes(file.assets[CONFIG].raw) if size else b""


def _is_integers(spec: TensorSpec) -> bool:
    """Return whether a tensor has dense integers or booleans, such as EAGLE-3's vocabulary maps (d2t, t2d)."""
    first = spec.encodings[0] if spec.encodings else None
    return first is not None and first.codec == DENSE and (spec.dtype == "bool" or spec.dtype[0] in "iu")


def _as_floats(file: File, spec: TensorSpec) -> OutgoingTensor:
    """Return integers as float32 for a NPCL block; FormatError if one is not exact."""
    values = file.array(spec.encodings[0].parts["data"])[...]
    largest = max(abs(int(values.max(initial=0))), abs(int(values.min(initial=0))))
    if largest > EXACT:
        raise FormatError(
            "not usable as a draft head: NPCL blocks store integers as float32",
            file=file.name,
            tensor=spec.name,
            expected=f"magnitudes up to {EXACT}",
            found=largest,
            code="draft",
            hint="Leave the tensor out.",
        )
    block = _as_block(
        evolve(
            spec, dtype="f32", encodings=(Encoding(codec=DENSE, parts={"data": Part(dtype="f32", shape=spec.shape)}),)
        )
    )
    if isinstance(block, Refusal):
        raise FormatError(f"not usable as a draft head: {block.why}", file=file.name, tensor=spec.name, code="draft")
    floats = values.astype("<f4").tobytes()
    return OutgoingTensor(block, {"data": Stream(block.encodings[0].parts["data"], partial(iter, (floats,)))})


def _as_block(spec: TensorSpec) -> TensorSpec | Refusal:
    """Return a tensor encoded as a block of the section, or why that is impossible."""
    if not spec.encodings:
        return Refusal(why=spec.problem or "it has no encoding")
    encoding = spec.encodings[0]
    block: Any = accepts(spec, encoding, WriteOptions())
    if isinstance(block, Refusal):
        return block
    codec = place.unwrapped(encoding.codec, "reshaped")
    if codec.id not in _CODECS:
        return Refusal(why=f"draft heads store dense and INT4 tensors, not {codec.id}")
    return TensorSpec(name=spec.name, shape=spec.shape, dtype=spec.dtype, encodings=(block,))


def _draft(tensors: Sequence[OutgoingTensor], config: bytes) -> Draft:
    """Group tensors by the layers in their names."""
    layers: dict[int, list[OutgoingTensor]] = {}
    for outgoing in tensors:
        layers.setdefault(place.layer_of(outgoing.spec.name) or 0, []).append(outgoing)
    # Layers must have equal numbers of blocks (P7); otherwise all blocks form one layer.
    even = len({len(group) for group in layers.values()}) == 1
    groups = [layers[layer] for layer in sorted(layers)]
    numbered = dict(enumerate(groups)) if even else {0: [outgoing for group in groups for outgoing in group]}
    return Draft(layers=numbered, vocabulary=_vocabulary([outgoing.spec for outgoing in tensors]), config=config)


def _vocabulary(specs: Sequence[TensorSpec]) -> int:
    heads = [spec.shape[0] for spec in specs if len(spec.shape) == 2 and kind_of(spec.name) in ("head", "embedding")]
    return max([1, *(heads or (spec.shape[0] for spec in specs if spec.shape))])
