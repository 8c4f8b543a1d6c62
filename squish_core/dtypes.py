"""Names of dtypes, their widths, and their NumPy dtypes."""

from __future__ import annotations

from functools import cache, lru_cache
from math import prod
from typing import TYPE_CHECKING

from squish_core.errors import TensorError, UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import DTypeLike

# name -> (bits per element, NumPy or ml_dtypes name). Dtypes below 8 bits are stored packed in u8 parts, the first
# element in the lowest bits; in NumPy they are unpacked, one element per byte.
_TABLE = {
    "f64": (64, "float64"), "f32": (32, "float32"), "f16": (16, "float16"), "bf16": (16, "bfloat16"),
    "f8_e4m3": (8, "float8_e4m3fn"), "f8_e5m2": (8, "float8_e5m2"),
    "f8_e4m3fnuz": (8, "float8_e4m3fnuz"), "f8_e5m2fnuz": (8, "float8_e5m2fnuz"),
    "f8_e8m0": (8, "float8_e8m0fnu"), "f6_e2m3": (6, "float6_e2m3fn"), "f6_e3m2": (6, "float6_e3m2fn"),
    "f4_e2m1": (4, "float4_e2m1fn"),
    "i64": (64, "int64"), "i32": (32, "int32"), "i16": (16, "int16"), "i8": (8, "int8"),
    "i4": (4, "int4"), "i2": (2, "int2"),
    "u64": (64, "uint64"), "u32": (32, "uint32"), "u16": (16, "uint16"), "u8": (8, "uint8"),
    "u4": (4, "uint4"), "u2": (2, "uint2"), "u1": (1, "bool"),
    "bool": (8, "bool"), "complex64": (64, "complex64"), "complex128": (128, "complex128"),
}  # fmt: skip
_OF_NUMPY = {numpy_name: name for name, (_, numpy_name) in _TABLE.items()}  # "bool" maps to bool, not u1
NAMES = tuple(_TABLE)
FLOATS = tuple(name for name in _TABLE if name.startswith(("f", "bf")))


class DType:
    """Element type of a tensor; equals, hashes and prints as its short id (`"f32"`).

    It is not a `str`, which NumPy would parse: for NumPy "i8" is an 8-byte integer.

    Examples
    --------
    >>> dtype = DType("bf16")
    >>> dtype == "bf16", dtype.bits, dtype.itemsize, str(dtype)
    (True, 16, 2, 'bf16')
    >>> import numpy
    >>> numpy.empty(2, DType("i8")).dtype
    dtype('int8')
    """

    __slots__ = ("id",)

    def __init__(self, id: str) -> None:  # noqa: A002 - the attribute's name
        self.id = id

    @property
    def bits(self) -> int:
        """Bits per element."""
        return bits(self.id)

    @property
    def itemsize(self) -> int:
        """Bytes per element; TypeError for dtypes below 8 bits, which are stored packed."""
        return self._byte_aligned_bits() // 8

    @property
    def dtype(self) -> np.dtype:
        """The dtype of NumPy or ml_dtypes; TypeError for dtypes below 8 bits. NumPy uses this attribute."""
        self._byte_aligned_bits()
        return to_numpy(self.id)

    def _byte_aligned_bits(self) -> int:
        width = bits(self.id)
        if width % 8:
            raise TypeError(f"{self.id} is stored packed ({width} bits per element) and has no NumPy dtype")
        return width

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (str, DType)):
            return self.id == str(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"DType({self.id!r})"

    def __format__(self, spec: str) -> str:
        return format(self.id, spec)


def bits(dtype: str) -> int:
    """Bits per element of a dtype; TensorError if the name is unknown."""
    try:
        return _TABLE[dtype][0]
    except KeyError:
        raise TensorError(
            "unknown dtype", found=repr(dtype), code="dtype", hint="parts() returns the stored bytes."
        ) from None


def is_dtype(dtype: str) -> bool:
    """Return whether a name is a dtype."""
    return dtype in _TABLE


def named(dtype: str | DType | DTypeLike | None) -> str | None:
    """Return the name of a dtype given as a name, NumPy's full name, or a NumPy dtype or type; None for None.

    NumPy's abbreviations are not accepted: its "i8" has 8 bytes, ours 8 bits.
    """
    if dtype is None or (isinstance(dtype, str) and dtype in _TABLE):
        return dtype
    if isinstance(dtype, DType):
        return dtype.id
    import numpy as np

    try:
        return _OF_NUMPY[dtype if isinstance(dtype, str) else np.dtype(dtype).name]
    except (KeyError, TypeError):
        raise UsageError(
            "unknown dtype", expected="a name such as f16, or a NumPy dtype", found=repr(dtype), code="dtype"
        ) from None


def count(shape: tuple[int, ...]) -> int:
    """Number of elements of a shape, in Python integers (without overflow)."""
    return prod(shape)


@lru_cache(4096)
def nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    """Size of a contiguous array in bytes; dtypes below 8 bits are packed and rounded up to a byte."""
    return (prod(shape) * bits(dtype) + 7) // 8


@cache
def to_numpy(dtype: str) -> np.dtype:
    """Return the little-endian NumPy dtype of a name, from ml_dtypes if NumPy lacks it."""
    import numpy as np

    bits(dtype)
    name = _TABLE[dtype][1]
    if hasattr(np, name) or name == "bool":
        return np.dtype(name).newbyteorder("<")
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name))


@cache
def from_numpy(dtype: np.dtype) -> str:
    """Return the name of a NumPy dtype; TensorError if there is none."""
    if dtype.name in _OF_NUMPY:
        return _OF_NUMPY[dtype.name]
    raise TensorError("this NumPy dtype has no stored form", found=repr(dtype.name), code="dtype")


def cast(values: np.ndarray, dtype: str) -> np.ndarray:
    """Cast values to another dtype, through f32 if ml_dtypes has no direct cast."""
    import numpy as np

    target = to_numpy(dtype)
    if np.can_cast(values.dtype, target, "unsafe"):
        return values.astype(target)
    return values.astype(np.float32).astype(target)


@cache
def holds(target: str, source: str) -> bool:
    """Return whether one dtype represents every value of another exactly.

    Up to 16 bits every value is checked, since NumPy calls lossy casts between small floats safe.

    >>> holds("f16", "f8_e4m3"), holds("f8_e4m3", "f8_e4m3fnuz")
    (True, False)
    """
    import numpy as np

    width = bits(source)
    if width > 16 or source == "bool" or target.startswith("complex"):
        return bool(np.can_cast(to_numpy(source), to_numpy(target), "safe"))
    with np.errstate(all="ignore"):
        patterns = np.arange(1 << width, dtype=np.uint16 if width > 8 else np.uint8)
        values = patterns.view(to_numpy(source)) if width >= 8 else patterns.astype(np.int8).astype(to_numpy(source))
        before, after = values.astype(np.float32), cast(values, target).astype(np.float32)
    return bool(((before == after) | (np.isnan(before) & np.isnan(after))).all())
