"""Chooses the dialect for an encoding, or a refusal."""

from __future__ import annotations

from typing import Any

from attrs import evolve
from squish_codecs.api import Affine, Tables

from squish_core.api import DENSE, STORED_TABLE, CodecSpec, CodeLayout, Encoding, Part, Refusal, TensorSpec

from ..read.dialects import implementation
from ..read.npy import WRITABLE

_OWN_CODECS = {"npydir.int3": "int3", "npydir.sqint2": "sqint2"}
"""Codec that exists only in this format -> dialect."""


def accepts(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Return the encoding with its dialect as label, or a refusal."""
    codec = encoding.codec
    if codec.id == "dense":
        return _dense(spec, encoding)
    if codec.id in _OWN_CODECS:
        return Encoding(codec=codec, parts=_declared(spec, codec), label=_OWN_CODECS[codec.id])
    if codec.id == "lowrank" and codec.inner is not None and _is_milo(codec.inner) and set(codec.params) == {"rank"}:
        return Encoding(codec=codec, parts=_declared(spec, codec), label="int3 milo")
    if codec.id == "awq" and codec.inner is not None:
        return _awq(spec, codec.inner)
    if _is_milo(codec):
        return Encoding(codec=codec, parts=_declared(spec, codec), label="int3 milo")
    if codec.id == "palette":
        return Refusal(why="a npy directory stores only NF4 palettes with scales")
    return Refusal(why=f"a npy directory has no dialect for {codec}")


def accepts_codes(spec: TensorSpec, layout: CodeLayout, scale_dtype: str) -> Encoding | Refusal | None:
    """Return the dialect for integer codes with scales and biases of `scale_dtype`, or a refusal."""
    dialect = _affine(spec, layout) if layout.table is None else _palette(spec, layout)
    if dialect is None or isinstance(dialect, Refusal):
        return dialect
    label, codec = dialect
    if scale_dtype != "f32":
        codec = evolve(codec, params={**codec.params, "scale_dtype": scale_dtype})
    return Encoding(codec=codec, parts=_declared(spec, codec), label=label)


def _dense(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept dense arrays unchanged; bfloat16, missing in .npy, becomes float32."""
    dtype = encoding.codec.params.get("dtype", spec.dtype)
    wide = "f32" if dtype in ("bf16", "f8_e4m3", "f8_e5m2") else dtype
    if wide not in WRITABLE:
        return Refusal(why=f"a .npy file has no dtype {dtype}")
    codec = DENSE if wide == spec.dtype else CodecSpec("dense", {"dtype": wide})
    return Encoding(codec=codec, parts={"data": Part(dtype=wide, shape=spec.shape)}, label="passthrough")


def _declared(spec: TensorSpec, codec: CodecSpec) -> dict[str, Part]:
    declared = implementation(codec).parts(spec)
    return {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in declared.items()}


def _is_milo(codec: CodecSpec) -> bool:
    milo = {"bits": 3, "group_size": 64, "axis": "flat", "offset": "zero_point", "offset_dtype": "f32"}
    return codec.id == "affine" and codec.params == milo


def _affine(spec: TensorSpec, layout: CodeLayout) -> tuple[str, CodecSpec] | Refusal:
    """Choose the dialect by width and offset kind; the data decide whether the codes fit exactly."""
    group = _group(spec, layout)
    if isinstance(group, Refusal):
        return group
    symmetric = layout.offset_kind == "none"
    if layout.bits > 4 and symmetric:
        label, each, params = "int8", 1, {"bits": 8, "word": "i8"}
        group = 0 if group == _columns(spec) else group
    elif layout.bits > 4:
        return Refusal(why=f"a npy directory stores codes of {layout.bits} bits only without offsets")
    elif symmetric:
        label, each, params = "int4 symmetric", 2, {"bits": 4, "zero": 7}
    elif layout.bits <= 2:
        label, each, params = "int2", 4, {"bits": 2, "offset": "bias"}
    else:
        label, each, params = "int4", 2, {"bits": 4, "offset": "bias"}
    return _choice(spec, label, each, "affine", {**params, "group_size": group})


def _awq(spec: TensorSpec, inner: CodecSpec) -> Encoding | Refusal:
    """Accept AWQ column factors over 4-bit codes with offsets, the only dialect with factors."""
    layout = Affine.from_params(inner.params).code_layout(spec) if inner.id == "affine" else None
    dialect = _affine(spec, layout) if layout else Refusal(why=str(inner))
    if isinstance(dialect, Refusal) or dialect[0] != "int4" or not spec.shape:
        return Refusal(why=f"a npy directory stores awq only around int4, not around {inner}")
    codec = CodecSpec("awq", inner=dialect[1])
    return Encoding(codec=codec, parts=_declared(spec, codec), label="int4 awq")


def _palette(spec: TensorSpec, layout: CodeLayout) -> tuple[str, CodecSpec] | Refusal | None:
    """Accept NF4 with group scales; the data decide whether a stored table is NF4."""
    params = {"bits": 4, "table": "nf4", "scale_dtype": "f32"}
    nf4 = tuple(Tables.of(params).constant.tolist())
    if layout.bits != 4 or layout.offset_kind != "none" or layout.table not in (STORED_TABLE, nf4):
        return None
    group = _group(spec, layout)
    return group if isinstance(group, Refusal) else _choice(spec, "nf4", 2, "palette", {**params, "group_size": group})


def _choice(
    spec: TensorSpec, label: str, each: int, codec: str, params: dict[str, Any]
) -> tuple[str, CodecSpec] | Refusal:
    columns = _columns(spec)
    if columns % each:
        return Refusal(why=f"{label} requires a multiple of {each} columns, not {columns}")
    return label, CodecSpec(codec, params if spec.shape else {**params, "axis": "flat"})


def _columns(spec: TensorSpec) -> int:
    return spec.shape[-1] if spec.shape else 1


def _group(spec: TensorSpec, layout: CodeLayout) -> int | Refusal:
    """Return the columns per scale."""
    if layout.row_group is None:
        return Refusal(why="a npy directory stores groups along rows, not across them")
    return layout.row_group or _columns(spec)
