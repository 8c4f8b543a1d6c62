"""Reads Core ML packages: a folder with a manifest, a specification and weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

from attrs import evolve

from squish_core.api import (
    Encoding,
    ErrorCode,
    FileRef,
    FormatError,
    Index,
    LimitError,
    Limits,
    Part,
    Problem,
    Segment,
    Source,
    SquishError,
    TensorSpec,
    check_name,
    check_shape,
)

from . import blobs, constexpr
from .program import WEIGHTS, Operation, Program, Value, read_program

DATA, MANIFEST = "Data", "Manifest.json"
MOST_MANIFEST = 1 << 20
MOST_OFFSETS = 64 << 10
"""Bytes of zero points that are read with the header: a byte for each channel."""


def read_package(source: Source, limits: Limits) -> Index:
    """Return the Index of a package; FormatError for an invalid manifest, specification or weights, and for links."""
    if not source.is_dir:
        raise FormatError("not a package folder", file=source.name, code="kind")
    path = _model_path(source)
    specification = _member(source, path)
    if specification.size > limits.header:
        raise LimitError(
            "specification too large",
            file=specification.name,
            expected=f"at most {limits.header} bytes",
            found=specification.size,
            code="limit",
            limit="header",
        )
    program = read_program(specification.read(0, specification.size, "the specification"), limits)
    return _Reader(source, path, program, limits).index(specification)


class _Reader:
    """Builds the Index of one package."""

    def __init__(self, source: Source, path: PurePosixPath, program: Program, limits: Limits) -> None:
        self.source, self.path, self.program, self.limits = source, path, program, limits
        self.weights: Source | None = None
        self.problems: list[Problem] = []

    def index(self, specification: Source) -> Index:
        tensors = {}
        for operation, constant in self._constants():
            name = check_name(operation.name, self.limits)
            if name in tensors:
                raise FormatError("duplicate tensor", tensor=name, code=ErrorCode.DUPLICATE)
            tensors[name] = self._tensor(name, constant)
        files = [FileRef(specification.filename, specification.size)]
        if self.weights is not None:
            files.append(FileRef(self.weights.filename, self.weights.size))
        return Index(
            format="mlpackage",
            version=str(self.program.version),
            files=tuple(files),
            tensors=tensors,
            meta=self.program.meta,
            problems=tuple(self.problems),
            attrs={"mlpackage.opset": self.program.opset},
        )

    def _constants(self) -> Iterator[tuple[Operation, constexpr.Constant]]:
        unused = _zero_biases(self.program)
        for operation in constexpr.join(self.program.operations):
            if operation.outputs[0][0] in unused:
                continue
            try:
                constant = constexpr.tensor_of(operation)
            except constexpr.UnsupportedError as reason:
                self.problems.append(
                    Problem(code=ErrorCode.UNREADABLE, severity="warning", where=operation.name, message=str(reason))
                )
                continue
            if constant is not None:
                yield operation, constant

    def _tensor(self, name: str, constant: constexpr.Constant) -> TensorSpec:
        shape = check_shape(constant.shape, self.limits, tensor=name)
        try:
            parts = {role: self._part(value, *constant.shapes[role]) for role, value in constant.values.items()}
        except SquishError as error:
            raise error.within(tensor=name) from None
        if "offset" in parts:
            parts["offset"] = self._with_zeros(parts["offset"])
        encoding = Encoding(codec=constant.codec, parts=parts)
        return TensorSpec(name=name, shape=shape, dtype=constant.dtype, encodings=(encoding,))

    def _part(self, value: Value, dtype: str, shape: tuple[int, ...]) -> Part:
        """Return a constant as a part: bytes from the specification, or a segment of the weights."""
        part = Part(dtype=dtype, shape=shape)
        if value.data is not None:
            if len(value.data) != part.nbytes:
                raise FormatError(
                    "constant size mismatch",
                    expected=part.nbytes,
                    found=len(value.data),
                    code="size",
                )
            return evolve(part, data=value.data)
        if value.at < 0:
            raise FormatError("constant without data", expected=dtype, code="program")
        blob = blobs.read_blob(self._weights(value.file), value.at, value.kind.dtype, value.kind.count)
        return evolve(part, segments=(Segment(1, blob.offset, blob.length),))

    def _with_zeros(self, offset: Part) -> Part:
        """Return zero points inline if all are zero, which makes them the symmetric form that H13 has."""
        if self.weights is None or not offset.segments or not self.weights.cheap_views or offset.nbytes > MOST_OFFSETS:
            return offset
        (segment,) = offset.segments
        data = self.weights.read(segment.offset, segment.length, "zero points")
        return offset if any(data) else evolve(offset, segments=(), data=data)

    def _weights(self, name: str) -> Source:
        if name != WEIGHTS:
            raise FormatError(
                "constant in a file other than the weights", expected=WEIGHTS, found=repr(name), code="path"
            )
        if self.weights is None:
            self.weights = _member(self.source, self.path.parent / "weights" / "weight.bin")
            blobs.check_header(self.weights)
        return self.weights


def _zero_biases(program: Program) -> set[str]:
    """Return all-zero biases in the specification, which stand for layers without bias."""
    biases = {operation.inputs.get("bias", "") for operation in program.operations if operation.type == "linear"}
    zeros = set()
    for operation in program.operations:
        value = operation.values.get("val")
        if operation.type == "const" and value is not None and value.data is not None and not any(value.data):
            zeros.add(operation.outputs[0][0])
    return zeros & biases


def _model_path(source: Source) -> PurePosixPath:
    """Return the path of the specification by the manifest."""
    if not source.has(MANIFEST):
        raise FormatError("missing manifest", file=source.name, expected=MANIFEST, code=ErrorCode.MISSING)
    member = _member(source, PurePosixPath(MANIFEST))
    if member.size > MOST_MANIFEST:
        raise LimitError("manifest too large", file=member.name, found=member.size, code="limit")
    try:
        manifest = json.loads(member.read(0, member.size, "the manifest"))
        root = manifest["itemInfoEntries"][manifest["rootModelIdentifier"]]["path"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise FormatError(
            "the manifest does not name the model",
            file=member.name,
            found=f"{type(error).__name__}: {error}"[:120],
            code="manifest",
        ) from None
    if not isinstance(root, str) or len(root) > 1024 or PurePosixPath(root).is_absolute():
        raise FormatError("the manifest's path is outside the package", found=repr(root)[:120], code="path")
    return PurePosixPath(DATA) / root


def _member(source: Source, path: PurePosixPath) -> Source:
    """Open a file of the package; links are refused, also in parent folders."""
    if source.path is not None:
        steps = [source.path.joinpath(*path.parts[: depth + 1]) for depth in range(len(path.parts))]
        if link := next((step for step in steps if step.is_symlink()), None):
            raise FormatError("links in a package are not followed", file=str(link), code="link")
    folder = "" if path.parent == PurePosixPath() else path.parent.as_posix()
    return source.member(path.name, folder)
