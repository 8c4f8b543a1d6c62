"""The UQFF refinement: turns the tensors of safetensors files into the layers of a model."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import evolve

from squish_core.api import (
    CodecSpec,
    CodeLayout,
    Encoding,
    File,
    Index,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Problem,
    Refinement,
    Refusal,
    Sink,
    Source,
    TensorSpec,
    WritableContainer,
    WritePlan,
    parse_spec,
    single_value,
)

from . import ALIASES, BITS
from .read.detection import SUFFIX, VERSION_KEYS, numbered

_SHARD = re.compile(r"(.+)-(\d+)\.uqff")


class Uqff(Refinement, WritableContainer):
    """Both generations of UQFF, recognized by `uqff.version.major` or the file suffix.

    Under another suffix, every tensor must be numbered and one must start with a 0.x version. Every safetensors file
    is examined, so the reader and the writer are imported only when they are used.
    """

    def refine(self, index: Index, source: Source, limits: Limits, options: Options) -> Index | None:
        if not _is_uqff(index, source, limits):
            return None
        from .read.model import read_model

        return read_model(index, source, limits, options)

    def verify(self, index: Index, source: Source, limits: Limits) -> Sequence[Problem]:
        """Report nonzero unused bits."""
        from .codecs import spare

        return list(spare.findings(index, source, limits))

    def encodings_for(self, *, isq: Any = None, **features: Any) -> tuple[Encoding, ...]:
        if isq is None:
            return ()
        value = single_value("isq", isq)
        codecs = [parse_spec(ALIASES[name]) for name in BITS.get(value, (value,))]
        return tuple(Encoding(codec=_stored(codec)) for codec in codecs)

    def naming(self, options: Options) -> str:
        return "uqff"

    def accepts(self, spec: TensorSpec, encoding: Encoding, options: Options) -> Encoding | Refusal:
        from .write import accept, writer

        return accept.accepts(spec, encoding, writer.legacy_version(options))

    def accepts_codes(self, spec: TensorSpec, layout: CodeLayout, options: Options) -> Encoding | Refusal | None:
        from .write import accept, writer

        return accept.accepts_codes(spec, layout, writer.legacy_version(options))

    def choose(self, specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> Mapping[str, CodecSpec]:
        from .write import accept

        return accept.choose(specs, codec)

    def plan_file(
        self, specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
    ) -> WritePlan:
        from .write import writer

        return writer.plan_file(specs, meta, assets, options)

    def writes_folder(self, options: Options) -> bool:
        return True

    def rewrite_options(self, file: File) -> Options:
        """Options that write a model again in its own version, with its own names of shards."""
        shards = [match[1] for ref in file.index.files if (match := _SHARD.fullmatch(ref.name))]
        version = {"version": file.version} if file.version else {}
        return {**version, "name": shards[0]} if shards else version

    def options_for(self, source: Source, index: Index, options: Options) -> Options:
        """Let the layers of a model that is edited stay in their shards."""
        from .write.writer import PLACES

        shards = {name: _SHARD.fullmatch(file) for name, file in index.attrs.get(PLACES, {}).items()}
        numbers = {name: int(match[2]) for name, match in shards.items() if match}
        return {**options, PLACES: json.dumps(numbers)} if numbers else options

    def write(
        self,
        sink: Sink,
        tensors: Sequence[OutgoingTensor],
        meta: Mapping[str, Any],
        assets: Mapping[str, bytes],
        options: Options,
    ) -> None:
        from .write import writer

        writer.write(sink, tensors, meta, assets, options)


HQQ_GROUPS = {"group_size": 64, "axis": 0}
"""The group sizes of mistral.rs's quantizer."""


def _is_uqff(index: Index, source: Source, limits: Limits) -> bool:
    if VERSION_KEYS[0] in index.tensors or any(file.name.endswith(SUFFIX) for file in index.files[:1]):
        return True
    blobs = {} if source.is_dir else numbered(index.tensors)
    if not blobs:
        return False
    from .read.v0 import declares_itself

    return declares_itself(blobs, source, limits)


def _stored(codec: CodecSpec) -> CodecSpec:
    """Return the codec as stored: with the groups of HQQ, without the scaling, which only concerns the encoder."""
    params = {name: value for name, value in codec.params.items() if name != "scaling"}
    return evolve(codec, params=params | (HQQ_GROUPS if codec.id == "hqq" else {}))
