"""The models that a file was made from, as its metadata, configuration or model card states it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_convert.lineage import lineage
from squish_convert.places import groups, kind_of, layer_of

import squish_core as squish

TENSORS = {"model.layers.0.mlp.up_proj.weight": np.ones((4, 32), np.float32), "norm.weight": np.ones(32, np.float16)}
GGUF = {
    "general.base_model.count": 2,
    "general.base_model.0.name": "Qwen3 0.6B",
    "general.base_model.0.organization": "Qwen",
    "general.base_model.0.repo_url": "https://huggingface.co/Qwen/Qwen3-0.6B",
    "general.base_model.1.name": "Other",
    "general.dataset.0.name": "some text",
}


TWO = [("a/b", "base model"), ("c/d", "base model")]


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("README.md", "---\nbase_model: a/b\n---\n", [("a/b", "base model")]),
        ("README.md", "---\nbase_model: a/b # x\nbase_model_relation: merge\n---", [("a/b", "base model (merge)")]),
        ("README.md", "---\r\nbase_model:\r\n  - a/b\r\n  - 'c/d'\r\nlicense: mit\r\n---", TWO),
        ("README.md", '---\nbase_model: [a/b, "c/d"]\n---\n', TWO),
        ("README.md", "---\nbase_model:\nlicense: mit\n---\n", []),
        ("README.md", "base_model: a/b\n", []),
        ("README.md", "---\nbase_model: a/b", []),
        ("config.json", json.dumps({"model_type": "llama", "base_model_name_or_path": "a/b"}), [("a/b", "base model")]),
        ("config.json", json.dumps({"model_type": "llama", "base_model": {"x": 1}}), []),
        ("config.json", "[1]", []),
    ],
)  # fmt: skip
def test_a_folder_states_it(tmp_path: Path, name: str, content: str, expected: list[tuple[str, str]]) -> None:
    squish.save(tmp_path / "model.safetensors", TENSORS)
    (tmp_path / name).write_bytes(content.encode())
    with squish.open(tmp_path) as file:
        found = lineage(file)
    assert [(each.ancestor, each.relation) for each in found] == expected
    assert all(name in each.stated_in for each in found)


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        (GGUF, ["Qwen Qwen3 0.6B, https://huggingface.co/Qwen/Qwen3-0.6B", "Other"]),
        ({"base_model": "a/b"}, ["a/b"]),
        ({"general.source.repo_url": "https://example.org/a"}, ["https://example.org/a"]),
        ({"general.base_model.0.name": 3, "general.name": "m"}, []),
        ({"base_model": "x" * 10_000}, ["x" * 300 + "..."]),
    ],
)
def test_metadata_state_it(tmp_path: Path, metadata: dict[str, Any], expected: list[str]) -> None:
    squish.save(tmp_path / "m.gguf", TENSORS, metadata=metadata)
    with squish.open(tmp_path / "m.gguf") as file:
        assert [each.ancestor for each in lineage(file)] == expected


@pytest.mark.parametrize(
    ("name", "layer", "kind"),
    [
        ("model.layers.3.mlp.up_proj.weight", "model.layers.3", "mlp.up_proj"),
        ("blk.12.ffn_up.weight", "blk.12", "ffn_up"),
        ("h.0.attn.bias", "h.0", "attn.bias"),
        ("model.layers.3.mlp.experts.17.w1.weight", "model.layers.3", "mlp.experts.*.w1"),
        ("vision.encoder.layers.2.fc1.weight", "vision.encoder.layers.2", "fc1"),
        ("lm_head.weight", "outside layers", "lm_head"),
    ],
)
def test_names_say_where_a_tensor_belongs(name: str, layer: str, kind: str) -> None:
    assert (layer_of(name), kind_of(name)) == (layer, kind)


def test_groups_add_up(tmp_path: Path) -> None:
    squish.save(tmp_path / "m.safetensors", TENSORS)
    with squish.open(tmp_path / "m.safetensors") as file:
        for by in ("layer", "kind", "type"):
            found = groups(file, by)
            assert sum(group.size for group in found) == sum(tensor.nbytes for tensor in file.values())
            assert sum(group.tensors for group in found) == len(file)
        assert [group.name for group in groups(file, "type")] == ["f32", "f16"]
        assert [group.name for group in groups(file, "layer")] == ["model.layers.0", "outside layers"]
