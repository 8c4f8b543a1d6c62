"""8-bit and 4-bit floats with scales: float8, microscaling, and int8 with scales per row."""

from __future__ import annotations

import torch
from torch import Tensor

from squish_core.api import CodecSpec, TensorSpec

from .ggml import E2M1, HALF_E4M3, entries, fields
from .stored import Stored, numbers

MX = {"element": "f4_e2m1", "block_size": 32, "scale_dtype": "f8_e8m0", "global_scale": "none"}
"""Default parameters of `mx`."""


FLOAT4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""The value of each f4_e2m1."""


def float4(data: Tensor) -> Tensor:
    """Return the values of pairs of f4_e2m1, the first in the low bits: [rows, bytes] to [rows, values]."""
    return entries(fields(data, 1, (0, 4), 15), FLOAT4)


def mx(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of `mx`: one scale for each block of a row, and possibly one for the tensor."""
    params = {**MX, **stored.codec.params}
    data = stored.row_bytes("data", start, stop)
    values = float4(data) if params["element"] == "f4_e2m1" else numbers(data[..., None], params["element"])
    scale = stored.row_numbers("scale", start, stop)
    if params["global_scale"] != "none":
        factor = stored.numbers("global_scale")
        scale = scale * factor if params["global_scale"] == "multiply" else scale / factor
    return (values.reshape(*scale.shape, params["block_size"]) * scale[..., None]).reshape(len(values), -1)


def axis_mx(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of `zt.mx`: blocks along any axis."""
    params, shape = stored.codec.params, stored.spec.shape
    dtype, axis, block = params["dtype"], params["axis"], params["block_size"]
    data = stored.row_bytes("data", start, stop)
    values = float4(data) if dtype == "f4_e2m1" else numbers(data[..., None], dtype)
    scale = stored.numbers("scales")
    if axis == len(shape) - 1:
        scale = scale.reshape(stored.rows, -1)[start:stop]
        return (values.reshape(*scale.shape, block) * scale[..., None]).reshape(values.shape)
    row = torch.arange(scale.numel() // shape[-1], device=data.device).reshape(scale.shape[:-1])
    row = row.repeat_interleave(block, axis).reshape(-1)[start:stop]
    return values * scale.reshape(-1, shape[-1])[row]


def float8(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of `float8`: one scale, or one for each block of a matrix."""
    params, shape = stored.codec.params, stored.spec.shape
    values = numbers(stored.row_bytes("data", start, stop)[..., None], params.get("element", "f8_e4m3"))
    scale = stored.numbers("scale")
    if params.get("block") is None:
        return values * scale
    (block_rows, block_columns), height, width = params["block"], shape[-2], shape[-1]
    row, column = torch.arange(start, stop, device=values.device), torch.arange(width, device=values.device)
    row = row // height * scale.shape[-2] + row % height // (block_rows or height)
    return values * scale.reshape(-1, scale.shape[-1])[row][:, column // (block_columns or width)]


def has_row_scales(spec: TensorSpec, codec: CodecSpec) -> bool:
    """Return whether each row of `float8` has its own scales."""
    block = codec.params.get("block")
    return block is not None and block[0] == 1


def int8_rows(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of bitsandbytes' int8."""
    codes = numbers(stored.row_bytes("data", start, stop)[..., None], "i8")
    return codes * stored.numbers("scale")[start:stop, None] * (1 / 127)


def f8q8(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of `uqff.f8q8`: blocks of the flattened tensor."""
    first, last = start * stored.columns, stop * stored.columns
    blocks = stored.bytes_of("data")[..., 0][first // 32 : -(-last // 32)]
    scale = numbers(blocks[:, :1, None], "f8_e4m3") / 416
    values = numbers(blocks[:, 1:, None], "i8") * scale
    return values.reshape(-1)[first % 32 :][: last - first].reshape(stop - start, -1)


def scaled_nvfp4(stored: Stored, start: int, stop: int) -> Tensor:
    """Decode rows of NVFP4 blocks with a scale for each matrix."""
    blocks = stored.row_bytes("data", start, stop).reshape(stop - start, -1, 36)
    height = stored.spec.shape[-2]
    matrix = torch.arange(start, stop, device=blocks.device) // height
    scale = (2 * entries(blocks[..., :4], HALF_E4M3)).reshape(len(blocks), -1)
    scale = scale * stored.numbers("global_scale").reshape(-1)[matrix][:, None]
    codes = entries(fields(blocks.reshape(-1, 36)[:, 4:], 8, (0, 4), 15), E2M1) / 2
    return (codes.reshape(*scale.shape, 16) * scale[..., None]).reshape(stop - start, -1)
