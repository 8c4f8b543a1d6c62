"""Writing zTensor v2: flavors, shared blobs, layouts, metadata."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest
import xxhash
from squish_ztensor.options import WriteOptions
from squish_ztensor.v2.identity import content_digest

import squish_core as squish
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError
from squish_core.io.local import open_source
from squish_core.model import Typed

RNG = np.random.default_rng(5)
ARRAYS: dict[str, Any] = {
    "weight": RNG.standard_normal((6, 4)).astype(np.float32),
    "flags": np.array([True, False]),
    "tiny": np.arange(5).astype(ml_dtypes.float8_e5m2fnuz),
    "brain": np.arange(4).astype(ml_dtypes.bfloat16),
    "complex": np.array([1 + 2j], np.complex64),
    "scalar": np.array(7, np.int64),
    "empty": np.zeros((0, 3), np.float16),
}
SECOND = {"wire": "2"}


@pytest.mark.parametrize(
    "options", [{}, {"flavor": "aligned"}, {"encoding": "zstd"}, {"digest": "none", "flavor": "aligned"}]
)
def test_what_is_written_is_read(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    path = tmp_path / "new.zt"
    layout = zt.written(path, ARRAYS, {**SECOND, **options}, {"license": "MIT", "steps": [1, {"x": None}]})
    assert layout.size in (None, path.stat().st_size)
    assert {problem.code for problem in squish.verify(path, deep=True).problems} <= {
        "not-finite",
        "zeros",
    }  # of the values
    with squish.open(path) as file:
        assert file.index.version == "2"
        assert file.meta == {"license": "MIT", "steps": [1, {"x": None}]}
        assert set(file) == set(ARRAYS)
        for name, array in ARRAYS.items():
            assert file[name].numpy().dtype == array.dtype
            assert file[name].shape == array.shape
            assert file[name].numpy().tobytes() == array.tobytes()


def test_a_canonical_file_does_not_depend_on_the_order(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "one.zt", ARRAYS, SECOND)
    zt.written(tmp_path / "other.zt", dict(reversed(ARRAYS.items())), SECOND)
    assert (tmp_path / "one.zt").read_bytes() == (tmp_path / "other.zt").read_bytes()


def test_an_aligned_file_keeps_the_order(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "new.zt", ARRAYS, {**SECOND, "flavor": "aligned"})
    assert list(squish.open(tmp_path / "new.zt")) == list(ARRAYS)


@pytest.mark.parametrize("options", [{}, {"flavor": "aligned"}, {"encoding": "zstd"}])
def test_equal_parts_share_one_blob(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    weight = RNG.standard_normal((300, 300)).astype(np.float32)
    almost = weight.copy()
    almost[-1, -1] += 1
    zt.written(tmp_path / "new.zt", {"a": weight, "b": weight.copy(), "c": almost}, {**SECOND, **options})
    with squish.open(tmp_path / "new.zt") as file:
        places = {name: file[name].spec.encodings[0].parts["data"].segments for name in file}
        assert places["a"] == places["b"] != places["c"]
        assert file["c"].numpy()[-1, -1] == almost[-1, -1]


def test_equal_parts_that_the_kernel_copies_share_one_blob(zt: Any, tmp_path: Path) -> None:
    weights = [RNG.standard_normal((600, 600)).astype(np.float32) for _ in range(3)]
    weights[2][0, 0] = weights[0][0, 0] = 1
    arrays = {f"{at}": weights[which] for at, which in enumerate((0, 1, 0, 2, 1, 2, 0))}
    zt.written(tmp_path / "old.zt", arrays)
    squish.convert(tmp_path / "old.zt", tmp_path / "new.zt", to="ztensor:wire=2,flavor=aligned,digest=none")
    with squish.open(tmp_path / "new.zt") as file:
        assert {name: file[name].numpy().tobytes() for name in file} == {k: v.tobytes() for k, v in arrays.items()}
        assert len({file[name].spec.encodings[0].parts["data"].segments for name in file}) == 3
    assert (tmp_path / "new.zt").stat().st_size < 3 * 600 * 600 * 4 + 65536


def test_an_empty_v2_file_is_65586_bytes(zt: Any, tmp_path: Path) -> None:
    assert zt.written(tmp_path / "new.zt", {}, SECOND).size == 65586
    assert (tmp_path / "new.zt").stat().st_size == 65586


def test_v2_keeps_typed_metadata_and_assets(zt: Any, tmp_path: Path) -> None:
    meta, assets = {"n": Typed("u32", 7), "name": "x"}, {"tokenizer.json": b"{}"}
    layout = zt.written(tmp_path / "new.zt", {"w": ARRAYS["weight"]}, SECOND, meta, assets)
    assert layout.size == (tmp_path / "new.zt").stat().st_size
    with squish.open(tmp_path / "new.zt") as file:
        assert list(file) == ["w"]
        assert file.index.meta == meta
        assert bytes(file.assets["tokenizer.json"].raw) == b"{}"


@pytest.mark.parametrize(
    "name",
    ["v01_dense_all_dtypes", "v10_dense_all_dtypes", "h11_f8_complex_dtype", "v11_dense_zstd_l3", "v11_sparse_csr",
     "v11_sparse_coo", "v12_logical_types", "v12_quantized_group", "v2_zstd_seekable"],
)  # fmt: skip
@pytest.mark.parametrize("options", ["", ",flavor=aligned", ",encoding=zstd"])
def test_every_version_converts_to_v2(data: Path, tmp_path: Path, name: str, options: str) -> None:
    squish.convert(data / f"{name}.zt", tmp_path / "new.zt", to=f"ztensor:wire=2{options}")
    assert {problem.code for problem in squish.verify(tmp_path / "new.zt", deep=True).problems} <= {
        "not-finite",
        "zeros",
    }  # of the values
    with squish.open(data / f"{name}.zt") as old, squish.open(tmp_path / "new.zt") as new:
        assert {key: old[key].numpy().tobytes() for key in sorted(old)} == {
            key: new[key].numpy().tobytes() for key in sorted(new)
        }


def test_ggml_blocks_state_their_sizes(zt: Any, tmp_path: Path) -> None:
    blocks = np.arange(36, dtype=np.uint8).reshape(2, 18)
    zt.written(tmp_path / "new.zt", {"w": ((2, 32), "ggml.q4_0", blocks)}, SECOND)
    spec = squish.open(tmp_path / "new.zt")["w"].spec
    assert spec.encodings[0].codec.id == "ggml.q4_0"
    assert spec.attrs == {}
    data = (tmp_path / "new.zt").read_bytes()
    assert b"elems_per_block\x18\x20" in data
    assert b"block_bytes\x12" in data


def test_v2_refuses_sparse_rows_with_unsorted_columns(zt: Any, tmp_path: Path) -> None:
    blobs = {
        "values": zt.four[:8],
        "indices": np.array([1, 0], "u4").tobytes(),
        "indptr": np.array([0, 2], "u4").tobytes(),
    }
    body, stored = b"", {}
    for role, blob in blobs.items():
        kind = "f32" if role == "values" else "u32"
        stored[role] = {"dtype": kind, "offset": 64 + len(body), "length": len(blob)}
        body += blob.ljust(64, b"\0")
    old = zt.pack({"w": {"shape": [1, 2], "format": "sparse_csr", "components": stored}}, body)
    assert squish.open(old)["w"].numpy().tolist() == [[1, 0]]
    with pytest.raises(FormatError) as caught:
        squish.convert(old, tmp_path / "new.zt", to="ztensor:wire=2")
    assert (caught.value.tensor, caught.value.code) == ("w", "index")
    assert not (tmp_path / "new.zt").exists()


def narrow(zt: Any, indices: np.ndarray, indptr: np.ndarray) -> bytes:
    """A 2x3 matrix with indices of these dtypes, as 1.1 allows them."""
    arrays = {"values": np.arange(1, 4, dtype="<f4"), "indices": indices, "indptr": indptr}
    body, stored = b"", {}
    for role, array in arrays.items():
        kind = squish.dtypes.from_numpy(array.dtype)
        stored[role] = {"dtype": kind, "offset": 64 + len(body), "length": array.nbytes}
        body += array.tobytes().ljust(64, b"\0")
    return zt.pack({"w": {"shape": [2, 3], "format": "sparse_csr", "components": stored}}, body)


@pytest.mark.parametrize(("kinds", "wide"), [(("u2", "u4"), "u32"), (("u1", "i4"), "u32"), (("u2", "i8"), "u64")])
@pytest.mark.parametrize("to", ["ztensor:wire=2", "ztensor:flavor=compatible"])
def test_narrow_and_mixed_indices_are_widened(zt: Any, tmp_path: Path, kinds: Any, wide: str, to: str) -> None:
    old = narrow(zt, np.array([0, 2, 1], kinds[0]), np.array([0, 2, 3], kinds[1]))
    report = squish.convert(old, tmp_path / "new.zt", to=to)
    assert [(step.action, str(step.exactness)) for step in report.steps] == [("widen", "values(f32)")]
    assert report.size == (tmp_path / "new.zt").stat().st_size
    with squish.open(tmp_path / "new.zt") as file:
        assert file["w"].numpy().tolist() == [[1, 0, 2], [0, 3, 0]]
        parts = file["w"].spec.encodings[0].parts
        assert {parts["indices"].dtype, parts["indptr"].dtype} == {"u64" if "flavor" in to else wide}
    assert {problem.code for problem in squish.verify(tmp_path / "new.zt", deep=True).problems} <= {
        "not-finite",
        "zeros",
    }  # of the values


def test_a_negative_index_is_not_widened(zt: Any, tmp_path: Path) -> None:
    old = narrow(zt, np.array([0, -1, 1], "i2"), np.array([0, 2, 3], "u4"))
    with pytest.raises(SquishError) as caught:
        squish.convert(old, tmp_path / "new.zt", to="ztensor:wire=2")
    assert (caught.value.tensor, caught.value.code) == ("w", "index")


@pytest.mark.parametrize("options", [{"alignment": "8192"}, {**SECOND, "flavor": "aligned", "alignment": "8192"}])
def test_alignment_is_of_every_blob(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    zt.written(tmp_path / "new.zt", {"w": ARRAYS["weight"], "n": np.arange(3.0)}, options)
    with squish.open(tmp_path / "new.zt") as file:
        parts = [part for spec in file.index.tensors.values() for part in spec.encodings[0].parts.values()]
    assert {segment.offset % 8192 for part in parts for segment in part.segments} == {0}
    assert squish.verify(tmp_path / "new.zt", deep=True).ok


@pytest.mark.parametrize(
    "options",
    [
        {"wire": "3"}, {"flavor": "aligned"}, {**SECOND, "flavor": "compatible"}, {"digest": "xxh3"},
        {**SECOND, "digest": "crc32c"}, {**SECOND, "flavor": "canonical", "encoding": "zstd"},
        {**SECOND, "flavor": "canonical", "digest": "none"}, {**SECOND, "flavor": "x"},
        {**SECOND, "encoding": "zstd", "level": "99"}, {"alignment": "32"}, {"alignment": "96"},
        {**SECOND, "flavor": "aligned", "alignment": "2048"}, {**SECOND, "alignment": "4096"},
    ],
)  # fmt: skip
def test_invalid_options_are_refused(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    with pytest.raises(SquishError) as caught:
        zt.written(tmp_path / "new.zt", ARRAYS, options)
    assert caught.value.code in (ErrorCode.OPTION, "level")


def test_the_message_of_an_invalid_combination_of_options() -> None:
    with pytest.raises(FormatError) as caught:
        WriteOptions.of({"wire": "2", "flavor": "compatible"})
    assert str(caught.value) == "flavor=compatible requires wire=1.1"


def test_a_canonical_file_refuses_names_that_are_not_nfc(zt: Any, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="NFC"):
        zt.written(tmp_path / "new.zt", {"e\u0301": ARRAYS["weight"]}, SECOND)


def test_the_content_digest_depends_on_the_content_only(zt: Any, tmp_path: Path) -> None:
    digests = set()
    for number, options in enumerate(({}, {"flavor": "aligned"}, {"encoding": "zstd"})):
        zt.written(tmp_path / f"{number}.zt", ARRAYS, {**SECOND, **options})
        digests.add(content_digest(open_source(tmp_path / f"{number}.zt")))
    assert len(digests) == 1
    zt.written(tmp_path / "other.zt", {**ARRAYS, "scalar": np.array(8, np.int64)}, SECOND)
    assert content_digest(open_source(tmp_path / "other.zt")) not in digests


def test_the_content_digest_is_a_hash_of_cbor(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "new.zt", {"w": np.zeros(2, np.uint8)}, SECOND)
    digest = "xxh3:" + xxhash.xxh3_64_hexdigest(bytes(2))
    parts = {"data": {"dtype": "u8", "digest": digest}}
    content = ["zt.content/1", {"w": {"shape": [2], "layout": "dense", "parts": parts}}]
    expected = hashlib.sha256(cbor2.dumps(content, canonical=True)).hexdigest()
    assert content_digest(open_source(tmp_path / "new.zt")) == f"sha256:{expected}"


@pytest.mark.parametrize("options", [{}, {**SECOND, "flavor": "aligned", "digest": "none"}])
def test_without_digests_there_is_no_content_digest(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    zt.written(tmp_path / "new.zt", {"w": ARRAYS["weight"]}, options)
    with pytest.raises(FormatError) as caught:
        content_digest(open_source(tmp_path / "new.zt"))
    assert (caught.value.code, caught.value.tensor) in (("digest", "w"), ("version", None))


def test_rows_without_elements_are_encoded_as_zt_mx(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "dense.zt", {"w": np.zeros((3, 0), np.float32)})
    squish.convert(tmp_path / "dense.zt", tmp_path / "mx.zt", to="ztensor:wire=2", encode="mxfp4")
    with squish.open(tmp_path / "mx.zt") as file:
        assert (file["w"].shape, file["w"].codec, file["w"].numpy().shape) == ((3, 0), "zt.mx", (3, 0))


def test_zt_mx_only_decodes(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "dense.zt", {"w": np.zeros((3, 4), np.float32)})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "dense.zt", tmp_path / "new.zt", to="ztensor:wire=2", encode=["w=zt.mx"])
    assert caught.value.code == ErrorCode.ENCODE


@pytest.mark.parametrize(("codec", "dtype"), [("mxfp4", "f4_e2m1"), ("mxfp8", "f8_e4m3")])
def test_values_are_encoded_as_zt_mx(zt: Any, tmp_path: Path, codec: str, dtype: str) -> None:
    values = np.random.default_rng(0).standard_normal((3, 64), np.float32)
    source = tmp_path / "dense.zt"
    zt.written(source, {"w": values}, SECOND)
    squish.convert(source, tmp_path / "w.zt", "ztensor:wire=2", encode=codec)
    with squish.open(tmp_path / "w.zt") as file:
        assert (file["w"].codec, file["w"].spec.encodings[0].codec.params["dtype"]) == ("zt.mx", dtype)
        assert np.mean((file["w"].numpy() - values) ** 2) < 0.02
    with pytest.raises(SquishError) as caught:
        squish.convert(source, tmp_path / "x.zt", "ztensor:wire=2", encode="nvfp4")
    assert caught.value.code == "encode"
