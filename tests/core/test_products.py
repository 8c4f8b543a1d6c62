"""Products of every backend that runs here equal dense products of the values that NumPy decodes, in float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from random_layouts import Layout, layouts
from random_parts import random_tensor

from squish_core.api import CodecSpec, SquishError
from squish_core.backends.weight import Weight
from squish_core.codes import ErrorCode
from squish_core.tensor import Tensor

SLOW = [HealthCheck.too_slow, HealthCheck.filter_too_much]
N_VECTORS = (1, 2, 5, 9)
"""One vector, and counts that products of several take in blocks of different sizes."""


def affine(bits: int, **params: Any) -> CodecSpec:
    """Affine codes in flat order."""
    return CodecSpec("affine", {"bits": bits, "axis": "flat", **params})


SHORT_LAST_GROUPS = (
    *(Layout(affine(bits, group_size=64), (1, 32)) for bits in (2, 3, 4, 5, 6, 8)),
    *(Layout(affine(bits, group_size=64, offset="bias"), (1, 2080)) for bits in (2, 3, 4, 5, 6, 8)),
    Layout(affine(4, group_size=64), (1, 1, 96)),
    Layout(CodecSpec("squizd.int4", {"group_size": 64}), (1, 2080)),
    Layout(CodecSpec("squizd.int2", {"group_size": 64}), (1, 2080)),
    Layout(CodecSpec("palette", {"bits": 4, "table": "nf4", "scale_dtype": "f32", "group_size": 64, "axis": "flat"}),
           (1, 96)),
    Layout(CodecSpec("float8", {"block": [16, 64], "scale_dtype": "bf16"}), (17, 96)),
)  # fmt: skip


def backends() -> list[str]:
    """Backends, with options; those of the compiled one once for each instruction set."""
    compiled = ("cpu", "cpu:activations=int8", "cpu:repack=rows", "cpu:repack=rows,activations=int8",
                "cpu:repack=rows,activations=bf16")  # fmt: skip
    ids = ["numpy"]
    if find_spec("squish_cpu"):
        from squish_cpu import library

        ids += [f"{options} {name}" for options in compiled for name in library.library().instructions]
    return ids + ["metal"] * bool(find_spec("mlx"))


@contextmanager
def running(backend: str) -> Iterator[str]:
    """The id and options of a backend, with its instruction set chosen; MLX runs on the CPU where it has no GPU."""
    backend, _, instructions = backend.partition(" ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SQUISH_METAL", "cpu")
        if not instructions:
            yield backend
            return
        from squish_cpu import library

        patch.setenv(library.INSTRUCTIONS, instructions)
        library.library.cache_clear()
        try:
            yield backend
        finally:
            patch.undo()
            library.library.cache_clear()
            library.library()


def loaded(tensor: Tensor, backend: str) -> Weight | None:
    """The tensor on a backend, or None if the backend refuses its layout or its data."""
    try:
        return tensor.load(backend)
    except SquishError as error:
        if error.code not in (ErrorCode.NO_CHAIN, ErrorCode.UNCOVERED):
            raise
        return None


def activations(backend: str, n_vectors: int, columns: int, rng: np.random.Generator) -> np.ndarray:
    """Random activations; where a backend rounds them, integers that 8 bits with a scale for each 32 hold exactly."""
    if "activations=" not in backend:
        return rng.standard_normal((n_vectors, columns), np.float32)
    x = rng.integers(-127, 128, (n_vectors, columns)).astype(np.float32)
    x[:, ::32] = 127
    return x


def check_products(backend: str, layout: Layout, seed: int) -> bool:
    """Compare products with those of the decoded values in float64; False where the backend refuses the layout."""
    tensor = random_tensor(layout.codec, layout.shape, seed, layout.dtype, finite=True)
    weight = loaded(tensor, backend)
    if weight is None:
        return False
    rng = np.random.default_rng(seed)
    values = tensor.numpy().astype(np.float64)
    columns = values.shape[-1]
    finite = np.isfinite(values).all(axis=-1)
    values = np.where(finite[..., None], values, 0)
    largest = np.abs(values).max(axis=-1)
    for n_vectors in N_VECTORS:
        x = activations(backend, n_vectors, columns, rng)
        ids = rng.integers(0, len(values), n_vectors)
        experts = values.ndim == 3
        actual = weight.experts(x, ids) if experts else weight.linear(x)
        rows, limits, checked = (each[ids] if experts else each[None] for each in (values, largest, finite))
        expected = (rows @ x.astype(np.float64)[..., None])[..., 0]
        # Codes, scales and offsets are summed apart, so rounding is relative to the largest value of a row.
        tolerance = 2e-5 * limits * np.abs(x).sum(axis=-1, dtype=np.float64, keepdims=True)
        error = np.where(checked, np.abs(actual - expected), 0)
        assert (error <= tolerance).all(), (n_vectors, weight.chain.chosen.storage, actual, expected)
    return True


@pytest.mark.parametrize("backend", backends())
@settings(max_examples=100, deadline=None, suppress_health_check=SLOW)
@given(layout=layouts(), seed=st.integers(0, 1 << 16))
def test_products_are_those_of_the_decoded_values(backend: str, layout: Layout, seed: int) -> None:
    with running(backend) as options:
        check_products(options, layout, seed)


@pytest.mark.fuzz
@pytest.mark.parametrize("backend", backends())
@settings(max_examples=1000, deadline=None, suppress_health_check=SLOW)
@given(layout=layouts(), seed=st.integers(0, 1 << 32))
def test_products_of_many_layouts_are_those_of_the_decoded_values(backend: str, layout: Layout, seed: int) -> None:
    with running(backend) as options:
        check_products(options, layout, seed)


@pytest.mark.parametrize("backend", backends())
@pytest.mark.parametrize("layout", SHORT_LAST_GROUPS, ids=lambda layout: f"{layout.codec}-{layout.shape}")
def test_short_last_groups_are_multiplied_to_their_end(backend: str, layout: Layout) -> None:
    with running(backend) as options:
        accepted = check_products(options, layout, 0)
        assert accepted or ":" in options, "options may ask for loops that a layout does not have"
