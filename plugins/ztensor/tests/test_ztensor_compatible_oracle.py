"""The released 1.x packages beside this plugin: ztensor 1.2.3 both ways, and the compatible flavor in both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

RNG = np.random.default_rng(13)
ARRAYS: dict[str, Any] = {
    "weight": RNG.standard_normal((30, 50)).astype(np.float32),
    **{kind: (RNG.standard_normal((3, 5)) * 50).astype(kind) for kind in ("f8", "f2", "i8", "i4", "i2", "i1")},
    **{kind: RNG.integers(0, 100, (4, 3)).astype(kind) for kind in ("u8", "u4", "u2", "u1")},
    "flags": RNG.standard_normal((2, 3)) > 0,
    "empty": np.zeros((0, 7), np.float32),
    "large": RNG.standard_normal((300, 700)).astype(np.float16).astype(np.float32),
}
# The packages give these as they are stored.
SMALL = {"f8_e4m3": ml_dtypes.float8_e4m3fn, "f8_e5m2": ml_dtypes.float8_e5m2, "fnuz": ml_dtypes.float8_e4m3fnuz}


def read_1_2(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    reader = ztensor.Reader(path)
    tensors_read = {}
    for name in reader.keys():  # noqa: SIM118 - it is no mapping
        tensor = reader.read(name, copy=True)
        tensors_read[name] = {role: np.array(array) for role, array in tensor.components.items()}
    return tensors_read


def read_1_1(path):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    reader = ztensor.Reader(path)
    tensors_read = {}
    for name in reader.tensor_names:
        values = reader.read_tensor(name, verify_checksum=True)
        tensors_read[name] = {"data": np.array(values.toarray() if hasattr(values, "toarray") else values)}
    return tensors_read


def write_1_2(path, arrays, sparse, compress, checksum):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    with ztensor.Writer(path) as writer:
        for name, array in arrays:
            writer.write(name, ztensor.Tensor({"data": array}), compress=compress, checksum=checksum)
        for name, layout, shape, components, attributes in sparse:
            tensor = ztensor.Tensor(
                dict(components), shape=shape, dtype="float32", format=layout, attributes=attributes
            )
            writer.write(name, tensor, checksum=checksum)


def append_1_2(path, name, array):  # type: ignore[no-untyped-def] # runs in the peer
    import ztensor

    with ztensor.Writer.append(path) as writer:
        writer.write_numpy(name, array)


@pytest.mark.parametrize(
    "options", [{}, {"encoding": "zstd", "digest": "sha256"}, {"digest": "crc32c"}, {"alignment": "4096"}]
)
@pytest.mark.parametrize("flavor", ["literal", "compatible"])
def test_1_2_3_reads_what_is_written(zt: Any, tmp_path: Path, flavor: str, options: dict[str, str]) -> None:
    zt.written(tmp_path / "ours.zt", ARRAYS, {"flavor": flavor, **options}, {"license": "MIT"})
    tensors_read = oracles.peer("ztensor-1.2.3").run(read_1_2, path=str(tmp_path / "ours.zt"))
    assert set(tensors_read) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert tensors_read[name]["data"].dtype == array.dtype
        np.testing.assert_array_equal(tensors_read[name]["data"].reshape(array.shape), array)


@pytest.mark.parametrize("encoding", ["raw", "zstd"])
@pytest.mark.parametrize(("peer", "read"), [("ztensor-1.1.1", read_1_1), ("ztensor-1.2.3", read_1_2)])
def test_1_x_reads_the_small_floats_of_the_compatible_flavour(
    zt: Any, tmp_path: Path, peer: str, read: Any, encoding: str
) -> None:
    arrays = {**ARRAYS, **{name: np.arange(64).astype(kind) for name, kind in SMALL.items()}}
    zt.written(tmp_path / "ours.zt", arrays, {"flavor": "compatible", "encoding": encoding})
    tensors_read = oracles.peer(peer).run(read, path=str(tmp_path / "ours.zt"))
    for name, array in arrays.items():
        assert tensors_read[name]["data"].tobytes() == array.tobytes(), name


@pytest.mark.parametrize("name", ["v11_sparse_csr", "v11_sparse_coo", "v12_quantized_group", "v12_logical_types"])
def test_1_2_3_reads_the_components_of_what_is_rewritten(data: Path, tmp_path: Path, name: str) -> None:
    squish.convert(data / f"{name}.zt", tmp_path / "ours.zt", to="ztensor:flavor=compatible")
    peer = oracles.peer("ztensor-1.2.3")
    ours, theirs = (peer.run(_bytes_1_2, path=str(path)) for path in (tmp_path / "ours.zt", data / f"{name}.zt"))
    assert ours == theirs


def _bytes_1_2(path):  # type: ignore[no-untyped-def] # runs in the peer, which cannot give bf16 and complex
    import ztensor

    reader, tensors_read = ztensor.Reader(path), {}
    for name in reader.keys():  # noqa: SIM118
        about = reader.metadata(name)
        try:
            parts = {role: np.array(array).tobytes() for role, array in reader.read(name, copy=True).components.items()}
        except (RuntimeError, ValueError) as error:
            parts = {"error": str(error).encode()}
        tensors_read[name] = [list(about.shape), parts]
    return tensors_read


def test_1_1_1_reads_sparse_tensors_whose_narrow_indices_were_widened(zt: Any, tmp_path: Path) -> None:
    arrays = {"values": np.arange(1, 4, dtype="<f4"), "indices": np.array([0, 2, 1], "u2"),
              "indptr": np.array([0, 2, 3], "u4")}  # fmt: skip
    body, stored = b"", {}
    for role, array in arrays.items():
        kind = squish.dtypes.from_numpy(array.dtype)
        stored[role] = {"dtype": kind, "offset": 64 + len(body), "length": array.nbytes}
        body += array.tobytes().ljust(64, b"\0")
    old = zt.pack({"w": {"shape": [2, 3], "format": "sparse_csr", "components": stored}}, body)
    squish.convert(old, tmp_path / "ours.zt", to="ztensor:flavor=compatible")
    [tensors_read] = oracles.peer("ztensor-1.1.1").run(read_1_1, path=str(tmp_path / "ours.zt")).values()
    assert tensors_read["data"].tolist() == [[1, 0, 2], [0, 3, 0]]


SPARSE = [
    ["csr", "sparse_csr", [2, 3], [["values", np.arange(1, 4, dtype="<f4")], ["indices", np.array([0, 2, 1], "u8")],
                                   ["indptr", np.array([0, 2, 3], "u8")]], {}],
    ["narrow", "sparse_csr", [2, 3], [["values", np.arange(1, 4, dtype="<f4")], ["indices", np.array([0, 2, 1], "u4")],
                                      ["indptr", np.array([0, 2, 3], "u4")]], {"note": "x"}],
]  # fmt: skip


@pytest.mark.parametrize(("compress", "checksum"), [(False, "none"), (True, "sha256"), (False, "crc32c"), (9, "none")])
def test_what_1_2_3_writes_is_read(tmp_path: Path, compress: Any, checksum: str) -> None:
    path, peer = tmp_path / "theirs.zt", oracles.peer("ztensor-1.2.3")
    arrays = [list(pair) for pair in ARRAYS.items()]
    peer.run(write_1_2, path=str(path), arrays=arrays, sparse=SPARSE, compress=compress, checksum=checksum)
    peer.run(append_1_2, path=str(path), name="more", array=ARRAYS["weight"])
    report = squish.verify(path, deep=True)
    assert report.problems == ()
    assert bool(report.digests) == (checksum != "none")
    with squish.open(path) as file:
        assert set(file) == {*ARRAYS, "csr", "narrow", "more"}
        for name, array in {**ARRAYS, "more": ARRAYS["weight"]}.items():
            assert file[name].numpy().dtype == array.dtype
            np.testing.assert_array_equal(file[name].numpy(), array)
        for name in ("csr", "narrow"):
            assert file[name].numpy().tolist() == [[1, 0, 2], [0, 3, 0]]
