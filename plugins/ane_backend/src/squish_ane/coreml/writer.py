"""Writes packages: weights are streamed in one pass; the specification refers to their offsets."""

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
Places = Mapping[str, blobs.PlannedBlob]


@frozen(kw_only=True)
class Draft:
    """A planned package: all sizes, and the position of each part."""

    specification: bytes
    manifest: bytes
    weights: int
    places: tuple[Places, ...]

    @property
    def size(self) -> int:
        """Total size of the files in bytes."""
        return len(self.specification) + len(self.manifest) + self.weights


def target_of(options: Options) -> str:
    """Return the deployment target from the options."""
    target = options.get("target", TARGETS[0])
    if target not in TARGETS:
        raise FormatError(
            "unknown deployment target", expected=" or ".join(TARGETS), found=repr(target), code=ErrorCode.OPTION
        )
    return target


def draft(specs: Sequence[TensorSpec], meta: Mapping[str, str], target: str) -> Draft:
    """Plan a package: everything except the weight data."""
    ops = [operation(spec, target) for spec in specs]
    blobs_by_role = [
        {role: (dtype, dtypes.count(shape)) for role, dtype, shape in op.params.values() if role in parts}
        for op, parts in ((op, spec.encodings[0].parts) for op, spec in zip(ops, specs))
    ]
    for spec, roles in zip(specs, blobs_by_role):
        for role, blob in roles.items():
            assert blobs.nbytes(*blob) == spec.encodings[0].parts[role].nbytes, (spec.name, role)
    planned, size = blobs.plan([blob for roles in blobs_by_role for blob in roles.values()])
    order = iter(planned)
    places = tuple({role: next(order) for role in roles} for roles in blobs_by_role)
    builder = _Program(target)
    for spec, op, blob_places in zip(specs, ops, places):
        builder.add(spec, op, blob_places)
    return Draft(specification=builder.specification(meta), manifest=_manifest(), weights=size, places=places)


def write(sink: Sink, tensors: Sequence[OutgoingTensor], meta: Mapping[str, str], target: str) -> None:
    """Write a package, weights first; parts are streamed."""
    package = draft([tensor.spec for tensor in tensors], meta, target)
    with sink.member("weight.bin", "Data/com.apple.CoreML/weights") as out:
        blobs.write_header(out, sum(map(len, package.places)))
        for tensor, places in zip(tensors, package.places):
            for role, place in places.items():
                blobs.write_record(out, place)
                tensor.parts[role].write_to(out)
                out.pad(blobs.ALIGNMENT)
    with sink.member("model.mlmodel", "Data/com.apple.CoreML") as out:
        out.write(package.specification)
    with sink.member("Manifest.json") as out:
        out.write(package.manifest)


class _Program:
    """Builds a program: one operation per tensor, and a linear layer per float matrix.

    Layers of equal width and dtype share a one-row input `x_<width>_<dtype>`.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.operations: list[bytes] = []
        self.inputs: dict[str, program.Feature] = {}
        self.outputs: list[program.Feature] = []
        self.suffixes: dict[str, int] = {}

    def add(self, spec: TensorSpec, op: Op, places: Places) -> None:
        """Add a tensor's constant and its layer."""
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

    def specification(self, meta: Mapping[str, str]) -> bytes:
        """Encode the specification."""
        return program.specification(self.target, self.operations, list(self.inputs.values()), self.outputs, meta)

    def _joint(self, spec: TensorSpec, op: Op, values: Mapping[str, bytes], result: program.Feature) -> None:
        """Add compressed values under a mask: one operation for the values, one to scatter them."""
        mask = (self._identifier(f"{result[0]}_mask"), "u1", spec.shape)
        nonzero = (self._identifier(f"{result[0]}_kept"), op.dtype, (spec.encodings[0].codec.params["count"],))
        named = {"name": program.text(spec.name)}
        self.operations.append(program.operation(op.type, mask, nonzero, inputs=values, attributes=named))
        operands = {"nonzero_data": nonzero[0], "mask": mask[0]}
        named = {"name": program.text(result[0])}
        self.operations.append(
            program.operation("constexpr_sparse_to_dense", result, inputs=operands, attributes=named)
        )

    def _linear(self, weight: program.Feature) -> None:
        """Add `y = x @ W.T + 0`; some targets require a bias, so one of zeros is shared per size."""
        name, dtype, (rows, columns) = weight
        source = f"x_{columns}_{dtype}"
        self.inputs[source] = (source, dtype, (1, columns))
        bias, output = f"zeros_{rows}_{dtype}", self._identifier(f"{name}_linear")
        if bias not in self.suffixes:
            self.suffixes[bias] = 0
            values = {"val": program.zeros(dtype, (rows,)), "name": program.text(bias)}
            self.operations.append(program.operation("const", (bias, dtype, (rows,)), inputs={}, attributes=values))
        result = (output, dtype, (1, rows))
        self.operations.append(
            program.operation(
                "linear",
                result,
                inputs={"x": source, "weight": name, "bias": bias},
                attributes={"name": program.text(output)},
            )
        )
        self.outputs.append(result)

    def _identifier(self, name: str) -> str:
        """Return a unique name that is valid in Core ML."""
        base = re.sub(r"[^A-Za-z0-9_]", "_", name)
        base = base if base[:1].isalpha() else f"t_{base}"
        candidate, number = base, self.suffixes.get(base, 0)
        while candidate in self.suffixes:
            number += 1
            candidate = f"{base}_{number}"
        # Continue from this number, so that thousands of colliding names stay linear.
        self.suffixes[base] = number
        self.suffixes.setdefault(candidate, 0)
        return candidate


def _settings(spec: TensorSpec, op: Op, target: str) -> dict[str, bytes]:
    """Return the parameters that are not stored arrays."""
    if op.type == "constexpr_affine_dequantize":
        return {"axis": program.integers("i32", (), 0)}
    if target == "iOS16" and op.type in ("constexpr_lut_to_dense", "constexpr_sparse_to_dense"):
        return {"shape": program.integers("u32", (len(spec.shape),), *spec.shape)}
    codec = spec.encodings[0].codec
    if codec.id == "palette" and (tables := Tables.of(codec.params)).vector > 1:
        return {"vector_axis": program.integers("i32", (), tables.place(spec.shape))}
    return {}


def _manifest() -> bytes:
    """Return the manifest; identifiers are constant for deterministic output."""
    entries = {
        ROOT: ("com.apple.CoreML/model.mlmodel", "CoreML Model Specification", "model.mlmodel"),
        ITEM: ("com.apple.CoreML/weights", "CoreML Model Weights", "weights"),
    }
    manifest = {
        "fileFormatVersion": "1.0.0",
        "itemInfoEntries": {
            key: {"author": "com.apple.CoreML", "description": description, "name": name, "path": path}
            for key, (path, description, name) in entries.items()
        },
        "rootModelIdentifier": ROOT,
    }
    return json.dumps(manifest, indent=4).encode()


def texts(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the text metadata, the only kind a specification stores."""
    return {key: value for key, value in meta.items() if isinstance(value, str)}
