"""Writing UQFF 1.2: numbered shards of layers, `residual.safetensors`, the model's other files and a report."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from attrs import frozen
from squish_codecs.affine import Affine
from squish_safetensors.header import ORDER, TAG_OF, dump_header
from squish_safetensors.writer import parse_size

from squish_core.api import (
    CodecSpec,
    Encoding,
    Layout,
    Outgoing,
    Part,
    Refusal,
    Sink,
    SquishError,
    TensorSpec,
    Typed,
    dtypes,
)
from squish_uqff import tables
from squish_uqff.shards import ASSETS, REPORT, RESIDUAL

NAME, MAX_SHARD_SIZE = "name", "max_shard_size"
VERSION = (*tables.NEWEST, 0)
GGML_CODES = {f"ggml.{name}": code for code, name in tables.GGML_BLOCKS.items()}
CODECS = {"hqq": tables.HQQ, "float8": tables.FP8, "affine": tables.AFQ, "uqff.f8q8": tables.F8Q8, "mx": tables.MXFP4}
Streams = Mapping[str, Any]


class Field(NamedTuple):
    """A tensor of a file; `data` is its bytes, the role of a part, or what makes bytes of all parts."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes | str | Callable[[Streams], bytes]
    owner: str = ""

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor."""
        return dtypes.nbytes(self.dtype, self.shape)


@frozen
class Planned:
    """A file to write: its name, its tensors in the order of their data, its header."""

    name: str
    fields: tuple[Field, ...]
    header: bytes

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return len(self.header) + sum(field.nbytes for field in self.fields)


def accepts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Layers under the codecs of UQFF, all else dense; AFQ as the form of `affine` that has the same codes."""
    codec = encoding.codec
    parts = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
    if codec.id == "dense":
        if spec.dtype not in TAG_OF or dtypes.bits(spec.dtype) < 8:
            return Refusal(why=f"UQFF has no dtype {spec.dtype}", code="dtype")
        return Encoding(codec=codec, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})
    if codec.id not in GGML_CODES and codec.id not in CODECS:
        return Refusal(why=f"UQFF has no layout for {codec.id}; ask for one with --encode", code="codec")
    if not spec.name.endswith(".weight"):
        return Refusal(why="UQFF quantises tensors called <layer>.weight only", code="name")
    if codec.id in ("float8", "mx") and codec.params:
        return Refusal(why=f"UQFF has float8 with one scale and MXFP4 only, not {codec}", code="codec")
    if codec.id != "affine":
        return Encoding(codec=codec, parts=parts)
    bits, group = codec.params.get("bits"), codec.params.get("group_size")
    if bits not in tables.AFQ_BITS or group not in tables.AFQ_GROUPS:
        legal = f"{tables.AFQ_BITS} bits in groups of {tables.AFQ_GROUPS}"
        return Refusal(why=f"AFQ has {legal}, not {bits} in {group}", code="affine")
    params = {"bits": bits, "group_size": group, "word": "u32", "offset": "bias"}
    params |= {name: codec.params[name] for name in ("scale_dtype", "search") if name in codec.params}
    try:
        made = Affine().parts(spec, params)
    except SquishError as error:
        return Refusal(why=error.message, code="affine")
    return Encoding(
        codec=CodecSpec("affine", params),
        parts={role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in made.items()},
    )  # fmt: skip


def layout(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, int], options: Mapping[str, str]
) -> Layout:
    """Exact bytes of all files, and the metadata and assets that would be left behind."""
    files = plan(specs, meta, options)
    kept = [name for name in assets if name in ASSETS and name != REPORT]
    size = sum(file.size for file in files) + len(_report(specs, files)) + sum(assets[name] for name in kept)
    dropped = [f"metadata {key} (not text)" for key in meta if key not in _texts(meta)]
    return Layout(size=size, dropped=(*dropped, *(f"asset {name}" for name in assets if name not in ASSETS)))


def write(
    sink: Sink, tensors: Sequence[Outgoing], meta: Mapping[str, Any], assets: Mapping[str, bytes],
    options: Mapping[str, str],
) -> None:  # fmt: skip
    """Write all files of the folder, the report last."""
    specs = [tensor.spec for tensor in tensors]
    streams = {tensor.spec.name: tensor.parts for tensor in tensors}
    files = plan(specs, meta, options)
    for file in files:
        with sink.member(file.name) as member:
            member.write(file.header)
            for field in file.fields:
                _write_field(member, field, streams)
    for name in assets:
        if name in ASSETS and name != REPORT:
            with sink.member(name) as member:
                member.write(assets[name])
    with sink.member(REPORT) as member:
        member.write(_report(specs, files))


def plan(specs: Sequence[TensorSpec], meta: Mapping[str, Any], options: Mapping[str, str]) -> list[Planned]:
    """The files: shards of at most `max_shard_size` bytes of tensors, then what is no layer."""
    limit = parse_size(options.get(MAX_SHARD_SIZE, "10GiB"))
    layers = {spec.name.removesuffix(".weight") for spec in specs if _isq(spec) is not None}
    version = [
        Field(f"uqff.version.{level}", "u32", (), struct.pack("<I", number))
        for level, number in zip(("major", "minor", "patch"), VERSION)
    ]
    groups, held, rest = [version], 0, []
    for spec in specs:
        isq = _isq(spec)
        if isq is None and spec.name.removesuffix(".bias") not in layers:
            rest.append(Field(spec.name, spec.dtype, spec.shape, "data", spec.name))
            continue
        for field in (
            [Field(spec.name, spec.dtype, spec.shape, "data", spec.name)] if isq is None else _fields(spec, isq)
        ):
            if held and held + field.nbytes > limit:
                groups.append([])
                held = 0
            groups[-1].append(field)
            held += field.nbytes
    stem, texts = options.get(NAME, "model"), _texts(meta)
    named = [(f"{stem}-{number}.uqff", group, texts if not number else {}) for number, group in enumerate(groups)]
    return [_planned(*each) for each in [*named, *([(RESIDUAL, rest, {})] if rest else [])]]


def _planned(name: str, fields: list[Field], texts: Mapping[str, str]) -> Planned:
    ordered = tuple(sorted(fields, key=lambda field: (-ORDER[field.dtype], field.name)))
    return Planned(name, ordered, dump_header([field[:3] for field in ordered], texts))


def _isq(spec: TensorSpec) -> int | None:
    """The type under which a tensor is a layer; None for what goes into the residual, or is a bias."""
    codec = spec.encodings[0].codec.id
    if codec != "dense":
        return tables.GGUF if codec in GGML_CODES else CODECS[codec]
    key = spec.name.removesuffix(".weight")
    linear = key != spec.name and len(spec.shape) > 1 and (key.endswith("_proj") or key == "lm_head")
    return tables.UNQUANT if linear or spec.attrs.get("uqff.type") in ("unquant", "gguf") else None


def _fields(spec: TensorSpec, isq: int) -> list[Field]:
    """What is stored of a layer, in the order in which it may be divided over shards."""
    (encoding,), params = spec.encodings, spec.encodings[0].codec.params
    part = {role: (part.dtype, part.shape) for role, part in encoding.parts.items()}
    shape = ("shape", "u32", (len(spec.shape),), struct.pack(f"<{len(spec.shape)}I", *spec.shape))

    def number(name: str, dtype: str, value: int) -> tuple[str, str, tuple[int, ...], bytes]:
        return name, dtype, (), value.to_bytes(dtypes.bits(dtype) // 8, "little")

    def kept(name: str, dtype: str) -> tuple[str, str, tuple[int, ...], bytes]:
        return number(name, dtype, int(spec.attrs.get(f"uqff.{name}", 0)))

    whole = ("u8", (encoding.parts["data"].nbytes,), "data")
    makers: dict[int, Callable[[], list[Any]]] = {
        tables.GGUF: lambda: [("", *whole), number("dtype", "u32", GGML_CODES[encoding.codec.id]), shape],
        tables.UNQUANT: lambda: [("", *part["data"], "data")],
        tables.HQQ: lambda: [
            ("", *part["data"], "data"), ("scales", *part["scale"], "scale"), ("zeros", *part["zero"], "zero"), shape,
            number("bits", "u8", params["bits"]), number("group_size", "u32", params["group_size"]),
            number("axis", "u8", params["axis"]), kept("optimization_steps", "u32"), kept("round_zeros", "u8"),
            kept("channel_wise", "u8"),
        ],
        tables.FP8: lambda: [
            ("", *part["data"], "data"), ("dequant_w_scale", "f32", (), "scale"),
            ("dequant_x_scale", "f32", (), "scale"), ("quant_scale", "f32", (), _inverse),
            number("dtype", "u32", tables.E4M3),
        ],
        tables.AFQ: lambda: [
            ("", *part["data"], "data"), ("scales", *part["scale"], "scale"), ("biases", *part["offset"], "offset"),
            number("bits", "u8", params["bits"]), number("group_size", "u8", params["group_size"]),
        ],
        tables.F8Q8: lambda: [("", *whole), number("num_blocks", "u32", whole[1][0] // 33), shape],
        tables.MXFP4: lambda: [("", *part["data"], "data"), ("scales", "u8", part["scale"][1], "scale")],
    }  # fmt: skip
    return [
        Field(f"{spec.name}.{name}".removesuffix("."), dtype, dims, data, spec.name)
        for name, dtype, dims, data in (*makers[isq](), number("format", "u8", isq))
    ]


def _inverse(streams: Streams) -> bytes:
    """1 / scale of a float8 layer, in float32; exactly 416 for the scale of weights below 1."""
    import numpy as np

    scale = np.frombuffer(b"".join(bytes(chunk) for chunk in streams["scale"].chunks()), "<f4")
    most = np.float32(416)
    with np.errstate(divide="ignore"):
        return np.where(scale == 1 / most, most, np.float32(1) / scale).tobytes()


def _write_field(sink: Sink, field: Field, streams: Mapping[str, Streams]) -> None:
    if isinstance(field.data, str):
        streams[field.owner][field.data].write_to(sink)
    else:
        sink.write(field.data if isinstance(field.data, bytes) else field.data(streams[field.owner]))


def _report(specs: Sequence[TensorSpec], files: Sequence[Planned]) -> bytes:
    """The report as mistral.rs writes it, by Squish."""
    stored = {spec.name: _stored_name(spec) for spec in specs if _isq(spec) is not None}
    counts = Counter(stored.values())
    details = [
        {
            "module": spec.name.removesuffix(".weight"), "default_target": stored[spec.name],
            "resolved_target": stored[spec.name], "stored": stored[spec.name], "shape": list(spec.shape),
        }
        for spec in specs if spec.name in stored
    ]  # fmt: skip
    output = {
        "quant": counts.most_common(1)[0][0] if counts else "unquant",
        "shards": [file.name for file in files if file.name != RESIDUAL], "layers": len(stored),
        "actual_counts": dict(sorted(counts.items())), "fallback_count": 0, "fallbacks": [], "layer_details": details,
    }  # fmt: skip
    version = ".".join(map(str, VERSION))
    report = {"schema": 1, "generated_by": {"tool": "squish"}, "uqff_version": version, "outputs": [output]}
    return (json.dumps(report, indent=2) + "\n").encode()


def _stored_name(spec: TensorSpec) -> str:
    codec = spec.encodings[0].codec
    if codec.id == "affine":
        return f"afq{codec.params['bits']}"
    if codec.id == "hqq":
        return f"hqq{codec.params['bits']}"
    short = {"dense": "unquant", "float8": "fp8", "uqff.f8q8": "f8q8", "mx": "mxfp4"}
    return short.get(codec.id, codec.id.removeprefix("ggml.").replace("_k", "k"))


def _texts(meta: Mapping[str, Any]) -> dict[str, str]:
    plain = {key: value.value if isinstance(value, Typed) else value for key, value in meta.items()}
    version = {"uqff.version": ".".join(map(str, VERSION))} if "uqff.version" in plain else {}
    return {key: value for key, value in {**plain, **version}.items() if isinstance(value, str)}
