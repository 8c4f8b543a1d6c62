"""bitsandbytes, and Transformers for FP8 and gpt-oss, on a CPU as independent judges."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)
TAGS = {
    "uint8": "U8", "int8": "I8", "float32": "F32", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
    "float8_e8m0fnu": "F8_E8M0",
}  # fmt: skip


def four_bits(values: np.ndarray, kind: str, block: int, nested: bool) -> Any:
    """Runs in the peer: stored parts by name, and the values of its own dequantization."""
    import bitsandbytes.functional as F  # noqa: N812
    import torch

    codes, state = F.quantize_4bit(
        torch.from_numpy(values), blocksize=block, compress_statistics=nested, quant_type=kind
    )
    parts = {"": codes, **{f".{name}": part for name, part in state.as_dict(packed=True).items()}}
    values = F.dequantize_4bit(codes, state)
    return {"parts": {name: part.numpy() for name, part in parts.items()}, "values": values.numpy()}


def eight_bits(values: np.ndarray) -> Any:
    """Runs in the peer: codes, scales and values of int8 rows."""
    import bitsandbytes.functional as F  # noqa: N812
    import torch

    codes, scale, _ = F.int8_vectorwise_quant(torch.from_numpy(values).half())
    return {"codes": codes.numpy(), "scale": scale.numpy(), "values": F.int8_vectorwise_dequant(codes, scale).numpy()}


def float8(codes: np.ndarray, scale: np.ndarray, scale_dtype: str) -> Any:
    """Runs in the peer: a weight from the bytes of its codes and scales."""
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    weight, grid = (
        torch.from_numpy(part.copy()).view(getattr(torch, dtype))
        for part, dtype in ((codes, "float8_e4m3fn"), (scale, scale_dtype))
    )
    return Fp8Dequantize(None)._dequantize_one(weight, grid, torch.float32).numpy()


def experts(blocks: np.ndarray, scales: np.ndarray) -> Any:
    """Runs in the peer: the weights of experts as gpt-oss holds them, [experts, in, out]."""
    import torch
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    parts = (torch.from_numpy(part.copy()) for part in (blocks, scales))
    return convert_moe_packed_tensors(*parts, dtype=torch.float32).numpy()


def checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> squish.File:
    header, data = {}, b""
    for name, array in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": TAGS[array.dtype.name], "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps({"quantization_config": config}))
    return squish.open(folder)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [64, 256])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits(kind: str, block: int, nested: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(48, 120)).astype(np.float32)
    theirs = oracles.peer("bitsandbytes").run(four_bits, values=values, kind=kind, block=block, nested=nested)
    stored = {f"a.weight{name}": part for name, part in theirs["parts"].items()}
    with checkpoint(tmp_path, {"quant_method": "bitsandbytes", "load_in_4bit": True}, stored) as file:
        assert (set(file), file.problems) == ({"a.weight"}, ())
        np.testing.assert_array_equal(file["a.weight"].numpy(), theirs["values"])


def test_eight_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(48, 120)).astype(np.float32)
    theirs = oracles.peer("bitsandbytes").run(eight_bits, values=values)
    stored = {"a.weight": theirs["codes"], "a.SCB": theirs["scale"].astype(np.float32)}
    with checkpoint(tmp_path, {"quant_method": "bitsandbytes", "load_in_8bit": True}, stored) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy(), theirs["values"])


@pytest.mark.parametrize("scale_dtype", ["float32", "bfloat16", "float8_e8m0fnu"])
@pytest.mark.parametrize(("grid", "block"), [((1, 1), None), ((48, 1), None), ((3, 4), [16, 16]), ((6, 2), [8, 32])])
def test_float8_by_tensor_row_and_block(
    grid: tuple[int, int], block: list[int] | None, scale_dtype: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 256, (48, 64), np.uint8)
    codes[codes & 0x7F == 0x7F] = 0  # NaN
    kind = {"float32": np.dtype(np.float32)}.get(scale_dtype) or np.dtype(getattr(ml_dtypes, scale_dtype))
    scale = rng.uniform(1e-3, 2, grid).astype(kind)
    raw = scale if scale_dtype == "float32" else scale.view(np.dtype(f"u{kind.itemsize}"))
    expected = oracles.peer("transformers").run(float8, codes=codes, scale=raw, scale_dtype=scale_dtype)
    name = "weight_scale_inv" if block else "weight_scale"
    stored = {"a.weight": codes.view(E4M3), f"a.{name}": scale}
    config = {"quant_method": "fp8", **({"weight_block_size": block} if block else {})}
    with checkpoint(tmp_path, config, stored) as file:
        assert file.problems == ()
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected)


def test_experts_in_mxfp4(tmp_path: Path) -> None:
    """Every code under every scale but 255, a NaN that the package takes for 2 ** 128."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (2, 16, 8, 16), np.uint8)
    scales = rng.permutation(256).clip(0, 254).reshape(2, 16, 8).astype(np.uint8)
    expected = oracles.peer("transformers").run(experts, blocks=blocks, scales=scales)
    stored = {"m.down_proj_blocks": blocks, "m.down_proj_scales": scales}
    with checkpoint(tmp_path, {"quant_method": "mxfp4"}, stored) as file:
        assert (set(file), file.problems) == ({"m.down_proj"}, ())
        np.testing.assert_array_equal(file["m.down_proj"].numpy(), expected.transpose(0, 2, 1))
