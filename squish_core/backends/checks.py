"""Checks of the arguments and results of operations, shared by all backends."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.codecs.base import Region
from squish_core.errors import SquishError, UsageError
from squish_core.io.buffer import copy_of_dlpack
from squish_core.model import TensorSpec

if TYPE_CHECKING:
    import numpy as np


def _array_of(x: Any, code: str, spec: TensorSpec) -> np.ndarray:
    """Convert a list, array or tensor to a NumPy array, through DLPack if NumPy lacks its dtype (bf16, f8)."""
    import numpy as np

    try:
        return np.asarray(x)
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        # Only the first two mean that NumPy lacks the dtype. A tensor with a gradient or a negated view raises
        # RuntimeError, and its DLPack export may differ from its values.
        if isinstance(error, (TypeError, ValueError)) and hasattr(x, "__dlpack__"):
            with suppress(Exception):  # the other library's code: report its first error
                return copy_of_dlpack(x)
        gradient = getattr(x, "requires_grad", False) is True
        raise SquishError(
            "cannot be converted to an array",
            tensor=spec.name,
            expected=f"{_EXPECTED[code]} in CPU memory",
            found=f"{type(x).__name__}: {str(error).rstrip('.')}",
            code=code,
            hint="Products have no gradients: pass x.detach()." if gradient else None,
        ) from None


_EXPECTED = {"operand": "real numbers", "ids": "integers"}


def require_rank(spec: TensorSpec, rank: int) -> tuple[int, ...]:
    """Return the shape of a weight of the rank that an operation needs.

    Parameters
    ----------
    spec
        The weight.
    rank
        Number of its axes.

    Returns
    -------
    tuple of int
        Its shape.

    Raises
    ------
    UsageError
        It has another rank (code `rank`).

    Examples
    --------
    >>> from squish_core.model import TensorSpec
    >>> require_rank(TensorSpec(name="w", shape=(3, 2), dtype="f32"), 2)
    (3, 2)
    """
    if len(spec.shape) != rank:
        expected = f"rank {rank}"
        found = f"shape {spec.shape}"
        raise UsageError("wrong rank for this operation", tensor=spec.name, expected=expected, found=found, code="rank")
    return spec.shape


def check_input(x: Any, columns: int, spec: TensorSpec) -> np.ndarray:
    """Convert an operand to f32 and check its last dimension.

    Parameters
    ----------
    x
        Any array or nested list of real numbers, [..., columns].
    columns
        Number of columns of the weight.
    spec
        The weight, for errors.

    Returns
    -------
    numpy.ndarray
        The values in f32; `x` itself if it is such an array.

    Raises
    ------
    SquishError
        `x` is not an array of real numbers (code `operand`) or its last dimension differs (code `shape`).

    Examples
    --------
    >>> from squish_core.model import TensorSpec
    >>> check_input([[1, 2]], 2, TensorSpec(name="w", shape=(3, 2), dtype="f32"))
    array([[1., 2.]], dtype=float32)
    """
    import numpy as np

    array = _array_of(x, "operand", spec)
    if array.dtype.kind != "c":
        with suppress(TypeError, ValueError):
            array = array.astype(np.float32, copy=False)
    if array.dtype != np.float32:
        found = f"dtype {array.dtype}"
        raise SquishError("the operand must be an array of real numbers", tensor=spec.name, found=found, code="operand")
    if array.ndim == 0 or array.shape[-1] != columns:
        raise UsageError(
            "the operand's last dimension does not fit the weight",
            tensor=spec.name,
            expected=columns,
            found=f"shape {array.shape}",
            code="shape",
        )
    return array


def check_ids(ids: Any, rows: int, spec: TensorSpec) -> np.ndarray:
    """Convert ids to integers and check that each is a valid row.

    Parameters
    ----------
    ids
        Any array or nested list of integers.
    rows
        Number of rows of the weight.
    spec
        The weight, for errors.

    Returns
    -------
    numpy.ndarray
        Integers, in the shape of `ids`.

    Raises
    ------
    UsageError
        An id is not an integer or out of range (code `ids`).

    Examples
    --------
    >>> from squish_core.model import TensorSpec
    >>> check_ids([2, 0], 3, TensorSpec(name="w", shape=(3, 8), dtype="f32"))
    array([2, 0])
    """
    import numpy as np

    array = _array_of(ids, "ids", spec)
    if not array.size:
        return array.astype(np.intp)
    if array.dtype.kind not in "iu":
        raise UsageError("ids must be integers", tensor=spec.name, found=str(array.dtype), code="ids")
    if not (int(array.min()) >= 0 and int(array.max()) < rows):
        found = f"{array.min()}..{array.max()}"
        raise UsageError("an id is out of range", tensor=spec.name, expected=f"0..{rows - 1}", found=found, code="ids")
    return array


def check_out(out: Any, dtype: str, shape: tuple[int, ...]) -> None:
    """UsageError unless `out` is a writable array of this dtype and shape."""
    import numpy as np

    expected, actual = f"writable {dtypes.to_numpy(dtype)} {shape}", type(out).__name__
    if isinstance(out, np.ndarray):
        if out.shape == shape and out.dtype == dtypes.to_numpy(dtype) and out.flags.writeable:
            return
        actual = f"{'' if out.flags.writeable else 'read-only '}{out.dtype} {out.shape}"
    raise UsageError("`out` does not fit", expected=expected, found=actual, code="out")


def cast_output(
    values: np.ndarray, region: Region | None = None, dtype: str | None = None, out: np.ndarray | None = None
) -> np.ndarray:
    """Apply `region`, `dtype` and `out` of `Backend.dense` to decoded values.

    Parameters
    ----------
    values
        The whole tensor.
    region
        Slices without steps, one for each axis; None for all values.
    dtype
        Short id of the dtype to cast to; None for that of `values`.
    out
        Writable array of the resulting shape and dtype, filled and returned.

    Returns
    -------
    numpy.ndarray
        `out`, or a view or copy of `values`.

    Raises
    ------
    UsageError
        `out` has another shape or dtype, or is read-only.

    Examples
    --------
    >>> cast_output(np.ones((2, 3), np.float32), (slice(0, 1), slice(1, 3)), "f16")
    array([[1., 1.]], dtype=float16)
    """
    import numpy as np

    values = values if region is None else values[region]
    if dtype is not None:
        with np.errstate(over="ignore", invalid="ignore"):
            values = values.astype(dtypes.to_numpy(dtype), copy=False)
    if out is None:
        return values
    check_out(out, dtypes.from_numpy(values.dtype), values.shape)
    out[...] = values
    return out


def check_expert_args(x: Any, ids: Any, spec: TensorSpec) -> tuple[np.ndarray, np.ndarray]:
    """Check the operands of `experts` for a weight [experts, out, in].

    Parameters
    ----------
    x
        Rows [n, in].
    ids
        The expert of each row, [n].
    spec
        The weight.

    Returns
    -------
    tuple of numpy.ndarray
        `x` in f32 and `ids` as integers.

    Raises
    ------
    UsageError
        A shape, dtype or id does not fit the weight (code `rank`, `shape`, `operand` or `ids`).

    Examples
    --------
    >>> from squish_core.model import TensorSpec
    >>> x, ids = check_expert_args(np.ones((2, 3)), [0, 1], TensorSpec(name="w", shape=(2, 4, 3), dtype="f32"))
    >>> x.dtype, ids.tolist()
    (dtype('float32'), [0, 1])
    """
    count, _, columns = require_rank(spec, 3)
    x, ids = check_input(x, columns, spec), check_ids(ids, count, spec)
    if x.ndim != 2 or ids.shape != x.shape[:1]:
        expected = f"shapes [n, {columns}] and [n]"
        found = f"{list(x.shape)} and {list(ids.shape)}"
        raise UsageError(
            "experts needs one row of x per id", tensor=spec.name, expected=expected, found=found, code="shape"
        )
    return x, ids
