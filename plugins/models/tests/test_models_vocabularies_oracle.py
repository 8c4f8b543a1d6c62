"""Ids of WordPiece, unigram and tiktoken vocabularies, in the package of each, in Transformers and in llama.cpp."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from attrs import frozen
from mixed_texts import corpus, lines, splits_letters_otherwise
from oracles import converter, vocabularies
from squish_models.tokenizer import Kind, Tokenizer, gguf_keys, huggingface_files, ranks, read_gguf, read_huggingface
from squish_models.tokenizer.unigram import METASPACE
from test_models_tokenizer_oracle import encode, tokenize

import squish_core as squish
from squish_core.model import Typed

pytestmark = [pytest.mark.oracle, pytest.mark.peers]


def train_words(texts: list[str], lowercase: bool, accents: bool | None) -> str:
    """A vocab.txt; runs in the peer."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    special = ["[PAD]", "[unused0]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(texts, trainers.WordPieceTrainer(vocab_size=6000, special_tokens=special))
    ids = tokenizer.get_vocab()
    return "".join(f"{token}\n" for token in sorted(ids, key=ids.__getitem__))


def train_pieces(texts: list[str], settings: dict[str, Any]) -> bytes:
    """A SentencePiece model; runs in the peer."""
    import io

    import sentencepiece

    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=model, vocab_size=4000, hard_vocab_limit=False,
        character_coverage=0.999, normalization_rule_name="nmt_nfkc", minloglevel=2, num_threads=1, **settings,
    )  # fmt: skip
    return model.getvalue()


def train_ranks(texts: list[str], pattern: str) -> str:
    """A tiktoken.model; runs in the peer."""
    import base64
    import json

    from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    steps = [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=3000, initial_alphabet=alphabet))
    seen = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = {chr(byte): byte for byte in seen}
    letters |= {chr(0x100 + place): byte for place, byte in enumerate(sorted({*range(256)} - {*seen}))}
    stored = json.loads(tokenizer.to_str())["model"]["vocab"]
    tokens = [bytes(letters[letter] for letter in token) for token in sorted(stored, key=stored.__getitem__)]
    return "".join(f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))


def load(folder: str, texts: list[str]) -> list[list[int]]:
    """Ids of Transformers; runs in the peer."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def save(folder: str, target: str) -> None:
    """Save the tokenizer of a folder with Transformers, which writes tokenizer.json; runs in the peer."""
    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(folder).save_pretrained(target)


def load_ranks(ranks: bytes, pattern: str, special: dict[str, int], texts: list[str]) -> list[list[int]]:
    """Ids of tiktoken; runs in the peer."""
    import base64

    import tiktoken

    pairs = [line.split() for line in ranks.splitlines()]
    tokens = {base64.b64decode(token): int(rank) for token, rank in pairs}
    encoding = tiktoken.Encoding("x", pat_str=pattern, mergeable_ranks=tokens, special_tokens=special)
    return [encoding.encode(text, allowed_special="all") for text in texts]


@frozen
class Source:
    """A folder with a vocabulary alone, and where llama.cpp splits its texts otherwise."""

    files: dict[str, bytes]
    config: dict[str, Any]
    added: tuple[str, ...]
    excused: Callable[[str], bool]


def splits_words_otherwise(text: str) -> bool:
    """Whether llama.cpp's tables for BERT differ for a text, as docs/tokenizers.md says."""
    return any(
        "\uac00" <= each <= "\ud7a3"
        or each in "\u2581\u0130\u061d\u09fd"
        or unicodedata.category(each) in ("Mc", "Me", "Cn")
        for each in text
    ) or any(len(word) > 100 for word in text.split())


def replaces_clusters(text: str) -> bool:
    """Whether the package tokenizers replaces a letter and its marks at once, and llama.cpp the letter alone."""
    return any(
        unicodedata.category(each).startswith("M") or each in "\u200c\u200d\uff9e\uff9f\u0085"
        or "\u1100" <= each <= "\u11ff" or "\uffa0" <= each <= "\uffdc" or "\U0001f3fb" <= each <= "\U0001f3ff"
        for each in text
    )  # fmt: skip


BERT = {"architectures": ["BertModel"], "model_type": "bert", "type_vocab_size": 2, "num_hidden_layers": 1,
        "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1, "max_position_embeddings": 512,
        "layer_norm_eps": 1e-12, "pad_token_id": 0}  # fmt: skip
T5 = {"architectures": ["T5ForConditionalGeneration"], "model_type": "t5", "d_model": 8, "d_ff": 8, "d_kv": 8,
      "num_heads": 1, "num_layers": 1, "num_decoder_layers": 1, "relative_attention_num_buckets": 8, "n_positions": 512,
      "layer_norm_epsilon": 1e-6, "decoder_start_token_id": 0, "eos_token_id": 1, "pad_token_id": 0}  # fmt: skip
XLM = BERT | {"architectures": ["XLMRobertaModel"], "model_type": "xlm-roberta", "type_vocab_size": 1,
              "bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}  # fmt: skip
BERT_ADDED = ("[MASK]", "[SEP]", "[UNK]")


def _bert(lowercase: bool, accents: bool | None = None) -> Source:
    words = oracles.peer("tokenizers").run(train_words, texts=corpus(), lowercase=lowercase, accents=accents)
    options = {"tokenizer_class": "BertTokenizer", "do_lower_case": lowercase, "strip_accents": accents}
    files = {"vocab.txt": words.encode(), "tokenizer_config.json": json.dumps(options).encode()}
    return Source(files, BERT | {"vocab_size": words.count("\n") + 2}, BERT_ADDED, splits_words_otherwise)


def _pieces(name: str, settings: dict[str, Any], config: dict[str, Any], options: dict[str, Any], more: int) -> Source:
    pieces = oracles.peer("torch").run(train_pieces, texts=corpus(), settings=settings)
    tokenizer = read_huggingface({name: pieces, "tokenizer_config.json": json.dumps(options).encode()}, {})
    assert tokenizer is not None
    files = {name: pieces, "tokenizer_config.json": json.dumps(options).encode()}
    added = tuple(str(token) for token in options.values() if str(token).startswith("<"))
    return Source(files, config | {"vocab_size": len(tokenizer.tokens) + more}, added, replaces_clusters)


SOURCES: dict[str, Callable[[], Source]] = {
    "bert-uncased": lambda: _bert(True),
    "bert-cased": lambda: _bert(False),
    "bert-with-accents": lambda: _bert(True, False),
    "t5": lambda: _pieces(
        "spiece.model", {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}, T5,
        {"tokenizer_class": "T5Tokenizer", "extra_ids": 5, "eos_token": "</s>", "extra": "<extra_id_0>"}, 3,
    ),
    "xlm-roberta": lambda: _pieces(
        "sentencepiece.bpe.model", {}, XLM,
        {"tokenizer_class": "XLMRobertaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "mask_token": "<mask>",
         "clean_up_tokenization_spaces": True}, 0,
    ),
}  # fmt: skip


@cache
def source(name: str) -> Source:
    return SOURCES[name]()


def folder(path: Path, source: Source, files: dict[str, bytes] | None = None) -> Path:
    path.mkdir()
    for name, data in {**(files or source.files), "config.json": json.dumps(source.config).encode()}.items():
        (path / name).write_bytes(data)
    return path


def read(source: Source) -> Tokenizer:
    tokenizer = read_huggingface(source.files, source.config)
    assert tokenizer is not None
    return tokenizer


def back(keys: Any) -> Tokenizer:
    tokenizer = read_gguf(keys)
    assert tokenizer is not None
    return tokenizer


def gguf_ids(path: Path, keys: Any, texts: list[str]) -> list[list[int]]:
    base = {"general.architecture": Typed("str", "bert")} | {
        f"bert.{key}": Typed("u32", 8)
        for key in ("block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count")
    }
    base["bert.attention.layer_norm_epsilon"] = Typed("f32", 1e-6)
    squish.save(path, {"x": np.zeros(4, np.float32)}, metadata={**base, **keys})
    return oracles.peer("llama.cpp").run(tokenize, path=str(path), texts=texts)


def different(texts: list[str], one: list[list[int]], other: list[list[int]]) -> list[str]:
    return [text for text, first, second in zip(texts, one, other, strict=True) if first != second]


@pytest.mark.parametrize("name", SOURCES)
def test_ids_are_the_same_in_both_engines_after_a_way_there_and_back(name: str, tmp_path: Path) -> None:
    texts = lines(source(name).added)
    keys = gguf_keys(read(source(name)))
    expected = oracles.peer("torch").run(load, folder=str(folder(tmp_path / "source", source(name))), texts=texts)
    files = huggingface_files(back(keys))
    result = folder(tmp_path / "result", source(name), files)
    assert not different(texts, oracles.peer("torch").run(load, folder=str(result), texts=texts), expected)
    again = read_huggingface(files, source(name).config)
    assert again is not None
    ids = gguf_ids(tmp_path / "m.gguf", keys, texts)
    assert not different(texts, gguf_ids(tmp_path / "n.gguf", gguf_keys(again), texts), ids)
    differing = different(texts, ids, expected)
    assert not [text for text in differing if not source(name).excused(text)]


EXTRA = {"t5": ("add_bos_token", "scores", "token_type")}
"""Source -> keys in which ours differs from the converter's file, which knows `<extra_id_0>` from added_tokens.json."""


@pytest.mark.parametrize("name", SOURCES)
def test_keys_and_ids_are_those_of_the_file_of_llama_cpps_converter(name: str, tmp_path: Path) -> None:
    texts, saved = lines(source(name).added), tmp_path / "saved"
    alone = folder(tmp_path / "source", source(name))
    oracles.peer("torch").run(save, folder=str(alone), target=str(saved))
    own = gguf_keys(read(source(name)))
    files = {path.name: path.read_bytes() for path in saved.iterdir()}
    tokenizer = read_huggingface(files, source(name).config)
    assert tokenizer is not None
    assert not keys_that_differ(gguf_keys(tokenizer), own)
    copied = {"config.json": (alone / "config.json").read_bytes(), **files}
    if name == "t5":
        copied["spiece.model"] = source(name).files["spiece.model"]
        extra = {text: number for number, text in enumerate(tokenizer.tokens) if text.startswith("<extra")}
        copied["added_tokens.json"] = json.dumps(extra).encode()
    for each, data in copied.items():
        (saved / each).write_bytes(data)
    paths = converter.convert({name: saved}, tmp_path, {name: "default"}, tensors=False)
    with squish.open(paths[name]) as file:
        theirs = {key: value for key, value in file.index.meta.items() if key.startswith("tokenizer.")}
    assert keys_that_differ(own, theirs) == {f"tokenizer.ggml.{key}" for key in EXTRA.get(name, ())}
    ids = gguf_ids(tmp_path / "own.gguf", own, texts)
    assert not different(texts, gguf_ids(tmp_path / "theirs.gguf", theirs, texts), ids)
    documents = [huggingface_files(back(keys))["tokenizer.json"].decode() for keys in (own, theirs)]
    one, other = (oracles.peer("tokenizers").run(encode, text=text, samples=texts) for text in documents)
    assert not different(texts, one, other)


def keys_that_differ(one: dict[str, Any], other: dict[str, Any]) -> set[str]:
    def same(key: str) -> bool:
        first, second = one.get(key), other.get(key)
        if first is None or second is None or first.type != second.type:
            return False
        values = [[*each.value] if each.type.startswith("array:") else each.value for each in (first, second)]
        return bool(values[0] == values[1])

    return {key for key in {*one, *other} if not same(key)}


REAL = {"bert-bge": splits_words_otherwise, "nomic-bert-moe": replaces_clusters}
"""Vocabularies of llama.cpp's own, written by its converter."""


@pytest.mark.parametrize("name", REAL)
def test_a_real_vocabulary_comes_back_with_the_same_ids(name: str, tmp_path: Path) -> None:
    with squish.open(vocabularies.vocabulary(name)) as file:
        keys = {key: value for key, value in file.index.meta.items() if key.startswith("tokenizer.")}
    texts = [*lines(("[MASK]", "</s>", "<mask>")), *(vocabularies.samples(name)[0] if name == "bert-bge" else ())]
    tokenizer = back(keys)
    files = huggingface_files(tokenizer)
    config = {"vocab_size": len(tokenizer.tokens), "type_vocab_size": tokenizer.token_types}
    again = read_huggingface(files, config)
    assert again is not None
    assert (again.kinds == tokenizer.kinds).all()
    used = [number for number, kind in enumerate(tokenizer.kinds) if kind != Kind.UNUSED]
    assert all(again.tokens[number] == tokenizer.tokens[number] for number in used)
    assert again.normalizer == tokenizer.normalizer
    ids = gguf_ids(tmp_path / "m.gguf", keys, texts)
    assert not different(texts, gguf_ids(tmp_path / "n.gguf", gguf_keys(again), texts), ids)
    result = oracles.peer("tokenizers").run(encode, text=files["tokenizer.json"].decode(), samples=texts)
    assert not [text for text in different(texts, result, ids) if not REAL[name](text)]


ROWS = {
    "bert-bge": ("\ud55c", "\u0928\u093f", "a\u2581the", "a" * 120, "a\u061dthe", "a\u09fdthe"),
    "bert-bge with accents": ("\u0130stanbul",),
    "nomic-bert-moe": ("\u00b2\u0301", "\uff8a\uff9f", "a\u0085b"),
    "nomic-bert-moe without a charsmap": ("a\nb",),
}
"""Vocabulary -> texts for rows of the table of differences in docs/tokenizers.md."""
CHANGES: dict[str, dict[str, Any]] = {
    " with accents": {"tokenizer.ggml.normalizer.strip_accents": Typed("bool", False)},
    " without a charsmap": {"tokenizer.ggml.precompiled_charsmap": None},
}


@pytest.mark.parametrize("name", ROWS)
def test_llama_cpp_differs_where_the_table_says_so(name: str, tmp_path: Path) -> None:
    vocabulary, change = next((each, name.removeprefix(each)) for each in REAL if name.startswith(each))
    with squish.open(vocabularies.vocabulary(vocabulary)) as file:
        keys = {key: value for key, value in file.index.meta.items() if key.startswith("tokenizer.")}
    keys = {key: value for key, value in {**keys, **CHANGES.get(change, {})}.items() if value is not None}
    texts, document = [*ROWS[name]], json.loads(huggingface_files(back(keys))["tokenizer.json"])
    if vocabulary != "bert-bge":  # as XLM-RoBERTa's class does
        document["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]}
    ids = oracles.peer("tokenizers").run(encode, text=json.dumps(document), samples=texts)
    assert different(texts, gguf_ids(tmp_path / "m.gguf", keys, texts), ids) == texts


UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]"
SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
REST = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
BEFORE = r"[^\r\n\p{L}\p{N}]?"
KIMI = rf"[\p{{Han}}]+|{BEFORE}{UPPER}*{LOWER}+{SHORT}?|{BEFORE}{UPPER}+{LOWER}*{SHORT}?|{REST}"
"""The pattern of Kimi's own code."""
LLAMA3 = rf"{SHORT}|{BEFORE}\p{{L}}+|{REST}"
"""The pattern of Transformers for a tiktoken.model."""


def ranks_by_llama_cpp(root: str, ranks: bytes) -> list[list[bytes]]:
    """The merges that llama.cpp's converter makes of ranks; runs in the peer."""
    import base64
    import sys

    sys.path[:0] = [root, f"{root}/gguf-py"]
    from conversion.qwen import QwenModel  # type: ignore[import-not-found]

    tokens = {base64.b64decode(token): int(rank) for token, rank in (line.split() for line in ranks.splitlines())}
    merged = [QwenModel.bpe(tokens, token, max_rank=rank) for token, rank in tokens.items() if len(token) > 1]
    return [parts for parts in merged if len(parts) == 2]


@pytest.mark.parametrize(("name", "pattern"), [("TikTokenTokenizer", KIMI), (None, LLAMA3)])
def test_ranks_give_the_ids_of_tiktoken(name: str | None, pattern: str, tmp_path: Path) -> None:
    data = oracles.peer("tokenizers").run(train_ranks, texts=corpus(), pattern=pattern).encode()
    count = data.count(b"\n")
    added = {count: "[BOS]", count + 1: "[EOS]", count + 4: "<|im_end|>"}
    options = {"tokenizer_class": name, "bos_token": "[BOS]", "eos_token": "[EOS]"}
    options |= {"added_tokens_decoder": {str(key): {"content": text, "special": True} for key, text in added.items()}}
    files = {"tiktoken.model": data, "tokenizer_config.json": json.dumps(options).encode()}
    tokenizer = read_huggingface(files, {"vocab_size": count + 256})
    assert tokenizer is not None
    keys = gguf_keys(tokenizer)
    pairs = oracles.peer("torch").run(ranks_by_llama_cpp, root=str(converter.fetch()), ranks=data)
    assert [*ranks.merges_of_ranks(ranks.parse(data))] == [*map(tuple, pairs)]
    texts = lines(tuple(added.values()))
    special = {text: number for number, text in enumerate(tokenizer.tokens) if number >= count}
    expected = oracles.peer("tiktoken").run(load_ranks, ranks=data, pattern=pattern, special=special, texts=texts)
    result = huggingface_files(back(keys))
    ids = oracles.peer("tokenizers").run(encode, text=result["tokenizer.json"].decode(), samples=texts)
    assert not different(texts, ids, expected)
    assert name is None or result["tiktoken.model"] == data
    differing = different(texts, gguf_ids(tmp_path / "m.gguf", keys, texts), expected)
    assert not [text for text in differing if name is None or not splits_letters_otherwise(text)]
