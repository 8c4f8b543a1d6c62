"""The NumPy backend: always there, decodes by row panels, and is the reference for every other one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from attrs import frozen

from squish_core.backends.base import OPS, Availability, Backend, Cost, Offer, Refused, Request
from squish_core.codecs.base import Codec, Parts, Region
from squish_core.errors import SquishError
from squish_core.model import Encoding, TensorSpec
from squish_core.regions import PANEL_BYTES, full, panels, read_region

if TYPE_CHECKING:
    import numpy as np

    from squish_core.plugins import Registry
    from squish_core.resolver import Chain


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
        return Packed(codec=registry.codec(encoding.codec.id), spec=chain.spec, encoding=encoding, parts=parts)

    def dense(self, handle: Packed) -> np.ndarray:
        return read_region(
            handle.codec, handle.parts, handle.spec, handle.encoding.codec.params, full(handle.spec.shape)
        )

    def linear(self, handle: Packed, x: np.ndarray) -> np.ndarray:
        import numpy as np

        rows, columns = _matrix(handle.spec, 2)
        flat = _operand(x, columns, handle.spec).reshape(-1, columns)
        out = np.empty((len(flat), rows), np.float32)
        for region in _panels(handle):
            np.matmul(flat, handle.read(region).T, out=out[:, region[0]])
        return out.reshape(*np.shape(x)[:-1], rows)

    def embed(self, handle: Packed, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        rows, columns = _matrix(handle.spec, 2)
        ids = _indices(ids, rows, handle.spec)
        unique, inverse = np.unique(ids, return_inverse=True)
        table = np.empty((len(unique), columns), np.float32)
        for start, stop in _runs(unique):
            table[start:stop] = handle.read((slice(int(unique[start]), int(unique[stop - 1]) + 1), slice(0, columns)))
        return table[inverse.reshape(ids.shape)]

    def experts(self, handle: Packed, x: np.ndarray, ids: np.ndarray) -> np.ndarray:
        import numpy as np

        count, rows, columns = _matrix(handle.spec, 3)
        x, ids = _operand(x, columns, handle.spec), _indices(ids, count, handle.spec)
        if x.ndim != 2 or ids.shape != x.shape[:1]:
            raise SquishError(
                "experts take one row of x for each id", tensor=handle.spec.name,
                expected=f"shapes [n, {columns}] and [n]", found=f"{list(x.shape)} and {list(ids.shape)}", code="shape",
            )  # fmt: skip
        out = np.empty((len(ids), rows), np.float32)
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


def _matrix(spec: TensorSpec, rank: int) -> tuple[int, ...]:
    if len(spec.shape) != rank:
        raise SquishError(
            "this operation needs another rank",
            tensor=spec.name, expected=f"rank {rank}", found=f"shape {spec.shape}", code="rank",
        )  # fmt: skip
    return spec.shape


def _operand(x: Any, columns: int, spec: TensorSpec) -> np.ndarray:
    import numpy as np

    try:
        array = np.asarray(x)
        if array.dtype.kind == "c":
            raise TypeError("complex numbers")
        array = array.astype(np.float32, copy=False)
    except (TypeError, ValueError) as error:
        raise SquishError(
            "the operand is not an array of real numbers",
            tensor=spec.name,
            found=str(error).rstrip("."),
            code="operand",
        ) from None
    if array.ndim == 0 or array.shape[-1] != columns:
        raise SquishError(
            "the operand's last dimension does not fit the weight",
            tensor=spec.name, expected=columns, found=f"shape {array.shape}", code="shape",
        )  # fmt: skip
    return array


def _indices(ids: Any, rows: int, spec: TensorSpec) -> np.ndarray:
    import numpy as np

    try:
        array = np.asarray(ids)
    except ValueError as error:
        raise SquishError("ids are not an array", tensor=spec.name, found=str(error).rstrip("."), code="ids") from None
    if not array.size:
        return array.astype(np.intp)
    if array.dtype.kind not in "iu":
        raise SquishError("ids must be integers", tensor=spec.name, found=str(array.dtype), code="ids")
    if not (int(array.min()) >= 0 and int(array.max()) < rows):
        raise SquishError(
            "an id is out of range", tensor=spec.name,
            expected=f"0..{rows - 1}", found=f"{array.min()}..{array.max()}", code="ids",
        )  # fmt: skip
    return array


def _runs(unique: np.ndarray) -> Iterator[tuple[int, int]]:
    """Start and stop of runs of consecutive ids, so that neighbours are decoded together."""
    start = 0
    for position in range(1, len(unique) + 1):
        if position == len(unique) or unique[position] != unique[position - 1] + 1:
            yield start, position
            start = position
