"""Documents of the commands that identify the content of files: hash, prove.

Named like the module of the commands.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen
from squish_convert.content import GgufSum
from squish_convert.prove import ProvenTensor


@frozen
class Hash:
    """Ids of the content of a file.

    Attributes
    ----------
    content
        The id of all tensors, in hex.
    tensors
        Name -> id.
    gguf
        The sums of gguf-hash, with `--gguf`.
    manifest, signature
        The files that were written.
    """

    file: str
    format: str
    content: str
    tensors: Mapping[str, str]
    gguf: tuple[GgufSum, ...] | None
    manifest: str | None
    signature: str | None


@frozen
class Prove:
    """The origin of each tensor of a quantized file.

    Attributes
    ----------
    proven
        Whether every tensor is exactly what an encoder gives.
    file, base
        The files.
    mapped
        How the base was mapped to the names of the file; empty if it was not.
    """

    proven: bool
    file: str
    base: str
    tensors: tuple[ProvenTensor, ...]
    mapped: str
