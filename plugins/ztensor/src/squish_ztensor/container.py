"""The zTensor container: reads an Index from a file, and writes tensors to a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from squish_core.api import (
    CodeLayout,
    Encoding,
    File,
    Filter,
    Index,
    LazyTensors,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Sink,
    Source,
    TensorSpec,
    WritableContainer,
    WritePlan,
    align_up,
    single_value,
)

from . import accept, objects, sidecar
from .options import WriteOptions
from .records import Manifest, digest_problems
from .v1 import writer
from .v1.manifest import read_manifest
from .v2 import footer
from .v2 import writer as v2_writer

if TYPE_CHECKING:
    from squish_convert.api import LockedFile, Resolved

_WRITERS: dict[str, Any] = {"1.1": writer, "2": v2_writer}


class Ztensor(WritableContainer):
    """zTensor: reads 0.1 to 2, writes 1.1 and 2."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        manifest = read_manifest(source, limits)
        meta, assets, problems, records = manifest.attributes, {}, manifest.problems, manifest.records
        if sidecar.NAME in records:
            restored = sidecar.restore(manifest.as_v1(records[sidecar.NAME]), source, limits)
            if isinstance(restored, Problem):
                problems = [*problems, restored]
            else:
                meta, assets = {**meta, **restored[0]}, restored[1]
                records = {name: record for name, record in records.items() if name != sidecar.NAME}
        return Index(
            format="ztensor",
            version=manifest.version,
            files=manifest.files,
            tensors=LazyTensors(records, manifest.build, manifest.extents),
            meta=meta,
            assets=assets,
            problems=tuple(problems),
        )

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Problem]:
        """Check padding, and the digest of `squish.meta`, which is not listed as a tensor."""
        manifest = read_manifest(source, limits)
        return [*_dirty_gaps(manifest, source), *_sidecar_digest(manifest, source)]

    def encodings_for(
        self, *, dtype: Any = None, encoding: Any = "raw", **features: Any
    ) -> tuple[Encoding | Refusal, ...]:
        byte_codec = single_value("encoding", encoding)
        filters = () if byte_codec == "raw" else (Filter(byte_codec),)
        layout, kind = single_value("format", features.get("format")), single_value("dtype", dtype)
        return (objects.encoding_for(layout, kind, filters),)

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Mapping[str, str]) -> Encoding | Refusal:
        write_options = WriteOptions.of(options)
        return _WRITERS[write_options.wire].accepts(spec, encoding, write_options)

    def accepts_codes(
        self, spec: TensorSpec, layout: CodeLayout, options: Mapping[str, str]
    ) -> Encoding | Refusal | None:
        write_options = WriteOptions.of(options)
        return _WRITERS[write_options.wire].accepts_codes(spec, layout, write_options)

    def plan_file(
        self,
        specs: Sequence[TensorSpec],
        meta: Mapping[str, Any],
        assets: Mapping[str, Part],
        options: Mapping[str, str],
    ) -> WritePlan:
        write_options = WriteOptions.of(options)
        return WritePlan(dropped=accept.dropped(specs, _WRITERS[write_options.wire].storable))

    def rewrite_options(self, file: File) -> Options:
        """Options that write a file that is compressed as a whole again as it is; other files are edited."""
        parts = [part for spec in file.index.tensors.values() for part in spec.encodings[0].parts.values()]
        digests = {part.digest.partition(":")[0] for part in parts if part.digest}
        options = {"digest": digests.pop()} if len(digests) == 1 else {}
        if file.version == "2":
            return {**options, "wire": "2"}
        return {**options, "flavor": "compatible"} if file.version.startswith("1.2") else options

    def edit(self, lock: LockedFile, changes: Resolved, added: File | None, limits: Limits) -> None:
        """Append to a file of version 2; write one of 1.x again."""
        from .edit import change

        change(
            lock,
            add=added,
            remove=(*changes.removed, *changes.replaced),
            rename=changes.renamed,
            attributes=changes.attributes,
            assets=changes.assets,
            limits=limits,
        )

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Mapping[str, str],
    ) -> None:
        write_options = WriteOptions.of(options)
        _WRITERS[write_options.wire].write(sink, tensors, meta, assets, write_options)


def _dirty_gaps(manifest: Manifest, source: Source) -> Iterator[Problem]:
    """Yield a finding if padding is not zero (spec I.2, IV.2; Draft 4, container)."""
    dirty = []
    for first, last in _padding(manifest):
        for start in range(first, last, 1 << 22):
            piece = source.view(start, min(1 << 22, last - start)).tobytes()
            if piece.count(0) != len(piece):
                dirty.append(start)
                break
    if dirty:
        more = f" and {len(dirty) - 1} more places" if len(dirty) > 1 else ""
        yield Problem(
            code="padding",
            severity="warning",
            where=f"byte {dirty[0]}",
            message=f"padding between tensors is not zero at byte {dirty[0]}{more}",
        )


def _padding(manifest: Manifest) -> Iterator[tuple[int, int]]:
    """Yield the ranges of padding in the file itself.

    Appending to v2 leaves unused blobs and manifests behind, each at a multiple of the least alignment: up to there
    everything is padding, and in a canonical file without these up to the next blob.
    """
    gaps, end = [], len(footer.MAGIC)
    for file, offset, length, _ in [*sorted(manifest.extents), (0, manifest.offset, 0, "")]:
        if file == 0 and (length or offset == manifest.offset):
            gaps.append((end, offset))
            end = max(end, offset + length)
    is_v1 = manifest.version != "2"
    is_whole = all(stop == align_up(start, footer.CANONICAL) for start, stop in gaps if start < stop)
    for start, stop in gaps:
        yield start, stop if is_v1 or is_whole else min(stop, align_up(start, footer.ALIGNMENT))


def _sidecar_digest(manifest: Manifest, source: Source) -> Iterator[Problem]:
    if sidecar.NAME not in manifest.records:
        return
    data = manifest.as_v1(manifest.records[sidecar.NAME])["components"].get("data", {})
    digest = data.get("digest")
    if isinstance(digest, str):
        shard = source if not data.get("file") else source.member(manifest.files[data["file"]].name)
        yield from digest_problems(digest, [shard.view(data["offset"], data["length"])], f"{sidecar.NAME}/data")
