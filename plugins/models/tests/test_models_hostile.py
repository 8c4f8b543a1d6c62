"""Configs and tokenizers that are damaged or hostile: typed errors, soon, and nothing is written."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from small_tokenizer import TOKENIZER
from squish_convert.arrays import in_memory
from squish_convert.mapping.mapped import map_file, naming_of
from squish_models.tokenizer import read_gguf, read_huggingface
from squish_models.tokenizer.sentencepiece import parse
from squish_testing import model_arrays, write_model
from test_models_bad_input import FIRST, family_of, mapped

import squish_core as squish
from squish_core.model import Typed

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 64,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64, "rope_theta": 10000.0,
    "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip
Change = Callable[[dict[str, Any]], Any]
SURROGATE = "\ud800"


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return write_model(tmp_path / "llama", "llama", LLAMA, files=TOKENIZER)


def refusal(folder: Path) -> squish.SquishError:
    target = folder.with_name("out.gguf")
    start = time.monotonic()
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(folder, target)
    assert time.monotonic() - start < 60  # a guard against hanging
    assert not target.exists()
    return caught.value


def vocabulary(**tokens: Any) -> Change:
    return lambda stored: stored["model"]["vocab"].update(tokens)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (vocabulary(zz=1), "tokenizer"),
        (vocabulary(zz=-1), "count"),
        (vocabulary(zz=10**12), "count"),
        (vocabulary(zz=1.5), "tokenizer"),
        (lambda stored: stored["model"]["merges"].append(["q", "r"]), "tokenizer"),
        (lambda stored: stored["model"]["merges"].append(["a", "b", "ab"]), "tokenizer"),
        (lambda stored: stored["model"]["merges"].append(5), "tokenizer"),
        (lambda stored: stored["model"]["merges"].append(["a", 5]), "tokenizer"),
        (lambda stored: stored["model"]["merges"].append([["a"], "b"]), "tokenizer"),
        (lambda stored: stored["model"]["merges"].append({"a": 0, "b": 1}), "tokenizer"),
        (lambda stored: stored["model"].update(merges={"a b": 0}), "tokenizer"),
        (lambda stored: stored.update(model=None), "tokenizer"),
        (lambda stored: stored.update(model=[]), "tokenizer"),
        (lambda stored: stored.update(added_tokens=5), "tokenizer"),
        (lambda stored: stored.update(post_processor={"type": "TemplateProcessing", "single": 5}), "tokenizer"),
        (
            lambda stored: stored.update(
                post_processor={"type": "TemplateProcessing", "single": [{"SpecialToken": 5}]}
            ),
            "tokenizer",
        ),
        (lambda stored: stored["model"]["vocab"].update({SURROGATE: stored["model"]["vocab"].pop("t59")}), "encoding"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(change: Change, code: str, llama: Path) -> None:
    stored = json.loads(TOKENIZER["tokenizer.json"])
    change(stored)
    (llama / "tokenizer.json").write_text(json.dumps(stored))
    error = refusal(llama)
    assert (error.code, error.part) == (code, "tokenizer.json")


@pytest.mark.parametrize(
    ("name", "data", "code"),
    [
        ("tokenizer.json", b'{"model": {"vocab": {"\xff": 1}}}', "json"),
        ("tokenizer.json", b'{"a":' * 100_000, "json"),
        ("tokenizer_config.json", b"[]", "json"),
        ("tokenizer_config.json", json.dumps({"chat_template": SURROGATE}).encode(), "encoding"),
        ("tokenizer_config.json", b'{"chat_template": 5}', "tokenizer"),
        ("tokenizer_config.json", b'{"chat_template": [{"name": "default", "template": 5}]}', "tokenizer"),
        ("chat_template.jinja", b"\xff\xff", "encoding"),
        ("chat_template.jinja", b"{{ x }}" * (1 << 20), "size"),
    ],
)
def test_files_of_a_tokenizer_that_cannot_be_read_are_refused(name: str, data: bytes, code: str, llama: Path) -> None:
    (llama / name).write_bytes(data)
    assert refusal(llama).code == code


@pytest.mark.parametrize(
    ("setting", "value", "code", "place"),
    [
        ("num_hidden_layers", 10**5, "unmapped", "model.layers.2.input_layernorm.weight"),
        ("num_hidden_layers", 4 * 10**9, "count", "config.json num_hidden_layers"),
        ("num_hidden_layers", 10**30, "config", "config.json num_hidden_layers"),
        ("num_attention_heads", 0, "config", "config.json num_attention_heads"),
        ("head_dim", 0, "contradiction", "model.layers.0.self_attn.k_proj.weight"),
        ("vocab_size", 2**31, "contradiction", "lm_head.weight"),
        ("rope_theta", -1, "config", "config.json rope_theta"),
        ("rope_theta", 10**400, "config", "config.json rope_theta"),
        ("rope_scaling", 5, "config", "config.json rope_scaling"),
        ("partial_rotary_factor", "x", "config", "config.json partial_rotary_factor"),
        ("partial_rotary_factor", 1e300, "config", "config.json partial_rotary_factor"),
        ("partial_rotary_factor", float("inf"), "config", "config.json partial_rotary_factor"),
        ("sliding_window", "4096", "config", "config.json sliding_window"),
        ("tie_word_embeddings", "yes", "config", "config.json tie_word_embeddings"),
        ("sliding_window", "x", "config", "config.json sliding_window"),
        (
            "rope_scaling",
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 4.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            },
            "rope",
            "config.json",
        ),
    ],
)
def test_settings_that_no_model_has_are_refused(setting: str, value: Any, code: str, place: str, llama: Path) -> None:
    (llama / "config.json").write_text(json.dumps({**LLAMA, setting: value}))
    error = refusal(llama)
    assert (error.code, error.tensor or error.part) == (code, place)


@pytest.mark.parametrize(
    ("family", "change", "code", "place"),
    [
        ("deepseek2", {"num_hidden_layers": 4 * 10**9}, "count", "config.json num_hidden_layers"),
        ("deepseek2", {"n_routed_experts": 4 * 10**9}, "count", "config.json num_hidden_layers"),
        ("deepseek2", {"rope_scaling": 5}, "config", "config.json rope_scaling"),
        ("deepseek2", {"num_nextn_predict_layers": 10**10}, "config", "config.json num_nextn_predict_layers"),
        ("deepseek2", {"num_nextn_predict_layers": "1"}, "config", "config.json num_nextn_predict_layers"),
        ("lfm2", {"layer_types": None, "num_hidden_layers": 4 * 10**9}, "config", "config.json layer_types"),
        ("lfm2", {"layer_types": [[], []]}, "config", "config.json layer_types"),
        ("lfm2", {"layer_types": None, "full_attn_idxs": 1}, "config", "config.json full_attn_idxs"),
        ("lfm2", {"block_ffn_dim_multiplier": "1"}, "config", "config.json block_ffn_dim_multiplier"),
        ("gemma2", {"sliding_window_pattern": "x"}, "config", "config.json"),
    ],
)
def test_settings_of_a_family_that_no_model_has_are_refused(
    family: str, change: dict[str, Any], code: str, place: str
) -> None:
    arrays = model_arrays(family_of(family), FIRST[family])
    config = {key: value for key, value in {**FIRST[family], **change}.items() if value is not None}
    start = time.monotonic()
    with pytest.raises(squish.SquishError) as caught:
        mapped(arrays, config)
    assert time.monotonic() - start < 60  # a guard against hanging
    assert (caught.value.code, caught.value.part) == (code, place)


@pytest.mark.parametrize(
    ("family", "key", "value", "code", "place"),
    [
        ("gpt-oss", "block_count", 2**32 - 1, "count", "gpt-oss.block_count"),
        ("deepseek2", "expert_count", 2**32 - 1, "count", "deepseek2.block_count"),
        ("gpt2", "attention.head_count", 0, "config", "gpt2.attention.head_count"),
        ("gemma2", "attention.head_count", 0, "config", "gemma2.attention.head_count"),
    ],
)
def test_keys_that_no_model_has_are_refused(family: str, key: str, value: int, code: str, place: str) -> None:
    there = mapped(model_arrays(family_of(family), FIRST[family]), FIRST[family])
    meta = {**there.index.meta, f"{family}.{key}": Typed("u32", value)}
    file = in_memory({name: there[name].numpy() for name in there}, meta)
    with pytest.raises(squish.SquishError) as caught:
        map_file(file, "hf", {}, naming_of(file))
    assert (caught.value.code, caught.value.part) == (code, place)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("factor", Typed("str", "x")),
        ("factor", Typed("f32", float("inf"))),
        ("original_context_length", Typed("str", "4096")),
        ("original_context_length", Typed("f32", float("inf"))),
    ],
)
def test_a_scaling_of_a_gguf_without_numbers_is_refused(key: str, value: Typed) -> None:
    there = mapped(model_arrays(family_of("llama"), LLAMA), LLAMA)
    scaling = {"type": Typed("str", "yarn"), "factor": Typed("f32", 2.0), key: value}
    meta = {**there.index.meta, **{f"llama.rope.scaling.{name}": item for name, item in scaling.items()}}
    file = in_memory({name: there[name].numpy() for name in there}, meta)
    with pytest.raises(squish.SquishError) as caught:
        map_file(file, "hf", {}, naming_of(file))
    assert (caught.value.code, caught.value.part) == ("rope", f"llama.rope.scaling.{key}")


def test_a_rotated_share_of_heads_without_values_is_no_division_by_zero() -> None:
    there = mapped(model_arrays(family_of("qwen2"), FIRST["qwen2"]), FIRST["qwen2"])
    sizes = {"qwen2.embedding_length": Typed("u32", 0), "qwen2.rope.dimension_count": Typed("u32", 8)}
    file = in_memory({name: there[name].numpy() for name in there}, {**there.index.meta, **sizes})
    with pytest.raises(squish.SquishError) as caught:
        map_file(file, "hf", {}, naming_of(file))
    assert caught.value.code in ("config", "contradiction")


def test_ten_million_tokens_are_too_many() -> None:
    data = b'{"model": {"vocab": {' + b",".join(b'"%d": %d' % (n, n) for n in range(10**7)) + b"}}}"
    start = time.monotonic()
    with pytest.raises(squish.LimitError) as caught:
        read_huggingface({"tokenizer.json": data}, LLAMA)
    assert time.monotonic() - start < 60  # a guard against hanging
    assert (caught.value.code, caught.value.part) == ("size", "tokenizer.json")


def test_many_small_values_are_refused_unparsed(llama: Path) -> None:
    (llama / "tokenizer.json").write_bytes(b'{"a": [' + b"[]," * (5 << 20) + b"0]}")
    error = refusal(llama)
    assert (error.code, error.part, error.found) == ("count", "tokenizer.json", (10 << 20) + 2)


@pytest.mark.parametrize("key", ["tokens", "merges"])
def test_ten_million_texts_of_a_gguf_are_refused_undecoded(key: str, llama: Path) -> None:
    class Texts(Sequence[str]):
        def __len__(self) -> int:
            return 10**7

        def __getitem__(self, index: Any) -> Any:
            raise AssertionError("decoded")

    squish.convert(llama, llama.with_name("m.gguf"))
    with squish.open(llama.with_name("m.gguf")) as file:
        meta = {**file.meta, f"tokenizer.ggml.{key}": Texts()}
    with pytest.raises(squish.LimitError) as caught:
        read_gguf(meta)
    assert (caught.value.code, caught.value.found) == ("count", 10**7)


def key(name: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], Any]:
    """A change of a key's value."""
    return lambda meta: meta.update({name: type(meta[name])(meta[name].type, change(meta[name].value))})


@pytest.mark.parametrize(
    ("change", "code", "place"),
    [
        (key("tokenizer.ggml.tokens", lambda each: ["b", *list(each)[1:]]), "tokenizer", "tokenizer.ggml.tokens"),
        (key("tokenizer.ggml.merges", lambda each: [*each, "q r"]), "tokenizer", "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.merges", lambda each: ["ab"]), "tokenizer", "tokenizer.ggml.merges"),
        (key("tokenizer.ggml.token_type", lambda each: list(each)[1:]), "tokenizer", "tokenizer.ggml.token_type"),
        (key("tokenizer.ggml.token_type", lambda each: [9] * 64), "tokenizer", "tokenizer.ggml.token_type"),
        (
            lambda meta: meta.update({"tokenizer.ggml.eos_token_id": Typed("f32", float("inf"))}), "tokenizer", None,
        ),
        (key("tokenizer.ggml.model", lambda each: "rwkv"), "tokenizer", "tokenizer.ggml.model"),
        (key("tokenizer.ggml.pre", lambda each: "own"), "tokenizer", "tokenizer.ggml.pre"),
        (lambda meta: meta.pop("tokenizer.ggml.merges"), "tokenizer", "tokenizer.ggml.merges"),
        (
            lambda meta: meta.update({"tokenizer.chat_template": Typed("str", "{{ x }}" * (1 << 20))}),
            "size", "tokenizer.chat_template",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("to", ["hf", "mlx", "uqff"])
def test_keys_of_a_tokenizer_that_contradict_each_other_are_named(
    to: str, change: Callable[[dict[str, Any]], Any], code: str, place: str | None, llama: Path
) -> None:
    squish.convert(llama, llama.with_name("m.gguf"), "gguf:keep=no")
    with squish.open(llama.with_name("m.gguf")) as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    change(meta)
    source, target = llama.with_name("own.gguf"), llama.with_name("out")
    squish.save(source, arrays, metadata=meta)
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(source, target, to)
    assert (caught.value.file, caught.value.code, caught.value.part) == (str(source), code, place)
    assert not target.exists()


def test_a_kind_of_a_piece_beyond_31_bits_is_unknown() -> None:
    piece = b"\x0a\x03abc\x15\x00\x00\x00\x00\x18\xff\xff\xff\xff\x0f"
    data = b"\x0a" + bytes([len(piece)]) + piece
    with pytest.raises(squish.SquishError) as caught:
        read_huggingface({"tokenizer.model": data}, {})
    assert (caught.value.code, caught.value.found) == ("tokenizer", "-1")


def test_ten_million_pieces_are_too_many() -> None:
    with pytest.raises(squish.LimitError) as caught:
        parse(b"\x0a\x05\x0a\x03abc" * (2 * 10**6))
    assert caught.value.code == "count"
