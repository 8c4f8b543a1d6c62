"""The NumPy backend: always available, decodes panels of rows, the reference for all other backends."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from squish_core.backends.base import Backend
from squish_core.backends.checks import cast_output, check_expert_args, check_ids, check_input, require_rank
from squish_core.backends.offers import OPS, Availability, Cost, Offer, Request
from squish_core.codecs.base import Region
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.regions import PANEL_BYTES, full
from squish_core.codes import ErrorCode
from squish_core.errors import UsageError

if TYPE_CHECKING:
    import numpy as np

    from squish_core.backends.chain import Chain


class NumpyBackend(Backend):
    """Decodes with the codec's NumPy code, one panel at a time, directly from the mapped file."""

    id = "numpy"

    def probe(self) -> Availability:
        return _here()

    def offer(self, request: Request) -> Offer:
        encoding, spec = request.encoding, request.spec
        cost = None
        if spec is not None:
            dense = 4 * spec.elements
            cost = Cost(
                stored=encoding.stored,
                resident=min(PANEL_BYTES, dense),
                moved=encoding.stored + dense,
                mapped=encoding.stored,
            )
        return Offer(
            backend=self.id,
            encoding=encoding,
            mode="fold",
            ops=OPS,
            storage="decoded to f32 in row panels, from the file's own bytes",
            cost=cost,
        )

    def load(self, chain: Chain, bound: BoundEncoding) -> BoundEncoding:
        return bound

    def dense(
        self,
        handle: BoundEncoding,
        *,
        region: Region | None = None,
        dtype: str | None = None,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        return cast_output(handle.read(region), None, dtype, out)

    def linear(self, handle: BoundEncoding, x: np.ndarray) -> np.ndarray:
        import numpy as np

        rows, columns = require_rank(handle.spec, 2)
        x = check_input(x, columns, handle.spec)
        flat = x.reshape(prod(x.shape[:-1]), columns)
        out = np.empty((len(flat), rows), np.float32)
        for region in _panels(handle):
            np.matmul(flat, _f32(handle, region).T, out=out[:, region[0]])
        return out.reshape(*x.shape[:-1], rows)

    def embed(self, handle: BoundEncoding, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        rows, columns = require_rank(handle.spec, 2)
        ids = check_ids(ids, rows, handle.spec)
        unique, inverse = np.unique(ids, return_inverse=True)
        table = np.empty((len(unique), columns), np.float32)
        for start, stop in _runs(unique):
            table[start:stop] = _f32(handle, (slice(int(unique[start]), int(unique[stop - 1]) + 1), slice(0, columns)))
        return table[inverse.reshape(ids.shape)]

    def experts(self, handle: BoundEncoding, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        x, ids = check_expert_args(x, ids, handle.spec)
        out = np.empty((len(ids), handle.spec.shape[1]), np.float32)
        for expert in np.unique(ids):
            rows = np.flatnonzero(ids == expert)
            for region in _panels(handle, slice(int(expert), int(expert) + 1)):
                out[rows, region[1]] = x[rows] @ _f32(handle, region)[0].T
        return out


@cache
def _here() -> Availability:
    import numpy as np

    return Availability(ok=True, device="CPU", facts={"numpy": np.__version__})


def _f32(bound: BoundEncoding, region: Region) -> np.ndarray:
    """Decode a region to float32; UsageError for complex values."""
    import numpy as np

    values = bound.read(region)
    if values.dtype.kind == "c":
        raise UsageError(
            "complex weights can only be decoded",
            tensor=bound.spec.name,
            expected="real values",
            found=str(values.dtype),
            code=ErrorCode.OP,
            hint="Use numpy() and compute with its result.",
        )
    return values.astype(np.float32, copy=False)


def _panels(bound: BoundEncoding, expert: slice | None = None) -> Iterator[Region]:
    if expert is None:
        return bound.panels(whole_rows=True)
    return bound.panels(within=(expert, *full(bound.spec.shape[1:])), axis=1, whole_rows=True)


def _runs(unique: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and stop of runs of consecutive ids, to decode adjacent rows together."""
    start = 0
    for position in range(1, len(unique) + 1):
        if position == len(unique) or unique[position] != unique[position - 1] + 1:
            yield start, position
            start = position
