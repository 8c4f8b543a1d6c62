"""Codes with codebooks or boxes: palettes, HQQ and Core ML's boxes."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import torch
from squish_codecs.api import HQQ_PACKINGS, Packing, Tables
from torch import Tensor

from squish_core.api import CodecSpec, TensorSpec

from .affine import flat_codes
from .bits import signed, unpack
from .stored import Stored, constant


@lru_cache(256)
def _tables(params: tuple[tuple[str, object], ...]) -> Tables:
    return Tables.of(dict(params))


def tables_of(codec: CodecSpec) -> Tables:
    """Return the parameters of a palette."""
    return _tables(tuple(sorted((key, _frozen(value)) for key, value in codec.params.items())))


def _frozen(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


def takes_palette(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether the entries of a palette are single numbers or neighbors in a row."""
    tables = tables_of(codec)
    return tables.vector == 1 or tables.vector_axis == -1


def has_row_indices(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether each row has its own indices and scales, into one table."""
    tables = tables_of(codec)
    return not tables.scheme.flat and not tables.codebook_size


def palette(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of a palette: table entries, scaled."""
    tables, columns = tables_of(stored.codec), stored.columns
    scheme, vector = tables.scheme, tables.vector
    width = columns // vector
    if scheme.flat:
        step = scheme.packing.unit
        low, high = start * width // step * step, stop * width
        codes = flat_codes(scheme, stored.bytes_of("data"), low, high)[start * width - low :].reshape(-1, width)
    else:
        codes = unpack(stored.row_bytes("data", start, stop), scheme.packing, width)
    values = _entries(tables, stored, codes, start * width).reshape(stop - start, columns)
    if not tables.scaled:
        return values
    position = torch.arange(start * columns, stop * columns, device=values.device).reshape(values.shape)
    if scheme.flat:
        group = position // (scheme.group_size or max(stored.spec.elements, 1))
    else:
        size = scheme.group_size or max(columns, 1)
        group = position // columns * -(-columns // size) + position % columns // size
    offset = stored.numbers("offset").reshape(-1)[group] if scheme.offset != "none" else None
    if offset is not None and scheme.offset == "zero_point":
        values = values - offset
    values = values * _scales(tables, stored)[group]
    return values + offset if offset is not None and scheme.offset == "bias" else values


def _entries(tables: Tables, stored: Stored, codes: Tensor, start: int) -> Tensor:
    """Return the entries [codes, vector] of codes, the first of which is number `start` of the tensor."""
    if tables.table is not None:
        return constant(tuple(tables.constant.tolist()), torch.float32, codes.device)[codes.int()]
    books = stored.numbers("codebook").reshape(-1, 1 << tables.scheme.bits, tables.vector)
    flat = codes.reshape(-1).long()
    if not tables.codebook_size:
        return books[0][flat]
    book = torch.arange(start, start + len(flat), device=codes.device) // (tables.codebook_size // tables.vector)
    return books[book, flat]


def _scales(tables: Tables, stored: Stored) -> Tensor:
    """Return all scales, flattened."""
    if not tables.nested:
        return stored.numbers("scale").reshape(-1)
    factors = stored.numbers("scale_scale")
    codes = stored.data["scale"].reshape(-1)
    run = torch.arange(len(codes), device=codes.device) // tables.nested
    return stored.numbers("scale_codebook")[codes.int()] * factors[run] + stored.numbers("scale_offset")


def hqq(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of HQQ: a matrix with groups as columns (axis 0) or rows, its elements in the tensor's order."""
    params, elements = stored.codec.params, stored.spec.elements
    packing, size = HQQ_PACKINGS[params["bits"]], params["group_size"]
    by_row = params["axis"] == 1
    columns = size if by_row else elements // size
    first, last = start * stored.columns, stop * stored.columns
    row = torch.arange(first // columns, -(-last // columns), device=stored.data["data"].device)
    raw = stored.bytes_of("data")
    words = (raw[..., 0] if packing.word == "u8" else raw.view(torch.int32)[..., 0])[row % len(raw)]
    shift = (packing.first - row // len(raw) * packing.step).to(words.dtype)
    codes = words if packing.codes == 1 else (words >> shift[:, None]) & ((1 << params["bits"]) - 1)
    scale, zero = stored.numbers("scale"), stored.numbers("zero")
    if by_row:
        scale, zero = scale[row], zero[row]
    values = ((codes.float() - zero) * scale).reshape(-1)
    return values[first % columns :][: last - first].reshape(stop - start, -1)


def takes_boxes(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether there is no mask: under a mask, the position of a code depends on those before it."""
    return codec.params.get("count") is None


def boxes(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of codes with scales, zero points and codebooks for each box."""
    params, shape = stored.codec.params, stored.spec.shape
    bits, first, last = params["bits"], start * stored.columns, stop * stored.columns
    packing = Packing(bits, "u8", "lsb")
    low = first // 8 * 8
    codes = unpack(stored.bytes_of("data")[packing.span(low, last)].reshape(1, -1), packing, last - low)[0][
        first - low :
    ]
    position = torch.arange(first, last, device=codes.device)
    if params.get("books"):
        books = stored.numbers("codebook").reshape(-1, 1 << bits)
        values = books[_boxes(position, shape, params["books"]), codes.int()]
    else:
        values = signed(codes, bits) if params.get("signed") else codes.float()
    box = _boxes(position, shape, params.get("grid") or (1,) * len(shape))
    kind = params.get("offset_dtype", "none")
    if kind == "packed":
        grid = unpack(stored.bytes_of("offset").reshape(1, -1), packing, prod(params["grid"]))[0]
        has_sign = params.get("signed") and not params.get("books")
        values = values - (signed(grid, bits) if has_sign else grid.float())[box]
    elif kind != "none":
        values = values - stored.numbers("offset").reshape(-1)[box]
    if params.get("scale_dtype", "none") != "none":
        values = values * stored.numbers("scale").reshape(-1)[box]
    return values.reshape(stop - start, -1)


def _boxes(position: Tensor, shape: tuple[int, ...], grid: tuple[int, ...]) -> Tensor:
    """Return the number of each element's box; elements and boxes are numbered row-major."""
    box, stride = torch.zeros_like(position), 1
    for size, count in zip(reversed(shape), reversed(grid)):
        coordinate, position = position % size, position // size
        box = box + coordinate // (size // count) * stride
        stride *= count
    return box
