"""Decoding with torch's own operators, for devices without a kernel: bit-identical to the codecs in f32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

from attrs import evolve
from torch import Tensor

from squish_core.api import CodecError, CodecSpec, ErrorCode, TensorSpec

from ..weights import roles_of, spec_of
from . import affine, floats, ggml, grids, tables
from .stored import Stored

LIMIT = 16 << 20
"""Number of values decoded at once."""


def _always(spec: TensorSpec, codec: CodecSpec) -> bool:
    return True


def _never(spec: TensorSpec, codec: CodecSpec) -> bool:
    return False


def _takes_inner(spec: TensorSpec, codec: CodecSpec) -> bool:
    return codec.inner is not None and codec.inner.id in FORMS and FORMS[codec.inner.id].takes(spec, codec.inner)


class Form(NamedTuple):
    """How torch decodes a codec.

    `decode(stored, start, stop)` returns rows in f32. `takes`: whether it decodes a tensor with these parameters.
    `is_by_rows`: whether each row has its own parts, so that rows can be gathered as bytes.
    """

    decode: Callable[[Stored, int, int], Tensor]
    is_by_rows: Callable[[TensorSpec, CodecSpec], bool] = _always
    takes: Callable[[TensorSpec, CodecSpec], bool] = _always


SHARED = ("codebook", "global_scale", "factor", "column_scale")
"""Parts that all rows share."""
FORMS: dict[str, Form] = {
    **dict.fromkeys((f"ggml.{name}" for name in ggml.BLOCKS), Form(ggml.decode)),
    **dict.fromkeys((f"ggml.{name}" for name in grids.GRIDS), Form(ggml.decode, takes=grids.has_grids)),
    **dict.fromkeys(affine.SCHEMES, Form(affine.decode, affine.is_by_rows)),
    "hf.act_order": Form(affine.decode_ordered, _never),
    "panels": Form(affine.decode_panels, _never),
    "palette": Form(tables.palette, tables.has_row_indices, tables.takes_palette),
    "boxes": Form(tables.boxes, _never, tables.takes_boxes),
    "hqq": Form(tables.hqq, _never),
    "float8": Form(floats.float8, floats.has_row_scales),
    "mx": Form(floats.mx),
    "zt.mx": Form(floats.axis_mx, _never),
    "hf.bnb8": Form(floats.int8_rows),
    "uqff.f8q8": Form(floats.f8q8, _never),
    "ggml.scaled_nvfp4": Form(floats.scaled_nvfp4, _never),
    "awq": Form(
        lambda stored, start, stop: _inner(stored, start, stop) / stored.numbers("factor"),
        _never,
        takes=_takes_inner,
    ),
    "hf.column_scales": Form(
        lambda stored, start, stop: _inner(stored, start, stop) * stored.numbers("column_scale"),
        _never,
        takes=_takes_inner,
    ),
}
"""Codec -> how torch decodes it."""


def _inner(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of the inner codec."""
    encoding = evolve(stored.spec.encodings[0], codec=stored.inner)
    inner = Stored(evolve(stored.spec, encodings=(encoding,)), stored.data)
    return FORMS[stored.inner.id].decode(inner, start, stop)


@lru_cache(4096)
def is_decodable(description: str) -> bool:
    """Return whether torch's operators can decode an encoding; otherwise the CPU decodes it."""
    spec = spec_of(description)
    codec = spec.encodings[0].codec
    form = FORMS.get(codec.id)
    return form is not None and len(spec.shape) >= 2 and form.takes(spec, codec)


@lru_cache(4096)
def is_by_rows(description: str) -> bool:
    """Return whether rows of the parts can be gathered and decoded alone."""
    spec = spec_of(description)
    codec = spec.encodings[0].codec
    return is_decodable(description) and FORMS[codec.id].is_by_rows(spec, codec)


def decode_rows(parts: Sequence[Tensor], description: str, start: int, stop: int) -> Tensor:
    """Decode rows of the tensor as an f32 matrix, leading axes flattened, on the device of its parts."""
    return _decode(spec_of(description), parts, description, start, stop)


def decode_chosen(parts: Sequence[Tensor], description: str, ids: Tensor) -> Tensor:
    """Decode rows by number, and no others, of an encoding by rows."""
    spec = spec_of(description)
    encoding, rows = spec.encodings[0], spec.shape[:-1]
    chosen_parts = [
        part if role in SHARED else part.reshape(*rows, -1).flatten(0, len(rows) - 1)[ids]
        for role, part in zip(roles_of(description), parts)
    ]
    part_specs = {
        role: part if role in SHARED else evolve(part, shape=(len(ids), *part.shape[len(rows) :]))
        for role, part in encoding.parts.items()
    }
    subset = evolve(spec, shape=(len(ids), spec.shape[-1]), encodings=(evolve(encoding, parts=part_specs),))
    return _decode(subset, chosen_parts, description, 0, len(ids))


def _decode(spec: TensorSpec, parts: Sequence[Tensor], description: str, start: int, stop: int) -> Tensor:
    stored = Stored(spec, dict(zip(roles_of(description), parts)))
    if stored.codec.id not in FORMS:
        raise CodecError("torch's operations do not decode it", code=ErrorCode.UNCOVERED, found=stored.codec.id)
    return FORMS[stored.codec.id].decode(stored, start, stop)
