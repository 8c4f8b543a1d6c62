"""Writing: exact bytes, predicted sizes, refusals and dropped metadata."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from squish_convert.api import lay_out
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import Dropped, Encoding, Part, Refusal, Sink, TensorSpec, Typed
from squish_core.errors import FormatError, UsageError
from squish_core.formats.metadata import dump_meta, load_meta
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.model import DENSE, CodecSpec

DEFAULT = squish.Limits()


def written(path: Path, meta: dict, arrays: dict[str, np.ndarray] | None = None) -> bytes:
    """Write a file through the container alone and check the size of its image."""
    container = squish.registry().container("gguf")
    outgoing = []
    for name, array in (arrays or {}).items():
        part = Part(dtype="f32", shape=array.shape)
        spec = TensorSpec(
            name=name, shape=array.shape, dtype="f32", encodings=(Encoding(codec=DENSE, parts={"data": part}),)
        )
        outgoing.append(OutgoingTensor(spec, {"data": Stream(part, lambda array=array: [array.tobytes()])}))
    image = lay_out(container, [item.spec for item in outgoing], meta, {}, {})
    with path.open("wb") as file:
        container.write(Sink(file, None, None), outgoing, meta, {}, {})
    data = path.read_bytes()
    assert image is not None
    assert image.size == len(data)
    return data


@pytest.fixture
def everything(raw) -> bytes:
    """A file with every metadata type, dense and block tensors, and a non-default alignment."""
    pairs = [
        raw.text("zeta", "é"), raw.text("bytes", b"\xff"), raw.scalar("general.alignment", "u32", 64),
        *(raw.scalar(f"s.{kind}", kind, 1) for kind in raw.CODES),
        *(raw.array(f"a.{kind}", code, 2, struct.pack(f"<2{form}", 1, 0)) for kind, (code, form) in raw.CODES.items()),
        raw.array("a.str", 8, 3, raw.string("a") + raw.string(b"\xfe") + raw.string("")),
        raw.array("a.empty", 8, 0, b""),
        raw.array("a.none", 9, 0, b""),
        raw.array("n.f32", 9, 2, raw.elements(6, 2, struct.pack("<2f", 0.1, 0.2)) + raw.elements(6, 0, b"")),
        raw.array("n.str", 9, 1, raw.elements(9, 1, raw.elements(8, 1, raw.string("deep")))),
        raw.pair("nan", 6, bytes.fromhex("010080ff")), raw.pair("nan64", 12, bytes.fromhex("010000000000f07f")),
        raw.array("nans", 6, 2, bytes.fromhex("010080ff0100c07f")), raw.scalar("tenth", "f32", 0.1),
    ]  # fmt: skip
    tensors = (
        raw.tensor("dense", (3, 2)), raw.tensor("half", (5,), 1, 64), raw.tensor("blocks", (32, 2), 2, 128),
        raw.tensor("iq", (256,), 16, 192), raw.tensor("scalar", (), 0, 320), raw.tensor("none", (0, 3), 0, 384),
    )  # fmt: skip
    data = [bytes(range(1, 1 + size)) for size in (24, 10, 36, 66, 4)]
    return raw.file(
        tuple(pairs), tensors, b"".join(each.ljust(-(-len(each) // 64) * 64, b"\0") for each in data), alignment=64
    )


def test_a_rewritten_file_is_the_same_file(everything, tmp_path):
    assert not [problem for problem in squish.open(everything).problems if problem.code != "utf-8"]
    report = squish.convert(everything, tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == everything
    assert not report.dropped


def test_disk_space_is_reserved_for_exactly_the_file(everything, tmp_path, monkeypatch):
    lengths = []
    monkeypatch.setattr(Sink, "reserve", lambda sink, length: None if sink.records else lengths.append(length))
    squish.convert(everything, tmp_path / "copy.gguf")
    assert lengths == [(tmp_path / "copy.gguf").stat().st_size]


def test_version_2_is_written_as_version_3(raw, tmp_path):
    pairs, tensors = (raw.text("k", "v"),), (raw.tensor("w", (8,)),)
    squish.convert(raw.file(pairs, tensors, bytes(32), version=2), tmp_path / "copy.gguf")
    assert (tmp_path / "copy.gguf").read_bytes() == raw.file(pairs, tensors, bytes(32), version=3)


def test_metadata_round_trips_through_another_format(everything, tmp_path):
    with squish.open(everything) as file:
        meta, _ = load_meta(dump_meta(file.index.meta, {}), DEFAULT)
        assert written(tmp_path / "a", meta) == written(tmp_path / "b", dict(file.index.meta))


UNTYPED = [
    (True, "bool"), ("text", "str"), (0, "u32"), ((1 << 32) - 1, "u32"), (-1, "i32"), (1 << 32, "i64"),
    (-(1 << 31) - 1, "i64"),
    ((1 << 63), "u64"), (0.5, "f32"), (0.1, "f64"), (1e300, "f64"), ([1, 2], "array:u32"), ([1, -2], "array:i32"),
    ([1, -(1 << 40)], "array:i64"), ([0.5, 1], "array:f32"), ([0.1, 1], "array:f64"), ([True, False], "array:bool"),
    (["a", "b"], "array:str"), ([[1], [-2]], "array:array:i32"), ([], "array:u32"), (("a",), "array:str"),
]  # fmt: skip


@pytest.mark.parametrize(("value", "kind"), UNTYPED)
def test_a_python_value_gets_the_first_type_that_holds_it(tmp_path, value, kind):
    with squish.open(written(tmp_path / "f", {"k": value})) as file:
        stored = file.index.meta["k"]
        assert stored.type == kind
        expected = list(value) if isinstance(value, tuple) else value
        assert stored.value == expected


@pytest.mark.parametrize(
    "value",
    [
        None, b"bytes", {"a": 1}, 1 << 64, -(1 << 63) - 1, ["a", 1], [True, 1], [None], Typed("bytes", b"x"),
        Typed("f16", 1.0),
        Typed("array:" * 9 + "u8", []), Typed("array:bf16", [1.0]),
    ],
)  # fmt: skip
def test_a_value_without_a_gguf_type_is_dropped_by_name(value):
    layout = squish.registry().container("gguf").plan_file([], {"k": value, "kept": 1}, {}, {})
    assert layout.dropped == (Dropped("metadata", "k"),)


@pytest.mark.parametrize("value", [["a", "\u4e00", ""], [], Typed("array:str", ["a", b"\xff"])])
def test_the_predicted_size_of_texts_is_exact(tmp_path, value):
    written(tmp_path / "f", {"k": value})


@pytest.mark.parametrize(
    "value", [Typed("u8", 256), Typed("u8", "x"), Typed("bool", 2), Typed("f32", 1e300), Typed("str", 5),
              Typed("array:u8", 5), Typed("array:u8", [256]), Typed("str", "\ud800"),
              Typed("array:str", ["a", "\ud800"]), Typed("array:str", ["a", 1])],
)  # fmt: skip
def test_a_value_that_does_not_fit_its_type_is_an_error_with_the_key(value):
    with expect_error(FormatError, code="meta"):
        lay_out(squish.registry().container("gguf"), [], {"k": value}, {}, {})


@pytest.mark.parametrize("key", ["", "a\0b", "k" * 65536])
def test_a_key_that_gguf_forbids_is_an_error(key):
    with expect_error(FormatError, code="meta"):
        lay_out(squish.registry().container("gguf"), [], {key: 1}, {}, {})


def test_an_invalid_alignment_is_an_error():
    with expect_error(FormatError, code="alignment", expected="a u32, a power of two up to 1048576", found="u32 48"):
        lay_out(squish.registry().container("gguf"), [], {"general.alignment": 48}, {}, {})


def test_an_untyped_alignment_is_accepted(tmp_path):
    data = written(
        tmp_path / "f", {"general.alignment": 128}, {"a": np.ones(3, np.float32), "b": np.ones(3, np.float32)}
    )
    assert len(data) == 128 + 2 * 128
    with squish.open(data) as file:
        assert file["b"].numpy().tolist() == [1, 1, 1]


def accepts(
    shape: tuple[int, ...],
    codec: str,
    dtype: str = "u8",
    part_shape: tuple[int, ...] | None = None,
    extra: bool = False,
):
    """The container's answer for a tensor."""
    parts = {"data": Part(dtype=dtype, shape=shape if part_shape is None else part_shape)}
    if extra:
        parts["scale"] = Part(dtype="f32", shape=())
    spec = TensorSpec(name="w", shape=shape, dtype=dtype if codec == "dense" else "f32")
    return squish.registry().container("gguf").accepts(spec, Encoding(codec=CodecSpec(codec), parts=parts), {})


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16", "f64", "i8", "i16", "i32", "i64"])
def test_dense_types_of_gguf_are_accepted(dtype):
    assert accepts((2, 3), "dense", dtype).parts["data"] == Part(dtype=dtype, shape=(2, 3))


def test_blocks_are_accepted_as_rows():
    assert accepts((2, 64), "ggml.q8_0", part_shape=(2, 68)).parts["data"].shape == (2, 68)


@pytest.mark.parametrize(
    ("encode", "why"),
    [
        (((2, 3), "dense", "u8"), "no u8 tensors"),
        (((2, 3), "dense", "f8_e4m3"), "no f8_e4m3 tensors, only f32"),
        (((1, 1, 1, 1, 64), "ggml.scaled_nvfp4", "u8"), "at most 4 dimensions"),
        (((2, 64), "affine", "u8"), "no type for affine"),
        (((2, 64), "ggml.q9_9", "u8"), "no type for ggml.q9_9"),
        (((2, 33), "ggml.q8_0", "u8"), "multiple of 32"),
        (((), "ggml.q8_0", "u8"), "multiple of 32"),
        (((2, 64), "ggml.q8_0", "u8", (136,)), "its part is u8"),
        (((2, 64), "ggml.q8_0", "u8", (2, 68), True), "one array per tensor"),
    ],
)
def test_an_unsupported_encoding_is_refused_with_a_reason(encode, why):
    answer = accepts(*encode)
    assert isinstance(answer, Refusal)
    assert why in answer.why


def test_short_names_encode(raw, tmp_path):
    values = np.linspace(-1, 1, 128, dtype=np.float32).reshape(2, 64)
    data = raw.file((), (raw.tensor("w", (64, 2)),), values.tobytes())
    squish.convert(data, tmp_path / "half.gguf", encode="f16")
    with squish.open(tmp_path / "half.gguf") as file:
        assert file["w"].dtype == "f16"
        assert np.array_equal(file["w"].numpy(), values.astype(np.float16))


SCALARS = {
    "u8": st.integers(0, 255), "i8": st.integers(-128, 127), "u16": st.integers(0, 65535),
    "i16": st.integers(-(1 << 15), (1 << 15) - 1), "u32": st.integers(0, (1 << 32) - 1),
    "i32": st.integers(-(1 << 31), (1 << 31) - 1), "u64": st.integers(0, (1 << 64) - 1),
    "i64": st.integers(-(1 << 63), (1 << 63) - 1), "f32": st.floats(width=32), "f64": st.floats(),
    "bool": st.booleans(),
    "str": st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
}  # fmt: skip


def typed_values() -> st.SearchStrategy[Typed]:
    """Values of every type, arrays too."""
    arrays = [(f"array:{kind}", st.lists(values, max_size=5)) for kind, values in SCALARS.items()]
    nested = [(f"array:{kind}", st.lists(values, min_size=1, max_size=3)) for kind, values in arrays]
    choices = [*SCALARS.items(), *arrays, *nested]
    return st.one_of([st.builds(Typed, st.just(kind), values) for kind, values in choices])


META = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20),
    typed_values(),
    max_size=8,
).filter(lambda meta: not any(key in meta for key in ("general.alignment", "split.count")))


@given(meta=META)
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_metadata_round_trips_in_order_with_its_types(tmp_path, meta):
    data = written(tmp_path / "f", meta)
    with squish.open(data) as file:
        assert list(file.index.meta) == list(meta)
        for key, value in meta.items():
            assert file.index.meta[key].type == value.type
            assert repr(untyped(file.index.meta[key].value)) == repr(value.value)
        through, _ = load_meta(dump_meta(file.index.meta, {}), DEFAULT)
        assert written(tmp_path / "f", through) == data
        assert written(tmp_path / "f", dict(file.index.meta)) == data


def untyped(value: object) -> object:
    """Lazy arrays as lists."""
    return value if isinstance(value, (str, bytes, int, float)) else [untyped(item) for item in value]


def test_a_scale_beside_quantized_weights_is_noted_and_kept(tmp_path):
    """BitNet's scales are tensors by which llama.cpp multiplies products."""
    weights = np.random.default_rng(0).normal(size=(4, 256)).astype(np.float32)
    tensors = {"blk.0.attn_q.weight": weights, "blk.0.attn_q.scale": np.array([0.5], np.float32)}
    squish.save(tmp_path / "in.safetensors", {**tensors, "blk.0.attn_k.weight": weights})
    squish.convert(tmp_path / "in.safetensors", tmp_path / "out.gguf", encode={"*.weight": "tq2_0"})
    squish.convert(tmp_path / "out.gguf", tmp_path / "again.gguf")
    for path in (tmp_path / "out.gguf", tmp_path / "again.gguf"):
        with squish.open(path, strict=True) as file:
            (note,) = file.problems
            assert (note.code, note.severity, note.where) == ("scale", "note", "blk.0.attn_q.weight")
            assert file["blk.0.attn_q.scale"].numpy() == 0.5
            assert (file["blk.0.attn_q.weight"].numpy() == file["blk.0.attn_k.weight"].numpy()).all()
    squish.convert(tmp_path / "in.safetensors", tmp_path / "dense.gguf")
    assert not squish.open(tmp_path / "dense.gguf").problems


@pytest.mark.parametrize("rule", ["bf16", "*=bf16"])
def test_a_rule_for_all_leaves_what_llama_cpp_runs_in_f32(rule: str, tmp_path: Path) -> None:
    names = ("blk.0.attn_norm.weight", "rope_freqs.weight", "output_norm.weight")
    arrays = {name: np.ones(8, np.float32) for name in names}
    arrays |= {
        "blk.0.attn_q.weight": np.ones((8, 8), np.float32),
        "blk.0.ffn_gate_inp.weight": np.ones((4, 8), np.float32),
    }
    squish.save(tmp_path / "model.gguf", arrays)
    report = squish.convert(tmp_path / "model.gguf", tmp_path / "out.gguf", encode=rule)
    assert {step.name: step.spec.dtype for step in report.steps} == {
        **dict.fromkeys(arrays, "f32"),
        "blk.0.attn_q.weight": "bf16",
    }
    assert {step.note for step in report.steps} == {"", "kept: llama.cpp runs it in f32"}


def test_the_option_keep_is_yes_or_no(tmp_path: Path) -> None:
    arrays = {"w": np.ones((2, 4), np.float32)}
    with expect_error(UsageError, code="option", found="'nope'", expected="yes or no"):
        squish.save(tmp_path / "o.gguf", arrays, format="gguf:keep=nope")
    assert not list(tmp_path.iterdir())
