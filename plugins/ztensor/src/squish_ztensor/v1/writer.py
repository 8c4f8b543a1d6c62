"""Writing zTensor 1.1 in one pass: blobs in tensor order at multiples of 64, the manifest at the end.

Key order, spacing and defaults match the reference writer, so that the same arrays produce the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from functools import partial
from itertools import repeat
from tempfile import SpooledTemporaryFile
from typing import Any

import cbor2
from attrs import field, frozen

from squish_core.api import (
    CodeLayout,
    Digest,
    Encoding,
    OutgoingTensor,
    Refusal,
    Sink,
    TensorSpec,
    align_up,
    map_in_order,
)

from .. import accept, groups, sidecar
from ..options import WriteOptions, zstd_codec
from ..wire import MAGIC
from . import layouts
from .manifest import ALIGNMENT

_SPOOLED = 32 << 20
"""Bytes of a compressed part that are kept in memory; larger ones go to an unnamed temporary file."""


@frozen
class Placement:
    """The tensors placed so far, as objects of the manifest. `compatible`: in the form of 1.2."""

    compatible: bool = False
    objects: dict[str, dict[str, Any]] = field(factory=dict)
    alignment: int = ALIGNMENT
    empty: list[tuple[int, str]] = field(factory=list)

    def start(self, position: int, name: str, nbytes: int) -> int:
        """Return the offset of the next blob. Readers order by offset, then name: an empty one may move by 64."""
        offset = align_up(position, self.alignment)
        if not nbytes:
            if self.empty and self.empty[-1][0] == offset and name < self.empty[-1][1]:
                offset += ALIGNMENT
            self.empty.append((offset, name))
        return offset

    def add(self, spec: TensorSpec, ranges: Mapping[str, tuple[int, int, str | None]]) -> None:
        """Add a tensor with offset, length and digest of each part, in the reference's key order, without optional
        keys."""
        encoding, components = spec.encodings[0], {}
        for role, (offset, length, digest) in ranges.items():
            part = encoding.parts[role]
            component: dict[str, Any] = layouts.types_of(part.dtype, compatible=self.compatible)
            component |= {"offset": offset, "length": length}
            if part.filters and self.compatible:
                component["uncompressed_length"] = part.nbytes
            if part.filters:
                component["encoding"] = "zstd"
            if digest:
                component["digest"] = digest
            components[layouts.role_of(encoding, role)] = component
        entry: dict[str, Any] = {"shape": list(spec.shape), "format": layouts.format_of(encoding)}
        attributes = {key: value for key, value in spec.attrs.items() if storable({key: value})}
        if attributes := attributes | layouts.attributes(spec, encoding):
            entry["attributes"] = dict(sorted(attributes.items()))
        self.objects[spec.name] = {**entry, "components": dict(sorted(components.items()))}

    def root(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the manifest, with names sorted bytewise."""
        optional = {"attributes": dict(attributes)} if attributes else {}
        objects = {name: self.objects[name] for name in sorted(self.objects)}
        version = "1.2.0" if self.compatible else "1.1.0"
        return {"version": version, **optional, "objects": objects}


def accepts(spec: TensorSpec, encoding: Encoding, options: WriteOptions) -> Encoding | Refusal:
    """Accept dense arrays with dtypes of 1.1, sparse tensors, group quantization and GGML blocks."""
    return _filtered(spec, layouts.stored(spec, encoding, compatible=options.compatible), options)


def accepts_codes(spec: TensorSpec, layout: CodeLayout, options: WriteOptions) -> Encoding | Refusal | None:
    """Accept codes of other formats as group quantization."""
    encoding = groups.nearest(spec, layout, zeros=True)
    return encoding and _filtered(spec, encoding, options)


def _filtered(spec: TensorSpec, encoding: Encoding | Refusal, options: WriteOptions) -> Encoding | Refusal:
    if refusal := accept.name_refusal(spec.name):
        return refusal
    if isinstance(encoding, Refusal):
        return encoding
    # Readers get the number of values of a sparse tensor from the components' lengths.
    raw_roles = tuple(encoding.parts) if encoding.codec.id in accept.SPARSE else ()
    return accept.filtered(encoding, options, "zstd", raw_roles)


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: WriteOptions,
) -> None:
    """Write header, blobs, manifest and footer. Assets, and metadata other than text, go to `squish.meta`."""
    placement = Placement(options.compatible, alignment=options.step)
    sink.write(MAGIC)
    append(sink, placement, tensors, options)
    text = sidecar.is_text(meta, assets)
    if not text:
        append(sink, placement, [sidecar.outgoing(meta, assets)], options)
    close(sink, placement.root(meta if text else {}))


def append(sink: Sink, placement: Placement, tensors: Sequence[OutgoingTensor], options: WriteOptions) -> None:
    """Append the tensors' blobs and add them to the manifest; zstd compresses some tensors ahead, on all cores."""
    if options.encoding != "zstd":
        _append(sink, placement, zip(tensors, repeat({})), options)
        return
    with ExitStack() as temporaries, closing(map_in_order(partial(_compressed, temporaries), tensors)) as compressed:
        _append(sink, placement, zip(tensors, compressed), options)


def _append(
    sink: Sink, placement: Placement, tensors: Iterable[tuple[OutgoingTensor, Mapping[str, Any]]], options: WriteOptions
) -> None:
    """Append the tensors' blobs from their streams, or from spools of compressed parts."""
    for outgoing, spools in tensors:
        spec, ranges = outgoing.spec, {}
        for role, part in spec.encodings[0].parts.items():
            offset = accept.pad(sink, placement.start(sink.tell(), spec.name, 1 if part.filters else part.nbytes))
            digest = None if options.digests == "none" else Digest(options.digests)
            if role in spools:
                with spools[role] as spool:
                    _copy(sink, spool, digest)
            else:
                outgoing.parts[role].write_to(sink, digest)
            ranges[role] = (offset, sink.tell() - offset, None if digest is None else str(digest))
        placement.add(spec, ranges)


def close(sink: Sink, root: Mapping[str, Any]) -> None:
    """Append the manifest and the footer."""
    manifest = cbor2.dumps(root)
    for piece in (manifest, len(manifest).to_bytes(8, "little"), MAGIC):
        sink.write(piece)


def _compressed(temporaries: ExitStack, outgoing: OutgoingTensor) -> dict[str, Any]:
    """Compress the filtered parts to spools, in one frame each like the reference; `temporaries` closes them at the
    latest."""
    spools: dict[str, Any] = {}
    for role, part in outgoing.spec.encodings[0].parts.items():
        if part.filters:
            codec, _ = zstd_codec()
            spools[role] = spool = temporaries.enter_context(SpooledTemporaryFile(_SPOOLED))  # noqa: SIM115
            chunks = accept.counted(outgoing.parts[role].chunks(), part)
            spool.writelines(codec.encode(chunks, part.filters[0].params))
            spool.seek(0)
    return spools


def _copy(sink: Sink, spool: Any, digest: Digest | None) -> None:
    """Append the bytes of a spool, to the digest too."""
    while chunk := spool.read(1 << 22):
        sink.write(chunk)
        if digest is not None:
            digest.update(chunk)


def storable(values: Mapping[str, Any]) -> bool:
    """Return whether CBOR can store attributes."""
    try:
        cbor2.dumps(dict(values))
    except (cbor2.CBORError, RecursionError):
        return False
    return True
