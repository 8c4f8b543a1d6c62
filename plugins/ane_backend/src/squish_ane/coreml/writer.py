"""Writing packages: the weights stream in one pass, the specification says where they lie."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

from attrs import frozen
from squish_codecs.api import Tables

from squish_core.api import ErrorCode, FormatError, Options, OutgoingTensor, Sink, TensorSpec, dtypes

from . import blobs, program
from .accept import FLOATS, TARGETS, Op, operation
from .constexpr import JOINT

ROOT, ITEM = (str(uuid.uuid5(uuid.NAMESPACE_URL, f"squish:{name}")) for name in ("model.mlmodel", "weights"))
Places = Mapping[str, blobs.Planned]


@frozen(kw_only=True)
class Draft:
    """A package before its weights are written: all sizes are known, and where each part of each tensor goes."""

    specification: bytes
    manifest: bytes
    weights: int
    places: tuple[Places, ...]

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return len(self.specification) + len(self.manifest) + self.weights


def target_of(options: Options) -> str:
    """The deployment target that was asked for."""
    target = options.get("target", TARGETS[0])
    if target not in TARGETS:
        raise FormatError(
            "no such deployment target", expected=" or ".join(TARGETS), found=repr(target), code=ErrorCode.OPTION
        )
    return target


def draft(specs: Sequence[TensorSpec], meta: Mapping[str, str], target: str) -> Draft:
    """Everything but the weights' bytes."""
    ops = [operation(spec, target) for spec in specs]
    stored = [
        {role: (dtype, dtypes.count(shape)) for role, dtype, shape in op.params.values() if role in parts}
        for op, parts in ((op, spec.encodings[0].parts) for op, spec in zip(ops, specs))
    ]
    for spec, roles in zip(specs, stored):
        for role, blob in roles.items():
            assert blobs.nbytes(*blob) == spec.encodings[0].parts[role].nbytes, (spec.name, role)
    planned, size = blobs.plan([blob for roles in stored for blob in roles.values()])
    order = iter(planned)
    places = tuple({role: next(order) for role in roles} for roles in stored)
    made = _Program(target)
    for spec, op, found in zip(specs, ops, places):
        made.add(spec, op, found)
    return Draft(specification=made.written(meta), manifest=_manifest(), weights=size, places=places)


def write(sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, str], target: str) -> None:
    """A package, the weights first; each part is read while it is written."""
    made = draft([tensor.spec for tensor in tensors], meta, target)
    with sink.member("weight.bin", "Data/com.apple.CoreML/weights") as out:
        blobs.write_header(out, sum(map(len, made.places)))
        for tensor, places in zip(tensors, made.places):
            for role, place in places.items():
                blobs.write_record(out, place)
                tensor.parts[role].write_to(out)
                out.pad(blobs.ALIGNMENT)
    with sink.member("model.mlmodel", "Data/com.apple.CoreML") as out:
        out.write(made.specification)
    with sink.member("Manifest.json") as out:
        out.write(made.manifest)


class _Program:
    """A program under construction: one operation for each tensor, and a linear layer for each matrix of floats.

    Layers of the same width and type share an input, `x_<width>_<type>`, of one row.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.operations: list[bytes] = []
        self.inputs: dict[str, program.Feature] = {}
        self.outputs: list[program.Feature] = []
        self.taken: dict[str, int] = {}

    def add(self, spec: TensorSpec, op: Op, places: Places) -> None:
        """A tensor's constant, and its layer."""
        result = (self._identifier(spec.name), op.dtype, spec.shape)
        values = {
            parameter: program.blob(dtype, shape, places[role].at) if role in places else program.zeros(dtype, shape)
            for parameter, (role, dtype, shape) in op.params.items()
        }
        named = {"name": program.text(spec.name)}
        values |= _settings(spec, op, self.target)
        if op.type == "const" or self.target == "iOS16":
            self.operations.append(program.operation(op.type, result, inputs={}, attributes={**values, **named}))
        elif op.type in JOINT:
            self._joint(spec, op, values, result)
        else:
            self.operations.append(program.operation(op.type, result, inputs=values, attributes=named))
        if len(spec.shape) == 2 and op.dtype in FLOATS:
            self._linear(result)

    def written(self, meta: Mapping[str, str]) -> bytes:
        """The specification."""
        return program.specification(self.target, self.operations, list(self.inputs.values()), self.outputs, meta)

    def _joint(self, spec: TensorSpec, op: Op, values: Mapping[str, bytes], result: program.Feature) -> None:
        """Compressed values under a mask: an operation for the values, and one that puts them in their places."""
        mask = (self._identifier(f"{result[0]}_mask"), "u1", spec.shape)
        kept = (self._identifier(f"{result[0]}_kept"), op.dtype, (spec.encodings[0].codec.params["count"],))
        named = {"name": program.text(spec.name)}
        self.operations.append(program.operation(op.type, mask, kept, inputs=values, attributes=named))
        given = {"nonzero_data": kept[0], "mask": mask[0]}
        named = {"name": program.text(result[0])}
        self.operations.append(
            program.operation("constexpr_sparse_to_dense", result, inputs=given, attributes=named)
        )  # fmt: skip

    def _linear(self, weight: program.Feature) -> None:
        """`y = x @ W.T + 0`: the bias is not optional everywhere, so there is one for each size."""
        name, dtype, (rows, columns) = weight
        given = f"x_{columns}_{dtype}"
        self.inputs[given] = (given, dtype, (1, columns))
        bias, output = f"zeros_{rows}_{dtype}", self._identifier(f"{name}_linear")
        if bias not in self.taken:
            self.taken[bias] = 0
            values = {"val": program.zeros(dtype, (rows,)), "name": program.text(bias)}
            self.operations.append(program.operation("const", (bias, dtype, (rows,)), inputs={}, attributes=values))
        result = (output, dtype, (1, rows))
        self.operations.append(
            program.operation(
                "linear", result, inputs={"x": given, "weight": name, "bias": bias},
                attributes={"name": program.text(output)},
            )
        )  # fmt: skip
        self.outputs.append(result)

    def _identifier(self, name: str) -> str:
        """A name that Core ML takes and that is not taken yet."""
        plain = re.sub(r"[^A-Za-z0-9_]", "_", name)
        plain = plain if plain[:1].isalpha() else f"t_{plain}"
        found, number = plain, self.taken.get(plain, 0)
        while found in self.taken:
            number += 1
            found = f"{plain}_{number}"
        # Counted on from here next time, so that thousands of names that become one are not tried again and again.
        self.taken[plain] = number
        self.taken.setdefault(found, 0)
        return found


def _settings(spec: TensorSpec, op: Op, target: str) -> dict[str, bytes]:
    """Parameters that are not stored arrays."""
    if op.type == "constexpr_affine_dequantize":
        return {"axis": program.integers("i32", (), 0)}
    if target == "iOS16" and op.type in ("constexpr_lut_to_dense", "constexpr_sparse_to_dense"):
        return {"shape": program.integers("u32", (len(spec.shape),), *spec.shape)}
    codec = spec.encodings[0].codec
    if codec.id == "palette" and (tables := Tables.of(codec.params)).vector > 1:
        return {"vector_axis": program.integers("i32", (), tables.place(spec.shape))}
    return {}


def _manifest() -> bytes:
    """Which files the package has; the identifiers are constant, so that the same input gives the same bytes."""
    entries = {
        ROOT: ("com.apple.CoreML/model.mlmodel", "CoreML Model Specification", "model.mlmodel"),
        ITEM: ("com.apple.CoreML/weights", "CoreML Model Weights", "weights"),
    }
    manifest = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {
            key: {"author": "com.apple.CoreML", "description": told, "name": name, "path": path}
            for key, (path, told, name) in entries.items()
        },
        "rootModelIdentifier": ROOT,
    }
    return json.dumps(manifest, indent=4).encode()


def texts(meta: Mapping[str, Any]) -> dict[str, str]:
    """The metadata that a specification holds, which is text."""
    return {key: value for key, value in meta.items() if isinstance(value, str)}
