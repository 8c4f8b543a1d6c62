"""Small checkpoints of arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

import squish_core as squish

E4M3, BF16 = np.dtype(ml_dtypes.float8_e4m3fn), np.dtype(ml_dtypes.bfloat16)
E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
TAGS = {"uint8": "U8", "int8": "I8", "int16": "I16", "int32": "I32", "int64": "I64", "float32": "F32", "float16": "F16",
        "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e8m0fnu": "F8_E8M0"}  # fmt: skip


def checkpoint(tmp_path: Path, quantization: dict[str, Any], **tensors: Any) -> squish.File:
    """A checkpoint of arrays whose config.json declares this; names have "__" for dots."""
    return written(tmp_path, {"config.json": {"quantization_config": quantization}}, **tensors)


def written(tmp_path: Path, beside: dict[str, Any], **tensors: Any) -> squish.File:
    """A checkpoint of arrays with JSON files beside it; names have "__" for dots."""
    header, data = {}, b""
    for name, values in tensors.items():
        array = np.asarray(values)
        header[name.replace("__", ".")] = {
            "dtype": TAGS[array.dtype.name], "shape": array.shape,
            "data_offsets": [len(data), len(data) + array.nbytes],
        }  # fmt: skip
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    tmp_path.mkdir(exist_ok=True)
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    for name, content in beside.items():
        (tmp_path / name).write_text(json.dumps(content))
    return squish.open(tmp_path)


def packed(codes: np.ndarray) -> np.ndarray:
    """Rows of eight 4-bit codes a word, the first in the lowest bits."""
    lanes = codes.astype(np.uint32).reshape(*codes.shape[:-1], -1, 8)
    return np.bitwise_or.reduce(lanes << np.arange(0, 32, 4, dtype=np.uint32), axis=-1).view(np.int32)


def bits_of(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as one stream of bits in words of 32, low bits first; rows must end with a word."""
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<i4")
