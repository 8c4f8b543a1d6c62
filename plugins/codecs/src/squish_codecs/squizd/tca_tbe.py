"""TCA-TBE: lossless bf16 as three bitmaps of exponent codes, short values and full values, by row (profile P5).

The layout is ZipServ's triple-bitmap encoding (arXiv 2603.17435).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from weakref import WeakKeyDictionary

import numpy as np

from squish_core.api import Codec, CodecError, ErrorCode, Exactness, Params, Parts, Region, TensorSpec, decode_all

from ..packing.bits import BIT_COUNTS
from ..wrap.correction import rows_and_columns, rows_of

PLANES = ("plane0", "plane1", "plane2")
WIDEST = 248
_PANEL = 1 << 17
"""Elements per iteration; fits the cache."""


class TcaTbe(Codec):
    """Parts `plane0..2` u64 (rows, words), `high` u8 (sign and mantissa of coded elements), `full` u16 (the others).

    Parameters: `base_exponent` and `n_high`, the length of `high`.
    """

    unsliced_parts = (*PLANES, "high", "full")

    def __init__(self) -> None:
        self._before: WeakKeyDictionary[object, np.ndarray] = WeakKeyDictionary()

    def parts(self, spec: TensorSpec) -> dict[str, tuple[str, tuple[int, ...]]]:
        rows, columns = rows_and_columns(spec.shape)
        planes, count = dict.fromkeys(PLANES, ("u64", (rows, -(-columns // 64)))), self.params["n_high"]
        return {**planes, "high": ("u8", (count,)), "full": ("u16", (rows * columns - count,))}

    def grain(self, spec: TensorSpec) -> tuple[int | None, ...]:
        rank = len(spec.shape)
        return (1, *(None,) * (rank - 1)) if rank > 1 else (None,) * rank  # one axis is one row

    def value_dtype(self, spec: TensorSpec) -> str:
        return "bf16"

    @property
    def error_bound(self) -> Exactness:
        return Exactness("values", "bf16")

    @classmethod
    def params_for(cls, spec: TensorSpec, options: Params) -> Params:
        if spec.dtype != "bf16":
            raise CodecError(
                "tca_tbe only stores bf16", found=spec.dtype, code="dtype", hint="Encode it as bf16 first, or keep it."
            )
        if options:
            raise CodecError("tca_tbe takes no parameters", found=", ".join(options), code=ErrorCode.PARAMS)
        return options

    def fit_params(self, panels: Callable[[], Iterator[np.ndarray]], spec: TensorSpec) -> Params:
        counts = np.zeros(256, np.int64)
        for panel in panels():
            counts += np.bincount(_exponents(_bits(panel)).reshape(-1), minlength=256)
        # Choose the base whose seven following exponents cover the most elements; the lowest on ties.
        covered = np.convolve(counts, np.ones(7, np.int64), "valid")[1 : WIDEST + 2]
        base = int(covered.argmax())
        return {"base_exponent": base, "n_high": int(covered[base])}

    def encode(self, panel: np.ndarray, *, activations: np.ndarray | None = None) -> dict[str, np.ndarray]:
        bits = _bits(panel).reshape(rows_and_columns(panel.shape))
        code = _exponents(bits).astype(np.int16) - self.params["base_exponent"]
        short = (code >= 1) & (code <= 7)
        code = np.where(short, code, 0).astype(np.uint8)
        padded = np.zeros((bits.shape[0], -(-bits.shape[1] // 64) * 64), np.uint8)
        padded[:, : bits.shape[1]] = code
        planes = {
            name: np.packbits(padded >> bit & 1, axis=1, bitorder="little").view("<u8")
            for bit, name in enumerate(PLANES)
        }
        high = bits[short]
        return {**planes, "high": ((high >> 8 & 0x80) | (high & 0x7F)).astype(np.uint8), "full": bits[~short]}

    def decode(self, parts: Parts, spec: TensorSpec, *, region: Region, out: np.ndarray) -> None:
        rows, columns = rows_and_columns(spec.shape)
        start, stop, _ = rows_of(region, spec.shape)
        before = self._counts_before(parts, rows)
        if int(before[-1]) != self.params["n_high"]:
            raise CodecError(
                "the bitmaps do not match the number of values [P5]",
                expected=self.params["n_high"],
                found=int(before[-1]),
                code="P5",
            )
        # Shifted exponents of the seven codes; elements with code 0 are overwritten.
        table = np.arange(8, dtype=np.uint16) + self.params["base_exponent"] << 7
        bits = out.reshape(stop - start, columns).view(np.uint16)
        step = max(1, _PANEL // max(columns, 1))
        for low in range(start, stop, step):
            high = min(low + step, stop)
            code = _codes(parts, low, high, columns)
            panel = bits[low - start : high - start]
            first, last = int(before[low]), int(before[high])
            short = np.asarray(parts["high"][first:last], np.uint16)
            np.take(table, code, out=panel, mode="clip")
            coded = code != 0
            panel[coded] |= (short & 0x80) << 8 | (short & 0x7F)
            panel.reshape(-1)[np.flatnonzero(~coded)] = parts["full"][low * columns - first : high * columns - last]

    def check_parts(self, parts: Parts, spec: TensorSpec) -> None:
        decode_all(self, parts, spec)

    def _counts_before(self, parts: Parts, rows: int) -> np.ndarray:
        """Return the number of coded elements before each row, cached per open tensor."""
        key = parts[PLANES[0]]
        cached = None if isinstance(key, np.ndarray) else self._before.get(key)
        if cached is not None:
            return cached
        before = np.zeros(rows + 1, np.int64)
        step = max(1, (1 << 20) // max(8 * key.shape[1], 1))
        for start in range(0, rows, step):
            one, two, three = (parts[name][start : start + step] for name in PLANES)
            before[start + 1 : start + step + 1] = _popcount(one | two | three).sum(axis=1)
        np.cumsum(before, out=before)
        if not isinstance(key, np.ndarray):
            self._before[key] = before
        return before


def _codes(parts: Parts, start: int, stop: int, columns: int) -> np.ndarray:
    """Combine the three bitmaps to codes 0..7."""
    code: np.ndarray = np.zeros((stop - start, columns), np.uint8)
    for bit, name in enumerate(PLANES):
        words = np.ascontiguousarray(parts[name][start:stop])
        plane = np.unpackbits(words.view(np.uint8).reshape(stop - start, -1), axis=1, bitorder="little")
        if plane[:, columns:].any():
            raise CodecError("nonzero padding bits in a bitmap [P5]", part=name, code="P5")
        code |= plane[:, :columns] << bit
    return code


def _bits(panel: np.ndarray) -> np.ndarray:
    import ml_dtypes

    return np.ascontiguousarray(panel.astype(ml_dtypes.bfloat16, copy=False)).view(np.uint16)


def _exponents(bits: np.ndarray) -> np.ndarray:
    return bits >> 7 & 0xFF


def _popcount(words: np.ndarray) -> np.ndarray:
    if hasattr(np, "bitwise_count"):
        return np.bitwise_count(words)
    counts: np.ndarray = BIT_COUNTS[np.ascontiguousarray(words).view(np.uint8)].reshape(*words.shape, 8).sum(axis=-1)
    return counts
