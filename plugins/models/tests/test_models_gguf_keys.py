"""What a folder says of bos, ends of turns, added tokens, sampling and pooling, in the keys of its GGUF, and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_models.tokenizer import gguf_keys, read_gguf, read_huggingface
from squish_models.tokenizer.sampling import sampling_keys, sampling_of, stated_sampling
from squish_testing import write_model

import squish_core as squish
from squish_core.model import Typed

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "tie_word_embeddings": True,
}  # fmt: skip
PREFIX = "tokenizer.ggml."
Files = dict[str, Any]


def template(*single: str, pair: tuple[str, ...] = ()) -> Files:
    """A tokenizer.json's change: a template of texts of tokens around A (and B)."""
    kinds = {True: "Sequence", False: "SpecialToken"}
    steps = [[{kinds[text in "AB"]: {"id": text, "type_id": 0}} for text in each] for each in (single, pair)]
    return {"post_processor": {"type": "TemplateProcessing", "single": steps[0], "pair": steps[1]}}


def added(number: int, text: str, special: bool) -> Files:
    return {
        "id": number,
        "content": text,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": special,
    }


def keys_of(change: Files, files: dict[str, Files], config: Files) -> dict[str, Any]:
    """GGUF's keys for the small tokenizer with some changes; its tokens 4 to 63 are t0 to t59, 3 is <|end|>."""
    stored = json.loads(TOKENIZER["tokenizer.json"])
    more = change.pop("more", [])
    stored = {**stored, **change, "added_tokens": [*stored["added_tokens"], *more]}
    data = {"tokenizer.json": stored, **files}
    encoded = {name: json.dumps(value).encode() for name, value in data.items()}
    tokenizer = read_huggingface(encoded, {"vocab_size": 64, **config})
    assert tokenizer is not None
    return {key: value.value for key, value in gguf_keys(tokenizer).items()}


EOS = {"tokenizer_config.json": {"eos_token": "<|end|>"}}
CASES: dict[str, tuple[Files, dict[str, Files], Files, Files]] = {
    "a template's bos that nothing names": (
        template("t0", "A"), EOS, {}, {"bos_token_id": 4, "add_bos_token": True, "add_eos_token": False},
    ),
    "a template's bos before the stated one": (
        template("t0", "A"), {"tokenizer_config.json": {"bos_token": "t1"}}, {},
        {"bos_token_id": 4, "add_bos_token": True},
    ),
    "no template": ({}, EOS, {"bos_token_id": 5}, {"bos_token_id": 5, "add_bos_token": False, "eot_token_id": None}),
    "a template that appends another token than eos": (
        template("A", "t0"), EOS, {}, {"eos_token_id": 4, "eot_token_id": 3, "add_eos_token": True},
    ),
    "a template within a sequence": (
        {"post_processor": {"type": "Sequence", "processors": [
            {"type": "ByteLevel"}, template("A", "<|end|>")["post_processor"]]}},
        EOS, {}, {"eos_token_id": 3, "eot_token_id": None, "add_eos_token": True},
    ),
    "several ids that end a text": (
        {}, EOS, {"eos_token_id": [3, 7, 8, 9]}, {"eos_token_id": 3, "eot_token_id": 7, "eom_token_id": 8},
    ),
    "ids in generation_config.json alone": (
        {}, {**EOS, "generation_config.json": {"eos_token_id": [3, 7]}}, {}, {"eos_token_id": 3, "eot_token_id": 7},
    ),
    "an end that llama.cpp knows by its text": (
        {}, {"tokenizer_config.json": {"eos_token": "t0"}}, {"eos_token_id": [4, 3]},
        {"eos_token_id": 4, "eot_token_id": None},
    ),
    "an end beyond the vocabulary": ({}, EOS, {"eos_token_id": [3]}, {"eot_token_id": None}),
    "a separator": (
        template("A", pair=("A", "<|end|>", "B")), EOS, {}, {"add_sep_token": True},
    ),
    "bos between two texts": (
        template("t0", "A", pair=("t0", "A", "t0", "B")), EOS, {}, {"add_sep_token": False, "add_bos_token": True},
    ),
    "no pair": (template("A", "<|end|>"), EOS, {}, {"add_sep_token": None}),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_surrounds_and_ends_a_text_is_in_the_keys(case: str) -> None:
    change, files, config, expected = CASES[case]
    keys = keys_of({**change}, files, config)
    assert {key: keys.get(f"{PREFIX}{key}") for key in expected} == expected


@pytest.mark.parametrize(
    ("declared", "token", "kind"),
    [
        (added(4, "t0", True), "t0", 3),
        (added(4, "t0", False), "t0", 4),
        (added(62, "[NEW]", True), "[NEW]", 3),
        (added(62, "[NEW]", False), "[NEW]", 4),
        (added(62, "<|new|>", False), "<|new|>", 3),
    ],
)
def test_tokens_that_tokenizer_config_declares_come_first(declared: Files, token: str, kind: int) -> None:
    stored = json.loads(TOKENIZER["tokenizer.json"])
    vocabulary = {text: number for text, number in stored["model"]["vocab"].items() if number < 62}
    options = {"added_tokens_decoder": {str(declared["id"]): {key: declared[key] for key in declared if key != "id"}}}
    change = {"model": {**stored["model"], "vocab": vocabulary}, "more": [added(4, "t0", False)]}
    keys = keys_of(change, {"tokenizer_config.json": options}, {})
    number = declared["id"]
    assert (keys[f"{PREFIX}tokens"][number], keys[f"{PREFIX}token_type"][number]) == (token, kind)


def test_a_declared_token_has_the_id_of_the_tokenizer() -> None:
    keys = keys_of(
        {}, {"tokenizer_config.json": {"added_tokens_decoder": {"63": {"content": "t1", "special": True}}}}, {}
    )
    assert list(keys[f"{PREFIX}tokens"]).count("t1") == 1
    assert keys[f"{PREFIX}token_type"][5] == 3


def test_tokens_beyond_one_on_each_side_are_named_in_the_report(tmp_path: Path) -> None:
    stored = {**json.loads(TOKENIZER["tokenizer.json"]), **template("t0", "t1", "A", "t2", "t3")}
    report = converted(tmp_path, {"tokenizer.json": stored}, {})[0]
    assert "llama.cpp adds one token on each side of a text, and not 't1', 't2'" in report.notes


STATED = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("generation", "expected"),
    [
        (STATED, {"temp": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05, "penalty_repeat": 1.05}),
        ({"temperature": None, "top_k": True, "top_p": "x", "min_p": float("nan")}, {}),
        ({"temperature": 1, "top_k": 2.5, "penalty_repeat": 1.25, "repetition_penalty": 2.0},
         {"temp": 1.0, "penalty_repeat": 1.25}),
        ({"xtc_probability": 0.5, "xtc_threshold": 0.25, "penalty_last_n": 64, "mirostat": 2, "mirostat_tau": 5.0,
          "mirostat_eta": 0.5, "sequence": "temp;top_k"},
         {"xtc_probability": 0.5, "xtc_threshold": 0.25, "penalty_last_n": 64, "mirostat": 2, "mirostat_tau": 5.0,
          "mirostat_eta": 0.5, "sequence": "temp;top_k"}),
    ],
)  # fmt: skip
def test_defaults_of_sampling_are_keys_both_ways(generation: Files, expected: Files) -> None:
    stated = stated_sampling(generation)
    keys = sampling_keys(stated)
    values = {key.removeprefix("general.sampling."): value.value for key, value in keys.items()}
    assert values == pytest.approx(expected)
    assert sampling_of(keys) == stated


def converted(folder: Path, files: dict[str, Any], config: Files) -> tuple[Any, dict[str, Any]]:
    """Convert a folder with these files to a GGUF; returns the report and the keys."""
    own = {**TOKENIZER, **{name: json.dumps(value).encode() for name, value in files.items()}}
    source = write_model(folder / "qwen", "qwen3", QWEN3 | config, files=own)
    report = squish.convert(source, folder / "m.gguf")
    with squish.open(folder / "m.gguf") as file:
        return report, dict(file.meta)


def test_sampling_comes_back_from_a_gguf_of_others(tmp_path: Path) -> None:
    _, meta = converted(tmp_path, {"generation_config.json": {"eos_token_id": 3, "do_sample": True, **STATED}}, {})
    assert meta["general.sampling.temp"] == float(np.float32(0.6))
    with squish.open(tmp_path / "m.gguf") as file:
        keys = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        squish.save(tmp_path / "other.gguf", {name: file[name].numpy() for name in file}, metadata=keys)
    squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    generation = json.loads((tmp_path / "back" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": 3, "do_sample": True, **STATED}


MODULES = [{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"}]


@pytest.mark.parametrize(
    ("pooling", "number"),
    [
        ({"pooling_mode_mean_tokens": True}, 1),
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, 2),
        ({"pooling_mode_lasttoken": True}, 3),
        ({"pooling_mode": "lasttoken"}, 3),
        ({"pooling_mode_max_tokens": True}, None),
    ],
)
def test_pooling_is_a_key_and_its_files_come_back(pooling: Files, number: int | None, tmp_path: Path) -> None:
    files = {"modules.json": MODULES, "1_Pooling/config.json": {"word_embedding_dimension": 32, **pooling}}
    _, meta = converted(tmp_path, files, {})
    assert meta.get("qwen3.pooling_type") == number
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    assert not (tmp_path / "back" / "squish.gguf.json").exists()
    for name in files:
        assert (tmp_path / "back" / name).read_bytes() == (tmp_path / "qwen" / name).read_bytes()


def test_pooling_of_a_gguf_of_others_becomes_files(tmp_path: Path) -> None:
    converted(tmp_path, {}, {})
    with squish.open(tmp_path / "m.gguf") as file:
        keys = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        keys["qwen3.pooling_type"] = Typed("u32", 3)
        squish.save(tmp_path / "other.gguf", {name: file[name].numpy() for name in file}, metadata=keys)
    squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    stated = json.loads((tmp_path / "back" / "1_Pooling" / "config.json").read_text())
    assert (stated["pooling_mode_lasttoken"], stated["word_embedding_dimension"]) == (True, 32)
    squish.convert(tmp_path / "back", tmp_path / "again.gguf")
    with squish.open(tmp_path / "again.gguf") as file:
        assert file.meta["qwen3.pooling_type"] == 3


@pytest.mark.parametrize(
    ("stated", "name"),
    [
        ("org/Tiny-qwen-v1.5-0.6b-instruct", "Tiny Qwen v1.5 0.6b Instruct"),
        ("/home/someone/tiny", None), ("./tiny", None), ("a/b/c", None), ("", None), (5, None),
        ("org/Phi-3-mini", None),  # llama.cpp does not load a model of that name without Phi 3's tokens
    ],
)  # fmt: skip
def test_the_name_is_the_one_that_the_config_states(stated: Any, name: str | None, tmp_path: Path) -> None:
    _, meta = converted(tmp_path, {}, {"_name_or_path": stated})
    assert meta.get("general.name") == name
    assert meta["general.size_label"] == "11K"


def test_names_of_a_base_model_are_those_of_the_family(tmp_path: Path) -> None:
    config = {**QWEN3, "architectures": ["Qwen3Model"], "tie_word_embeddings": False}
    source = write_model(tmp_path / "whole", "qwen3", QWEN3, files=TOKENIZER)
    with squish.open(source) as file:
        arrays = {name.removeprefix("model."): file[name].numpy() for name in file}
    assets = {**TOKENIZER, "config.json": json.dumps(config).encode()}
    squish.save(tmp_path / "bare", arrays, format="safetensors:max_shard_size=1GB", assets=assets)
    squish.convert(tmp_path / "bare", tmp_path / "m.gguf")
    with squish.open(tmp_path / "m.gguf") as file:
        assert file.meta["general.architecture"] == "qwen3"
        assert {"blk.0.attn_q.weight", "token_embd.weight", "output_norm.weight"} <= set(file)
        assert "output.weight" not in file


def test_a_gguf_without_bos_has_none_in_a_folder() -> None:
    keys = keys_of({}, EOS, {})
    assert f"{PREFIX}bos_token_id" not in keys
    tokenizer = read_gguf(keys)
    assert tokenizer is not None
    assert "bos" not in tokenizer.special  # llama.cpp assumes token 11, which is a word here


@pytest.mark.parametrize(("more", "has_end"), [((), True), (("<|return|>", "<|call|>"), False)])
def test_end_of_a_message_ends_no_turn_of_harmony(more: tuple[str, ...], has_end: bool) -> None:
    tokens = ["a", "<|end|>", *more]
    meta = {
        "model": "gpt2",
        "pre": "gpt-4o",
        "tokens": tokens,
        "merges": [],
        "token_type": [1, *[3] * (len(tokens) - 1)],
    }
    tokenizer = read_gguf({f"{PREFIX}{key}": value for key, value in meta.items()})
    assert tokenizer is not None
    assert (1 in tokenizer.end_ids) is has_end


@pytest.mark.parametrize(
    ("pre", "stated"), [(None, "is missing"), ("", "is ''"), ("default", "is 'default'"), ("qwen2", "")]
)
def test_a_pretokenizer_that_is_not_named_is_llama_cpps_default_with_a_note(
    pre: str | None, stated: str, tmp_path: Path
) -> None:
    converted(tmp_path, {}, {})
    with squish.open(tmp_path / "m.gguf") as file:
        keys = {key: value for key, value in file.index.meta.items() if not key.startswith("squish.")}
        keys = {**keys, f"{PREFIX}pre": Typed("str", pre or "")}
        if pre is None:
            del keys[f"{PREFIX}pre"]
        squish.save(tmp_path / "other.gguf", {name: file[name].numpy() for name in file}, metadata=keys)
    report = squish.convert(tmp_path / "other.gguf", tmp_path / "back", "hf")
    notes = [note for note in report.notes if note.startswith(f"{PREFIX}pre")]
    assert [note.partition(":")[0] for note in notes] == [f"{PREFIX}pre {stated}"] * bool(stated)
    written = json.loads((tmp_path / "back" / "tokenizer.json").read_text())["pre_tokenizer"]["pretokenizers"]
    assert len(written) == (5 if stated else 2)
