"""Checkpoint folders as FP8, MXFP4 and bitsandbytes software writes them, built by hand: no package of theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
import transformers
from tiny_models import SIZES, _saved, _seeded, tiny_llama

Tensors = dict[str, torch.Tensor]
NF4 = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635, -0.18477343022823334,
    -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Values of bitsandbytes' 4-bit codes."""


def fp8_folder(folder: Path, **sizes: int) -> Path:
    """A Llama whose linear layers are float8 with a scale for each block of 128 x 128; the last blocks may be less."""
    tiny_llama(folder, tied=False, **{"hidden_size": 192, "intermediate_size": 320, **sizes})

    def quantized(name: str, values: torch.Tensor) -> Tensors:
        rows, columns = (-(-size // 128) for size in values.shape)
        scale = torch.empty(rows, columns)
        codes = torch.empty(values.shape, dtype=torch.float8_e4m3fn)
        for row in range(rows):
            for column in range(columns):
                block = slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128)
                scale[row, column] = values[block].abs().max() / 448
                codes[block] = (values[block] / scale[row, column]).to(torch.float8_e4m3fn)
        return {name: codes, f"{name}_scale_inv": scale}

    settings = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    return _rewritten(folder, settings, quantized)


def nf4_folder(folder: Path) -> Path:
    """A Llama whose linear layers are bitsandbytes' NF4 in blocks of 64."""
    tiny_llama(folder, tied=False)

    def quantized(name: str, values: torch.Tensor) -> Tensors:
        blocks = values.reshape(-1, 64)
        scale = blocks.abs().amax(1)
        table = torch.tensor(NF4)
        codes = ((blocks / scale[:, None])[..., None] - table).abs().argmin(-1).to(torch.uint8).reshape(-1, 2)
        state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float32", "shape": list(values.shape)}
        return {
            name: ((codes[:, 0] << 4) | codes[:, 1])[:, None],
            f"{name}.absmax": scale,
            f"{name}.quant_map": table,
            f"{name}.quant_state.bitsandbytes__nf4": torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8),
        }

    settings = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    return _rewritten(folder, settings, quantized)


def int8_folder(folder: Path, **sizes: int) -> Path:
    """A Llama whose linear layers are bitsandbytes' int8 rows."""
    tiny_llama(folder, tied=False, **sizes)

    def quantized(name: str, values: torch.Tensor) -> Tensors:
        scale = values.abs().amax(1)
        codes = (values / scale[:, None] * 127).round().to(torch.int8)
        prefix = name.removesuffix("weight")
        return {name: codes, f"{prefix}SCB": scale, f"{prefix}weight_format": torch.tensor(0, dtype=torch.uint8)}

    return _rewritten(folder, {"quant_method": "bitsandbytes", "load_in_8bit": True}, quantized)


def mxfp4_folder(folder: Path) -> Path:
    """A gpt-oss whose experts are MXFP4."""
    config = transformers.GptOssConfig(
        **{**SIZES, "intermediate_size": 96, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4}
    )
    _saved(transformers.GptOssForCausalLM(_seeded(config)), folder)
    rng = np.random.default_rng(0)

    def quantized(name: str, values: torch.Tensor) -> Tensors:
        experts, columns, rows = values.shape
        grid = (experts, rows, columns // 32)
        codes, exponents = rng.integers(0, 256, (*grid, 16), np.uint8), rng.integers(119, 123, grid, np.uint8)
        return {f"{name}_blocks": torch.from_numpy(codes), f"{name}_scales": torch.from_numpy(exponents)}

    settings = {
        "quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }  # fmt: skip
    return _rewritten(folder, settings, quantized, suffixes=("experts.gate_up_proj", "experts.down_proj"))


def _rewritten(
    folder: Path, settings: Mapping[str, Any], quantized: Any, suffixes: tuple[str, ...] = ("_proj.weight",)
) -> Path:
    """The folder with some tensors quantized, and its config stating how."""
    path = folder / "model.safetensors"
    tensors: Tensors = {}
    for name, values in safetensors.torch.load_file(path).items():
        tensors |= quantized(name, values) if name.endswith(suffixes) else {name: values}
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    return folder


FOLDERS = {"fp8": fp8_folder, "nf4": nf4_folder, "int8": int8_folder, "mxfp4": mxfp4_folder}
