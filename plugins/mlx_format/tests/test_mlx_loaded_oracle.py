"""What is written is loaded by mlx-lm as a model, its quantized layers with the values that are read here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]
CONFIG = {
    "model_type": "llama", "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 128, "rms_norm_eps": 1e-6, "head_dim": 32,
    "tie_word_embeddings": False, "max_position_embeddings": 64, "rope_theta": 10000.0,
}  # fmt: skip
LAYER = "model.layers.0"
SHAPES = {
    "model.embed_tokens": [128, 128], "lm_head": [128, 128], "model.norm": [128],
    f"{LAYER}.input_layernorm": [128], f"{LAYER}.post_attention_layernorm": [128],
    f"{LAYER}.self_attn.q_proj": [128, 128], f"{LAYER}.self_attn.k_proj": [64, 128],
    f"{LAYER}.self_attn.v_proj": [64, 128], f"{LAYER}.self_attn.o_proj": [128, 128],
    f"{LAYER}.mlp.gate_proj": [256, 128], f"{LAYER}.mlp.up_proj": [256, 128], f"{LAYER}.mlp.down_proj": [128, 256],
}  # fmt: skip


def loaded(folder: str) -> Any:
    """Runs in the peer: the values of all quantized layers, and the scores of a few tokens."""
    from pathlib import Path

    import mlx.core as mx
    from mlx_lm.utils import load_model

    mx.set_default_device(mx.cpu)
    model, _ = load_model(Path(folder))
    weights = {}
    for name, layer in model.named_modules():
        if hasattr(layer, "scales"):
            parts = [layer.weight, layer.scales, *([layer.biases] if layer.get("biases") is not None else [])]
            wide = [parts[0], *(part if part.dtype == mx.uint8 else part.astype(mx.float32) for part in parts[1:])]
            quantization = {"group_size": layer.group_size, "bits": layer.bits, "mode": layer.mode}
            weights[f"{name}.weight"] = np.array(mx.dequantize(*wide, dtype=mx.float32, **quantization))
    return {"weights": weights, "scores": np.array(model(mx.array([[1, 2, 3]])).astype(mx.float32))}


def dense(folder: Path) -> Path:
    rng, header, data = np.random.default_rng(0), {}, b""
    for name, shape in SHAPES.items():
        values = rng.normal(size=shape).astype("<f2").tobytes()
        offsets = [len(data), len(data) + len(values)]
        header[f"{name}.weight"] = {"dtype": "F16", "shape": shape, "data_offsets": offsets}
        data += values
    text = json.dumps(header).encode()
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.mark.parametrize("rules", [["q4"], ["q3"], ["q8"], ["mxfp4"], ["q4", "*down_proj*=mxfp4", "lm_head.*=keep"]])
def test_mlx_lm_loads_what_is_encoded(rules: list[str], tmp_path: Path) -> None:
    squish.convert(dense(tmp_path / "dense"), tmp_path / "out", "mlx", encode=rules, rename="hf")
    check(tmp_path / "out")


def test_mlx_lm_loads_what_is_repacked(tmp_path: Path) -> None:
    rule = "*proj.weight=affine:bits=4,group_size=32,word=i32,scale_dtype=f16,offset=zero_point,offset_dtype=packed"
    squish.convert(
        dense(tmp_path / "dense"), tmp_path / "packed", "hf:method=compressed-tensors", encode=rule, rename="hf"
    )
    squish.convert(tmp_path / "packed", tmp_path / "gptq", "hf:method=gptq_v2", rename="hf")
    squish.convert(tmp_path / "gptq", tmp_path / "out", "mlx", rename="hf")
    check(tmp_path / "out")
    with squish.open(tmp_path / "packed") as old, squish.open(tmp_path / "out") as new:
        for name in old:
            np.testing.assert_array_equal(new[name].numpy(), old[name].numpy())


def check(folder: Path) -> None:
    reference = oracles.peer("mlx-lm").run(loaded, folder=str(folder))
    assert np.isfinite(reference["scores"]).all()
    with squish.open(folder) as file:
        assert set(reference["weights"]) == {name for name, tensor in file.items() if tensor.codec != "dense"}
        for name, values in reference["weights"].items():
            # mlx may fuse the multiplication and the addition of a bias: one rounding less
            np.testing.assert_allclose(file[name].numpy(), values, rtol=1e-6, atol=2e-6)
