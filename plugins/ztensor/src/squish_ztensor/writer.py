"""Writing zTensor 1.1: blobs in the given order at multiples of 64, the manifest at the end, in one pass.

Key order, spacing and defaults are those of the reference writer, so that the same arrays give the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import cbor2
from attrs import evolve, field, frozen

from squish_core.api import (
    DENSE,
    Digest,
    Encoding,
    Filter,
    FormatError,
    Layout,
    Limits,
    Outgoing,
    Part,
    Refusal,
    Sink,
    SquishError,
    TensorSpec,
    check_name,
)

from . import layouts, sidecar
from .manifest import ALIGNMENT
from .names import BLOCKS, DTYPES
from .options import Wanted, zstd_codec
from .wire import FOOTER, MAGIC

VERSION = "1.1.0"
_SPARSE = {"zt.sparse_csr": "sparse_csr", "zt.sparse_coo": "sparse_coo"}
_NO_DIGEST = {"none": None, "sha256": "sha256:" + 64 * "0", "crc32c": "crc32c:0x00000000"}


@frozen
class Placement:
    """Where each tensor goes; the manifest is its record."""

    objects: dict[str, dict[str, Any]] = field(factory=dict)
    empty: list[tuple[int, str]] = field(factory=list)

    def start(self, position: int, name: str, nbytes: int) -> int:
        """Offset of the next blob. Readers order tensors by offset, then name: an empty one may need 64 bytes more."""
        offset = position + -position % ALIGNMENT
        if not nbytes:
            if self.empty and self.empty[-1][0] == offset and name < self.empty[-1][1]:
                offset += ALIGNMENT
            self.empty.append((offset, name))
        return offset

    def add(self, spec: TensorSpec, placed: Mapping[str, tuple[int, int, str | None]]) -> None:
        """Enter a tensor with the offset, length and digest of each part, in the reference's key order (optional keys
        are left out)."""
        encoding, components = spec.encodings[0], {}
        for role, (offset, length, digest) in sorted(placed.items()):
            part = encoding.parts[role]
            component: dict[str, Any] = {"dtype": part.dtype, "offset": offset, "length": length}
            if part.filters:
                component["encoding"] = "zstd"
            if digest:
                component["digest"] = digest
            components[role] = component
        entry: dict[str, Any] = {"shape": list(spec.shape), "format": _format_of(encoding)}
        if attributes := {key: value for key, value in spec.attrs.items() if _has_cbor(value)}:
            entry["attributes"] = attributes
        self.objects[spec.name] = {**entry, "components": components}

    def manifest(self, attributes: Mapping[str, Any]) -> bytes:
        """The CBOR manifest, names sorted bytewise."""
        optional = {"attributes": dict(attributes)} if attributes else {}
        objects = dict(sorted(self.objects.items()))
        return cbor2.dumps({"version": VERSION, **optional, "objects": objects})


def accepts(spec: TensorSpec, encoding: Encoding, wanted: Wanted) -> Encoding | Refusal:
    """Dense arrays of the 1.1 dtypes and GGML blocks, raw or zstd as asked; sparse tensors."""
    try:
        check_name(spec.name, Limits()).encode()
    except (SquishError, UnicodeError) as error:
        return Refusal(why=f"the name cannot be stored: {error}", code="name")
    if spec.name == sidecar.NAME:
        return Refusal(why=f"the name {sidecar.NAME!r} is taken for metadata", code="name")
    if encoding.codec.id in _SPARSE:
        # Each component on its own, raw: readers find the number of values in their lengths.
        bare = {role: Part(dtype=part.dtype, shape=part.shape) for role, part in encoding.parts.items()}
        return Encoding(codec=encoding.codec, parts=bare)
    part = encoding.parts.get("data")
    if part is None or len(encoding.parts) != 1 or encoding.codec.params:
        return Refusal(why=f"zTensor 1.1 has no layout for {encoding.codec.id}; encode it as f16, or as GGML blocks")
    stored = _stored_as(spec, encoding, part)
    if isinstance(stored, Refusal):
        return stored
    filters: tuple[Filter, ...] = ()
    if wanted.encoding == "zstd":
        _, check_level = zstd_codec()
        check_level(wanted.params)
        filters = (Filter("zstd", wanted.params),)
    return Encoding(codec=encoding.codec, parts={"data": evolve(stored, filters=filters)}, label="stored")


def _stored_as(spec: TensorSpec, encoding: Encoding, part: Part) -> Part | Refusal:
    block = encoding.codec.id.removeprefix("ggml.")
    if encoding.codec == DENSE and spec.dtype in DTYPES:
        return Part(dtype=spec.dtype, shape=spec.shape)
    if encoding.codec.id == "dense":
        return Refusal(why=f"zTensor 1.1 has no dtype {spec.dtype}; encode it as one of {', '.join(DTYPES[:6])}")
    if encoding.codec.id == f"ggml.{block}" and block in BLOCKS:
        if spec.shape and spec.shape[-1] % BLOCKS[block][0] == 0:
            shape = layouts.row_shape(block, spec.shape)
            if (part.dtype, part.shape) == ("u8", shape):
                return Part(dtype="u8", shape=shape)
        return Refusal(why=f"its part does not hold whole rows of {block} blocks")
    return Refusal(why=f"zTensor 1.1 has no layout for {encoding.codec.id}; encode it as f16, or as GGML blocks")


def layout(specs: Sequence[TensorSpec], meta: Mapping[str, Any], assets: Mapping[str, Part], wanted: Wanted) -> Layout:
    """Exact size of a raw file, from a manifest with digests of the right length."""
    dropped = tuple(
        f"{spec.name}: attribute {key}" for spec in specs for key, value in spec.attrs.items() if not _has_cbor(value)
    )
    if wanted.encoding == "zstd":
        return Layout(size=None, dropped=dropped)
    text = sidecar.is_text(meta, assets)
    specs = [*specs] if text else [*specs, sidecar.spec(sidecar.packed_size(meta, assets))]
    placement, position = Placement(), len(MAGIC)
    for spec in specs:
        placed = {}
        for role, part in spec.encodings[0].parts.items():
            offset = placement.start(position, spec.name, part.nbytes)
            placed[role] = (offset, part.nbytes, _NO_DIGEST[wanted.digests])
            position = offset + part.nbytes
        placement.add(spec, placed)
    size = position + len(placement.manifest(meta if text else {})) + FOOTER
    return Layout(size=size, dropped=dropped)


def write(
    sink: Sink, tensors: Sequence[Outgoing], meta: Mapping[str, Any], assets: Mapping[str, bytes], wanted: Wanted
) -> None:
    """Header, blobs, manifest, footer. Metadata that is not all text, and assets, go into `squish.meta`."""
    placement = Placement()
    sink.write(MAGIC)
    for outgoing in tensors:
        spec, placed = outgoing.spec, {}
        for role, part in spec.encodings[0].parts.items():
            stream, digest = outgoing.parts[role], None
            offset = _pad(sink, placement.start(sink.tell(), spec.name, 1 if part.filters else part.nbytes))
            if part.filters or wanted.digests != "none":
                digest = _append(sink, stream.chunks(), part, wanted)
            else:
                stream.write_to(sink)
            placed[role] = (offset, sink.tell() - offset, digest)
        placement.add(spec, placed)
    text = sidecar.is_text(meta, assets)
    if not text:
        packed = sidecar.pack(meta, assets)
        spec = sidecar.spec(len(packed))
        offset = _pad(sink, placement.start(sink.tell(), spec.name, len(packed)))
        digest = _append(sink, [packed], spec.encodings[0].parts["data"], wanted)
        placement.add(spec, {"data": (offset, len(packed), digest)})
    manifest = placement.manifest(meta if text else {})
    for piece in (manifest, len(manifest).to_bytes(8, "little"), MAGIC):
        sink.write(piece)


def _append(sink: Sink, chunks: Iterable[Any], part: Part, wanted: Wanted) -> str | None:
    """Append a part through its filter; the digest of the stored bytes."""
    chunks = _counted(chunks, part)
    if part.filters:
        codec, _ = zstd_codec()
        chunks = codec.encode(chunks, part.filters[0].params)
    digest = None if wanted.digests == "none" else Digest(wanted.digests)
    for chunk in chunks:
        sink.write(chunk)
        if digest:
            digest.update(chunk)
    return str(digest) if digest else None


def _counted(chunks: Iterable[Any], part: Part) -> Iterator[Any]:
    count = 0
    for chunk in chunks:
        count += memoryview(chunk).nbytes
        yield chunk
    if count != part.nbytes:
        raise FormatError(
            "a part came out in another size than declared", expected=part.nbytes, found=count, code="size"
        )


def _pad(sink: Sink, offset: int) -> int:
    sink.write(bytes(offset - sink.tell()))
    return offset


def _format_of(encoding: Encoding) -> str:
    if encoding.codec.id in _SPARSE:
        return _SPARSE[encoding.codec.id]
    return "dense" if encoding.codec == DENSE else f"gguf.{encoding.codec.id.removeprefix('ggml.')}"


def _has_cbor(value: Any) -> bool:
    try:
        cbor2.dumps(value)
    except (cbor2.CBORError, RecursionError):
        return False
    return True
