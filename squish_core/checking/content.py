"""Checks of content that decodes without an error: values that no model has, and files named by another digest.

Apart from `check`, which collects findings, because it knows nothing of files, only of arrays and paths.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import define

from squish_core.codes import ErrorCode
from squish_core.errors import Problem
from squish_core.text import counted

if TYPE_CHECKING:
    import numpy as np

_INFINITY = {"f2": 0x7C00, "bf2": 0x7F80, "f4": 0x7F80_0000, "f8": 0x7FF0 << 48}
"""Bit pattern of infinity, by dtype; every NaN is above it."""
_DIGEST_NAME = re.compile(r"(sha256[-:])?([0-9a-f]{64}|[0-9a-f]{40})")
_STORES = ("blobs", "sha256")
"""Folders in which a file's whole name is a digest: the caches of the hub and of Ollama, and OCI layouts."""
_PIECE = 1 << 22


@define
class ValueCheck:
    """Counts NaN and infinite values of an array given in panels, and notices whether all are zero."""

    total: int = 0
    nan: int = 0
    infinite: int = 0
    is_zero: bool = True

    def add(self, values: np.ndarray) -> None:
        """Add a panel of any dtype; integers have neither NaN nor infinities."""
        import numpy as np

        self.total += values.size
        if not values.size:
            return
        if values.dtype.kind in "biu":
            self.is_zero = self.is_zero and not values.any()
            return
        if values.dtype.kind == "c":
            values = values.view(values.real.dtype)
        if values.itemsize == 1:
            values = values.astype(np.float32)
        # Two maxima of integers take a fraction of the time of isnan and isinf, which make arrays.
        bits = np.ascontiguousarray(values).view(f"<i{values.itemsize}")
        magnitudes = (1 << 8 * values.itemsize - 1) - 1
        largest = max(int(bits.max()), int(bits.view(f"<u{values.itemsize}").max()) & magnitudes)
        self.is_zero = self.is_zero and not largest
        infinity = _INFINITY[f"{'bf' if values.dtype.name == 'bfloat16' else 'f'}{values.itemsize}"]
        if largest >= infinity:
            finite = int(np.count_nonzero(bits & magnitudes < infinity))
            nan = int(np.count_nonzero(bits & magnitudes > infinity))
            self.nan += nan
            self.infinite += values.size - finite - nan

    def problems(self, where: str, is_matrix: bool) -> Iterator[Problem]:
        """Warnings: NaN and infinite values, and a matrix of zeros."""
        kinds = [f"{count:,} {word}" for count, word in ((self.nan, "NaN"), (self.infinite, "infinite")) if count]
        if kinds:
            yield Problem(
                code=ErrorCode.NOT_FINITE, severity="warning", where=where,
                message=f"{' and '.join(kinds)} of {counted(self.total, 'value')}",
            )  # fmt: skip
        elif is_matrix and self.total and self.is_zero:
            yield Problem(code="zeros", severity="warning", where=where, message="its values are all zeros")


def checked(panels: Iterable[np.ndarray]) -> ValueCheck:
    """The check of an array's panels."""
    check = ValueCheck()
    for panel in panels:
        check.add(panel)
    return check


def is_matrix(shape: tuple[int, ...]) -> bool:
    """Whether at least two axes are longer than 1: biases and tokens of zeros are usual, matrices are not."""
    return sum(size > 1 for size in shape) > 1


def name_problem(path: Path) -> Problem | None:
    """The error of a file whose name is the digest of other bytes; None if it is its own, or no digest.

    `sha256-<64 digits>` anywhere; in a store, 64 digits of SHA-256, or 40 of the SHA-1 of a Git blob.
    """
    path = Path(os.path.realpath(path))  # Path.resolve would also ask for its status, and ignore the answer
    match = _DIGEST_NAME.fullmatch(path.name)
    if match is None or (match[1] is None and path.parent.name not in _STORES) or (match[1] and len(match[2]) == 40):
        return None
    kind = "SHA-256" if len(match[2]) == 64 else "Git's SHA-1"
    found = _digest(path, kind)
    if found == match[2]:
        return None
    return Problem(
        code=ErrorCode.DIGEST, severity="error", where=f"{path.parent.name}/{path.name}",
        message=f"the file's name is the {kind} of other bytes (found {found}). It is damaged or was replaced; "
        "delete it and download it again.",
    )  # fmt: skip


def _digest(path: Path, kind: str) -> str:
    from hashlib import sha1, sha256  # loads OpenSSL, which takes longer than opening a file

    with path.open("rb") as file:
        hasher = sha256() if kind == "SHA-256" else sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        while piece := file.read(_PIECE):
            hasher.update(piece)
    return hasher.hexdigest()
