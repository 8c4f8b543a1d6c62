"""The order of rows within heads, as a codec around another."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_convert.arrays import in_memory
from squish_convert.mapping.codecs.heads import Order
from squish_convert.mapping.row_views import RowViews

import squish_core as squish
from squish_core.codecs.permuted import PermutedRows
from squish_core.errors import CodecError
from squish_core.io import sink
from squish_core.io.atomic import atomic_file
from squish_core.model import CodecSpec, Encoding, Part, TensorSpec
from squish_core.tensor import Tensor

VALUES = np.arange(24 * 6, dtype=np.float32).reshape(24, 6)


def tensor(**params: object) -> Tensor:
    """The values, read through the codec."""
    file = in_memory({"w": VALUES}, registry=toys.registry())
    (encoding,) = file.index.tensors["w"].encodings
    spec: TensorSpec = evolve(file.index.tensors["w"], encodings=(wrapped(encoding, params),))
    return Tensor(file, spec)


def wrapped(encoding: Encoding, params: dict[str, object]) -> Encoding:
    return evolve(encoding, codec=CodecSpec("heads", params, encoding.codec))


HALVES: dict[str, object] = {
    "heads": 3,
    "groups": 4,
    "parts": (1, 1),
    "inverse": True,
    "first": 0,
    "columns": False,
}


@pytest.mark.parametrize("rows", [slice(0, 24), slice(3, 5), slice(8, 16), slice(23, 24)])
def test_any_region_has_its_rows_in_order(rows: slice) -> None:
    expected = VALUES.reshape(3, 2, 4, 6).swapaxes(1, 2).reshape(24, 6)
    np.testing.assert_array_equal(tensor(**HALVES)[rows, 1:4], expected[rows, 1:4])
    back = VALUES.reshape(3, 4, 2, 6).swapaxes(1, 2).reshape(24, 6)
    np.testing.assert_array_equal(tensor(**{**HALVES, "inverse": False})[rows, 1:4], back[rows, 1:4])


def tiled(values: np.ndarray, groups: int, parts: tuple[int, ...]) -> np.ndarray:
    """The first part of every group of rows, then the second of every group, ..."""
    split = np.split(values.reshape(groups, sum(parts), -1), np.cumsum(parts)[:-1], axis=1)
    return np.concatenate([part.reshape(-1, values.shape[-1]) for part in split])


@pytest.mark.parametrize(
    ("groups", "parts", "first"), [(2, (3, 3, 3, 3), 0), (4, (1, 2), 12), (2, (4, 4), 8), (24, (1,), 0)]
)
def test_groups_of_rows_and_columns_are_tiled_and_grouped(groups: int, parts: tuple[int, ...], first: int) -> None:
    params = {"heads": 1, "groups": groups, "parts": parts, "first": first}
    expected = np.concatenate([VALUES[:first], tiled(VALUES[first:], groups, parts)])
    np.testing.assert_array_equal(tensor(**params, inverse=False, columns=False).numpy(), expected)
    order = Order(1, groups, parts, False, first)
    rows = RowViews(in_memory({"w": VALUES, "v": np.ascontiguousarray(VALUES.T)}, registry=toys.registry()))
    for columns, name, values in ((False, "w", VALUES), (True, "v", VALUES.T)):
        spec = rows.file.index.tensors[name]
        moved = rows.reorder(spec, order, columns)
        back = rows.reorder(moved, evolve(order, inverse=True), columns)
        turned = expected.T if columns else expected
        np.testing.assert_array_equal(Tensor(rows.file, moved).numpy(), turned)
        np.testing.assert_array_equal(Tensor(rows.file, back).numpy(), values)
        is_moved_as_bytes = moved.encodings[0].codec == spec.encodings[0].codec
        assert is_moved_as_bytes == (not columns or not first)


@pytest.mark.parametrize(
    "params", [{**HALVES, "heads": 5}, {**HALVES, "groups": 24}, {**HALVES, "parts": (1, 0)}, {"heads": 3}, {}]
)
def test_heads_that_do_not_divide_the_rows_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(CodecError) as caught:
        tensor(**params).numpy()
    assert caught.value.code == "params"


@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("piece", [1, 24, 50, 1 << 20])
def test_permuted_rows_are_written_a_few_at_a_time(
    mmap: bool, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sink, "_PIECE", piece)
    place, order = tmp_path / "rows.zt", np.random.default_rng(0).permutation(24)
    squish.save(place, {"w": VALUES})
    with squish.open(place, mmap=mmap) as file:
        (segment,) = file["w"].bound.encoding.parts["data"].segments
        rows = PermutedRows(segment.file, segment.offset, 24, order)
        array = file.array(Part(dtype="f32", shape=(24, 6), segments=rows))
        with atomic_file(tmp_path / "permuted.bin") as target:
            array.write_to(target)
    assert (tmp_path / "permuted.bin").read_bytes() == VALUES[order].tobytes()


@pytest.mark.parametrize("mmap", [True, False])
def test_any_range_of_permuted_rows_is_read(mmap: bool, tmp_path: Path) -> None:
    path = tmp_path / "rows.zt"
    squish.save(path, {"w": VALUES})
    with squish.open(path, mmap=mmap) as file:
        (segment,) = file["w"].bound.encoding.parts["data"].segments
        order = np.array([5, 3, 3, 20, 0])
        rows = PermutedRows(segment.file, segment.offset, 24, order)
        array = file.array(Part(dtype="f32", shape=(5, 6), segments=rows))
        expected = VALUES[order].tobytes()
        for start, length in ((0, 120), (0, 24), (7, 1), (20, 60), (119, 1)):
            assert bytes(array.bytes(start, length)) == expected[start : start + length]
        out = bytearray(120)
        array.read_into(memoryview(out))
        assert out == expected
        assert array.part.stored == 120


def test_permuted_rows_are_equal_if_they_are_the_same_bytes() -> None:
    order = np.array([3, 1, 2])
    rows = PermutedRows(0, 100, 4, order)
    assert rows == PermutedRows(0, 100, 4, order.copy())
    assert rows == PermutedRows(0, 104, 4, order - 1)
    assert rows == tuple(rows)
    for other in (order[:2], order[::-1]):
        assert rows != PermutedRows(0, 100, 4, other)
    assert rows != PermutedRows(0, 102, 4, order)
    assert rows != PermutedRows(1, 100, 4, order)
