"""Other weights in an existing graph: the nodes that use them change, everything else stays byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from attrs import evolve, field, frozen
from squish_codecs.api import Scheme

from squish_core.api import CodecSpec, ErrorCode, FormatError, Limits, Options, TensorSpec, load_json, open_source

from ..coded import CodedWeight, CodeUse
from ..model import OWN_KEYS
from ..operators import VALUES
from ..tensor import TensorProto
from . import proto
from .graph import MICROSOFT, Graph, Initializer, dense_dtype, is_dense
from .source_graph import SUBGRAPH, ExistingModel
from .uses import USE, columns_first, unsupported_use, uses_of

GRAPH = "graph"
"""The option with the path of the model."""
LOWEST_IR, LOWEST_OPSET = 4, 13
"""Initializers that are no inputs; axes of Unsqueeze and ReduceSum as inputs."""
NARROWER = {"f32": ("f16", "bf16"), "f64": ("f32", "f16", "bf16")}
"""Dtype of the graph -> dtypes whose values it holds exactly."""


@frozen
class RewrittenGraph:
    """A graph with other weights. `nodes`: number of a node -> the nodes that replace it; `first`: nodes before all
    others.

    `tensors`: initializer -> tensor of the source. `removed`: values that no longer exist. `produced`: initializers
    that are now outputs of `first`. `as_stored`: tensors are laid out as in the graph, not [N, K].
    `moved`: offsets of initializers inside nodes whose values change or lie in another file. `replaced`: initializers
    that are not copied.
    """

    model: ExistingModel
    graph: Graph
    tensors: dict[str, str]
    as_stored: bool = False
    moved: set[int] = field(factory=set)
    first: list[bytes] = field(factory=list)
    nodes: dict[int, list[bytes]] = field(factory=dict)
    removed: set[str] = field(factory=set)
    produced: set[str] = field(factory=set)
    replaced: set[str] = field(factory=set)


def upright(spec: TensorSpec) -> TensorSpec:
    """A tensor as its codes are stored: [N, K] of a transposed one."""
    encoding = spec.encodings[0]
    params = dict(encoding.codec.params)
    if not params.pop("transposed", False):
        return spec
    codec = evolve(encoding.codec, params=params)
    return evolve(spec, shape=spec.shape[::-1], encodings=(evolve(encoding, codec=codec),))


@contextmanager
def existing_model(options: Options) -> Iterator[ExistingModel]:
    """The model whose graph is kept, open while the block runs."""
    with closing(open_source(options[GRAPH])) as source:
        yield ExistingModel(source, Limits())


def rewrite(
    model: ExistingModel, options: Options, specs: Sequence[TensorSpec], meta: Mapping[str, Any]
) -> RewrittenGraph:
    """Replace a graph's initializers by tensors.

    Parameters
    ----------
    model
        The model whose graph is kept.
    options
        `names`: path of a JSON object, tensor to initializer, for names that differ.
    specs
        The tensors, each with one encoding.
    meta
        Metadata of the source: tensors of an ONNX model are [K, N] where its graph has them so.

    Returns
    -------
    RewrittenGraph
        The nodes and initializers that change.

    Raises
    ------
    FormatError
        A tensor has no initializer, another shape, or a use for which its encoding has no operator.
    """
    names = _read_names(options["names"]) if "names" in options else {}
    tensors = {names.get(spec.name, spec.name): spec.name for spec in specs}
    renamed = [evolve(spec, name=names.get(spec.name, spec.name)) for spec in specs]
    _check(model, renamed, tensors, names)
    prefix = "squish."
    while any(name.startswith(prefix) for name in model.names):
        prefix += "_."
    weights: Mapping[str, TensorProto | CodedWeight] = {**model.initializers, **model.nested, **model.weights}
    same_shapes = all(spec.shape == weights[spec.name].shape for spec in renamed)
    as_stored = same_shapes and any(key.startswith(OWN_KEYS) for key in meta)
    result = RewrittenGraph(model, Graph([upright(spec) for spec in renamed], prefix), tensors, as_stored)
    result.moved.update(tensor.offset for tensor in model.nested.values() if tensor.external is not None)
    for spec in renamed:
        try:
            _put(result, spec)
        except FormatError as error:
            error.tensor = tensors[spec.name]
            if error.code == USE and error.hint is None:
                error.hint = f"Encode it: --encode '{error.tensor}={_dtype_of(model, spec.name)}'."
            raise
    if duplicates := sorted((set(result.graph.initializers) - result.replaced) & model.names):
        raise FormatError("the graph has a value of this name already", tensor=duplicates[0], code=ErrorCode.DUPLICATE)
    return result


def choose(specs: Sequence[TensorSpec], codec: CodecSpec, options: Options) -> dict[str, CodecSpec | str]:
    """The codec of each tensor: weights that are [K, N] as in the graph have blocks along K."""
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
                codecs[spec.name] = f"{max(operators)} of the graph computes with no other codes"
        turned = columns_first(model, [evolve(spec, name=name) for name, spec in renamed.items()]) if is_across else ()
    return codecs | {renamed[name].name: across for name in turned}


def _read_names(path: str) -> dict[str, str]:
    with closing(open_source(path)) as source:
        document = load_json(source.read(0, source.size, "names"), path, Limits())
    if any(type(name) is not str for name in document.values()):
        raise FormatError("maps tensors to names of initializers", file=path, expected="strings", code="names")
    return document


def _check(
    model: ExistingModel, specs: Sequence[TensorSpec], tensors: Mapping[str, str], names: Mapping[str, str]
) -> None:
    """FormatError for a model that cannot take weights, and for a tensor without an initializer."""
    if model.ir_version < LOWEST_IR or model.opsets.get("", 0) < LOWEST_OPSET:
        raise FormatError(
            "the graph is of an older version",
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
            mapped = spec.name in names.values()
            raise FormatError(
                "the graph has no initializer for a tensor",
                file=model.source.name,
                tensor=tensors[spec.name],
                expected=f"an initializer {spec.name!r}",
                code="tensor-unused",
                hint="Check the names in the JSON file."
                if mapped
                else "Map its name with names=FILE, a JSON object of tensors and initializers, or leave it out with "
                "{option:only}.",
            )


def _put(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace an initializer, or the parts of a quantized matrix, by a tensor."""
    model = result.model
    if spec.name in model.weights:
        _put_parts(result, spec, model.weights[spec.name])
    elif spec.name in model.nested:
        _put_inside(result, spec)
    elif is_dense(spec):
        _put_values(result, spec)
    else:
        _put_codes(result, spec)


def _dtype_of(model: ExistingModel, name: str) -> str:
    """The dtype of a weight in the graph."""
    initializer = model.initializers.get(name) or model.nested.get(name)
    return initializer.dtype if initializer is not None else model.weights[name].params.get("scale_dtype", "f32")


def _put_values(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace an initializer by dense values, through a cast or a transposition if need be."""
    model, graph = result.model, result.graph
    initializer, dtype = model.initializers[spec.name], dense_dtype(spec)
    result.replaced.add(spec.name)
    rows_first = initializer.shape == spec.shape
    if len(spec.shape) == 2 and spec.shape[0] == spec.shape[1] and not result.as_stored:
        with suppress(FormatError):
            rows_first = all(use.rows_first for use in uses_of(model, spec.name)[0])
    if initializer.shape != (spec.shape if rows_first else spec.shape[::-1]):
        raise _wrong_shape(model, spec, initializer.shape)
    if dtype != initializer.dtype and dtype not in NARROWER.get(initializer.dtype, ()):
        raise _wrong_dtype(result, spec, initializer.dtype)
    if rows_first and dtype == initializer.dtype:
        graph.part(spec.name)
        return
    stored, graph.nodes = graph.part(spec.name, suffix="_stored"), []
    if dtype != initializer.dtype:
        output = spec.name if rows_first else ""
        stored = graph.op("Cast", stored, to=proto.CODES[initializer.dtype], output=output)
    if not rows_first:
        graph.op("Transpose", stored, perm=(1, 0), output=spec.name)
    result.first.extend(graph.nodes)
    result.produced.add(spec.name)


def _put_inside(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace an initializer of a graph inside a node by values of the same dtype and shape."""
    model, initializer = result.model, result.model.nested[spec.name]
    if not is_dense(spec):
        raise unsupported_use(model, spec.name, SUBGRAPH)
    if initializer.shape != spec.shape:
        raise _wrong_shape(model, spec, initializer.shape)
    if initializer.dtype != dense_dtype(spec):
        raise _wrong_dtype(result, spec, initializer.dtype)
    result.moved.add(initializer.offset)


def _put_codes(result: RewrittenGraph, spec: TensorSpec) -> None:
    """Replace the nodes that use an initializer by nodes that use codes."""
    model, stored = result.model, upright(spec)
    initializer = model.initializers[spec.name]
    uses, aliases = uses_of(model, spec.name)
    if not uses:
        raise FormatError(
            "no node of the graph computes with this weight, so none can compute with its codes",
            file=model.source.name,
            tensor=spec.name,
            expected=initializer.dtype,
            found=str(spec.encodings[0].codec),
            code="graph-use",
        )
    as_in_graph = stored is spec and initializer.shape == spec.shape
    if as_in_graph and (result.as_stored or len(set(spec.shape)) > 1) and not all(use.rows_first for use in uses):
        raise _blocks_across(result, spec)
    for use in uses:
        if initializer.shape != (stored.shape if use.rows_first else stored.shape[::-1]):
            raise _wrong_shape(model, stored, initializer.shape)
    for use in uses:
        _compute(result, spec.name, use.code, initializer.dtype)
    result.nodes.update((number, []) for number in aliases)
    result.replaced.add(spec.name)
    result.removed.update((spec.name, *(name for number in aliases for name in model.nodes[number].outputs)))


def _put_parts(result: RewrittenGraph, spec: TensorSpec, weight: CodedWeight) -> None:
    """Replace the parts of a quantized matrix; the nodes that compute with it, too, if the new codes have another
    form."""
    model, graph = result.model, result.graph
    if spec.shape != weight.shape:
        raise _wrong_shape(model, spec, weight.shape)
    if _keeps_form(spec.encodings[0].codec, weight):
        result.replaced.update(weight.parts.values())
        for role, name in weight.parts.items():
            initializer = model.initializers[name]
            graph.initializers[name] = Initializer(name, initializer.dtype, initializer.shape, spec.name, role)
        return
    if any(part in model.elsewhere for part in weight.parts.values()):
        raise unsupported_use(model, spec.name, "a graph inside a node, or an output")
    dtype = weight.params.get("scale_dtype", "f32")
    for use in weight.uses:
        if use.operator:
            _put_dequantized(result, spec, use, dtype)
        else:
            _compute(result, spec.name, use, dtype)
    _remove(result, weight)


def _keeps_form(codec: CodecSpec, weight: CodedWeight) -> bool:
    """Whether codes are stored as those of a weight are."""
    if codec.id != weight.codec:
        return False
    if codec.id == "affine":
        return Scheme.of(codec.params) == Scheme.of(weight.params)
    return dict(codec.params) == dict(weight.params)


def _put_dequantized(result: RewrittenGraph, spec: TensorSpec, use: CodeUse, dtype: str) -> None:
    """Replace a DequantizeLinear by its values; FormatError for other values than it makes, or another operator."""
    if use.operator != VALUES or not is_dense(spec):
        error = unsupported_use(result.model, spec.name, use.operator)
        error.hint = f"Keep its codes: --encode '{result.tensors[spec.name]}=keep'."
        if use.operator == VALUES:
            error.hint = f"Encode it: --encode '{result.tensors[spec.name]}={dtype}'; or keep its codes (=keep)."
        raise error
    graph, stored = result.graph, dense_dtype(spec)
    if stored != dtype and stored not in NARROWER.get(dtype, ()):
        raise _wrong_dtype(result, spec, dtype)
    graph.nodes = []
    values = graph.part(spec.name)
    if stored == dtype:
        graph.op("Identity", values, output=use.output)
    else:
        graph.op("Cast", values, to=proto.CODES[dtype], output=use.output)
    result.nodes[max(use.nodes)] = graph.nodes


def _remove(result: RewrittenGraph, weight: CodedWeight) -> None:
    """Remove the nodes of a quantized matrix, and its parts, where nothing else reads them."""
    model = result.model
    replaced = {node for use in weight.uses for node in use.nodes if result.nodes.get(node)}
    for number in sorted({node for use in weight.uses for node in use.nodes} - replaced, reverse=True):
        outputs = model.nodes[number].outputs
        readers = {reader for output in outputs for reader in model.readers(output)}
        if all(reader in result.nodes for reader in readers) and not model.elsewhere.keys() & set(outputs):
            result.nodes[number] = []
            result.removed.update(outputs)
    for part in weight.parts.values():
        if all(reader in result.nodes for reader in model.readers(part)):
            result.replaced.add(part)
            result.removed.add(part)


def _compute(result: RewrittenGraph, name: str, use: CodeUse, dtype: str) -> None:
    """Replace a use by nodes that use codes; the graph computes with `dtype`, the codes with f32."""
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
        "the graph has a weight of [K, N], and its codes are in blocks along N",
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
        "the graph computes with other values",
        file=result.model.source.name,
        tensor=spec.name,
        expected=dtype,
        found=dense_dtype(spec),
        code="dtype",
        hint=f"Encode it: --encode '{result.tensors[spec.name]}={dtype}'.",
    )


def new_opsets(result: RewrittenGraph) -> dict[str, int]:
    """Domains that the graph did not import."""
    used = result.graph.domains if result.nodes else set()
    return {domain: 1 for domain in sorted(used - {"", *result.model.opsets}) if domain == MICROSOFT}
