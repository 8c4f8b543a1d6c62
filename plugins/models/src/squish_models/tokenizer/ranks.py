"""tiktoken.model: tokens as bytes, by rank; the merges of byte-level BPE follow from the ranks."""

from __future__ import annotations

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping
from typing import Any

from .pretokenizers import named_pretokenizer
from .vocabulary import MAX_TOKENS, Kind, Tokenizer, check_count, tokenizer_error

KIMI = "TikTokenTokenizer"
"""The class of Kimi's own code, with the reserved tokens behind its vocabulary."""
RESERVED = {KIMI: 258}
PRETOKENIZERS = {KIMI: "kimi-k2"}
DEFAULT_PRE = "llama-bpe"
"""The pre-tokenizer of Transformers for a tiktoken.model."""


def _byte_texts() -> tuple[str, ...]:
    """Return the letter of each byte in byte-level BPE: itself if it can be seen, else one from U+0100 on."""
    seen = (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100))
    others = iter(range(0x100, 0x200))
    return tuple(chr(byte if byte in seen else next(others)) for byte in range(256))


LETTERS = _byte_texts()
BYTES = {letter: byte for byte, letter in enumerate(LETTERS)}


def parse(data: bytes) -> dict[bytes, int]:
    """Return the rank of each token of a tiktoken.model.

    Raises
    ------
    FormatError
        `tokenizer` for a line that is not a token in base64 and its rank, and for a token or a rank that appears twice.
    LimitError
        `count` beyond what vocabularies have.
    """
    lines = data.splitlines()
    check_count("tokens", lines, MAX_TOKENS)
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(lines, 1):
        if line:
            token, _, rank = line.partition(b" ")
            try:
                ranks[b64decode(token, validate=True)] = int(rank)
            except (binascii.Error, ValueError):
                raise tokenizer_error(
                    f"line {number} of the ranks is damaged", "a token in base64 and its rank", f"{line[:40]!r}"
                ) from None
    filled = sum(1 for line in lines if line)
    if len(ranks) < filled or len({*ranks.values()}) < filled or b"" in ranks:
        raise tokenizer_error("a token or a rank appears twice, or a token is empty", filled, len({*ranks.values()}))
    return ranks


def merges_of_ranks(ranks: Mapping[bytes, int]) -> Iterator[tuple[bytes, bytes]]:
    """Yield for each token the two that tiktoken merges into it last, in the order of ranks.

    With these merges, BPE does what tiktoken does: within a token, no merge crosses its ends, so the last one is always
    the same. A token that merging does not reach has none.
    """
    for token in sorted(ranks, key=ranks.__getitem__):
        pieces = [token[place : place + 1] for place in range(len(token))]
        while len(pieces) > 2:
            pairs = [ranks.get(left + right, MAX_TOKENS) for left, right in zip(pieces, pieces[1:])]
            best = min(pairs)
            if best == MAX_TOKENS:
                break
            place = pairs.index(best)
            pieces[place : place + 2] = [pieces[place] + pieces[place + 1]]
        if len(pieces) == 2:
            yield pieces[0], pieces[1]


def document_of(data: bytes, options: Mapping[str, Any], size: Any) -> dict[str, Any]:
    """Return the tokenizer.json that equals a tiktoken.model.

    Parameters
    ----------
    data
        The file.
    options
        tokenizer_config.json, whose class determines how texts are split, and whose added tokens follow the ranks.
    size
        `vocab_size` in config.json: reserved tokens beyond it have no embedding.
    """
    ranks, stated = parse(data), str(options.get("tokenizer_class")).removesuffix("Fast")
    listed = {int(key): value for key, value in (options.get("added_tokens_decoder") or {}).items()}
    names = {number: value["content"] if isinstance(value, dict) else str(value) for number, value in listed.items()}
    first = max(ranks.values(), default=-1) + 1
    end = first + RESERVED[stated] if stated in RESERVED else max(names, default=-1) + 1
    end = max(min(end, size) if isinstance(size, int) else end, first)
    check_count("tokens", range(end), MAX_TOKENS)
    added = {number: names.get(number, f"<|reserved_token_{number}|>") for number in range(first, end)} | names
    pretokenizer = named_pretokenizer(PRETOKENIZERS.get(stated, DEFAULT_PRE))
    assert pretokenizer is not None
    return {
        "added_tokens": [{"id": number, "content": text, "special": True} for number, text in added.items()],
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [*pretokenizer.steps]},
        "model": {
            "type": "BPE",
            "ignore_merges": pretokenizer.ignore_merges,
            "vocab": {_text(token): rank for token, rank in ranks.items()},
            "merges": [(_text(left), _text(right)) for left, right in merges_of_ranks(ranks)],
        },
    }


def _text(token: bytes) -> str:
    return "".join(map(LETTERS.__getitem__, token))


def write(tokenizer: Tokenizer) -> bytes:
    """Return a tiktoken.model with the tokens before the first added one."""
    lines = []
    for rank, (token, kind) in enumerate(zip(tokenizer.tokens, tokenizer.kinds.tolist())):
        if kind != Kind.NORMAL:
            break
        lines.append(b"%s %d\n" % (b64encode(bytes(map(BYTES.__getitem__, token))), rank))
    return b"".join(lines)
