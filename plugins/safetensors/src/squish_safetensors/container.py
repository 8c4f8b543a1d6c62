"""The safetensors container: a file, or an indexed set of shards as one namespace."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from squish_core.api import (
    DENSE,
    Container,
    Encoding,
    ErrorCode,
    FileRef,
    Index,
    LazyTensors,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Segment,
    Sink,
    Source,
    TensorSpec,
    UsageError,
    WritePlan,
    single_value,
)

from . import writer
from .folder import (
    INDEX_SUFFIX,
    MODEL_ASSETS,
    STANDARD,
    Shard,
    choose,
    model_assets,
    part_of_set,
    read_set,
    set_index,
    unreadable,
)
from .header import TAGS, read_header, read_record

SCALES, IGNORE = "scales", "ignore"
CODE_TAGS = frozenset(TAGS) - {"BOOL", "F16", "BF16", "F32", "F64", "C64", "I64", "U64"}
"""Dtypes of codes; 64-bit integers are codes only beside others."""


class Safetensors(Container):
    """Named dense arrays: a JSON header, then the contiguous data of all tensors."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        return self.read_index_with(source, limits, {})

    def read_index_with(self, source: Source, limits: Limits, options: Options) -> Index:
        ignored = options.get(SCALES) == IGNORE
        if SCALES in options and not ignored:
            raise UsageError(
                f"invalid {SCALES}", expected=IGNORE, found=repr(options[SCALES]), code=ErrorCode.OPTION,
                hint=f"format='safetensors:{SCALES}={IGNORE}' takes codes for the values.",
            )  # fmt: skip
        name = choose(source) if source.is_dir else source.filename
        main = source.member(name) if source.is_dir else source
        standard = source.is_dir or STANDARD.fullmatch(name) is not None
        likely = (*set_index(name), *(MODEL_ASSETS if standard else ()))
        members = main.members(likely=likely) if standard or "-of-" in name else ()
        if name.endswith(INDEX_SUFFIX):
            shards, problems = read_set(main, limits)
        else:
            shards, problems = [Shard(main, read_header(main, limits))], part_of_set(name, members)
        assets = [_member(main, path) for path in model_assets(main, members)] if standard else []
        records = {tensor: record for shard in shards for tensor, record in shard.header.records.items()}
        extents = [(file, offset, length, tensor) for tensor, (file, _, _, offset, length) in records.items()]
        meta, contradictions = _merged(shards)
        index = Index(
            format="safetensors",
            version="",
            files=tuple(FileRef(file.filename, file.size) for file in (*(shard.source for shard in shards), *assets)),
            tensors=LazyTensors(records, read_record, extents),
            meta=meta,
            assets={
                file.filename: Part(dtype="u8", shape=(file.size,), segments=(Segment(number, 0, file.size),))
                for number, file in enumerate(assets, len(shards))
            },
            problems=(
                *problems, *(problem for shard in shards for problem in shard.header.problems),
                *contradictions, *unreadable(assets, limits),
            ),
        )  # fmt: skip
        if ignored or CODE_TAGS.isdisjoint({record[1] for record in records.values()}):
            return index  # as are most files: their names need no look
        from .undeclared import without_declaration

        return without_declaration(index, records, source, limits)

    def encodings_for(self, *, dtype: Any = "f32", **features: Any) -> tuple[Encoding, ...]:
        return (Encoding(codec=DENSE, parts={"data": Part(dtype=single_value("dtype", dtype), shape=())}),)

    def naming(self, options: Options) -> str | None:
        return "hf" if self.writes_folder(options) else None

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return writer.accepts_dense(spec, encoding)

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return writer.plan_file(specs, meta, {name: part.nbytes for name, part in assets.items()}, options)

    def writes_folder(self, options: Options) -> bool:
        return writer.MAX_SHARD_SIZE in options

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, meta, assets, options)


def _member(source: Source, path: str) -> Source:
    """Open a file of the folder, or of a folder in it."""
    folder, _, name = path.rpartition("/")
    return source.member(name, folder)


def _merged(shards: Iterable[Shard]) -> tuple[dict[str, str], list[Problem]]:
    """Merge the metadata of all shards; the first value wins."""
    meta: dict[str, str] = {}
    problems = []
    for shard in shards:
        for key, value in shard.header.metadata.items():
            if meta.setdefault(key, value) != value:
                message = f"the shards have different values of {key[:80]!r}; the first one is used"
                problems.append(
                    Problem(code="metadata", severity="warning", where=shard.source.filename, message=message)
                )
    return meta, problems
