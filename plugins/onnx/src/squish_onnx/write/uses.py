"""What an existing graph does with a weight, and on which axis its inputs are."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from attrs import frozen

from squish_core.api import FormatError, TensorSpec

from ..coded import CodeUse
from ..nodes import Node, is_transpose
from .source_graph import ExistingModel

USE = "graph-use"
"""Code of the error for a use that has no operator on codes."""


@frozen
class Use:
    """Nodes that multiply by a weight or gather its rows. `rows_first`: the weight is [N, K] in the graph."""

    code: CodeUse
    rows_first: bool


def uses_of(model: ExistingModel, name: str) -> tuple[list[Use], list[int]]:
    """The nodes that use a weight, and those that only transpose it; FormatError for another use."""
    uses: list[Use] = []
    aliases: list[int] = []
    values = {name: True}
    pending = [name]
    for value in pending:
        if value in model.elsewhere:
            raise unsupported_use(model, name, model.elsewhere[value])
        for number in model.readers(value):
            node, same = model.nodes[number], values[value]
            if is_transpose(node) and node.outputs[0] not in values:
                values[node.outputs[0]] = not same
                pending.append(node.outputs[0])
                aliases.append(number)
            else:
                rows_first = _rows_first(model, name, node, value, same)
                uses.append(Use(_code_use(node), rows_first))
    return uses, aliases


def _code_use(node: Node) -> CodeUse:
    """The use of a node, as if its matrix were codes."""
    is_gather = node.kind == "Gather"
    bias = node.inputs[2] if node.kind == "Gemm" and len(node.inputs) > 2 else ""
    x = node.inputs[1 if is_gather else 0]
    return CodeUse(rows=is_gather, x=x, output=node.outputs[0], nodes=(node.number,), bias=bias)


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
    raise unsupported_use(model, name, node.kind)


def unsupported_use(model: ExistingModel, name: str, use: str) -> FormatError:
    """The error for a use that has no operator on codes."""
    return FormatError(
        "the graph uses a weight for something that has no operator on codes",
        file=model.source.name,
        tensor=name,
        expected="MatMul, Gemm or Gather",
        found=use,
        code="graph-use",
    )


def columns_first(model: ExistingModel, specs: Sequence[TensorSpec]) -> set[str]:
    """The tensors that are [K, N], as the graph multiplies by them.

    A matrix with the shape of its initializer is; a square one if all tensors have the shapes of theirs and another
    one is.
    """
    initializers = model.initializers
    same = [spec for spec in specs if spec.name in initializers and initializers[spec.name].shape == spec.shape]
    matrices = {spec.name: spec for spec in same if len(spec.shape) == 2}
    names: set[str] = set()
    for name in matrices:
        with suppress(FormatError):
            uses, _ = uses_of(model, name)
            names |= {name} if uses and not any(use.rows_first for use in uses) else set()
    rectangular = {name for name in names if len(set(matrices[name].shape)) == 2}
    return names if rectangular and len(same) == len(specs) else rectangular
