"""A tokenizer independent of its files: tokens by id with their kinds, merges or scores, and special ids."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Sized
from enum import IntEnum
from itertools import chain
from typing import Any

import numpy as np
from attrs import field, frozen

from squish_core.api import FormatError, LimitError

MAX_TOKENS = 1 << 20
"""Four times the largest vocabulary in use."""
MAX_MERGES = 8 << 20
"""Sixteen times the merges of the largest vocabulary in use."""
MAX_CHARSMAP = 16 << 20
"""Bytes of a table of replacements, sixty times that of NFKC."""
MAX_TEMPLATE = 4 << 20
"""Characters of a chat template, a hundred times the largest in use."""
SPACE = "\u2581"
"""SentencePiece's mark for a space."""
TOKENS, MERGES, KINDS, SCORES, TEMPLATE, CHARSMAP = PARTS = (
    "tokens", "merges", "token_type", "scores", "chat_template", "precompiled_charsmap",
)  # fmt: skip
"""Parts of a tokenizer in errors; readers replace them with the place of the part in their files."""
END_TEXTS = frozenset((
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<|end_of_text|>",
    "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>", "<\uff5cend\u2581of\u2581sentence\uff5c>", "[e~[",
    "<|ifm|im_end|>",
))  # fmt: skip
"""Tokens at which llama.cpp stops generation, regardless of the ids (src/llama-vocab.cpp)."""
ROLES = ("bos", "eos", "unk", "sep", "pad", "mask", "eot", "eom")
TOKEN_KEYS = {role: f"{role}_token" for role in ROLES[:-2]}
"""Role -> its key in tokenizer_config.json; with `_id` after it, in config.json."""


class Kind(IntEnum):
    """Kinds of tokens, as SentencePiece and GGUF number them."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@frozen(kw_only=True)
class Normalizer:
    """What a tokenizer without merges does to a text before it looks for tokens.

    Parameters
    ----------
    lowercase
        Whether letters become lowercase ("wordpiece").
    strip_accents
        Whether accents are removed ("wordpiece"); None: if letters become lowercase.
    charsmap
        SentencePiece's compiled table of replacements ("unigram"); empty: none.
    merge_spaces
        Whether spaces at both ends are removed, and others merged ("unigram").
    """

    lowercase: bool = False
    strip_accents: bool | None = None
    charsmap: bytes = b""
    merge_spaces: bool = False


@frozen
class SpecialTokens:
    """Ids by role ("bos", "eos" ...), all ids that end generation, "eos" first, and sampling defaults."""

    special: Mapping[str, int]
    end_ids: tuple[int, ...]
    sampling: Mapping[str, Any] = field(factory=dict)
    """Sampling defaults that the model recommends, under the names of generation_config.json."""

    def check(self, count: int) -> None:
        """Raise FormatError for an id outside a vocabulary of `count` tokens."""
        for role, number in self.special.items():
            if not 0 <= number < count:
                raise tokenizer_error(
                    f"the {role} token is not in the vocabulary", f"an id below {count}", number, role
                )
        if outside := [number for number in self.end_ids if not 0 <= number < count]:
            raise tokenizer_error(
                "an end-of-text token is not in the vocabulary", f"an id below {count}", outside[0], "eos"
            )


@frozen(kw_only=True, eq=False)
class Vocabulary:
    """Tokens by id and the merges that produce them; checked once, and shared by tokenizers with different settings.

    Parameters
    ----------
    tokens
        Text by id, as in the vocabulary (byte-level or with U+2581).
    kinds
        Kind by id, i32.
    scores
        f32 by id ("spm", "unigram").
    merges
        Pairs of tokens by rank ("bpe").
    checked
        Whether they were checked when they were stored.
    checked_merges
        Whether the merges alone were checked.

    Raises
    ------
    FormatError
        `tokenizer` for arrays of different lengths, an unknown kind, a token that appears twice, and a merge of a text
        that is not a token.
    """

    tokens: tuple[str, ...]
    kinds: np.ndarray
    scores: np.ndarray | None = None
    merges: Sequence[Sequence[str]] = ()
    checked: bool = False
    checked_merges: bool = False

    def __attrs_post_init__(self) -> None:
        if not self.checked:
            _check(self)


@frozen(kw_only=True, eq=False)
class Tokenizer:
    """A tokenizer independent of its file format.

    Parameters
    ----------
    model
        "bpe": byte-level BPE, with merges. "spm": SentencePiece-style, with scores and byte tokens. "wordpiece":
        BERT's, whose tokens within a word start with "##". "unigram": SentencePiece's, whose scores are logarithms of
        probabilities.
    vocabulary
        The tokens, their kinds, scores and merges.
    pre
        llama.cpp's name of the pre-tokenizer ("bpe").
    special
        Role ("bos", "eos" ...) to id.
    add
        Whether "bos" and "eos" are added to a text, and "sep" between two; absent if the source does not state it.
    space_prefix
        Whether a space is added before the text ("spm", "unigram").
    normalizer
        What happens to a text before it is split ("wordpiece", "unigram").
    token_types
        Number of rows of the model's embeddings of token types; None if it has none.
    end_ids
        All ids that end generation, the first of them "eos".
    chat_templates
        Name to text; the default one is "".
    left_out
        Added tokens that the model has no embedding for.
    lost
        Tokens that the source adds to a text beyond bos and eos.
    sampling
        Sampling defaults that the model recommends, under the names of generation_config.json.
    """

    model: str
    vocabulary: Vocabulary
    pre: str | None = None
    special: Mapping[str, int] = field(factory=dict)
    add: Mapping[str, bool] = field(factory=dict)
    space_prefix: bool | None = None
    normalizer: Normalizer | None = None
    token_types: int | None = None
    end_ids: tuple[int, ...] = ()
    chat_templates: Mapping[str, str] = field(factory=dict)
    left_out: tuple[str, ...] = ()
    lost: tuple[str, ...] = ()
    sampling: Mapping[str, Any] = field(factory=dict)

    def __attrs_post_init__(self) -> None:
        SpecialTokens(self.special, self.end_ids).check(len(self.tokens))
        _check_templates(self.chat_templates)

    @property
    def tokens(self) -> tuple[str, ...]:
        return self.vocabulary.tokens

    @property
    def kinds(self) -> np.ndarray:
        return self.vocabulary.kinds

    @property
    def scores(self) -> np.ndarray | None:
        return self.vocabulary.scores

    @property
    def merges(self) -> Sequence[Sequence[str]]:
        return self.vocabulary.merges


def _check(vocabulary: Vocabulary) -> None:
    """Check for wrong lengths, duplicate tokens, and merges that are not tokens."""
    check_count("tokens", vocabulary.tokens, MAX_TOKENS)
    check_count("merges", vocabulary.merges, MAX_MERGES)
    count = len(vocabulary.tokens)
    for name, part, values in (("kinds", KINDS, vocabulary.kinds), ("scores", SCORES, vocabulary.scores)):
        if values is not None and len(values) != count:
            raise tokenizer_error(
                f"the tokenizer has a different number of {name} than of tokens", count, len(values), part
            )
    _check_text("token", lambda: "".join(vocabulary.tokens).encode(), TOKENS)
    unknown = vocabulary.kinds[(vocabulary.kinds < min(Kind)) | (vocabulary.kinds > max(Kind))]
    if len(unknown):
        raise tokenizer_error("a token has an unknown kind", "1 to 6", min(unknown.tolist()), KINDS)
    if len(set(vocabulary.tokens)) < count:
        _check_duplicates(vocabulary)
    if not vocabulary.checked_merges:
        check_merges(vocabulary.merges, dict(zip(vocabulary.tokens, range(count))))


def check_merges(merges: Sequence[Sequence[str]], tokens: Mapping[str, int]) -> None:
    """Check that merges are pairs, and join and produce tokens."""
    if not {*map(type, merges)} <= {list, tuple} or not {*map(len, merges)} <= {2}:
        rank = next(rank for rank, pair in enumerate(merges) if type(pair) not in (list, tuple) or len(pair) != 2)
        raise tokenizer_error(f"merge {rank} is not a pair", "two tokens", f"{merges[rank]!r:.60}", MERGES)
    texts = tokens.keys()
    if {*chain.from_iterable(merges)} <= texts and {*map("".join, merges)} <= texts:
        return
    for rank, (left, right) in enumerate(merges):
        if left not in tokens or right not in tokens or left + right not in tokens:
            raise tokenizer_error(
                f"merge {rank} joins or produces a text that is not a token",
                "tokens of the vocabulary",
                f"{left!r:.40} {right!r:.40}",
                MERGES,
            )


def _check_duplicates(vocabulary: Vocabulary) -> None:
    """Check that only unused tokens repeat others."""
    ids: dict[str, int] = {}
    for number, (token, kind) in enumerate(zip(vocabulary.tokens, vocabulary.kinds.tolist())):
        if ids.setdefault(token, number) != number and kind != Kind.UNUSED:
            raise tokenizer_error(
                f"the token {token[:40]!r} appears twice", "one id", f"{ids[token]} and {number}", TOKENS
            )


def _check_templates(templates: Mapping[str, str]) -> None:
    """Check for templates that are not text, or too long."""
    for name, text in templates.items():
        if not isinstance(text, str):
            raise tokenizer_error(f"the chat template {name[:40]!r} is not text", "text", type(text).__name__, TEMPLATE)
        if len(text) > MAX_TEMPLATE:
            raise LimitError(
                "a chat template is too long",
                part=TEMPLATE,
                code="size",
                expected=f"at most {MAX_TEMPLATE} characters",
                found=len(text),
            )
    _check_text("chat template", lambda: "".join(templates.values()).encode(), TEMPLATE)


def check_charsmap(charsmap: bytes) -> bytes:
    """Return SentencePiece's table of replacements after a check of its layout."""
    if len(charsmap) > MAX_CHARSMAP:
        raise LimitError(
            "the table of replacements is too long",
            part=CHARSMAP,
            code="size",
            expected=f"at most {MAX_CHARSMAP} bytes",
            found=len(charsmap),
        )
    trie = int.from_bytes(charsmap[:4], "little")
    if charsmap and (trie % 4 or not trie or 4 + trie >= len(charsmap) or charsmap[-1]):
        raise tokenizer_error(
            "the precompiled_charsmap is damaged",
            "4 bytes with the size of a trie of 4-byte units, the trie, and texts that end in a zero byte",
            f"{len(charsmap)} bytes, a trie of {trie} and {charsmap[-1]} at the end",
            CHARSMAP,
        )
    return charsmap


def _check_text(what: str, encode: Callable[[], object], part: str) -> None:
    """Check for texts that cannot be written as UTF-8."""
    try:
        encode()
    except UnicodeEncodeError as error:
        raise FormatError(
            f"a {what} contains half a character (a surrogate)",
            part=part,
            expected="text that UTF-8 can hold",
            found=repr(error.object[error.start : error.end]),
            code="encoding",
        ) from None


def check_count(what: str, values: Sized, limit: int) -> None:
    """Raise LimitError for more values than any vocabulary has."""
    if len(values) > limit:
        raise LimitError(f"too many {what}", part=what, expected=f"at most {limit}", found=len(values), code="count")


def tokenizer_error(message: str, expected: object, found: object, part: str | None = None) -> FormatError:
    """Return the error for a tokenizer that contradicts itself; `part` is one of PARTS or a role."""
    return FormatError(message, part=part, expected=str(expected), found=str(found), code="tokenizer")


def piece_texts(tokenizer: Tokenizer) -> list[str]:
    """Return text by id as in SentencePiece: a token of spaces becomes a run of U+2581."""
    texts = list(tokenizer.tokens)
    for number in np.flatnonzero(tokenizer.kinds == Kind.USER_DEFINED).tolist():
        if texts[number] and not texts[number].strip(" "):
            texts[number] = SPACE * len(texts[number])
    return texts


def looks_special(token: str) -> bool:
    """Return whether a token looks special although it is not declared so, by the rule of llama.cpp's converter."""
    return (
        token in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (token.startswith(("<|", "<\uff5c")) and token.endswith(("|>", "\uff5c>")))
        or (token.startswith("<unused") and token.endswith(">"))
    )


def scores_of_merges(tokens: Sequence[str], merges: Sequence[Sequence[str]]) -> np.ndarray:
    """Return scores with which merging by score equals merging by rank.

    A token's score is minus the rank of the first merge that produces it; single characters have 0.
    """
    ranks: dict[str, int] = {}
    for rank, (left, right) in enumerate(merges):
        ranks.setdefault(left + right, rank + 1)
    return np.array([-ranks.get(token, 0 if len(token) == 1 else len(merges) + 1) for token in tokens], np.float32)


def merges_of_scores(tokens: Sequence[str], kinds: np.ndarray, ranks: np.ndarray) -> Sequence[Sequence[str]]:
    """Return every split of a token into two, the token of the highest rank first, then in order of the halves' ids."""
    numbers = np.flatnonzero(np.isin(kinds, (Kind.NORMAL, Kind.USER_DEFINED)))
    ids = {tokens[number]: number for number in numbers.tolist()}
    wholes, order = list(ids), np.argsort(-np.asarray(ranks)[list(ids.values())], kind="stable")
    merges: list[tuple[str, str]] = []
    for whole in map(wholes.__getitem__, order.tolist()):
        places = range(1, len(whole))
        pairs = [(left, right) for at in places if (left := whole[:at]) in ids and (right := whole[at:]) in ids]
        if len(pairs) > 1:
            pairs.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        merges += pairs
    return tuple(merges)
