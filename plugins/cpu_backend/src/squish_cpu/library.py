"""The compiled library: loading it, choosing its instruction set and its threads."""

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
ALL_INSTRUCTIONS = ("avx512", "avx2", "portable")
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


class Tally(ctypes.Structure):
    """`struct Tally` of native/weights.h."""

    _fields_ = (
        ("powers", c_int64 * 512), ("zeros", c_int64), ("minus_zeros", c_int64), ("nan", c_int64),
        ("least", c_float), ("greatest", c_float),
    )  # fmt: skip


class Library(NamedTuple):
    """The functions of the library, and the instruction sets that run here, best first."""

    decode: Function
    multiply: Function
    multiply_as: Function
    repack: Function
    encode: Function
    encode_affine: Function
    encode_triple: Function
    compare: Function
    tally: Function
    fill: Function
    read: Function
    instructions: tuple[str, ...]
    chosen: str


@cache
def library() -> Library:
    """The library with its instruction set chosen; SquishError with the reason when it cannot be used."""
    try:
        return _opened()
    except AttributeError as error:  # it has no function of this name
        raise _stale(str(error)) from None


def _stale(found: str | None = None) -> SquishError:
    return SquishError(
        "the compiled kernels are of another version", found=found, code="library", hint="Reinstall squish-cpu."
    )


def _opened() -> Library:
    name = f"libsquish_cpu.{'dylib' if sys.platform == 'darwin' else 'so'}"
    path = os.environ.get(LIBRARY) or str(resources.files("squish_cpu") / name)  # another build: the tests' sanitizers
    try:
        loaded = ctypes.CDLL(path)
    except OSError as error:
        raise SquishError(
            "the compiled kernels cannot be loaded", found=str(error), code="library",
            hint="Reinstall squish-cpu with a C++ compiler at hand.",
        ) from None  # fmt: skip
    loaded.squish_weights_size.restype = c_int64
    if loaded.squish_weights_size() != ctypes.sizeof(Weights):
        raise _stale()
    runs = _declared(loaded.squish_instructions, c_int, result=c_char_p)
    found = tuple(each.decode() for each in map(runs, range(len(ALL_INSTRUCTIONS))) if each)
    wanted = os.environ.get(INSTRUCTIONS) or found[0]
    if not _declared(loaded.squish_choose, c_char_p, result=c_int)(wanted.encode()):
        raise SquishError(
            f"{INSTRUCTIONS} names instructions that do not run here", expected=", ".join(found), found=wanted,
            code="instructions",
        )  # fmt: skip
    weights = ctypes.POINTER(Weights)
    rows = (weights, c_void_p, c_int64, c_int64, c_int64, c_int64, c_void_p, c_int64, c_int32, c_int32)
    products = (weights, c_int64, c_int64, c_void_p, c_int64, c_int64, c_void_p, c_int64, c_int32)
    prepared = (weights, c_int32, c_int64, c_int64, c_void_p, c_int64, c_void_p, c_void_p, c_int64, c_int32)
    panels = (weights, c_void_p, c_void_p, c_void_p, c_int32)
    blocks = (c_int32, c_void_p, c_void_p, c_int64, c_void_p, c_int64, c_int64, c_int64, c_int32)
    triple = (c_void_p, c_int64, c_int64, c_int32, c_void_p, c_void_p, c_void_p)
    groups = (ctypes.POINTER(Affine), c_void_p, c_int64, c_void_p, c_void_p, c_void_p, c_int32)
    return Library(
        _declared(loaded.squish_decode, *rows),
        _declared(loaded.squish_multiply, *products),
        _declared(loaded.squish_multiply_as, *prepared, result=c_int),
        _declared(loaded.squish_repack, *panels, result=c_int),
        _declared(loaded.squish_encode, *blocks, result=c_int),
        _declared(loaded.squish_encode_affine, *groups, result=c_int),
        _declared(loaded.squish_encode_triple, *triple, result=c_int64),
        _declared(loaded.squish_compare, weights, c_void_p, c_int32, c_int32, c_void_p, c_int32),
        _declared(loaded.squish_tally, weights, ctypes.POINTER(Tally), c_int32),
        _declared(loaded.squish_fill, c_void_p, c_int64),
        _declared(loaded.squish_read, c_void_p, c_int64, result=c_float),
        found,
        wanted,
    )


def threads(wanted: Any = None) -> int:
    """Threads of one call: as asked for, or `SQUISH_CPU_THREADS`, or as many as Squish uses elsewhere."""
    given = os.environ.get(THREADS) if wanted is None else str(wanted)
    if not given:
        return workers()
    if not (given.isascii() and given.isdigit() and 0 < int(given) <= MOST_THREADS):
        raise SquishError(
            f"{THREADS if wanted is None else 'threads'} is no number of threads", expected=f"1..{MOST_THREADS}",
            found=given, code="threads",
        )  # fmt: skip
    return int(given)


def _declared(function: Any, *arguments: type, result: type | None = None) -> Function:
    function.argtypes, function.restype = arguments, result
    made: Function = function
    return made
