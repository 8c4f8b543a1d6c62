"""Decoding with torch's own operations, for devices without a kernel: bit-equal to the codecs in f32."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import torch
from squish_codecs.api import Scheme
from torch import Tensor

from squish_core.api import CodecError, CodecSpec, ErrorCode

from .weights import roles_of, spec_of

LIMIT = 16 << 20
"""Values to decode at once."""
FLOATS = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
Blocks = Callable[[Tensor], Tensor]


def half(blocks: Tensor, start: int) -> Tensor:
    """The f16 at a byte of each block, as f32 [blocks, 1]."""
    return blocks[:, start : start + 2].contiguous().view(torch.float16).to(torch.float32)


def fields(data: Tensor, width: int, shifts: Sequence[int], mask: int) -> Tensor:
    """Bit fields of runs of `width` bytes: all bytes at the first shift, then all at the next: [blocks, values]."""
    runs = data.reshape(len(data), -1, 1, width)
    moves = torch.tensor(shifts, dtype=torch.uint8, device=data.device).reshape(1, 1, -1, 1)
    return ((runs >> moves) & mask).reshape(len(data), -1)


def fifth_bits(blocks: Tensor, start: int) -> Tensor:
    """Four bytes of fifth bits, then nibbles: codes [blocks, 32]."""
    moves = torch.arange(8, dtype=torch.uint8, device=blocks.device)
    high = ((blocks[:, start : start + 4, None] >> moves) & 1).reshape(len(blocks), 32)
    return fields(blocks[:, start + 4 : start + 20], 16, (0, 4), 15) | (high << 4)


def q4_0(blocks: Tensor) -> Tensor:
    """`d * (q - 8)`."""
    return (fields(blocks[:, 2:], 16, (0, 4), 15).float() - 8) * half(blocks, 0)


def q4_1(blocks: Tensor) -> Tensor:
    """`d * q + m`."""
    return fields(blocks[:, 4:], 16, (0, 4), 15).float() * half(blocks, 0) + half(blocks, 2)


def q5_0(blocks: Tensor) -> Tensor:
    """`d * (q - 16)`."""
    return (fifth_bits(blocks, 2).float() - 16) * half(blocks, 0)


def q5_1(blocks: Tensor) -> Tensor:
    """`d * q + m`."""
    return fifth_bits(blocks, 4).float() * half(blocks, 0) + half(blocks, 2)


def q8_0(blocks: Tensor) -> Tensor:
    """`d * q`."""
    return blocks[:, 2:].contiguous().view(torch.int8).float() * half(blocks, 0)


def scaled(codes: Tensor, scales: Tensor, minima: Tensor | None = None) -> Tensor:
    """`scale * q - minimum`, by groups."""
    values = codes.reshape(*scales.shape, -1).float() * scales[..., None]
    return (values if minima is None else values - minima[..., None]).reshape(len(codes), -1)


def six_bits(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and minima of Q4_K and Q5_K: 12 bytes from byte 4 on, times d and dmin."""
    packed = blocks[:, 4:16]
    low, middle, high = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = torch.cat((low & 63, (high & 15) | ((low >> 2) & 48)), 1)
    minima = torch.cat((middle & 63, (high >> 4) | ((middle >> 2) & 48)), 1)
    return scales.float() * half(blocks, 0), minima.float() * half(blocks, 2)


def q2_k(blocks: Tensor) -> Tensor:
    """`d * scale * q - dmin * minimum`."""
    packed = blocks[:, :16]
    scales, minima = (packed & 15).float() * half(blocks, 80), (packed >> 4).float() * half(blocks, 82)
    return scaled(fields(blocks[:, 16:80], 32, (0, 2, 4, 6), 3), scales, minima)


def q3_k(blocks: Tensor) -> Tensor:
    """`d * scale * (q - 4)`."""
    high = fields(blocks[:, :32], 32, range(8), 1)
    codes = fields(blocks[:, 32:96], 32, (0, 2, 4, 6), 3) | (high << 2)
    low, top = blocks[:, 96:104], blocks[:, 104:108]
    parts = [((low[:, 4 * (n % 2) : 4 * (n % 2) + 4] >> (4 * (n // 2))) & 15) for n in range(4)]
    packed = [part | (((top >> (2 * n)) & 3) << 4) for n, part in enumerate(parts)]
    return scaled(codes.float() - 4, (torch.cat(packed, 1).float() - 32) * half(blocks, 108))


def q4_k(blocks: Tensor) -> Tensor:
    """`d * scale * q - dmin * minimum`."""
    return scaled(fields(blocks[:, 16:], 32, (0, 4), 15), *six_bits(blocks))


def q5_k(blocks: Tensor) -> Tensor:
    """`d * scale * q - dmin * minimum`."""
    codes = fields(blocks[:, 48:], 32, (0, 4), 15) | (fields(blocks[:, 16:48], 32, range(8), 1) << 4)
    return scaled(codes, *six_bits(blocks))


def q6_k(blocks: Tensor) -> Tensor:
    """`d * scale * (q - 32)`."""
    codes = fields(blocks[:, :128], 64, (0, 4), 15) | (fields(blocks[:, 128:192], 32, (0, 2, 4, 6), 3) << 4)
    scales = blocks[:, 192:208].contiguous().view(torch.int8).float() * half(blocks, 208)
    return scaled(codes.float() - 32, scales)


GGML: Mapping[str, tuple[Blocks, int]] = {
    "q4_0": (q4_0, 32), "q4_1": (q4_1, 32), "q5_0": (q5_0, 32), "q5_1": (q5_1, 32), "q8_0": (q8_0, 32),
    "q2_k": (q2_k, 256), "q3_k": (q3_k, 256), "q4_k": (q4_k, 256), "q5_k": (q5_k, 256), "q6_k": (q6_k, 256),
}  # fmt: skip
"""Block type -> its decoder, and the values of a block."""
AFFINE: Mapping[str, Mapping[str, object]] = {"affine": {}, "npydir.int3": {"bits": 8, "offset": "bias"}}
"""Codec of affine codes -> parameters that are part of its definition."""


@lru_cache(4096)
def is_decodable(description: str) -> bool:
    """Whether torch's operations can decode an encoding; otherwise the CPU decodes it."""
    spec = spec_of(description)
    codec = spec.encodings[0].codec
    if codec.inner is not None or len(spec.shape) < 2:
        return False
    if codec.id.startswith("ggml."):
        return codec.id[5:] in GGML
    return codec.id in AFFINE and _is_simple(_scheme(codec), spec.shape)


def decode_rows(parts: Sequence[Tensor], description: str, start: int, stop: int, total: int | None = None) -> Tensor:
    """Rows of the tensor as a matrix in f32, leading axes flattened, on the device of its parts, which hold `total`
    rows (all of the tensor)."""
    spec = spec_of(description)
    codec, columns = spec.encodings[0].codec, spec.shape[-1]
    stored = {role: part.reshape(-1) for role, part in zip(roles_of(description), parts)}
    if total is None:
        total = spec.elements // columns if columns else 0
    rows = {role: _rows(flat, total, start, stop) for role, flat in stored.items()}
    if codec.id.startswith("ggml."):
        decode, size = GGML[codec.id[5:]]
        data = rows["data"]
        return decode(data.reshape((stop - start) * columns // size, -1)).reshape(stop - start, columns)
    if codec.id in AFFINE:
        return _affine(_scheme(codec), rows, columns)
    raise CodecError("torch's operations do not decode it", code=ErrorCode.UNCOVERED, found=codec.id)


def _rows(flat: Tensor, total: int, start: int, stop: int) -> Tensor:
    return flat.reshape(total, -1)[start:stop]


def _scheme(codec: CodecSpec) -> Scheme:
    return Scheme.of({**codec.params, **AFFINE[codec.id]})


def _is_simple(scheme: Scheme, shape: tuple[int, ...]) -> bool:
    """Whether codes and groups run along rows, in bytes, lowest bit first."""
    along = not scheme.flat and not scheme.transposed and scheme.group_axis == scheme.pack_axis == -1
    offsets = scheme.offset == "none" or scheme.offset_dtype in FLOATS
    bits = scheme.bits in (1, 2, 4, 8) and scheme.order == "lsb"
    whole = shape[-1] * scheme.bits % 8 == 0 and shape[-1] % (scheme.group_size or 1) == 0
    return along and offsets and bits and scheme.scale_dtype in FLOATS and whole


def _affine(scheme: Scheme, rows: Mapping[str, Tensor], columns: int) -> Tensor:
    data = rows["data"]
    moves = torch.arange(0, 8, scheme.bits, dtype=torch.uint8, device=data.device)
    codes = ((data[..., None] >> moves) & (255 >> (8 - scheme.bits))).reshape(len(data), -1)[:, :columns]
    values = codes.float()
    if scheme.signed:
        values = values - (codes >> (scheme.bits - 1)).float() * (1 << scheme.bits)
    values = values - scheme.zero if scheme.zero else values
    scale = rows["scale"].contiguous().view(FLOATS[scheme.scale_dtype]).float()[..., None]
    values = values.reshape(len(data), scale.shape[1], -1)
    if scheme.offset != "none":
        offset = rows["offset"].contiguous().view(FLOATS[scheme.offset_dtype]).float()[..., None]
        values = values * scale + offset if scheme.offset == "bias" else (values - offset) * scale
    else:
        values = values * scale
    return values.reshape(len(data), columns)
