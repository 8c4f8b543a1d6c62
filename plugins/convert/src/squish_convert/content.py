"""Identify the content of a file: one digest for each tensor and one for all, whatever format stores the codes.

A tensor's digest covers its name, its shape and its codes. Codes with a `CodeLayout` are hashed in one form: unsigned
integers, the scale of each group, and the value of code 0 in each group. So the id does not depend on whether a format
packs them in blocks or words, stores zero points or biases, or scales in f16 or f32. Other tensors are hashed as
stored: the codec with its parameters, and each part in little-endian order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from hashlib import sha1, sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from attrs import field, frozen

from squish_core import opening
from squish_core.checking.check import ProgressCallback
from squish_core.codecs.base import Region
from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.concurrency import map_in_order
from squish_core.display import to_json
from squish_core.errors import FormatError, MissingPluginError, Problem, SquishError, UsageError, redact
from squish_core.file import File
from squish_core.io.atomic import atomic_file
from squish_core.io.paths import missing
from squish_core.model import CodecSpec, TensorSpec
from squish_core.plugins.catalog import install_command
from squish_core.plugins.registry import Registry
from squish_core.tensor import Tensor

if TYPE_CHECKING:
    import numpy as np

    from squish_core.codecs.code_layout import Codes

MANIFEST = "squish-manifest/1"
LARGEST_MANIFEST = 1 << 28
NAMESPACE = UUID("ef001206-dadc-5f6d-a15f-3359e577d4e5")
"""Namespace of the ids that gguf-hash prints: that of URLs with en.wikipedia.org/wiki/Llama.cpp."""
_PANEL = 1 << 22


@frozen(kw_only=True)
class Content:
    """Ids of a file's content, in hex.

    Attributes
    ----------
    file, format
        The file, and the format that it is in.
    content
        The id of all tensors.
    tensors
        Name -> id.
    """

    file: str = field(converter=redact)
    format: str
    content: str
    tensors: Mapping[str, str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            The fields by name.

        Examples
        --------
        >>> sorted(hash_content("model.gguf").to_dict())
        ['content', 'file', 'format', 'tensors']
        """
        result: dict[str, Any] = to_json(self)
        return result


def hash_content(file: Any, *, registry: Registry | None = None, progress: ProgressCallback | None = None) -> Content:
    """Identify the tensors of a file; a copy of their codes in another format has the same ids.

    Parameters
    ----------
    file
        A path, bytes or an open `File`.
    registry
        The plugins to use; the installed ones by default.
    progress
        Called with the tensor's name, the bytes hashed and the total bytes.

    Returns
    -------
    Content
        Ids that depend on names, shapes and codes, and on no metadata.

    Raises
    ------
    SquishError
        The file cannot be opened, or a tensor cannot be read.

    Examples
    --------
    >>> _ = squish.convert("model.gguf", "model.zt")
    >>> hash_content("model.gguf").content == hash_content("model.zt").content
    True
    """
    if not isinstance(file, File):
        with opening.open(file, registry=registry) as opened:
            return hash_content(opened, progress=progress)
    tensors, done = dict[str, str](), 0
    models = dict(_models(file.without_caches()))
    total = sum(spec.encodings[0].stored for each in models.values() for spec in each.index.tensors.values())
    for prefix, model in models.items():
        for spec, digest in zip(specs := list(model.index.tensors.values()), map_in_order(partial(_id, model), specs)):
            tensors[prefix + spec.name] = digest
            done += spec.encodings[0].stored
            if progress:
                progress(spec.name, done, total)
    content = sha256(b"squish-content/1")
    for name in sorted(tensors):
        content.update(bytes.fromhex(tensors[name]))
    return Content(file=file.name, format=file.format, content=content.hexdigest(), tensors=tensors)


def _models(file: File, prefix: str = "") -> Iterator[tuple[str, File]]:
    """A file and the models inside it, such as a draft head, each with the prefix of its tensors' names."""
    yield prefix, file
    for name, child in file.children.items():
        yield from _models(child, f"{prefix}{name}:")


def _id(file: File, spec: TensorSpec) -> str:
    """Return the id of a tensor, in hex."""
    tensor = file[spec.name]
    with tensor.guard("hashing"):
        codes = None if spec.undeclared else _hash_codes(tensor.bound)
        form, digests = codes or _hash_stored(tensor)
    header = {"name": spec.name, "shape": list(spec.shape), **form}
    hasher = sha256(json.dumps(header, sort_keys=True).encode())
    for digest in digests:
        hasher.update(digest)
    return hasher.hexdigest()


def _hash_stored(tensor: Tensor) -> tuple[dict[str, Any], list[bytes]]:
    """Return what describes the stored parts, and a digest for each."""
    file, encoding = tensor.file, tensor.spec.encodings[0] if tensor.spec.undeclared else tensor.bound.encoding
    digests = []
    for role in sorted(encoding.parts):
        array, hasher = file.array(encoding.parts[role]), sha256()
        if array.part.byteorder != "<":
            values = array[...]
            hasher.update(values.astype(values.dtype.newbyteorder("<")).tobytes())
        else:
            for chunk in array.chunks():
                hasher.update(chunk)
        digests.append(hasher.digest())
    parts = {role: [encoding.parts[role].dtype, list(encoding.parts[role].shape)] for role in sorted(encoding.parts)}
    if encoding.codec.id == "dense":
        return {"dense": parts}, digests
    return {"codec": _described(file.registry, encoding.codec), "parts": parts}, digests


def _described(registry: Registry, spec: CodecSpec) -> dict[str, Any]:
    """Return a codec and those inside it with the parameters that two formats share."""
    params = to_json(dict(registry.codec(spec).canonical))
    inner = {"inner": _described(registry, spec.inner)} if spec.inner else {}
    return {"id": spec.id, "params": params, **inner}


def _hash_codes(bound: BoundEncoding) -> tuple[dict[str, Any], list[bytes]] | None:
    """Return the form of the codes, and digests of the integers, the scales and the values of code 0; None if the
    tensor is not stored as codes."""
    import numpy as np

    layout = bound.code_layout
    if layout is None:
        return None
    hashers, form = [sha256(), sha256(), sha256()], dict[str, Any]()
    for region in _rows(bound):
        codes = bound.codes(region)
        if codes is None:
            return None
        scale = _per_row(codes, codes.scale.astype(np.float32))
        hashers[0].update((codes.values.astype(np.int16) - layout.low).astype(np.uint8).tobytes())
        hashers[1].update(scale.tobytes())
        if layout.table is None:
            hashers[2].update(_per_row(codes, _value_of_zero(codes)).tobytes())
        form = {"bits": layout.bits, "columns": codes.group[-1] if codes.group else 1}
        for name, array in (("table", codes.table), ("global_scale", codes.global_scale)):
            if array is not None:
                form[name] = np.asarray(array, np.float32).tobytes().hex()
        if layout.global_scale is not None:
            form["applied"] = layout.global_scale
    return {"codes": form}, [hasher.digest() for hasher in hashers]


def _rows(bound: BoundEncoding) -> Iterator[Region]:
    """Regions of whole rows in row-major order; the whole tensor if the codec's blocks allow nothing else."""
    shape, grain = bound.spec.shape, bound.grain
    budget = _PANEL if len(shape) < 3 or grain[0] == 1 else 1 << 62
    return panels(shape, grain, 1, budget=budget, whole_rows=True)


def _per_row(codes: Codes, groups: np.ndarray) -> np.ndarray:
    """Repeat what is stored per group for each row that the group covers."""
    import numpy as np

    for axis, (size, length) in enumerate(zip(codes.group[:-1], codes.shape)):
        if size > 1:
            groups = np.repeat(groups, size, axis).take(range(length), axis)
    return np.ascontiguousarray(groups, "<f4")


def _value_of_zero(codes: Codes) -> np.ndarray:
    """Value of the smallest code of each group, in f32; never -0."""
    import numpy as np

    layout, scale = codes.layout, codes.scale.astype(np.float64)
    offset = 0.0 if codes.offset is None else codes.offset.astype(np.float64)
    if layout.offset_kind == "bias":
        value = layout.low * scale + offset
    else:
        value = (layout.low - layout.zero - offset) * scale
    return value.astype(np.float32) + np.float32(0)


def save_manifest(content: Content, path: str | Path) -> None:
    """Write the ids of a file as JSON, for `check_manifest`.

    Parameters
    ----------
    content
        The ids.
    path
        The file to write; another manifest is replaced, and nothing else.

    Raises
    ------
    UsageError
        The file exists and is not a manifest.
    WriteError
        The file cannot be written.

    Examples
    --------
    >>> save_manifest(hash_content("model.gguf"), "model.json")
    """
    check_replaced(path, _read_manifest, "a manifest")
    document = {"manifest": MANIFEST, "format": content.format, "content": content.content, "tensors": content.tensors}
    with atomic_file(Path(path)) as sink:
        sink.write((json.dumps(to_json(document), indent=2) + "\n").encode())


def check_replaced(path: str | Path, read: Callable[[Path], object], what: str) -> None:
    """Raise UsageError for a file that exists and cannot be read as what replaces it: it may be a model, or a key."""
    if not os.path.lexists(path):
        return
    try:
        read(Path(path))
    except SquishError:
        raise UsageError(
            f"exists and is not {what}, so it is not replaced",
            file=str(path),
            code=ErrorCode.EXISTS,
            hint="Remove it, or pass another name.",
        ) from None


def check_manifest(
    file: Any, path: str | Path, *, registry: Registry | None = None, progress: ProgressCallback | None = None
) -> tuple[Problem, ...]:
    """Compare the tensors of a file with a manifest of `save_manifest`, of this or another format.

    Parameters
    ----------
    file
        A path, bytes or an open `File`.
    path
        The manifest.
    registry, progress
        As in `hash_content`.

    Returns
    -------
    tuple of Problem
        An error for each tensor that differs, is missing or is new; empty if all are the same.

    Raises
    ------
    FormatError
        The manifest is not one.

    Examples
    --------
    >>> save_manifest(hash_content("model.gguf"), "model.json")
    >>> check_manifest("model.gguf", "model.json")
    ()
    """
    expected = _read_manifest(Path(path))
    found = hash_content(file, registry=registry, progress=progress).tensors
    problems = []
    for name in (*expected, *(name for name in found if name not in expected)):
        if name not in found:
            problems.append(_finding("name", name, "is in the manifest and not in the file"))
        elif name not in expected:
            problems.append(_finding("name", name, "is in the file and not in the manifest"))
        elif found[name] != expected[name]:
            message = f"differs from the manifest: expected {expected[name][:16]}..., found {found[name][:16]}..."
            problems.append(_finding(ErrorCode.DIGEST, name, message))
    return tuple(problems)


def _finding(code: str, name: str, message: str) -> Problem:
    return Problem(code=code, severity="error", where=name, message=message)


def _read_manifest(path: Path) -> dict[str, str]:
    """Return name -> id."""
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_MANIFEST + 1)
    except OSError as error:
        raise missing(path, error) from None
    try:
        if len(data) > LARGEST_MANIFEST:
            raise ValueError(f"more than {LARGEST_MANIFEST} bytes")
        document = json.loads(data)
        tensors = document["tensors"]
        if document["manifest"] != MANIFEST or not all(isinstance(value, str) for value in tensors.values()):
            raise ValueError(f"manifest {document['manifest']!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            "not a manifest of Squish",
            file=str(path),
            code="manifest",
            expected=f"JSON with manifest {MANIFEST!r} and tensors",
            found=f"{type(error).__name__}: {error}"[:120],
            hint="`squish hash FILE --manifest OUT` writes one.",
        ) from None
    return dict(tensors)


@frozen(kw_only=True)
class GgufSum:
    """A line that gguf-hash prints.

    Attributes
    ----------
    kind
        xxh64, sha1, sha256 or uuid.
    hex
        The sum; of the kind uuid, the UUID.
    name
        `FILE:TENSOR`; FILE for the sum over all tensors.
    """

    kind: str
    hex: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind:<8}  {self.hex}  {self.name}"


def gguf_sums(file: File) -> list[GgufSum]:
    """Return the sums that llama.cpp's gguf-hash prints with --all --uuid, apart from xxh3, in its order.

    Parameters
    ----------
    file
        An open GGUF file.

    Returns
    -------
    list of GgufSum
        For each file of a split model: three for each tensor, then four for the file.

    Raises
    ------
    UsageError
        The file is in another format.
    MissingPluginError
        xxhash is not installed.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     [line.kind for line in gguf_sums(file)][-4:]
    ['xxh64', 'sha1', 'sha256', 'uuid']
    """
    if file.format != "gguf":
        raise UsageError(
            "gguf-hash sums are of GGUF files",
            file=file.name,
            found=file.format,
            expected="gguf",
            code=ErrorCode.USAGE,
            hint="Leave out --gguf for ids that do not depend on the format.",
        )
    stored = [
        (segment, name if role == "data" else f"{name.removesuffix('weight')}scale", part)
        for name, spec in file.index.tensors.items()
        for role, part in spec.encodings[0].parts.items()
        for segment in part.segments
    ]
    lines = []
    for number, ref in enumerate(file.index.files):
        path = file.name if len(file.index.files) == 1 else str(Path(file.name).with_name(ref.name))
        whole = {**_hashers(), "uuid": sha1(NAMESPACE.bytes)}
        for segment, name, part in sorted(stored, key=lambda item: item[0].offset):
            if segment.file != number:
                continue
            own = _hashers()
            for chunk in file.array(part).stored_chunks():
                for hasher in (*own.values(), *whole.values()):
                    hasher.update(chunk)
            lines += [GgufSum(kind=kind, hex=hasher.hexdigest(), name=f"{path}:{name}") for kind, hasher in own.items()]
        uuid = UUID(bytes=whole.pop("uuid").digest()[:16], version=5)
        lines += [GgufSum(kind=kind, hex=hasher.hexdigest(), name=path) for kind, hasher in whole.items()]
        lines.append(GgufSum(kind="uuid", hex=str(uuid), name=path))
    return lines


def _hashers() -> dict[str, Any]:
    """Return a new hasher for each sum of gguf-hash."""
    try:
        from xxhash import xxh64
    except ImportError:
        raise MissingPluginError(
            "the sums of gguf-hash need the package xxhash",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-convert', extra='[hash]')}`.",
        ) from None
    return {"xxh64": xxh64(), "sha1": sha1(), "sha256": sha256()}
