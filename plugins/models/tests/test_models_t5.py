"""Encoders of T5: embeddings under two names, decoders that are left out, and what llama.cpp does not compute."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_models.api import check_model
from squish_testing import model_arrays

import squish_core as squish
from squish_core.model import Typed

PLAIN, GATED, UMT5 = (
    PUBLISHED[name][1]
    for name in ("sentence-t5-base", "FLUX.1-dev/text_encoder_2", "Wan2.1-T2V-14B-Diffusers/text_encoder")
)
FAMILIES = {"t5_encoder": PLAIN, "t5_gated_encoder": GATED, "umt5_encoder": UMT5}
SHARED, COPY = "shared.weight", "encoder.embed_tokens.weight"
DECODER = {"decoder.block.0.layer.0.SelfAttention.q.weight": np.zeros((24, 32), np.float32)}


def folder_of(path: Path, arrays: Mapping[str, np.ndarray], config: Mapping[str, Any]) -> Path:
    squish.save(path, dict(arrays), format="safetensors:max_shard_size=1GB", metadata={"format": "pt"})
    for name, data in {**TOKENIZER, "config.json": json.dumps(config).encode()}.items():
        (path / name).write_bytes(data)
    return path


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_has_the_tensors_of_an_encoder(family: str, tmp_path: Path) -> None:
    config = FAMILIES[family]
    source = folder_of(tmp_path / "m", model_arrays(family, config), config)
    squish.convert(source, tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        tables = [layer for layer in range(4) if f"enc.blk.{layer}.attn_rel_b.weight" in file]
        assert tables == ([*range(4)] if family == "umt5_encoder" else [0])
        assert ("enc.blk.0.ffn_gate.weight" in file) == (family != "t5_encoder")
    assert check_model(tmp_path / "m.gguf", "llama.cpp").loads
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert check_model(tmp_path / "back", "transformers").loads


def test_embeddings_have_either_name_or_both(tmp_path: Path) -> None:
    arrays = model_arrays("t5_gated_encoder", GATED)
    others = {name: values for name, values in arrays.items() if name != SHARED}
    cases = {"one": arrays, "other": {**others, COPY: arrays[SHARED]}, "both": {**arrays, COPY: arrays[SHARED]}}
    for name, each in cases.items():
        report = squish.convert(folder_of(tmp_path / name, each, GATED), tmp_path / f"{name}.gguf")
        assert [item.name for item in report.dropped] == ([COPY] if name == "both" else [])
    with squish.open(tmp_path / "one.gguf") as one, squish.open(tmp_path / "other.gguf") as other:
        assert {*one} == {*other}
        np.testing.assert_array_equal(one["token_embd.weight"].numpy(), other["token_embd.weight"].numpy())


def test_the_text_about_a_whole_t5_says_how_to_write_its_encoder(tmp_path: Path) -> None:
    arrays = {**model_arrays("t5_gated_encoder", GATED), **DECODER}
    whole = {**GATED, "architectures": ["T5ForConditionalGeneration"]}
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(folder_of(tmp_path / "m", arrays, whole), tmp_path / "m.gguf")
    assert caught.value.part == "config.json architectures"
    assert "T5EncoderModel" in str(caught.value)
    report = squish.convert(folder_of(tmp_path / "n", arrays, GATED), tmp_path / "n.gguf")
    assert [item.name for item in report.dropped] == [*DECODER]
    assert check_model(tmp_path / "n.gguf", "llama.cpp").loads


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another gate": ("t5_encoder", {"feed_forward_proj": "gated-silu"}, "feed_forward_proj"),
    "another activation": ("t5_encoder", {"feed_forward_proj": "gelu"}, "feed_forward_proj"),
    "an activation of UMT5": ("umt5_encoder", {"feed_forward_proj": "relu"}, "feed_forward_proj"),
    "another distance": (
        "t5_gated_encoder", {"relative_attention_max_distance": 64}, "relative_attention_max_distance",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_text_about_a_setting_that_llama_cpp_does_not_compute(case: str, tmp_path: Path) -> None:
    family, changed, word = REFUSED[case]
    config = FAMILIES[family]
    source = folder_of(tmp_path / "m", model_arrays(family, config), {**config, **changed})
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.code == "config"
    assert word in str(caught.value)


def test_a_dense_module_that_llama_cpp_does_not_compute_is_refused(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "m", model_arrays("t5_encoder", PLAIN), PLAIN)
    kinds = [{"path": "", "type": "x.Transformer"}, {"path": "2_Dense", "type": "x.Dense"}]
    (source / "modules.json").write_text(json.dumps(kinds))
    (source / "2_Dense").mkdir()
    squish.save(source / "2_Dense" / "model.safetensors", {"linear.weight": np.zeros((32, 32), np.float32)})
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert caught.value.part == "modules.json"


def test_a_gguf_without_the_number_of_buckets_is_refused(tmp_path: Path) -> None:
    source = folder_of(tmp_path / "m", model_arrays("t5_encoder", PLAIN), PLAIN)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    for value in (None, Typed("u32", 8)):
        changed = {**meta, "t5encoder.attention.relative_buckets_count": value}
        squish.save(tmp_path / "n.gguf", arrays, metadata={key: each for key, each in changed.items() if each})
        assert not check_model(tmp_path / "n.gguf", "llama.cpp").loads
        with pytest.raises(squish.SquishError):
            squish.convert(tmp_path / "n.gguf", tmp_path / "back", "hf")
