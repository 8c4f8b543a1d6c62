"""Bound encodings: an encoding with its codec and stored parts, as one argument for everything that reads values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from squish_core import dtypes
from squish_core.codecs.base import Codec, Parts, Region
from squish_core.codecs.code_layout import CodeLayout, Codes
from squish_core.codecs.regions import PANEL_BYTES, full, on_grain, panels, sizes
from squish_core.codecs.stored import SMALL, StoredArray, check_decoded
from squish_core.limits import Limits
from squish_core.log import log
from squish_core.model import Encoding, TensorSpec

if TYPE_CHECKING:
    import numpy as np


MEMORY_LIMIT = 256 << 20
"""Stored bytes of one tensor to read into memory at once, from a source without cheap views."""


class BoundEncoding:
    """One encoding of one tensor, ready to read.

    Parameters
    ----------
    codec
        Implementation of `encoding.codec`, bound to the codec it wraps, if any.
    spec
        The tensor: name, logical shape and dtype.
    encoding
        The encoding from the Index.
    parts
        Role -> stored array.
    limits
        Limits for decoding; None for parts in memory.
    """

    __slots__ = ("_dtype", "_grain", "codec", "encoding", "limits", "parts", "spec")

    def __init__(
        self, codec: Codec, spec: TensorSpec, encoding: Encoding, parts: Parts, limits: Limits | None = None
    ) -> None:
        self.codec, self.spec, self.encoding, self.parts, self.limits = codec, spec, encoding, parts, limits
        self._dtype: str | None = None
        self._grain: tuple[int | None, ...] | None = None

    @property
    def dtype(self) -> str:
        """Dtype of decoded values."""
        if self._dtype is None:
            self._dtype = self.codec.value_dtype(self.spec)
        return self._dtype

    @property
    def grain(self) -> tuple[int | None, ...]:
        """Smallest independently decodable block, per axis; None if the axis cannot be divided."""
        if self._grain is None:
            self._grain = self.codec.grain(self.spec)
        return self._grain

    @property
    def view(self) -> StoredArray | None:
        """The stored array, if it contains the values themselves; None if they must be decoded."""
        if self.spec.stored_values(self.encoding) is None:
            return None
        array = self.parts["data"]
        return array if isinstance(array, StoredArray) else None

    def check_limits(self, shape: tuple[int, ...] | None = None) -> None:
        """Raise LimitError if a region of this shape (all by default) decodes to more than the limits allow."""
        if self.limits is not None:
            size = dtypes.nbytes(self.dtype, self.spec.shape if shape is None else shape)
            if size > SMALL or size > self.limits.decoded:
                check_decoded(size, self.encoding.stored, self.limits)

    def read(self, region: Region | None = None, out: np.ndarray | None = None) -> np.ndarray:
        """Decode a region (all by default), into `out` (C-contiguous) if given.

        Decodes the smallest enclosing region on the grain and trims it.
        """
        import numpy as np

        log("decoding %s with %s, region %s", self.spec.name, self.encoding.codec, region or "all")
        shape = self.spec.shape
        wide, size = (full(shape), shape) if region is None else (region, sizes(region))
        region = wide
        self.check_limits(size)
        dtype = dtypes.to_numpy(self.dtype)
        fits = out is None or (out.flags.c_contiguous and out.dtype == dtype)
        if out is None:
            out = np.empty(size, dtype)
        if out.size == 0:
            return out
        if size != shape:  # the whole tensor is always on the grain
            wide = on_grain(region, shape, self.grain)
        if fits and wide == region:
            self.codec.decode(self.parts, self.spec, region=region, out=out)
            return out
        panel = np.empty(sizes(wide), dtype)
        self.codec.decode(self.parts, self.spec, region=wide, out=panel)
        out[...] = panel[tuple(slice(r.start - w.start, r.stop - w.start) for r, w in zip(region, wide))]
        return out

    @property
    def arrays(self) -> dict[str, StoredArray]:
        """The parts stored in a file, by role."""
        return {role: part for role, part in self.parts.items() if isinstance(part, StoredArray)}

    def in_memory(self, budget: int = MEMORY_LIMIT) -> BoundEncoding:
        """Return the same encoding with up to `budget` bytes of its parts in memory, smallest parts first.

        It saves repeated reads: a codec may read a table for every panel. Unchanged if reading again costs nothing.
        """
        if all(array.is_cheap for array in self.arrays.values()):
            return self
        parts = dict(self.parts)
        for role, array in sorted(self.arrays.items(), key=lambda item: item[1].part.stored):
            budget -= array.part.stored
            if budget >= 0 and not array.is_cheap:
                parts[role] = array.in_memory()
        return BoundEncoding(self.codec, self.spec, self.encoding, parts, self.limits)

    def panels(
        self, *, within: Region | None = None, axis: int = 0, budget: int = PANEL_BYTES, whole_rows: bool = False
    ) -> Iterator[Region]:
        """Regions on the grain that cover the tensor (or `within`), each at most `budget` bytes if possible."""
        shape, grain = self.spec.shape, self.grain
        return panels(shape, grain, 4, within=within, axis=axis, budget=budget, whole_rows=whole_rows)

    @property
    def code_layout(self) -> CodeLayout | None:
        """Layout of the codes; None if the codec has none."""
        return self.codec.code_layout(self.spec)

    def codes(self, region: Region) -> Codes | None:
        """Stored integers of a region; None if the codec has none."""
        return self.codec.codes(self.parts, self.spec, region)
