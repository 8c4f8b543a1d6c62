"""Delete the source of a conversion after checking that the target is complete."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence, Set
from pathlib import Path

from squish_core import opening
from squish_core.checking.verify import verify
from squish_core.codecs.regions import panels
from squish_core.codes import ErrorCode
from squish_core.errors import FormatError, SquishError
from squish_core.file import File
from squish_core.formats.dropped import Dropped
from squish_core.formats.validate import spec_extents
from squish_core.io.local import FileSource
from squish_core.tensor import Tensor
from squish_core.text import counted

from .companions import differing_companion
from .compare.metrics import Distance
from .compare.stacks import rows_of
from .mapping.apply import joined_of
from .step import Step

_SAME = 1e-6
"""Relative tolerance between error sums in different orders of summation."""
LISTED = 3
"""Maximum number of lost items that an error lists."""
_DISPENSABLE = (("metadata", "format"),)
"""Items that may be lost: the framework that saved a safetensors file."""
_REPLACED = "declaration"
"""Kind of dropped entries that the target replaces with its own: descriptions of encodings."""
_DOUBTS = (ErrorCode.SHARD, ErrorCode.EDIT_RUNNING)
"""Codes of notes that the source may contain more than was read."""


def deletable(file: File, target: Path, steps: Sequence[Step], dropped: Sequence[Dropped]) -> tuple[Path, ...]:
    """Return the files with the source's tensors, without config, tokenizer and the like.

    FormatError if deleting them could lose data. Runs before anything is written.
    """
    numbers = {extent[0] for spec in file.original.index.tensors.values() for extent in spec_extents(spec)}
    paths = tuple(_paths(file, numbers))
    target_path = target.resolve()
    losses = [item for item in dropped if item.kind != _REPLACED and (item.kind, item.name) not in _DISPENSABLE]
    lost = [str(item) for item in losses if not _stays(file, item, numbers)]
    doubts = [problem.message for problem in file.problems if problem.severity != "note" or problem.code in _DOUBTS]
    links = [path for path in paths if any(step.is_symlink() for step in (path, *_folders_in(file, path)))]
    reasons = {
        "its components are in several files": joined_of(file.original) is not None,
        "it is compressed, or not a file on disk": not paths,
        f"{len(file) - len(steps)} of its tensors are not converted": len(steps) < len(file),
        f"not everything is carried over: {_listing(lost)}": bool(lost),
        f"it has problems: {'; '.join(doubts[:2])}": bool(doubts),
        "the target replaces it": any(
            target_path == path.resolve() or target_path in path.resolve().parents for path in paths
        ),
        f"{', '.join(map(str, links[:2]))} is a link whose target may be needed elsewhere": bool(links),
    }
    for reason, holds in reasons.items():
        if holds:
            raise FormatError(
                f"cannot be deleted: {reason}",
                file=file.name,
                code="delete",
                hint="Convert it without deleting, and delete it yourself. The report lists what is not carried over.",
            )
    return paths


def delete(
    file: File,
    paths: Sequence[Path],
    target: Path,
    form: str,
    steps: Sequence[Step],
    children: Sequence[str] = (),
    whole: Sequence[str] = (),
) -> None:
    """Verify the target deeply, compare it with the source, then delete `paths`.

    If the target differs from the report, or lacks a child or an encoding of the whole model, raises FormatError and
    deletes nothing.
    """
    before = [_identity(file, path) for path in paths]
    detected = file.registry.containers[form].info.refines is not None  # dense values declare nothing
    report = verify(target, deep=True, format=None if detected else form, registry=file.registry)
    if not report.ok:
        first = next(problem for problem in report.problems if problem.severity == "error")
        raise _unsure(file, f"{target} does not verify: {first.where}: {first.message}")
    with opening.open(target, None if detected else form, registry=file.registry) as target_file:
        rows = rows_of(target_file, [step.spec.name for step in steps])
        for step in steps:
            name = step.spec.name
            target_tensor = target_file[name] if name in target_file else rows[name].tensor if name in rows else None
            if target_tensor is None or not _agrees(file[step.name], target_tensor, step):
                raise _unsure(file, f"{step.name} in {target} differs from the source")
        if lost := differing_companion(file.original, target_file, children, whole):
            raise _unsure(file, f"{lost} in {target} differs from the source")
    for path, identity in zip(paths, before):
        if identity != (os.stat(path).st_dev, os.stat(path).st_ino) or identity != _identity(file, path):
            raise _unsure(file, f"{path} was replaced meanwhile")
    for number, path in enumerate(paths):
        try:
            path.unlink()
        except OSError as error:
            raise FormatError(
                f"could not be deleted ({number} of {counted(len(paths), 'file')} deleted): {error.strerror}",
                file=str(path),
                code="delete",
                hint=f"{target} is complete; delete the remaining files yourself.",
            ) from None


def _listing(lost: Sequence[str]) -> str:
    more = f" and {len(lost) - LISTED} more" if len(lost) > LISTED else ""
    return ", ".join(lost[:LISTED]) + more


def _paths(file: File, numbers: Set[int]) -> Iterator[Path]:
    root = file.source.path
    if root is None or file.source.packed:
        return
    folder = root if file.source.is_dir else root.parent
    yield from (folder / file.index.files[number].name for number in sorted(numbers))


def _stays(file: File, item: Dropped, numbers: Set[int]) -> bool:
    """Return whether a dropped item is in a file that is not deleted (files in `numbers` are)."""
    index = file.original.index
    if item.kind == "asset" and item.name in index.ignored:
        return True
    part = index.assets.get(item.name) if item.kind == "asset" else None
    if part is None or not part.segments:
        return False
    return not any(segment.file in numbers for segment in part.segments)


def _folders_in(file: File, path: Path) -> Iterator[Path]:
    """Yield the source's folder and the folders below it that lead to the file."""
    root = file.source.path
    yield from (folder for folder in path.parents if root is not None and folder.is_relative_to(root))


def _identity(file: File, path: Path) -> tuple[int, ...] | None:
    """Device and inode of the open file at a path."""
    root = file.source.path
    assert root is not None
    folder = root if file.source.is_dir else root.parent
    name = path.relative_to(folder).as_posix()
    number = next(number for number, ref in enumerate(file.index.files) if ref.name == name)
    source = file.source_for(number)
    return source.identity[:2] if isinstance(source, FileSource) else None


def _agrees(source: Tensor, target: Tensor, step: Step) -> bool:
    """Return whether a tensor's values equal the source's, or differ by the error measured while writing."""
    distance = Distance()
    if source.shape != target.shape:
        return False
    bound = source.file.bind(source.spec, step.origin)
    for region in panels(source.shape, (1,) * len(source.shape), 8):
        distance.add(bound.read(region), target[region])
    if step.quality is None:
        return distance.equal
    pairs = ((distance.error, step.quality.error), (distance.max_error, step.quality.max_error))
    return all(abs(now - then) <= _SAME * then for now, then in pairs)


def _unsure(file: File, reason: str) -> SquishError:
    return FormatError(f"was not deleted: {reason}", file=file.name, code="delete", hint="Convert it again.")
