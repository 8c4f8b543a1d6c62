"""bitsandbytes on a CPU as an independent judge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = pytest.mark.oracle
TAGS = {"uint8": "U8", "int8": "I8", "float32": "F32"}


def four_bits(values: np.ndarray, kind: str, block: int, nested: bool) -> Any:
    """Runs in the peer: stored parts by name, and the values of its own dequantisation."""
    import bitsandbytes.functional as F  # noqa: N812
    import torch

    codes, state = F.quantize_4bit(
        torch.from_numpy(values), blocksize=block, compress_statistics=nested, quant_type=kind
    )  # fmt: skip
    parts = {"": codes, **{f".{name}": part for name, part in state.as_dict(packed=True).items()}}
    values = F.dequantize_4bit(codes, state)
    return {"parts": {name: part.numpy() for name, part in parts.items()}, "values": values.numpy()}


def eight_bits(values: np.ndarray) -> Any:
    """Runs in the peer: codes, scales and values of int8 rows."""
    import bitsandbytes.functional as F  # noqa: N812
    import torch

    codes, scale, _ = F.int8_vectorwise_quant(torch.from_numpy(values).half())
    return {"codes": codes.numpy(), "scale": scale.numpy(), "values": F.int8_vectorwise_dequant(codes, scale).numpy()}


def checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> squish.File:
    header, data = {}, b""
    for name, array in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": TAGS[array.dtype.name], "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "bitsandbytes", **config}}))
    return squish.open(folder)


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("block", [64, 256])
@pytest.mark.parametrize("kind", ["nf4", "fp4"])
def test_four_bits(kind: str, block: int, nested: bool, tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(48, 120)).astype(np.float32)
    theirs = oracles.peer("bitsandbytes").run(four_bits, values=values, kind=kind, block=block, nested=nested)
    stored = {f"a.weight{name}": part for name, part in theirs["parts"].items()}
    with checkpoint(tmp_path, {"load_in_4bit": True}, stored) as file:
        assert (set(file), file.problems) == ({"a.weight"}, ())
        np.testing.assert_array_equal(file["a.weight"].numpy(), theirs["values"])


def test_eight_bits(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(48, 120)).astype(np.float32)
    theirs = oracles.peer("bitsandbytes").run(eight_bits, values=values)
    stored = {"a.weight": theirs["codes"], "a.SCB": theirs["scale"].astype(np.float32)}
    with checkpoint(tmp_path, {"load_in_8bit": True}, stored) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy(), theirs["values"])
