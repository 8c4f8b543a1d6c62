"""Python's arguments in messages, as the command line writes them."""

from __future__ import annotations

import re

OPTIONS = {
    "to": "--to", "encode": "--encode", "rename": "--names", "activations": "--imatrix",
    "requantize": "--requantize", "deep": "--deep", "all": "--all",
}  # fmt: skip
_ARGUMENT = re.compile(rf"\b({'|'.join(OPTIONS)})=(?:\.\.\.|True|'([^']*)'|(FILE)|(?=[\s.,;:)]|$))")


def command_line(text: str) -> str:
    """`encode='f32'` as `--encode f32`, `deep=True` as `--deep`, `to=...` and `to=` as `--to`."""
    return _ARGUMENT.sub(lambda match: " ".join(filter(None, (OPTIONS[match[1]], match[2], match[3]))), text)
