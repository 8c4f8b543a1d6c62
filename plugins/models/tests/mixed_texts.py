"""Two thousand lines of mixed text: scripts, emoji, white space, marks, control characters and added tokens."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterator

BLOCKS = (
    *[(0x20, 0x7F)] * 8, (0xA0, 0x250), (0x300, 0x370), (0x370, 0x400), (0x400, 0x530), (0x531, 0x590),
    (0x590, 0x600), (0x600, 0x700), (0x900, 0x980), (0x980, 0xA00), (0xB80, 0xC00), (0xE00, 0xE80), (0x10A0, 0x1100),
    (0x1100, 0x1200), (0x1200, 0x1280), (0x1E00, 0x1F00), (0x2000, 0x2070), (0x20A0, 0x20C0), (0x2190, 0x2600),
    (0x3000, 0x3100), (0x4E00, 0x5200), (0xAC00, 0xAD00), (0xF900, 0xFB50), (0xFE00, 0xFF00), (0xFF00, 0xFFF0),
    (0x1F300, 0x1F650), (0x1D400, 0x1D480), (0x0, 0x20), (0x7F, 0xA0), (0x20000, 0x20100),
)  # fmt: skip
"""Ranges of letters, most often of ASCII."""
SPACES = (" ", " ", " ", "  ", "   ", "\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u2028")
PIECES = (
    "the", "The", "don't", "I'LL", "running", "unbelievable", "caf\u00e9", "cafe\u0301", "na\u00efve", "\u0130stanbul",
    "stra\u00dfe", "\u0416\u0443\u043a", "\u4e00\u4e8c\u4e09", "\u3053\u3093\u306b\u3061\u306f", "\u30ab\u30bf",
    "\ud55c\uad6d\uc5b4", "\u0928\u092e\u0938\u094d\u0924\u0947", "\u0e44\u0e17\u0e22", "\u05e9\u05dc\u05d5\u05dd",
    "\u0645\u0631\u062d\u0628\u0627", "\U0001f600", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\u2764\ufe0f",
    "12345", "3.14", "1,000", "...", "?!", "--", "x" * 120, "\u2581", "\ufb01", "\u00bd", "\u2167", "\u212b",
    "snake_case", "camelCase", "HTMLParser", "a@b.com", "\u00ad", "\u200b", "\ufeff",
)  # fmt: skip


def lines(added: tuple[str, ...] = (), count: int = 2000) -> list[str]:
    """Lines of mixed text, some with these added tokens."""
    choose = random.Random(0)
    return ["".join(_parts(choose, added)) for _ in range(count)]


def _parts(choose: random.Random, added: tuple[str, ...]) -> Iterator[str]:
    for _ in range(choose.randrange(1, 12)):
        kind = choose.random()
        if added and kind < 0.08:
            yield choose.choice(added)
        elif kind < 0.5:
            yield choose.choice(PIECES)
        else:
            first, end = choose.choice(BLOCKS)
            yield "".join(chr(choose.randrange(first, end)) for _ in range(choose.randrange(1, 8)))
        if choose.random() < 0.7:
            yield choose.choice(SPACES)


def corpus() -> list[str]:
    """Lines to train a vocabulary on: words often, all other letters now and then."""
    choose = random.Random(1)
    words = [each for each in PIECES if len(each) < 100] + dir(str) + dir(unicodedata)
    spoken = [" ".join(choose.choices(words, k=12)) for _ in range(2000)]
    return spoken + [line.replace("\0", "") for line in lines(count=600)]


def splits_letters_otherwise(text: str) -> bool:
    """Whether llama.cpp keeps a word whole that Kimi's pattern splits: before a capital letter, at marks and U+3007."""
    kinds = [unicodedata.category(each) for each in text]
    capitals = any(
        first.startswith("L") and first != "Lu" and second in ("Lu", "Lt") for first, second in zip(kinds, kinds[1:])
    )
    return capitals or "\u3007" in text or any(kind.startswith("M") or kind in ("Lm", "Lo") for kind in kinds)
