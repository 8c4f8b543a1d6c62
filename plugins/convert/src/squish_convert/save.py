"""`save`: write in-memory arrays to a file of any writable format."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from squish_core.plugins.registry import Registry

from .arrays import in_memory
from .convert import Conversion, convert
from .rules import Encode


def save(
    path: str | os.PathLike[str],
    tensors: Mapping[str, Any],
    *,
    format: str | None = None,  # noqa: A002
    encode: Encode | None = None,
    metadata: Mapping[str, Any] | None = None,
    assets: str | os.PathLike[str] | Mapping[str, bytes] | None = None,
    registry: Registry | None = None,
) -> Conversion:
    """Write arrays to a file, atomically.

    Parameters
    ----------
    path
        Target path. A file is replaced, but a folder is refused.
    tensors
        Name -> array: NumPy, or anything with `__array__` or DLPack on the CPU (a torch tensor).
    format
        `ID[:option=value,...]`; taken from the suffix of `path` by default.
    encode
        `SPEC`, {pattern: SPEC} or a function from a `TensorSpec` to SPEC or None, as in `convert`; by default arrays
        are stored unencoded.
    metadata
        Key -> text, number, bool or list of them.
    assets
        Files beside the weights (config, tokenizer): a folder, or {name: bytes}.
    registry
        The plugins to write with; those installed by default.

    Returns
    -------
    Conversion
        What happened to each tensor, with sizes and exactness.

    Raises
    ------
    UsageError
        An argument is invalid.
    TensorError
        The format cannot hold one of the arrays.
    WriteError
        The target cannot be written.

    Examples
    --------
    >>> report = squish.save("ones.gguf", {"w": np.ones((2, 64), "f4")}, encode="q8_0")
    >>> report.steps[0].target
    'ggml.q8_0'
    """
    with in_memory(tensors, metadata, assets, registry) as file:
        return convert(file, path, format, encode, registry=file.registry)
