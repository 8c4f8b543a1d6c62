"""GPT-2: matrices that Hugging Face stores as [in, out], which block codes cannot follow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.errors import SquishError

CONFIG: dict[str, Any] = {
    "model_type": "gpt2", "n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128, "vocab_size": 64,
    "layer_norm_epsilon": 1e-5, "torch_dtype": "float32", "tie_word_embeddings": True,
}  # fmt: skip
FUSED = "transformer.h.0.attn.c_attn.weight"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "gpt2", "gpt2", CONFIG, dtype="f32", files=TOKENIZER)


def test_matrices_are_transposed_in_gguf_and_mlx(folder: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "m.gguf")
    squish.convert(folder, tmp_path / "mlx", "mlx")
    with squish.open(folder) as source, squish.open(tmp_path / "m.gguf") as gguf, squish.open(tmp_path / "mlx") as mlx:
        for file, name in ((gguf, "blk.0.attn_qkv.weight"), (mlx, "model.h.0.attn.c_attn.weight")):
            np.testing.assert_array_equal(file[name].numpy(), source[FUSED].numpy().T)


@pytest.mark.parametrize("encoding", ["q8_0", "q4_1", "f16"])
def test_a_rule_for_all_applies_to_transposed_matrices(encoding: str, folder: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "m.gguf", encode=encoding)
    with squish.open(folder) as source, squish.open(tmp_path / "m.gguf") as gguf:
        for name in ("attn_qkv", "attn_output", "ffn_up", "ffn_down"):
            tensor = gguf[f"blk.0.{name}.weight"]
            assert encoding in (tensor.codec.removeprefix("ggml."), tensor.dtype)
        error = np.abs(gguf["blk.0.attn_qkv.weight"].numpy() - source[FUSED].numpy().T).max()
        assert 0 <= error < 0.02


def test_codes_are_kept_between_gguf_and_mlx(folder: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "m.gguf", encode="q4_1")
    squish.convert(tmp_path / "m.gguf", tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "back.gguf")
    difference = squish.diff(tmp_path / "m.gguf", tmp_path / "back.gguf")
    assert {item.state for item in difference.tensors} == {"bytes"}, str(difference)


def test_blocks_go_to_hugging_face_as_floats_alone(folder: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "m.gguf", encode="q8_0")
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "hf")
    assert caught.value.code == "refused"
    assert not (tmp_path / "hf").exists()
    squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "hf", "f32")
    with squish.open(tmp_path / "m.gguf") as gguf, squish.open(tmp_path / "hf") as file:
        np.testing.assert_array_equal(file[FUSED].numpy(), gguf["blk.0.attn_qkv.weight"].numpy().T)


def test_the_first_checkpoints_names_and_masks_are_read() -> None:
    arrays = model_arrays("gpt2", CONFIG, "f32")
    short = {name.removeprefix("transformer."): values for name, values in arrays.items()}
    short["h.0.attn.bias"] = np.ones((1, 1, 8, 8), np.float32)
    file = in_memory(short, assets={"config.json": json.dumps(CONFIG).encode()})
    mapped = map_file(file, "gguf", {}, naming_of(file))
    np.testing.assert_array_equal(
        mapped["blk.1.ffn_down.weight"].numpy(), arrays["transformer.h.1.mlp.c_proj.weight"].T
    )


@pytest.mark.parametrize("key", ["n_embd", "n_head", "n_layer", "n_positions", "layer_norm_epsilon"])
def test_a_missing_size_is_refused(key: str, folder: Path, tmp_path: Path) -> None:
    config = {name: value for name, value in CONFIG.items() if name != key}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SquishError) as caught:
        squish.convert(folder, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("config", "config.json")
