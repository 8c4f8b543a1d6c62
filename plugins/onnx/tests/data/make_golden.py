"""Write the ONNX files of this folder: `python make_golden.py` where onnx 1.23.2 is installed."""

from pathlib import Path

import numpy as np
import onnx
from drawn import NUMBERS, RAW, values
from onnx import TensorProto, helper, numpy_helper

HERE = Path(__file__).parent
CODES = {
    "f32": "FLOAT", "f16": "FLOAT16", "f64": "DOUBLE", "bf16": "BFLOAT16", "bool": "BOOL", "complex64": "COMPLEX64",
    **{f"{kind}{bits}": f"{word}INT{bits}" for kind, word in (("i", ""), ("u", "U")) for bits in (4, 8, 16, 32, 64)},
}  # fmt: skip


def save(name: str, initializers: list[TensorProto], nodes: list[onnx.NodeProto] = (), **options: object) -> None:
    """Write a model."""
    graph = helper.make_graph(list(nodes), "weights", [], [], initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    helper.set_model_props(model, {"architecture": "none"})
    onnx.save(model, HERE / name, **options)


raw = [numpy_helper.from_array(values(dtype), f"raw.{dtype}") for dtype in RAW]
numbers = [
    helper.make_tensor(f"numbers.{dtype}", getattr(TensorProto, CODES[dtype]), (3, 5), values(dtype).ravel())
    for dtype in NUMBERS
]
save("types.onnx", [*raw, *numbers, numpy_helper.from_array(np.array(7, np.int64), "scalar")])
(HERE / "external.data").unlink(missing_ok=True)
large = np.arange(4096, dtype=np.float32).reshape(64, 64)
save(
    "external.onnx",
    [numpy_helper.from_array(large, "large"), numpy_helper.from_array(-large, "negative")],
    save_as_external_data=True,
    location="external.data",
    size_threshold=0,
)
branches = [
    helper.make_graph([], name, [], [], [numpy_helper.from_array(np.full(2, value, np.float32), "w")])
    for name, value in (("then", 1), ("else", 2))
]
node = helper.make_node("If", [], [], "choice", then_branch=branches[0], else_branch=branches[1])
save("nested.onnx", [numpy_helper.from_array(np.zeros(2, np.float32), "w")], [node])
rng = np.random.default_rng(0)
codes = [rng.integers(0, 256, shape, np.uint8) for shape in ((6, 2, 16), (6, 1), (8, 32), (8, 1))]
scales = [rng.random((rows, 2), np.float32) for rows in (6, 8)]
names = ["w_Q4", "w_zero_points", "e_Q4", "e_zero_points", "w_scales", "e_scales"]
domain = {"domain": "com.microsoft", "bits": 4, "block_size": 32}
nodes = [
    helper.make_node("MatMulNBits", ["x", "w_Q4", "w_scales", "w_zero_points"], ["y"], N=6, K=64, **domain),
    helper.make_node("GatherBlockQuantized", ["e_Q4", "ids", "e_scales", "e_zero_points"], ["rows"], **domain),
]
arrays = [numpy_helper.from_array(array, name) for array, name in zip((*codes, *scales), names)]
save("codes.onnx", arrays, nodes)
