"""Writing: the same input gives the same bytes, the size is known before, and nothing is lost in silence."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_convert.api import lay_out
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import Dropped
from squish_core.errors import FormatError
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.io.atomic import atomic_file, atomic_folder
from squish_core.model import DENSE, CodecSpec, Encoding, Part, Refusal, TensorSpec, Typed

CONTAINER = squish.registry().container("safetensors")
SUB_BYTE = {"f4_e2m1": 4, "f6_e2m3": 6, "f6_e3m2": 6}
DTYPES = squish.registry().containers["safetensors"].info.features["dtype"]
Tensors = Mapping[str, tuple[str, tuple[int, ...], bytes]]


def outgoing(tensors: Tensors) -> list[OutgoingTensor]:
    """Tensors (name -> dtype, shape, bytes) as a conversion would hand them over."""
    outgoing = []
    for name, (dtype, shape, data) in tensors.items():
        packed = dtype in SUB_BYTE
        part = Part(dtype="u8", shape=(len(data),)) if packed else Part(dtype=dtype, shape=shape)
        codec = CodecSpec("dense", {"dtype": dtype}) if packed else DENSE
        spec = TensorSpec(name=name, shape=shape, dtype=dtype, encodings=(Encoding(codec=codec, parts={"data": part}),))
        outgoing.append(OutgoingTensor(spec, {"data": Stream(part, lambda data=data: [data])}))  # type: ignore[misc]
    return outgoing


def write(
    target: Path,
    tensors: Tensors,
    meta: Mapping[str, Any] | None = None,
    assets: Mapping[str, bytes] | None = None,
    **options: str,
) -> None:
    sending = outgoing(tensors)
    image = lay_out(CONTAINER, [tensor.spec for tensor in sending], meta or {}, assets or {}, options)
    atomic = atomic_folder if CONTAINER.writes_folder(options) else atomic_file
    with atomic(target) as sink:
        CONTAINER.write(sink, sending, meta or {}, assets or {}, options)
    files = list(target.iterdir()) if target.is_dir() else [target]
    assert image is not None
    assert sum(path.stat().st_size for path in files) == image.size


def test_golden_bytes(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    write(path, {"b": ("u8", (3,), b"abc"), "a": ("f32", (), b"\0\0\x80\x3f")}, {"format": "pt"})
    head = (
        b'{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},'
        b'"b":{"dtype":"U8","shape":[3],"data_offsets":[4,7]}}'
    )
    head += b" " * (-len(head) % 8)
    assert path.read_bytes() == len(head).to_bytes(8, "little") + head + b"\0\0\x80\x3fabc"


def test_the_order_of_the_input_does_not_matter(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {"a": ("u8", (1,), b"a"), "b": ("f32", (1,), b"abcd"), "c": ("i64", (0,), b"")}
    write(tmp_path / "1", tensors)
    write(tmp_path / "2", dict(reversed(tensors.items())))
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_a_copy_of_our_file_is_the_same_bytes(tmp_path: Path) -> None:
    write(
        tmp_path / "1.safetensors", {"w": ("f4_e2m1", (2, 2), b"ab"), "v": ("bf16", (2,), b"abcd")}, {"z": "1", "a": ""}
    )
    squish.convert(tmp_path / "1.safetensors", tmp_path / "2.safetensors")
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


names = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=20).filter(
    lambda name: name != "__metadata__"
)


@st.composite
def arrays(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes]:
    dtype = draw(st.sampled_from(DTYPES))
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    shape = (*shape, 4) if dtype in SUB_BYTE else shape
    size = squish_nbytes(dtype, shape)
    data = draw(st.binary(min_size=size, max_size=size))
    return dtype, shape, bytes(byte & 1 for byte in data) if dtype == "bool" else data


def squish_nbytes(dtype: str, shape: tuple[int, ...]) -> int:
    from squish_core import dtypes

    return dtypes.nbytes(dtype, shape)


@settings(max_examples=150, deadline=None)
@given(
    st.dictionaries(names, arrays(), max_size=6),
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"]))
    ),
)
def test_what_is_written_is_read_back(tensors: Tensors, meta: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.safetensors"
        write(path, tensors, meta)
        with squish.open(path) as file:
            assert file.meta == meta
            notes = {key for key, value in meta.items() if key and "\0" not in key and value in tensors} - {"format"}
            assert set(file) == {*tensors, *notes}  # save_model notes tensors so that it leaves out
            for name, (dtype, shape, data) in tensors.items():
                assert (file[name].dtype, file[name].shape) == (dtype, shape)
                assert bytes(file[name].parts()["data"].raw) == data
                if not file[name].spec.undeclared:  # a name such as `s`, beside floats of 8 bits, may be that of scales
                    assert file[name].numpy().shape == shape


def test_shards_are_filled_in_the_given_order_and_the_index_lists_them(tmp_path: Path) -> None:
    tensors: dict[str, Any] = {name: ("u8", (4,), name.encode() * 4) for name in "cab"}
    write(tmp_path / "out", tensors, {"format": "pt"}, {"config.json": b"{}"}, max_shard_size="8")
    listing = json.loads((tmp_path / "out/model.safetensors.index.json").read_text())
    assert listing == {
        "metadata": {"total_size": 12},
        "weight_map": {
            "a": "model-00001-of-00002.safetensors",
            "b": "model-00002-of-00002.safetensors",
            "c": "model-00001-of-00002.safetensors",
        },
    }
    with squish.open(tmp_path / "out") as file:
        assert {name: bytes(file[name].numpy()) for name in file} == {name: name.encode() * 4 for name in "abc"}
        assert bytes(file.assets["config.json"].raw) == b"{}"
        assert file.problems == ()


def test_a_tensor_larger_than_a_shard_has_its_own_shard(tmp_path: Path) -> None:
    write(
        tmp_path / "out",
        {"a": ("u8", (1,), b"a"), "b": ("u8", (9,), b"b" * 9), "c": ("u8", (1,), b"c")},
        max_shard_size="8",
    )
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3


def test_convert_makes_a_sharded_set_and_a_single_file_again(tmp_path: Path) -> None:
    write(tmp_path / "1.safetensors", {"a": ("f32", (2,), b"abcdefgh"), "b": ("bf16", (2, 2), b"abcdefgh")}, {"k": "v"})
    squish.convert(tmp_path / "1.safetensors", tmp_path / "set", "safetensors:max_shard_size=8B")
    squish.convert(tmp_path / "set", tmp_path / "2.safetensors")
    assert (tmp_path / "1.safetensors").read_bytes() == (tmp_path / "2.safetensors").read_bytes()


def test_convert_to_another_dtype(tmp_path: Path) -> None:
    values = np.array([[1, 2.5], [-3, 0.125]], np.float32)
    write(tmp_path / "1.safetensors", {"w": ("f32", (2, 2), values.tobytes())})
    squish.convert(tmp_path / "1.safetensors", tmp_path / "2.safetensors", encode="bf16")
    array = squish.open(tmp_path / "2.safetensors")["w"].numpy()
    assert array.dtype == ml_dtypes.bfloat16
    assert array.astype(np.float32).tolist() == values.tolist()


@pytest.mark.parametrize(("text", "size"), [("5GB", 5 * 10**9), ("500MiB", 500 << 20), ("7", 7), ("2 kb", 2000)])
def test_shard_sizes(text: str, size: int) -> None:
    from squish_safetensors.writer import parse_size

    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "0", "-1", "5XB", "1.5GB", "GB", "9" * 50])
def test_an_invalid_shard_size_is_an_error(text: str) -> None:
    with expect_error(FormatError, code="option", expected="a size such as 5GB or 500MiB", found=repr(text)):
        lay_out(CONTAINER, [], {}, {}, {"max_shard_size": text})


def test_metadata_and_assets_dropped_by_a_single_file_are_listed() -> None:
    meta = {"a": "x", "b": Typed("u32", 3), "c": Typed("str", "y"), "d": [1]}
    assets = {"config.json": Part(dtype="u8", shape=(2,)), "extra.bin": Part(dtype="u8", shape=(2,))}
    single = CONTAINER.plan_file([], meta, assets, {})
    texts = (Dropped("metadata", "b", "not text"), Dropped("metadata", "d", "not text"))
    assert single.dropped == (*texts, Dropped("asset", "config.json"), Dropped("asset", "extra.bin"))
    folder = CONTAINER.plan_file([], meta, assets, {"max_shard_size": "5GB"})
    assert folder.dropped == (*texts, Dropped("asset", "extra.bin"))


@pytest.mark.parametrize("name", ["../x.jinja", "a/b.jinja", ".jinja", "x.py", ".x.jinja", "a\\b.jinja", "x.jinja\0"])
def test_a_file_of_another_kind_or_place_is_not_written(name: str) -> None:
    path = f"additional_chat_templates/{name}"
    plan = CONTAINER.plan_file([], {}, {path: Part(dtype="u8", shape=(2,))}, {"max_shard_size": "5GB"})
    assert plan.dropped == (Dropped("asset", path),)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_is_accepted_under_the_codec_it_has(dtype: str) -> None:
    (spec,) = [tensor.spec for tensor in outgoing({"w": (dtype, (8,), bytes(8 * SUB_BYTE.get(dtype, 0) // 8))})]
    answer = CONTAINER.accepts(spec, spec.encodings[0], {})
    assert answer == spec.encodings[0]


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "codec"),
    [
        ("w", "f32", (32,), "affine"), ("w", "complex128", (1,), "dense"), ("w", "i4", (2,), "dense"),
        ("w", "f4_e2m1", (3,), "dense"), ("__metadata__", "f32", (1,), "dense"), ("\ud800", "f32", (1,), "dense"),
    ],
)  # fmt: skip
def test_unsupported_tensors_are_refused(name: str, dtype: str, shape: tuple[int, ...], codec: str) -> None:
    spec = TensorSpec(name=name, shape=shape, dtype=dtype)
    encoding = Encoding(codec=CodecSpec(codec), parts={"data": Part(dtype=dtype, shape=shape)})
    assert isinstance(CONTAINER.accepts(spec, encoding, {}), Refusal)


def test_packed_weights_are_refused() -> None:
    spec = TensorSpec(name="w", shape=(32,), dtype="f32")
    refusal = CONTAINER.accepts(spec, Encoding(codec=CodecSpec("ggml.q4_0"), parts={}), {})
    assert isinstance(refusal, Refusal)
    assert refusal.code == "dense-only"
