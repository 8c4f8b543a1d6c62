"""Checkpoints that compressed-tensors compresses while the test runs: every preset, alone and all in one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish
from squish_core.api import dtypes

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
PRESETS = {
    "W2A16": "pack-quantized", "W3A16": "pack-quantized", "W4A16": "pack-quantized", "W4A16_ASYM": "pack-quantized",
    "W5A16": "pack-quantized", "W6A16": "pack-quantized", "W7A16": "pack-quantized", "W8A16": "pack-quantized",
    "W8A8": "int-quantized", "FP8": "float-quantized", "FP8_DYNAMIC": "float-quantized",
    "FP8_BLOCK": "float-quantized", "NVFP4": "nvfp4-pack-quantized", "NVFP4A16": "nvfp4-pack-quantized",
    "MXFP4A16": "mxfp4-pack-quantized", "MXFP8A16": "mxfp8-quantized",
}  # fmt: skip
BF16 = dtypes.to_numpy("bf16")
READ_BY_NONE = {".input_scale": "FP8", ".input_global_scale": "NVFP4"}


def compressed(folder: str, layers: dict[str, str], dtype: str, force: str, by_class: bool) -> Any:
    """Runs in the peer: saves a seeded layer under each name, quantized as its preset says; its weight from the
    package's own decompression, and the formats that the package chose."""
    import json
    from pathlib import Path

    import torch
    from compressed_tensors.compressors import compress_module, decompress_module
    from compressed_tensors.quantization import (
        QuantizationConfig,
        QuantizationStatus,
        initialize_module_for_quantization,
        preset_name_to_scheme,
    )
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam
    from safetensors.torch import save_file

    torch.manual_seed(0)
    groups, stored, weights, formats = {}, {}, {}, {}
    for number, (name, preset) in enumerate(layers.items()):
        layer = torch.nn.Linear(256, 128, bias=False, dtype=getattr(torch, dtype))
        scheme = preset_name_to_scheme(preset, ["Linear" if by_class else f"re:.*{name.split('.')[-1]}$"])
        initialize_module_for_quantization(layer, scheme)
        args, values = scheme.weights, layer.weight.detach()
        whole = getattr(layer, "weight_global_scale", None)
        if whole is not None:
            whole.data = generate_gparam(values.amin(), values.amax()).reshape(whole.shape)
        across = list(layer.weight_scale.shape)
        if args.strategy == "block":
            tiles = values.unflatten(0, (across[0], -1)).unflatten(2, (across[1], -1)).transpose(1, 2).flatten(2)
        elif args.strategy == "tensor":
            tiles = values.reshape(1, -1)
        else:
            tiles = values.reshape(*across, -1)
        scale, zero = calculate_qparams(tiles.amin(-1), tiles.amax(-1), args, global_scale=whole)
        layer.weight_scale.data = scale.reshape(across).to(layer.weight_scale.dtype)
        layer.weight_zero_point.data = zero.reshape(across).to(layer.weight_zero_point.dtype)
        layer.quantization_scheme, layer.quantization_status = scheme, QuantizationStatus.FROZEN
        compress_module(layer, force or None)
        formats[name] = scheme.format.value
        stored.update({f"{name}.{key}": part.clone() for key, part in layer.state_dict().items()})
        groups[f"group_{number}"] = scheme
        decompress_module(layer)
        weights[f"{name}.weight"] = layer.weight.detach().to(torch.float32).numpy()
    kinds = set(formats.values())
    config = QuantizationConfig(
        config_groups=groups,
        quantization_status="compressed",
        ignore=["lm_head"],
        format=kinds.pop() if len(kinds) == 1 else "mixed-precision",
    )
    stated = {"quantization_config": {"quant_method": "compressed-tensors", **config.to_dict()}}
    (Path(folder) / "config.json").write_text(json.dumps(stated, default=str))
    save_file({**stored, "lm_head.weight": torch.ones(4, 4)}, str(Path(folder) / "model.safetensors"))
    return {"weights": weights, "formats": formats}


def check(folder: Path, reference: dict[str, Any], dtype: str = "float32") -> None:
    with squish.open(folder) as file:
        assert (set(file), file.problems) == ({*reference["weights"], "lm_head.weight"}, ())
        for name, weight in reference["weights"].items():
            # it multiplies in the dtype of the scales, and NVFP4 always in bfloat16
            narrow = np.float32 if dtype == "float32" and "nvfp4" not in reference["formats"][name[:-7]] else BF16
            np.testing.assert_array_equal(file[name].numpy().astype(narrow).astype(np.float32), weight, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("preset", PRESETS)
def test_a_preset_for_all_layers(preset: str, dtype: str, tmp_path: Path) -> None:
    peer = oracles.peer("transformers")
    reference = peer.run(compressed, folder=str(tmp_path), layers={"m.a": preset}, dtype=dtype, force="", by_class=True)
    assert reference["formats"] == {"m.a": PRESETS[preset]}
    check(tmp_path, reference, dtype)


def test_every_layer_by_a_preset_of_its_own(tmp_path: Path) -> None:
    layers = {f"m.{preset.lower()}_proj": preset for preset in PRESETS}
    reference = oracles.peer("transformers").run(
        compressed, folder=str(tmp_path), layers=layers, dtype="float32", force="", by_class=False
    )
    assert json.loads((tmp_path / "config.json").read_text())["quantization_config"]["format"] == "mixed-precision"
    check(tmp_path, reference)
    with squish.open(tmp_path) as file:
        for suffix, preset in READ_BY_NONE.items():
            assert suffix[1:] in file[f"m.{preset.lower()}_proj.weight"].spec.extras


@pytest.mark.parametrize("preset", ["W4A16_ASYM", "W8A8", "FP8", "FP8_BLOCK"])
def test_naive_codes(preset: str, tmp_path: Path) -> None:
    arguments = {"folder": str(tmp_path), "layers": {"m.a": preset}, "dtype": "float32", "by_class": True}
    reference = oracles.peer("transformers").run(compressed, force="naive-quantized", **arguments)
    assert reference["formats"] == {"m.a": "naive-quantized"}
    check(tmp_path, reference)
