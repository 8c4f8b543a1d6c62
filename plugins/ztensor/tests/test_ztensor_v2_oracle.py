"""The released ztensor 2.1.2 beside this plugin: what is written here it opens and verifies, and the other way."""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest
from squish_ztensor.v2 import deterministic, footer

import squish_core as squish
from squish_core.errors import FormatError

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

RNG = np.random.default_rng(11)
ARRAYS: dict[str, Any] = {
    "z.weight": RNG.standard_normal((30, 50)).astype(np.float32),
    **{f"a.{kind}": (RNG.standard_normal((3, 5)) * 50).astype(kind) for kind in ("f8", "f2", "i8", "i4", "i2", "i1")},
    **{f"b.{kind}": RNG.integers(0, 100, (4, 3)).astype(kind) for kind in ("u8", "u4", "u2", "u1")},
    "flags": RNG.standard_normal((2, 3)) > 0,
    "names with spaces/\u03c0/\u6743\u91cd": np.arange(6, dtype=np.int64),
    "large": RNG.standard_normal((300, 700)).astype(np.float32),
}
ARRAYS["tied"] = ARRAYS["z.weight"].copy()


def read(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    report = ztensor.verify(path, deep=True)
    source = ztensor.open(path)
    tensors = {
        name: [str(tensor.dtype), list(tensor.shape), bytes(tensor.tobytes())] for name, tensor in source.items()
    }
    return [report.checked, report.undigested, tensors]


def check(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    report = ztensor.verify(path, deep=True)
    return [report.checked, report.undigested, sorted(ztensor.open(path).keys())]


def write(path, arrays, canonical, encoding):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    writer = ztensor.Writer(path, canonical=canonical, **({} if canonical else {"align": 4096}))
    for name, array in arrays:
        kind = {"b": "u8"}.get(array.dtype.kind, array.dtype.kind + str(8 * array.dtype.itemsize))
        logical = "bool" if array.dtype.kind == "b" else None
        writer.add(name, array.tobytes(), list(array.shape), kind, logical=logical, encoding=encoding)
    writer.finish()


@pytest.fixture(scope="module")
def reference() -> Any:
    return oracles.peer("ztensor-2.1.2")


ALIGNED = {"flavor": "aligned", "alignment": "1048576"}


@pytest.mark.parametrize("options", [{}, {"flavor": "aligned"}, {"encoding": "zstd"}, {"digest": "sha256"}, ALIGNED])
def test_the_reference_opens_and_verifies_what_is_written(
    zt: Any, tmp_path: Path, reference: Any, options: dict[str, str]
) -> None:
    path = tmp_path / "ours.zt"
    zt.written(path, ARRAYS, {"wire": "2", **options}, {"license": "MIT", "n": 3, "f": 0.1})
    checked, undigested, tensors = reference.run(read, path=str(path))
    assert (checked, undigested) == (len(ARRAYS), 0)
    assert sorted(tensors) == sorted(ARRAYS)
    for name, (_, shape, data) in tensors.items():
        assert (tuple(shape), data) == (ARRAYS[name].shape, ARRAYS[name].tobytes()), name


def test_canonical_files_are_the_same_bytes(zt: Any, tmp_path: Path, reference: Any) -> None:
    arrays = sorted(ARRAYS.items(), key=lambda item: item[0].encode())
    reference.run(
        write, path=str(tmp_path / "theirs.zt"), arrays=[list(pair) for pair in arrays], canonical=True, encoding=None
    )
    zt.written(tmp_path / "ours.zt", ARRAYS, {"wire": "2"})
    assert (tmp_path / "ours.zt").read_bytes() == (tmp_path / "theirs.zt").read_bytes()


@pytest.mark.parametrize("encoding", [None, "zt.zstd-seekable/1"])
def test_what_the_reference_2_writes_is_read(tmp_path: Path, reference: Any, encoding: str | None) -> None:
    path = tmp_path / "theirs.zt"
    arrays = [list(pair) for pair in ARRAYS.items()]
    reference.run(write, path=str(path), arrays=arrays, canonical=False, encoding=encoding)
    assert {problem.code for problem in squish.verify(path, deep=True).problems} <= {
        "not-finite",
        "zeros",
    }  # of the values
    with squish.open(path) as file:
        assert set(file) == set(ARRAYS)
        for name, array in ARRAYS.items():
            values = file[name].numpy()
            assert values.dtype == array.dtype
            np.testing.assert_array_equal(values, array)


@pytest.mark.parametrize(
    "name",
    ["v01_dense_all_dtypes", "v10_dense_all_dtypes", "h11_f8_complex_dtype", "v11_dense_zstd_l3", "v11_sparse_csr",
     "v11_sparse_coo", "v12_logical_types", "v12_quantized_group"],
)  # fmt: skip
def test_the_reference_opens_and_verifies_what_is_migrated(
    data: Path, tmp_path: Path, reference: Any, name: str
) -> None:
    squish.convert(data / f"{name}.zt", tmp_path / "new.zt", to="ztensor:wire=2")
    checked, undigested, _ = reference.run(check, path=str(tmp_path / "new.zt"))
    assert checked > 0
    assert undigested == 0


def shard_outcomes(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    def outcome(action):
        try:
            return action()
        except (ValueError, OSError) as error:
            return f"{type(error).__name__}: {error}"

    deep = outcome(lambda: tuple(ztensor.verify(path, deep=True)))
    return [outcome(lambda: ztensor.open(path)["w"].tobytes()), deep]


@pytest.mark.parametrize(
    ("damage", "opens", "named"),
    [("", True, ""), ("digest", True, "digest mismatch"), ("size", False, "bytes, the root expects"),
     ("footer", False, "FooterMagic"), ("missing", False, "No such file")],
)  # fmt: skip
def test_shards_are_accepted_and_refused_like_by_the_reference(
    tmp_path: Path, reference: Any, damage: str, opens: bool, named: str
) -> None:
    """It, too, hashes no shard when it opens one, but when it verifies."""
    path, shard = tmp_path / "model.zt", tmp_path / "model-00.zt"
    data = np.arange(4, dtype="<f4").tobytes()
    body = footer.MAGIC.ljust(4096, b"\0") + data
    whole = body + struct.pack("<QQQII8s", 0, 0, 0, 2, 0, footer.MAGIC)
    digest = "sha256:" + hashlib.sha256(whole).hexdigest()
    part = {"dtype": "f32", "blob": [4096, 16], "shard": "00"}
    root = {
        "objects": {"w": {"shape": [4], "layout": "dense", "parts": {"data": part}}},
        "shards": {"00": {"size": len(whole), "digest": digest}},
    }  # fmt: skip
    packed = deterministic.encode(root)
    path.write_bytes(footer.MAGIC.ljust(4096, b"\0") + packed + footer.pack(4096, packed))
    stored = {
        "": whole, "digest": whole[:4096] + b"\1" + whole[4097:], "size": whole[:8] + whole[7:],
        "footer": whole[:-1] + b"\1",
    }  # fmt: skip
    if damage in stored:
        shard.write_bytes(stored[damage])
    read, verified = reference.run(shard_outcomes, path=str(path))
    assert isinstance(read, bytes) == opens
    assert named in str(verified)
    report = squish.verify(path, deep=True)
    assert report.ok == (not named)
    if opens:
        assert squish.open(path)["w"].numpy().tobytes() == read
    else:
        with pytest.raises(FormatError) as caught:
            squish.open(path)
        assert caught.value.code == "shard"
