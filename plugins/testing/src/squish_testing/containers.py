"""Test suite for file formats."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from squish_convert.compare.diff import changed, equal_meta
from squish_convert.convert import convert
from squish_convert.plan import plan_conversion
from squish_convert.targets import writable
from squish_convert.virtual import ImageReader

from squish_core import opening
from squish_core.checking.verify import verify
from squish_core.codecs.base import Codec
from squish_core.detect import detect
from squish_core.errors import SquishError
from squish_core.file import File
from squish_core.formats.validate import check_extents, spec_extents
from squish_core.io.source import SNIFFED, BytesSource
from squish_core.limits import DEFAULT
from squish_core.model import Index, Part, Typed
from squish_core.opening import read_index
from squish_core.tensor import Tensor

from .code_layouts import AcceptsCodes
from .hostile import HostileInput
from .mutations import mutants
from .remote import RemoteReads, readable
from .sources import CountingSource, as_bytes, source_of, touched_part
from .suite import assert_regions_equal, parametrize, typed_errors_only
from .truth import GroundTruth, Sample, assert_values
from .writeback import check_conversion

TYPED_META = {
    "acme.count": Typed("u32", 7),
    "acme.rate": Typed("f32", 0.5),
    "acme.sizes": Typed("array:i32", [1, 2]),
    "acme.words": Typed("array:str", ["a", "b"]),
    "acme.author": "me",
}
"""Metadata as files of other formats have it."""


class ContainerSuite(HostileInput, GroundTruth, AcceptsCodes, RemoteReads):
    """Tests of a file format. Set `container` and override `samples` with valid files that cover the whole format;
    `values` and `damaged` give the ground truth.

    `read_ahead`: bytes that opening may read past the header (for a header of unknown length); one sample must have
    more tensor bytes than that. `not_rewritten`: names of samples that cannot be written in their own format.
    `exact_detection`: the bytes alone identify the format; False if the suffix is needed.
    """

    kind = "container"
    container: str
    read_ahead = 0
    exact_detection = True
    not_rewritten: tuple[str, ...] = ()

    def samples(self) -> Mapping[str, Sample]:
        """Name -> the bytes of a file, or the path of a file or folder."""
        raise NotImplementedError

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """Parametrize tests that take a sample or a damaged file."""
        parametrize(metafunc, "sample", self.samples())
        parametrize(metafunc, "damage", self.damaged())

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
        """Detection picks this format among all installed ones; with `exact_detection`, whatever the name."""
        source = source_of(self.sample(sample))
        if not self.exact_detection and isinstance(source, BytesSource):
            source = BytesSource(source.read(0, source.size), f"sample{self._suffix}")
        actual = detect(source, self.registry)
        assert actual == self._base(), f"{sample}: detected as {actual!r}, expected {self._base()!r}"
        actual = opening.open(source, registry=self.registry).format
        assert actual == self.container, f"{sample}: opens as {actual!r}, expected {self.container!r}"
        source.close()

    def test_the_bytes_identify_the_format_whatever_the_name(self, sample: str) -> None:
        """With `exact_detection`, detection ignores the name and the suffix."""
        source = source_of(self.sample(sample))
        if source.is_dir:
            pytest.skip("a folder is detected by the names of its files")
        if not self.exact_detection:
            pytest.skip("exact_detection = False: this format needs its suffix")
        data = source.read(0, source.size)
        entries = self.registry.containers.values()
        for suffix in sorted({"", *(suffix for entry in entries for suffix in entry.info.suffixes)}):
            actual = detect(BytesSource(data, f"renamed{suffix}"), self.registry)
            expected = self._base()
            assert actual == expected, (
                f"{sample} named 'renamed{suffix}': detected as {actual!r}, expected {expected!r}"
            )

    def test_sniffing_reads_at_most_64_kib(self, sample: str) -> None:
        """`sniff` accepts the sample, reads at most 64 KiB, and never fails on damaged data."""
        if not self.entry().info.sniffs:
            pytest.skip("the declaration has sniffs=False")
        container, source = self.registry.container(self.container), CountingSource(source_of(self.sample(sample)))
        assert container.sniff(source) is True, f"{sample}: sniff() does not return True"
        size = sum(length for _, _, length in source.log)
        assert size <= SNIFFED, f"{sample}: sniff() reads {size} bytes, the limit is {SNIFFED}"
        data = source.inner.read(0, source.inner.size)
        for number, damage in enumerate(mutants(data, 200, self.seed, self.header)):
            with typed_errors_only(f"{sample}: sniff() of mutant {number}"):
                container.sniff(BytesSource(damage))

    def test_the_index_pickles_and_is_stable(self, sample: str) -> None:
        """Two reads and a pickled copy give equal Indexes."""
        first, second = (self.index(source_of(self.sample(sample))) for _ in range(2))
        count = f"{sample}: Indexes of {len(first.tensors)} tensors"
        assert _same_index(first, second), f"{count} differ between two reads of one file"
        with typed_errors_only(f"{count}: pickling"):
            unpickled = pickle.loads(pickle.dumps(first))
        assert _same_index(first, unpickled), f"{count} differ after pickling"

    def test_the_sample_is_clean_and_verifies(self, sample: str) -> None:
        """Deep verification decodes every readable tensor and reports errors for `unreadable` ones only."""
        with self.open(self.sample(sample)) as file:
            report, count = verify(file, deep=True), sum(1 for _ in readable(file))
        names = set(self.unreadable().get(sample, ()))
        errors = [problem for problem in report.problems if problem.severity == "error"]
        unexpected = [problem for problem in errors if problem.where not in names]
        assert not unexpected, f"{sample}: verify reports {len(unexpected)} errors, the first: {unexpected[0]}"
        unreported = names - {problem.where for problem in errors}
        assert not unreported, f"{sample}: verify reports {len(errors)} errors, none for {sorted(unreported)}"
        assert report.decoded >= count, f"{sample}: verify decodes {report.decoded} tensors, {count} can be read"

    def test_parts_are_in_bounds_and_disjoint_or_identical(self, sample: str) -> None:
        """Byte ranges are inside their files, as long as their arrays unless filtered; only declared views overlap."""
        index = self.index(source_of(self.sample(sample)))
        extents = [extent for spec in index.tensors.values() for extent in spec_extents(spec)]
        aliases = "views" if self.entry().info.views else "accept"
        check_extents(extents, index.files, aliases=aliases)
        for name, spec in index.tensors.items():
            assert spec.name == name, f"the tensor listed as {name!r} calls itself {spec.name!r}"
            for encoding in spec.encodings:
                for role, part in encoding.parts.items():
                    size = f"{part.stored} bytes stored, {part.dtype}{list(part.shape)} takes {part.nbytes}"
                    assert part.filters or part.stored == part.nbytes, f"{name}/{role}: {size}"

    def test_parts_match_the_codecs_declaration(self, sample: str) -> None:
        """Roles, dtypes and shapes match `Codec.parts`, for installed codecs."""
        index = self.index(source_of(self.sample(sample)))
        for name, spec in index.tensors.items():
            for encoding in spec.encodings:
                if self.registry.missing(encoding) is None:
                    layout = self.registry.codec(encoding.codec).parts(spec)
                    actual = {role: (part.dtype, part.shape) for role, part in encoding.parts.items()}
                    expected = {role: (dtype, tuple(shape)) for role, (dtype, shape) in layout.items()}
                    assert actual == expected, f"{name}: parts are {actual}, {encoding.codec} declares {expected}"

    # Laziness

    def test_opening_reads_no_tensor_bytes(self, sample: str) -> None:
        """Reading the Index reads no tensor bytes, except up to 64 of a scalar and `read_ahead` in total."""
        source = CountingSource(source_of(self.sample(sample)))
        index = self.index(source)
        log = list(source.log)
        over: dict[str, int] = {}
        for name, spec in index.tensors.items():
            size = sum(touched_part(log, index, part) for part in _parts(index, name))
            over |= {name: size} if size > 64 * (spec.elements <= 1) else {}
        total, allowed = sum(over.values()), self.read_ahead
        assert total <= allowed, f"{sample}: opening reads {total} tensor bytes, {allowed} are allowed: {over}"

    def test_a_sample_is_larger_than_read_ahead(self) -> None:
        """A smaller sample would not catch a reader that reads everything when it opens the file."""
        sizes = {}
        for sample in self.samples():
            index = self.index(source_of(self.sample(sample)))
            names = [name for name, spec in index.tensors.items() if spec.elements > 1]
            sizes[sample] = sum(part.stored for name in names for part in _parts(index, name))
        largest = max(sizes.values(), default=0)
        hint = "add a larger sample, or lower read_ahead"
        assert largest > self.read_ahead, f"tensor bytes are {sizes}, read_ahead is {self.read_ahead}: {hint}"

    def test_a_row_reads_only_its_bytes(self, sample: str) -> None:
        """`t[row]` reads only the row's bytes of each part, rounded up to the codec's grain."""
        source = CountingSource(source_of(self.sample(sample)))
        for tensor in readable(self.open(source)):
            if not tensor.shape or tensor.spec.elements == 0:
                continue
            encoding, step = tensor.bound.encoding, tensor.bound.grain[0]
            rows, row = tensor.shape[0], tensor.shape[0] // 2
            wide = rows if step is None else min(step, rows)
            source.log.clear()
            tensor[row]
            for role, part in encoding.parts.items():
                if role in _unsliced_parts(tensor.bound.codec):
                    continue
                divisible = not part.filters and part.shape and part.nbytes * wide % rows == 0
                bound = part.nbytes * wide // rows if divisible else part.stored
                size = touched_part(source.log, tensor.file.index, part)
                message = f"{sample}: {tensor.name}/{role}: one row reads {size} bytes, at most {bound} are allowed"
                assert size <= bound, message

    # Values

    def test_a_region_equals_the_slice_of_the_whole(self, sample: str) -> None:
        """`t[key]` equals `t.numpy()[key]` for any basic index."""
        for tensor in readable(self.open(self.sample(sample))):
            assert_regions_equal(tensor.shape, tensor.numpy(), tensor.__getitem__, tensor.name)

    # Writing

    def test_converting_to_itself_keeps_everything(self, sample: str, tmp_path: Path) -> None:
        """Names, order, part bytes, metadata and assets stay the same."""
        file, target = self._rewritable(sample), tmp_path / "copy"
        result = convert(file, target, self.container)
        with self.open(target) as copy:
            names = f"{len(copy)} tensors are {list(copy)}, expected {len(file)}: {list(file)}"
            assert list(copy) == list(file), f"{sample}: {names}"
            absent = {step.written for step in result.steps} - set(copy)
            assert not absent, f"{sample}: the report names {len(absent)} tensors that are not there: {sorted(absent)}"
            for name in file:
                _assert_same_tensor(file[name], copy[name])
            changes = changed(file.index.meta, copy.index.meta, equal_meta)
            assert not changes, f"{sample}: metadata changed: {changes}"
            keys, expected = list(copy.index.meta), list(file.index.meta)
            assert keys == expected, f"{sample}: metadata keys are {keys}, expected {expected}"
            changes = changed(file.assets, copy.assets, lambda a, b: as_bytes(a) == as_bytes(b))
            assert not changes, f"{sample}: assets changed: {changes}"

    def test_metadata_of_another_format_is_written_or_dropped(self, tmp_path: Path) -> None:
        """Values with stored types (`Typed`), such as those of GGUF files, are written, or listed as dropped."""
        if not (names := [name for name in self.samples() if name not in self.not_rewritten]):
            pytest.skip("no sample is written")
        file, target = self._rewritable(names[0]), tmp_path / "copy"
        index = evolve(file.index, meta={**file.index.meta, **TYPED_META})
        with typed_errors_only(f"{names[0]}: writing {len(TYPED_META)} keys with stored types"):
            result = convert(File(file.source, index, self.registry), target, self.container)
        dropped = {item.name for item in result.dropped if item.kind == "metadata"}
        with self.open(target) as copy:
            lost = sorted(TYPED_META.keys() - copy.index.meta.keys() - dropped)
        assert not lost, f"{names[0]}: metadata is neither written nor in `WritePlan.dropped`: {', '.join(lost)}"

    def test_the_image_of_the_plan_is_what_is_written(self, sample: str, tmp_path: Path) -> None:
        """Files, sizes, and all bytes outside the tensors are where `write` puts them on a sink that records."""
        file, target = self._rewritable(sample), tmp_path / "copy"
        plan = plan_conversion(file, target, self.container)
        assert not target.exists(), f"{sample}: planning wrote {target.name}"
        result = convert(file, target, self.container)
        if plan.image is None:
            return
        size = f"the image has {plan.image.size} bytes, {result.size} were written"
        assert plan.image.size == result.size, f"{sample}: {size}"
        for output in plan.image.files:
            path = (target if target.is_dir() else tmp_path) / (output.name or target.name)
            written = path.read_bytes()
            assert len(written) == output.size, f"{sample}: {path.name} has {len(written)} bytes, not {output.size}"
            if plan.image.is_final:
                image = ImageReader(plan, file, plan.image).read(output, 0, output.size)
                differs = next((at for at, (one, two) in enumerate(zip(image, written)) if one != two), None)
                assert differs is None, f"{sample}: {path.name} differs from its image at offset {differs}"

    def test_the_copy_verifies_and_opens_again(self, sample: str, tmp_path: Path) -> None:
        """The copy is detected, opens twice with equal Indexes, verifies deeply and has the sample's values."""
        file, target = self._rewritable(sample), tmp_path / f"copy{self._suffix}"
        convert(file, target, self.container)
        report = verify(target, deep=True, registry=self.registry)
        assert report.format == self.container, f"{sample}: the copy opens as {report.format!r}"
        errors = [problem for problem in report.problems if problem.severity == "error"]
        assert not errors, f"{sample}: the copy has {len(errors)} errors, the first: {errors[0]}"
        first, second = (self.index(source_of(target)) for _ in range(2))
        assert _same_index(first, second), f"{sample}: two reads of the copy differ"
        with opening.open(target, registry=self.registry) as copy:
            for tensor in readable(file):
                assert_values(copy[tensor.name].numpy(), tensor.numpy(), 0, f"{sample}: {tensor.name} in the copy")

    def test_the_copy_matches_the_report(self, sample: str, tmp_path: Path) -> None:
        """Deep verification, values and `diff` agree with the exactness of every step."""
        name = "copy" if self.exact_detection else f"copy{self._suffix}"
        check_conversion(self._rewritable(sample), tmp_path / name, self.container)

    def test_writing_is_deterministic(self, sample: str, tmp_path: Path) -> None:
        """Writing twice gives the same bytes."""
        file = self._rewritable(sample)
        for name in ("one", "two"):
            convert(file, tmp_path / name, self.container)
        one, two = (_contents(tmp_path / name) for name in ("one", "two"))
        changed = sorted(name for name in {*one, *two} if one.get(name) != two.get(name))
        assert not changed, f"{sample}: two writes differ in {len(changed)} of {len(one)} files: {changed}"

    def test_an_interrupted_write_leaves_the_old_file(self, sample: str, tmp_path: Path) -> None:
        """A failed write leaves the old file, or nothing, and no temporaries."""
        file, target = self._rewritable(sample), tmp_path / "target"
        if not writable(self.container, self.registry).writes_folder({}):
            target.write_bytes(b"old")

        def fail(name: str, done: int, total: int | None) -> None:
            raise OSError("no space left on device")

        failure: SquishError | None = None
        try:
            convert(file, target, self.container, progress=fail)
        except SquishError as error:
            failure = error
        contents = _contents(tmp_path)
        assert failure, f"{sample}: a full disk at the first byte is not reported; {len(contents)} files were written"
        sizes = {name: len(data) for name, data in contents.items()}
        assert contents == ({"target": b"old"} if target.exists() else {}), f"{sample}: the failed write left {sizes}"

    def test_every_declared_feature_resolves(self) -> None:
        """Every declared value and every pair of values resolves to a chain or is refused with a reason."""
        features = self.entry().info.features
        choices = [(name, value) for name, values in features.items() for value in values]
        for combination in (*((one,) for one in choices), *combinations(choices, 2)):
            query: dict[str, Any] = {}
            for name, value in combination:
                query[name] = {query[name], value} if name in query else value
            with typed_errors_only(f"resolve({query})"):
                text = self.registry.resolve(container=self.container, **query).explain()
                assert text, f"resolve({query}): explain() is empty"

    @property
    def _suffix(self) -> str:
        """The first suffix of the declaration, or ""."""
        return str((*self.entry().info.suffixes, "")[0])

    def _base(self) -> str:
        """Return the result of detection: this format, or the one that it refines."""
        return str(self.entry().info.refines or self.container)

    def _rewritable(self, sample: str) -> File:
        if not self.entry().info.can_write:
            pytest.skip(f"{self.container} is read-only")
        if sample in self.not_rewritten:
            pytest.skip("declared as not writable")
        return self.open(self.sample(sample)).without_caches()  # as `convert` starts


def _unsliced_parts(codec: Codec | None) -> Iterator[str]:
    """Yield the parts that a codec, or one that it wraps, may read as a whole."""
    while codec is not None:
        yield from codec.unsliced_parts
        codec = codec.inner


def _parts(index: Index, name: str) -> list[Part]:
    """Return all stored parts of a tensor."""
    spec = index.tensors[name]
    return [
        part for parts in (*(encoding.parts for encoding in spec.encodings), spec.extras) for part in parts.values()
    ]


def _same_index(one: Index, other: Index) -> bool:
    same_meta = not changed(one.meta, other.meta, equal_meta)
    return same_meta and evolve(one, meta={}) == evolve(other, meta={})


def _assert_same_tensor(one: Tensor, other: Tensor) -> None:
    facts = [(tensor.name, tensor.shape, tensor.dtype, tensor.codec) for tensor in (one, other)]
    assert facts[0] == facts[1], f"{one.name}: the copy declares {facts[1]}, expected {facts[0]}"
    for role, buffer in one.parts(one.spec.encodings[0]).items():
        if role in one.spec.encodings[0].parts:
            data, copy = as_bytes(buffer), as_bytes(other.parts(other.spec.encodings[0])[role])
            assert copy == data, f"{one.name}/{role}: the copy's {len(copy)} bytes differ from the {len(data)} read"


def _contents(path: Path) -> dict[str, bytes]:
    """Bytes of a file, or of all files below a folder, by relative name."""
    if path.is_file():
        return {"": path.read_bytes()}
    files = [Path(root) / name for root, _, names in os.walk(path) for name in names]
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(files)}
