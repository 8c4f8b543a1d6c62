"""Detecting the format of a file by declared signatures, never by trial and error."""

from __future__ import annotations

import json
import re
from pathlib import PurePath
from typing import Any

from attrs import frozen

from squish_core.codes import ErrorCode
from squish_core.errors import AmbiguousFormatError, FormatError, Problem, SquishError, UnknownFormatError
from squish_core.formats.json import has_keys
from squish_core.guard import guarded
from squish_core.io.source import HEAD, SNIFFED, TAIL, Source
from squish_core.model import Index
from squish_core.plugins import catalog
from squish_core.plugins.hookspecs import CodecInfo, ContainerInfo, Signature
from squish_core.plugins.registry import Registry

MAX_SKIPPED = 64
"""Maximum number of skippable frames before the signature of a codec; writers emit one."""


@frozen
class Probe:
    """Input of detection: the first 4 KiB, the last 64 bytes, the name, and the file names of a folder."""

    name: str
    head: bytes
    tail: bytes
    members: tuple[str, ...] = ()

    @classmethod
    def of(cls, source: Source) -> Probe:
        """Read the probe of a source."""
        if source.is_dir:
            return cls(source.filename, b"", b"", source.members(likely=catalog.STANDING))
        head = source.read(0, min(HEAD, source.size))
        tail = source.read(max(0, source.size - TAIL), min(TAIL, source.size))
        return cls(source.filename, head, tail)


def detect(source: Source, registry: Registry) -> str:
    """Id of the format with the best matching signature; otherwise a typed error that says what the file is."""
    probe = Probe.of(source)
    infos = [entry.info for entry in registry.find("container")]
    base = [info for info in infos if not info.refines and not _rejects(info, probe, source, registry)]
    begin = [info for info in base for s in info.signatures if s.where != "tail" and matches(s, probe)]
    # A signature at the end counts only if none at the start matches: data may end in any bytes.
    scores: dict[str, tuple[int, bool]] = {}
    for info in begin or base:  # ids in conflict occur several times
        scores[info.id] = max(scores.get(info.id, (0, False)), (score(info, probe), info.sniffs))
    best = max(scores.values(), default=(0, False))
    winners = [name for name, points in scores.items() if points == best]
    if best[0] and len(winners) > 1:
        by_suffix = {info.id for info in infos if info.id in winners and _suffix(info, probe)}
        if len(by_suffix) != 1:
            raise AmbiguousFormatError(
                "several formats match",
                file=source.name,
                expected="one format",
                found=", ".join(sorted(winners)),
                code=ErrorCode.AMBIGUOUS,
                hint="Choose one with {option:format=...}",
            )
        return by_suffix.pop()
    if best[0]:
        return winners[0]
    raise_if_lookalike(probe, source, registry)
    # No signature matches; the suffix decides which format reports the error.
    named = {info.refines or info.id for info in infos if _suffix(info, probe)}
    if len(named) == 1 and not source.is_dir:
        return named.pop()
    raise unknown(probe, source, registry)


def compressed_by(source: Source, registry: Registry) -> CodecInfo | None:
    """Return the byte codec that compressed the file; None if it is not compressed."""
    for entry in registry.find("codec", kind="bytes") if source.size else ():
        info = entry.info
        if info.signature and _first_frame(source, info).startswith(info.signature):
            return info
    return None


def _first_frame(source: Source, info: CodecInfo) -> bytes:
    """Return the first bytes after the skippable frames of a codec."""
    offset, length = 0, max(8, len(info.signature))
    for _ in range(MAX_SKIPPED):
        head = source.read(offset, min(length, source.size - offset))
        mark = next((mark for mark in info.skippable if head.startswith(mark)), None)
        if mark is None:
            return head
        offset += len(mark) + 4 + int.from_bytes(head[len(mark) : len(mark) + 4], "little")
        if offset >= source.size:
            break
    return b""


def score(info: ContainerInfo, probe: Probe) -> int:
    """Total length of the matching signatures, so that the more specific format wins."""
    return sum(len(signature.bytes) for signature in info.signatures if matches(signature, probe))


def matches(signature: Signature, probe: Probe) -> bool:
    """Return whether a signature matches."""
    if signature.where == "member":
        return any(name.endswith(signature.bytes.decode()) for name in probe.members)
    data = probe.head if signature.where == "head" else probe.tail
    start = signature.offset if signature.offset >= 0 else max(0, len(data) + signature.offset)
    return data[start : start + len(signature.bytes)] == signature.bytes


class SniffedSource(Source):
    """A source that limits `sniff` to `SNIFFED` bytes."""

    def __init__(self, inner: Source) -> None:
        super().__init__(inner.name, inner.size)
        self.filename, self._inner, self._remaining = inner.filename, inner, SNIFFED

    def read_into(self, offset: int, out: memoryview, what: str = "data") -> None:
        self._check(offset, len(out), what)
        self._count(len(out))
        self._inner.read_into(offset, out, what)

    def _read(self, offset: int, length: int) -> bytes:
        self._count(length)
        return self._inner.read(offset, length)

    def _view(self, offset: int, length: int) -> memoryview:
        self._count(length)
        return self._inner.view(offset, length)

    def _count(self, length: int) -> None:
        if length > self._remaining:
            raise FormatError(
                "detection reads too many bytes",
                file=self.name,
                expected=f"at most {SNIFFED} bytes",
                found=f"{SNIFFED - self._remaining + length} bytes",
                code=ErrorCode.PLUGIN_BUG,
            )
        self._remaining -= length


def _rejects(info: ContainerInfo, probe: Probe, source: Source, registry: Registry) -> bool:
    """Return whether a format with a matching signature rejects the file in `sniff`."""
    if not info.sniffs or source.is_dir or not score(info, probe):
        return False
    try:
        with guarded(FormatError, f"detecting {info.id}", file=source.name):
            return not registry.container(info.id).sniff(SniffedSource(source))
    except SquishError as error:
        if error.code == ErrorCode.PLUGIN_BUG:
            raise
        return True  # too damaged to be this format


def raise_if_lookalike(probe: Probe, source: Source, registry: Registry) -> None:
    """Raise an error if the file has another known type, or a format that is not installed."""
    other = catalog.lookalike(probe.head, probe.tail)
    if other:
        raise UnknownFormatError(f"is {other[0]}", file=source.name, code="lookalike", hint=other[1])
    absent = catalog.absent_format(probe.head, probe.members)
    if absent and absent not in registry.containers:
        raise _not_installed(_refinement(absent, probe, source) or absent, source)


def _not_installed(absent: str, source: Source) -> UnknownFormatError:
    refusal = catalog.absent("container", absent)
    hint = f"Run `{refusal.install}`."
    return UnknownFormatError(
        f"looks like {absent}, whose plugin is not installed", file=source.name, code=ErrorCode.NOT_INSTALLED, hint=hint
    )


def missing_refinements(index: Index, source: Source, registry: Registry) -> tuple[Problem, ...]:
    """Warnings for refinements that the file declares and that are not installed."""
    problems = []
    for name, (where, mark) in absent_refinements(index, source, registry).items():
        message = f"{mark} needs {name}, which is not installed: tensors stay in their stored form"
        message += f". Run `{catalog.absent('container', name).install}`."
        problems.append(Problem(code=ErrorCode.NOT_INSTALLED, severity="warning", where=where, message=message))
    return tuple(problems)


def absent_refinements(index: Index, source: Source, registry: Registry) -> dict[str, tuple[str, str]]:
    """Id of each refinement that the file declares and that is not installed -> place and text of its declaration."""
    marks: dict[str, tuple[str, str]] = {}
    for name, base, place, keys in catalog.DECLARATIONS:
        if name in marks or name in registry.containers or index.format != base:
            continue
        document = index.meta if place == "meta" else small_json(index, source, place)
        if document and has_keys(document, keys):
            marks[name] = (place, ".".join(keys) or place)
    for name, (base, suffix, one, every) in catalog.NAMES.items():
        if name in marks or name in registry.containers or index.format != base:
            continue
        if index.files and index.files[0].name.lower().endswith(suffix):
            marks[name] = (index.files[0].name, f"a file {suffix}")
        elif any(re.fullmatch(one, tensor) for tensor in index.tensors):
            marks[name] = ("tensors", "the name of a tensor")
        elif index.tensors and all(re.fullmatch(every, tensor) for tensor in index.tensors):
            marks[name] = ("tensors", "a file of numbered tensors")
    return marks


def _refinement(base: str, probe: Probe, source: Source) -> str | None:
    """Return the refinement of a format that is not installed, by the file's suffix or what the folder declares."""
    for name, (outer, suffix, _, _) in catalog.NAMES.items():
        if outer == base and probe.name.lower().endswith(suffix):
            return name
    for name, outer, place, keys in catalog.DECLARATIONS:
        if outer == base and place in probe.members:
            document = _small_member(source, place)
            if document and has_keys(document, keys):
                return name
    return None


def small_json(index: Index, source: Source, name: str) -> Any:
    """Parse an asset of up to 1 MiB as JSON; None if it is missing, larger or invalid."""
    asset = index.assets.get(name)
    if asset is None or asset.nbytes > 1 << 20:
        return None
    return _small_member(source, name)


def _small_member(source: Source, name: str) -> Any:
    try:
        member = source.member(name)
        return json.loads(member.read(0, member.size, name)) if member.size <= 1 << 20 else None
    except (SquishError, ValueError, RecursionError):
        return None


def unknown(probe: Probe, source: Source, registry: Registry) -> SquishError:
    """Error for a file that no format recognizes."""
    if source.is_dir:
        from squish_core.plugins.folders import unrecognized

        return unrecognized(source, registry.containers)
    installed = ", ".join(sorted(registry.containers)) or "none"
    if not source.size:
        return UnknownFormatError("is empty (0 bytes)", file=source.name, code="empty", hint="Fetch the file again.")
    text = catalog.lookalike(probe.head, text=True)
    if text:
        return UnknownFormatError(f"is {text[0]}", file=source.name, code="lookalike", hint=text[1])
    absent = catalog.suffixes().get(PurePath(probe.name).suffix.lower())  # without a signature, such as ONNX
    if absent and absent not in registry.containers:
        return _not_installed(absent, source)
    hint = f"Installed formats: {installed}; `squish formats` describes them."
    found = f"first bytes {probe.head[:8]!r}"
    return UnknownFormatError(
        "is not in any installed format", file=source.name, found=found, code=ErrorCode.UNKNOWN, hint=hint
    )


def _suffix(info: ContainerInfo, probe: Probe) -> bool:
    return any(probe.name.lower().endswith(suffix) for suffix in info.suffixes)
