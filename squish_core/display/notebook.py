"""Files, tensors and reports in notebooks: the only module that generates and escapes HTML."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import Any

from squish_core.display.tables import fit_all, table
from squish_core.text import counted, escape

MOST_TENSORS = 20
"""Tensors shown per file."""


def page(lines: Iterable[str]) -> str:
    """Lines as one preformatted element, with markup escaped and control characters made visible."""
    from html import escape as escape_html

    text = "\n".join(escape(line) for line in fit_all(lines))
    return f"<pre>{escape_html(text)}</pre>"


def file_lines(file: Any) -> list[str]:
    """A `File`: a title and its first tensors."""
    title = f"{file.name}: {file.format} {file.version}".rstrip()
    lines = [f"{title}, {counted(len(file), 'tensor')}, {counted(file.size, 'byte')}"]
    lines += tensor_lines(file[name] for name in islice(file, MOST_TENSORS))
    return [*lines, f"and {len(file) - MOST_TENSORS:,} more"] if len(file) > MOST_TENSORS else lines


def tensor_lines(tensors: Iterable[Any]) -> list[str]:
    """A table with one row per `Tensor`."""
    rows = [
        (list(tensor.shape), tensor.dtype, tensor.codec, f"{tensor.bits_per_weight:.2f}", f"{tensor.nbytes:,}",
         tensor.name)
        for tensor in tensors
    ]  # fmt: skip
    return table(("shape", "dtype", "codec", "bits", "bytes", "name"), "<<<>><", rows)
