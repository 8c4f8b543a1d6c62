"""Files of a folder through a GGUF, and keys of a GGUF through a folder, of every family."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from small_tokenizer import TOKENIZER
from squish_testing import write_model
from test_models_bad_input import CONFIGS, FIRST, family_of

import squish_core as squish
from squish_core.model import Typed

MULTIMODAL = ("qwen2vl", "phi4_multimodal")
"""Their text part alone is converted, as Qwen 2 or Phi 3 in folders: see docs/models.md."""
NAMES = [name for name in CONFIGS if not name.startswith(MULTIMODAL)]
FILES = {
    **TOKENIZER, "special_tokens_map.json": b'{"eos_token": "<|end|>"}',
    "generation_config.json": b'{"eos_token_id": 3, "temperature": 0.6}',
}  # fmt: skip
OWN_KEYS = {
    "general.name": Typed("str", "Own"), "general.size_label": Typed("str", "3B"), "own.list": Typed("array:i32", [1]),
}  # fmt: skip


def runs_in_mlx(name: str) -> bool:
    return family_of(name).is_run("mlx", {})


def text_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if "safetensors" not in path.name}


def keys(path: Path) -> list[tuple[str, str, object]]:
    """Name, type and value of each key in order; those of Squish aside."""
    with squish.open(path) as file:
        pairs = [pair for pair in file.index.meta.items() if not pair[0].startswith("squish.")]
    return [
        (name, each.type, list(each.value) if each.type.startswith("array:") else each.value) for name, each in pairs
    ]


@pytest.mark.parametrize("name", NAMES)
def test_files_come_back_from_a_gguf_byte_for_byte(name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", family_of(name), CONFIGS[name], files=FILES)
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert text_files(tmp_path / "back") == text_files(source)
    assert {item.state for item in squish.diff(source, tmp_path / "back").tensors} == {"bytes"}


def test_a_config_without_a_dtype_comes_back_byte_for_byte(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", family_of(NAMES[0]), CONFIGS[NAMES[0]], files=FILES)
    config = json.loads((source / "config.json").read_text())
    config.pop("torch_dtype", None)
    (source / "config.json").write_text(json.dumps(config, indent=4))
    squish.convert(source, tmp_path / "m.gguf")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert text_files(tmp_path / "back") == text_files(source)


@pytest.mark.parametrize("encoding", ["bf16", "f16", "f32"])
def test_a_config_written_from_keys_states_the_dtype_of_the_folder(encoding: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", family_of(NAMES[0]), CONFIGS[NAMES[0]], files=FILES)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "folder", "hf", encode=encoding)
    config = json.loads((tmp_path / "folder" / "config.json").read_text())
    assert config["torch_dtype"] == {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}[encoding]


@pytest.mark.parametrize(
    ("layout", "name"),
    [
        *(("hf", name) for name in NAMES),
        *(("mlx", name) for name in FIRST if not name.startswith(MULTIMODAL) and runs_in_mlx(name)),
    ],
)
def test_keys_come_back_from_a_folder_in_order(layout: str, name: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", family_of(name), CONFIGS.get(name, FIRST.get(name, {})), files=FILES)
    squish.convert(source, tmp_path / "own.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "own.gguf") as file:
        arrays, meta = {each: file[each].numpy() for each in file}, {**file.index.meta, **OWN_KEYS}
    squish.save(tmp_path / "m.gguf", arrays, metadata=meta)
    squish.convert(tmp_path / "m.gguf", tmp_path / "folder", layout)
    squish.convert(tmp_path / "folder", tmp_path / "back.gguf")
    assert keys(tmp_path / "back.gguf") == keys(tmp_path / "m.gguf")
    assert {item.state for item in squish.diff(tmp_path / "m.gguf", tmp_path / "back.gguf").tensors} == {"bytes"}


def test_keys_come_back_from_a_container_without_new_ones(tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", family_of(NAMES[0]), CONFIGS[NAMES[0]], files=FILES)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "m.zt", rename="hf")
    squish.convert(tmp_path / "m.zt", tmp_path / "back.gguf")
    assert squish.diff(tmp_path / "m.gguf", tmp_path / "back.gguf").same


@pytest.mark.parametrize("encoding", ["bf16", "f32"])
def test_a_dtype_that_keys_do_not_state_is_no_difference(encoding: str, tmp_path: Path) -> None:
    source = write_model(tmp_path / "source", family_of(NAMES[0]), CONFIGS[NAMES[0]], files=FILES)
    squish.convert(source, tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "folder", "hf", encode=encoding)
    for one, other in (("folder", "m.gguf"), ("m.gguf", "folder")):
        assert squish.diff(tmp_path / one, tmp_path / other).assets == ()
