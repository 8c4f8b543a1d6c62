"""WordPiece, unigram and tiktoken vocabularies between the files of a folder and GGUF's keys."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_models.tokenizer import (
    Kind,
    Tokenizer,
    check_huggingface,
    gguf_keys,
    huggingface_files,
    ranks,
    read_gguf,
    read_huggingface,
    read_special,
    sentencepiece,
)
from squish_models.tokenizer.affixes import affixes_of
from squish_models.tokenizer.vocabulary import SPACE
from squish_testing import write_model
from test_models_tokenizer_json import LLAMA

import squish_core as squish
from squish_core.api import protobuf
from squish_core.errors import FormatError, LimitError
from squish_core.model import Typed

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "un", "##able", "##a", "a", ".")
CHARSMAP = b"\4\0\0\0" + b"\0\0\0\0" + b"a\0"
METASPACE = {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always"}
PIECES = (("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), (SPACE, -1.5), ("a", -2.25), (f"{SPACE}a", -3.0))


def template(before: list[str], after: list[str], between: list[str]) -> dict[str, Any]:
    first, last, middle = ([{"SpecialToken": {"id": text}} for text in texts] for texts in (before, after, between))
    one, other = ({"Sequence": {"id": letter}} for letter in "AB")
    pair = [*first, one, *middle, other, *last]
    return {"type": "TemplateProcessing", "single": [*first, one, *last], "pair": pair}


def bert(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of BERT's, of ten tokens; changes by part."""
    added = [{"id": number, "content": text, "special": True} for number, text in enumerate(WORDS[:5])]
    parts = {
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "vocab": {text: number for number, text in enumerate(WORDS)}},
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template(["[CLS]"], ["[SEP]"], ["[SEP]"]),
    }  # fmt: skip
    whole = {name: {**part, **(changes.get(name) or {})} for name, part in parts.items()}
    return {"added_tokens": added, **whole, **{name: None for name, value in changes.items() if value is None}}


def unigram(**changes: Any) -> dict[str, Any]:
    """A tokenizer.json of T5's, of six tokens; changes by part."""
    added = [{"id": number, "content": text, "special": True} for number, (text, _) in enumerate(PIECES[:3])]
    normalizer = {"type": "Precompiled", "precompiled_charsmap": b64encode(CHARSMAP).decode()}
    parts = {
        "model": {"type": "Unigram", "unk_id": 2, "vocab": [*map(list, PIECES)], "byte_fallback": False},
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE]},
        "post_processor": template([], ["</s>"], ["</s>"]),
    }
    whole = {name: {**part, **(changes.get(name) or {})} for name, part in parts.items()}
    return {"added_tokens": added, **whole, **{name: None for name, value in changes.items() if value is None}}


def read(document: dict[str, Any], config: dict[str, Any] | None = None, **options: Any) -> Tokenizer:
    files = {"tokenizer.json": document, "tokenizer_config.json": options}
    tokenizer = read_huggingface({name: json.dumps(value).encode() for name, value in files.items()}, config or {})
    assert tokenizer is not None
    return tokenizer


def values(tokenizer: Tokenizer) -> dict[str, Any]:
    return {key.removeprefix("tokenizer.ggml."): listed(value) for key, value in gguf_keys(tokenizer).items()}


def listed(value: Typed) -> Any:
    return [*value.value] if value.type.startswith("array:") else value.value


def test_words_have_phantom_spaces_in_gguf() -> None:
    tokenizer = read(bert(), {"vocab_size": 11, "type_vocab_size": 2}, mask_token="[MASK]", pad_token="[PAD]")
    assert values(tokenizer) == {
        "model": "bert", "pre": "default",
        "tokens": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", f"{SPACE}un", "able", "a", f"{SPACE}a", f"{SPACE}.",
                   f"{SPACE}[PAD10]"],
        "token_type": [*[Kind.CONTROL] * 5, *[Kind.NORMAL] * 5, Kind.UNUSED],
        "bos_token_id": 2, "eos_token_id": 3, "unknown_token_id": 1, "seperator_token_id": 3, "padding_token_id": 0,
        "mask_token_id": 4, "add_bos_token": True, "add_eos_token": True, "add_sep_token": False,
        "normalizer.lowercase": True, "token_type_count": 2,
    }  # fmt: skip


def test_pieces_keep_their_scores_and_charsmap_in_gguf() -> None:
    assert values(read(unigram(), {"vocab_size": 7}, eos_token="</s>", pad_token="<pad>")) == {
        "model": "t5", "pre": "default", "tokens": [*(text for text, _ in PIECES), "[PAD6]"],
        "scores": [*(score for _, score in PIECES), -10000],
        "token_type": [3, 3, Kind.UNKNOWN, 1, 1, 1, Kind.UNUSED],
        "eos_token_id": 1, "unknown_token_id": 2, "padding_token_id": 0,
        "add_bos_token": False, "add_eos_token": True, "add_sep_token": False, "add_space_prefix": True,
        "remove_extra_whitespaces": True, "precompiled_charsmap": [*CHARSMAP],
    }  # fmt: skip


SAME = {
    "words": bert(),
    "cased words": bert(normalizer={"lowercase": False}),
    "words with accents": bert(normalizer={"strip_accents": False}),
    "old processor": bert(post_processor={"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}),
    "two separators": bert(post_processor=template(["[CLS]"], ["[SEP]"], ["[SEP]", "[SEP]"])),
    "pieces": unigram(),
    "pieces without a charsmap": unigram(normalizer=None),
    "pieces with one space before": unigram(pre_tokenizer=METASPACE | {"pretokenizers": None}),
    "pieces without a space before": unigram(
        pre_tokenizer=METASPACE | {"prepend_scheme": "never", "pretokenizers": None}
    ),
    "pieces with another processor": unigram(
        post_processor={"type": "RobertaProcessing", "sep": ["</s>", 1], "cls": ["<pad>", 0]}
    ),
}


@pytest.mark.parametrize("name", SAME)
def test_the_way_there_and_back_gives_the_same_keys(name: str) -> None:
    config = {"vocab_size": 12, "type_vocab_size": 2, "pad_token_id": 0}
    keys = gguf_keys(read(SAME[name], config))
    tokenizer = read_gguf(keys)
    assert tokenizer is not None
    again = read_huggingface(huggingface_files(tokenizer), config)
    assert again is not None
    assert values(again) == values(read(SAME[name], config))
    special = read_special(keys, 12)
    assert special is not None
    assert dict(special.special) == dict(tokenizer.special)


WRONG_WORDS: dict[str, dict[str, Any]] = {
    "normalizer.clean_text": bert(normalizer={"clean_text": False}),
    "normalizer.handle_chinese_chars": bert(normalizer={"handle_chinese_chars": False}),
    "normalizer.type": bert(normalizer={"type": "Lowercase"}),
    "normalizer": bert(normalizer=None),
    "pre_tokenizer.type": bert(pre_tokenizer={"type": "Whitespace"}),
    "model.continuing_subword_prefix": bert(model={"continuing_subword_prefix": "@@"}),
    "post_processor": bert(post_processor=None),
}
WRONG_PIECES: dict[str, dict[str, Any]] = {
    "model.byte_fallback": unigram(model={"byte_fallback": True}),
    "model.unk_id": unigram(model={"unk_id": None}),
    "unk_id": unigram(model={"unk_id": 6}),
    "model.vocab": unigram(model={"vocab": {"a": 0}}),
    "vocab": unigram(model={"vocab": [["a"]]}),
    "twice": unigram(model={"vocab": [["a", 0], ["a", 1]]}),
    "normalizer": unigram(normalizer={"type": "NFKC"}),
    "pre_tokenizer": unigram(pre_tokenizer={"type": "Whitespace"}),
    "prepend_scheme": unigram(
        pre_tokenizer={"pretokenizers": [{"type": "WhitespaceSplit"}, METASPACE | {"prepend_scheme": "never"}]}
    ),
    "Metaspace": unigram(pre_tokenizer=None),
    "precompiled_charsmap": unigram(normalizer={"precompiled_charsmap": "?"}),
    "trie": unigram(normalizer={"precompiled_charsmap": b64encode(CHARSMAP[:-1]).decode()}),
    "charsmap": unigram(normalizer={"precompiled_charsmap": b64encode(b"\xff" * 9).decode()}),
}


@pytest.mark.parametrize("key", [*WRONG_WORDS, *WRONG_PIECES])
def test_what_llama_cpp_cannot_do_is_refused_by_its_key_in_the_message(key: str) -> None:
    document = WRONG_WORDS.get(key) or WRONG_PIECES[key]
    with pytest.raises(FormatError) as caught:
        read(document)
    assert (caught.value.code, caught.value.part) == ("tokenizer", "tokenizer.json")
    assert key in str(caught.value)


@pytest.mark.parametrize("token", [f"##{SPACE}b", f"##{SPACE}un"])
def test_words_that_look_the_same_in_gguf_are_refused(token: str) -> None:
    document = bert(model={"vocab": {**{text: number for number, text in enumerate(WORDS)}, token: 10}})
    with pytest.raises(FormatError) as caught:
        gguf_keys(read(document))
    assert caught.value.code == "tokenizer"


def test_marks_of_spaces_that_are_letters_come_back() -> None:
    vocabulary = {text: number for number, text in enumerate((*WORDS, SPACE, f"##{SPACE}", "##"))}
    tokenizer = read_gguf(gguf_keys(read(bert(model={"vocab": vocabulary}))))
    assert tokenizer is not None
    assert tokenizer.tokens[10:] == (SPACE, f"##{SPACE}", "##")


def test_switches_of_berts_class_come_before_those_of_tokenizer_json() -> None:
    tokenizer = read(bert(), tokenizer_class="BertTokenizerFast", do_lower_case=False, strip_accents=True)
    assert tokenizer.normalizer is not None
    assert (tokenizer.normalizer.lowercase, tokenizer.normalizer.strip_accents) == (False, True)
    other = read(bert(), tokenizer_class="PreTrainedTokenizerFast", do_lower_case=False)
    assert other.normalizer is not None
    assert other.normalizer.lowercase


OLD = {"model": "bert", "tokens": ["[PAD]", f"{SPACE}a", "b", "[SEP]", f"{SPACE}<x>"], "token_type": [3, 1, 1, 3, 4],
       "seperator_token_id": 3, "unknown_token_id": 0}  # fmt: skip


@pytest.mark.parametrize("switch", [True, False])
def test_keys_that_an_old_gguf_lacks_are_those_of_llama_cpp(switch: bool) -> None:
    more = {"normalizer.lowercase": False} if switch else {}
    tokenizer = read_gguf({f"tokenizer.ggml.{key}": value for key, value in {**OLD, **more}.items()})
    assert tokenizer is not None
    assert tokenizer.tokens == ("[PAD]", "a", "##b", "[SEP]", "<x>")
    assert dict(tokenizer.add) == {"bos": True, "eos": True, "sep": False}
    assert tokenizer.special["eos"] == tokenizer.special["sep"] == 3
    assert tokenizer.end_ids == ()
    assert tokenizer.normalizer is not None
    assert tokenizer.normalizer.lowercase != switch


UGM = {"model": "t5", "tokens": ["<pad>", "</s>", "<unk>", "a"], "scores": [0.0, 0, 0, -1], "token_type": [3, 3, 2, 1],
       "remove_extra_whitespaces": True}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"scores": None}, "tokenizer.ggml.scores"),
        ({"precompiled_charsmap": [*b"\xff" * 9]}, "tokenizer.ggml.precompiled_charsmap"),
        ({"precompiled_charsmap": ["a"]}, "tokenizer.ggml.precompiled_charsmap"),
        ({"scores": [0.0]}, "tokenizer.ggml.scores"),
    ],
)
def test_a_wrong_key_of_a_unigram_model_is_refused(changes: dict[str, Any], part: str) -> None:
    keys = {f"tokenizer.ggml.{key}": value for key, value in (UGM | changes).items() if value is not None}
    charsmap = keys.get("tokenizer.ggml.precompiled_charsmap")
    if charsmap is not None and isinstance(charsmap[0], int):
        keys["tokenizer.ggml.precompiled_charsmap"] = np.array(charsmap, np.uint8)
    with pytest.raises(FormatError) as caught:
        read_gguf(keys)
    assert (caught.value.code, caught.value.part) == ("tokenizer", part)


def test_defaults_of_a_unigram_model_are_those_of_llama_cpp() -> None:
    tokenizer = read_gguf({f"tokenizer.ggml.{key}": value for key, value in UGM.items()})
    assert tokenizer is not None
    assert dict(tokenizer.special) == {"eos": 1, "unk": 2, "pad": 0}
    assert tokenizer.space_prefix  # since llama.cpp merges spaces
    document = json.loads(huggingface_files(tokenizer)["tokenizer.json"])
    assert affixes_of(document).after == ("</s>",)


def test_unused_pieces_do_not_make_the_unknown_one_unlikely() -> None:
    keys = UGM | {"tokens": [*UGM["tokens"], "[PAD4]", "b", "[PAD6]"], "token_type": [3, 3, 2, 1, 5, 1, 5],
                  "scores": [0.0, 0, 0, -1, -10000, -2, -10000]}  # fmt: skip
    tokenizer = read_gguf({f"tokenizer.ggml.{key}": value for key, value in keys.items()})
    assert tokenizer is not None
    document = json.loads(huggingface_files(tokenizer)["tokenizer.json"])
    assert document["model"]["vocab"][3:] == [["a", -1.0], ["[PAD4]", -2.0], ["b", -2.0]]


def test_vocab_txt_alone_is_berts() -> None:
    alone = read_huggingface({"vocab.txt": "\r\n".join(WORDS).encode()}, {"type_vocab_size": 2})
    assert alone is not None
    assert values(alone) == values(
        read(bert(), {"type_vocab_size": 2}, mask_token="[MASK]", pad_token="[PAD]", sep_token="[SEP]")
    )
    assert huggingface_files(alone)["vocab.txt"] == "".join(f"{word}\n" for word in WORDS).encode()


def pieces(texts: list[tuple[str, float, int]], *, model: int = 1, byte_fallback: bool = False) -> bytes:
    """A SentencePiece model."""
    listed = [
        protobuf.message(
            1, protobuf.message(1, text) + b"\x15" + np.float32(score).tobytes() + protobuf.number(3, kind)
        )
        for text, score, kind in texts
    ]
    trainer = protobuf.message(2, protobuf.number(3, model), protobuf.number(35, byte_fallback))
    return b"".join((*listed, trainer, protobuf.message(3, protobuf.message(2, CHARSMAP.decode("latin-1")))))


def test_spiece_model_alone_is_t5s() -> None:
    kinds = (3, 3, 2, 1, 1, 1)
    data = pieces([(text, score, kind) for (text, score), kind in zip(PIECES, kinds)])
    files = {"spiece.model": data, "tokenizer_config.json": b'{"extra_ids": 2}'}
    tokenizer = read_huggingface(files, {"vocab_size": 9})
    assert tokenizer is not None
    assert tokenizer.tokens[5:] == (f"{SPACE}a", "<extra_id_1>", "<extra_id_0>", "[PAD8]")
    assert tokenizer.kinds[5:].tolist() == [1, 3, 3, 5]
    assert dict(tokenizer.special) == {"eos": 1, "unk": 2, "pad": 0}
    assert tokenizer.normalizer is not None
    assert tokenizer.normalizer.charsmap == CHARSMAP


def test_fairseqs_ids_are_one_higher_than_sentencepieces() -> None:
    data = pieces([("<unk>", 0, 2), ("<s>", 0, 3), ("</s>", 0, 3), (",", -3, 1), ("a", -4, 1)])
    tokenizer = read_huggingface({"sentencepiece.bpe.model": data}, {"type_vocab_size": 1})
    assert tokenizer is not None
    assert tokenizer.tokens == ("<s>", "<pad>", "</s>", "<unk>", ",", "a", "<mask>")
    assert tokenizer.kinds.tolist() == [3, 3, 3, 2, 1, 1, 3]
    assert dict(tokenizer.special) == {"bos": 0, "eos": 2, "unk": 3, "sep": 2, "pad": 1, "mask": 6}
    assert dict(tokenizer.add) == {"bos": True, "eos": True, "sep": True}


ALONE = {
    "another class of words": ({"vocab.txt": b"a\n"}, {"tokenizer_class": "MPNetTokenizer"}),
    "another class of pieces": ({"spiece.model": pieces([("a", 0, 1)])}, {"tokenizer_class": "AlbertTokenizer"}),
    "pieces that merge": ({"spiece.model": pieces([("a", 0, 1)], model=2)}, {}),
    "bytes of pieces": ({"spiece.model": pieces([("<unk>", 0, 2)], byte_fallback=True)}, {}),
    "no unknown piece": ({"spiece.model": pieces([("a", 0, 1)])}, {"extra_ids": 0}),
    "a line without a rank": ({"tiktoken.model": b"YQ== 0\nYg==\n"}, {}),
    "a rank twice": ({"tiktoken.model": b"YQ== 0\nYg== 0\n"}, {}),
    "no base64": ({"tiktoken.model": b"? 0\n"}, {}),
}


@pytest.mark.parametrize("case", ALONE)
def test_a_vocabulary_alone_that_is_not_clear_is_refused(case: str) -> None:
    files, options = ALONE[case]
    with pytest.raises(FormatError) as caught:
        read_huggingface({**files, "tokenizer_config.json": json.dumps(options).encode()}, {})
    assert (caught.value.code, caught.value.part) == ("tokenizer", *files)


def test_a_unigram_model_is_not_read_as_one_for_a_class_that_merges() -> None:
    data = pieces([("<unk>", 0, 2), ("a", -1, 1)])
    tokenizer = read_huggingface({"tokenizer.model": data}, {})
    assert tokenizer is not None
    assert tokenizer.model == "spm"
    assert sentencepiece.parse(data).unigram


RANKS = [b"a", b"b", b"c", b"ab", b"bc", b"abc", b" "]


def test_ranks_become_merges() -> None:
    data = b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(RANKS))
    options = {"tokenizer_class": "TikTokenTokenizer", "eos_token": "[EOS]",
               "added_tokens_decoder": {"8": {"content": "[EOS]", "special": True}}}  # fmt: skip
    files = {"tiktoken.model": data, "tokenizer_config.json": json.dumps(options).encode()}
    tokenizer = read_huggingface(files, {"vocab_size": 10})
    assert tokenizer is not None
    assert (tokenizer.model, tokenizer.pre) == ("bpe", "kimi-k2")
    assert tokenizer.tokens == (
        "a", "b", "c", "ab", "bc", "abc", "\u0120", "<|reserved_token_7|>", "[EOS]", "<|reserved_token_9|>",
    )  # fmt: skip
    assert [*map(tuple, tokenizer.merges)] == [("a", "b"), ("b", "c"), ("ab", "c")]
    assert dict(tokenizer.special) == {"eos": 8}
    keys = gguf_keys(tokenizer)
    assert keys["tokenizer.ggml.merges"] == Typed("array:str", ["a b", "b c", "ab c"])
    back = read_gguf(keys)
    assert back is not None
    assert huggingface_files(back)["tiktoken.model"] == data


def test_a_token_that_merging_does_not_reach_has_no_merge() -> None:
    assert [*ranks.merges_of_ranks({b"a": 0, b"b": 1, b"c": 2, b"abc": 3})] == []


def test_ranks_beyond_any_vocabulary_are_refused() -> None:
    with pytest.raises(LimitError):
        ranks.document_of(b"YQ== 99999999\n", {"added_tokens_decoder": {"999999999": "x"}}, None)


RANK_LINES = b"".join(b"%s %d\n" % (b64encode(token), rank) for rank, token in enumerate(RANKS))
WHOLE = {
    "words": ({"tokenizer.json": json.dumps(bert(), indent=1).encode()}, len(WORDS)),
    "pieces": ({"tokenizer.json": json.dumps(unigram()).encode()}, len(PIECES)),
    "vocab.txt": ({"vocab.txt": "".join(f"{word}\n" for word in WORDS).encode()}, len(WORDS)),
    "spiece.model": ({"spiece.model": pieces([("<unk>", 0, 2), ("a", -1, 1)]),
                      "tokenizer_config.json": b'{"extra_ids": 1}'}, 4),
    "tiktoken.model": ({"tiktoken.model": RANK_LINES, "tokenizer_config.json": b'{"eos_token": "a"}'}, len(RANKS)),
    "kimi": ({"tiktoken.model": RANK_LINES, "tokenizer_config.json": b'{"tokenizer_class": "TikTokenTokenizer"}'}, 9),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize("keep", ["yes", "no"])
def test_a_whole_folder_comes_back_from_gguf(name: str, keep: str, tmp_path: Path) -> None:
    files, count = WHOLE[name]
    config = LLAMA | {"vocab_size": count, "eos_token_id": 1}
    source = write_model(tmp_path / "hf", squish.registry().implementation("family", "llama"), config, files=files)
    squish.convert(source, tmp_path / "m.gguf", "gguf" if keep == "yes" else "gguf:keep=no")
    squish.convert(tmp_path / "m.gguf", tmp_path / "back", "hf")
    with squish.open(tmp_path / "m.gguf") as file:
        keys = {key: value for key, value in file.index.meta.items() if key.startswith("tokenizer.")}
    if keep == "yes":
        assert {each: (tmp_path / "back" / each).read_bytes() for each in files} == files
    squish.convert(tmp_path / "back", tmp_path / "n.gguf")
    with squish.open(tmp_path / "n.gguf") as file:
        again = {key: value for key, value in file.index.meta.items() if key.startswith("tokenizer.")}
    assert again.keys() - keys.keys() <= {"tokenizer.ggml.padding_token_id"}  # llama.cpp's default is stated then
    assert {key: listed(again[key]) for key in keys} == {key: listed(value) for key, value in keys.items()}
    squish.convert(tmp_path / "m.gguf", tmp_path / "mlx", "mlx")
    assert {path.name for path in (tmp_path / "mlx").iterdir()} & {"tokenizer.json", *files}


def test_a_folder_that_is_copied_is_not_checked_for_llama_cpp() -> None:
    document = json.dumps(WRONG_WORDS["normalizer.clean_text"]).encode()
    assert check_huggingface({"tokenizer.json": document}, {}) == ()
    assert check_huggingface({"tiktoken.model": b"?"}, {}) == ()
