"""`merge`: what is written has the values of base and adapter, in every format; other tensors keep their codes."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from every_family import arrays_of, config_of, mapped, one_of_each
from squish_convert.api import merge, with_adapters
from squish_convert.arrays import in_memory
from squish_models.api import small_config, small_tokenizer
from squish_testing import expect_error, model_arrays
from test_models_adapters import ADAPTER, ALPHA, LLAMA, RANK, matrices, peft

import squish_core as squish

SCALE = ALPHA / RANK
Arrays = Mapping[str, np.ndarray]


def folder_of(path: Path, config: Mapping[str, Any], arrays: Arrays | None = None) -> Path:
    """Write a model with small weights and a tokenizer."""
    path.mkdir(parents=True)
    weights = model_arrays(config["model_type"], config) if arrays is None else arrays
    squish.save(path / "model.safetensors", dict(weights))
    for name, data in {**small_tokenizer(config["vocab_size"]), "config.json": json.dumps(config).encode()}.items():
        (path / name).write_bytes(data)
    return path


def merged_arrays(arrays: Arrays, adapter: Arrays, scale: float = SCALE) -> dict[str, np.ndarray]:
    """The weights with what PEFT adds to them."""
    result = dict(arrays)
    for name in (name for name in adapter if name.endswith(".lora_A.weight")):
        module = name.removesuffix(".lora_A.weight")
        added = scale * adapter[f"{module}.lora_B.weight"] @ adapter[name]
        result[f"{module.removeprefix('base_model.model.')}.weight"] += added
    return result


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return folder_of(tmp_path / "base", LLAMA)


def weights(path: Path) -> dict[str, np.ndarray]:
    with squish.open(path) as file:
        return file.numpy(copy=True)


def as_f32(arrays: Arrays) -> dict[str, np.ndarray]:
    return {name: array if array.dtype.kind in "iu" else array.astype(np.float32) for name, array in arrays.items()}


def check_equal(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=2e-6, atol=2e-6, err_msg=name)


@pytest.mark.parametrize(
    ("model", "adapter", "target"),
    [
        ("base", "lora", "out.gguf"), ("base", "lora.gguf", "out.safetensors"), ("base.gguf", "lora", "out"),
        ("base.gguf", "lora.gguf", "out.gguf"),
    ],
)  # fmt: skip
def test_a_merged_model_has_the_weights_of_both(
    base: Path, tmp_path: Path, model: str, adapter: str, target: str
) -> None:
    squish.convert(base, tmp_path / "base.gguf")
    squish.convert(peft(tmp_path / "lora", matrices()), tmp_path / "lora.gguf", assets=base)
    expected = folder_of(tmp_path / "expected", LLAMA, merged_arrays(weights(base), matrices()))
    report = merge(tmp_path / model, tmp_path / adapter, tmp_path / target, "hf" if target == "out" else None)
    assert sum("+ lora" in step.source for step in report.steps) == 6
    squish.convert(expected, tmp_path / "expected.gguf")
    check_equal(weights(tmp_path / target), weights(tmp_path / f"expected{'.gguf' if target.endswith('gguf') else ''}"))


def test_tensors_that_no_adapter_changes_keep_their_codes(base: Path, tmp_path: Path) -> None:
    squish.convert(base, tmp_path / "q8.gguf", encode="q8_0")
    lora = peft(tmp_path / "lora", matrices())
    with pytest.raises(squish.UsageError) as caught:
        merge(tmp_path / "q8.gguf", lora, tmp_path / "out.gguf")
    assert caught.value.code == "requantize"
    assert not (tmp_path / "out.gguf").exists()
    report = merge(tmp_path / "q8.gguf", lora, tmp_path / "out.gguf", requantize=True)
    actions = {step.name: step.action for step in report.steps}
    changed = {name for name, action in actions.items() if action != "copy"}
    assert len(changed) == 6
    with squish.open(tmp_path / "q8.gguf") as before, squish.open(tmp_path / "out.gguf") as after:
        assert before.meta == after.meta
        for name in before:
            parts = [bytes(file[name].parts()["data"].raw) for file in (before, after)]
            assert (parts[0] != parts[1]) == (name in changed)
            assert after.index.tensors[name].encodings[0].codec == before.index.tensors[name].encodings[0].codec
        with squish.open(lora) as adapter:
            exact, _ = with_adapters(before, [(adapter, 1.0)])
            for name in changed:
                steps = np.abs(exact[name].numpy()).max() / 127
                assert np.abs(after[name].numpy() - exact[name].numpy()).max() <= steps


def test_scales_follow_the_settings_and_several_adapters_add_up(base: Path, tmp_path: Path) -> None:
    one, two = matrices(), {name: array[::-1].copy() for name, array in matrices().items()}
    first = peft(tmp_path / "one", one, {**ADAPTER, "use_rslora": True})
    second = peft(tmp_path / "two", two, {**ADAPTER, "alpha_pattern": {"layers.1.mlp.down_proj": 12, "q_proj": 2}})
    squish.save(base / "model.safetensors", expected := as_f32(weights(base)))
    merge(base, [(first, 0.5), second], tmp_path / "out.safetensors")
    expected = merged_arrays(expected, one, 0.5 * ALPHA / RANK**0.5)
    for module, alpha in (("0.mlp.down_proj", 6), ("1.mlp.down_proj", 12), ("self_attn.q_proj", 2), ("k_proj", 6)):
        of_module = {name: array for name, array in two.items() if f"{module}." in name}
        expected = merged_arrays(expected, of_module, alpha / RANK)
    check_equal(weights(tmp_path / "out.safetensors"), expected)


@pytest.mark.parametrize("model", ["base", "base.gguf"])
@pytest.mark.parametrize("adapts", ["head", "embeddings"])
def test_a_tied_head_does_not_change_with_the_embeddings(tmp_path: Path, model: str, adapts: str) -> None:
    config = {**LLAMA, "tie_word_embeddings": True}
    base = folder_of(tmp_path / "base", config, as_f32(model_arrays("llama", config)))
    squish.convert(base, tmp_path / "base.gguf")
    generator = np.random.default_rng(1)
    rows, columns = (generator.standard_normal(shape, np.float32) for shape in ((64, RANK), (RANK, 32)))
    names = {
        "head": {"lm_head.lora_A.weight": columns, "lm_head.lora_B.weight": rows},
        "embeddings": {"model.embed_tokens.lora_embedding_A": rows.T, "model.embed_tokens.lora_embedding_B": columns.T},
    }
    lora = peft(tmp_path / "lora", {f"base_model.model.{name}": array for name, array in names[adapts].items()})
    report = merge(tmp_path / model, lora, tmp_path / "out", "hf")
    found, before = weights(tmp_path / "out"), weights(base)["model.embed_tokens.weight"]
    after = before + SCALE * rows @ columns
    head, table = (after, before) if adapts == "head" else (before, after)
    np.testing.assert_allclose(found["lm_head.weight"], head, atol=2e-6)
    np.testing.assert_allclose(found["model.embed_tokens.weight"], table, atol=2e-6)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["tie_word_embeddings"] is False
    assert any("no longer tied" in note for note in report.notes)


def test_an_adapter_of_embeddings_and_head_as_one_is_refused(tmp_path: Path) -> None:
    base = folder_of(tmp_path / "base", {**LLAMA, "tie_word_embeddings": True})
    names = {"lora_embedding_A": (RANK, 64), "lora_embedding_B": (32, RANK)}
    arrays = {f"base_model.model.model.embed_tokens.{name}": np.ones(shape, "f4") for name, shape in names.items()}
    lora = peft(tmp_path / "lora", arrays, {**ADAPTER, "ensure_weight_tying": True})
    with expect_error(squish.FormatError, code="adapter", part="adapter_config.json ensure_weight_tying"):
        merge(base, lora, tmp_path / "out.gguf")


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "gpt_neox", "bloom", "llama4"])
def test_a_gguf_has_the_weights_where_its_layout_stores_them(family: str, tmp_path: Path) -> None:
    check_family(family, tmp_path)


@pytest.mark.parametrize(
    ("family", "words"), [("qwen3next", "stores its rows in several tensors"), ("roberta", "found cut")]
)
def test_a_layout_into_which_nothing_is_merged_is_refused_with_a_reason(
    family: str, words: str, tmp_path: Path
) -> None:
    with pytest.raises(squish.TensorError, match=words) as caught:
        check_family(family, tmp_path)
    assert "then convert the result" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"use_dora": True}, "DoRA"), ({"modules_to_save": ["lm_head"]}, "whole modules"), ({"bias": "all"}, "biases"),
        ({"target_parameters": ["mlp.experts.up_proj"]}, "fused experts"), ({"peft_type": "LOHA"}, "kind of adapter"),
        ({"alora_invocation_tokens": [1]}, "certain tokens"), ({"new_setting": 1}, "unknown"), ({"r": 8}, "rank of"),
        ({"lora_alpha": -1}, "invalid value"), ({"alpha_pattern": {"(a+)+": 2}}, "without groups"),
        ({"init_lora_weights": "pissa"}, "different base"),
    ],
)  # fmt: skip
def test_an_adapter_that_does_more_than_add_is_refused_with_a_reason(
    base: Path, tmp_path: Path, settings: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(squish.FormatError, match=words):
        merge(base, peft(tmp_path / "lora", matrices(), {**ADAPTER, **settings}), tmp_path / "out.gguf")
    assert not (tmp_path / "out.gguf").exists()


def changed(**arrays: np.ndarray | None) -> dict[str, np.ndarray]:
    """The adapter's matrices, some replaced or left out."""
    module = "base_model.model.model.layers.0.self_attn.q_proj"
    result = {**matrices(), **{f"{module}.{name.replace('__', '.')}": array for name, array in arrays.items()}}
    return {name: array for name, array in result.items() if array is not None}


def matrices_of(module: str) -> dict[str, np.ndarray]:
    """The matrices of a module with 32 rows and columns."""
    name = f"base_model.model.{module}"
    return {f"{name}.lora_A.weight": np.ones((4, 32), "f4"), f"{name}.lora_B.weight": np.ones((32, 4), "f4")}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        (changed(lora_A__weight=np.ones((4, 16), "f4")), "another shape"),
        (changed(lora_A__weight=np.ones((3, 32), "f4")), "same rank"),
        (changed(lora_A__weight=None), "same rank"),
        (changed(lora_A__other__weight=np.ones((4, 32), "f4")), "several adapters"),
        (changed(lora_magnitude_vector=np.ones(4, "f4")), "DoRA"),
        (changed(lora_B__bias=np.ones(32, "f4")), "biases"),
        (matrices_of("model.x"), "does not have it"),
        ({}, "no pair"),
    ],
)
def test_an_adapter_that_does_not_fit_is_refused_with_a_reason(
    base: Path, tmp_path: Path, arrays: Arrays, words: str
) -> None:
    with pytest.raises(squish.SquishError, match=words) as caught:
        merge(base, peft(tmp_path / "lora", arrays), tmp_path / "out.gguf")
    assert caught.value.code in ("adapter", "contradiction")
    assert str(caught.value).startswith(f"{tmp_path / 'lora'}: ")


def test_a_model_in_place_of_an_adapter_is_refused_with_a_reason(base: Path, tmp_path: Path) -> None:
    lora = peft(tmp_path / "lora", matrices())
    squish.convert(lora, tmp_path / "lora.gguf", assets=base)
    other = folder_of(tmp_path / "other", small_config("qwen3"))
    for model, adapter, words in (
        (base, base, "is not a LoRA adapter"),
        (tmp_path / "lora.gguf", lora, "is an adapter, not a model"),
        (other, tmp_path / "lora.gguf", "is an adapter of another model"),
    ):
        with pytest.raises(squish.FormatError, match=words):
            merge(model, adapter, tmp_path / "out.gguf")
    for adapters in ([], {lora: float("nan")}, {lora: "1"}):
        with pytest.raises(squish.UsageError):
            merge(base, adapters, tmp_path / "out.gguf")


def check_family(family: str, folder: Path) -> None:
    """Adapt one matrix of each kind of a family, and compare its GGUF with that of merged weights."""
    config, arrays, generator = config_of(family), as_f32(arrays_of(family)), np.random.default_rng(2)
    turned = getattr(squish.registry().implementation("family", family).adapter(), "_transposed", set())
    adapter, expected = {}, dict(arrays)
    for name in one_of_each({name: 0 for name in arrays if arrays[name].ndim == 2 and name.endswith(".weight")}):
        rows, columns = arrays[name].shape
        left, right = (
            generator.standard_normal((rows, 2), np.float32),
            generator.standard_normal((2, columns), np.float32),
        )
        expected[name] = arrays[name] + left @ right
        if re.sub(r"\d+", "{n}", name) in turned:
            left, right = right.T, left.T
        module = f"base_model.model.{name.removesuffix('.weight')}"
        adapter |= {f"{module}.lora_A.weight": right, f"{module}.lora_B.weight": left}
    base, target = mapped(arrays, config), mapped(expected, config)
    stored = in_memory({name: base[name].numpy() for name in base}, base.meta)
    with squish.open(peft(folder / "lora", adapter, {**ADAPTER, "r": 2, "lora_alpha": 2})) as opened:
        result, _ = with_adapters(stored, [(opened, 1.0)])
        check_equal({name: result[name].numpy() for name in target}, {name: target[name].numpy() for name in target})
