"""Writing zTensor v2 in one pass: blobs without duplicates, then the manifest and the footer (Draft 4; wires 6)."""

from __future__ import annotations

import unicodedata
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash
from attrs import field, frozen

from squish_core.api import (
    CodeLayout,
    Digest,
    Encoding,
    OutgoingTensor,
    Part,
    Refusal,
    Sink,
    TensorSpec,
    align_up,
)

from .. import accept, sidecar
from ..codecs.seekable import ZstdSeekable
from ..names import TYPES
from ..options import WriteOptions
from . import deterministic, footer, layouts

_PREFIX, _PIECE = 1 << 16, 1 << 20
"""Bytes that are hashed to compare blobs without digests, and bytes per step of the comparison."""


@frozen
class Manifest:
    """The objects written so far, as a manifest."""

    alignment: int
    objects: dict[str, Any] = field(factory=dict)

    def place(self, position: int) -> int:
        """Return the offset of the next blob."""
        return align_up(max(position, self.alignment), self.alignment)

    def add(self, spec: TensorSpec, parts: dict[str, Any]) -> None:
        """Add an object whose parts are written."""
        encoding = spec.encodings[0]
        attributes = {key: value for key, value in spec.attrs.items() if storable({key: value})}
        attributes |= layouts.attributes(spec, encoding)
        entry = {"shape": list(spec.shape), "layout": layouts.layout_of(encoding), "parts": parts}
        self.objects[spec.name] = {**entry, **({"attributes": attributes} if attributes else {})}

    def pack(self, meta: Mapping[str, Any]) -> bytes:
        """Encode the manifest."""
        attributes = {"attributes": dict(meta)} if meta else {}
        return deterministic.encode({"objects": self.objects, **attributes})


def accepts(spec: TensorSpec, encoding: Encoding, options: WriteOptions) -> Encoding | Refusal:
    """Accept any encoding that v2 has a layout for, unchanged."""
    return _filtered(spec, layouts.stored(spec, encoding), options)


def accepts_codes(spec: TensorSpec, layout: CodeLayout, options: WriteOptions) -> Encoding | Refusal | None:
    """Accept codes of other formats in the layouts of v2."""
    encoding = layouts.stored_codes(spec, layout)
    return encoding and _filtered(spec, encoding, options)


def _filtered(spec: TensorSpec, encoding: Encoding | Refusal, options: WriteOptions) -> Encoding | Refusal:
    if refusal := accept.name_refusal(spec.name):
        return refusal
    if options.canonical and not unicodedata.is_normalized("NFC", spec.name):
        return Refusal(why="flavor=canonical requires names in Unicode NFC; use flavor=aligned", code="name")
    if isinstance(encoding, Refusal):
        return encoding
    # Indices stay uncompressed, since they are read one by one.
    return accept.filtered(encoding, options, "zt.zstd-seekable", accept.INDICES)


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: WriteOptions,
) -> None:
    """Write magic, blobs, manifest and footer. Assets, and metadata that CBOR cannot store, go to `squish.meta`."""
    as_attributes = not assets and storable(meta)
    sink.write(footer.MAGIC)
    tensors = [*tensors] if as_attributes else [*tensors, sidecar.outgoing(meta, assets)]
    append(sink, {"objects": {}, **({"attributes": dict(meta)} if as_attributes and meta else {})}, tensors, options)


def append(sink: Sink, root: dict[str, Any], tensors: Sequence[OutgoingTensor], options: WriteOptions) -> None:
    """Append the tensors' blobs, add them to the manifest `root`, and append it with the footer."""
    manifest = Manifest(options.step, root["objects"])
    blobs = _Blobs(sink, manifest, options, [item.spec for item in tensors])
    streams = {item.spec.name: item.parts for item in tensors}
    for spec in _sorted_specs([item.spec for item in tensors], options):
        if not sink.records:
            layouts.check(spec, streams[spec.name])
        blobs.add(spec, streams[spec.name])
    packed = deterministic.encode(root)
    offset = accept.pad(sink, manifest.place(sink.tell()))
    sink.write(packed)
    sink.write(footer.pack(offset, packed))


def storable(values: Mapping[str, Any]) -> bool:
    """Return whether attributes can be stored unchanged: text keys, and only types of v2."""
    pending: list[tuple[Any, int]] = [(dict(values), 3)]
    while pending:
        value, depth = pending.pop()
        if depth > 30 or type(value) not in (dict, list, int, str, bytes, bool, float, type(None)):
            return False
        if type(value) is int and not -(1 << 64) <= value < 1 << 64:
            return False
        if type(value) is list:
            pending += [(item, depth + 1) for item in value]
        if type(value) is dict:
            if not all(type(key) is str and 0 < len(key.encode("utf-8", "replace")) <= 1024 for key in value):
                return False
            pending += [(item, depth + 1) for item in value.values()]
    return not any("\0" in key for key in values)


class _Blobs:
    """Writes parts; a part equal to an earlier one is removed again and shares its blob."""

    def __init__(self, sink: Sink, manifest: Manifest, options: WriteOptions, specs: Sequence[TensorSpec]) -> None:
        self.manifest, self._sink, self._options = manifest, sink, options
        self._sizes = Counter(part.nbytes for spec in specs for part in spec.encodings[0].parts.values())
        self._written: dict[tuple[int, str], list[int]] = defaultdict(list)

    def add(self, spec: TensorSpec, streams: Mapping[str, Any]) -> None:
        parts = {}
        for stored_role, role, part in _sorted_parts(spec):
            offset = accept.pad(self._sink, self.manifest.place(self._sink.tell()))
            digest = self._append(streams[role], part)
            length = self._sink.tell() - offset
            if length and self._sizes[part.nbytes] > 1:
                offset = self._first(offset, length, digest)
            parts[stored_role] = _entry(spec, role, part, [offset, length], digest)
        self.manifest.add(spec, parts)

    def _append(self, stream: Any, part: Part) -> str | None:
        digest = None if self._options.digests == "none" else Digest(self._options.digests)
        if part.filters:
            chunks = accept.counted(stream.chunks(), part, digest)
            for chunk in ZstdSeekable().encode(chunks, part.filters[0].params):
                self._sink.write(chunk)
        else:
            stream.write_to(self._sink, digest)
        return str(digest) if digest else None

    def _first(self, offset: int, length: int, digest: str | None) -> int:
        """Return the offset of the first blob with the same bytes as the last one written."""
        if digest is None:
            digest = xxhash.xxh3_64_hexdigest(self._sink.read_back(offset, min(length, _PREFIX)))
        candidates = self._written[length, digest]
        for other in candidates:
            if self._same(other, offset, length):
                self._sink.truncate(offset)
                return other
        candidates.append(offset)
        return offset

    def _same(self, one: int, other: int, length: int) -> bool:
        pieces = ((at, min(_PIECE, length - at)) for at in range(0, length, _PIECE))
        return all(
            self._sink.read_back(one + at, size) == self._sink.read_back(other + at, size) for at, size in pieces
        )


def _entry(spec: TensorSpec, role: str, part: Part, blob: list[int], digest: str | None) -> dict[str, Any]:
    element = layouts.element_of(spec, role, part)
    dtype, logical = TYPES.get(element, (element, None))
    entry: dict[str, Any] = {"dtype": dtype, "blob": blob}
    if logical:
        entry["type"] = logical
    if part.filters:
        entry |= {"encoding": "zt.zstd-seekable/1", "decoded_length": part.nbytes}
    if digest:
        entry["digest"] = digest
    return entry


def _sorted_specs(specs: Sequence[TensorSpec], options: WriteOptions) -> list[TensorSpec]:
    return sorted(specs, key=lambda spec: spec.name.encode()) if options.canonical else list(specs)


def _sorted_parts(spec: TensorSpec) -> list[tuple[str, str, Part]]:
    """Return the parts by their names in the file, with their roles."""
    encoding = spec.encodings[0]
    parts = [(layouts.role_of(encoding, role), role, part) for role, part in encoding.parts.items()]
    return sorted(parts, key=lambda item: item[0].encode())
