"""What a zTensor 1.1 file means: values written by other software, and each rule of the mapping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cbor2
import numpy as np
import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import MissingPluginError
from squish_core.formats.metadata import dump_meta
from squish_core.limits import DEFAULT
from squish_core.model import Typed
from squish_core.plugins.registry import Registry

READABLE = (
    "v01_dense_all_dtypes", "v10_dense_all_dtypes", "h11_f8_complex_dtype", "v11_dense_all_dtypes",
    "v11_dense_zstd_l3", "v11_sparse_csr", "v11_sparse_coo", "v12_digest_sha256", "v12_logical_types",
    "v12_quantized_group", "v2_dense_align4096", "v2_zstd_seekable",
)  # fmt: skip


@pytest.mark.parametrize("name", READABLE)
def test_values_of_the_reference_are_read_exactly(data: Path, name: str) -> None:
    expected = np.load(data / f"{name}.npz")
    with squish.open(data / f"{name}.zt") as file:
        assert sorted(file) == sorted(key for key in expected.files if "::" not in key)
        for key in file:
            values = file[key].numpy()
            if values.dtype.kind == "V" or values.dtype.name.startswith(("bfloat", "float8", "float16")):
                values = values.astype(expected[key].dtype)
            assert values.dtype == expected[key].dtype
            assert values.shape == expected[key].shape
            np.testing.assert_array_equal(values, expected[key])


@pytest.mark.parametrize("name", READABLE)
def test_files_of_the_reference_verify_cleanly(data: Path, name: str) -> None:
    assert {problem.code for problem in squish.verify(data / f"{name}.zt", deep=True).problems} <= {
        "not-finite",
        "zeros",
    }  # of the values


@pytest.mark.parametrize(
    ("name", "version"),
    [("v01_dense_all_dtypes", "0.1"), ("v10_dense_all_dtypes", "1.0"), ("v11_dense_all_dtypes", "1.1.0"),
     ("v12_logical_types", "1.2.0"), ("v2_dense_align4096", "2")],
)  # fmt: skip
def test_every_version_is_the_same_format(data: Path, name: str, version: str) -> None:
    with squish.open(data / f"{name}.zt") as file:
        assert (file.format, file.index.version) == ("ztensor", version)


def test_a_scalar_keeps_its_rank(zt: Any) -> None:
    with squish.open(zt.pack({"w": zt.item(shape=(), length=4)})) as file:
        assert file["w"].shape == ()
        assert file["w"].numpy() == 0


def test_an_array_is_a_view_of_the_file_and_outlives_it(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    path.write_bytes(zt.pack({"w": zt.item()}))
    with squish.open(path) as file:
        values = file["w"].numpy()
    assert not values.flags.owndata
    assert not values.flags.writeable
    assert values.tolist() == [0, 1, 2, 3]


def test_tensors_come_in_the_order_of_their_bytes(zt: Any) -> None:
    objects = {"a": zt.item(offset=192), "b": zt.item(offset=64), "c": zt.item(offset=128)}
    with squish.open(zt.pack(objects, bytes(144))) as file:
        assert list(file) == ["b", "c", "a"]


def test_an_empty_tensor_comes_before_the_one_that_follows_it(zt: Any) -> None:
    objects = {"a": zt.item(offset=64), "z": zt.item(shape=(0,), length=0)}
    with squish.open(zt.pack(objects)) as file:
        assert list(file) == ["z", "a"]
        assert file["z"].numpy().shape == (0,)


def test_identical_ranges_with_two_dtypes_are_both_read(zt: Any) -> None:
    with squish.open(zt.pack({"w": zt.item(), "bits": zt.item(dtype="u32")})) as file:
        assert file["bits"].numpy().tolist() == file["w"].numpy().view("u4").tolist()


def test_ggml_blocks_are_a_codec_over_rows_of_bytes(zt: Any) -> None:
    item = zt.item(shape=(2, 64), dtype="u8", length=72, format="gguf.q4_0")
    spec = squish.open(zt.pack({"w": item}, bytes(72))).index.tensors["w"]
    assert (spec.dtype, spec.shape) == ("f32", (2, 64))
    assert spec.encodings[0].codec.id == "ggml.q4_0"
    part = spec.encodings[0].parts["data"]
    assert (part.dtype, part.shape) == ("u8", (2, 36))


def test_the_versioned_name_of_ggml_blocks_is_the_same(zt: Any) -> None:
    item = zt.item(shape=(32,), dtype="u8", length=18, format="gguf.q4_0/1")
    spec = squish.open(zt.pack({"w": item}, bytes(18))).index.tensors["w"]
    assert spec.encodings[0].codec.id == "ggml.q4_0"


def test_zstd_is_a_filter_of_the_part(data: Path) -> None:
    spec = squish.open(data / "v11_dense_zstd_l3.zt").index.tensors["x"]
    part = spec.encodings[0].parts["data"]
    assert [item.codec for item in part.filters] == ["zstd"]
    assert part.nbytes == 64 * 128 * 4
    assert part.stored < part.nbytes


def test_without_the_zstd_plugin_only_those_tensors_are_refused(data: Path) -> None:
    with squish.open(data / "v11_dense_zstd_l3.zt", registry=Registry(plugins="-squish-zstd")) as file:
        assert file["raw"].numpy().shape == (3000,)
        with expect_error(MissingPluginError, code="not-installed", tensor="x", hint="squish-zstd"):
            file["x"].numpy()


def test_digests_are_over_the_stored_bytes(zt: Any) -> None:
    spec = squish.open(zt.pack({"w": zt.item(digest="crc32c:0x515DC834")})).index.tensors["w"]
    part = spec.encodings[0].parts["data"]
    assert (part.digest, part.digest_of) == ("crc32c:0x515DC834", "stored")


def test_attributes_are_metadata_in_python_types(zt: Any) -> None:
    attributes = {
        "license": "MIT", "epoch": 3, "loss": 0.5, "list": [1, None], "when": cbor2.CBORTag(1, 0),
        "none": cbor2.undefined, "simple": cbor2.CBORSimpleValue(99), "blob": b"x",
        "map": {"a": cbor2.CBORTag(4242, 1)},
    }  # fmt: skip
    file = squish.open(zt.pack(root={"version": "1.1.0", "attributes": attributes, "objects": {}}))
    assert file.meta == {
        "license": "MIT",
        "epoch": 3,
        "loss": 0.5,
        "list": [1, None],
        "when": 0,
        "none": None,
        "simple": 99,
        "blob": b"x",
        "map": {"a": 1},
    }


def test_object_attributes_are_those_of_the_tensor(zt: Any) -> None:
    file = squish.open(zt.pack({"w": {**zt.item(), "attributes": {"bits": 4}}}))
    assert file["w"].spec.attrs == {"bits": 4}


def with_sidecar(zt: Any, blob: bytes, **changes: Any) -> bytes:
    root = {"version": "1.1.0", "attributes": {"a": "text", "b": "text"}}
    objects = {"w": zt.item(), "squish.meta": zt.item(shape=(len(blob),), dtype="u8", offset=128, length=len(blob))}
    objects["squish.meta"]["components"]["data"].update(changes)
    return zt.pack(root={**root, "objects": objects}, blobs=zt.four + bytes(48) + blob)


def test_squish_meta_restores_types_and_assets_and_is_not_a_tensor(zt: Any) -> None:
    blob = dump_meta({"b": Typed("u32", 7)}, {"tokenizer.json": b"{}"})
    with squish.open(with_sidecar(zt, blob)) as file:
        assert list(file) == ["w"]
        assert file.index.meta == {"a": "text", "b": Typed("u32", 7)}
        assert bytes(file.assets["tokenizer.json"].raw) == b"{}"


@pytest.mark.parametrize(
    "blob", [b"garbage", b"\xa0", cbor2.dumps({"v": 2, "meta": [], "assets": {}}), cbor2.dumps({"v": 1, "meta": 3})]
)
def test_an_invalid_squish_meta_stays_a_tensor_and_is_a_problem(zt: Any, blob: bytes) -> None:
    with squish.open(with_sidecar(zt, blob)) as file:
        assert [problem.code for problem in file.problems] == ["meta"]
        assert bytes(file["squish.meta"].numpy()) == blob


def test_a_squish_meta_larger_than_the_limit_stays_a_tensor(zt: Any) -> None:
    from attrs import evolve

    blob = dump_meta({}, {"a": bytes(1000)})
    with squish.open(with_sidecar(zt, blob), limits=evolve(DEFAULT, header=500)) as file:
        assert [problem.code for problem in file.problems] == ["meta"]
        assert "squish.meta" in file


def test_verify_finds_a_wrong_digest_of_squish_meta(zt: Any) -> None:
    for digest, code in (("crc32c:0x00000000", "digest"), ("md5:00", "unverified")):
        data = with_sidecar(zt, dump_meta({}, {}), digest=digest)
        assert [problem.code for problem in squish.verify(data).problems] == [code]
