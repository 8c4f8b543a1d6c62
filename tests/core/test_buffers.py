"""Zero-copy buffers: NumPy, memoryview, and DLPack down to the fields of the capsule."""

from __future__ import annotations

import ctypes
import gc
import weakref
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error

from squish_core import dtypes
from squish_core.errors import SquishError
from squish_core.io import buffer as buffer_module
from squish_core.io.buffer import Buffer

RAW = np.arange(6, dtype="<f4")


def buffer(dtype: str = "f32", shape: tuple[int, ...] = (2, 3), raw: Any = None) -> Buffer:
    return Buffer(memoryview(RAW.tobytes() if raw is None else raw), dtype, shape)


class Unversioned:
    """A producer that knows only the first DLPack protocol."""

    def __init__(self, inner: Buffer) -> None:
        self.inner = inner

    def __dlpack__(self, **options: Any) -> Any:
        return self.inner.__dlpack__()

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.inner.__dlpack_device__()


def pointer(capsule: Any, name: bytes) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    return int(get(capsule, name))


def test_numpy_shares_the_memory_and_is_read_only() -> None:
    source = buffer()
    array = source.numpy()
    assert array.__array_interface__["data"][0] == np.frombuffer(source.raw, "u1").__array_interface__["data"][0]
    np.testing.assert_array_equal(array, RAW.reshape(2, 3))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_unaligned_bytes_are_legal() -> None:
    raw = memoryview(b"\0" + RAW.tobytes())[1:]
    np.testing.assert_array_equal(buffer(raw=raw).numpy(), RAW.reshape(2, 3))


def test_arrays_outlive_the_buffer() -> None:
    array = buffer().numpy()
    gc.collect()
    np.testing.assert_array_equal(array, RAW.reshape(2, 3))


@pytest.mark.parametrize("wrap", [Buffer, Unversioned], ids=["1.0", "0"])
def test_numpy_takes_the_capsule(wrap: Any) -> None:
    source = buffer()
    array = np.from_dlpack(source if wrap is Buffer else Unversioned(source))
    np.testing.assert_array_equal(array, RAW.reshape(2, 3))


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "i64", "i32", "i16", "i8", "u64", "u32", "u16", "u8", "bool"])
def test_numpy_agrees_on_each_dtype(dtype: str) -> None:
    source = buffer(dtype, (2,), bytes(2 * dtypes.bits(dtype) // 8))
    assert np.from_dlpack(source).dtype == source.numpy().dtype


def test_scalars_and_empty_arrays_travel() -> None:
    assert np.from_dlpack(buffer("f32", (), RAW[3:4].tobytes())) == 3
    assert np.from_dlpack(buffer("f32", (0, 5), b"")).shape == (0, 5)


@pytest.mark.parametrize(
    ("dtype", "code", "bits"), [("bf16", 4, 16), ("f8_e4m3", 10, 8), ("f8_e5m2", 12, 8), ("f8_e8m0", 14, 8)]
)
def test_the_capsule_states_types_that_numpy_lacks(dtype: str, code: int, bits: int) -> None:
    shape = (2, 24 // 2 // (bits // 8))
    source = buffer(dtype, shape)
    capsule = source.__dlpack__(max_version=(1, 1))
    managed = buffer_module._Versioned.from_address(pointer(capsule, b"dltensor_versioned"))
    tensor = managed.tensor
    assert (managed.major, managed.minor, managed.flags) == (1, 0, buffer_module._IS_COPIED)
    assert (tensor.code, tensor.bits, tensor.lanes, tensor.ndim, tensor.byte_offset) == (code, bits, 1, 2, 0)
    assert tuple(tensor.shape[:2]) == shape
    assert ctypes.string_at(tensor.data, source.nbytes) == bytes(source.raw)


class Memory(bytearray):
    """Writable memory that can be referred to weakly."""


class Exporter:
    """A buffer of 128 KiB whose exports are memory of its own; `alive` counts those that are not freed."""

    def __init__(self, dtype: str = "f32") -> None:
        self.references: list[weakref.ref[Memory]] = []
        values = np.ones((2, (64 << 10) // np.dtype(dtypes.to_numpy(dtype)).itemsize), dtypes.to_numpy(dtype))
        self.buffer = Buffer(memoryview(values.tobytes()), dtype, values.shape, self._view)

    def _view(self) -> memoryview:
        memory = Memory(self.buffer.raw)
        self.references.append(weakref.ref(memory))
        return memoryview(memory)

    @property
    def alive(self) -> int:
        gc.collect(1)  # the objects are young; all objects of a long run take seconds
        return sum(reference() is not None for reference in self.references)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "bool"])
@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_capsule_that_nobody_takes_releases_its_memory(version: Any, dtype: str) -> None:
    exporter = Exporter(dtype)
    capsule = exporter.buffer.__dlpack__(max_version=version)
    assert exporter.alive == 1
    del capsule
    assert exporter.alive == 0


def test_a_consumer_that_refuses_gives_its_own_error_and_the_memory_back() -> None:
    exporter = Exporter("bf16")
    with pytest.raises(RuntimeError, match="dtype"):
        np.from_dlpack(exporter.buffer)
    assert exporter.alive == 0
    assert len(exporter.references) == 1


@pytest.mark.parametrize("wrap", [lambda buffer: buffer, Unversioned], ids=["1.0", "0"])
def test_a_consumer_releases_the_memory_when_it_is_done(wrap: Any) -> None:
    exporter = Exporter()
    array = np.from_dlpack(wrap(exporter.buffer))
    assert exporter.alive == 1
    np.testing.assert_array_equal(array, exporter.buffer.numpy())
    del array
    assert exporter.alive == 0


def test_memory_is_released_while_an_exception_is_in_flight() -> None:
    exporter = Exporter()
    with pytest.raises(ZeroDivisionError):
        [np.from_dlpack(exporter.buffer), 1 / 0]
    assert exporter.alive == 0


def test_other_devices_and_packed_types_are_refused() -> None:
    with pytest.raises(BufferError, match="CPU"):
        buffer().__dlpack__(dl_device=(2, 0))
    with pytest.raises(BufferError, match="i4"):
        buffer("i4", (48,)).__dlpack__()


@pytest.mark.parametrize("dtype", ["i4", "u4", "i2", "u2", "u1", "f4_e2m1", "f6_e2m3"])
def test_a_packed_type_has_no_array(dtype: str) -> None:
    with expect_error(SquishError, code="dtype"):
        buffer(dtype, (4,), bytes(3)).numpy()
