"""Writing a model: its graph, the weights in an external file, and configuration files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from squish_core.api import (
    ErrorCode,
    FormatError,
    Index,
    Limits,
    Options,
    OutgoingTensor,
    Part,
    Sink,
    Source,
    TensorSpec,
    WritePlan,
    counted,
    dropped_assets,
    dropped_metadata,
    load_json,
)

from .. import ASSETS, CONFIG, GENAI, MODEL
from ..model import read_model
from . import proto
from .config import Decoder, read_decoder
from .decoder import HEADS, decoder_graph, text_prefix
from .existing import GRAPH, existing_model, rewrite
from .genai import genai_config
from .graph import Graph
from .splice import splice
from .weights import WeightWriter

MODALITIES = ("vision_config", "audio_config")
"""Keys of config.json for the modalities besides text."""
IR_VERSION, OPSET = 10, 21


def decoder_of(assets: Mapping[str, Any]) -> Decoder:
    """Read the decoder from the model's config.json."""
    if CONFIG not in assets:
        raise FormatError(
            "the graph cannot be built without the model's configuration",
            part=CONFIG,
            code=ErrorCode.CONFIG,
            hint="Convert a complete model, such as a GGUF file or a folder with its config.json, or reuse the graph "
            "of another model with --graph MODEL.onnx.",
        )
    return read_decoder(_config(assets))


def omitted(names: Sequence[str], assets: Mapping[str, Any]) -> dict[str, str]:
    """Return the tensors outside the text part of a multimodal model, with the reason."""
    if CONFIG not in assets or not any(key in _config(assets) for key in MODALITIES):
        return {}
    prefix = text_prefix(names)
    others = (name for name in names if not name.startswith(prefix) and name != HEADS[prefix])
    return dict.fromkeys(others, "not part of the text model")


def _config(assets: Mapping[str, Any]) -> Mapping[str, Any]:
    data = assets[CONFIG]
    raw = bytes(data.data or b"{}") if isinstance(data, Part) else bytes(data)
    return load_json(raw, CONFIG, Limits(), piece=len(raw), constants=True)


def with_own_graph(source: Source, index: Index, options: Options) -> Options:
    """Return the options with `graph`, by default the path of an ONNX source."""
    if index.format != "onnx" or GRAPH in options or source.packed or source.path is None:
        return options
    return {**options, GRAPH: str((source.path / MODEL if source.is_dir else source.path).absolute())}


def plan_file(
    specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], options: Options
) -> WritePlan:
    """Plan the file: note the initializers that keep their values, and the metadata and files that are dropped."""
    notes: tuple[str, ...] = ()
    graph_meta: Mapping[str, Any] = {}
    if GRAPH in options:
        with existing_model(options) as model:
            result = rewrite(model, options, specs, meta)
            unchanged = sorted({*model.initializers, *model.nested} - {*result.replaced_initializers, *result.tensors})
            graph_meta = read_model(model.source, Limits()).meta
        note = f"the graph keeps the values of {counted(len(unchanged), 'initializer')}: {', '.join(unchanged[:3])}"
        notes = (note,) if unchanged else ()
    keys = dropped_metadata((key for key in meta if graph_meta.get(key) != meta[key]), "not written")
    files = dropped_assets(name for name in assets if name not in ASSETS)
    return WritePlan(dropped=(*keys, *files), notes=notes)


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: Options,
) -> None:
    """Write the weights and the files beside the model, then the model."""
    specs = [tensor.spec for tensor in tensors]
    weights = WeightWriter({tensor.spec.name: tensor for tensor in tensors}, f"{sink.name}.data")
    for name in ASSETS:
        if name in assets:
            _write_file(sink, name, assets[name])
    if GRAPH in options:
        with existing_model(options) as model:
            result = rewrite(model, options, specs, meta)
            with sink.member(weights.location) as data:
                pieces = splice(result, weights, data)
            for piece in pieces:
                sink.write(piece)
        return
    decoder = decoder_of(assets)
    _write_file(sink, GENAI, genai_config(decoder, sink.name))
    graph = decoder_graph(decoder, specs)
    _check_use(graph, specs)
    fields = [*graph.constant_nodes, *graph.nodes, proto.message(2, decoder.family)]
    with sink.member(weights.location) as data:
        fields += [weights.write(data, initializer, initializer.tensor) for initializer in graph.initializers.values()]
    fields += [*graph.inputs, *graph.outputs]
    for piece in proto.model(fields, _opsets(graph), IR_VERSION, {}):
        sink.write(piece)


def _check_use(graph: Graph, specs: Sequence[TensorSpec]) -> None:
    """Raise FormatError unless the graph uses all tensors."""
    unused = {spec.name for spec in specs} - {initializer.tensor for initializer in graph.initializers.values()}
    if unused:
        raise FormatError(
            "the graph of the family does not use a tensor",
            tensor=min(unused),
            code="tensor-unused",
            found=f"{counted(len(unused), 'unused tensor')}",
            hint="Leave them out with {option:only}, if the model runs without them.",
        )


def _opsets(graph: Graph) -> dict[str, int]:
    return {domain: 1 if domain else OPSET for domain in sorted(graph.domains)}


def _write_file(sink: Sink, name: str, data: bytes) -> None:
    with sink.member(name) as member:
        member.write(data)
