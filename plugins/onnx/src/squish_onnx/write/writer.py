"""Writes a model: the header with its graph, the weights beside it, and what runs it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import (
    ErrorCode,
    FormatError,
    OutgoingTensor,
    Part,
    Sink,
    TensorSpec,
    WritePlan,
    dropped_assets,
    dropped_metadata,
)

from . import proto
from .config import Decoder, read_decoder
from .decoder import decoder_graph
from .genai import genai_config
from .graph import Graph, Initializer, named_dtype

CONFIG, GENAI = "config.json", "genai_config.json"
ASSETS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model", "chat_template.jinja",
)  # fmt: skip
"""Files of a model that onnxruntime-genai and transformers read beside it."""
ALIGNMENT = 1 << 16
INLINE = 1 << 16
"""Tensors of fewer bytes are stored in the model, so that they take no page of their own."""
IR_VERSION, OPSET = 10, 21


def decoder_of(assets: Mapping[str, Any]) -> Decoder:
    """The decoder that the model's config.json describes."""
    if CONFIG not in assets:
        raise FormatError(
            "the graph needs the model's configuration", part=CONFIG, code=ErrorCode.CONFIG,
            hint="Convert a complete model: a GGUF file, or a folder with its config.json.",
        )  # fmt: skip
    data = assets[CONFIG]
    return read_decoder(json.loads(bytes(data.data or b"{}") if isinstance(data, Part) else bytes(data)))


def plan_file(specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part]) -> WritePlan:
    """Build the graph once, so that what it lacks is an error before anything is written."""
    graph = decoder_graph(decoder_of(assets), specs)
    unused = {spec.name for spec in specs} - {each.tensor for each in graph.initializers.values()}
    if unused:
        raise FormatError(
            "the graph of the family has no place for a tensor", tensor=min(unused), code="tensor-unused",
            found=f"{len(unused)} tensors without a place",
            hint="Leave them out with only=, if the model runs without.",
        )  # fmt: skip
    lost = dropped_assets(name for name in assets if name not in ASSETS)
    return WritePlan(size=None, dropped=(*dropped_metadata(meta, "not written"), *lost))


def write(sink: Sink, tensors: Sequence[OutgoingTensor], assets: Mapping[str, bytes]) -> None:
    """Write weights, files beside the model, and the model last."""
    decoder = decoder_of(assets)
    graph = decoder_graph(decoder, [tensor.spec for tensor in tensors])
    weights = _Weights({tensor.spec.name: tensor for tensor in tensors}, f"{sink.name}.data")
    fields = [*graph.nodes, proto.message(2, decoder.family)]
    with sink.member(weights.location) as data:
        fields += [weights.write(data, each) for each in graph.initializers.values()]
    for label, array in graph.constants.values():
        values = proto.tensor(label, named_dtype(array), array.shape, proto.raw(array.tobytes()))
        fields.append(proto.message(5, values))
    fields += [*graph.inputs, *graph.outputs]
    for name in ASSETS:
        if name in assets:
            _write_file(sink, name, assets[name])
    _write_file(sink, GENAI, genai_config(decoder, sink.name))
    for piece in proto.model(fields, _opsets(graph), IR_VERSION, {}):
        sink.write(piece)


def _opsets(graph: Graph) -> dict[str, int]:
    return {domain: 1 if domain else OPSET for domain in sorted(graph.domains)}


def _write_file(sink: Sink, name: str, data: bytes) -> None:
    with sink.member(name) as member:
        member.write(data)


class _Weights:
    """Writes initializers: large ones aligned in the file of weights, small ones in the model."""

    def __init__(self, tensors: Mapping[str, OutgoingTensor], location: str) -> None:
        self._tensors, self.location = tensors, location

    def write(self, data: Sink, initializer: Initializer) -> bytes:
        """Write one; returns its field of the graph."""
        stream = self._tensors[initializer.tensor].parts[initializer.role]
        name, dtype, shape = initializer.name, initializer.dtype, initializer.shape
        if stream.part.nbytes < INLINE:
            values = proto.raw(b"".join(bytes(chunk) for chunk in stream.chunks()))
        else:
            data.pad(ALIGNMENT)
            values = proto.external(self.location, data.tell(), stream.part.nbytes)
            stream.write_to(data)
        return proto.message(5, proto.tensor(name, dtype, shape, values))
