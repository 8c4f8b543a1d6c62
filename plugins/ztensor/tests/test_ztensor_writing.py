"""What is written: bytes, order, options, metadata, and what is refused."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import cbor2
import ml_dtypes
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from squish_ztensor.container import Ztensor
from squish_ztensor.names import BLOCKS, DTYPES

import squish_core as squish
from squish_core.api import Dropped
from squish_core.errors import FormatError, MissingPluginError
from squish_core.model import DENSE, CodecSpec, Encoding, Part, Refusal, TensorSpec, Typed

EMPTY_FILE = b"ZTEN1000\xa2\x67version\x651.1.0\x67objects\xa0\x18" + bytes(7) + b"ZTEN1000"


def manifest(path: Path) -> Any:
    data = path.read_bytes()
    size = int.from_bytes(data[-16:-8], "little")
    return cbor2.loads(data[-16 - size : -16])


def accepts(dtype: str = "f32", codec: CodecSpec = DENSE, name: str = "w", **parts: Part) -> Any:
    spec = TensorSpec(name=name, shape=(2, 64), dtype=dtype)
    return Ztensor().accepts(spec, Encoding(codec=codec, parts=parts or {"data": Part(dtype=dtype, shape=(2, 64))}), {})


def test_an_empty_file_is_the_48_bytes_of_the_reference(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "empty.zt", {})
    assert (tmp_path / "empty.zt").read_bytes() == EMPTY_FILE
    assert len(EMPTY_FILE) == 48


def test_a_file_byte_by_byte(zt: Any, tmp_path: Path) -> None:
    values = {"b": np.arange(4, dtype="<f4"), "a": np.array([True])}
    zt.written(tmp_path / "model.zt", values, {"digest": "crc32c"}, {"license": "MIT"})
    root = {
        "version": "1.1.0", "attributes": {"license": "MIT"},
        "objects": {
            "a": {"shape": [1], "format": "dense", "components": {
                "data": {"dtype": "bool", "offset": 128, "length": 1, "digest": "crc32c:0xA016D052"}}},
            "b": {"shape": [4], "format": "dense", "components": {
                "data": {"dtype": "f32", "offset": 64, "length": 16, "digest": "crc32c:0x515DC834"}}},
        },
    }  # fmt: skip
    assert (tmp_path / "model.zt").read_bytes() == zt.pack(root=root, blobs=zt.four + bytes(48) + b"\1")


@pytest.mark.parametrize("options", [{}, {"encoding": "zstd"}, {"encoding": "zstd", "level": "1"}])
def test_every_dtype_comes_back(zt: Any, tmp_path: Path, options: dict[str, str]) -> None:
    from squish_core import dtypes

    values = {name: np.arange(6).reshape(2, 3).astype(dtypes.to_numpy(name)) for name in DTYPES}
    values |= {"scalar": np.float32(3).reshape(()), "empty": np.zeros((0, 7), np.float16)}
    layout = zt.written(tmp_path / "model.zt", values, options)
    assert layout.size in (None, (tmp_path / "model.zt").stat().st_size)
    assert squish.verify(tmp_path / "model.zt", deep=True).problems == ()
    with squish.open(tmp_path / "model.zt") as file:
        assert list(file) == list(values)
        for name, array in values.items():
            read = file[name].numpy()
            assert (read.dtype, read.shape, read.tobytes()) == (array.dtype, array.shape, array.tobytes())


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.dictionaries(
        st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",)), min_size=1, max_size=6),
        arrays.arrays(
            st.sampled_from(["<f4", "<i8", "u1", ml_dtypes.bfloat16]),
            arrays.array_shapes(min_dims=0, min_side=0, max_side=4),
            elements=st.integers(0, 100),
            fill=st.nothing(),
        ),
        max_size=5,
    ),
    options=st.sampled_from([{}, {"digest": "sha256"}, {"encoding": "zstd", "digest": "crc32c"}]),
)
def test_any_arrays_come_back_in_their_order(
    zt: Any, tmp_path: Path, values: dict[str, Any], options: dict[str, str]
) -> None:
    path = tmp_path / "model.zt"
    layout = zt.written(path, values, options)
    assert layout.size in (None, path.stat().st_size)
    with squish.open(path) as file:
        assert list(file) == list(values)
        assert all(file[name].numpy().tobytes() == array.tobytes() for name, array in values.items())


def test_empty_tensors_keep_their_order(zt: Any, tmp_path: Path) -> None:
    nothing = np.zeros((0,), np.float32)
    values = {"c": nothing, "a": nothing, "b": nothing, "z": np.ones(3), "y": nothing, "x": nothing}
    zt.written(tmp_path / "model.zt", values)
    with squish.open(tmp_path / "model.zt") as file:
        assert list(file) == list(values)


@pytest.mark.parametrize("block", ["q4_k", "q8_0", "iq4_nl"])
def test_ggml_blocks_are_stored_verbatim(zt: Any, tmp_path: Path, block: str) -> None:
    elements, nbytes = BLOCKS[block]
    rows = np.random.default_rng(0).integers(0, 256, (3, 2 * nbytes), dtype=np.uint8)
    zt.written(tmp_path / "model.zt", {"w": ((3, 2 * elements), f"ggml.{block}", rows)})
    assert manifest(tmp_path / "model.zt")["objects"]["w"]["format"] == f"gguf.{block}"
    with squish.open(tmp_path / "model.zt") as file:
        assert file["w"].shape == (3, 2 * elements)
        assert file["w"].codec == f"ggml.{block}"
        np.testing.assert_array_equal(file["w"].parts()["data"].numpy(), rows)


def test_text_metadata_goes_into_the_attributes(zt: Any, tmp_path: Path) -> None:
    zt.written(tmp_path / "model.zt", {}, meta={"b": "2", "a": "1"})
    assert manifest(tmp_path / "model.zt") == {"version": "1.1.0", "attributes": {"b": "2", "a": "1"}, "objects": {}}


def test_typed_metadata_and_assets_go_into_squish_meta(zt: Any, tmp_path: Path) -> None:
    meta = {"z": Typed("u8", 1), "a": "text", "scores": Typed("array:f32", np.array([1, 2], np.float32)), "n": 3}
    assets = {"tokenizer.json": bytes(70000), "empty": b"", "config.json": b"{}" * 20}
    layout = zt.written(tmp_path / "model.zt", {"w": np.ones(2)}, {"digest": "sha256"}, meta, assets)
    assert layout.size == (tmp_path / "model.zt").stat().st_size
    stored = manifest(tmp_path / "model.zt")
    assert "attributes" not in stored
    assert stored["objects"]["squish.meta"]["format"] == "dense"
    assert squish.verify(tmp_path / "model.zt", deep=True).problems == ()
    with squish.open(tmp_path / "model.zt") as file:
        assert list(file) == ["w"]
        assert list(file.index.meta) == list(meta)
        assert file.index.meta["z"] == Typed("u8", 1)
        assert file.index.meta["scores"].value.tolist() == [1, 2]
        assert {name: bytes(buffer.raw) for name, buffer in file.assets.items()} == assets


def test_digests_are_of_the_stored_bytes(zt: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.zt"
    zt.written(path, {"w": np.zeros(1000)}, {"encoding": "zstd", "digest": "sha256"})
    stored = manifest(path)["objects"]["w"]["components"]["data"]
    blob = path.read_bytes()[stored["offset"] : stored["offset"] + stored["length"]]
    assert stored["digest"] == f"sha256:{hashlib.sha256(blob).hexdigest()}"


def test_object_attributes_survive(zt: Any, tmp_path: Path) -> None:
    source = zt.pack({"w": {**zt.item(), "attributes": {"bits": 4, "note": "x", "list": [1, None]}}})
    squish.convert(source, tmp_path / "copy.zt")
    with squish.open(tmp_path / "copy.zt") as file:
        assert file["w"].spec.attrs == {"bits": 4, "note": "x", "list": [1, None]}


def test_an_attribute_that_cbor_cannot_hold_is_reported_as_dropped() -> None:
    part = Part(dtype="u8", shape=(1,))
    encoding = Encoding(codec=DENSE, parts={"data": part})
    spec = TensorSpec(name="w", shape=(1,), dtype="u8", encodings=(encoding,), attrs={"a": 1, "b": object()})
    assert Ztensor().plan_file([spec], {}, {}, {}).dropped == (Dropped("attribute", "b", where="w"),)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (lambda: accepts("u4"), "no dtype u4"),
        (lambda: accepts("f8_e4m3fnuz"), "no dtype f8_e4m3fnuz"),
        (lambda: accepts(codec=CodecSpec("affine", {"bits": 5})), "not of 5"),
        (
            lambda: accepts(codec=CodecSpec("ggml.q9_9"), data=Part(dtype="u8", shape=(2, 36))),
            "no layout for codec ggml.q9_9",
        ),
        (lambda: accepts(codec=CodecSpec("ggml.q4_0"), data=Part(dtype="u8", shape=(72,))), "not whole q4_0 blocks"),
        (lambda: accepts(name=""), "invalid tensor name"),
        (lambda: accepts(name="__metadata__"), "reserved"),
        (lambda: accepts(name="a\0b"), "invalid tensor name"),
        (lambda: accepts(name="\ud800"), "invalid tensor name"),
        (lambda: accepts(name="squish.meta"), "reserved"),
    ],
)
def test_unsupported_tensors_are_refused_with_a_reason(answer: Any, why: str) -> None:
    refusal = answer()
    assert isinstance(refusal, Refusal)
    assert why in refusal.why


@pytest.mark.parametrize("options", [{"encoding": "lz4"}, {"digest": "md5"}, {"level": "3"}])
def test_an_invalid_option_is_refused(options: dict[str, str]) -> None:
    spec = TensorSpec(name="w", shape=(2,), dtype="f32")
    with pytest.raises(FormatError) as caught:
        Ztensor().accepts(spec, Encoding(codec=DENSE, parts={"data": Part(dtype="f32", shape=(2,))}), options)
    assert caught.value.code == "option"


def test_zstd_without_its_plugin_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "squish_zstd.api", None)
    spec = TensorSpec(name="w", shape=(2,), dtype="f32")
    with pytest.raises(MissingPluginError) as caught:
        Ztensor().accepts(
            spec, Encoding(codec=DENSE, parts={"data": Part(dtype="f32", shape=(2,))}), {"encoding": "zstd"}
        )
    assert "pip install squish-zstd" in str(caught.value.hint)


def test_a_stream_of_another_length_is_refused(tmp_path: Path) -> None:
    from squish_core.formats.outgoing import OutgoingTensor, Stream
    from squish_core.io.atomic import atomic_file

    part = Part(dtype="u8", shape=(4,))
    spec = TensorSpec(name="w", shape=(4,), dtype="u8", encodings=(Encoding(codec=DENSE, parts={"data": part}),))
    outgoing = OutgoingTensor(spec, {"data": Stream(part, lambda: [b"123"])})
    with pytest.raises(FormatError) as error, atomic_file(tmp_path / "model.zt") as sink:
        Ztensor().write(sink, [outgoing], {}, {}, {"digest": "crc32c"})
    assert (error.value.code, error.value.expected, error.value.found) == ("size", 4, 3)


def test_a_write_that_fails_leaves_no_spool_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from squish_ztensor.v1 import writer

    spools = []
    make = writer.SpooledTemporaryFile
    monkeypatch.setattr(writer, "SpooledTemporaryFile", lambda size: spools.append(make(size)) or spools[-1])
    values = np.ones((2, 1 << 12), np.float32)
    arrays = {f"w{number}": values for number in range(20)}
    arrays["w5"] = np.full_like(values, 1e6)  # too large for f16
    with pytest.raises(squish.SquishError) as refused:
        squish.convert(arrays, tmp_path / "model.zt", "ztensor:encoding=zstd", "f16")
    assert (refused.value.code, refused.value.tensor) == ("range", "w5")
    assert spools
    assert all(spool.closed for spool in spools)


@pytest.mark.parametrize("name", ["v11_sparse_csr", "v11_sparse_coo"])
def test_sparse_tensors_are_written_as_the_reference_does(data: Path, tmp_path: Path, name: str) -> None:
    squish.convert(data / f"{name}.zt", tmp_path / "new.zt")
    assert (tmp_path / "new.zt").read_bytes() == (data / f"{name}.zt").read_bytes()
