"""The files of a folder on the way to other formats and back: carried, or listed as not carried."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_testing import write_model

import squish_core as squish

QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False,
}  # fmt: skip
CARRIED = {
    "video_preprocessor_config.json": '{"size": 1}', "modules.json": "[]", "modeling_tiny.py": "x = 1\n",
    "1_Pooling/config.json": '{"pooling_mode_mean_tokens": true}', "config_sentence_transformers.json": "{}",
}  # fmt: skip
NOT_READ = ("README.md", "onnx/")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    files = {"tokenizer.json": TOKENIZER["tokenizer.json"], **{name: text.encode() for name, text in CARRIED.items()}}
    flat = {name: data for name, data in files.items() if "/" not in name}
    path = write_model(tmp_path / "in", "qwen2", QWEN, files=flat)
    for name, data in {**files, "README.md": b"read me", "onnx/model.txt": b"graph"}.items():
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(data if isinstance(data, bytes) else str(data).encode())
    return path


WAYS = (("hf",), ("mlx",), ("m.gguf", "hf"), ("m.zt", "hf"), ("npydir", "hf"), ("mlx", "m.gguf", "hf"))


@pytest.mark.parametrize("way", WAYS)
def test_every_file_is_carried_or_listed(folder: Path, tmp_path: Path, way: tuple[str, ...]) -> None:
    if "npydir" in way:
        pytest.importorskip("squish_npydir")
    source, listed = folder, set[str]()
    for number, step in enumerate(way):
        target = tmp_path / f"{number}-{step}"
        report = squish.convert(source, target, None if "." in step else step)
        listed |= {item.name for item in report.dropped if item.kind == "asset"}
        source = target
    written = {path.relative_to(source).as_posix(): path for path in source.rglob("*") if path.is_file()}
    assert {name: written[name].read_text() for name in CARRIED if name in written} == {
        name: text for name, text in CARRIED.items() if name not in listed
    }
    assert set(NOT_READ) <= listed
    assert not set(CARRIED) & listed


def test_uqff_lists_what_it_does_not_carry(folder: Path, tmp_path: Path) -> None:
    report = squish.convert(folder, tmp_path / "uqff", "uqff")
    listed = {item.name for item in report.dropped if item.kind == "asset"}
    written = {path.name for path in (tmp_path / "uqff").iterdir()}
    assert all(name in listed or name in written for name in (*CARRIED, *NOT_READ))
    (tmp_path / "uqff" / "notes.txt").write_text("more")
    report = squish.convert(tmp_path / "uqff", tmp_path / "back", "hf")
    assert {item.name for item in report.dropped if item.kind == "asset"} == {"notes.txt", "uqff_report.json"}


def test_a_head_of_its_own_is_kept_where_the_outer_setting_says_so(tmp_path: Path) -> None:
    own = write_model(
        tmp_path / "text",
        "qwen2",
        QWEN,
        files={"tokenizer.json": TOKENIZER["tokenizer.json"]},
    )
    config = json.loads((own / "config.json").read_text())
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    inner = {**config, "tie_word_embeddings": True, "model_type": "qwen2_5_vl_text", "rope_scaling": rope}
    outer = {"model_type": "qwen2_5_vl", "vision_config": {}, "text_config": inner, "tie_word_embeddings": False}
    (own / "config.json").write_text(json.dumps(outer))
    squish.convert(own, tmp_path / "m.gguf")
    with squish.open(own) as source, squish.open(tmp_path / "m.gguf") as file:
        np.testing.assert_array_equal(file["output.weight"].numpy(), source["lm_head.weight"].numpy())
