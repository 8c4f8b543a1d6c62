"""`squish info --meta`: one metadata value, not shortened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from squish_core.display.data import to_json
from squish_core.errors import SquishError
from squish_core.text import did_you_mean

from .output import Answer

if TYPE_CHECKING:
    from squish_core.file import File


def one_value(file: File, key: str) -> Answer:
    """One metadata value, not shortened."""
    metadata = file.metadata
    if key not in metadata:
        raise SquishError(
            "no such metadata key", file=file.name, found=repr(key), code="meta",
            hint=did_you_mean(key, metadata) or "`squish info` lists the keys.",
        )  # fmt: skip
    value = to_json(metadata[key])
    lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return Answer(value, [str(line) for line in lines], verbatim=True)
