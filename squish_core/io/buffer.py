"""Zero-copy buffers: NumPy arrays, memoryviews and DLPack capsules over the bytes of a file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING, Any

from squish_core import dtypes
from squish_core.errors import SquishError

if TYPE_CHECKING:
    import numpy as np

# DLPack type codes (dlpack.h 1.1): int 0, uint 1, float 2, bfloat 4, complex 5, bool 6, float8/6/4 from 7 on.
_CODES = {
    **{f"i{n}": (0, n) for n in (8, 16, 32, 64)}, **{f"u{n}": (1, n) for n in (8, 16, 32, 64)},
    **{f"f{n}": (2, n) for n in (16, 32, 64)}, "bf16": (4, 16), "complex64": (5, 64), "complex128": (5, 128),
    "bool": (6, 8), "f8_e4m3": (10, 8), "f8_e4m3fnuz": (11, 8), "f8_e5m2": (12, 8), "f8_e5m2fnuz": (13, 8),
    "f8_e8m0": (14, 8),
}  # fmt: skip
_FOREIGN_CODES = (4, 6, *range(7, 18))
"""Types that NumPy, or an old one, does not export: they go as integers of the same size."""
_IS_COPIED, _CPU, _UNSIGNED = 2, 1, 1
CPU_DEVICE = (_CPU, 0)
_SMALL = 1 << 16
"""Up to this size a copy is cheaper than a mapping; a process may have about 65,000 mappings."""
_NAMES = (b"dltensor", b"dltensor_versioned")


class Buffer:
    """A read-only stored array over its bytes in the file. It keeps its mapping alive.

    `writable_view` maps the same bytes again, copy-on-write, or returns None if it cannot.
    """

    def __init__(
        self,
        raw: memoryview,
        dtype: str,
        shape: tuple[int, ...],
        writable_view: Callable[[], memoryview | None] = lambda: None,
    ) -> None:
        self.raw, self.dtype, self.shape, self._writable_view = raw, dtype, shape, writable_view

    @property
    def nbytes(self) -> int:
        """Bytes of the array."""
        return self.raw.nbytes

    def numpy(self) -> np.ndarray:
        """Read-only array over the same memory, with ml_dtypes' dtypes for bf16 and f8.

        Returns
        -------
        numpy.ndarray
            Little-endian array of `shape` and `dtype`.

        Raises
        ------
        SquishError
            The dtype has fewer than 8 bits; use `raw`.

        Examples
        --------
        >>> squish.open("model.gguf")["blk.0.ffn_up.weight"].parts()["data"].numpy().shape
        (64, 34)
        """
        return as_array(self.raw, self.dtype, self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        import numpy as np

        return np.array(self.numpy(), dtype=dtype, copy=copy)

    def __buffer__(self, flags: int) -> memoryview:
        """Return the bytes, from Python 3.12 on; on 3.11 use `raw`, the same view."""
        return self.raw

    def __len__(self) -> int:
        return self.shape[0] if self.shape else 1

    def __repr__(self) -> str:
        return f"Buffer(dtype={self.dtype!r}, shape={self.shape}, nbytes={self.nbytes})"

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: bool | None = None
    ) -> Any:
        """DLPack capsule over private memory that the consumer may write. The file and this buffer never change.

        The memory is a copy-on-write mapping of the file, or a copy if the array is small or not stored
        uncompressed. `copy=False` raises BufferError for bytes that are not mapped.
        """
        _check_exportable(self.dtype, dl_device)
        small = copy is None and self.nbytes <= _SMALL
        view = None if copy or small else self._writable_view()
        if view is None and copy is False and self.nbytes:
            raise BufferError("copy=False needs bytes that are mapped from a file")
        data = self.numpy().copy() if view is None else as_array(view, self.dtype, self.shape)
        return _capsule(data, _CODES[self.dtype], max_version, _IS_COPIED if view is None else 0)


def copied_dlpack(array: np.ndarray, dtype: str, max_version: Any, dl_device: Any) -> Any:
    """DLPack capsule of an array that owns its memory, such as decoded values; the consumer may write it."""
    _check_exportable(dtype, dl_device)
    return _capsule(array, _CODES[dtype], max_version, _IS_COPIED)


def _check_exportable(dtype: str, dl_device: Any) -> None:
    if dl_device not in (None, CPU_DEVICE):
        raise BufferError("the data is in CPU memory; copy it to another device after the import")
    if dtype not in _CODES:
        raise BufferError(f"DLPack has no dtype for {dtype}")


def as_array(raw: Any, dtype: str, shape: tuple[int, ...], byteorder: str = "<") -> np.ndarray:
    """Array over bytes, without a copy if they are little-endian; unaligned bytes are allowed."""
    import numpy as np

    kind = dtypes.to_numpy(dtype)
    if not prod(shape):
        return np.empty(shape, kind)
    if dtypes.bits(dtype) < 8:
        raise SquishError("NumPy has no array of a dtype below 8 bits; read the packed bytes as u8", code="dtype")
    array = np.frombuffer(raw, kind).reshape(shape)
    return array.byteswap() if byteorder == ">" else array  # compiled loops expect native order


class _DLTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p), ("flags", ctypes.c_uint64), ("tensor", _DLTensor),
    )  # fmt: skip


_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)


def _capsule(data: np.ndarray, code: tuple[int, int], max_version: Any, flags: int) -> Any:
    """NumPy's capsule with the dtype that NumPy lacks. Its deleter is compiled: consumers call it with exceptions in
    flight, when Python code must not run."""
    carrier = data.view(f"u{data.itemsize}") if code[0] in _FOREIGN_CODES else data
    try:
        capsule = carrier.__dlpack__(max_version=max_version)
    except TypeError:  # NumPy before 2.1 has no versions
        capsule = carrier.__dlpack__()
    tensor, versioned = _tensor_of(capsule)
    tensor.code, tensor.bits = code
    if versioned is not None:
        versioned.flags |= flags
    return capsule


def _tensor_of(capsule: Any) -> tuple[_DLTensor, _Versioned | None]:
    """Return the description of an unconsumed capsule's array, and what a capsule with a version holds besides."""
    if _is_valid(capsule, _NAMES[1]):
        versioned = _Versioned.from_address(_pointer(capsule, _NAMES[1]))
        return versioned.tensor, versioned
    return _Managed.from_address(_pointer(capsule, _NAMES[0])).tensor, None


_DTYPES = {code: dtype for dtype, code in _CODES.items()}


def copy_of_dlpack(x: Any) -> np.ndarray:
    """Copy the array that `x` exports through DLPack, bf16 and f8 included, which NumPy itself cannot import.

    Raises BufferError for memory of another device or an unsupported dtype.
    """
    import numpy as np

    if int(x.__dlpack_device__()[0]) != _CPU:
        raise BufferError("the array is not in CPU memory; copy it to the CPU first")
    capsule = x.__dlpack__()
    tensor, _ = _tensor_of(capsule)
    code, bits, lanes = tensor.code, tensor.bits, tensor.lanes
    dtype = _DTYPES.get((code, bits))
    if dtype is None or lanes != 1:
        raise BufferError(f"unsupported DLPack dtype: code {code}, {bits} bits, {lanes} lanes")
    if code in _FOREIGN_CODES:
        tensor.code = _UNSIGNED
    return np.from_dlpack(_Exported(capsule)).view(dtypes.to_numpy(dtype)).copy()


class _Exported:
    """A capsule of another library, as NumPy takes it."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return CPU_DEVICE

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule
