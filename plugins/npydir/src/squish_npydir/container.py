"""The npy directory container."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from attrs import evolve
from squish_safetensors.api import is_model_asset

from squish_core.api import (
    DENSE,
    CodecSpec,
    CodeLayout,
    Encoding,
    ErrorCode,
    File,
    FormatError,
    Index,
    Limits,
    MissingPluginError,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refusal,
    Sink,
    Source,
    SquishError,
    TensorSpec,
    WritableContainer,
    WritePlan,
    dropped_assets,
    install_command,
    parse_spec,
)

from .directory import Directory
from .features import DIALECTS, LISTING, TIERS
from .options import narrowed, option, quantized
from .read import awq, manifest
from .read.folder import Folder


class NpyDir(WritableContainer):
    """Squish's npy directories; only tensors in the manifest are listed, and arrays stay in their files."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        if not source.is_dir:
            raise FormatError(
                "not a npy directory but a file",
                file=source.name,
                code=ErrorCode.FOLDER,
                hint="Open the folder.",
            )
        folder = Folder(source=source, limits=limits)
        if not folder.has(manifest.MANIFEST) and folder.has(awq.INDEX):
            return awq.read(folder)
        index = Directory(folder).index()
        return _pending(index, source, limits) if "SQUISH_TIERS" in os.environ and source.path is not None else index

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Problem]:
        from .read import listing

        if not source.is_dir or not source.has(LISTING):
            return ()
        folder = Folder(source=source, limits=limits)
        try:
            files = listing.parse(folder.json(LISTING, "list of files"))
        except SquishError as error:
            return (Problem(code="files", severity="warning", where=LISTING, message=error.message),)
        arrays = (name for name in folder.names(manifest.PLACE) if name.endswith(".npy"))
        present = frozenset(f"{manifest.PLACE}/{name}" for name in arrays)
        return [
            Problem(code="files", severity="warning", where=path, message=message)
            for path, message in listing.contradictions(files, source, present)
        ]

    def loading(self, source: Source) -> None:
        if source.path is not None:
            _start_building(source.path)

    def read_index_with(self, source: Source, limits: Limits, options: Options) -> Index:
        option(options, "tiers")
        if source.path is None:
            raise FormatError(
                "tiers=build needs a local folder",
                file=source.name,
                code=ErrorCode.OPTION,
                hint="Open it without tiers=build, or download it.",
            )
        index = self.read_index(source, limits)
        _start_building(source.path)
        return index

    def encodings_for(self, *, dialect: Any = (), tier: Any = (), **features: Any) -> tuple[Encoding, ...]:
        tables = ((tier, TIERS), (dialect, DIALECTS))
        requests = [({value} if isinstance(value, str) else set(value), table) for value, table in tables]
        return tuple(
            _example(label, parse_spec(text))
            for labels, table in requests
            for label, text in table.items()
            if label in labels
        )

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        from .write import accept

        return accept.accepts(spec, encoding)

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        from .write import accept

        return accept.accepts_codes(spec, layout, option(options, "scales") or "f32")

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        return quantized(specs, codec)

    def dense_dtypes(self, specs: Sequence[TensorSpec], options: Options) -> Mapping[str, str]:
        return narrowed(specs, options)

    def writes_folder(self, options: Options) -> bool:
        return True

    def rewrite_options(self, file: File) -> Options:
        """Options that write a folder again with its dtype of scales."""
        parts = (part for spec in file.index.tensors.values() for part in spec.encodings[0].parts.items())
        return {"scales": "f16"} if any(role == "scale" and part.dtype == "f16" for role, part in parts) else {}

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        return WritePlan(dropped=dropped_assets(name for name in assets if not is_model_asset(name)))

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        from .write import writer

        writer.write(sink, tensors, meta, assets)


def _start_building(folder: Path) -> None:
    try:
        from .tiers import background
    except ModuleNotFoundError as error:  # tiers are made by converting; all else works without
        raise MissingPluginError(
            "building tiers needs squish-convert, which is not installed",
            file=str(folder),
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-convert')}`.",
        ) from error
    background.start(folder)


def _pending(index: Index, source: Source, limits: Limits) -> Index:
    """Note the tiers that the first load builds under SQUISH_TIERS=build."""
    from .tiers import choice

    tiers = choice.next_tiers(index, source, limits) if choice.builds_by_setting() else ()
    return evolve(index, pending_caches=tiers) if tiers else index


def _example(label: str, codec: CodecSpec) -> Encoding:
    """Return the encoding of a dialect or tier, without a file; files state the dtype of dense values in the part."""
    if codec.id != DENSE.id:
        return Encoding(codec=codec, label=label)
    return Encoding(codec=DENSE, parts={"data": Part(dtype=codec.params["dtype"], shape=())}, label=label)
