"""Rows of stacked tensors are found by name, and are tensors over the row's own bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_convert.compare.stacks import complete_stacks, rows_of

import squish_core as squish
from squish_core.api import Encoding, File, Segment

VALUES = np.arange(24, dtype="<f4").reshape(4, 3, 2)
AFFIXES = ("experts.", ".up")


def stacked(values: np.ndarray = VALUES, affixes: tuple[str, str] = AFFIXES, **parts: Any) -> File:
    """A file of one stack; `parts` changes its stored part."""
    file = squish.open(toys.box({"stack": values}, **parts), registry=toys.registry())
    spec = evolve(file.index.tensors["stack"], row_names=affixes)
    return File(file.source, evolve(file.index, tensors={"stack": spec}), file.registry, file.limits)


def test_a_row_has_the_values_and_the_bytes_of_the_row() -> None:
    file = stacked()
    rows = rows_of(file, [f"experts.{number}.up" for number in range(5)] + ["stack", "other"])
    assert sorted(rows) == [f"experts.{number}.up" for number in range(4)]
    for number in range(4):
        row = rows[f"experts.{number}.up"]
        assert (row.stack, row.number, row.tensor.shape) == ("stack", number, (3, 2))
        np.testing.assert_array_equal(row.tensor.numpy(), VALUES[number])
        assert bytes(row.tensor.parts()["data"].raw) == VALUES[number].tobytes()
    assert complete_stacks(file, rows.values()) == {"stack"}
    assert complete_stacks(file, list(rows.values())[:3]) == set()


@pytest.mark.parametrize("cut", [8, 24, 36, 60])
def test_a_row_may_lie_in_several_segments(cut: int) -> None:
    file = stacked()
    spec = file.index.tensors["stack"]
    part = spec.encodings[0].parts["data"]
    (whole,) = part.segments
    segments = (
        Segment(whole.file, whole.offset, cut), Segment(whole.file, whole.offset + cut, whole.length - cut),
    )  # fmt: skip
    encoding = Encoding(codec=spec.encodings[0].codec, parts={"data": evolve(part, segments=segments)})
    index = evolve(file.index, tensors={"stack": evolve(spec, encodings=(encoding,))})
    file = File(file.source, index, file.registry, file.limits)
    for number in range(4):
        row = rows_of(file, [f"experts.{number}.up"])[f"experts.{number}.up"]
        np.testing.assert_array_equal(row.tensor.numpy(), VALUES[number])


@pytest.mark.parametrize("name", [
    "experts.04.up", "experts.-1.up", "experts.4.up", "experts.1.down", "xexperts.1.up", "experts.1.up.2",
    "experts.\u0661.up", "experts." + "9" * 5000 + ".up", "experts.up", "",
])  # fmt: skip
def test_other_names_are_not_rows(name: str) -> None:
    assert rows_of(stacked(), [name]) == {}


def test_affixes_are_compared_as_they_are() -> None:
    file = stacked(affixes=("a{0.__class__}%s(", ")+"))
    assert list(rows_of(file, ["a{0.__class__}%s(2)+", "a2)+"])) == ["a{0.__class__}%s(2)+"]


def test_a_stack_that_is_compressed_as_a_whole_has_no_rows() -> None:
    assert rows_of(stacked(filters=("toy.xor",)), ["experts.1.up"]) == {}


def test_scalars_and_empty_stacks_have_no_rows() -> None:
    for shape in ((), (0, 3)):
        assert rows_of(stacked(np.zeros(shape, "<f4")), ["experts.0.up"]) == {}
