"""What a map does to values: a constant added to a vector, and types that hold the same values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.regions import full, panels
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.model import DENSE, Encoding, Exactness, Part, TensorSpec

if TYPE_CHECKING:
    import numpy as np

MOST = 1 << 20
"""Elements of a vector that is computed in memory."""


def dense(name: str, values: np.ndarray, dtype: str = "f32") -> TensorSpec:
    """A tensor of these values, its bytes in memory."""
    stored = dtypes.cast(values, dtype)
    part = Part(dtype=dtype, shape=values.shape, data=stored.tobytes())
    return TensorSpec(
        name=name, shape=values.shape, dtype=dtype, encodings=(Encoding(codec=DENSE, parts={"data": part}),)
    )


def read_vector(file: File, spec: TensorSpec) -> np.ndarray:
    """The values of a float vector as f32; TensorError for anything else."""
    import numpy as np

    encoding = spec.encodings[0] if spec.encodings else None
    floats = spec.dtype in dtypes.FLOATS and dtypes.bits(spec.dtype) >= 8
    if encoding is None or encoding.codec != DENSE or not floats or len(spec.shape) != 1 or spec.elements > MOST:
        stored = spec.problem or str(encoding.codec if encoding else "unreadable")
        raise TensorError(
            "is to be changed in value, and is no plain vector of floats", tensor=spec.name, code="values",
            expected=f"a vector of at most {MOST} floats", found=f"{stored}, {spec.dtype} {list(spec.shape)}",
        )  # fmt: skip
    return file.bind(spec, encoding).read(full(spec.shape)).astype(np.float32)


def added(file: File, spec: TensorSpec, constant: float, narrow: str | None) -> tuple[TensorSpec, Exactness]:
    """A vector plus a constant, in f32, and how exactly the constant can be taken off again.

    With `narrow` the sum has that type, if taking the constant off again gives the same f32 values.
    """
    import numpy as np

    values = read_vector(file, spec)
    total = values + np.float32(constant)
    if narrow is not None and narrow != "f32":
        rounded = dtypes.cast(total, narrow)
        if np.array_equal(rounded.astype(np.float32) - np.float32(constant), values):
            return evolve(dense(spec.name, rounded.astype(np.float32), narrow), attrs=spec.attrs), Exactness(
                "values", "f32"
            )
    error = np.abs((total - np.float32(constant)).astype(np.float64) - values)
    largest = float(error.max(initial=0.0))
    exactness = Exactness("values", "f32") if largest == 0 else Exactness("bounded", error=largest)
    return evolve(dense(spec.name, total), attrs=spec.attrs), exactness


def fits(file: File, spec: TensorSpec, dtype: str) -> bool:
    """Whether every value of a dense tensor is one of `dtype`."""
    import numpy as np

    encoding = spec.encodings[0] if spec.encodings else None
    if encoding is None or encoding.codec != DENSE or spec.dtype not in dtypes.FLOATS:
        return False
    bound = file.bind(spec, encoding)
    for region in panels(spec.shape, bound.grain, 4):
        values = bound.read(region)
        with np.errstate(all="ignore"):
            if not np.array_equal(dtypes.cast(values, dtype).astype(values.dtype), values):
                return False
    return True
