"""Checks and builds the weight of each ISQ type from its parts and numbers, for both generations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve, frozen
from squish_codecs.api import Hqq

from squish_core.api import (
    BLOCK_TYPES,
    DENSE,
    CodecSpec,
    Encoding,
    FormatError,
    Limits,
    Part,
    Problem,
    TensorSpec,
    check_shape,
    dtypes,
)

from . import tables

Numbers = Mapping[str, Any]
Parts = Mapping[str, Part]


@frozen
class Layer:
    """A layer: its weight, optional bias, and problems."""

    weight: TensorSpec
    bias: TensorSpec | None = None
    problems: tuple[Problem, ...] = ()

    @property
    def tensors(self) -> tuple[TensorSpec, ...]:
        """The tensors of the layer."""
        return (self.weight, self.bias) if self.bias else (self.weight,)


def make_weight(name: str, isq: int, parts: Parts, numbers: Numbers, limits: Limits) -> TensorSpec:
    """Build a weight from parts and numbers under their UQFF 1.x names; FormatError names the field."""
    spec = _MAKERS[isq](name, parts, numbers)
    check_shape(spec.shape, limits, tensor=name)
    attrs = {key: value for key, value in numbers.items() if key not in ("shape", "num_blocks")}
    return evolve(spec, attrs={"uqff.type": tables.ISQ_NAMES[isq], **{f"uqff.{key}": attrs[key] for key in attrs}})


def number_problems(name: str, isq: int, numbers: Numbers) -> list[Problem]:
    """Warn about numbers that no value depends on, but that mistral.rs does not know."""
    if isq != tables.FP8 or numbers["dtype"] in tables.DTYPES:
        return []
    legal = f"expected {min(tables.DTYPES)} to {max(tables.DTYPES)}"
    message = f"its layer dtype {numbers['dtype']} does not exist ({legal}); its values do not depend on it"
    return [Problem(code="dtype", severity="warning", where=name, message=message)]


def make_bias(name: str, part: Part) -> TensorSpec:
    """Build a bias: dense, of any dtype (float8 biases have no scale)."""
    return _spec(name, part.shape, DENSE, {"data": part}, dtype=part.dtype)


def make_broken(name: str, error: Exception, extras: Parts) -> Layer:
    """Build an unreadable layer; its bytes stay accessible as parts."""
    part = next(iter(extras.values()), None)
    spec = TensorSpec(
        name=name,
        shape=part.shape if part else (0,),
        dtype="unknown",
        extras=extras,
        problem=str(error).rstrip("."),
    )
    code = getattr(error, "code", None) or "layer"
    return Layer(spec, None, (Problem(code=code, severity="error", where=name, message=str(error)),))


def refuse(field: str, expected: Any, found: Any, code: str = "value", **more: Any) -> FormatError:
    """Return the error for an invalid field."""
    return FormatError("has an illegal value", part=field, expected=expected, found=found, code=code, **more)


def _gguf(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    code, shape, data = numbers["dtype"], numbers["shape"], parts["weight"]
    if code in tables.GGML_DENSE:
        dtype = tables.GGML_DENSE[code]
        _same_size(data, dtypes.nbytes(dtype, shape), f"{dtype} {list(shape)}")
        return _spec(name, shape, DENSE, {"data": evolve(data, dtype=dtype, shape=shape)}, dtype=dtype)
    if code not in tables.GGML_BLOCKS:
        legal = ", ".join(map(str, (*tables.GGML_DENSE, *tables.GGML_BLOCKS)))
        raise refuse("weight.dtype", f"a GGML type of {legal}", code, "ggml-type")
    block = BLOCK_TYPES[tables.GGML_BLOCKS[code]]
    if not shape or shape[-1] % block.elements:
        raise refuse("weight.shape", f"a last dimension divisible by {block.elements}", list(shape), "shape")
    row = shape[-1] // block.elements * block.nbytes
    _same_size(data, dtypes.count(shape[:-1]) * row, f"{block.name.upper()} {list(shape)}")
    return _spec(name, shape, CodecSpec(f"ggml.{block.name}"), {"data": evolve(data, shape=(*shape[:-1], row))})


def _unquant(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    data = parts["weight"]
    return _spec(name, data.shape, DENSE, {"data": data}, dtype=data.dtype)


def _hqq(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    for flag in ("round_zeros", "channel_wise"):
        if numbers[flag] not in (0, 1):
            raise refuse(f"weight.{flag}", "0 or 1", numbers[flag])
    params = {key: numbers[key] for key in ("bits", "group_size", "axis")}
    shape = numbers["shape"]
    roles = {"data": ("weight", parts["weight"]), "scale": ("weight.scales", parts["scales"]),
             "zero": ("weight.zeros", parts["zeros"])}  # fmt: skip
    spec = _spec(name, shape, CodecSpec("hqq", params), {role: part for role, (_, part) in roles.items()})
    for role, expected in Hqq.from_params(params).parts(spec).items():
        field, part = roles[role]
        if (part.dtype, part.shape) != expected:
            raise refuse(field, _named(*expected), _named(part.dtype, part.shape), "shape")
    return spec


def _fp8(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    data = parts["weight"]
    if data.dtype != "f8_e4m3":
        raise refuse("weight", "f8_e4m3 values", data.dtype, "dtype")
    spec = _spec(name, data.shape, CodecSpec("float8"), {"data": data, "scale": parts["dequant_w_scale"]})
    return evolve(spec, extras={role: parts[role] for role in ("dequant_x_scale", "quant_scale")})


def _afq(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    data, scale, offset = parts["weight"], parts["scales"], parts["biases"]
    bits, group = numbers["bits"], numbers["group_size"]
    if bits not in tables.AFQ_BITS:
        raise refuse("weight.bits", f"one of {tables.AFQ_BITS}", bits)
    if group not in tables.AFQ_GROUPS:
        raise refuse("weight.group_size", f"one of {tables.AFQ_GROUPS}", group)
    if data.dtype != "u32" or len(data.shape) < 2:
        raise refuse("weight", "u32 words of rank 2 or more", _named(data.dtype, data.shape), "dtype")
    if scale.dtype not in tables.AFQ_SCALES:
        raise refuse("weight.scales", " or ".join(tables.AFQ_SCALES), scale.dtype, "dtype")
    *lead, words = data.shape
    shape = (*lead, words * 32 // bits)
    grid = (*lead, shape[-1] // group)
    if words * 32 % bits or shape[-1] % group:
        raise refuse("weight", f"rows of whole groups of {group} codes of {bits} bits", list(data.shape), "shape")
    for field, part in (("weight.scales", scale), ("weight.biases", offset)):
        if (part.dtype, part.shape) != (scale.dtype, grid):
            raise refuse(field, _named(scale.dtype, grid), _named(part.dtype, part.shape), "shape")
    params = {"bits": bits, "group_size": group, "word": "u32", "offset": "bias"}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    return _spec(name, shape, CodecSpec("affine", params), {"data": data, "scale": scale, "offset": offset})


def _f8q8(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    shape, data, count = numbers["shape"], parts["weight"], numbers["num_blocks"]
    blocks = -(-dtypes.count(shape) // 32)
    if count != blocks:
        raise refuse("weight.num_blocks", f"{blocks} for {list(shape)}", count, "count")
    _same_size(data, 33 * blocks, f"{blocks} blocks")
    return _spec(name, shape, CodecSpec("uqff.f8q8"), {"data": evolve(data, shape=(blocks, 33))})


def _mxfp4(name: str, parts: Parts, numbers: Numbers) -> TensorSpec:
    data, scale = parts["weight"], parts["scales"]
    for field, part in (("weight", data), ("weight.scales", scale)):
        if part.dtype != "u8":
            raise refuse(field, "u8", part.dtype, "dtype")
    if not data.shape or data.shape[-1] % 16:
        raise refuse("weight", "rows of whole blocks of 16 bytes", list(data.shape), "shape")
    *lead, packed = data.shape
    if scale.shape != (*lead, packed // 16):
        raise refuse("weight.scales", _named("u8", (*lead, packed // 16)), _named("u8", scale.shape), "shape")
    parts = {"data": data, "scale": evolve(scale, dtype="f8_e8m0")}
    return _spec(name, (*lead, packed * 2), CodecSpec("mx"), parts)


_MAKERS = (_gguf, _unquant, _hqq, _fp8, _afq, _f8q8, _mxfp4)


def _spec(name: str, shape: tuple[int, ...], codec: CodecSpec, parts: Parts, dtype: str = "f32") -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(Encoding(codec=codec, parts=parts),))


def _same_size(data: Part, nbytes: int, what: str) -> None:
    if data.dtype != "u8" or data.nbytes != nbytes:
        raise refuse("weight", f"{nbytes} bytes for {what}", f"{data.nbytes} bytes of {data.dtype}", "size")


def _named(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype} {list(shape)}"
