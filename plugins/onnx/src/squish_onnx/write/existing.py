"""Replacement of the weights of an existing graph; nodes that do not use them stay byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from attrs import evolve, field, frozen
from squish_codecs.api import Scheme

from squish_core.api import CodecSpec, ErrorCode, FormatError, Limits, Options, TensorSpec, load_json, open_source

from ..graph_values import CodeUse, QuantizedWeight
from ..model import OWN_KEYS
from ..operators import VALUES
from ..tensor import TensorProto
from . import proto
from .graph import MICROSOFT, Graph, Initializer, dense_dtype, is_dense
from .source_graph import SUBGRAPH, ExistingModel
from .uses import USE, columns_first, use_error, uses_of

GRAPH = "graph"
"""The option with the path of the model."""
LOWEST_IR, LOWEST_OPSET = 4, 13
"""From these versions on, initializers need not be inputs, and Unsqueeze and ReduceSum take axes as inputs."""
NARROWER = {"f32": ("f16", "bf16"), "f64": ("f32", "f16", "bf16")}
"""Dtype of the graph -> narrower dtypes that it represents exactly."""


@frozen
class RewrittenGraph:
    """A graph with new weights.

    `nodes`: number of a node -> the nodes that replace it. `first`: nodes to insert before all others. `tensors`:
    initializer -> tensor of the source. `in_graph_layout`: tensors have the graph's layout, not [N, K].
    `nested_changes`: offsets of initializers inside nodes whose values change or move to another file.
    `removed_values`: values that no longer exist. `computed`: initializers that become outputs of `first`.
    `replaced_initializers`: initializers that are not copied.
    """

    model: ExistingModel
    graph: Graph
    tensors: dict[str, str]
    in_graph_layout: bool = False
    nested_changes: set[int] = field(factory=set)
    first: list[bytes] = field(factory=list)
    nodes: dict[int, list[bytes]] = field(factory=dict)
    removed_values: set[str] = field(factory=set)
    computed: set[str] = field(factory=set)
    replaced_initializers: set[str] = field(factory=set)


def rows_first_spec(spec: TensorSpec) -> TensorSpec:
    """Return the spec of the stored codes: [N, K] for a transposed tensor."""
    encoding = spec.encodings[0]
    params = dict(encoding.codec.params)
    if not params.pop("transposed", False):
        return spec
    codec = evolve(encoding.codec, params=params)
    return evolve(spec, shape=spec.shape[::-1], encodings=(evolve(encoding, codec=codec),))


@contextmanager
def existing_model(options: Options) -> Iterator[ExistingModel]:
    """Open the model that provides the graph."""
    with closing(open_source(options[GRAPH])) as source:
        yield ExistingModel(source, Limits())


def rewrite(
    model: ExistingModel, options: Options, specs: Sequence[TensorSpec], meta: Mapping[str, Any]
) -> RewrittenGraph:
    """Replace a graph's initializers by tensors.

    Parameters
    ----------
    model
        The model that provides the graph.
    options
        `names`: path of a JSON object that maps tensors to initializers, for names that differ.
    specs
        The tensors, each with one encoding.
    meta
        Metadata of the source; tensors of an ONNX source have the layout of its graph, such as [K, N].

    Returns
    -------
    RewrittenGraph
        The nodes and initializers that change.

    Raises
    ------
    FormatError
        A tensor has no initializer or another shape, or no operator supports its encoding where the graph uses it.
    """
    names = _read_names(options["names"]) if "names" in options else {}
    tensors = {names.get(spec.name, spec.name): spec.name for spec in specs}
    renamed = [evolve(spec, name=names.get(spec.name, spec.name)) for spec in specs]
    _check(model, renamed, tensors, names)
    prefix = "squish."
    while any(name.startswith(prefix) for name in model.names):
        prefix += "_."
    weights: Mapping[str, TensorProto | QuantizedWeight] = {**model.initializers, **model.nested, **model.weights}
    same_shapes = all(spec.shape == weights[spec.name].shape for spec in renamed)
    in_graph_layout = same_shapes and any(key.startswith(OWN_KEYS) for key in meta)
    result = RewrittenGraph(model, Graph([rows_first_spec(spec) for spec in renamed], prefix), tensors, in_graph_layout)
    result.nested_changes.update(tensor.offset for tensor in model.nested.values() if tensor.external is not None)
    for spec in renamed:
        try:
            _put(result, spec)
        except FormatError as error:
            error.tensor = tensors[spec.name]
            if error.code == USE and error.hint is None:
                error.hint = f"Encode it: --encode '{error.tensor}={_dtype_of(model, spec.name)}'."
            raise
    if duplicates := sorted((set(result.graph.initializers) - result.replaced_initializers) & model.names):
        raise FormatError("the graph already has a value of this name", tensor=duplicates[0], code=ErrorCode.DUPLICATE)
    return result


def choose(specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> dict[str, CodecSpec | str]:
    """Choose the codec of each tensor; weights that the graph stores as [K, N] get blocks along K."""
    codecs: dict[str, CodecSpec | str] = {spec.name: codec for spec in specs}
    if GRAPH not in options:
        return codecs
    names = _read_names(options["names"]) if "names" in options else {}
    renamed = {names.get(spec.name, spec.name): spec for spec in specs}
    across = evolve(codec, params={**codec.params, "transposed": True})
    is_across = codec.id == "affine" and "axis" not in codec.params
    with existing_model(options) as model:
        for name, spec in renamed.items():
            weight = model.weights.get(name)
            operators = {use.operator for use in weight.uses} - {""} if weight else set()
            if operators - ({VALUES} if codec.id == "dense" else set()):
                codecs[spec.name] = f"{max(operators)} of the graph accepts no other codes"
        transposed = (
            columns_first(model, [evolve(spec, name=name) for name, spec in renamed.items()]) if is_across else ()
        )
    return codecs | {renamed[name].name: across for name in transposed}


def _read_names(path: str) -> dict[str, str]:
    with closing(open_source(path)) as source:
        document = load_json(source.read(0, source.size, "names"), path, Limits())
    if any(type(name) is not str for name in document.values()):
        raise FormatError(
            "maps a tensor to something else than a name", file=path, expected="names of initializers", code="names"
        )
    return document


def _check(
    model: ExistingModel, specs: Sequence[TensorSpec], tensors: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """Raise FormatError for a graph of an unsupported version, and for a tensor without an initializer."""
    if model.ir_version < LOWEST_IR or model.opsets.get("", 0) < LOWEST_OPSET:
        raise FormatError(
            "the version of the graph is too old",
            file=model.source.name,
            code="version",
            expected=f"IR version {LOWEST_IR} and opset {LOWEST_OPSET}, or later",
            found=f"IR version {model.ir_version}, opset {model.opsets.get('', 0)}",
            hint="Export it again.",
        )
    if len(tensors) < len(specs):
        raise FormatError("two tensors are mapped to one initializer", file=model.source.name, code="names")
    initializers = {*model.initializers, *model.nested, *model.weights}
    for spec in specs:
        if spec.name not in initializers:
            is_mapped = spec.name in names.values()
            raise FormatError(
                "the graph has no initializer for a tensor",
                file=model.source.name,
                tensor=tensors[spec.name],
                expected=f"an initializer {spec.name!r}",
                code="tensor-unused",
                hint="Check the names in the JSON file."
                if is_mapped
                else "Map its name with names=FILE, a JSON object from tensors to initializers, or leave it out with "
                "{option:only}.",
            )


def _put(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace an initializer, or the parts of a quantized weight, by a tensor."""
    model = result.model
    if spec.name in model.weights:
        _put_parts(result, spec, model.weights[spec.name])
    elif spec.name in model.nested:
        _put_nested(result, spec)
    elif is_dense(spec):
        _put_values(result, spec)
    else:
        _put_codes(result, spec)


def _dtype_of(model: ExistingModel, name: str) -> str:
    """Return the dtype of a weight in the graph."""
    initializer = model.initializers.get(name) or model.nested.get(name)
    return initializer.dtype if initializer is not None else model.weights[name].params.get("scale_dtype", "f32")


def _put_values(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace an initializer by dense values; add a Cast or a Transpose if necessary."""
    model, graph = result.model, result.graph
    initializer, dtype = model.initializers[spec.name], dense_dtype(spec)
    result.replaced_initializers.add(spec.name)
    rows_first = initializer.shape == spec.shape
    if len(spec.shape) == 2 and spec.shape[0] == spec.shape[1] and not result.in_graph_layout:
        with suppress(FormatError):
            rows_first = all(use.rows_first for use in uses_of(model, spec.name)[0])
    if initializer.shape != (spec.shape if rows_first else spec.shape[::-1]):
        raise _wrong_shape(model, spec, initializer.shape)
    if dtype != initializer.dtype and dtype not in NARROWER.get(initializer.dtype, ()):
        raise _wrong_dtype(result, spec, initializer.dtype)
    if rows_first and dtype == initializer.dtype:
        graph.part(spec.name)
        return
    value, graph.nodes = graph.part(spec.name, suffix="_stored"), []
    if dtype != initializer.dtype:
        output = spec.name if rows_first else ""
        value = graph.op("Cast", value, to=proto.CODES[initializer.dtype], output=output)
    if not rows_first:
        graph.op("Transpose", value, perm=(1, 0), output=spec.name)
    result.first.extend(graph.nodes)
    result.computed.add(spec.name)


def _put_nested(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace an initializer of a nested graph by values of the same dtype and shape."""
    model, initializer = result.model, result.model.nested[spec.name]
    if not is_dense(spec):
        raise use_error(model, spec.name, SUBGRAPH)
    if initializer.shape != spec.shape:
        raise _wrong_shape(model, spec, initializer.shape)
    if initializer.dtype != dense_dtype(spec):
        raise _wrong_dtype(result, spec, initializer.dtype)
    result.nested_changes.add(initializer.offset)


def _put_codes(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace the nodes that use an initializer by nodes that compute with codes."""
    model, codes_spec = result.model, rows_first_spec(spec)
    initializer = model.initializers[spec.name]
    uses, aliases = uses_of(model, spec.name)
    if not uses:
        raise FormatError(
            "no node of the graph computes with this weight, so it cannot be quantized",
            file=model.source.name,
            tensor=spec.name,
            expected=initializer.dtype,
            found=str(spec.encodings[0].codec),
            code="graph-use",
        )
    as_in_graph = codes_spec is spec and initializer.shape == spec.shape
    if as_in_graph and (result.in_graph_layout or len(set(spec.shape)) > 1) and not all(use.rows_first for use in uses):
        raise _blocks_across(result, spec)
    for use in uses:
        if initializer.shape != (codes_spec.shape if use.rows_first else codes_spec.shape[::-1]):
            raise _wrong_shape(model, codes_spec, initializer.shape)
    for use in uses:
        _compute(result, spec.name, use.code, initializer.dtype)
    result.nodes.update((number, []) for number in aliases)
    result.replaced_initializers.add(spec.name)
    result.removed_values.update((spec.name, *(name for number in aliases for name in model.nodes[number].outputs)))


def _put_parts(result: RewrittenGraph, spec: TensorSpec, weight: QuantizedWeight) -> None:
    """Replace the parts of a quantized weight, and its nodes if the new codes have another layout."""
    model, graph = result.model, result.graph
    if spec.shape != weight.shape:
        raise _wrong_shape(model, spec, weight.shape)
    if _keeps_layout(spec.encodings[0].codec, weight):
        result.replaced_initializers.update(weight.parts.values())
        for role, name in weight.parts.items():
            initializer = model.initializers[name]
            graph.initializers[name] = Initializer(name, initializer.dtype, initializer.shape, spec.name, role)
        return
    if any(part in model.other_uses for part in weight.parts.values()):
        raise use_error(model, spec.name, "a nested graph, or an output")
    dtype = weight.params.get("scale_dtype", "f32")
    for use in weight.uses:
        if use.operator:
            _put_dequantized(result, spec, use, dtype)
        else:
            _compute(result, spec.name, use, dtype)
    _remove(result, weight)


def _keeps_layout(codec: CodecSpec, weight: QuantizedWeight) -> bool:
    """Return whether a codec stores codes as a weight of the graph does."""
    if codec.id != weight.codec:
        return False
    if codec.id == "affine":
        return Scheme.of(codec.params) == Scheme.of(weight.params)
    return dict(codec.params) == dict(weight.params)


def _put_dequantized(result: RewrittenGraph, spec: TensorSpec, use: CodeUse, dtype: str) -> None:
    """Replace a DequantizeLinear by dense values; raise FormatError for another dtype or operator."""
    if use.operator != VALUES or not is_dense(spec):
        error = use_error(result.model, spec.name, use.operator)
        error.hint = f"Keep its codes: --encode '{result.tensors[spec.name]}=keep'."
        if use.operator == VALUES:
            error.hint = f"Encode it: --encode '{result.tensors[spec.name]}={dtype}'; or keep its codes (=keep)."
        raise error
    graph, tensor_dtype = result.graph, dense_dtype(spec)
    if tensor_dtype != dtype and tensor_dtype not in NARROWER.get(dtype, ()):
        raise _wrong_dtype(result, spec, dtype)
    graph.nodes = []
    values = graph.part(spec.name)
    if tensor_dtype == dtype:
        graph.op("Identity", values, output=use.output)
    else:
        graph.op("Cast", values, to=proto.CODES[dtype], output=use.output)
    result.nodes[max(use.nodes)] = graph.nodes


def _remove(result: RewrittenGraph, weight: QuantizedWeight) -> None:
    """Remove the nodes and the parts of a quantized weight that nothing else reads."""
    model = result.model
    replaced = {node for use in weight.uses for node in use.nodes if result.nodes.get(node)}
    for number in sorted({node for use in weight.uses for node in use.nodes} - replaced, reverse=True):
        outputs = model.nodes[number].outputs
        readers = {reader for output in outputs for reader in model.readers(output)}
        if all(reader in result.nodes for reader in readers) and not model.other_uses.keys() & set(outputs):
            result.nodes[number] = []
            result.removed_values.update(outputs)
    for part in weight.parts.values():
        if all(reader in result.nodes for reader in model.readers(part)):
            result.replaced_initializers.add(part)
            result.removed_values.add(part)


def _compute(result: RewrittenGraph, name: str, use: CodeUse, dtype: str) -> None:
    """Replace a use by nodes that compute with codes in f32, and cast from and to the graph's `dtype`."""
    graph, output, bias, is_f32 = result.graph, use.output, use.bias, dtype == "f32"
    graph.nodes = []
    last = output if is_f32 and not bias else ""
    if use.rows:
        y = graph.embedding(name, use.x, last)
    else:
        x = use.x if is_f32 else graph.op("Cast", use.x, to=proto.CODES["f32"])
        y = graph.linear(name, x, output=last)
    if not is_f32:
        y = graph.op("Cast", y, to=proto.CODES[dtype], output="" if bias else output)
    if bias:
        graph.op("Add", y, bias, output=output)
    result.nodes[max(use.nodes)] = graph.nodes


def _blocks_across(result: RewrittenGraph, spec: TensorSpec) -> FormatError:
    return FormatError(
        "the graph stores the weight as [K, N], and the blocks of codes lie along N",
        file=result.model.source.name,
        tensor=spec.name,
        expected="blocks along K",
        found=str(spec.encodings[0].codec),
        code="graph-use",
        hint=f"Encode it: --encode '{result.tensors[spec.name]}=int4:transposed=true'.",
    )


def _wrong_shape(model: ExistingModel, spec: TensorSpec, shape: Sequence[int]) -> FormatError:
    return FormatError(
        "the initializer has another shape",
        file=model.source.name,
        tensor=spec.name,
        code="shape",
        expected=json.dumps(list(spec.shape)),
        found=json.dumps(list(shape)),
    )


def _wrong_dtype(result: RewrittenGraph, spec: TensorSpec, dtype: str) -> FormatError:
    return FormatError(
        "the graph computes with another dtype",
        file=result.model.source.name,
        tensor=spec.name,
        expected=dtype,
        found=dense_dtype(spec),
        code="dtype",
        hint=f"Encode it: --encode '{result.tensors[spec.name]}={dtype}'.",
    )


def new_opsets(result: RewrittenGraph) -> dict[str, int]:
    """Return the operator domains that the graph must import in addition."""
    domains = result.graph.domains if result.nodes else set()
    return {domain: 1 for domain in sorted(domains - {"", *result.model.opsets}) if domain == MICROSOFT}
