"""Quantized weights: initializers that a node reads as the codes, scales and offsets of a matrix."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from attrs import evolve

from squish_core.api import dtypes

from .blocks import ID as BLOCKS
from .blocks import ROWS as PACKED_ROWS
from .chains import block_sums, gathered_rows
from .graph_values import HALF_BLOCKS, SCALES, CodeUse, GraphValues, QuantizedWeight, UncombinedCodes
from .nodes import Node
from .operators import OPERATORS, weight_of_inputs
from .tensor import TensorProto

MATMUL, ROWS = "com.microsoft::MatMulNBits", "com.microsoft::GatherBlockQuantized"
MICROSOFT = "com.microsoft::"
CODES_OF = {
    MATMUL: 1, ROWS: 0, "DequantizeLinear": 0, f"{MICROSOFT}DequantizeLinear": 0, "MatMulInteger": 1, "ConvInteger": 1,
    "QLinearMatMul": 3, "QLinearConv": 3, f"{MICROSOFT}QGemm": 3, f"{MICROSOFT}MatMulIntegerToFloat": 1,
    f"{MICROSOFT}DynamicQuantizeMatMul": 1, f"{MICROSOFT}MatMulBnb4": 1, f"{MICROSOFT}MatMulFpQ4": 1,
}  # fmt: skip
"""Operator -> index of the input with codes."""
CODE_DTYPES = ("u8", "i8", "u4", "i4", "u2", "i2", "u16", "i16", "f8_e4m3", "f8_e5m2", "f8_e4m3fnuz", "f8_e5m2fnuz",
               "f4_e2m1")  # fmt: skip
BIASES = "i32"
"""Dtype of quantized biases; a node tells them from other integers."""
_SUFFIX = re.compile(r"(_quant|_quantized|(_DQ)?_Q\d(G\d+)?)$")
_QWEIGHT = re.compile(r"\.qweight$")


def quantized_weights(nodes: Sequence[Node], graph: GraphValues) -> dict[str, QuantizedWeight]:
    """Return the quantized weights of a graph.

    Parameters
    ----------
    nodes
        The nodes in order.
    graph
        The values between them.

    Returns
    -------
    dict
        Weights by the name of the codes, without the exporter's suffix. Initializers that nodes use in another way, or
        in contradictory ways, are not weights.
    """
    weights: dict[str, QuantizedWeight | None] = {}
    for node in nodes:
        weight = _READERS[node.kind](node, graph) if node.kind in _READERS else None
        if weight is None:
            continue
        other = weights.get(weight.name, weight)
        uses = weight.uses if other is weight or other is None else (*other.uses, *weight.uses)
        weights[weight.name] = evolve(weight, uses=uses) if other == weight else None
    return dict(_named([weight for weight in weights.values() if weight is not None], graph.initializers))


def uncombined_codes(
    nodes: Sequence[Node], initializers: Mapping[str, TensorProto], weights: Mapping[str, QuantizedWeight]
) -> tuple[UncombinedCodes, ...]:
    """Return the codes that no codec combines with their scales.

    Parameters
    ----------
    nodes, initializers
        Of the graph.
    weights
        The quantized weights.

    Returns
    -------
    tuple of UncombinedCodes
        One for each initializer, in the order of the nodes.
    """
    combined = {part for weight in weights.values() for part in weight.parts.values()}
    uncombined: dict[str, UncombinedCodes] = {}
    for node in nodes:
        position = CODES_OF.get(node.kind)
        name = node.inputs[position] if position is not None and position < len(node.inputs) else ""
        if name in initializers and name not in combined and initializers[name].dtype in CODE_DTYPES:
            uncombined.setdefault(name, UncombinedCodes(name, node.kind.rpartition("::")[2], _reason(node)))
    return tuple(uncombined.values())


def _reason(node: Node) -> str:
    """Explain why no codec combines the codes of a node with their scales."""
    if node.kind in (MATMUL, ROWS):
        return "the layout of the codes differs from the one that it declares"
    if node.kind in OPERATORS:
        return "its scales or zero points are computed, have another shape, or contradict those of another node"
    return "no codec supports this operator"


def _named(
    weights: Sequence[QuantizedWeight], initializers: Mapping[str, TensorProto]
) -> Iterator[tuple[str, QuantizedWeight]]:
    """Yield each weight under its own name, or under the name of its codes if that name is in use."""
    parts = {part for weight in weights for part in weight.parts.values()}
    names = set(initializers) - parts
    for weight in weights:
        name = _QWEIGHT.sub(".weight", _SUFFIX.sub("", weight.name))
        name = name if name and name not in names else weight.name
        names.add(name)
        yield name, evolve(weight, name=name)


def _product(node: Node, graph: GraphValues) -> QuantizedWeight | None:
    """Return the weight of a MatMulNBits, with the biases that the graph adds through sums over blocks."""
    x, data, scale, zero, order, bias, *_ = (*node.inputs, *("",) * 6)
    rows, columns, bits, block = (_integer(node.attributes.get(key)) for key in ("N", "K", "bits", "block_size"))
    if node.attributes.get("weight_prepacked") or len(node.outputs) != 1:
        return None
    parts = {"data": data, "scale": graph.initializer_of(scale), "offset": zero, "g_idx": order}
    weight = _matrix(graph, (rows, columns), bits, block, parts)
    if weight is None:
        return None
    output, nodes = node.outputs[0], [node.number]
    if not zero and weight.codec == "affine" and (chain := block_sums(node, graph, weight)):
        weight, output = _with_biases(weight, chain.biases), chain.output
        nodes += chain.nodes
    return evolve(weight, uses=(CodeUse(rows=False, x=x, output=output, nodes=tuple(nodes), bias=bias),))


def _rows(node: Node, graph: GraphValues) -> QuantizedWeight | None:
    """Return the weight of a GatherBlockQuantized."""
    data, ids, scale, zero, *_ = (*node.inputs, *("",) * 4)
    attributes = {"bits": 4, "block_size": 128, "quantize_axis": 1, "gather_axis": 0, **node.attributes}
    tensor = graph.tensor(data, "u8")
    if tensor is None or len(tensor.shape) != 2 or len(node.outputs) != 1:
        return None
    if attributes["quantize_axis"] not in (1, (1 << 64) - 1) or attributes["gather_axis"] not in (0, (1 << 64) - 2):
        return None
    bits, block = _integer(attributes["bits"]), _integer(attributes["block_size"])
    if bits not in HALF_BLOCKS:
        return None
    shape = tensor.shape[0], tensor.shape[1] * 8 // bits
    weight = _matrix(graph, shape, bits, block, {"data": data, "scale": scale, "offset": zero})
    use = CodeUse(rows=True, x=ids, output=node.outputs[0], nodes=(node.number,))
    return None if weight is None else evolve(weight, uses=(use,))


def _integer(value: object) -> int:
    return value if isinstance(value, int) else 0


def _matrix(
    graph: GraphValues, shape: tuple[int, int], bits: int, block: int, parts: Mapping[str, str]
) -> QuantizedWeight | None:
    """Return the weight of these parts, named after its codes, if they fill the shape."""
    data, scale = graph.tensor(parts["data"], "u8"), graph.tensor(parts["scale"], *SCALES)
    rows, columns = shape
    if data is None or scale is None or bits not in HALF_BLOCKS or block < 16 or block & (block - 1) or not data.nbytes:
        return None
    blocks = -(-columns // block)
    if min(shape) < 1 or dtypes.count(scale.shape) != rows * blocks:
        return None
    if data.nbytes * 8 != rows * columns * bits or columns % block or parts.get("g_idx"):
        return _in_blocks(graph, shape, bits, block, parts)
    params: dict[str, Any] = {"bits": bits, "group_size": block}
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    parts = {role: name for role, name in parts.items() if name}
    if "offset" not in parts:
        params |= {"zero": HALF_BLOCKS[bits], "signed": False}
        return QuantizedWeight(name=parts["data"], shape=shape, params=params, parts=parts)
    zeros = graph.tensor(parts["offset"], "u8")
    if zeros is None or blocks * bits % 8 or zeros.nbytes * 8 != rows * blocks * bits:
        return _in_blocks(graph, shape, bits, block, parts)
    params |= {"axis": "flat", "offset": "zero_point", "offset_dtype": "packed"}
    return QuantizedWeight(name=parts["data"], shape=shape, params=params, parts=parts)


def _in_blocks(
    graph: GraphValues, shape: tuple[int, int], bits: int, block: int, parts: Mapping[str, str]
) -> QuantizedWeight | None:
    """Return a weight with padded rows of codes or zero points, float zero points, or reordered columns."""
    rows, columns = shape
    data, scale = graph.initializers[parts["data"]], graph.initializers[parts["scale"]]
    blocks = -(-columns // block)
    params: dict[str, Any] = {"dtype": f"u{bits}", "axis": 1, "block_size": block}
    if data.nbytes * 8 == rows * blocks * block * bits:
        params |= {"columns": blocks * block} if columns % block else {}
    elif data.nbytes * 8 != rows * columns * bits:
        return None
    if scale.dtype != "f32":
        params["scale_dtype"] = scale.dtype
    parts = {role: name for role, name in parts.items() if name}
    if "g_idx" in parts:
        order = graph.tensor(parts["g_idx"], "i32")
        if order is None or dtypes.count(order.shape) != columns:
            return None
        params["ordered"] = True
    if "offset" not in parts:
        params["zero"] = HALF_BLOCKS[bits]
        return QuantizedWeight(name=parts["data"], shape=shape, params=params, parts=parts, codec=BLOCKS)
    zeros = graph.tensor(parts["offset"], "u8", *SCALES)
    packed = zeros is not None and zeros.dtype == "u8"
    size = rows * -(-blocks * bits // 8) if packed else rows * blocks
    if zeros is None or dtypes.count(zeros.shape) != size:
        return None
    if packed and "g_idx" in parts:  # onnxruntime's CPU kernel ignores these zero points, against the specification
        return None
    params["offset_dtype"] = PACKED_ROWS if packed else zeros.dtype
    return QuantizedWeight(name=parts["data"], shape=shape, params=params, parts=parts, codec=BLOCKS)


def _with_biases(weight: QuantizedWeight, biases: str) -> QuantizedWeight:
    params = {key: value for key, value in weight.params.items() if key not in ("zero", "signed")}
    params |= {"offset": "bias"} | ({"offset_dtype": "f32"} if "scale_dtype" in params else {})
    return evolve(weight, params=params, parts={**weight.parts, "offset": biases})


def _embedding(node: Node, graph: GraphValues) -> QuantizedWeight | None:
    """Return the weight of an embedding whose codes, scales and biases are gathered separately, as Squish writes it."""
    chain = gathered_rows(node, graph)
    if chain is None:
        return None
    parts = {"data": node.inputs[0], "scale": graph.initializer_of(chain.scale), "offset": chain.zeros}
    weight = _matrix(graph, chain.shape, chain.bits, chain.block, parts)
    if weight is None:
        return None
    weight = _with_biases(weight, chain.biases) if chain.biases else weight
    return evolve(weight, uses=(CodeUse(rows=True, x=node.inputs[1], output=chain.output, nodes=chain.nodes),))


_READERS: dict[str, Callable[[Node, GraphValues], QuantizedWeight | None]] = {
    MATMUL: _product, ROWS: _rows, "Gather": _embedding, **dict.fromkeys(OPERATORS, weight_of_inputs),
}  # fmt: skip
"""Operator -> reader of the weight of such a node."""
