"""Values in a mapped model: constants added to vectors, and casts without loss."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.regions import full, panels
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.guard import quietly
from squish_core.model import DENSE, Encoding, Exactness, Part, TensorSpec

from .coverage import is_dense

if TYPE_CHECKING:
    import numpy as np

MAX_SIZE = 1 << 20
"""Largest vector that is computed in memory."""


def dense(name: str, values: np.ndarray, dtype: str = "f32") -> TensorSpec:
    """A dense tensor with its bytes in memory."""
    data = quietly(dtypes.cast, values, dtype).tobytes()
    part = Part(dtype=dtype, shape=values.shape, data=data)
    return TensorSpec(
        name=name, shape=values.shape, dtype=dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
    )


def read_vector(file: File, spec: TensorSpec) -> np.ndarray:
    """Read a dense float vector as f32; TensorError for any other tensor."""
    import numpy as np

    encoding = spec.encodings[0] if spec.encodings else None
    floats = spec.dtype in dtypes.FLOATS and dtypes.bits(spec.dtype) >= 8
    if encoding is None or encoding.codec != DENSE or not floats or len(spec.shape) != 1 or spec.elements > MAX_SIZE:
        codec = spec.problem or str(encoding.codec if encoding else "unreadable")
        raise TensorError(
            "must be a dense vector of floats, since its values change", tensor=spec.name, code="values",
            expected=f"a vector of at most {MAX_SIZE} floats", found=f"{codec}, {spec.dtype} {list(spec.shape)}",
        )  # fmt: skip
    with np.errstate(all="ignore"):
        return file.bind(spec, encoding).read(full(spec.shape)).astype(np.float32)


def add_constant(file: File, spec: TensorSpec, constant: float, narrow: str | None) -> tuple[TensorSpec, Exactness]:
    """Add a constant to a vector in f32; returns the sum, and how exactly subtraction restores the values.

    The sum has the dtype `narrow` if subtraction then still restores the same f32 values.
    """
    import numpy as np

    values = read_vector(file, spec)
    with np.errstate(all="ignore"):  # NaN and infinities are values like others
        total = values + np.float32(constant)
        if narrow is not None and narrow != "f32":
            rounded = dtypes.cast(total, narrow).astype(np.float32)
            if np.array_equal(rounded - np.float32(constant), values, equal_nan=True):
                return evolve(dense(spec.name, rounded, narrow), attrs=spec.attrs), Exactness("values", "f32")
        restored = total - np.float32(constant)
        error = np.abs(restored.astype(np.float64) - values)
        error[(restored == values) | (np.isnan(restored) & np.isnan(values))] = 0
    largest = float(error.max(initial=0.0))
    exactness = Exactness("values", "f32") if largest == 0 else Exactness("bounded", error=largest)
    return evolve(dense(spec.name, total), attrs=spec.attrs), exactness


def fits(file: File, spec: TensorSpec, dtype: str) -> bool:
    """Whether `dtype` represents every value of a dense tensor exactly."""
    import numpy as np

    if not is_dense(spec) or spec.dtype not in dtypes.FLOATS:
        return False
    bound = file.bind(spec, spec.encodings[0])
    for region in panels(spec.shape, bound.grain, 4):
        values = bound.read(region)
        with np.errstate(all="ignore"):
            if not np.array_equal(dtypes.cast(values, dtype).astype(values.dtype), values, equal_nan=True):
                return False
    return True
