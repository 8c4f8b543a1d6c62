"""Overflow of encoders: finite values must decode to finite ones, infinities and NaN to themselves."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.errors import CodecError, SquishError
from squish_core.model import CodecSpec

EncodedParts = dict[str, "np.ndarray"]
"""Role -> array of an encoded panel."""

if TYPE_CHECKING:
    import numpy as np

    Encode = Callable[[np.ndarray], EncodedParts]
    Changed = Callable[[np.ndarray, EncodedParts], np.ndarray | None]

PARAMETER = "overflow"
REFUSE, SATURATE = "refuse", "saturate"


def take_overflow(spec: CodecSpec) -> tuple[CodecSpec, str]:
    """Split `overflow=`, which any encoder accepts, off a specification."""
    inner, mode = (None, REFUSE) if spec.inner is None else take_overflow(spec.inner)
    params = {name: value for name, value in spec.params.items() if name != PARAMETER}
    mode = spec.params.get(PARAMETER, mode)
    if mode not in (REFUSE, SATURATE):
        raise SquishError(
            "unknown overflow mode",
            expected=f"{PARAMETER}={REFUSE} or {PARAMETER}={SATURATE}",
            found=f"{PARAMETER}={mode}",
            code=ErrorCode.PARAMS,
        )
    return evolve(spec, params=params, inner=inner), mode


def changed(values: np.ndarray, decoded: np.ndarray) -> np.ndarray:
    """Mask of the finite values that did not stay finite, and of infinities and NaN that changed."""
    import numpy as np

    both_finite = np.isfinite(values) & np.isfinite(decoded)
    both_nan = np.isnan(values) & np.isnan(decoded)
    mask: np.ndarray = ~(both_finite | both_nan | (values == decoded))
    return mask


def check(values: np.ndarray, decoded: np.ndarray, steps: tuple[int | None, ...], start: tuple[int, ...]) -> None:
    """Raise CodecError for the first block with a value that `changed` marks.

    `steps`: size of the blocks that share a scale, along each axis. `start`: index of the first value in the tensor.
    """
    import numpy as np

    mask = changed(values, decoded)
    if not mask.any():
        return
    first = [int(index) for index in np.unravel_index(int(mask.argmax()), mask.shape)]
    low = [0 if step is None else index - index % step for index, step in zip(first, steps)]
    block = tuple(slice(index, None if step is None else index + step) for index, step in zip(low, steps))
    raise error_at(values[block], tuple(map(sum, zip(start, low))))


def error_at(
    values: np.ndarray, start: tuple[int, ...], mask: np.ndarray | None = None, cause: CodecError | None = None
) -> CodecError:
    """Return the error for the first non-finite value (within `mask`), or else for the largest one.

    `cause`: the encoder's own error, if it refused the values.
    """
    import numpy as np

    magnitude = np.abs(values.astype(np.float64))
    if mask is not None:
        magnitude = np.where(mask, magnitude, -1)
    position = int(magnitude.argmax())  # argmax treats the first NaN as the largest
    nonfinite = ~np.isfinite(magnitude)
    if nonfinite.any():
        position = int(nonfinite.argmax())
    index = [int(first + offset) for first, offset in zip(start, np.unravel_index(position, values.shape))]
    value = float(values.reshape(-1)[position])
    repair = "Keep this tensor (NAME=keep)" + (", or repair it first." if value != value else "")
    return CodecError(
        cause.message if cause else "a value does not fit this encoding",
        code=ErrorCode.RANGE,
        expected=cause.expected if cause else "values that stay finite",
        found=f"{value} at index {index}",
        hint=repair if value != value else f"{repair}, or clip with {PARAMETER}={SATURATE}.",
    )


def encode_or_locate(encode: Encode, panel: np.ndarray, values: np.ndarray, start: tuple[int, ...]) -> EncodedParts:
    """Encode a panel; if the encoder refuses its `values`, the error locates the first bad one."""
    try:
        return encode(panel)
    except CodecError as error:
        if error.code != ErrorCode.RANGE:
            raise
        raise error_at(values, start, cause=error) from error


class Saturation:
    """Encodes panels, clipping overflow to the largest magnitude that stays finite; `clipped` counts values.

    `steps`: as in `check`; blocks of rows are encoded separately.
    """

    def __init__(self, steps: tuple[int | None, ...]) -> None:
        self._steps, self.clipped = steps, 0

    def encode(
        self, values: np.ndarray, start: tuple[int, ...], encode: Encode, changed_by: Changed
    ) -> tuple[EncodedParts, np.ndarray]:
        """Return the parts of a panel, and its values with infinities clipped."""
        import numpy as np

        attempt = partial(_attempt, encode, changed_by)
        parts, mask, cause = attempt(values)
        if parts is not None and mask is None:
            return parts, values
        mask = np.ones(values.shape, bool) if mask is None else mask
        blocks = _blocks(mask, self._steps)
        mask = mask | (blocks & np.isinf(values))  # an infinity may have made its block overflow
        rows = blocks.reshape(len(blocks), -1).any(axis=1) if blocks.ndim else ...
        limit = _limit(attempt, values[rows], mask[rows])
        clipped = _clip(values, mask, limit)
        parts, remaining, _ = attempt(clipped)
        if parts is None or remaining is not None:
            nan_values = blocks & np.isnan(values)
            raise error_at(values, start, nan_values if nan_values.any() else mask, cause)
        self.clipped += int(np.count_nonzero(mask & (clipped != values)))
        return parts, np.where(np.isinf(values), clipped, values)


def _blocks(mask: np.ndarray, steps: tuple[int | None, ...]) -> np.ndarray:
    """`mask`, extended to whole blocks."""
    import numpy as np

    for axis, step in enumerate(steps):
        size = mask.shape[axis]
        if step != 1 and size:
            hits = np.logical_or.reduceat(mask, np.arange(0, size, step or size), axis=axis)
            mask = np.repeat(hits, step or size, axis=axis)[(slice(None),) * axis + (slice(0, size),)]
    return mask


def _attempt(
    encode: Encode, changed_by: Changed, values: np.ndarray
) -> tuple[EncodedParts | None, np.ndarray | None, CodecError | None]:
    """Parts (None: the encoder refused), the mask of changed values (None: no change, or unknown), and the refusal."""
    try:
        parts = encode(values)
    except CodecError as error:
        if error.code != ErrorCode.RANGE:
            raise
        return None, None, error
    return parts, changed_by(values, parts), None


def _limit(attempt: Callable[[np.ndarray], tuple[Any, ...]], values: np.ndarray, mask: np.ndarray) -> float:
    """Return the largest float32 limit that keeps everything finite; positive floats sort like their bits."""
    import numpy as np

    def stays_finite(bits: int) -> bool:
        parts, remaining, _ = attempt(_clip(values, mask, _float_of(bits)))
        return parts is not None and remaining is None

    low, high = 0, int(np.array(np.inf, np.float32).view(np.uint32))
    if not stays_finite(low):  # NaN is never clipped
        return 0.0
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if stays_finite(middle) else (low, middle)
    return _float_of(low)


def _float_of(bits: int) -> float:
    import numpy as np

    return float(np.array(bits, np.uint32).view(np.float32))


def _clip(values: np.ndarray, mask: np.ndarray, limit: float) -> np.ndarray:
    import numpy as np

    clipped: np.ndarray = np.where(mask, np.clip(values, -limit, limit), values)
    return clipped.astype(values.dtype, copy=False)
