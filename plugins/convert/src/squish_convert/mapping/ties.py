"""Tensors that the settings declare tied, although a file has values of its own for them."""

from __future__ import annotations

from collections.abc import Collection

from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import TensorSpec

from ..families.base import Family
from .coverage import Coverage, is_dense


def check_ties(file: File, family: Family, coverage: Coverage, tied: Collection[str], *, sample: bool = False) -> None:
    """Raise TensorError if a tied tensor differs from the one that takes its place.

    `sample`: only the first rows are compared, and only of dense tensors. Of a remote file, only the first rows are.
    """
    partners = {tensor.name: tensor.tied_to for tensor in family.tensors if tensor.name in tied}
    for name in coverage.unused:
        partner = partners.get(family.own_name(name))
        origin = coverage.origins.get(partner) if partner is not None else None
        if origin is None:
            continue
        own, other = file.index.tensors[name], file.index.tensors[origin.source]
        if sample and not (is_dense(own) and is_dense(other)):
            continue
        if not _equal(file, own, other, sample or file.source.is_remote):
            raise TensorError(
                f"differs from {origin.source}, to which the settings tie it", tensor=name,
                code=ErrorCode.CONTRADICTION, hint="Set tie_word_embeddings to false in config.json to keep both.",
            )  # fmt: skip


def _equal(file: File, own: TensorSpec, other: TensorSpec, sample: bool) -> bool:
    import numpy as np

    if own.encodings[0].parts == other.encodings[0].parts:
        return True
    one, two = (file.bind(spec, spec.encodings[0]) for spec in (own, other))
    for region in panels(own.shape, (1,) * len(own.shape), 4):
        if not np.array_equal(one.read(region), two.read(region)):
            return False
        if sample:
            break
    return True
