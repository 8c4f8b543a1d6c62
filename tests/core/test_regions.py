"""Panels cover a region exactly once on the grain; reads trim what the grain forces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_testing import expect_error

from squish_core.codecs.regions import full, on_grain, panels, sizes
from squish_core.errors import FormatError, LimitError, TruncatedError
from squish_core.formats.validate import check_extents, check_name, check_shape
from squish_core.limits import DEFAULT
from squish_core.model import FileRef

SHAPES = st.lists(st.integers(0, 9), min_size=0, max_size=4).map(tuple)


@st.composite
def grained(draw: Any) -> tuple[tuple[int, ...], tuple[int | None, ...]]:
    shape = draw(SHAPES)
    return shape, tuple(draw(st.one_of(st.none(), st.integers(1, 4))) for _ in shape)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(grained(), st.integers(1, 4), st.integers(1, 400), st.booleans())
def test_panels_cover_every_element_once_on_the_grain(case: Any, itemsize: int, budget: int, rows: bool) -> None:
    shape, grain = case
    seen = np.zeros(shape, int)
    for region in panels(shape, grain, itemsize, budget=budget, whole_rows=rows):
        seen[region] += 1
        assert on_grain(region, shape, grain) == region
        if rows and shape:
            assert region[-1] == slice(0, shape[-1]) or len(shape) == 1
    assert (seen == 1).all()


@settings(deadline=None, derandomize=True, max_examples=200)
@given(st.integers(1, 200), st.integers(1, 50), st.integers(1, 4), st.integers(1, 400))
def test_a_panel_is_over_the_budget_only_when_one_step_is(rows: int, columns: int, step: int, budget: int) -> None:
    for region in panels((rows, columns), (step, None), 1, budget=budget):
        assert np.prod(sizes(region)) <= max(budget, step * columns)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(grained(), st.data())
def test_the_region_on_the_grain_is_the_smallest_that_holds(case: Any, data: Any) -> None:
    shape, grain = case
    region = tuple(slice(*sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))) for size in shape)
    for part, wide, size, step in zip(region, on_grain(region, shape, grain), shape, grain):
        assert wide.start <= part.start
        assert part.stop <= wide.stop <= size
        if step is not None:
            assert part.start - wide.start < step
            assert wide.stop - part.stop < step


def test_one_panel_when_it_fits() -> None:
    assert list(panels((4, 4), (1, 1), 4)) == [full((4, 4))]
    assert list(panels((), (), 4)) == [()]


FILES = (FileRef("a", 100), FileRef("b", 10))


@pytest.mark.parametrize(
    ("extents", "code", "tensor", "offset"),
    [
        ([(0, 0, 101, "w")], "bounds", "w", 0),
        ([(1, 5, 6, "w")], "bounds", "w", 5),
        ([(0, -1, 2, "w")], "bounds", "w", -1),
        ([(0, 1 << 64, 1 << 64, "w")], "bounds", "w", 1 << 64),
        ([(0, 0, 11, "v"), (0, 10, 10, "w")], "overlap", "w", 10),
        ([(0, 0, 50, "v"), (0, 0, 10, "w")], "overlap", "v", 0),
    ],
)
def test_ranges_outside_or_overlapping_are_refused(extents: Any, code: str, tensor: str, offset: int) -> None:
    with expect_error(FormatError, code=code, tensor=tensor, offset=offset):
        check_extents(extents, FILES)


def test_identical_ranges_are_as_the_format_says() -> None:
    twins = [(0, 0, 10, "v"), (0, 0, 10, "w")]
    assert check_extents(twins, FILES) == ([], True)
    assert [item.where for item in check_extents(twins, FILES, aliases="problem")[0]] == ["w"]
    with expect_error(FormatError, code="overlap", tensor="w", offset=0, expected="an offset of 10 or more", found=0):
        check_extents(twins, FILES, aliases="error")


def test_ranges_of_views_may_overlap_and_stay_inside_the_file() -> None:
    overlapping = [(0, 0, 50, "storage"), (0, 0, 10, "head"), (0, 5, 10, "middle")]
    assert check_extents(overlapping, FILES, aliases="views") == ([], False)
    with pytest.raises(TruncatedError) as caught:
        check_extents([*overlapping, (0, 60, 50, "outside")], FILES, aliases="views")
    assert (caught.value.code, caught.value.tensor, caught.value.offset) == ("bounds", "outside", 60)


def test_gapless_extents_are_recognized() -> None:
    assert check_extents([(0, 10, 10, "w"), (0, 0, 10, "v"), (1, 0, 5, "x"), (0, 5, 0, "empty")], FILES)[1]
    assert not check_extents([(0, 0, 10, "v"), (0, 11, 10, "w")], FILES)[1]


@pytest.mark.parametrize("shape", [[1 << 63, 0], [1 << 30, 1 << 30], [1] * 65, [-1], [True], [1.0], "ab", None, 3])
def test_impossible_shapes_are_refused(shape: Any) -> None:
    with pytest.raises((FormatError, LimitError)):
        check_shape(shape, DEFAULT, tensor="w")


@pytest.mark.parametrize("name", ["", "a\0b", "x" * 1025, "\u00e9" * 600, b"x", None])
def test_impossible_names_are_refused(name: Any) -> None:
    with pytest.raises(FormatError):
        check_name(name, DEFAULT)
