"""The safetensors container: a file, or an indexed set of shards as one namespace."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import evolve

from squish_core.api import (
    DENSE,
    Encoding,
    ErrorCode,
    File,
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
    WritableContainer,
    WritePlan,
    single_value,
)

from . import writer
from .folder import (
    CONFIG_FILE,
    DECLARING,
    INDEX,
    MODEL_ASSETS,
    STANDARD,
    Choice,
    Shard,
    choose,
    merged,
    model_assets,
    module_weights,
    not_read,
    part_of_set,
    read_module,
    read_set,
    read_shards,
    set_index,
    shared_tensors,
    unlisted,
    unreadable,
)
from .header import TAGS, TensorRecord, read_header, read_record

SCALES, IGNORE = "scales", "ignore"
CODE_TAGS = frozenset(TAGS) - {"BOOL", "F16", "BF16", "F32", "F64", "C64", "I64", "U64"}
"""Dtypes of codes; 64-bit integers are codes only next to others."""


class Safetensors(WritableContainer):
    """Named dense arrays: a JSON header, then the contiguous data of all tensors."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        return self.read_index_with(source, limits, {})

    def read_index_with(self, source: Source, limits: Limits, options: Options) -> Index:
        ignores_scales = options.get(SCALES) == IGNORE
        if SCALES in options and not ignores_scales:
            raise UsageError(
                f"invalid {SCALES}",
                expected=IGNORE,
                found=repr(options[SCALES]),
                code=ErrorCode.OPTION,
                hint=f"{{option:format=safetensors:{SCALES}={IGNORE}}} takes codes for the values.",
            )
        choice = choose(source, limits) if source.is_dir else Choice(source.filename)
        name = choice.name
        main = source.member(name) if source.is_dir else source
        standard = source.is_dir or STANDARD.fullmatch(name) is not None
        likely = (*set_index(name), *(MODEL_ASSETS if standard else ()))
        members = main.members(likely=likely) if standard or "-of-" in name else ()
        shards, records, problems = _read(source, main, choice, members, limits)
        for path in module_weights(main, members, limits) if standard else ():
            module = read_module(main, path, len(shards), limits)
            shards.append(module)
            records |= {f"{path}/{tensor}": record for tensor, record in module.header.records.items()}
        meta, contradictions = _merged(shards)
        shared = shared_tensors(records, meta, limits)
        records |= {tensor: records[kept] for tensor, kept in shared.items()}
        extents = [(file, offset, length, tensor) for tensor, (file, _, _, offset, length) in records.items()]
        assets = [_member(main, path) for path in model_assets(main, members)] if standard else []
        files = [file.filename for file in (*(shard.source for shard in shards), *assets)]
        ignored = not_read(main, members, files) if source.is_dir else ()
        others = ignored if source.is_dir else members if INDEX.fullmatch(name) else ()
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
                *choice.problems,
                *problems,
                *(problem for shard in shards for problem in shard.header.problems),
                *contradictions,
                *_restored(shared),
                *unlisted(files, others),
                *unreadable(assets, limits),
            ),
            ignored=ignored,
        )
        if ignores_scales or CODE_TAGS.isdisjoint({record[1] for record in records.values()}):
            return index  # as are most files, whose names need no check
        from .undeclared import without_declaration

        return without_declaration(index, records, source, limits)

    def unrefined(self, index: Index, source: Source, limits: Limits) -> Index:
        if index.assets.keys().isdisjoint((CONFIG_FILE, *DECLARING)):
            return index
        from .refine.declarations import ignored_declaration
        from .refine.files import CheckpointFiles

        return evolve(index, problems=(*index.problems, *ignored_declaration(CheckpointFiles(index, source, limits))))

    def encodings_for(self, *, dtype: Any = "f32", **features: Any) -> tuple[Encoding, ...]:
        return (Encoding(codec=DENSE, parts={"data": Part(dtype=single_value("dtype", dtype), shape=())}),)

    def naming(self, options: Options) -> str | None:
        return "hf" if self.writes_folder(options) else None

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return writer.accepts_dense(spec, encoding)

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return WritePlan(dropped=(*writer.dropped_non_text(meta), *writer.dropped_files(assets, options)))

    def writes_folder(self, options: Options) -> bool:
        return writer.MAX_SHARD_SIZE in options

    def rewrite_options(self, file: File) -> Options:
        """Options that write a file, or the folder of a model, again as it is."""
        return {writer.MAX_SHARD_SIZE: "5GB"} if file.source.is_dir else {}

    def options_for(self, source: Source, index: Index, options: Options) -> Options:
        if writer.PLACES in index.attrs and writer.MAX_SHARD_SIZE in options:
            return {**options, writer.PLACES: json.dumps(index.attrs[writer.PLACES])}
        return options

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, meta, assets, options)


def _read(
    source: Source, main: Source, choice: Choice, members: Sequence[str], limits: Limits
) -> tuple[list[Shard], dict[str, TensorRecord], list[Problem]]:
    """Read the chosen files: the shards, their tensors, and problems."""
    if INDEX.fullmatch(choice.name):
        return read_set(main, limits)
    shards = read_shards(source, choice.shards, limits) if choice.shards else [Shard(main, read_header(main, limits))]
    return shards, merged(shards), part_of_set(choice.name, members)


def _restored(shared: Mapping[str, str]) -> Iterable[Problem]:
    """Return notes about tensors that the file stores under another name."""
    for name, kept in shared.items():
        message = f"omitted as shared by save_model, and read as {kept[:80]!r}, as the metadata states"
        yield Problem(code="alias", severity="note", where=name, message=message)


def _member(source: Source, path: str) -> Source:
    """Open a file of the folder or of a subfolder."""
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
