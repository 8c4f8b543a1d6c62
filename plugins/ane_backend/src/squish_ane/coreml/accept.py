"""The codec of a tensor in a package, and the compile-time operation that decodes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen
from squish_codecs.api import Affine, Bitmask, Boxes, Palette, Scheme, Tables

from squish_core.api import (
    DENSE,
    Codec,
    CodecError,
    CodecSpec,
    CodeLayout,
    Encoding,
    ErrorCode,
    Part,
    Refusal,
    TensorSpec,
    dtypes,
)

from ..ane.structures import is_vector_size
from .blobs import TYPES

Shape = tuple[int, ...]
TARGETS = ("iOS18", "iOS16")
FLOATS = ("f16", "f32")
HALF = CodecSpec("dense", {"dtype": "f16"})


@frozen(kw_only=True)
class Op:
    """A compile-time operation: type, result dtype, and parameters as (role, dtype, shape)."""

    type: str
    dtype: str
    params: Mapping[str, tuple[str, str, Shape]]


def accept(spec: TensorSpec, encoding: Encoding, target: str) -> Encoding | Refusal:
    """Return the encoding in a package for `target`, with the same codes in Core ML's order, or a refusal."""
    if encoding.codec.id == "dense":
        return _dense(spec, encoding)
    if refusal := _refusal(spec):
        return refusal
    adapt = _ADAPTERS.get(encoding.codec.id)
    codec = adapt(spec, encoding, target) if adapt else f"Core ML does not support {encoding.codec.id}"
    if isinstance(codec, str):
        return Refusal(why=codec)
    meaning, _ = _CODECS[codec.id]
    if meaning(codec.params) == meaning(encoding.codec.params):
        codec = encoding.codec  # equivalent parameters: copied
    return _encoding(spec, codec)


def accept_codes(spec: TensorSpec, layout: CodeLayout, target: str) -> Encoding | Refusal | None:
    """Return the encoding of integer codes in Core ML's order; None for table indices."""
    if layout.table is not None:
        return None
    if refusal := _refusal(spec):
        return refusal
    codec = _integers(spec, layout, target)
    return Refusal(why=codec) if isinstance(codec, str) else _encoding(spec, codec)


def choose(specs: Sequence[TensorSpec], codec: CodecSpec, target: str) -> dict[str, CodecSpec]:
    """Return the codec of each tensor under a rule for all of them.

    Values of a float type that Core ML lacks, which the codec does not encode (norms, odd shapes), become f16.
    """
    return {spec.name: HALF if _is_foreign(spec) and not _encodes(spec, codec, target) else codec for spec in specs}


def _is_foreign(spec: TensorSpec) -> bool:
    """Return whether a tensor is dense, in a float type that no constant has."""
    is_dense = bool(spec.encodings) and spec.encodings[0].codec == DENSE
    return is_dense and spec.dtype.startswith(("f", "bf")) and spec.dtype not in FLOATS


def _encodes(spec: TensorSpec, codec: CodecSpec, target: str) -> bool:
    """Return whether a codec of packages can encode a tensor; other codecs decide when they encode."""
    if codec.id == "dense" or len(spec.shape) < 2:
        return codec.id == "dense"
    if codec.id not in _CODECS:
        return True
    encoder = _CODECS[codec.id][1]
    try:
        params = encoder.params_for(spec, codec.params)
        stored = Encoding(codec=evolve(codec, params=params))
    except CodecError as error:
        return error.code in (ErrorCode.PARAMS, ErrorCode.ENCODE)  # the rule is wrong, which its error says
    return not isinstance(_ADAPTERS[codec.id](spec, stored, target), str)


def _refusal(spec: TensorSpec) -> Refusal | None:
    if spec.shape and spec.elements:
        return None
    return Refusal(
        why=f"Core ML cannot compress the shape {list(spec.shape)} (store values: --encode f16)", code="shape"
    )


def _encoding(spec: TensorSpec, codec: CodecSpec) -> Encoding:
    layouts = _CODECS[codec.id][1].from_params(codec.params).parts(spec)
    return Encoding(
        codec=codec, parts={role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in layouts.items()}
    )


def operation(spec: TensorSpec, target: str) -> Op:
    """Return the operation for an accepted tensor."""
    (encoding,) = spec.encodings
    if encoding.codec.id == "dense":
        return Op(type="const", dtype=spec.dtype, params={"val": ("data", spec.dtype, spec.shape)})
    if encoding.codec.id == "affine":
        return _affine_op(Scheme.of(encoding.codec.params), spec, target)
    if encoding.codec.id == "bitmask":
        return _bitmask_op(spec, target)
    if encoding.codec.id == "boxes":
        return _boxes_op(spec)
    return _palette_op(Tables.of(encoding.codec.params), spec, target)


def _dense(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    dtype = encoding.parts["data"].dtype
    if dtype != spec.dtype or TYPES.get(dtype, TYPES["u4"]).bits < 8 or dtype in ("bf16", "f8_e4m3", "f8_e5m2"):
        if not dtype.startswith(("f", "bf")):
            return Refusal(why=f"Core ML has no constants of {dtype}")
        advice = "store values: --encode f16, before rules with patterns"
        return Refusal(why=f"Core ML computes in float16 or float32, not {dtype} ({advice})")
    return Encoding(codec=DENSE, parts={"data": Part(dtype=spec.dtype, shape=spec.shape)})


def _integers(spec: TensorSpec, layout: CodeLayout, target: str) -> CodecSpec | str:
    """Return the affine parameters of codes in Core ML's flat order, or why there are none."""
    group = 0 if not any(layout.group) else layout.run_length(spec.shape)
    if group is None:
        return "groups are across rows"
    if group and _grid(spec.shape, group) is None:
        return f"groups of {group} are not blocks of {list(spec.shape)}"
    if target == "iOS16" and group not in (0, spec.elements // max(spec.shape[0], 1)):
        return "iOS16 supports one scale per tensor or channel; iOS18 supports blocks"
    width = 4 if layout.bits <= 4 and target == "iOS18" else 8
    scale = layout.scale_dtype
    scale = scale if scale in FLOATS else "f16" if scale == "f8_e4m3" else "f32"
    signed, offset = _sign_and_offset(layout)
    params: dict[str, Any] = {
        "bits": width, "group_size": group, "axis": "flat", "signed": signed, "scale_dtype": scale,
    }  # fmt: skip
    if offset != "none":
        integer_dtype = "packed" if width == 4 else "i8" if signed else "u8"
        any_number = target == "iOS18" and (offset == "bias" or width != layout.bits)
        params |= {"offset": "zero_point", "offset_dtype": scale if any_number else integer_dtype}
    return CodecSpec("affine", params)


def _sign_and_offset(layout: CodeLayout) -> tuple[bool, str]:
    """Return whether codes become signed, and their offset kind."""
    if layout.offset_kind == "none" and not layout.signed and layout.zero == 1 << layout.bits - 1:
        return True, "none"  # a centered zero point becomes the sign
    if layout.signed and layout.offset_kind == "bias":
        return True, "none"  # symmetric blocks with zero biases, which depends on the data
    return layout.signed, "bias" if layout.zero else layout.offset_kind  # sums of zero points may need another bit


def _affine(spec: TensorSpec, encoding: Encoding, target: str) -> CodecSpec | str:
    layout = Affine.from_params(encoding.codec.params).code_layout(spec)
    return _integers(spec, layout, target) if layout else "Core ML does not support these codes"


def _palette(spec: TensorSpec, encoding: Encoding, target: str) -> CodecSpec | str:
    tables = Tables.of(encoding.codec.params)
    bits, books = tables.scheme.bits, spec.elements // tables.codebook_size if tables.codebook_size else 1
    widths = (1, 2, 4, 6, 8) if target == "iOS16" else (1, 2, 3, 4, 6, 8)
    rules = (
        (not tables.scaled, "a palette with scales"),
        (tables.table is None, "a constant table"),
        (bits in widths, f"{bits}-bit indices"),
        (target == "iOS18" or (books == 1 and tables.vector == 1), "several codebooks or vectors before iOS18"),
        (is_vector_size(tables.vector), f"vectors of {tables.vector}"),
        (books == 1 or tables.index_shape(spec.shape)[0] % books == 0, "codebooks not along runs of rows"),
    )
    failed = next((what for holds, what in rules if not holds), None)
    if failed:
        return f"Core ML does not support {failed}"
    params = {name: value for name, value in tables.params().items() if name not in _ORDER}
    dtype = tables.codebook_dtype if tables.codebook_dtype != "bf16" else "f32"
    return CodecSpec("palette", {**params, "axis": "flat", "codebook_dtype": dtype})


_CODECS: Mapping[str, tuple[Callable[[Mapping[str, Any]], object], type[Codec]]] = {
    "affine": (Scheme.of, Affine),
    "palette": (Tables.of, Palette),
    "bitmask": (dict, Bitmask),
    "boxes": (dict, Boxes),
}
_ORDER = ("axis", "word", "order", "group_size")  # Core ML has one order and no scales


def _bitmask(spec: TensorSpec, encoding: Encoding, target: str) -> CodecSpec | str:
    params = encoding.codec.params
    joint = "bits" in params or params["dtype"] == "i8"
    scale = params.get("scale", "none")
    rules = (
        (params.get("kept") == "run", "masks without contiguous values (kept=run)"),
        (params["dtype"] in (*FLOATS, "i8"), f"masked {params['dtype']}"),
        ((scale in FLOATS) == (params["dtype"] == "i8") and params.get("scales", "row") == "row",
         "masked floats with scales, or int8 without row scales"),
        (params.get("bits", 1) in (1, 2, 3, 4, 6, 8), f"{params.get('bits')}-bit indices"),
        (not joint or target == "iOS18", "indices or int8 under a mask before iOS18"),
    )  # fmt: skip
    failed = next((what for holds, what in rules if not holds), None)
    return f"Core ML does not support {failed}" if failed else encoding.codec


def _boxes(spec: TensorSpec, encoding: Encoding, target: str) -> CodecSpec | str:
    params = encoding.codec.params
    books, scale, offset = "books" in params, params.get("scale_dtype", "none"), params.get("offset_dtype", "none")
    offset_dtypes = ("packed" if params["bits"] == 4 else "i8" if params.get("signed") else "u8", *FLOATS, "none")
    rules = (
        (target == "iOS18", "boxes before iOS18"),
        (params["bits"] in ((1, 2, 3, 4, 6, 8) if books else (4, 8)), f"{params['bits']}-bit codes in boxes"),
        (not books or (scale == offset == "none"), "a palette with scales"),
        ((params.get("codebook_dtype", "f32") if books else scale) in FLOATS, "values of other types than f16 and f32"),
        (offset in offset_dtypes, f"zero points of {offset}"),
    )
    failed = next((what for holds, what in rules if not holds), None)
    return f"Core ML does not support {failed}" if failed else encoding.codec


_ADAPTERS: Mapping[str, Callable[[TensorSpec, Encoding, str], CodecSpec | str]] = {
    "affine": _affine, "palette": _palette, "bitmask": _bitmask, "boxes": _boxes,
}  # fmt: skip


def _grid(shape: Shape, group: int) -> Shape | None:
    """Return the blocks along each axis for runs of `group` elements; None if they are not boxes."""
    cells: list[int] = []
    for size in reversed(shape):
        if group >= size and group % size == 0:
            cells.append(1)
            group //= size
        elif size % group == 0:
            cells.append(size // group)
            group = 1
        else:
            return None
    return tuple(reversed(cells)) if group == 1 else None


def _affine_op(scheme: Scheme, spec: TensorSpec, target: str) -> Op:
    dtype = ("i" if scheme.signed else "u") + str(scheme.bits)
    if target == "iOS16":
        scales = spec.shape[:1] if scheme.group_size else ()
        params = {"quantized_data": ("data", dtype, spec.shape), "scale": ("scale", scheme.scale_dtype, scales)}
        params["zero_point"] = ("offset", dtype, scales)
        return Op(type="constexpr_affine_dequantize", dtype=scheme.scale_dtype, params=params)
    grid = _grid(spec.shape, scheme.group_size) if scheme.group_size else (1,) * len(spec.shape)
    assert grid is not None
    params = {"data": ("data", dtype, spec.shape), "scale": ("scale", scheme.scale_dtype, grid)}
    if scheme.offset != "none":
        params["offset"] = ("offset", dtype if scheme.offset_dtype not in FLOATS else scheme.offset_dtype, grid)
    return Op(type="constexpr_blockwise_shift_scale", dtype=scheme.scale_dtype, params=params)


def _bitmask_op(spec: TensorSpec, target: str) -> Op:
    (encoding,) = spec.encodings
    params, data, rank = encoding.codec.params, encoding.parts["data"], len(spec.shape)
    mask = ("mask", "u8", (-(-spec.elements // 8),)) if target == "iOS16" else ("mask", "u1", spec.shape)
    if bits := params.get("bits"):
        table = ("codebook", params["dtype"], (*(1,) * rank, 1 << bits, 1))
        indices = ("data", f"u{bits}", (params["count"],))
        return Op(
            type="constexpr_lut_to_sparse",
            dtype=params["dtype"],
            params={"indices_mask": mask, "indices_nonzero_data": indices, "lut": table},
        )
    values = ("data", data.dtype, data.shape)
    if data.dtype == "i8":
        scale = ("scale", params["scale"], (*spec.shape[:1], *(1,) * (rank - 1)))
        return Op(
            type="constexpr_sparse_blockwise_shift_scale",
            dtype=params["scale"],
            params={"data_mask": mask, "nonzero_data": values, "scale": scale},
        )
    return Op(type="constexpr_sparse_to_dense", dtype=data.dtype, params={"nonzero_data": values, "mask": mask})


def _boxes_op(spec: TensorSpec) -> Op:
    params, masked = spec.encodings[0].codec.params, "count" in spec.encodings[0].codec.params
    shape = (params["count"],) if masked else spec.shape
    mask = ("mask", "u1", spec.shape)
    if "books" in params:
        dtype = params.get("codebook_dtype", "f32")
        indices = ("data", f"u{params['bits']}", shape)
        table = ("codebook", dtype, (*params["books"], 1 << params["bits"], 1))
        if masked:
            named = {"indices_mask": mask, "indices_nonzero_data": indices, "lut": table}
            return Op(type="constexpr_lut_to_sparse", dtype=dtype, params=named)
        return Op(type="constexpr_lut_to_dense", dtype=dtype, params={"indices": indices, "lut": table})
    dtype, grid = params["scale_dtype"], tuple(params["grid"])
    integer_dtype = ("i" if params.get("signed") else "u") + str(params["bits"])
    operands = {"nonzero_data" if masked else "data": ("data", integer_dtype, shape), "scale": ("scale", dtype, grid)}
    if (offset := params.get("offset_dtype", "none")) != "none":
        operands["offset"] = ("offset", offset if offset in FLOATS else integer_dtype, grid)
    if masked:
        operands = {"data_mask": mask, **operands}
    kind = "constexpr_sparse_blockwise_shift_scale" if masked else "constexpr_blockwise_shift_scale"
    return Op(type=kind, dtype=dtype, params=operands)


def _palette_op(tables: Tables, spec: TensorSpec, target: str) -> Op:
    bits, indices = tables.scheme.bits, tables.index_shape(spec.shape)
    dtype = tables.codebook_dtype
    if target == "iOS16":
        stream = (-(-dtypes.count(indices) * bits // 8),)
        old: dict[str, tuple[str, str, Shape]] = {"indices": ("data", "u8", stream)}
        old["lut"] = ("codebook", dtype, (1 << bits,))
        return Op(type="constexpr_lut_to_dense", dtype=dtype, params=old)
    books = spec.elements // tables.codebook_size if tables.codebook_size else 1
    groups = (books, *(1,) * (len(indices) - 1))
    params = {
        "indices": ("data", f"u{bits}", indices), "lut": ("codebook", dtype, (*groups, 1 << bits, tables.vector)),
    }  # fmt: skip
    return Op(type="constexpr_lut_to_dense", dtype=dtype, params=params)
