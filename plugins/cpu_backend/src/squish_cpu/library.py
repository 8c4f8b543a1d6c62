"""The compiled library: loading, instruction set and threads."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from ctypes import c_char_p, c_float, c_int, c_int32, c_int64, c_uint8, c_void_p
from functools import cache
from importlib import resources
from typing import Any, NamedTuple

from squish_core.api import SquishError, workers

INSTRUCTIONS, THREADS, LIBRARY = "SQUISH_CPU_INSTRUCTIONS", "SQUISH_CPU_THREADS", "SQUISH_CPU_LIBRARY"
MOST_THREADS = 1024
ALL_INSTRUCTIONS = ("avx512", "avx2", "i8mm", "dotprod", "portable")
Function = Callable[..., Any]


class Weights(ctypes.Structure):
    """`struct Weights` of native/weights.h, field by field."""

    _fields_ = (
        ("rows", c_int64), ("columns", c_int64), ("data", c_void_p), ("pitch", c_int64), ("scale", c_void_p),
        ("offset", c_void_p), ("table", c_void_p), ("listed", c_void_p), ("mask", c_void_p),
        ("tile", c_int64), ("tiles", c_int64),
        ("group_rows", c_int64), ("group_columns", c_int64), ("grid_row", c_int64), ("grid_column", c_int64),
        ("line", c_int64), ("step", c_int64), ("kind", c_int32), ("scale_type", c_int32), ("offset_type", c_int32),
        ("flip", c_int32), ("zero", c_int32), ("bias", c_int32), ("strided", c_int32), ("word", c_int32),
        ("down", c_int32), ("ordered", c_int32), ("order", c_uint8 * 64), ("size", c_int64), ("bits", c_int32),
        ("shift", c_int32), ("plane0", c_void_p), ("plane1", c_void_p), ("plane2", c_void_p), ("rest", c_void_p),
        ("starts", c_void_p), ("stored", c_int64),
    )  # fmt: skip


class Affine(ctypes.Structure):
    """`struct Affine` of native/weights.h."""

    _fields_ = (
        ("size", c_int64), ("bits", c_int32), ("low", c_int32), ("high", c_int32), ("zero", c_int32),
        ("offset", c_int32), ("edges", c_int32), ("scale_type", c_int32), ("offset_type", c_int32),
        ("search", c_int32),
    )  # fmt: skip


class Product(ctypes.Structure):
    """`struct Product` of native/weights.h."""

    _fields_ = (("weights", ctypes.POINTER(Weights)), ("prepared", c_int32), ("type", c_int32), ("threads", c_int32))


class Tally(ctypes.Structure):
    """`struct Tally` of native/weights.h."""

    _fields_ = (
        ("powers", c_int64 * 512), ("zeros", c_int64), ("minus_zeros", c_int64), ("nan", c_int64),
        ("least", c_float), ("greatest", c_float),
    )  # fmt: skip


class Library(NamedTuple):
    """The functions of the library, and the available instruction sets, best first."""

    decode: Function
    multiply: Function
    multiply_as: Function
    product: Function
    repack: Function
    encode: Function
    encode_affine: Function
    encode_triple: Function
    largest: Function
    encode_float4: Function
    compare: Function
    tally: Function
    fill: Function
    read: Function
    instructions: tuple[str, ...]
    active: str


@cache
def library() -> Library:
    """Load the library and select its instruction set; SquishError gives the reason if it cannot be used."""
    try:
        return _open()
    except AttributeError as error:  # a function is missing
        raise _stale(str(error)) from None


def _stale(detail: str | None = None) -> SquishError:
    return SquishError(
        "the compiled kernels are of another version", found=detail, code="library", hint="Reinstall squish-cpu."
    )


def _open() -> Library:
    name = f"libsquish_cpu.{ {'darwin': 'dylib', 'win32': 'dll'}.get(sys.platform, 'so') }"
    path = os.environ.get(LIBRARY) or str(resources.files("squish_cpu") / name)  # tests load a sanitizer build
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise SquishError(
            "cannot load the compiled kernels",
            found=str(error),
            code="library",
            hint="Reinstall squish-cpu; building it needs a C++ compiler.",
        ) from None
    loaded.squish_weights_size.restype = c_int64
    if loaded.squish_weights_size() != ctypes.sizeof(Weights):
        raise _stale()
    runs = _declare(loaded.squish_instructions, c_int, result=c_char_p)
    available = tuple(name.decode() for name in map(runs, range(len(ALL_INSTRUCTIONS))) if name)
    requested = os.environ.get(INSTRUCTIONS) or available[0]
    if not _declare(loaded.squish_choose, c_char_p, result=c_int)(requested.encode()):
        raise SquishError(
            f"{INSTRUCTIONS} is not supported by this processor",
            expected=", ".join(available),
            found=requested,
            code="instructions",
        )
    weights = ctypes.POINTER(Weights)
    rows = (weights, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int32, c_int32)
    products = (weights, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int32)
    prepared = (weights, c_int32, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int32)
    panels = (weights, c_void_p, c_void_p, c_void_p, c_int32)
    blocks = (c_int32, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_int32)
    triple = (c_void_p, c_int64, c_int64, c_int32, c_void_p, c_void_p, c_void_p)
    groups = (ctypes.POINTER(Affine), c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int32)
    return Library(
        _declare(loaded.squish_decode, *rows),
        _declare(loaded.squish_multiply, *products),
        _declare(loaded.squish_multiply_as, *prepared, result=c_int),
        _declare(loaded.squish_product, c_void_p, c_void_p, c_int64, c_void_p, result=c_int),
        _declare(loaded.squish_repack, *panels, result=c_int),
        _declare(loaded.squish_encode, *blocks, result=c_int),
        _declare(loaded.squish_encode_affine, *groups, result=c_int),
        _declare(loaded.squish_encode_triple, *triple, result=c_int64),
        _declare(loaded.squish_largest, c_void_p, c_int64, c_int64, c_void_p, c_int32, result=c_int),
        _declare(loaded.squish_encode_float4, c_void_p, c_void_p, c_int64, c_int64, c_int32, c_void_p, c_int32),
        _declare(loaded.squish_compare, weights, c_void_p, c_int32, c_int32, c_void_p, c_int32),
        _declare(loaded.squish_tally, weights, ctypes.POINTER(Tally), c_int32),
        _declare(loaded.squish_fill, c_void_p, c_int64),
        _declare(loaded.squish_read, c_void_p, c_int64, result=c_float),
        available,
        requested,
    )


def threads(count: Any = None) -> int:
    """Return the number of threads per call: `count`, else `SQUISH_CPU_THREADS`, else Squish's default."""
    text = os.environ.get(THREADS) if count is None else str(count)
    if not text:
        return workers()
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= MOST_THREADS):
        raise SquishError(
            f"{THREADS if count is None else 'threads'} is not a number of threads",
            expected=f"1..{MOST_THREADS}",
            found=text,
            code="threads",
        )
    return int(text)


def _declare(function: Any, *arguments: type, result: type | None = None) -> Function:
    function.argtypes, function.restype = arguments, result
    typed: Function = function
    return typed
