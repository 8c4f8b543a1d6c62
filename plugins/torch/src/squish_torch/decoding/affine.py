"""Affine codes in every scheme of squish-codecs: `(q - zero - offset) * scale` or `q * scale + offset`."""

from __future__ import annotations

import torch
from squish_codecs.api import Packing, Scheme, panel_scheme
from torch import Tensor

from squish_core.api import CodecSpec, TensorSpec

from .bits import signed, unpack
from .stored import Stored, numbers

SCHEMES = {
    "affine": {},
    "npydir.int3": {"bits": 8, "offset": "bias"},
    "squizd.int4": {"bits": 4, "axis": "flat", "signed": True, "offset": "bias"},
    "squizd.int2": {"bits": 2, "axis": "flat", "offset": "bias"},
}
"""Codec of affine codes -> parameters that its definition fixes."""


def scheme_of(codec: CodecSpec) -> Scheme:
    """Return the scheme of a codec of affine codes."""
    return Scheme.of({**codec.params, **SCHEMES[codec.id]})


def is_by_rows(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether each row has its own codes and scales."""
    return has_row_codes(scheme_of(codec))


def has_row_codes(scheme: Scheme) -> bool:
    """Return whether each row has its own codes, scales and offsets."""
    along = scheme.group_axis == scheme.pack_axis == -1
    return along and not scheme.flat and not scheme.transposed and not scheme.packed_zeros


def decode(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of affine codes."""
    return decode_scheme(scheme_of(stored.codec), stored, start, stop)


def decode_scheme(scheme: Scheme, stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of a tensor in a scheme."""
    if scheme.flat:
        return _run(scheme, stored, start * stored.columns, stop * stored.columns).reshape(-1, stored.columns)
    if has_row_codes(scheme):
        values = centered(scheme, unpack(stored.row_bytes("data", start, stop), scheme.packing, stored.columns))
        offset = None if scheme.offset == "none" else stored.row_numbers("offset", start, stop)
        return scaled(scheme, values, stored.row_numbers("scale", start, stop), offset)
    height = stored.spec.shape[-2]
    pieces = [
        _matrix(scheme, stored, index, max(start - index * height, 0), min(stop - index * height, height))
        for index in range(start // height, -(-stop // height))
    ]
    return torch.cat(pieces)


def centered(scheme: Scheme, codes: Tensor) -> Tensor:
    """Return codes minus the constant zero point, in f32: exact."""
    values = signed(codes, scheme.bits) if scheme.signed else codes.float()
    return values - scheme.zero if scheme.zero else values


def scaled(scheme: Scheme, values: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    """Apply scales and offsets [rows, groups] to the groups along the rows of values [rows, columns]."""
    blocks = values.reshape(len(values), scale.shape[1], -1)
    return _applied(scheme, blocks, scale[..., None], None if offset is None else offset[..., None]).reshape(
        values.shape
    )


def _applied(scheme: Scheme, values: Tensor, scale: Tensor, offset: Tensor | None) -> Tensor:
    if offset is None:
        return values * scale
    return values * scale + offset if scheme.offset == "bias" else (values - offset) * scale


def _run(scheme: Scheme, stored: Stored, start: int, stop: int) -> Tensor:
    """Decode a range of a flattened tensor."""
    step = scheme.flat_step
    low, high = start // step * step, min(-(-stop // step) * step, stored.spec.elements)
    role = "data" if "data" in stored.data else "codes"
    values = centered(scheme, flat_codes(scheme, stored.bytes_of(role), low, high))
    size = scheme.group_size or max(stored.spec.elements, 1)
    group = torch.arange(low, high, device=values.device) // size
    scale, offset = _grid(scheme, stored)
    values = _applied(scheme, values, scale[group], None if offset is None else offset[group])
    return values[start - low : stop - low]


def flat_codes(scheme: Scheme, data: Tensor, start: int, stop: int) -> Tensor:
    """Return the codes of a range of a flattened tensor; the range begins at a word."""
    words = data[scheme.packing.span(start, stop)]
    return unpack(words.reshape(1, -1), scheme.packing, stop - start)[0]


def _grid(scheme: Scheme, stored: Stored) -> tuple[Tensor, Tensor | None]:
    """Return scales and offsets, with the axes of the tensor."""
    if "table" in stored.data:  # SQUIZD's entries: tensor, block, scale, bias
        pairs = numbers(stored.bytes_of("table")[:, 2:], "f32")
        return pairs[:, 0], pairs[:, 1]
    scale, offset = stored.numbers("scale"), None
    if scheme.packed_zeros:
        lines = stored.bytes_of("offset").movedim(scheme.zero_axis - 1, -2)  # the last axis has the bytes of a word
        codes = unpack(lines.flatten(-2), scheme.packing, scale.shape[scheme.zero_axis])
        codes = codes.movedim(-1, scheme.zero_axis)
        offset = signed(codes, scheme.bits) if scheme.signed else codes.float()
    elif scheme.offset != "none":
        offset = stored.numbers("offset")
    if scheme.transposed:
        scale, offset = scale.mT, None if offset is None else offset.mT
    return scale, offset


def decode_ordered(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of affine codes whose columns name their groups (GPTQ's act-order), checked at load."""
    return _matrix(scheme_of(stored.inner), stored, 0, start, stop, stored.numbers("g_idx").long())


PANEL = 16
"""Rows per panel."""
PANEL_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Number of the code in each nibble of a word of a panel."""


def decode_panels(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of panels of 16 interleaved rows."""
    scheme, columns = panel_scheme(stored.codec.params), stored.columns
    low, high = start // PANEL, -(-stop // PANEL)
    rows = slice(start - low * PANEL, stop - low * PANEL)

    def grid(role: str) -> Tensor:
        return stored.numbers(role)[low:high].mT.flatten(0, 1)[rows]

    words = stored.data["data"].reshape(-1, columns // 8, PANEL, 4)[low:high].transpose(1, 2)
    codes = unpack(words.flatten(2).flatten(0, 1)[rows], Packing(4, "u32", PANEL_ORDER), columns)
    zero = scheme.zero + 8 * scheme.signed  # signed codes are stored as 0 to 15
    offset = None if scheme.offset == "none" else grid("offset")
    return scaled(scheme, codes.float() - zero, grid("scale"), offset)


def _matrix(scheme: Scheme, stored: Stored, index: int, start: int, stop: int, groups: Tensor | None = None) -> Tensor:
    """Decode rows of one matrix, whose codes or groups may run across rows; `groups`: the group of each column."""
    height, width = stored.spec.shape[-2:]
    words = stored.bytes_of("data")
    if scheme.transposed:
        words = words.transpose(-2, -3)
    words = words.reshape(-1, *words.shape[-3:])[index]
    scale, offset = (
        None if grid is None else grid.reshape(-1, *grid.shape[-2:])[index] for grid in _grid(scheme, stored)
    )
    upright, unit = scheme.upright, scheme.packing.unit
    if upright.pack_axis == -1:
        codes = unpack(words[start:stop].flatten(-2), scheme.packing, width)
    else:
        low, high = start // unit * unit, min(-(-stop // unit) * unit, height)
        lines = words[scheme.packing.span(low, high)].movedim(0, 1)
        codes = unpack(lines.flatten(-2), scheme.packing, high - low).T[start - low : stop - low]
    row, column = torch.arange(start, stop, device=words.device), torch.arange(width, device=words.device)
    if groups is not None:
        column = groups
    elif upright.group_axis == -1:
        column = column // (scheme.group_size or width)
    else:
        row = row // (scheme.group_size or height)
    scale, offset = (None if grid is None else grid[row][:, column] for grid in (scale, offset))
    assert scale is not None
    return _applied(scheme, centered(scheme, codes), scale, offset)
