"""`check_model` for llama.cpp: what its loader does with a GGUF, whether Squish can map it or not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_models.api import check_model
from squish_models.engines.llama_cpp.architectures import LAYERS, OTHERS
from squish_models.engines.llama_cpp.keys import ARCHITECTURES
from squish_testing import write_model
from test_models_bad_input import FIRST

import squish_core as squish
from squish_core.errors import FormatError
from squish_core.model import Typed

Keys = dict[str, Any]
Arrays = dict[str, np.ndarray]
Change = Callable[[Keys, Arrays], Any]
ENDS, WARNS, NOTES, LOADS = "error", "warning", "note", ""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Keys, Arrays]:
    """The keys and tensors of a small Qwen 3 that loads."""
    return made(tmp_path_factory.mktemp("base"), "qwen3")


def made(folder: Path, family: str) -> tuple[Keys, Arrays]:
    write_model(folder / "hf", family, FIRST[family], dtype="f32", files=TOKENIZER)
    squish.convert(folder / "hf", folder / "base.gguf", "gguf:keep=no")
    with squish.open(folder / "base.gguf") as file:
        return dict(file.index.meta), {name: file[name].numpy() for name in file}


def changed(model: tuple[Keys, Arrays], path: Path, change: Change) -> Path:
    keys, arrays = dict(model[0]), dict(model[1])
    change(keys, arrays)
    squish.save(path, arrays, metadata=keys)
    return path


def key(name: str, kind: str | None = None, value: Any = None) -> Change:
    """A key that is removed, or has another value and type; the value may be made from the one before."""

    def change(keys: Keys, arrays: Arrays) -> None:
        stored = keys.pop(name, None)
        if kind is not None:
            keys[name] = Typed(kind, value(list(stored.value)) if callable(value) else value)

    return change


def tensor(name: str, shape: tuple[int, ...] | None, dtype: str = "f4") -> Change:
    """A tensor that is removed, or there with this shape and type."""
    return lambda keys, arrays: arrays.update({name: np.zeros(shape, dtype)}) if shape else arrays.pop(name)


def renamed(name: str, other: str) -> Change:
    return lambda keys, arrays: arrays.update({other: arrays.pop(name)})


T = "tokenizer.ggml."
CASES: dict[str, tuple[Change, str, str, str]] = {
    "a key of another type": (key("qwen3.block_count", "u64", 2), ENDS, "qwen3.block_count", "is u64"),
    "a text for a number": (key("qwen3.context_length", "str", "64"), ENDS, "qwen3.context_length", "is str"),
    "a missing key": (key("qwen3.embedding_length"), ENDS, "qwen3.embedding_length", "is missing"),
    "no layers": (key("qwen3.block_count", "u32", 0), ENDS, "qwen3.block_count", "1 to 512"),
    "a negative epsilon": (
        key("qwen3.attention.layer_norm_rms_epsilon", "f32", -1.0), ENDS, "qwen3.attention.layer_norm_rms_epsilon",
        "less than 0",
    ),
    "one number a layer": (
        key("qwen3.attention.head_count_kv", "array:u32", [2, 2]), LOADS, "", "",
    ),
    "numbers of other layers": (
        key("qwen3.attention.head_count_kv", "array:u32", [2] * 3), ENDS, "qwen3.attention.head_count_kv", "3 elements",
    ),
    "layers that differ": (
        key("qwen3.attention.head_count_kv", "array:u32", [2, 1]), ENDS, "qwen3.attention.head_count_kv", "differs",
    ),
    "floats as numbers of layers": (
        key("qwen3.attention.head_count_kv", "array:f32", [2.0, 2.0]), ENDS, "qwen3.attention.head_count_kv", "f32",
    ),
    "an unknown scaling": (key("qwen3.rope.scaling.type", "str", "llama3"), ENDS, "qwen3.rope.scaling.type", "llama3"),
    "a part of a head": (key("qwen3.rope.dimension_count", "u32", 4), ENDS, "qwen3.rope.dimension_count", "is 4"),
    "used experts of none": (key("qwen3.expert_used_count", "u32", 2), ENDS, "qwen3.expert_used_count", "2 of 0"),
    "an unknown key": (key("qwen3.unknown", "u32", 2), LOADS, "", ""),
    "an unknown architecture": (key("general.architecture", "str", "qwen9"), ENDS, "general.architecture", "qwen9"),
    "no architecture": (key("general.architecture"), ENDS, "general.architecture", "is missing"),
    "a part for images": (key("general.architecture", "str", "clip"), ENDS, "general.architecture", "--mmproj"),
    "a number as a name": (key("general.name", "u32", 7), ENDS, "general.name", "is u32"),
    "a duplicate token": (
        key(f"{T}tokens", "array:str", lambda old: [old[1], *old[1:]]), ENDS, f"{T}tokens", "duplicate",
    ),
    "an empty token": (key(f"{T}tokens", "array:str", lambda old: ["", *old[1:]]), LOADS, "", ""),
    "the name of an empty token": (
        key(f"{T}tokens", "array:str", lambda old: ["", "[EMPTY_0]", *old[2:]]), ENDS, f"{T}tokens", "duplicate",
    ),
    "short types": (key(f"{T}token_type", "array:i32", [1, 1, 1]), ENDS, f"{T}token_type", "3 elements for 64"),
    "narrow types": (key(f"{T}token_type", "array:i8", lambda old: old), ENDS, f"{T}token_type", "i8"),
    "no types": (key(f"{T}token_type"), LOADS, "", ""),
    "a short byte": (
        key(f"{T}token_type", "array:i32", lambda old: [6] * 64), ENDS, f"{T}tokens", "without digits",
    ),
    "short scores": (key(f"{T}scores", "array:f32", [0.0]), ENDS, f"{T}scores", "1 elements for 64"),
    "no merges": (key(f"{T}merges"), ENDS, f"{T}merges", "is missing"),
    "merges of numbers": (key(f"{T}merges", "array:u32", [1]), ENDS, f"{T}merges", "array of u32"),
    "no pre-tokenizer": (key(f"{T}pre"), WARNS, f"{T}pre", "by its default"),
    "the default pre-tokenizer": (key(f"{T}pre", "str", "default"), NOTES, f"{T}pre", "no tokenizer's own"),
    "an unknown pre-tokenizer": (key(f"{T}pre", "str", "mine"), ENDS, f"{T}pre", "'mine'"),
    "an id beyond the tokens": (key(f"{T}eos_token_id", "u32", 999), WARNS, f"{T}eos_token_id", "999 with 64 tokens"),
    "an id of another type": (key(f"{T}eot_token_id", "i32", 3), ENDS, f"{T}eot_token_id", "is i32"),
    "no tokenizer": (key(f"{T}model"), ENDS, f"{T}model", "is missing"),
    "an unknown tokenizer": (key(f"{T}model", "str", "mine"), ENDS, f"{T}model", "'mine'"),
    "a missing tensor": (tensor("blk.1.ffn_up.weight", None), ENDS, "blk.1.ffn_up.weight", "is missing"),
    "a tensor of no use": (tensor("blk.0.extra.weight", (2, 2)), ENDS, "blk.0.extra.weight", "not a tensor"),
    "a head that ranks": (tensor("cls.output.weight", (1, 32)), LOADS, "", ""),
    "a head that ranks too much": (tensor("cls.output.weight", (2, 32)), ENDS, "cls.output.weight", "[1, 32]"),
    "a scale": (tensor("blk.0.ffn_up.scale", (1,)), LOADS, "", ""),
    "an axis of one": (tensor("output_norm.weight", (1, 32)), LOADS, "", ""),
    "another shape": (tensor("output_norm.weight", (33,)), ENDS, "output_norm.weight", "expected [32]"),
    "a vector of f16": (tensor("output_norm.weight", (32,), "f2"), ENDS, "output_norm.weight", "f16"),
    "a matrix of f64": (tensor("blk.0.ffn_up.weight", (64, 32), "f8"), ENDS, "blk.0.ffn_up.weight", "f64"),
    "rope factors": (tensor("rope_freqs.weight", (8,)), ENDS, "rope_freqs.weight", "not a tensor"),
    "a long name": (tensor("blk.0." + "x" * 64, (2,)), ENDS, "blk.0." + "x" * 64, "63 bytes"),
    "another name": (renamed("output_norm.weight", "norm.weight"), ENDS, "output_norm.weight", "is missing"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_a_change_has_the_answer_of_llama_cpp(case: str, model: tuple[Keys, Arrays], tmp_path: Path) -> None:
    change, severity, where, words = CASES[case]
    problems = check_model(changed(model, tmp_path / "model.gguf", change), "llama.cpp").problems
    found = [(each.where, each.severity, each.message) for each in problems]
    if severity == LOADS:
        assert found == []
    else:
        assert any(found_where == where and kind == severity and words in text for found_where, kind, text in found)


@pytest.mark.parametrize("family", FIRST)
def test_a_model_of_each_family_loads(family: str, tmp_path: Path) -> None:
    keys, arrays = made(tmp_path, family)
    squish.save(tmp_path / "model.gguf", arrays, metadata=keys)
    result = check_model(tmp_path / "model.gguf", "llama.cpp")
    assert [each for each in result.problems if each.severity == "error"] == []


def test_each_architecture_has_keys_and_tensors() -> None:
    assert ARCHITECTURES.keys() == LAYERS.keys() == OTHERS.keys()


@pytest.mark.parametrize(
    "change",
    [
        key("general.architecture", "str", "rwkv6"), key(f"{T}model", "str", "rwkv"),
    ],
)  # fmt: skip
def test_what_the_tables_do_not_describe_is_not_known(
    change: Change, model: tuple[Keys, Arrays], tmp_path: Path
) -> None:
    with pytest.raises(FormatError) as caught:
        check_model(changed(model, tmp_path / "model.gguf", change), "llama.cpp")
    assert caught.value.code == "names"


def test_a_fault_is_known_beside_what_is_not(model: tuple[Keys, Arrays], tmp_path: Path) -> None:
    def change(keys: Keys, arrays: Arrays) -> None:
        keys[f"{T}model"] = Typed("str", "rwkv")
        del keys["qwen3.embedding_length"]

    assert not check_model(changed(model, tmp_path / "model.gguf", change), "llama.cpp").loads


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda data: data[:-1], "bounds"),
        (lambda data: data[:4] + b"\4" + data[5:], "version"),
        (lambda data: data.replace(b"blk.0.attn_k.weight", b"blk.1.attn_k.weight"), "duplicate"),
    ],
)
def test_a_file_that_nothing_opens_does_not_load(
    change: Callable[[bytes], bytes], code: str, model: tuple[Keys, Arrays], tmp_path: Path
) -> None:
    path = changed(model, tmp_path / "model.gguf", lambda keys, arrays: None)
    path.write_bytes(change(path.read_bytes()))
    for engine in ("llama.cpp", "mistralrs"):
        assert [each.code for each in check_model(path, engine).problems] == [code]
    with pytest.raises(squish.SquishError):
        check_model(path, "transformers")


def test_gemma_2_has_defaults(tmp_path: Path) -> None:
    keys, arrays = made(tmp_path, "gemma2")
    for name in ("attention.sliding_window", "attn_logit_softcapping", "final_logit_softcapping"):
        del keys[f"gemma2.{name}"]
    squish.save(tmp_path / "old.gguf", arrays, metadata=keys)
    assert check_model(tmp_path / "old.gguf", "llama.cpp").loads


def test_factors_of_positions_are_data(tmp_path: Path) -> None:
    """Factors that no rope_scaling expresses: llama.cpp loads them, and a GGUF keeps them."""
    keys, arrays = made(tmp_path, "llama")
    size = keys["llama.rope.dimension_count"].value // 2
    arrays["rope_freqs.weight"] = np.linspace(1.0, 9.0, size, dtype=np.float32)
    squish.save(tmp_path / "odd.gguf", arrays, metadata=keys)
    assert check_model(tmp_path / "odd.gguf", "llama.cpp").loads
    squish.convert(tmp_path / "odd.gguf", tmp_path / "copy.gguf")
    with squish.open(tmp_path / "copy.gguf") as copy:
        assert np.array_equal(copy["rope_freqs.weight"].numpy(), arrays["rope_freqs.weight"])


def test_a_compressed_file_does_not_load(model: tuple[Keys, Arrays], tmp_path: Path) -> None:
    squish.convert(changed(model, tmp_path / "model.gguf", lambda keys, arrays: None), tmp_path / "model.gguf.zst")
    (problem,) = check_model(tmp_path / "model.gguf.zst", "llama.cpp").problems
    assert (problem.code, "compressed" in problem.message) == ("engine-format", True)


def test_a_set_of_parts_loads_by_its_first_one(model: tuple[Keys, Arrays], tmp_path: Path) -> None:
    keys, arrays = model
    names = list(arrays)
    paths = [tmp_path / f"model-0000{number}-of-00002.gguf" for number in (1, 2)]
    for number, (path, part) in enumerate(zip(paths, (names[:5], names[5:]))):
        split = {
            "split.no": Typed("u16", number), "split.count": Typed("u16", 2),
            "split.tensors.count": Typed("i32", len(names)),
        }  # fmt: skip
        own = keys if number == 0 else {}
        squish.save(path, {name: arrays[name] for name in part}, metadata={**own, **split})
    assert check_model(paths[0], "llama.cpp").loads
    (problem,) = check_model(paths[1], "llama.cpp").problems
    assert "not the first part" in problem.message
    paths[1].unlink()
    assert [each.code for each in check_model(paths[0], "llama.cpp").problems] == ["missing"]
