"""ModernBERT, EuroBERT and Jina Embeddings 5: what differs from their neighbours, and what no engine computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from published_configs import PUBLISHED
from small_tokenizer import TOKENIZER
from squish_models.api import check_model
from squish_testing import model_arrays, write_model

import squish_core as squish
from squish_core.model import Typed

MODERN = PUBLISHED["ModernBERT-base"][1]
EURO = PUBLISHED["EuroBERT-210m"][1]
JINA = PUBLISHED["jina-embeddings-v5-text-nano"][1]
FULL, SLIDING = "full_attention", "sliding_attention"


def folder_of(path: Path, family: str, config: dict[str, Any], **others: Any) -> Path:
    return write_model(path, family, {**config, **others}, files=TOKENIZER)


def files_of(folder: Path) -> dict[str, bytes]:
    """The bytes of all files, by their path in the folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def keys_of(path: Path, family: str, config: dict[str, Any]) -> dict[str, Any]:
    squish.convert(folder_of(path / "m", family, config), path / "m.gguf")
    with squish.open(path / "m.gguf") as file:
        return dict(file.meta)


def stored(path: Path, family: str, config: dict[str, Any], **changed: Any) -> Path:
    """A GGUF without files, with other values of keys, or without them."""
    squish.convert(folder_of(path / "m", family, config), path / "m.gguf", "gguf:keep=no")
    with squish.open(path / "m.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    for name, value in changed.items():
        key = f"{meta['general.architecture'].value}.{name.replace('__', '.')}"
        meta.pop(key, None)
        if value is not None:
            meta[key] = value
    squish.save(path / "changed.gguf", arrays, metadata=meta)
    return path / "changed.gguf"


def test_both_spellings_of_layers_and_bases_give_the_same_keys(tmp_path: Path) -> None:
    old = {**MODERN, "global_rope_theta": 50000.0, "local_rope_theta": 20000.0}
    new = {name: value for name, value in old.items() if name not in ("global_attn_every_n_layers",)}
    new = {name: value for name, value in new.items() if not name.endswith("_rope_theta")} | {
        "layer_types": [FULL, SLIDING, SLIDING, FULL],
        "rope_parameters": {
            FULL: {"rope_theta": 50000.0, "rope_type": "default"},
            SLIDING: {"rope_theta": 20000.0, "rope_type": "default"},
        },
    }
    keys = [keys_of(tmp_path / name, "modernbert", config) for name, config in (("old", old), ("new", new))]
    one, other = ({key: value for key, value in each.items() if key.startswith("modern-bert.")} for each in keys)
    assert one == other
    assert one["modern-bert.attention.sliding_window_pattern"] == 3
    assert one["modern-bert.rope.freq_base"] == 50000.0


@pytest.mark.parametrize(("kinds", "every"), [([FULL] * 4, 1), ([FULL, *[SLIDING] * 3], 4), ([FULL, SLIDING] * 2, 2)])
def test_kinds_of_layers_are_a_pattern(kinds: list[str], every: int, tmp_path: Path) -> None:
    keys = keys_of(tmp_path, "modernbert", {**MODERN, "layer_types": kinds})
    assert keys["modern-bert.attention.sliding_window_pattern"] == every


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an activation": ("modernbert", {"hidden_activation": "relu"}, "hidden_activation"),
    "an activation of the head": ("modernbert", {"classifier_activation": "relu"}, "classifier_activation"),
    "a pooling of the head": ("modernbert", {"classifier_pooling": "max"}, "classifier_pooling"),
    "a window in the first layer": ("modernbert", {"layer_types": [SLIDING] * 4}, "layer_types"),
    "kinds without a pattern": ("modernbert", {"layer_types": [FULL, SLIDING, FULL, FULL]}, "layer_types"),
    "biases": ("modernbert", {"norm_bias": True}, "norm_bias"),
    "a scaling": ("modernbert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
    "a scaling of one kind of layers": (
        "modernbert", {"rope_parameters": {FULL: {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}}}, "rope",
    ),
    "another activation": ("eurobert", {"hidden_act": "gelu"}, "hidden_act"),
    "a Jina Embeddings 5 that is a Qwen 3": (
        "eurobert", {"model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"]}, "is_decoder",
    ),
    "a Jina Embeddings 5 that decodes": (
        "eurobert", {"model_type": "jina_embeddings_v5", "is_decoder": True}, "is_decoder",
    ),
    "a scaling of EuroBERT": ("eurobert", {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_the_text_about_a_setting_that_llama_cpp_does_not_compute(case: str, tmp_path: Path) -> None:
    family, changed, word = REFUSED[case]
    config = {**(MODERN if family == "modernbert" else EURO), **changed}
    arrays = model_arrays(family, MODERN if family == "modernbert" else EURO)
    squish.save(tmp_path / "m", arrays, format="safetensors:max_shard_size=1GB", metadata={"format": "pt"})
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    for name, data in TOKENIZER.items():
        (tmp_path / "m" / name).write_bytes(data)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "m", tmp_path / "m.gguf")
    assert caught.value.code in ("config", "rope")
    assert word in str(caught.value)


@pytest.mark.parametrize(("family", "config"), [("modernbert", MODERN), ("eurobert", EURO)])
def test_a_gguf_that_attends_in_one_direction_has_no_folder(
    family: str, config: dict[str, Any], tmp_path: Path
) -> None:
    path = stored(tmp_path, family, config, attention__causal=None)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(path, tmp_path / "back", "hf")
    assert str(caught.value.part).endswith(".attention.causal")


def test_a_gguf_without_a_window_has_a_folder_of_layers_that_attend_to_everything(tmp_path: Path) -> None:
    path = stored(tmp_path, "modernbert", MODERN, attention__sliding_window=None)
    squish.convert(path, tmp_path / "back", "hf")
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["global_attn_every_n_layers"] == 1
    assert check_model(path, "llama.cpp").loads


def test_layers_that_decide_are_not_in_the_tables(tmp_path: Path) -> None:
    path = stored(tmp_path, "modernbert", MODERN, decision__block_count=Typed("u32", 1))
    with pytest.raises(squish.SquishError):
        check_model(path, "llama.cpp")
    with pytest.raises(squish.FormatError):
        squish.convert(path, tmp_path / "back", "hf")


def test_the_head_that_predicts_tokens_is_listed_as_left_out(tmp_path: Path) -> None:
    arrays = {f"model.{name}": values for name, values in model_arrays("modernbert", MODERN).items()}
    arrays |= {"head.dense.weight": np.zeros((32, 32), np.float32), "decoder.bias": np.zeros(64, np.float32)}
    squish.save(tmp_path / "m", arrays, format="safetensors:max_shard_size=1GB", metadata={"format": "pt"})
    (tmp_path / "m" / "config.json").write_text(json.dumps(MODERN))
    for name, data in TOKENIZER.items():
        (tmp_path / "m" / name).write_bytes(data)
    report = squish.convert(tmp_path / "m", tmp_path / "m.gguf")
    assert {"head.dense.weight", "decoder.bias"} <= {item.name for item in report.dropped}
    assert check_model(tmp_path / "m.gguf", "llama.cpp").loads


MODULES = [{"idx": 0, "name": "transformer", "path": "", "type": "custom_st.Transformer", "kwargs": ["task"]}]


def jina(path: Path, *more: dict[str, str]) -> Path:
    """A folder of Jina Embeddings 5 nano; `more`: modules of sentence-transformers behind its own."""
    folder = folder_of(path / "m", "eurobert", {**JINA, "torch_dtype": "bfloat16"})
    (folder / "modules.json").write_text(json.dumps([*MODULES, *more]))
    return folder


def test_jina_embeddings_5_takes_the_last_token_and_comes_back_byte_for_byte(tmp_path: Path) -> None:
    source = jina(tmp_path)
    report = squish.convert(source, tmp_path / "m.gguf")
    assert any("retrieval, text-matching, clustering, classification" in note for note in report.notes)
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.meta["eurobert.pooling_type"] == 3
    assert check_model(tmp_path / "m.gguf", "llama.cpp").loads
    assert not check_model(source, "transformers").loads
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert files_of(tmp_path / "back") == files_of(source)


def test_jina_embeddings_5_without_its_files_is_a_eurobert_that_transformers_has(tmp_path: Path) -> None:
    squish.convert(jina(tmp_path), tmp_path / "m.gguf", "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert json.loads((tmp_path / "back" / "config.json").read_text())["model_type"] == "eurobert"
    assert json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text())["pooling_mode_lasttoken"]
    assert check_model(tmp_path / "back", "transformers").loads


def test_a_pooling_of_jina_embeddings_5_that_is_not_its_own_is_refused(tmp_path: Path) -> None:
    source = jina(tmp_path, {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"})
    (source / "1_Pooling").mkdir()
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_mean_tokens": true}')
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(source, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("config", "1_Pooling/config.json")


def test_adapters_of_jina_embeddings_5_are_those_of_its_base(tmp_path: Path) -> None:
    source, adapter = jina(tmp_path), tmp_path / "m" / "adapters" / "retrieval"
    adapter.mkdir(parents=True)
    prefix = "base_model.model.layers.0.self_attn.q_proj"
    pair = {"lora_A": np.ones((2, 32), np.float32), "lora_B": np.ones((32, 2), np.float32)}
    squish.save(adapter / "adapter_model.safetensors", {f"{prefix}.{name}.weight": each for name, each in pair.items()})
    settings = {"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": ["q_proj"]}
    (adapter / "adapter_config.json").write_text(json.dumps(settings))
    squish.convert(adapter, tmp_path / "lora.gguf", assets=source)
    with squish.open(tmp_path / "lora.gguf") as file:
        assert {*file} == {"blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b"}
        assert file.meta["general.architecture"] == "eurobert"


def test_labels_of_a_classifier_come_back(tmp_path: Path) -> None:
    labels = {"id2label": {"0": "no", "1": "yes"}, "label2id": {"no": 0, "yes": 1}}
    config = {**PUBLISHED["gte-reranker-modernbert-base"][1], **labels}
    squish.convert(stored(tmp_path, "modernbert_classifier", config), tmp_path / "back", "hf")
    written = json.loads((tmp_path / "back" / "config.json").read_text())
    assert (written["id2label"], written["label2id"]) == (labels["id2label"], labels["label2id"])
    assert written["architectures"] == ["ModernBertForSequenceClassification"]
