"""Files and tensors: nothing is read before it is asked for, and every failure says where."""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys
from squish_testing import CountingSource, expect_error

import squish_core as squish
from squish_core import api
from squish_core.errors import (
    CodecError,
    FormatError,
    LimitError,
    MissingPluginError,
    SquishError,
    TensorError,
    UsageError,
)
from squish_core.formats.metadata import dump_meta, load_meta
from squish_core.io.source import BytesSource
from squish_core.limits import Limits
from squish_core.model import Typed

VALUES = np.random.default_rng(0).standard_normal((64, 32)).astype(np.float32)
BOX = toys.box({"w": VALUES, "q": toys.rows(VALUES), "bias": VALUES[0]}, {"name": "toy"}, {"config.json": b"{}"})


@pytest.fixture
def file() -> Any:
    return squish.open(BOX, registry=toys.registry())


def test_a_file_is_a_mapping_in_file_order(file: Any) -> None:
    assert list(file) == ["w", "q", "bias"]
    assert len(file) == 3
    assert "w" in file
    assert "v" not in file
    assert dict(file.meta) == {"name": "toy"}
    assert bytes(file.assets["config.json"].raw) == b"{}"
    assert file.format == "toy.box"


def test_a_file_has_its_path_size_and_version(file: Any, tmp_path: Path) -> None:
    (tmp_path / "a.box").write_bytes(BOX)
    on_disk = squish.open(tmp_path / "a.box", registry=toys.registry())
    assert (on_disk.path, on_disk.size, on_disk.version) == (tmp_path / "a.box", len(BOX), on_disk.index.version)
    assert (file.path, file.size) == (None, len(BOX))


def test_an_unknown_name_suggests_close_matches(file: Any) -> None:
    with pytest.raises(KeyError, match="Close matches: bias"):
        file["bia"]
    with pytest.raises(KeyError, match=r"'nope' is not in <bytes>\W$"):
        file["nope"]
    with pytest.raises(KeyError, match="3 is not in"):
        file[3]
    with pytest.raises(KeyError):
        file.assets["nothing"]
    assert file.assets.get("nothing") is None
    assert repr(file.assets) == "<Assets config.json>"
    assert "nothing" not in file.assets


def test_shapes_and_sizes_read_no_tensor_bytes() -> None:
    source = CountingSource(BytesSource(BOX))
    file = squish.open(source, registry=toys.registry())
    source.log.clear()
    for tensor in file.values():
        repr(tensor)
        assert tensor.nbytes
        assert tensor.bits_per_weight
        tensor.plan()
    assert source.log == []


def test_facts_of_tensors(file: Any) -> None:
    assert (file["q"].shape, file["q"].dtype, file["q"].codec) == ((64, 32), "f32", "toy.rows")
    assert file["q"].nbytes == 64 * 32 + 64 * 4
    assert file["q"].bits_per_weight == 8 * (64 * 32 + 64 * 4) / (64 * 32)


def test_dense_values_are_a_view_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.box").write_bytes(BOX)
    with squish.open(tmp_path / "a.box", registry=toys.registry()) as file:
        array = file["w"].numpy()
        assert not array.flags.owndata
        assert not array.flags.writeable
        assert file["w"].numpy(copy=True).flags.writeable
    del file
    gc.collect()
    np.testing.assert_array_equal(array, VALUES)


def test_out_is_filled_and_checked(file: Any) -> None:
    for name in ("w", "q"):
        out = np.empty((64, 32), np.float32)
        assert file[name].numpy(out=out) is out
        np.testing.assert_array_equal(out, file[name].numpy())
        turned = np.empty((32, 64), np.float32).T
        np.testing.assert_array_equal(file[name].numpy(out=turned), out)
        for wrong in (np.empty((64, 31), np.float32), np.empty((64, 32), np.float64)):
            with expect_error(UsageError, code="out", expected="writable float32 (64, 32)"):
                file[name].numpy(out=wrong)
        with expect_error(UsageError, code="out", expected="writable float32 (64, 32)", found="list"):
            file[name].numpy(out=[0.0])  # type: ignore[arg-type]
        half = np.empty((64, 32), np.float16)
        assert file[name].numpy(dtype="f16", out=half) is half
        with expect_error(UsageError, code="out", expected="writable float16 (64, 32)", found="float32 (64, 32)"):
            file[name].numpy(dtype="f16", out=out)
        out.flags.writeable = False
        with expect_error(
            UsageError, code="out", expected="writable float32 (64, 32)", found="read-only float32 (64, 32)"
        ):
            file[name].numpy(out=out)


def test_a_dtype_may_be_requested(file: Any) -> None:
    assert file["q"].numpy(dtype="f16").dtype == np.float16
    assert file["w"].numpy(dtype="bf16").dtype.name == "bfloat16"
    with expect_error(
        SquishError, code="dtype", tensor="w", expected="a name such as f16, or a NumPy dtype", found="'f17'"
    ):
        file["w"].numpy(dtype="f17")
    for dtype in (np.float16, np.dtype("f2"), "float16", file["w"].numpy(dtype="f16").dtype):
        assert file["q"].numpy(dtype=dtype).dtype == np.float16
        assert file["q"].load("numpy").dense(dtype=dtype).dtype == np.float16
    assert file["w"].numpy(dtype="bfloat16").dtype.name == "bfloat16"
    for unclear in ("f2", "i8x", object, 3.5):  # an abbreviation of NumPy counts bytes where a name here counts bits
        with expect_error(UsageError, code="dtype", tensor="w", expected="a name such as f16, or a NumPy dtype"):
            file["w"].numpy(dtype=unclear)


def test_arrays_come_by_the_array_protocol(file: Any) -> None:
    np.testing.assert_array_equal(np.asarray(file["w"]), VALUES)
    np.testing.assert_array_equal(file.get_tensor("w"), VALUES)
    assert np.asarray(file["w"], np.float64).dtype == np.float64
    assert not np.asarray(file["w"], copy=False).flags.owndata
    with pytest.raises(ValueError, match="q must be decoded"):
        np.asarray(file["q"], copy=False)


def test_a_tensor_is_a_sequence_of_its_rows(file: Any) -> None:
    for name in ("w", "q", "bias"):
        tensor = file[name]
        assert (tensor.ndim, tensor.size, len(tensor)) == (len(tensor.shape), tensor.numpy().size, tensor.shape[0])
        np.testing.assert_array_equal(list(tensor), tensor.numpy())
        np.testing.assert_array_equal(next(reversed(tensor)), tensor[-1])
        with expect_error(IndexError, code="index"):
            tensor[len(tensor)]
    empty = squish.open(toys.box({"none": VALUES[:0], "one": np.array(VALUES[0, 0])}), registry=toys.registry())
    assert list(empty["none"]) == []
    assert bool(empty["none"])
    assert bool(empty["one"])
    with pytest.raises(TypeError, match="scalar"):
        len(empty["one"])
    with pytest.raises(TypeError, match="scalar"):
        iter(empty["one"])


@pytest.mark.parametrize(
    "key",
    [
        64,
        -65,
        (0, 0, 0),
        "a",
        1.5,
        True,
        None,
        (0, [0, 1]),
        [[0], [1]],
        (Ellipsis, Ellipsis),
        slice(0, 4, 0),
        slice(0.5, 2),
        np.ones(64, bool),
        np.zeros((2, 2), int),
    ],
)
def test_an_index_that_does_not_fit_is_a_typed_error(file: Any, key: Any) -> None:
    with expect_error(TensorError, code="index", tensor="w") as caught:
        file["w"][key]
    assert caught.value.code == "index"


def test_other_byte_orders_and_filters_read_the_same() -> None:
    for options in ({"byteorder": ">"}, {"filters": ("toy.xor",)}):
        tensor = squish.open(toys.box({"w": VALUES}, **options), registry=toys.registry())["w"]  # type: ignore[arg-type]
        np.testing.assert_array_equal(tensor.numpy(), VALUES)
        np.testing.assert_array_equal(tensor[3:5, ::2], VALUES[3:5, ::2])


def test_a_tensor_without_its_codec_says_what_to_install_and_gives_its_parts() -> None:
    stored = {"blocks": np.arange(4, dtype="u1")}
    file = squish.open(toys.box({"w": ("ggml.q4_k", (4,), stored), "v": VALUES}), registry=toys.registry())
    for read in (file["w"].numpy, lambda: file["w"][0], file["w"].load):
        with expect_error(MissingPluginError, tensor="w", hint="pip install squish-ggml"):
            read()
    assert bytes(file["w"].parts()["blocks"].raw) == b"\0\1\2\3"
    assert file["v"].numpy() is not None


def test_stored_bytes_that_do_not_fit_the_shape_are_a_typed_error() -> None:
    raw = BOX.replace(b'["f32", [64, 32], 0, 8192', b'["f32", [64, 32], 0, 8188')
    for read in (lambda t: t.numpy(), lambda t: t[0], lambda t: t.parts()):
        with expect_error(
            SquishError, code="size", tensor="w", expected="8192 bytes for f32 [64, 32]", found="8188 bytes"
        ):
            read(squish.open(raw, registry=toys.registry())["w"])


def test_limits_hold_before_memory_is_taken() -> None:
    raw = toys.box({"w": VALUES}, filters=("toy.xor",))
    file = squish.open(raw, registry=toys.registry(), limits=Limits(decoded=100))
    with expect_error(
        LimitError, code="ratio", tensor="w", expected="at most 100 bytes", found="8192 bytes", hint="decoded="
    ):
        file["w"].numpy()
    with expect_error(LimitError, code="count", expected="at most 2", found=3):
        squish.open(BOX, registry=toys.registry(), limits=Limits(tensors=2))


def test_a_foreign_exception_of_a_plugin_is_wrapped_with_its_place() -> None:
    with expect_error(FormatError, code="plugin-bug"):
        squish.open(b"TOYB\4\0\0\0nope", registry=toys.registry())
    with expect_error(CodecError, code="plugin-bug", tensor="w"):
        squish.open(toys.box({"w": ("toy.rows", (4, 4), {})}), registry=toys.registry())["w"].numpy()


def test_operations_of_a_loaded_tensor(file: Any) -> None:
    weight = file["q"].load("numpy")
    operand = np.ones((3, 32), np.float32)
    dense = weight.dense()
    np.testing.assert_allclose(weight.linear(operand), operand @ dense.T, rtol=1e-5)
    np.testing.assert_array_equal(weight.embed(np.array([[5, 0], [5, 63]])), dense[[[5, 0], [5, 63]]])
    for wrong in (
        lambda: weight.linear(np.ones(31)),
        lambda: weight.embed([64]),
        lambda: weight.embed([-1]),
        lambda: weight.embed([0.5]),
        lambda: weight.experts(operand, [0]),
        lambda: weight.linear("x"),
        lambda: weight.linear([[1], [1, 2]]),
        lambda: weight.linear(operand * 1j),
        lambda: weight.embed([[1], [1, 2]]),
    ):
        with expect_error(SquishError, tensor="q") as caught:
            wrong()
        assert caught.value.code != "plugin-bug"
    assert weight.embed([]).shape == (0, 32)


def test_products_with_complex_weights_are_refused() -> None:
    weights = np.ones((2, 4), np.complex64) * 1j
    weight = squish.open(toys.box({"w": weights}), registry=toys.registry())["w"].load("numpy")
    for product in (lambda: weight.linear(np.ones(4)), lambda: weight.embed([1])):
        with expect_error(SquishError, code="op", tensor="w", found="complex64"):
            product()
    np.testing.assert_array_equal(weight.dense(), weights)


@pytest.mark.parametrize(("shape", "usual", "other"), [((4,), "dense", "linear"), ((4, 4), "linear", "experts"),
                                                      ((2, 4, 4), "experts", "linear")])  # fmt: skip
def test_the_default_operation_follows_from_the_rank(shape: tuple[int, ...], usual: str, other: str) -> None:
    tensor = squish.open(toys.box({"w": np.ones(shape, np.float32)}), registry=toys.registry())["w"]
    for load in (tensor.load, lambda: tensor.load(op=usual)):
        np.testing.assert_array_equal(load().dense(), tensor.numpy())
    with pytest.raises(SquishError) as caught:
        tensor.plan(op=other)
    assert (caught.value.code, caught.value.tensor, caught.value.found) == ("rank", "w", repr(other))
    assert usual in caught.value.expected


@pytest.mark.parametrize("shape", [(3, 0), (0, 4), (0, 0)])
def test_products_with_weights_without_elements(shape: tuple[int, int]) -> None:
    weight = squish.open(toys.box({"w": np.ones(shape, np.float32)}), registry=toys.registry())["w"].load("numpy")
    for lead in ((), (2,), (0,), (2, 3)):
        np.testing.assert_array_equal(weight.linear(np.ones((*lead, shape[1]))), np.zeros((*lead, shape[0])))


def test_a_loaded_tensor_decodes_a_region_into_out(file: Any) -> None:
    weight, region = file["q"].load("numpy"), (slice(0, 1), slice(1, 3))
    expected = file["q"][region].astype(np.float16)
    out = np.zeros(expected.shape, np.float16)
    assert weight.dense(region=region, dtype="f16", out=out) is out
    np.testing.assert_array_equal(out, expected)
    with expect_error(SquishError, code="out", tensor="q", expected="writable float32 (1, 2)", found="float16 (1, 2)"):
        weight.dense(region=region, out=out)


def test_a_region_of_a_loaded_tensor_is_any_slices_of_it(file: Any) -> None:
    weight = file["q"].load("numpy")
    for region in (slice(3, 5), (slice(None), slice(-2, None)), (slice(60, 999),), ..., slice(5, 2)):
        np.testing.assert_array_equal(weight.dense(region=region), file["q"][region])
    for wrong in (3, slice(None, None, 2), (slice(0, 1), 0), (slice(None),) * 3, "x"):
        with expect_error(TensorError, code="index", tensor="q") as caught:
            weight.dense(region=wrong)
        assert caught.value.code == "index"


def test_an_open_file_is_itself_and_does_not_pickle(file: Any) -> None:
    assert file == file
    assert file != squish.open(BOX, registry=toys.registry())
    assert {file: 1}[file] == 1
    for opened in (file, file["w"]):
        with pytest.raises(TypeError, match="open it there"):
            pickle.dumps(opened)


def test_experts_pick_a_matrix_for_each_row() -> None:
    experts = np.random.default_rng(0).standard_normal((4, 5, 6)).astype(np.float32)
    weight = squish.open(toys.box({"e": experts}), registry=toys.registry())["e"].load(op="experts")
    operand, ids = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32), np.array([2, 0, 2])
    expected = np.stack([row @ experts[expert].T for row, expert in zip(operand, ids)])
    np.testing.assert_allclose(weight.experts(operand, ids), expected, rtol=1e-5)
    for rows, few in ((operand, [0, 1]), (operand[0], [0]), (operand, [[0], [1], [2]])):
        with expect_error(SquishError, code="shape", tensor="e", expected="shapes [n, 6] and [n]"):
            weight.experts(rows, few)


def test_strict_fails_on_warnings_and_lists_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    read = toys.Box.read_index

    def warned(self: Any, source: Any, limits: Any) -> Any:
        from attrs import evolve

        problem = api.Problem(code="odd", severity="warning", where="w", message="looks odd")
        return evolve(read(self, source, limits), problems=(problem,))

    monkeypatch.setattr(toys.Box, "read_index", warned)
    assert squish.open(BOX, registry=toys.registry()).problems[0].code == "odd"
    with expect_error(FormatError, code="odd", tensor="w"):
        squish.open(BOX, registry=toys.registry(), strict=True)


def test_errors_pickle_and_their_text_hides_control_characters() -> None:
    error = FormatError("bad\x1b[31m", file="a", tensor="w\u202e", offset=3, expected=1, found=2, hint="Do this.")
    restored = pickle.loads(pickle.dumps(error))
    assert str(restored) == str(error) == "a: w\\u202e: bad\\x1b[31m (at byte 3, expected 1, found 2). Do this."


def test_typed_metadata_survives_exactly() -> None:
    meta = {
        "a": Typed("u8", 7), "b": Typed("array:f32", np.array([1.5, np.nan], "<f4")),
        "c": Typed("array:str", ["x", "y"]), "d": "plain", "e": Typed("array:array:i32", [np.arange(2, dtype="<i4")]),
    }  # fmt: skip
    loaded, assets = load_meta(dump_meta(meta, {"t": b"\0"}), Limits())
    assert list(loaded) == list(meta)
    assert assets == {"t": b"\0"}
    assert [getattr(value, "type", None) for value in loaded.values()] == [
        "u8",
        "array:f32",
        "array:str",
        None,
        "array:array:i32",
    ]
    assert loaded["b"].value.tobytes() == meta["b"].value.tobytes()  # type: ignore[attr-defined]
    for damaged in (b"", b"\0", b"\xa1\x61v\x02", b"\xff" * 9):
        with expect_error(FormatError, code="meta", tensor="squish.meta"):
            load_meta(damaged, Limits())


def test_a_format_that_fails_to_import_is_an_error_with_the_file() -> None:
    class Plugin:
        @api.hookimpl
        def squish_containers(self) -> list[api.ContainerInfo]:
            signatures = (api.Signature(b"GONE"),)
            return [api.ContainerInfo(id="toy.gone", title="gone", factory="toy_gone:Gone", signatures=signatures)]

    registry = api.Registry("", extra=[Plugin()], entry_points=list)
    with expect_error(MissingPluginError, code="import"):
        squish.open(b"GONE", registry=registry)


def test_names_that_differ_only_in_unicode_composition_are_kept_and_reported() -> None:
    with squish.open(toys.box({"caf\u00e9": VALUES, "cafe\u0301": VALUES}), registry=toys.registry()) as file:
        assert list(file) == ["caf\u00e9", "cafe\u0301"]
        assert [problem.where for problem in file.problems] == ["cafe\u0301"]
