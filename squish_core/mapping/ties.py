"""Tensors that the settings declare tied, although a file has values of its own for them."""

from __future__ import annotations

from collections.abc import Collection

from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.errors import TensorError
from squish_core.families.base import Family
from squish_core.file import File
from squish_core.mapping.coverage import Coverage, without_prefix
from squish_core.model import TensorSpec


def check_ties(file: File, family: Family, coverage: Coverage, tied: Collection[str]) -> None:
    """Raise TensorError if a tied tensor differs from the one that takes its place; of a remote file, in its first
    rows."""
    partners = {tensor.name: tensor.tied_to for tensor in family.tensors if tensor.name in tied}
    for name in coverage.unused:
        partner = partners.get(without_prefix(family, name))
        origin = coverage.origins.get(partner) if partner is not None else None
        if origin is None:
            continue
        own, other = file.index.tensors[name], file.index.tensors[origin.source]
        if not _equal(file, own, other):
            raise TensorError(
                f"differs from {origin.source}, to which the settings tie it", tensor=name,
                code=ErrorCode.CONTRADICTION, hint="Set tie_word_embeddings to false in config.json to keep both.",
            )  # fmt: skip


def _equal(file: File, own: TensorSpec, other: TensorSpec) -> bool:
    import numpy as np

    if own.encodings[0].parts == other.encodings[0].parts:
        return True
    one, two = (file.bind(spec, spec.encodings[0]) for spec in (own, other))
    for region in panels(own.shape, (1,) * len(own.shape), 4):
        if not np.array_equal(one.read(region), two.read(region)):
            return False
        if file.source.is_remote:
            break
    return True
