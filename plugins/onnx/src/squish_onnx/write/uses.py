"""The uses of a weight in an existing graph, and its orientation in each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from attrs import frozen

from squish_core.api import FormatError, TensorSpec

from ..graph_values import CodeUse
from ..nodes import Node, is_transpose
from .source_graph import ExistingModel

USE = "graph-use"
"""Error code of a use that no operator on codes can replace."""


@frozen
class WeightUse:
    """Nodes that multiply by a weight or gather its rows. `rows_first`: whether the graph stores it as [N, K]."""

    code: CodeUse
    rows_first: bool


def uses_of(model: ExistingModel, name: str) -> tuple[list[WeightUse], list[int]]:
    """Return the uses of a weight, and the nodes that only transpose it; raise FormatError for another use."""
    uses: list[WeightUse] = []
    aliases: list[int] = []
    values = {name: True}
    pending = [name]
    for value in pending:
        if value in model.other_uses:
            raise use_error(model, name, model.other_uses[value])
        for number in model.readers(value):
            node, is_original = model.nodes[number], values[value]
            if is_transpose(node) and node.outputs[0] not in values:
                values[node.outputs[0]] = not is_original
                pending.append(node.outputs[0])
                aliases.append(number)
            else:
                rows_first = _rows_first(model, name, node, value, is_original)
                uses.append(WeightUse(_code_use(node), rows_first))
    return uses, aliases


def _code_use(node: Node) -> CodeUse:
    """Return the use of a node that will compute with codes."""
    is_gather = node.kind == "Gather"
    bias = node.inputs[2] if node.kind == "Gemm" and len(node.inputs) > 2 else ""
    x = node.inputs[1 if is_gather else 0]
    return CodeUse(rows=is_gather, x=x, output=node.outputs[0], nodes=(node.number,), bias=bias)


def _rows_first(model: ExistingModel, name: str, node: Node, value: str, is_original: bool) -> bool:
    """Return whether a node reads the weight as [N, K]; `is_original`: its input is not transposed before."""
    attributes = node.attributes
    is_binary = node.inputs.count(value) == 1 and len(node.inputs) > 1 and len(node.outputs) == 1
    if is_binary and node.kind == "MatMul" and node.inputs[1] == value:
        return not is_original
    if is_binary and node.kind == "Gather" and node.inputs[0] == value and is_original and not attributes.get("axis"):
        return True
    is_product = not attributes.get("transA") and {attributes.get(key, 1.0) for key in ("alpha", "beta")} == {1.0}
    if is_binary and node.kind == "Gemm" and node.inputs[1] == value and is_product:
        return bool(attributes.get("transB")) == is_original
    raise use_error(model, name, node.kind)


def use_error(model: ExistingModel, name: str, use: str) -> FormatError:
    """Return the error for a use that no operator on codes can replace."""
    return FormatError(
        "no operator computes with codes where the graph uses this weight",
        file=model.source.name,
        tensor=name,
        expected="MatMul, Gemm or Gather",
        found=use,
        code="graph-use",
    )


def columns_first(model: ExistingModel, specs: Sequence[TensorSpec]) -> set[str]:
    """Return the tensors that are [K, N], the layout in which the graph multiplies by them.

    A rectangular matrix is if it has the shape of its initializer. A square one is if all tensors have the shapes of
    their initializers, and a rectangular one among them is [K, N].
    """
    initializers = model.initializers
    same_shape = [spec for spec in specs if spec.name in initializers and initializers[spec.name].shape == spec.shape]
    matrices = {spec.name: spec for spec in same_shape if len(spec.shape) == 2}
    names: set[str] = set()
    for name in matrices:
        with suppress(FormatError):
            uses, _ = uses_of(model, name)
            names |= {name} if uses and not any(use.rows_first for use in uses) else set()
    rectangular = {name for name in names if len(set(matrices[name].shape)) == 2}
    return names if rectangular and len(same_shape) == len(specs) else rectangular
