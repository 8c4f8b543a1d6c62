"""Operators whose inputs are the codes, scales and zero points of a weight."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from squish_core.api import dtypes

from .blocks import FLOATS, ID, INTEGERS, SCALES
from .graph_values import F32, CodeUse, GraphValues, QuantizedWeight
from .nodes import Node
from .tensor import TensorProto

_MICROSOFT = "com.microsoft::"
VALUES = "DequantizeLinear"
"""The operator that only dequantizes."""


@frozen
class Inputs:
    """Indices of the inputs with codes, scales and zero points. `axis`: the default axis of several scales.

    `scale` is None where a later node multiplies the product by the scales.
    """

    data: int
    scale: int | None
    zero: int
    axis: int = -1


OPERATORS = {
    VALUES: Inputs(0, 1, 2, 1), _MICROSOFT + VALUES: Inputs(0, 1, 2, 1), "QLinearMatMul": Inputs(3, 4, 5),
    "QLinearConv": Inputs(3, 4, 5, 0), "MatMulInteger": Inputs(1, None, 3), f"{_MICROSOFT}QGemm": Inputs(3, 4, 5),
    f"{_MICROSOFT}MatMulIntegerToFloat": Inputs(1, 3, 5), f"{_MICROSOFT}DynamicQuantizeMatMul": Inputs(1, 2, 3),
}  # fmt: skip
_MOVING = (
    "Gather", "GatherND", "GatherElements", "Transpose", "Reshape", "Slice", "Identity", "Squeeze", "Unsqueeze",
    "Flatten", "Expand",
)  # fmt: skip
"""Operators that reorder codes without changing their values."""


def weight_of_inputs(node: Node, graph: GraphValues) -> QuantizedWeight | None:
    """Return the weight that the inputs of a node define.

    Parameters
    ----------
    node
        A node of one of `OPERATORS`.
    graph
        Its graph.

    Returns
    -------
    QuantizedWeight or None
        None if codes, scales or zero points are not initializers, or their shapes do not fit.
    """
    inputs = OPERATORS[node.kind]
    names = (*node.inputs, *("",) * 8)
    name = names[inputs.data]
    is_moved = name not in graph.initializers and node.kind.endswith(VALUES)
    name = _origin(name, graph) if is_moved else name
    scale_name = _scale_after_product(node, graph) if inputs.scale is None else names[inputs.scale]
    data, scale = graph.tensor(name, *INTEGERS, *FLOATS), graph.tensor(scale_name, *SCALES)
    if data is None or scale is None or not data.nbytes or not data.shape:
        return None
    params = _grid(node, inputs, data, scale)
    if params is None or (is_moved and "axis" in params):  # the axis may have moved too
        return None
    parts = {"data": name, "scale": scale_name}
    if zero_name := names[inputs.zero]:
        zero = graph.tensor(zero_name, data.dtype)
        if zero is None or dtypes.count(zero.shape) != dtypes.count(scale.shape):
            return None
        parts["offset"] = zero_name
        params["offset_dtype"] = zero.dtype
    operator = node.kind.rpartition("::")[2]
    use = CodeUse(
        rows=False,
        x=name,
        output=node.outputs[0],
        nodes=(node.number,),
        operator="codes that move" if is_moved else operator,
    )
    return QuantizedWeight(name=name, shape=data.shape, params=params, parts=parts, uses=(use,), codec=ID)


def _grid(node: Node, inputs: Inputs, data: TensorProto, scale: TensorProto) -> dict[str, Any] | None:
    """Return the codec parameters; None if the scales do not have the shape that the node declares."""
    params: dict[str, Any] = {"dtype": data.dtype}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    rank, axis, block = len(data.shape), node.attributes.get("axis"), node.attributes.get("block_size") or 0
    if axis is None:
        axis = 0 if inputs.axis == -1 and node.attributes.get("transB") else inputs.axis
    axis = axis - (1 << 64) if axis >= 1 << 63 else axis
    axis += rank if axis < 0 else 0
    if block:
        grid = tuple(-(-size // block) if number == axis else size for number, size in enumerate(data.shape))
        return {**params, "axis": axis, "block_size": block} if 0 <= axis < rank and scale.shape == grid else None
    if dtypes.count(scale.shape) == 1 and len(scale.shape) < 2:
        return params
    return {**params, "axis": axis} if 0 <= axis < rank and scale.shape == (data.shape[axis],) else None


def _origin(name: str, graph: GraphValues) -> str:
    """Return the value from which `_MOVING` operators compute a value."""
    for _ in _MOVING:
        node = graph.flow.producers.get(name)
        if node is None or node.kind not in _MOVING or not node.inputs:
            break
        name = node.inputs[0]
    return name


def _scale_after_product(node: Node, graph: GraphValues) -> str:
    """Return the scales that multiply the product of a MatMulInteger, together with the scales of x; "" for none."""
    cast = graph.flow.reader(node.outputs[0]) if node.outputs else None
    if cast is None or cast.kind != "Cast" or cast.attributes.get("to") != F32:
        return ""
    product = graph.flow.reader(cast.outputs[0])
    if product is None or product.kind != "Mul" or len(product.inputs) != 2:
        return ""
    (factor,) = [name for name in product.inputs if name != cast.outputs[0]] or [""]
    scales = graph.flow.producers.get(factor)
    if scales is None or scales.kind != "Mul":
        return ""
    x = graph.flow.producers.get(node.inputs[0])
    x_scale = x.outputs[1] if x is not None and x.kind == "DynamicQuantizeLinear" and len(x.outputs) > 1 else None
    weight_scales = [name for name in scales.inputs if name != x_scale]
    return weight_scales[0] if x_scale in scales.inputs and len(weight_scales) == 1 else ""
