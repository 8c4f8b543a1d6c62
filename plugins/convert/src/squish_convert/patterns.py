"""Shell patterns for some of a model's tensors."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


def templates_of(names: Iterable[str]) -> list[str]:
    """The names with `*` for their numbers, each once.

    >>> templates_of(["blk.0.up.weight", "blk.1.up.weight", "output.weight"])
    ['blk.*.up.weight', 'output.weight']
    """
    return list(dict.fromkeys(_NUMBER.sub("*", name) for name in names))


def patterns_of(names: Iterable[str], others: Iterable[str]) -> list[str]:
    """Patterns that match these names and none of the others, if one number tells them apart.

    >>> names = [f"blk.{number}.down.weight" for number in (0, 1, 5, 10, 12)]
    >>> patterns_of(names, ["blk.0.up.weight"])
    ['blk.*.down.weight']
    >>> patterns_of(names, ["blk.2.down.weight"])
    ['blk.[015].down.weight', 'blk.1[02].down.weight']
    """
    mixed = set(templates_of(others))
    patterns: dict[str, None] = {}
    digits: dict[str, list[str]] = {}
    for name in names:
        numbers = _NUMBER.findall(name)
        template = _NUMBER.sub("*", name)
        if template in mixed and len(numbers) == 1:
            pattern = template.replace("*", f"{numbers[0][:-1]}*")
            digits.setdefault(pattern, []).append(numbers[0][-1])
            patterns[pattern] = None
        else:
            patterns[template] = None
    return [_with_digits(pattern, digits[pattern]) if pattern in digits else pattern for pattern in patterns]


def _with_digits(pattern: str, digits: list[str]) -> str:
    return pattern.replace("*", digits[0] if len(digits) == 1 else f"[{''.join(digits)}]")
