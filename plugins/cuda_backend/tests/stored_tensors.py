"""Tensors with random stored parts, whose scales are of ordinary size."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from random_parts import random_tensor
from squish_cuda.blocks import BLOCKS, DIGITS, GRIDS, NBYTES, Float
from squish_cuda.weights import scatter
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
"""Where kernels run: the CPU, in Triton's interpreter, if there is no GPU."""
FLOATS = {"f16": np.float16, "f32": np.float32}
GPTQ = {
    "bits": 4,
    "group_size": 64,
    "axis": -2,
    "transposed": True,
    "word": "i32",
    "offset": "zero_point",
    "offset_dtype": "packed",
    "scale_dtype": "f16",
    "zero": 1,
}
AWQ = {**GPTQ, "pack_axis": -1, "order": [0, 2, 4, 6, 1, 3, 5, 7], "zero": 0}
LAYOUTS = {
    "GPTQ": CodecSpec("affine", GPTQ),
    "AWQ": CodecSpec("affine", AWQ),
    "MLX": CodecSpec("affine", {"bits": 4, "group_size": 64, "offset": "bias", "scale_dtype": "bf16", "word": "u32"}),
    "3 bits": CodecSpec("affine", {"bits": 3, "group_size": 64, "word": "u32"}),
    "7 bits": CodecSpec("affine", {"bits": 7, "group_size": 32, "offset": "zero_point", "offset_dtype": "f16"}),
    "int8 by rows": CodecSpec("affine", {"bits": 8}),
    "act-order": CodecSpec("hf.act_order", {}, inner=CodecSpec("affine", {**GPTQ, "zero": 0})),
    "MXFP4": CodecSpec("mx"),
    "NVFP4": CodecSpec("mx", {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}),
    "MXFP8": CodecSpec("mx", {"element": "f8_e4m3"}),
    "NF4": CodecSpec("palette", {"bits": 4, "table": "nf4", "scale_dtype": "f32", "group_size": 64}),
    "palette": CodecSpec("palette", {"bits": 3, "codebook_dtype": "f16"}),
    "FP8": CodecSpec("float8"),
    "FP8 in blocks": CodecSpec("float8", {"block": [16, 128]}),
    "HQQ": CodecSpec("hqq", {"bits": 4, "group_size": 64, "axis": 1}),
    "HQQ in 3 bits": CodecSpec("hqq", {"bits": 3, "group_size": 32, "axis": 1}),
    "panels": CodecSpec("panels", {"group_size": 32, "scale_dtype": "f16", "zero": 8}),
}
"""Layouts of formats that are in use, other than GGML's blocks."""


def stored(codec: CodecSpec, shape: tuple[int, ...], seed: int = 0) -> Any:
    """A tensor with random parts."""
    tensor = random_tensor(codec, shape, seed, finite=True)
    name = codec.id.partition(".")[2]
    if codec.id != f"ggml.{name}" or name not in NBYTES:
        return tensor
    chance = np.random.default_rng(seed)
    data = np.array(tensor.parts(tensor.bound.encoding)["data"]).reshape(-1, NBYTES[name])
    fields = [Float("f16", 52)]
    if name in GRIDS:
        pieces, fields = GRIDS[name].factor, []
        for width, places in pieces:
            for place in places:
                data[:, place // 8] &= 255 ^ (((1 << width) - 1) << place % 8)
        scatter(data, pieces, chance.standard_normal(len(data)).astype("<f2").view(np.uint8).reshape(-1, 2))
    elif name in BLOCKS:
        block = BLOCKS[name]
        fields = [block.scale, block.factor, block.offset, block.offset_factor]
    for field in fields:
        if isinstance(field, Float):
            values = chance.standard_normal(len(data)).astype(FLOATS[field.dtype])
            data[:, field.start : field.start + values.itemsize] = values.view(np.uint8).reshape(len(data), -1)
        elif field is not None and field.dtype.startswith("half"):
            size = len(field.pieces[0][1])
            data[:, :size] = chance.integers(118 if "e8m0" in field.dtype else 0, 126, (len(data), size))
    spec = TensorSpec(name="w", shape=shape, dtype="f32")
    file, _ = memory_file(squish.registry(), {"w": (spec, codec, {"data": data.reshape(*shape[:-1], -1)})})
    return file["w"]


def every_layout() -> dict[str, CodecSpec]:
    """The layouts in use, and all blocks."""
    return {**{name: CodecSpec(f"ggml.{name}") for name in (*BLOCKS, *GRIDS, DIGITS)}, **LAYOUTS}
