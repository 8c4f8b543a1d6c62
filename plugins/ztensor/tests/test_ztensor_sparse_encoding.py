"""Dense values stored sparse: `--encode sparse_csr`, `--encode sparse_coo`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from squish_ztensor.codecs.sparse import to_scipy

import squish_core as squish
from squish_core.api import CodecError, ErrorCode, Exactness, UsageError

SPECIAL = np.array([[0, -0.0, 1e-3], [np.nan, 0, -2], [0, 0, 0], [np.inf, 0, 3]], np.float32)
WIRES = ("ztensor", "ztensor:flavor=compatible", "ztensor:wire=2", "ztensor:encoding=zstd")


def encoded(tmp_path: Path, values: Any, encode: str, to: str = "ztensor") -> squish.File:
    squish.save(tmp_path / "dense.zt", {"w": values})
    squish.convert(tmp_path / "dense.zt", tmp_path / "sparse.zt", to, encode=encode)
    return squish.open(tmp_path / "sparse.zt")


@pytest.mark.parametrize("to", WIRES)
@pytest.mark.parametrize("encode", ["sparse_csr", "sparse_coo"])
def test_every_bit_of_the_values_is_kept_without_a_threshold(tmp_path: Path, encode: str, to: str) -> None:
    with encoded(tmp_path, SPECIAL, encode, to) as file:
        assert file["w"].codec == f"zt.{encode}"
        assert_array_equal(file["w"].numpy().view("u4"), SPECIAL.view("u4"))
        assert file["w"].parts()["values"].numpy().size == 6  # -0.0 is not zero
        assert squish.verify(tmp_path / "sparse.zt", deep=True).ok


@pytest.mark.parametrize("dtype", ["f2", "f4", "f8"])
def test_values_keep_their_dtype(tmp_path: Path, dtype: str) -> None:
    values = np.eye(5, 7, dtype=dtype) * np.finfo(dtype).smallest_subnormal
    with encoded(tmp_path, values, "sparse_csr") as file:
        assert file["w"].numpy().dtype == values.dtype
        assert_array_equal(file["w"].numpy(), values)


def test_a_threshold_drops_small_values_and_is_the_error_bound(tmp_path: Path) -> None:
    values = np.array([[0.5, -0.25, 0.125], [-0.5, 0.25, np.nan]], np.float32)
    squish.save(tmp_path / "dense.zt", {"w": values})
    report = squish.convert(tmp_path / "dense.zt", tmp_path / "s.zt", "ztensor", encode="sparse_csr:threshold=0.25")
    assert report.steps[0].exactness == Exactness("bounded", error=0.25)
    with squish.open(tmp_path / "s.zt") as file:
        assert_array_equal(file["w"].numpy(), [[0.5, 0, 0], [-0.5, 0, np.nan]])


@pytest.mark.parametrize(
    ("encode", "shape"), [("sparse_coo", (2, 3, 4)), ("sparse_csr", (0, 4)), ("sparse_coo", (4, 0))]
)
def test_coordinates_support_any_rank_and_empty_tensors(tmp_path: Path, encode: str, shape: tuple[int, ...]) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape) % 3
    with encoded(tmp_path, values, encode) as file:
        assert_array_equal(file["w"].numpy(), values)


def test_scipy_gives_the_same_matrix(tmp_path: Path) -> None:
    scipy_sparse = pytest.importorskip("scipy.sparse", reason="SciPy is not installed")
    values = np.where(np.random.default_rng(0).random((64, 33)) < 0.1, 1.5, 0).astype(np.float32)
    with encoded(tmp_path, values, "sparse_csr") as file:
        expected, actual = scipy_sparse.csr_array(values), to_scipy(file["w"])
    for name in ("data", "indices", "indptr"):
        assert_array_equal(getattr(actual, name), getattr(expected, name))


def test_indices_of_32_bits_on_request(tmp_path: Path) -> None:
    with encoded(tmp_path, SPECIAL, "sparse_csr:indices=u32", "ztensor:wire=2") as file:
        assert {role: part.dtype for role, part in file["w"].parts().items()} == {
            "values": "f32",
            "indices": "u32",
            "indptr": "u32",
        }


@pytest.mark.parametrize("params", ["threshold=-1", "threshold=nan", "threshold=x", "indices=u8", "nnz=3", "other=1"])
def test_unusable_parameters_are_refused(tmp_path: Path, params: str) -> None:
    with pytest.raises(UsageError) as caught:
        encoded(tmp_path, SPECIAL, f"w=sparse_csr:{params}")
    assert caught.value.code == ErrorCode.PARAMS


def test_rows_need_a_matrix(tmp_path: Path) -> None:
    with pytest.raises(CodecError) as caught:
        encoded(tmp_path, np.zeros((2, 2, 2), np.float32), "w=sparse_csr")
    assert caught.value.code == "shape"


def test_dropping_values_of_a_quantized_tensor_needs_permission(tmp_path: Path) -> None:
    squish.save(tmp_path / "q.zt", {"w": np.ones((2, 64), np.float32)}, encode="int8")
    squish.convert(tmp_path / "q.zt", tmp_path / "kept.zt", "ztensor", encode="sparse_csr")
    with pytest.raises(UsageError) as caught:
        squish.convert(tmp_path / "q.zt", tmp_path / "s.zt", "ztensor", encode="sparse_csr:threshold=0.1")
    assert caught.value.code == "requantize"
