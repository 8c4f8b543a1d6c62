"""The suite for file formats."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from squish_core import opening
from squish_core.analysis.diff import changed, equal_meta
from squish_core.conversion.convert import convert
from squish_core.detect import detect
from squish_core.errors import MissingPluginError, SquishError
from squish_core.file import File
from squish_core.formats.validate import check_extents, spec_extents
from squish_core.limits import DEFAULT
from squish_core.model import Index
from squish_core.opening import read_index
from squish_core.tensor import Tensor
from squish_core.testing.hostile import HostileInput
from squish_core.testing.sources import CountingSource, as_bytes, source_of, touched_part
from squish_core.testing.suite import assert_regions_equal, parametrize, typed_errors_only
from squish_core.testing.writeback import check_conversion

Sample = bytes | str | Path


class ContainerSuite(HostileInput):
    """Checks of a file format. Set `container`, give `samples`: well-formed files that between them have
    everything the format knows.

    `read_ahead`: bytes that reading the header may take beyond it (a format whose header has no stated length).
    `not_rewritten`: names of samples that cannot be written in their own format. `exact_detection`: whether the
    bytes alone, without a name, must identify the format.
    """

    kind = "container"
    container: str
    read_ahead = 0
    not_rewritten: tuple[str, ...] = ()

    def samples(self) -> Mapping[str, Sample]:
        """Name -> the bytes of a file, or the path of a file or folder."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Run the tests that ask for a sample once for each."""
        parametrize(metafunc, "sample", self.samples())

    def sample(self, name: str) -> Sample:
        """One sample."""
        return self.samples()[name]

    def open(self, target: Any) -> File:
        """Open as the format under test."""
        return opening.open(target, self.container, registry=self.registry)

    def index(self, source: Any) -> Index:
        """Read the Index, without detection."""
        return read_index(source, self.registry, DEFAULT, self.container)

    # Detection and the Index

    def test_the_signature_identifies_the_format(self, sample: str) -> None:
        """Detection picks this format among all that are installed."""
        source = source_of(self.sample(sample))
        base = self.entry().info.refines or self.container  # type: ignore[union-attr]
        assert detect(source, self.registry) == base
        assert opening.open(source, registry=self.registry).format == self.container
        source.close()

    def test_the_index_pickles_and_is_stable(self, sample: str) -> None:
        """Two reads give equal Indexes, and one that was pickled is equal too."""
        first, second = (self.index(source_of(self.sample(sample))) for _ in range(2))
        restored = pickle.loads(pickle.dumps(first))
        assert _same_index(first, second), "two reads of one file differ"
        assert _same_index(first, restored), "the Index does not survive pickling"

    def test_the_sample_is_clean_and_verifies(self, sample: str) -> None:
        """A deep verification finds no error."""
        from squish_core.analysis.verify import verify

        with self.open(self.sample(sample)) as file:
            report = verify(file, deep=True)
        assert report.ok, report.problems

    def test_parts_lie_in_the_file_and_are_disjoint_or_identical(self, sample: str) -> None:
        """Every byte range is inside its file, as long as its array unless filtered; only declared views overlap."""
        index = self.index(source_of(self.sample(sample)))
        extents = [extent for spec in index.tensors.values() for extent in spec_extents(spec)]
        aliases = "views" if self.entry().info.views else "accept"  # type: ignore[union-attr]
        check_extents(extents, index.files, aliases=aliases)
        for name, spec in index.tensors.items():
            assert spec.name == name
            for encoding in spec.encodings:
                for role, part in encoding.parts.items():
                    assert part.filters or part.stored == part.nbytes, f"{name}/{role}"

    def test_parts_are_those_that_the_codec_declares(self, sample: str) -> None:
        """Roles, dtypes and shapes are those of `Codec.parts`, for the codecs that are installed."""
        index = self.index(source_of(self.sample(sample)))
        for name, spec in index.tensors.items():
            for encoding in spec.encodings:
                if self.registry.missing(encoding) is None:
                    declared = self.registry.codec(encoding.codec).parts(spec, encoding.codec.params)
                    found = {role: (part.dtype, part.shape) for role, part in encoding.parts.items()}
                    assert found == {role: (dtype, tuple(shape)) for role, (dtype, shape) in declared.items()}, name

    # Laziness

    def test_opening_reads_no_tensor_bytes(self, sample: str) -> None:
        """Reading the Index touches the header only (and up to 64 bytes of a scalar, `read_ahead` in all)."""
        source = CountingSource(source_of(self.sample(sample)))
        index = self.index(source)
        log = list(source.log)
        over = {}
        for name, spec in index.tensors.items():
            parts = [part for encoding in spec.encodings for part in encoding.parts.values()]
            read = sum(touched_part(log, index, part) for part in (*parts, *spec.extras.values()))
            if read > (64 if spec.elements <= 1 else 0):
                over[name] = read
        assert sum(over.values()) <= self.read_ahead, f"tensor bytes read at open: {over}"

    def test_a_row_reads_only_its_bytes(self, sample: str) -> None:
        """`t[row]` reads the row's share of each part, up to the codec's grain."""
        source = CountingSource(source_of(self.sample(sample)))
        for tensor in _readable(self.open(source)):
            if not tensor.shape or tensor.spec.elements == 0:
                continue
            encoding, step = tensor.bound.encoding, tensor.bound.grain[0]
            rows, row = tensor.shape[0], tensor.shape[0] // 2
            wide = rows if step is None else min(step, rows)
            source.log.clear()
            tensor[row]
            for role, part in encoding.parts.items():
                if role in self.registry.codec(encoding.codec).scanned:
                    continue
                divisible = not part.filters and part.shape and part.nbytes * wide % rows == 0
                most = part.nbytes * wide // rows if divisible else part.stored
                read = touched_part(source.log, tensor.file.index, part)
                assert read <= most, f"{tensor.name}/{role}: {read} bytes for one row, expected at most {most}"

    # Values

    def test_a_region_equals_the_slice_of_the_whole(self, sample: str) -> None:
        """`t[key]` equals `t.numpy()[key]` for any basic index."""
        for tensor in _readable(self.open(self.sample(sample))):
            assert_regions_equal(tensor.shape, tensor.numpy(), tensor.__getitem__, tensor.name)

    # Writing

    def test_converting_to_itself_keeps_everything(self, sample: str, tmp_path: Path) -> None:
        """Names, order, part bytes, metadata and assets survive; the dry run predicted the size."""
        file, target = self._rewritable(sample), tmp_path / "copy"
        planned = convert(file, target, self.container, dry_run=True)
        assert not target.exists()
        made = convert(file, target, self.container)
        assert planned.size in (None, made.size), "the dry run predicted another size"
        with self.open(target) as copy:
            assert list(copy) == list(file)
            assert {step.written for step in made.steps} <= set(copy), "the report names tensors that are not there"
            for name in file:
                _assert_same_tensor(file[name], copy[name])
            assert not changed(file.index.meta, copy.index.meta, equal_meta)
            assert list(copy.index.meta) == list(file.index.meta)
            assert not changed(file.assets, copy.assets, lambda a, b: as_bytes(a) == as_bytes(b))

    def test_what_is_written_verifies_and_is_what_the_report_states(self, sample: str, tmp_path: Path) -> None:
        """A deep verification, the values and `diff` agree with the exactness of every step."""
        check_conversion(self._rewritable(sample), tmp_path / "copy", self.container)

    def test_writing_is_deterministic(self, sample: str, tmp_path: Path) -> None:
        """The same input gives the same bytes."""
        file = self._rewritable(sample)
        for name in ("one", "two"):
            convert(file, tmp_path / name, self.container)
        assert _contents(tmp_path / "one") == _contents(tmp_path / "two")

    def test_an_interrupted_write_leaves_the_old_file(self, sample: str, tmp_path: Path) -> None:
        """When writing fails there is the old file, or nothing, and no debris."""
        file, target = self._rewritable(sample), tmp_path / "target"
        implementation = self.registry.container(self.container)
        if not implementation.writes_folder({}):
            target.write_bytes(b"old")

        def fail(name: str, done: int, total: int | None) -> None:
            raise OSError("no space left on device")

        with pytest.raises(SquishError):
            convert(file, target, self.container, progress=fail)
        assert _contents(tmp_path) == ({"target": b"old"} if target.exists() else {})

    # Recipes

    def test_recipes_answer_every_declared_feature(self) -> None:
        """Each declared value, and each pair of values, resolves to a chain or is refused with a reason."""
        features = self.entry().info.features  # type: ignore[union-attr]
        choices = [(name, value) for name, values in features.items() for value in values]
        for picked in (*((one,) for one in choices), *combinations(choices, 2)):
            asked: dict[str, Any] = {}
            for name, value in picked:
                asked[name] = {asked[name], value} if name in asked else value
            with typed_errors_only(f"resolve({asked})"):
                assert self.registry.resolve(container=self.container, **asked).explain()

    def _rewritable(self, sample: str) -> File:
        if not self.entry().info.can_write:  # type: ignore[union-attr]
            pytest.skip(f"{self.container} is read-only")
        if sample in self.not_rewritten:
            pytest.skip("declared as not writable")
        return self.open(self.sample(sample)).originals()  # as `convert` starts


def _readable(file: File) -> Iterator[Tensor]:
    """Tensors whose codecs are installed."""
    for name in file:
        tensor = file[name]
        if tensor.spec.problem is None:
            try:
                tensor.bound  # noqa: B018 - raises where a codec is missing
            except MissingPluginError:
                continue
            yield tensor


def _same_index(one: Index, other: Index) -> bool:
    same_meta = not changed(one.meta, other.meta, equal_meta)
    return same_meta and evolve(one, meta={}) == evolve(other, meta={})


def _assert_same_tensor(one: Tensor, other: Tensor) -> None:
    assert (one.name, one.shape, one.dtype, one.codec) == (other.name, other.shape, other.dtype, other.codec)
    for role, buffer in one.parts(one.spec.encodings[0]).items():
        if role in one.spec.encodings[0].parts:
            found = other.parts(other.spec.encodings[0])[role]
            assert as_bytes(found) == as_bytes(buffer), f"{one.name}/{role}"


def _contents(path: Path) -> dict[str, bytes]:
    """Bytes of a file, or of all files below a folder, by relative name."""
    if path.is_file():
        return {"": path.read_bytes()}
    found = [Path(root) / name for root, _, names in os.walk(path) for name in names]
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(found)}
