"""The values of a graph, and its quantized weights."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from attrs import field, frozen

from squish_core.api import Limits, Source, dtypes, protobuf

from .nodes import Flow
from .tensor import TensorProto, read_tensor

HALF_BLOCKS = {2: 2, 4: 8, 8: 128}
"""Bits -> default zero point of MatMulNBits."""
F32 = 1
"""TensorProto.DataType of f32."""
SCALES = ("f32", "f16", "bf16")
_MOST_VALUES = 64
"""Largest number of values of a constant that is read."""


@frozen(kw_only=True)
class CodeUse:
    """Nodes that compute with codes: they gather rows (`rows`), or multiply and add `bias`.

    `x` and `output`: the input and the output. `nodes`: numbers of the nodes. `operator`: an operator that accepts no
    codes but these; DequantizeLinear only dequantizes them.
    """

    rows: bool
    x: str
    output: str
    nodes: tuple[int, ...]
    bias: str = ""
    operator: str = ""


@frozen(kw_only=True)
class QuantizedWeight:
    """A quantized weight of a graph. `params`: parameters of the codec. `parts`: role -> initializer."""

    name: str
    shape: tuple[int, ...]
    params: Mapping[str, Any]
    parts: Mapping[str, str]
    codec: str = "affine"
    uses: tuple[CodeUse, ...] = field(default=(), eq=False)


@frozen
class UncombinedCodes:
    """Codes that are not part of a `QuantizedWeight`: the initializer, its operator, and the reason."""

    name: str
    operator: str
    reason: str


@frozen
class GraphValues:
    """The values of a graph: their producers and readers, initializers, and small constants."""

    flow: Flow
    initializers: Mapping[str, TensorProto]
    source: Source
    limits: Limits

    def numbers(self, name: str) -> list[Any] | None:
        """Return the numbers of a small constant or initializer; None for other values."""
        tensor = self.initializers.get(name)
        node = self.flow.producers.get(name) if tensor is None else None
        constant = node is not None and node.kind == "Constant"
        if node is not None and constant and isinstance(value := node.attributes.get("value"), protobuf.Field):
            tensor = read_tensor(value, "constant", self.limits)
        if (
            tensor is None
            or tensor.problem
            or dtypes.bits(tensor.dtype) < 8
            or dtypes.count(tensor.shape) > _MOST_VALUES
        ):
            return None
        data = self.source.view(*tensor.raw) if tensor.raw is not None else tensor.values
        return None if data is None else np.frombuffer(data, dtypes.to_numpy(tensor.dtype)).tolist()

    def initializer_of(self, name: str) -> str:
        """Return the name of the initializer that a value is, or is cast from."""
        node = None if name in self.initializers else self.flow.producers.get(name)
        is_cast = (
            node is not None and node.kind == "Cast" and len(node.inputs) == 1 and node.attributes.get("to") == F32
        )
        return node.inputs[0] if node is not None and is_cast else name

    def tensor(self, name: str, *kinds: str) -> TensorProto | None:
        """Return an initializer of one of these dtypes."""
        tensor = self.initializers.get(name)
        return tensor if tensor is not None and tensor.dtype in kinds and not tensor.problem else None
