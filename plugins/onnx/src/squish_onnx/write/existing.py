"""Other weights in an existing graph: the nodes that use them change, everything else stays byte for byte."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any

from attrs import evolve, field, frozen

from squish_core.api import FormatError, Limits, Options, TensorSpec, load_json, open_source

from ..model import OWN_KEYS
from . import proto
from .graph import MICROSOFT, Graph, dense_dtype, is_dense
from .nodes import SUBGRAPH, ExistingModel, Node, is_transpose

LOWEST_IR, LOWEST_OPSET = 4, 13
"""Initializers that are no inputs; axes of Unsqueeze and ReduceSum as inputs."""
NARROWER = {"f32": ("f16", "bf16"), "f64": ("f32", "f16", "bf16")}
"""Dtype of the graph -> dtypes whose values it holds exactly."""


@frozen
class Use:
    """A node that multiplies by a weight or gathers its rows. `rows_first`: the weight is [N, K] in the graph."""

    number: int
    rows_first: bool


@frozen
class Rewritten:
    """A graph with other weights. `nodes`: nodes in the place of others; `first`: nodes before all others.

    `tensors`: initializer -> tensor of the source. `removed`: values that no longer exist. `produced`: initializers
    that are now outputs of `first`. `as_stored`: tensors are laid out as in the graph, not [N, K].
    `moved`: offsets of initializers inside nodes whose values change or lie in another file.
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


@contextmanager
def existing_model(options: Options) -> Iterator[ExistingModel]:
    """The model whose graph is kept, open while the block runs."""
    with closing(open_source(options["graph"])) as source:
        yield ExistingModel(source, Limits())


def rewritten(
    model: ExistingModel, options: Options, specs: Sequence[TensorSpec], meta: Mapping[str, Any]
) -> Rewritten:
    """Put tensors in the place of a graph's initializers.

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
    Rewritten
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
    places = model.initializers | model.nested
    same_shapes = all(spec.shape == places[spec.name].shape for spec in renamed)
    as_stored = same_shapes and any(key.startswith(OWN_KEYS) for key in meta)
    result = Rewritten(model, Graph(renamed, prefix), tensors, as_stored)
    result.moved.update(place.offset for place in model.nested.values() if place.external is not None)
    for spec in renamed:
        if spec.name in model.nested:
            _put_inside(result, spec)
        elif is_dense(spec):
            _put_values(result, spec)
        else:
            _put_codes(result, spec)
    if taken := sorted((set(result.graph.initializers) - set(tensors)) & model.names):
        raise FormatError("the graph has a value of this name already", tensor=taken[0], code="duplicate")
    return result


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
            "the graph is of an older version", file=model.source.name, code="version",
            expected=f"IR version {LOWEST_IR} and opset {LOWEST_OPSET}, or later",
            found=f"IR version {model.ir_version}, opset {model.opsets.get('', 0)}", hint="Export it again.",
        )  # fmt: skip
    if len(tensors) < len(specs):
        raise FormatError("two tensors are mapped to one initializer", file=model.source.name, code="names")
    for spec in specs:
        if spec.name not in model.initializers and spec.name not in model.nested:
            mapped = spec.name in names.values()
            raise FormatError(
                "the graph has no initializer for a tensor", file=model.source.name, tensor=tensors[spec.name],
                expected=f"an initializer {spec.name!r}", code="tensor-unused",
                hint="Check the names in the JSON file." if mapped else
                "Map its name with names=FILE, a JSON object of tensors and initializers, or leave it out with only=.",
            )  # fmt: skip


def _put_values(result: Rewritten, spec: TensorSpec) -> None:
    """Replace an initializer by dense values, through a cast or a transposition if need be."""
    model, graph = result.model, result.graph
    place, dtype = model.initializers[spec.name], dense_dtype(spec)
    rows_first = place.shape == spec.shape
    if len(spec.shape) == 2 and spec.shape[0] == spec.shape[1] and not result.as_stored:
        with suppress(FormatError):
            rows_first = all(use.rows_first for use in _uses(model, spec.name)[0])
    if place.shape != (spec.shape if rows_first else spec.shape[::-1]):
        raise _wrong_shape(model, spec, place.shape)
    if dtype != place.dtype and dtype not in NARROWER.get(place.dtype, ()):
        raise _wrong_dtype(result, spec, place.dtype)
    if rows_first and dtype == place.dtype:
        graph.part(spec.name)
        return
    stored, graph.nodes = graph.part(spec.name, suffix="_stored"), []
    if dtype != place.dtype:
        stored = graph.op("Cast", stored, to=proto.CODES[place.dtype], output=spec.name if rows_first else "")
    if not rows_first:
        graph.op("Transpose", stored, perm=(1, 0), output=spec.name)
    result.first.extend(graph.nodes)
    result.produced.add(spec.name)


def _put_inside(result: Rewritten, spec: TensorSpec) -> None:
    """Replace an initializer of a graph inside a node by values of the same dtype and shape."""
    model, place = result.model, result.model.nested[spec.name]
    if not is_dense(spec):
        raise _unused(model, spec.name, SUBGRAPH)
    if place.shape != spec.shape:
        raise _wrong_shape(model, spec, place.shape)
    if place.dtype != dense_dtype(spec):
        raise _wrong_dtype(result, spec, place.dtype)
    result.moved.add(place.offset)


def _put_codes(result: Rewritten, spec: TensorSpec) -> None:
    """Replace the nodes that use an initializer by nodes that use codes."""
    model, graph = result.model, result.graph
    place = model.initializers[spec.name]
    uses, aliases = _uses(model, spec.name)
    if not uses:
        raise _unused(model, spec.name, "nothing")
    if result.as_stored and not all(use.rows_first for use in uses):
        raise _unused(model, spec.name, "a weight of [K, N], whose rows are no rows of the product")
    for use in uses:
        if place.shape != (spec.shape if use.rows_first else spec.shape[::-1]):
            raise _wrong_shape(model, spec, place.shape)
    for use in uses:
        graph.nodes = []
        _replace(graph, spec.name, model.nodes[use.number], place.dtype)
        result.nodes[use.number] = graph.nodes
    result.nodes.update((number, []) for number in aliases)
    result.removed.update((spec.name, *(name for number in aliases for name in model.nodes[number].outputs)))


def _uses(model: ExistingModel, name: str) -> tuple[list[Use], list[int]]:
    """The nodes that use a weight, and those that only transpose it; FormatError for another use."""
    uses: list[Use] = []
    aliases: list[int] = []
    values = {name: True}
    pending = [name]
    for value in pending:
        if value in model.elsewhere:
            raise _unused(model, name, model.elsewhere[value])
        for number in model.consumers.get(value, ()):
            node, same = model.nodes[number], values[value]
            if is_transpose(node) and node.outputs[0] not in values:
                values[node.outputs[0]] = not same
                pending.append(node.outputs[0])
                aliases.append(number)
            else:
                uses.append(Use(number, _rows_first(model, name, node, value, same)))
    return uses, aliases


def _rows_first(model: ExistingModel, name: str, node: Node, value: str, same: bool) -> bool:
    """Whether a node takes the weight as [N, K]; `same`: its input is the weight, not the transposed one."""
    attributes = node.attributes
    once = node.inputs.count(value) == 1 and len(node.inputs) > 1 and len(node.outputs) == 1
    if once and node.kind == "MatMul" and node.inputs[1] == value:
        return not same
    if once and node.kind == "Gather" and node.inputs[0] == value and same and not attributes.get("axis"):
        return True
    is_product = not attributes.get("transA") and {attributes.get(key, 1.0) for key in ("alpha", "beta")} == {1.0}
    if once and node.kind == "Gemm" and node.inputs[1] == value and is_product:
        return bool(attributes.get("transB")) == same
    raise _unused(model, name, node.kind)


def _replace(graph: Graph, name: str, node: Node, dtype: str) -> None:
    """The nodes for a node that uses codes; the graph computes with `dtype`, the codes with f32."""
    output, is_f32 = node.outputs[0], dtype == "f32"
    bias = node.inputs[2] if node.kind == "Gemm" and len(node.inputs) > 2 else ""
    last = output if is_f32 and not bias else ""
    if node.kind == "Gather":
        y = graph.embedding(name, node.inputs[1], last)
    else:
        x = node.inputs[0] if is_f32 else graph.op("Cast", node.inputs[0], to=proto.CODES["f32"])
        y = graph.linear(name, x, output=last)
    if not is_f32:
        y = graph.op("Cast", y, to=proto.CODES[dtype], output="" if bias else output)
    if bias:
        graph.op("Add", y, bias, output=output)


def _unused(model: ExistingModel, name: str, use: str) -> FormatError:
    return FormatError(
        "the graph uses a weight for something that has no operator on codes", file=model.source.name, tensor=name,
        expected="MatMul, Gemm or Gather", found=use, code="graph-use", hint=f"Encode it: --encode '{name}=f32'.",
    )  # fmt: skip


def _wrong_shape(model: ExistingModel, spec: TensorSpec, shape: Sequence[int]) -> FormatError:
    return FormatError(
        "the initializer has another shape", file=model.source.name, tensor=spec.name, code="shape",
        expected=json.dumps(list(spec.shape)), found=json.dumps(list(shape)),
    )  # fmt: skip


def _wrong_dtype(result: Rewritten, spec: TensorSpec, dtype: str) -> FormatError:
    return FormatError(
        "the graph computes with other values", file=result.model.source.name, tensor=spec.name, expected=dtype,
        found=dense_dtype(spec), code="dtype", hint=f"Encode it: --encode '{result.tensors[spec.name]}={dtype}'.",
    )  # fmt: skip


def new_opsets(result: Rewritten) -> dict[str, int]:
    """Domains that the graph did not import."""
    used = result.graph.domains if result.nodes else set()
    return {domain: 1 for domain in sorted(used - {"", *result.model.opsets}) if domain == MICROSOFT}
