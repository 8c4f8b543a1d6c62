"""Which encodings a graph can compute with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_codecs.api import Affine, Scheme

from squish_core.api import CodecSpec, CodeLayout, Encoding, Part, Refusal, SquishError, TensorSpec, dtypes

from ..blocks import ID as OWN_CODEC
from ..graph_values import HALF_BLOCKS, SCALES
from .proto import CODES

DENSE_DTYPES = ("f32", "f16", "bf16")
BLOCKS = (256, 128, 64, 32, 16)
"""Block sizes of MatMulNBits."""
WEIGHT = ".weight"


def accepts(spec: TensorSpec, encoding: Encoding, *, any_dtype: bool = False) -> Encoding | Refusal:
    """Accept dense floats (or any dtype of ONNX) and codes in MatMulNBits' layout; `accepts_codes` repacks others."""
    if encoding.codec.id == "affine" and (any_dtype or spec.name.endswith(WEIGHT)) and _is_native(spec, encoding.codec):
        return _encoding(spec, encoding.codec)
    if any_dtype and encoding.codec.id == OWN_CODEC:  # an operator of the graph uses this codec
        return Encoding(codec=encoding.codec, parts=bare_parts(encoding))
    if encoding.codec.id != "dense":
        return Refusal(
            why=f"ONNX has no operator for {encoding.codec.id}; ask for int8 or int4 with --encode", code="codec"
        )
    dtype = encoding.codec.params.get("dtype", spec.dtype)
    if dtype not in (CODES if any_dtype else DENSE_DTYPES):
        return Refusal(why=f"the graph computes with {', '.join(DENSE_DTYPES)}, not {dtype}", code="dtype")
    if dtypes.bits(dtype) < 8:
        size = dtypes.nbytes(dtype, spec.shape)
        return Encoding(codec=encoding.codec, parts={"data": Part(dtype="u8", shape=(size,))})
    return Encoding(codec=encoding.codec, parts={"data": Part(dtype=dtype, shape=spec.shape)})


def accepts_codes(spec: TensorSpec, layout: CodeLayout, *, any_name: bool = False) -> Encoding | Refusal | None:
    """Choose MatMulNBits' layout for codes: wider if necessary, with f32 scales, and packed zero points or f32 biases.

    Parameters
    ----------
    spec, layout
        The tensor and the layout of its codes.
    any_name
        Whether the weight belongs to an existing graph: any name is allowed, and a [K, N] matrix with groups along K is
        stored transposed.

    Returns
    -------
    Encoding, Refusal or None
        The encoding, by the codec `affine`.
    """
    if len(spec.shape) != 2 or not (any_name or spec.name.endswith(WEIGHT)):
        return Refusal(why="ONNX multiplies by codes only if the matrix is named <layer>.weight", code="shape")
    if layout.table is not None:
        return Refusal(
            why="ONNX has no operator for codes with a table; ask for int8 or int4 with --encode", code="table"
        )
    across = any_name and layout.group[-1] == 1 and not layout.run
    axis = -2 if across else -1
    group = layout.group[axis] if across else layout.row_group
    group = spec.shape[axis] if group == 0 else group
    block = next((size for size in BLOCKS if group and group % size == 0), None)
    bits = next((width for width in HALF_BLOCKS if width >= layout.bits), None)
    if block is None or bits is None:
        return Refusal(why=f"MatMulNBits has blocks of {BLOCKS} columns, not {group or 'groups of rows'}", code="block")
    params: dict[str, Any] = {"bits": bits, "group_size": block}
    if layout.offset_kind == "none":
        params |= {"zero": HALF_BLOCKS[bits], "signed": False}
    elif (
        layout.offset_kind == "zero_point" and layout.scale_dtype == "f32" and not across and _fill_bytes(spec, params)
    ):
        params |= {"axis": "flat", "offset": "zero_point", "offset_dtype": "packed"}  # biases would round
    else:
        params |= {"offset": "bias"}
    if across:
        params["transposed"] = True
    try:
        return _encoding(spec, CodecSpec("affine", params))
    except SquishError as error:
        return Refusal(why=error.message, code="shape")


def bare_parts(encoding: Encoding) -> dict[str, Part]:
    """Return the parts of an encoding without their locations."""
    return {role: Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}


def _encoding(spec: TensorSpec, codec: CodecSpec) -> Encoding:
    """Return the encoding of a codec `affine`, without data."""
    parts = Affine.from_params(codec.params).parts(spec)
    return Encoding(codec=codec, parts={role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in parts.items()})


def _fill_bytes(spec: TensorSpec, params: Mapping[str, Any]) -> bool:
    """Return whether the packed zero points of a row fill whole bytes."""
    return spec.shape[1] // params["group_size"] * params["bits"] % 8 == 0


def _is_native(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether codes have MatMulNBits' layout, with scales of any float dtype and packed zero points."""
    scheme = Scheme.of(codec.params)
    if len(spec.shape) != 2 or scheme.bits not in HALF_BLOCKS or scheme.group_size not in BLOCKS:
        return False
    if spec.shape[1] % scheme.group_size or scheme.signed or scheme.transposed or scheme.scale_dtype not in SCALES:
        return False
    if (scheme.word, scheme.order, scheme.pack_axis) != ("u8", "lsb", -1):
        return False
    forms = {
        "none": scheme.axis == -1 and scheme.zero == HALF_BLOCKS[scheme.bits],
        "bias": scheme.axis == -1 and scheme.offset_dtype == "f32",
        "zero_point": scheme.flat and scheme.packed_zeros and scheme.zero == 0 and _fill_bytes(spec, codec.params),
    }
    return forms[scheme.offset]
