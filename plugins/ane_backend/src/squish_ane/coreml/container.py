"""The Core ML package container."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import (
    CodecSpec,
    CodeLayout,
    Encoding,
    Index,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Refusal,
    Sink,
    Source,
    TensorSpec,
    WritableContainer,
    WritePlan,
    dropped_assets,
    dropped_metadata,
    single_value,
)

from . import accept, writer
from .features import encoding_for
from .package import read_package


class Mlpackage(WritableContainer):
    """Core ML packages: constants and compressed weights are tensors; the writer adds a linear layer per matrix."""

    def read_index(self, source: Source, limits: Limits) -> Index:
        return read_package(source, limits)

    def encodings_for(self, *, compression: Any = None, **features: Any) -> tuple[Encoding | Refusal, ...]:
        if compression is None:
            return ()
        return (encoding_for(single_value("compression", compression), **features),)

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        return accept.accept(spec, encoding, writer.target_of(options))

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        return accept.accept_codes(spec, layout, writer.target_of(options))

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        return accept.choose(specs, codec, writer.target_of(options))

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        texts = writer.texts(meta)
        dropped = dropped_metadata((key for key in meta if key not in texts), "not text")
        return WritePlan(dropped=(*dropped, *dropped_assets(assets)))

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        writer.write(sink, tensors, writer.texts(meta), writer.target_of(options))

    def writes_folder(self, options: Options) -> bool:
        return True
