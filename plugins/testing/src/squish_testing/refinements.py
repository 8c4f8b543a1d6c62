"""Test suite for refinements: formats stored inside another one."""

from __future__ import annotations

import pickle
from collections.abc import Collection, Iterator, Mapping
from typing import Any, cast

from squish_core import opening
from squish_core.codes import BUGS
from squish_core.formats.refinement import Refinement
from squish_core.limits import DEFAULT
from squish_core.model import Index, TensorSpec

from .containers import ContainerSuite
from .sources import source_of
from .suite import parametrize
from .truth import Sample, refusal

Extent = tuple[str, int, int]
"""(file name, start, stop)"""


class RefinementSuite(ContainerSuite):
    """Tests of a refinement, in addition to those of a format. `undeclared` gives files that it must not refine.

    `lost`: names of base tensors that are not in the refined Index.
    """

    lost: Collection[str] = ()

    def undeclared(self) -> Mapping[str, Sample]:
        """Label -> a file of the base format that does not declare this one; at least one."""
        return {}

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests that take a sample, a damaged file or an undeclared file."""
        super().pytest_generate_tests(metafunc)
        parametrize(metafunc, "undeclared_file", self.undeclared())

    def test_there_is_an_undeclared_file(self) -> None:
        """Without such a file, a refinement that accepts every file would pass."""
        count = len(self.undeclared())
        assert count, f"undeclared() gives {count} files; give at least one of the format {self._base()!r}"

    def test_an_undeclared_file_is_not_refined(self, undeclared_file: str) -> None:
        """`refine` returns None, and opening the file as this format is a typed error."""
        target = self.undeclared()[undeclared_file]
        source = source_of(target)
        index = opening.read_index(source, self.registry, DEFAULT, self._base())
        refined = self._refinement().refine(index, source, DEFAULT, {})
        count = len(index.tensors)
        assert refined is None, f"{undeclared_file}: {count} tensors are refined without a declaration"
        error = refusal(lambda: self.open(target), f"{undeclared_file}: opening as {self.container}")
        assert error.code not in BUGS, f"{undeclared_file}: {error}"

    def test_the_base_format_shows_what_is_stored(self, sample: str) -> None:
        """Opening a file as the base format gives the unrefined Index."""
        with opening.open(self.sample(sample), self._base(), registry=self.registry) as file:
            assert file.format == self._base(), f"{sample}: opened as {file.format!r}, expected {self._base()!r}"

    def test_refining_is_a_pure_function_of_the_index(self, sample: str) -> None:
        """Refining does not change the base Index, and two refinements of it are equal."""
        source = source_of(self.sample(sample))
        index = opening.read_index(source, self.registry, DEFAULT, self._base())
        before = pickle.dumps(_everything(index))
        first, second = (self._refinement().refine(index, source, DEFAULT, {}) for _ in range(2))
        assert first is not None, f"{sample}: refine() returns None for a file that declares {self.container}"
        assert first.format == self.container, f"{sample}: the Index says {first.format!r}, expected {self.container!r}"
        unchanged = pickle.dumps(_everything(index)) == before
        assert unchanged, f"{sample}: refine() changed the base Index, which now has {len(index.tensors)} tensors"
        equal = _everything(first) == _everything(second)  # type: ignore[arg-type]
        assert equal, f"{sample}: two refinements of one Index with {len(index.tensors)} tensors differ"

    def test_no_stored_tensor_is_lost(self, sample: str) -> None:
        """Every base tensor with more than one element has bytes in a part, extra or asset of the refined Index.

        A single element may become a parameter, and headers inside a tensor need not be kept.
        """
        source = source_of(self.sample(sample))
        base = opening.read_index(source, self.registry, DEFAULT, self._base())
        ranges = _union(self.index(source_of(self.sample(sample))))
        for name, spec in base.tensors.items():
            extents = list(_extents(spec, base))
            if spec.elements > 1 and extents and name not in self.lost:
                size = sum(stop - start for _, start, stop in extents)
                survives = any(_overlaps(extent, ranges) for extent in extents)
                assert survives, f"{sample}: {name} is not in the refined Index, {size} bytes at {extents[0]}"

    def test_an_unknown_option_is_refused(self, sample: str) -> None:
        """A read option that is not declared is a typed error."""
        target = f"{self.container}:no_such_option=1"
        error = refusal(
            lambda: opening.open(self.sample(sample), target, registry=self.registry), f"{sample}: {target}"
        )
        assert error.code not in BUGS, f"{sample}: {error}"

    def _refinement(self) -> Refinement:
        return cast(Refinement, self.registry.container(self.container))


def _everything(index: Index) -> tuple[Any, ...]:
    """Return an Index as plain values, lazy tensors included."""
    return (index.format, index.version, dict(index.tensors), list(index.assets), list(index.meta), index.problems)


def _extents(spec: TensorSpec, index: Index) -> Iterator[Extent]:
    for parts in (*(encoding.parts for encoding in spec.encodings), spec.extras):
        for part in parts.values():
            for segment in part.segments:
                if segment.length:
                    yield index.files[segment.file].name, segment.offset, segment.offset + segment.length


def _union(index: Index) -> dict[str, list[tuple[int, int]]]:
    """Byte ranges of an Index by file, sorted, with adjacent ones merged."""
    extents = [extent for spec in index.tensors.values() for extent in _extents(spec, index)]
    for part in index.assets.values():
        extents += [(index.files[s.file].name, s.offset, s.offset + s.length) for s in part.segments]
    ranges: dict[str, list[tuple[int, int]]] = {}
    for file, start, stop in sorted(extents):
        merged = ranges.setdefault(file, [])
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
    return ranges


def _overlaps(extent: Extent, ranges: Mapping[str, list[tuple[int, int]]]) -> bool:
    file, start, stop = extent
    return any(low < stop and start < high for low, high in ranges.get(file, ()))
