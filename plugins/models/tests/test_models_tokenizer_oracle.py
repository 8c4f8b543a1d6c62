"""Ids of the `tokenizers` package: of a tokenizer that it trained after a way through GGUF, and of llama.cpp's own."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from mixed_texts import splits_letters_otherwise
from oracles import vocabularies
from squish_models.tokenizer import gguf_keys, huggingface_files, read_gguf, read_huggingface
from squish_models.tokenizer.pretokenizers import BY_NAME, PRETOKENIZERS
from squish_models.tokenizer.vocabulary import looks_special

import squish_core as squish
from squish_core.model import Typed

pytestmark = pytest.mark.oracle

TEXTS = [
    "", " ", "   three spaces", "Hello, world!", "don't WE'LL I'M", "1234567 12.5e-3", "caf\u00e9 na\u00efve",
    "\u4e00\u4e8c\u4e09 \u3053\u3093\u306b\u3061\u306f", "line\nbreaks\r\n\r\n\tand tabs",
    "\U0001f600 \U0001f468\u200d\U0001f469",
    "x" * 100, "snake_case(camelCase)[0] != {'a': 1}", "<|end|>after<|end|> <s> </s>",
    "\u2581marks\u2581", "\x00\x7f\ufffd",
    "trailing space ", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd",
]  # fmt: skip


def train(kind: str, steps: list[dict[str, Any]], normalizer: str | None, ignore_merges: bool) -> str:
    """A tokenizer.json of 1000 tokens; runs in the peer."""
    import json

    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    text = [" ".join(f"{word}{n % 7}'s {n} \u4e00caf\u00e9\n" for n in range(40)) for word in dir(str) + dir(json)]
    special = ["<unk>", "<s>", "</s>", "<|end|>"]
    if kind == "bpe":
        tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
        shell = json.loads(tokenizer.to_str())
        shell["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": steps}
        shell["normalizer"] = {"type": normalizer} if normalizer else None
        tokenizer = Tokenizer.from_str(json.dumps(shell))
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special, initial_alphabet=alphabet)
    else:
        tokenizer = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
        trainer = trainers.BpeTrainer(vocab_size=1000, special_tokens=special + bytes_, max_token_length=12)
    tokenizer.train_from_iterator(text, trainer)
    tokenizer.add_tokens([AddedToken("@@@", normalized=False)])
    stored = json.loads(tokenizer.to_str())
    stored["added_tokens"] = [each for each in stored["added_tokens"] if not each["content"].startswith("<0x")]
    return json.dumps(stored)


def encode(text: str, samples: list[str]) -> list[list[int]]:
    """Ids of each sample; runs in the peer."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_str(text)
    return [tokenizer.encode(sample, add_special_tokens=False).ids for sample in samples]


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["spm", *(each.names[0] for each in PRETOKENIZERS if not each.spelled)])
def test_ids_are_the_same_after_a_way_through_gguf(kind: str) -> None:
    peer = oracles.peer("tokenizers")
    each = next((each for each in PRETOKENIZERS if each.names[0] == kind), PRETOKENIZERS[0])
    model = "spm" if kind == "spm" else "bpe"
    source = peer.run(
        train, kind=model, steps=[*each.steps], normalizer=each.normalizer, ignore_merges=each.ignore_merges
    )
    tokenizer = read_huggingface({"tokenizer.json": source.encode()}, {})
    assert tokenizer is not None
    back = read_gguf(gguf_keys(tokenizer))
    assert back is not None
    result = huggingface_files(back)["tokenizer.json"].decode()
    assert peer.run(encode, text=result, samples=TEXTS) == peer.run(encode, text=source, samples=TEXTS)


def tokenize(path: str, texts: list[str]) -> list[list[int]]:
    """Ids that llama.cpp gives with a vocabulary alone; runs in the peer."""
    import ctypes
    from ctypes import c_bool, c_char_p, c_int32, c_void_p
    from pathlib import Path

    import xllamacpp

    class Params(ctypes.Structure):  # larger than any version's
        _fields_ = (("words", ctypes.c_uint32 * 256),)

    library = ctypes.CDLL(next(map(str, Path(xllamacpp.__file__).parent.glob("*.so"))))

    def function(name: str, result: Any, *arguments: Any) -> Any:
        entry = getattr(library, name)
        entry.restype, entry.argtypes = result, arguments
        return entry

    log = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)(lambda level, text, _: None)
    function("llama_log_set", None, type(log), c_void_p)(log, None)
    function("llama_backend_init", None)()
    params = function("llama_model_default_params", Params)()
    params.words[18] |= 1  # vocab_only, the first of the switches
    model = function("llama_model_load_from_file", c_void_p, c_char_p, Params)(path.encode(), params)
    if not model:
        raise RuntimeError("llama.cpp does not load the vocabulary")
    vocabulary = function("llama_model_get_vocab", c_void_p, c_void_p)(model)
    array = ctypes.POINTER(c_int32)
    encode = function("llama_tokenize", c_int32, c_void_p, c_char_p, c_int32, array, c_int32, c_bool, c_bool)
    result = []
    for text in texts:
        data, ids = text.encode(), (c_int32 * 4096)()
        result.append(list(ids[: encode(vocabulary, data, len(data), ids, len(ids), False, True)]))
    function("llama_model_free", None, c_void_p)(model)
    function("llama_log_set", None, c_void_p, c_void_p)(None, None)
    return result


@pytest.mark.parametrize("pre", [each.names[0] for each in PRETOKENIZERS])
def test_a_pretokenizer_splits_as_llama_cpp_does(pre: str, tmp_path: Path) -> None:
    name = "gemma-4" if BY_NAME[pre].spelled else "gpt-2"
    with squish.open(vocabularies.vocabulary(name)) as file:
        model = {} if pre == "gemma4" else {"tokenizer.ggml.model": Typed("str", "gpt2")}
        meta = {**file.index.meta, **model, "tokenizer.ggml.pre": Typed("str", pre)}
    squish.save(tmp_path / "m.gguf", {"x": np.zeros(4, np.float32)}, metadata=meta)
    tokenizer = read_gguf(meta)
    assert tokenizer is not None
    texts = [*vocabularies.samples(name)[0], *mixed(), *(text for text in TEXTS if "<" not in text)]
    result = huggingface_files(tokenizer)["tokenizer.json"].decode()
    ids = oracles.peer("tokenizers").run(encode, text=result, samples=texts)
    expected = oracles.peer("llama.cpp").run(tokenize, path=str(tmp_path / "m.gguf"), texts=texts)
    differing = [text for text, own, llama_cpp in zip(texts, ids, expected, strict=True) if own != llama_cpp]
    excused = EXCUSES.get(pre, lambda text: BY_NAME[pre].normalizer == "NFC" and not is_composed(text))
    assert not [text for text in differing if not excused(text)]


def is_composed(text: str) -> bool:
    return unicodedata.normalize("NFC", text) == text


def has_marks(text: str) -> bool:
    return any(unicodedata.category(each).startswith("M") for each in text)


EXCUSES: dict[str, Callable[[str], bool]] = {
    "tiny_aya": lambda text: any(map(str.isdigit, text)), "tekken": has_marks, "gpt-4o": has_marks,
    "kimi-k2": splits_letters_otherwise,
}  # fmt: skip
"""Where llama.cpp differs from the tokenizer.json of these models, as docs/tokenizers.md says."""
PIECES = (
    "a", "B", "the", "don't", "'S", "'ll", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", "1", "12", "345", "1234567",
    "\u00b2", "\u2167", "\u4e00", "\u4e8c\u4e09", "\u3007", "\u3005", "\U00020000", "\uf900", "\u304c", "\u30ab",
    "\ud55c", "\u0e44\u0e17\u0e22", "\u00e9", "e\u0301", "\u0301", "\u200c", "\u200d", "\u00a0", "\u3000", "!", "?!",
    "...", "(", "$", "+", "_", "\U0001f600", "\u017f", "\u0416", "\u0663", "\u2581", "IMGIMGABCDZ", "-", "/",
)  # fmt: skip
"""What pre-tokenizers treat in their own ways: letters, digits, marks, scripts and spaces of many kinds."""


def mixed() -> list[str]:
    """Texts of random pieces."""
    choose = random.Random(0)
    return ["".join(choose.choices(PIECES, k=choose.randrange(1, 9))) for _ in range(1000)]


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_ids_of_a_real_vocabulary_are_those_of_llama_cpp(name: str) -> None:
    with squish.open(vocabularies.vocabulary(name)) as file:
        tokenizer = read_gguf(file.index.meta)
    assert tokenizer is not None
    texts, expected = vocabularies.samples(name)
    result = huggingface_files(tokenizer)["tokenizer.json"].decode()
    ids = oracles.peer("tokenizers").run(encode, text=result, samples=texts)
    differing = [text for text, own, llama_cpp in zip(texts, ids, expected, strict=True) if own != llama_cpp]
    # qwen35 normalizes in tokenizers and not in llama.cpp, which docs/tokenizers.md says
    assert all(unicodedata.normalize("NFC", text) != text for text in differing)
    assert not differing or name == "qwen35"


@pytest.mark.parametrize("name", vocabularies.NAMES)
def test_a_real_vocabulary_comes_back_into_gguf(name: str) -> None:
    with squish.open(vocabularies.vocabulary(name)) as file:
        tokenizer = read_gguf(file.index.meta)
    assert tokenizer is not None
    again = read_huggingface(huggingface_files(tokenizer), {"vocab_size": len(tokenizer.tokens)})
    assert again is not None
    assert again.tokens == tokenizer.tokens
    assert again.merges == tokenizer.merges
    assert dict(again.special) == dict(tokenizer.special)
    other = [tokenizer.tokens[number] for number in np.flatnonzero(again.kinds != tokenizer.kinds)]
    assert all(map(looks_special, other))  # older files have such tokens as USER_DEFINED
