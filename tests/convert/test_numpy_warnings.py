"""NaN, infinities and huge scales of a file are values like others: nothing that reads them warns."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_testing.sources import memory_file

import squish_core as squish
from squish_core import api, dtypes
from squish_core.errors import SquishError
from squish_core.plugins.registry import Registry

SHAPE = 64, 256
AFFINE = api.CodecSpec("affine", {"bits": 4, "group_size": 32, "scale_dtype": "f16", "offset": "bias"})
PARAMETERS: dict[str, tuple[dict[str, Any], ...]] = {
    "deinterleave": ({"rows": (1, 1), "axis": 0, "axes": 1, "number": 1},),
    "interleave": ({"rows": (1, 1), "axis": 0, "axes": 1},),
    "affine": (
        AFFINE.params, {"bits": 3, "axis": -2}, {"bits": 4, "group_size": 64, "axis": "flat", "offset": "bias"},
        {"bits": 8, "scale_dtype": "f8_e5m2", "offset": "zero_point", "offset_dtype": "f16"},
    ),
    "astc": ({"footprint": "4x4", "scale": 3e38, "zero": 3e38},),
    "bitmask": ({"dtype": "f16", "kept": 128}, {"dtype": "i8", "kept": 128, "scale": "f16"}),
    "boxes": (
        {"bits": 4, "grid": [8, 4], "scale_dtype": "f16", "offset_dtype": "f16"},
        {"bits": 4, "books": [2, 1], "codebook_dtype": "f16", "grid": [8, 4], "scale_dtype": "f32"},
    ),
    "dense": tuple({"dtype": name} for name in dtypes.FLOATS),
    "float8": ({}, {"block": [16, 16], "scale_dtype": "f16"}),
    "hf.column_scales": ({}, {"scale_dtype": "f16"}),
    "hf.convrot": ({"group_size": 64},),
    "hf.awq_fast": ({"group_size": 64, "padded": 1},),
    "hf.awq_gemv": ({"group_size": 64, "padded": 1},),
    "hqq": ({"bits": 4, "group_size": 64, "axis": 0}, {"bits": 8, "group_size": 64, "axis": 1}),
    "lora": ({"products": [[0.5, 4, SHAPE[0], 0, 0, "f16", True, "f32", False]]},),
    "lowrank": ({"rank": 4, "factor_dtype": "f16"},),
    "masked": ({"block_size": 16},),
    "mx": ({}, {"element": "f8_e5m2"}, {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "divide"}),
    "npydir.int3": ({"group_size": 32},),
    "npydir.sqint2": (
        {"group_size": 32, "rank": 4, "nonzero": 0, "left_start": 1, "right_start": 2},
        {"group_size": 32, "rank": 4, "nonzero": 0, "left_start": -1, "right_start": -1},
    ),
    "onnx.blocks": ({"dtype": "i8", "axis": 0, "scale_dtype": "f16", "offset_dtype": "f16"},),
    "palette": ({"bits": 4}, {"bits": 4, "table": "nf4", "group_size": 64, "scale_dtype": "f16"}),
    "panels": ({"group_size": 32, "scale_dtype": "f16"},),
    "reshaped": ({"shape": [SHAPE[0] // 2, 2 * SHAPE[1]]},),
    "scale": ({"runs": [[SHAPE[0], 0.5]]},),
    "slice": ({"start": 32, "rows": 2 * SHAPE[0], "single": False},),
    "squizd.int2": ({"group_size": 64},),
    "squizd.int4": ({"group_size": 64},),
    "tca_tbe": ({"base_exponent": 120, "n_high": SHAPE[0] * SHAPE[1]},),
    "zt.mx": ({"block_size": 32, "axis": 1, "dtype": "f8_e5m2"}, {"block_size": 32, "axis": 0, "dtype": "f4_e2m1"}),
    "zt.sparse_coo": ({"nnz": 0, "coords": "u16"},),
    "zt.sparse_csr": ({"nnz": 0, "indices": "u16", "indptr": "u16"},),
}  # fmt: skip
"""Parameters under which codecs that have no defaults store the matrix."""
PATTERNS = {
    "NaN": b"\xff", "NaN of f16": b"\x7f", "large": b"\x7b", "signaling": b"\0\0\xa0\x7f", "infinity": b"\0\0\x80\x7f",
    "infinity of f16": b"\0\x7c\0\xfc", "random": np.random.default_rng(5).bytes(1 << 16),
}  # fmt: skip


@cache
def registry() -> Registry:
    return Registry("", extra=[toys])


def cases() -> Iterator[Any]:
    """Every codec of tensors, with each set of its parameters."""
    for entry in registry().find("codec", kind="tensor"):
        for number, params in enumerate(PARAMETERS.get(entry.info.id, ({},))):
            yield pytest.param(entry.info.id, params, id=f"{entry.info.id}-{number}")


@pytest.fixture(params=PATTERNS)
def pattern(request: Any) -> bytes:
    return PATTERNS[request.param]


def file_of(reg: Registry, name: str, params: dict[str, Any], pattern: bytes) -> Any:
    """An open file whose one tensor has parts that are this pattern over and over."""
    wraps = reg.codec_type(name).wraps
    inner = api.CodecSpec("ggml.q4_0") if name == "ggml.big_endian" else AFFINE
    codec = api.CodecSpec(name, params, inner if wraps else None)
    shape = (SHAPE[0] * SHAPE[1],) if name == "dense" and dtypes.bits(params["dtype"]) < 8 else SHAPE
    spec = api.TensorSpec(name="w", shape=shape, dtype=params["dtype"] if name == "dense" else "f32")
    stored = {}
    for role, (dtype, size) in reg.codec(codec).parts(spec).items():
        raw = (pattern * (dtypes.nbytes(dtype, size) // len(pattern) + 1))[: dtypes.nbytes(dtype, size)]
        stored[role] = np.frombuffer(raw, dtypes.to_numpy(dtype)).reshape(size)
    return memory_file(reg, {"w": (spec, codec, stored)})[0]


def quiet(call: Any, *arguments: Any, **options: Any) -> Any:
    """Call it: that the bytes make no tensor is an answer, an exception of NumPy's (a warning here) is none."""
    refusal = None
    try:
        return call(*arguments, **options)
    except SquishError as error:
        refusal = error
    assert refusal.code != "plugin-bug", refusal
    return None


@pytest.mark.parametrize(("name", "params"), list(cases()))
def test_reading_does_not_warn(name: str, params: dict[str, Any], pattern: bytes) -> None:
    file = file_of(registry(), name, params, pattern)
    tensor, ones = file["w"], np.ones(file["w"].shape, np.float64)
    other = squish.open(toys.box({"w": ones}), registry=registry())
    quiet(tensor.numpy)
    quiet(tensor.numpy, dtype="f16")
    quiet(tensor.numpy, dtype="f64")
    quiet(tensor.__getitem__, slice(3))
    quiet(tensor.statistics)
    quiet(squish.diff, file, other)
    quiet(squish.verify, file, deep=True)


@pytest.mark.parametrize(("name", "params"), list(cases()))
def test_products_do_not_warn(name: str, params: dict[str, Any], pattern: bytes) -> None:
    tensor = file_of(registry(), name, params, pattern)["w"]
    if tensor.ndim != 2:
        return
    x = np.float32([[1e30] * SHAPE[1], [0] * SHAPE[1]])
    for backend in ("numpy", None):
        weight = quiet(tensor.load, backend)
        if weight is not None:
            quiet(weight.linear, x)
            quiet(weight.linear, x[0])
            quiet(weight.linear, x.astype("f8") * 1e30)
            quiet(weight.embed, np.array([3, 0]))
            quiet(weight.dense)
            quiet(weight.dense, dtype="f16")


@pytest.mark.parametrize(("name", "params"), list(cases()))
@pytest.mark.parametrize("encode", [None, "f16", "int4"])
def test_converting_does_not_warn(
    name: str, params: dict[str, Any], encode: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def accepts(self: Any, spec: api.TensorSpec, encoding: api.Encoding, options: api.Options) -> Any:
        parts = {role: api.Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
        return api.Encoding(codec=encoding.codec, parts=parts)

    monkeypatch.setattr(toys.Box, "accepts", accepts)
    for pattern in (PATTERNS["NaN"], PATTERNS["large"], PATTERNS["random"]):
        file = file_of(registry(), name, params, pattern)
        for overflow in ("refuse", "saturate") if encode else ("",):
            rule = {"w": f"{encode}:overflow={overflow}"} if encode else None
            quiet(squish.convert, file, tmp_path / "o.box", "toy.box", rule)


@pytest.mark.parametrize("to", ["gguf", "mlx", "ztensor", "safetensors", "npydir", "squizd", "uqff", "mlpackage"])
def test_repacking_in_threads_does_not_warn(to: str, pattern: bytes, tmp_path: Path) -> None:
    reg = registry()
    params = {"bits": 4, "group_size": 32, "scale_dtype": "f16", "offset": "bias", "word": "u32"}
    spec = api.TensorSpec(name="l.weight", shape=(4096, 320), dtype="f32")
    raw = {}
    for role, (dtype, size) in reg.codec_type("affine").from_params(params).parts(spec).items():
        raw[role] = np.resize(np.frombuffer(pattern * 4, np.uint8), dtypes.nbytes(dtype, size))
        raw[role] = raw[role].view(dtypes.to_numpy(dtype)).reshape(size)
    file, _ = memory_file(reg, {"l.weight": (spec, api.CodecSpec("affine", params), raw)})
    quiet(squish.convert, file, tmp_path / "out", to)
