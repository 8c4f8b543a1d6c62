"""The NumPy backend: always there, decodes by row panels, and is the reference for every other one."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

from attrs import frozen

from squish_core.backends.base import OPS, Availability, Backend, Cost, Offer, Refused, Request
from squish_core.backends.checks import delivered, indices, matrix_of, operand, routed
from squish_core.codecs.base import Codec, Parts, Region
from squish_core.codecs.regions import PANEL_BYTES, full, panels, read_region
from squish_core.model import Encoding, TensorSpec

if TYPE_CHECKING:
    import numpy as np

    from squish_core.backends.chain import Chain
    from squish_core.plugins.registry import Registry


@frozen(kw_only=True)
class Packed:
    """A tensor kept as its stored parts."""

    codec: Codec
    spec: TensorSpec
    encoding: Encoding
    parts: Parts

    def read(self, region: Region) -> np.ndarray:
        """Values of a region in float32."""
        import numpy as np

        values = read_region(self.codec, self.parts, self.spec, self.encoding.codec.params, region)
        return values.astype(np.float32, copy=False)


class NumpyBackend(Backend):
    """Decodes with the codec's own NumPy code, a panel at a time, straight from the mapped bytes."""

    id = "numpy"

    def probe(self) -> Availability:
        import numpy as np

        return Availability(ok=True, device="CPU", facts={"numpy": np.__version__})

    def offer(self, request: Request) -> Offer | Refused:
        encoding, spec = request.encoding, request.spec
        missing = request.registry.missing(encoding)
        if missing:
            return Refused(
                backend=self.id,
                encoding=encoding,
                code="not-installed",
                why=missing.why,
                install=missing.install,
            )
        cost = None
        if spec is not None:
            dense = 4 * spec.elements
            cost = Cost(stored=encoding.stored, resident=min(PANEL_BYTES, dense), moved=encoding.stored + dense)
        return Offer(
            backend=self.id,
            encoding=encoding,
            mode="fold",
            ops=OPS,
            layout="decoded to f32 in row panels, from the file's own bytes",
            cost=cost,
        )

    def load(self, chain: Chain, parts: Parts, registry: Registry) -> Packed:
        encoding = chain.chosen.encoding
        assert chain.spec is not None
        return Packed(codec=registry.codec(encoding.codec), spec=chain.spec, encoding=encoding, parts=parts)

    def dense(
        self, handle: Packed, *, region: Region | None = None, dtype: str | None = None, out: np.ndarray | None = None
    ) -> np.ndarray:
        params = handle.encoding.codec.params
        values = read_region(handle.codec, handle.parts, handle.spec, params, region or full(handle.spec.shape))
        return delivered(values, None, dtype, out)

    def linear(self, handle: Packed, x: np.ndarray) -> np.ndarray:
        import numpy as np

        rows, columns = matrix_of(handle.spec, 2)
        x = operand(x, columns, handle.spec)
        flat = x.reshape(prod(x.shape[:-1]), columns)
        out = np.empty((len(flat), rows), np.float32)
        for region in _panels(handle):
            np.matmul(flat, handle.read(region).T, out=out[:, region[0]])
        return out.reshape(*x.shape[:-1], rows)

    def embed(self, handle: Packed, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        rows, columns = matrix_of(handle.spec, 2)
        ids = indices(ids, rows, handle.spec)
        unique, inverse = np.unique(ids, return_inverse=True)
        table = np.empty((len(unique), columns), np.float32)
        for start, stop in _runs(unique):
            table[start:stop] = handle.read((slice(int(unique[start]), int(unique[stop - 1]) + 1), slice(0, columns)))
        return table[inverse.reshape(ids.shape)]

    def experts(self, handle: Packed, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        x, ids = routed(x, ids, handle.spec)
        out = np.empty((len(ids), handle.spec.shape[1]), np.float32)
        for expert in np.unique(ids):
            chosen = np.flatnonzero(ids == expert)
            for region in _panels(handle, slice(int(expert), int(expert) + 1)):
                out[chosen, region[1]] = x[chosen] @ handle.read(region)[0].T
        return out


def _panels(handle: Packed, expert: slice | None = None) -> Iterator[Region]:
    grain = handle.codec.grain(handle.spec, handle.encoding.codec.params)
    within = full(handle.spec.shape) if expert is None else (expert, *full(handle.spec.shape[1:]))
    axis = 0 if expert is None else 1
    return panels(handle.spec.shape, grain, 4, within=within, axis=axis, whole_rows=True)


def _runs(unique: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and stop of runs of consecutive ids, so that neighbours are decoded together."""
    start = 0
    for position in range(1, len(unique) + 1):
        if position == len(unique) or unique[position] != unique[position - 1] + 1:
            yield start, position
            start = position
