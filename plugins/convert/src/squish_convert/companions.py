"""What a conversion writes besides the tensors: assets, and companions (child models, encodings of the whole model).

A draft head is a child. Assets of a mapped model are computed, so each is read when the target needs it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial

from attrs import evolve

from squish_core.checking.check import check_empty, check_part
from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError, TensorError
from squish_core.file import File
from squish_core.formats.assets import MAX_INLINE, LazyAssets
from squish_core.formats.base import WritableContainer
from squish_core.formats.composite import (
    Companions,
    CompositeContainer,
    OutgoingChild,
    OutgoingCompanions,
    OutgoingWhole,
)
from squish_core.formats.dropped import Dropped
from squish_core.formats.json import has_keys, load_json, without_keys
from squish_core.formats.outgoing import OutgoingTensor, Stream
from squish_core.guard import computing
from squish_core.model import Encoding, Index, Part, TensorSpec

from .compare.metrics import Distance

_OF_THE_WHOLE = "of the whole model"


def split_companions(
    file: File, container: WritableContainer, complete: bool
) -> tuple[Companions, tuple[Dropped, ...]]:
    """Return the companions to offer to a format, and those that are dropped in any case.

    `complete`: whether every tensor is written; otherwise companions are dropped.
    """
    index = file.index
    children: dict[str, Index] = {}
    dropped: list[Dropped] = []
    for name, child in index.children.items():
        reason = _reason(container, complete)
        reason = _unreadable(child) if reason is None else reason
        if reason is None:
            children[name] = evolve(child, tensors={key: _bare(spec) for key, spec in child.tensors.items()})
        else:
            dropped.append(Dropped("child", name, reason))
    reason = _reason(container, complete)
    if reason is None:
        return Companions(children=children, whole=index.whole), tuple(dropped)
    whole = (Dropped("encoding", str(encoding.codec), reason or _OF_THE_WHOLE) for encoding in index.whole)
    return Companions(), (*dropped, *whole)


def _reason(container: WritableContainer, complete: bool) -> str | None:
    """Return why companions are dropped; "" if the format cannot store any, None if it may store them."""
    if not isinstance(container, CompositeContainer):
        return ""
    return None if complete else "only a part of the model is written"


def _unreadable(child: Index) -> str | None:
    lost = [name for name, spec in child.tensors.items() if spec.problem or not spec.encodings]
    return f"its tensor {lost[0]} cannot be read" if lost else None


def _bare(spec: TensorSpec) -> TensorSpec:
    """Return a tensor of a child to copy: its first encoding, without byte ranges."""
    encoding = spec.encodings[0]
    parts = {role: _placeless(part) for role, part in encoding.parts.items()}
    return evolve(spec, encodings=(evolve(encoding, parts=parts),), extras={})


def _placeless(part: Part) -> Part:
    return Part(dtype=part.dtype, shape=part.shape, byteorder=part.byteorder)


def written_companions(companions: Companions, dropped: Iterable[Dropped]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return names of the children, and codecs of the encodings of the whole model, that a format did not drop."""
    lost = {(item.kind, item.name) for item in dropped if not item.where}
    codecs = [str(encoding.codec) for encoding in companions.whole]
    return (
        tuple(name for name in companions.children if ("child", name) not in lost),
        tuple(codec for codec in codecs if ("encoding", codec) not in lost),
    )


def inner_losses(file: File, names: Iterable[str]) -> Iterator[Dropped]:
    """What is dropped inside written children: all but the first encoding of each tensor."""
    for name in names:
        child = file.index.children[name]
        yield from (Dropped("child", inner, where=name) for inner in child.children)
        yield from (Dropped("encoding", str(encoding.codec), _OF_THE_WHOLE, name) for encoding in child.whole)
        for key, spec in child.tensors.items():
            yield from (Dropped("encoding", encoding.label, where=f"{name}/{key}") for encoding in spec.encodings[1:])
            yield from (Dropped("part", role, where=f"{name}/{key}") for role in spec.extras)


def outgoing_companions(file: File, children: Iterable[str], whole: Collection[str]) -> OutgoingCompanions:
    """Return the named companions as streams, which check for damage that a copy would propagate."""
    opened, encodings = file.children, {str(encoding.codec): encoding for encoding in file.index.whole}
    absent = [name for name in (*children, *whole) if name not in opened and name not in encodings]
    if absent:
        raise FormatError(
            "is not the source that was planned",
            file=file.name,
            code=ErrorCode.CHANGED,
            expected=absent[0],
            found="nothing",
            hint="Plan the conversion again.",
        )
    return OutgoingCompanions(
        children={
            name: OutgoingChild(
                tensors=[_tensor(opened[name], spec) for spec in opened[name].index.tensors.values()],
                meta=opened[name].index.meta,
                assets={key: bytes(opened[name].assets[key].raw) for key in opened[name].assets},
            )
            for name in children
        },
        whole=[OutgoingWhole(encoding=encodings[name], parts=_streams(file, name, encodings[name])) for name in whole],
    )


def _tensor(child: File, spec: TensorSpec) -> OutgoingTensor:
    encoding = spec.encodings[0]
    if child.registry.missing(encoding) is None:
        with computing(TensorError, "checking parts", file=child.name, tensor=spec.name):
            bound = child.bind(spec, encoding)
            bound.codec.check_parts(bound.parts, bound.spec)
    return OutgoingTensor(_bare(spec), _streams(child, spec.name, encoding))


def _streams(file: File, name: str, encoding: Encoding) -> dict[str, Stream]:
    streams = {}
    for role, part in encoding.parts.items():
        array = file.array(part)
        streams[role] = Stream(_placeless(part), array.chunks, array, partial(_check, file, name, role, part))
    return streams


def _check(file: File, name: str, role: str, part: Part) -> None:
    """Raise FormatError if a digest does not match or an empty part cannot be read."""
    check_part(file, name, role, part)
    check_empty(file, name, role, part)


def differing_companion(source: File, written: File, children: Iterable[str], whole: Iterable[str]) -> str | None:
    """Return the first of the named companions that differs between the source and the written file."""
    for name in children:
        ours, theirs = source.children[name], written.children.get(name)
        if theirs is None or list(ours) != list(theirs):
            return name
        for key in ours:
            if not _equal(ours, theirs, key):
                return f"{name}/{key}"
    for codec in whole:
        pair = [
            next((encoding for encoding in file.index.whole if str(encoding.codec) == codec), None)
            for file in (source, written)
        ]
        if pair[1] is None or _digest(source, pair[0]) != _digest(written, pair[1]):
            return codec
    return None


def _equal(source: File, written: File, name: str) -> bool:
    ours, theirs = source[name], written[name]
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    distance = Distance()
    for region in panels(ours.shape, (1,) * len(ours.shape), 8):
        distance.add(ours.bound.read(region), theirs.bound.read(region))
    return distance.equal


def _digest(file: File, encoding: Encoding | None) -> dict[str, str]:
    """Return a digest of each part's content."""
    from hashlib import blake2b

    digests = {}
    for role, part in encoding.parts.items() if encoding else ():
        state = blake2b()
        for chunk in file.array(part).chunks():
            state.update(chunk)
        digests[role] = state.hexdigest()
    return digests


_REASON = "describes the encoding of the source's tensors"


def target_assets(file: File, target: str) -> tuple[Mapping[str, Part], tuple[Dropped, ...]]:
    """Return the assets for a file in the format `target`, and what is dropped.

    Declarations about the encoding of the source's tensors are dropped, unless the target has the same format, whose
    writer replaces them. Small assets come with their bytes (`Part.data`).
    """
    index = file.index
    declarations = {} if index.format == target else index.declarations
    changed: dict[str, Part] = {}
    dropped: list[Dropped] = []
    names = []
    for name in index.assets:
        paths = declarations.get(name, ())
        if () in paths:
            dropped.append(Dropped("asset", name, _REASON))
            continue
        names.append(name)
        if paths:
            changed[name], absent = _without_declarations(file, name, paths)
            dropped += (Dropped("declaration", ".".join(path), _REASON, where=name) for path in absent)

    def read(name: str) -> Part:
        part = changed.get(name) or index.assets[name]
        is_inline = part.data is not None or part.nbytes > MAX_INLINE
        return part if is_inline else _inline(bytes(file.assets[name].raw))

    return LazyAssets(names, read), tuple(dropped)


def asset_bytes(file: File, assets: Mapping[str, Part]) -> Mapping[str, bytes]:
    """Return the bytes of these assets, from the part itself or the source."""

    def read(name: str) -> bytes:
        part = assets[name]
        return bytes(file.assets[name].raw if part.data is None else part.data)

    return LazyAssets(assets, read)


def _without_declarations(file: File, name: str, paths: Iterable[Sequence[str]]) -> tuple[Part, list[Sequence[str]]]:
    """Remove the JSON members at these paths from an asset; also returns the paths that existed."""
    raw = bytes(file.assets[name].raw)
    try:
        document = load_json(raw, name, file.limits, piece=len(raw), constants=True)
    except SquishError:
        return _inline(raw), []
    present = [path for path in paths if has_keys(document, path)]
    if not present:
        return _inline(raw), []
    return _inline((json.dumps(without_keys(document, present), ensure_ascii=False, indent=2) + "\n").encode()), present


def _inline(data: bytes) -> Part:
    return Part(dtype="u8", shape=(len(data),), data=data)
