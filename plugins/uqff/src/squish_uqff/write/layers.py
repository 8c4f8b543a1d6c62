"""Outgoing layers: the tensors of UQFF 1.2, or one blob of 0.x."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from attrs import evolve, frozen

from squish_core.api import Part, TensorSpec, dtypes

from .. import tables
from ..read.names import EXPERT
from .accept import GGML_CODES, Version, isq_of, key_of

Streams = Mapping[str, Any]
STACKED = (tables.GGUF, tables.UNQUANT, tables.AFQ, tables.MXFP4)
CODE_OF = {dtype: code for code, dtype in tables.DTYPES.items()}


class Piece(NamedTuple):
    """A run of bytes: literal bytes, a part of the owner by role, or the result of a function of its parts."""

    nbytes: int
    data: bytes | str | Callable[[Streams], bytes]
    owner: str = ""


class Entry(NamedTuple):
    """A tensor of a file and the pieces of its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor in bytes."""
        return dtypes.nbytes(self.dtype, self.shape)


@frozen
class Layer:
    """A layer: its weight, the source tensors (several if experts are stacked), and its bias."""

    key: str
    isq: int
    spec: TensorSpec
    owners: tuple[str, ...]
    bias: TensorSpec | None = None

    @property
    def parts(self) -> Mapping[str, Part]:
        """The parts of the weight."""
        return self.spec.encodings[0].parts

    def number(self, name: str) -> int:
        """Return a numeric field: from the codec, the source, or mistral.rs's default."""
        codec = self.spec.encodings[0].codec
        if name == "dtype":
            stored = self.spec.attrs.get("uqff.dtype") if self.spec.attrs.get("uqff.type") == "fp8" else None
            return GGML_CODES.get(codec.id, tables.E4M3 if stored is None else stored)
        if name in codec.params:
            return int(codec.params[name])
        return int(self.spec.attrs.get(f"uqff.{name}", _DEFAULTS[name]))


_DEFAULTS = {"axis": 0, "optimization_steps": 0, "round_zeros": 0, "channel_wise": 1}


def layers_of(specs: Sequence[TensorSpec], stack: bool) -> tuple[list[Layer], list[TensorSpec]]:
    """Split tensors into layers, in weight order, and the rest; `stack` merges the experts of an MLP."""
    biases = {spec.name: spec for spec in specs if spec.name.endswith(".bias")}
    layers: list[Layer] = []
    for spec in specs:
        isq, key = isq_of(spec), key_of(spec.name)
        if isq is not None and key is not None:
            layers.append(Layer(key, isq, spec, (spec.name,), biases.get(f"{key}.bias")))
    names = {name for layer in layers for name in (*layer.owners, layer.bias.name if layer.bias else "")}
    return _stack_experts(layers) if stack else layers, [spec for spec in specs if spec.name not in names]


def _stack_experts(layers: Iterable[Layer]) -> list[Layer]:
    """Merge experts 0, 1, 2, ... of equal type and shape into one layer, at the position of the first."""
    groups: dict[str, list[Layer]] = {}
    for layer in layers:
        expert = EXPERT.fullmatch(layer.key)
        groups.setdefault(f"{expert[1]}.{expert[3]}" if expert else layer.key, []).append(layer)
    stacks = []
    for key, group in groups.items():
        stacks += [_stack(key, group)] if group[0].key != key and _alike(group) else group
    return stacks


def _alike(group: Sequence[Layer]) -> bool:
    first = group[0]
    numbers = [int(expert[2]) for layer in group if (expert := EXPERT.fullmatch(layer.key))]
    return (
        numbers == list(range(len(group)))
        and first.isq in STACKED
        and all(
            (layer.isq, layer.bias, layer.spec.shape) == (first.isq, None, first.spec.shape)
            and layer.spec.encodings[0].codec == first.spec.encodings[0].codec
            and {role: (part.dtype, part.shape) for role, part in layer.parts.items()}
            == {role: (part.dtype, part.shape) for role, part in first.parts.items()}
            for layer in group
        )
    )


def _stack(key: str, group: Sequence[Layer]) -> Layer:
    first, count = group[0], len(group)
    parts = {role: Part(dtype=part.dtype, shape=(count, *part.shape)) for role, part in first.parts.items()}
    spec = evolve(
        first.spec,
        name=f"{key}.weight",
        shape=(count, *first.spec.shape),
        encodings=(evolve(first.spec.encodings[0], parts=parts),),
    )
    return Layer(key, first.isq, spec, tuple(layer.spec.name for layer in group))


def dense_entry(spec: TensorSpec) -> Entry:
    """Return the entry of a dense tensor."""
    return Entry(spec.name, spec.dtype, spec.shape, (Piece(dtypes.nbytes(spec.dtype, spec.shape), "data", spec.name),))


def tensors_of(layer: Layer) -> list[Entry]:
    """Return the tensors of a 1.2 layer, in sharding order."""
    name, parts = f"{layer.key}.weight", layer.parts
    flat = ("u8", (parts["data"].nbytes,), _from(layer, "data"))

    def part(role: str) -> tuple[str, tuple[int, ...], tuple[Piece, ...]]:
        return parts[role].dtype, parts[role].shape, _from(layer, role)

    def number(suffix: str, dtype: str = "u8", value: int | None = None) -> Entry:
        content = layer.number(suffix) if value is None else value
        return Entry(f"{name}.{suffix}", dtype, (), (raw(content.to_bytes(dtypes.bits(dtype) // 8, "little")),))

    shape = Entry(f"{name}.shape", "u32", (len(layer.spec.shape),), (raw(_u32(*layer.spec.shape)),))
    makers: dict[int, Callable[[], list[Entry]]] = {
        tables.GGUF: lambda: [Entry(name, *flat), number("dtype", "u32"), shape],
        tables.UNQUANT: lambda: [Entry(name, *part("data"))],
        tables.HQQ: lambda: [
            Entry(name, *part("data")), Entry(f"{name}.scales", *part("scale")), Entry(f"{name}.zeros", *part("zero")),
            shape, number("bits"), number("group_size", "u32"), number("axis"), number("optimization_steps", "u32"),
            number("round_zeros"), number("channel_wise"),
        ],
        tables.FP8: lambda: [
            Entry(name, *part("data")),
            *(
                Entry(f"{name}.{field}", "f32", (), (piece,))
                for field, piece in zip(tables.SUFFIXES[tables.FP8], Scale(layer).pieces)
            ),
            number("dtype", "u32"),
        ],
        tables.AFQ: lambda: [
            Entry(name, *part("data")), Entry(f"{name}.scales", *part("scale")),
            Entry(f"{name}.biases", *part("offset")), number("bits"), number("group_size"),
        ],
        tables.F8Q8: lambda: [Entry(name, *flat), number("num_blocks", "u32", flat[1][0] // 33), shape],
        tables.MXFP4: lambda: [
            Entry(name, *part("data")), Entry(f"{name}.scales", "u8", parts["scale"].shape, _from(layer, "scale")),
        ],
    }  # fmt: skip
    entries = [*makers[layer.isq](), number("format", value=layer.isq)]
    return [*entries, dense_entry(layer.bias)] if layer.bias else entries


def blob_of(layer: Layer, number: int, version: Version) -> Entry:
    """Return the 0.x blob of a layer, named by its number."""
    parts, bias = layer.parts, layer.bias
    dims = _u32(len(layer.spec.shape), *layer.spec.shape)
    has_bias = bytes([bias is not None])

    def tensor(role: str) -> tuple[Piece, ...]:
        return (raw(_tensor_head(parts[role])), *_from(layer, role))

    makers: dict[int, Callable[[], tuple[Piece, ...]]] = {
        tables.GGUF: lambda: (
            raw(_u32(parts["data"].nbytes) + has_bias + _u32(layer.number("dtype")) + dims), *_from(layer, "data"),
        ),
        tables.UNQUANT: lambda: (raw(has_bias), *tensor("data")),
        tables.HQQ: lambda: (
            raw(has_bias), *tensor("data"), *tensor("scale"), *tensor("zero"), raw(dims),
            raw(struct.pack("<BIBIBB", *(layer.number(name) for name in tables.SUFFIXES[tables.HQQ][3:]))),
        ),
        tables.FP8: lambda: (
            raw(has_bias), *tensor("data"), *Scale(layer).pieces, raw(_u32(layer.number("dtype"))),
        ),
        tables.AFQ: lambda: (
            raw(has_bias), *tensor("data"), *tensor("scale"), *tensor("offset"),
            raw(bytes([layer.number("bits"), layer.number("group_size")])),
        ),
    }  # fmt: skip
    major, minor, patch = version
    pieces = (raw(bytes([patch, minor, major, 0, layer.isq])), *makers[layer.isq]())
    if bias:
        pieces += (raw(_tensor_head(bias.encodings[0].parts["data"])), *dense_entry(bias).pieces)
    return Entry(str(number), "u8", (sum(piece.nbytes for piece in pieces),), pieces)


def raw(data: bytes) -> Piece:
    """Return a piece of literal bytes."""
    return Piece(len(data), data)


def _from(layer: Layer, role: str) -> tuple[Piece, ...]:
    return tuple(Piece(layer.parts[role].nbytes // len(layer.owners), role, owner) for owner in layer.owners)


def _tensor_head(part: Part) -> bytes:
    return _u32(part.nbytes, CODE_OF[part.dtype], len(part.shape), *part.shape)


def _u32(*numbers: int) -> bytes:
    return struct.pack(f"<{len(numbers)}I", *numbers)


class Scale:
    """The scale of a float8 layer, read once from the encoder: it is stored twice, and inverted."""

    def __init__(self, layer: Layer) -> None:
        self.owner, self._bytes = layer.owners[0], b""

    def raw(self, streams: Streams) -> bytes:
        """Return the bytes of the scale."""
        self._bytes = self._bytes or streams["scale"].read()
        return self._bytes

    def inverse(self, streams: Streams) -> bytes:
        """Return 1 / scale in float32; exactly 416 for the scale mistral.rs stores for weights below 1."""
        scale, most = np.frombuffer(self.raw(streams), "<f4"), np.float32(416)
        with np.errstate(divide="ignore"):
            return np.where(scale == 1 / most, most, np.float32(1) / scale).tobytes()

    @property
    def pieces(self) -> tuple[Piece, Piece, Piece]:
        """`dequant_w_scale`, `dequant_x_scale` (a copy in real files), `quant_scale`."""
        return Piece(4, self.raw, self.owner), Piece(4, self.raw, self.owner), Piece(4, self.inverse, self.owner)
