"""`edit`: write what an edit changes, and nothing else: in place, as a new file, or as a new folder.

A reader sees the old content or the new one, whenever the editor is killed: bytes are overwritten only within one page,
which a system call writes as a whole; anything else is written beside and renamed. A lock makes editors wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from attrs import define, field, frozen

from squish_core import opening
from squish_core.codes import ErrorCode
from squish_core.display import to_json
from squish_core.errors import FormatError, SquishError, UsageError, WriteError, redact
from squish_core.file import File
from squish_core.formats.outgoing import Stream
from squish_core.guard import guarded
from squish_core.io.atomic import atomic_file, check_target, remove_dead
from squish_core.io.sink import Sink
from squish_core.io.system import (
    IS_POSIX,
    is_same_file,
    lockable,
    open_folder,
    read_at,
    release,
    replace,
    wait_lock,
    write_at,
)
from squish_core.limits import Limits
from squish_core.model import Segment
from squish_core.plugins.registry import Registry

from ..append import LockedFile, locked_file
from ..destination import check_space, set_name
from ..execute import execute, outgoing_tensors
from ..image import OutputFile, OutputImage, PartExtent
from ..plan import ConversionPlan, output_image, plan_conversion, shards_image
from ..targets import writable
from .changes import ADDED, OWN, REPLACED, Changes, Resolved, edited, resolve
from .folders import copied_folder, move_files, replaced_folder

PAGE = 4096
RAW = {"hf": "safetensors", "mlx": "safetensors"}
"""Formats that declare what the tensors of another one mean: they are edited as that one, tensor by stored tensor."""
FOLDER_HINT = "Name its folder, or write a copy: {option:output=OUT}."


@frozen
class Place:
    """Where the files of an edited model are: the path of the user, and the folder of a model with several files."""

    path: Path
    folder: Path | None

    def file(self, name: str) -> Path:
        """Return the path of one of its files."""
        return self.path if self.folder is None else self.folder / name

    def size(self, names: Iterable[str]) -> int:
        """Bytes of all files, or of a folder."""
        files = self.path.rglob("*") if self.path.is_dir() else {*map(self.file, names)}
        return sum(each.stat().st_size for each in files if each.is_file())


@runtime_checkable
class Editor(Protocol):
    """A format that edits its files itself, such as by appending."""

    def edit(self, lock: LockedFile, changes: Resolved, added: File | None, limits: Limits) -> None:
        """Change a locked file, and add notes for the user to `lock.notes`."""


@runtime_checkable
class Rewriter(Protocol):
    """A format that writes a file again as it is."""

    def rewrite_options(self, file: File) -> Mapping[str, str]:
        """Write options of a file's own version and layout; FormatError if it cannot be written again."""


@frozen(kw_only=True)
class Edited:
    """What an edit changed.

    Attributes
    ----------
    file
        The edited file, or the copy.
    how
        "in place", "rewritten", "appended", "copied" or "unchanged".
    added, removed, replaced, renamed
        Names of tensors; old name -> new name.
    attributes, assets
        Metadata keys and other files of the model.
    size
        Bytes of the file, or of all files of the folder.
    recovered
        Bytes of an interrupted edit that were removed.
    notes
        Remarks for the user.
    """

    file: str = field(converter=redact)
    how: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    replaced: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(factory=dict)
    attributes: tuple[str, ...] = ()
    assets: tuple[str, ...] = ()
    size: int = 0
    recovered: int = 0
    notes: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        result: dict[str, Any] = to_json(self)
        return result


def edit(
    path: str | os.PathLike[str],
    changes: Changes,
    output: str | os.PathLike[str] | None = None,
    *,
    recover: bool = False,
    registry: Registry | None = None,
) -> Edited:
    """Change metadata, names and tensors of a file or of a model's folder, in its own format.

    Parameters
    ----------
    path
        The file or folder; any file of a split set stands for the set.
    changes
        What to change.
    output
        Write a copy there and leave `path` as it is.
    recover
        Remove what an interrupted edit left, also on a file system without locks.
    registry
        The plugins to use; the installed ones by default.

    Returns
    -------
    Edited
        What was changed, and how.

    Raises
    ------
    UsageError
        The format cannot be edited, or a change cannot apply.
    SquishError
        The format cannot store a tensor or a value. The file stays as it is.

    Examples
    --------
    >>> edit("model.gguf", Changes(put={"general.name": "Tiny"})).how
    'rewritten'
    >>> squish.open("model.gguf").metadata["general.name"]
    'Tiny'
    """
    place = _place(Path(path), registry)
    with ExitStack() as stack:
        is_alone = place.folder is None
        locked: Any = stack.enter_context(locked_file(place.path, recover) if is_alone else _locked_folder(place))
        if changes.is_empty and output is None:
            size = place.size([place.path.name])
            return Edited(
                file=str(path), how="unchanged", size=size, recovered=locked.recovered, notes=tuple(locked.notes)
            )
        with opening.open(place.path, registry=registry) as seen:
            raw = RAW.get(seen.format, seen.format)
        file = stack.enter_context(opening.open(place.path, raw, registry=registry))
        resolved = resolve(file, changes)
        container = file.registry.container(file.format)
        if isinstance(container, Editor) and not file.source.packed:
            how, size, target = _by_format(container, file, place, resolved, changes, locked, output)
        else:
            how, size, target = _rewrite(file, place, edited(file, changes, resolved), locked, output)
    return Edited(
        file=str(target),
        how=how,
        added=resolved.added,
        removed=resolved.removed,
        replaced=resolved.replaced,
        renamed=resolved.renamed,
        attributes=tuple(sorted(resolved.attributes)),
        assets=tuple(sorted(resolved.assets)),
        size=size,
        recovered=locked.recovered,
        notes=(*locked.notes, *resolved.notes),
    )


def _place(path: Path, registry: Registry | None) -> Place:
    """Return where the files of a model are: in a folder, too, if the path is a file of a split set."""
    if path.is_dir() or set_name(path.name) == path.name:
        return Place(path, path if path.is_dir() else None)
    with opening.open(path, registry=registry) as file:
        is_set = len(file.index.files) > 1 and not isinstance(file.registry.container(file.format), Editor)
    return Place(path, path.parent if is_set else None)


def _check_output(outputs: Iterable[Path], file: File, place: Place) -> None:
    """Raise UsageError if a copy would replace a file of the model."""
    own = [place.file(ref.name) for ref in file.index.files]
    for output in outputs:
        if output.exists() and any(os.path.samefile(output, path) for path in own):
            raise UsageError(
                "the copy would replace a file of the model",
                file=str(output),
                code=ErrorCode.USAGE,
                hint="Leave {option:output} out to edit in place, or choose another name.",
            )


@define
class LockedFolder:
    """A folder locked against other editors; `recovered` and `notes` are those of a `LockedFile`."""

    recovered: int = 0
    notes: list[str] = field(factory=list)


@contextmanager
def _locked_folder(place: Place) -> Iterator[LockedFolder]:
    """Lock the folder of a model against other editors, again if one replaced it meanwhile."""
    assert place.folder is not None
    folder = place.folder
    while True:
        fd = open_folder(folder)
        try:
            if wait_lock(fd) is False:
                raise WriteError(
                    "is being edited by another process",
                    file=str(folder),
                    code="locked",
                    hint="Try again when it is done.",
                )
            if is_same_file(lockable(folder), fd):
                with guarded(FormatError, "editing", file=str(folder)):
                    yield LockedFolder(notes=remove_dead(folder.resolve()))
                return
        finally:
            release(folder, fd)


def _by_format(
    container: Editor,
    file: File,
    place: Place,
    resolved: Resolved,
    changes: Changes,
    lock: Any,
    output: str | os.PathLike[str] | None,
) -> tuple[str, int, Path]:
    """Let the format edit the file, or a copy of it that then gets its name; returns how, the size, and the file."""
    added = _joined(changes)
    if output is None:
        file.close()
        before = place.path.stat().st_ino
        container.edit(lock, resolved, added, file.limits)
        after = place.path.stat()
        return "appended" if after.st_ino == before else "rewritten", after.st_size, place.path
    target = Path(output)
    _check_output([target], file, place)
    check_target(target, is_folder=False)
    check_space(target, lock.size)
    copy = target.with_name(f".{target.name}.{os.urandom(8).hex()}.part")
    try:
        with atomic_file(copy) as sink:
            sink.copy(file.source, 0, lock.size)
        file.close()
        with locked_file(copy) as own:
            container.edit(own, resolved, added, file.limits)
            lock.notes += own.notes
        replace(copy, target)
    finally:
        copy.unlink(missing_ok=True)
    return "copied", target.stat().st_size, target


def _joined(changes: Changes) -> File | None:
    """The tensors to add and to replace as one file."""
    if changes.add is None or changes.replace is None:
        return changes.add or changes.replace
    return edited(changes.add, Changes(add=changes.replace), resolve(changes.add, Changes(add=changes.replace)))


def _rewrite(
    file: File, place: Place, new: File, lock: Any, output: str | os.PathLike[str] | None
) -> tuple[str, int, Path]:
    """Write what changes of a file, or a copy; returns how, the size, and the file."""
    options = _options(file)
    spec = ",".join(f"{key}={value}" for key, value in options.items())
    to = f"{file.format}:{spec}" if spec else file.format
    is_folder, path = place.path.is_dir(), place.path if output is None else Path(output)
    if not is_folder and path.suffix != place.path.suffix:
        raise UsageError(
            "a copy has the suffix of the file",
            file=str(path),
            expected=place.path.suffix,
            code=ErrorCode.USAGE,
            hint="`squish convert` writes other formats.",
        )
    container = writable(file.format, file.registry)
    plan = plan_conversion(new, path if is_folder else path.with_name(set_name(path.name)), to, rename="keep")
    is_set = container.writes_beside(plan.options)
    is_part = len(file.index.files) > 1 or any(each.code == ErrorCode.SHARD for each in file.index.problems)
    if output is None and not is_folder and not is_set and (is_part or container.writes_folder(options)):
        raise UsageError(
            "is one of several files of a model, which are edited together",
            file=str(path),
            code=ErrorCode.FILE_KIND,
            hint=FOLDER_HINT,
        )
    _check_kept(plan, file)
    if output is not None:
        names = [each.name for each in plan.image.files] if plan.image and is_set else []
        _check_output([path, *map(path.with_name, names)], file, place)
        return ("copied", *_write_copy(plan, new, place, lock))
    image = shards_image(plan, new) if is_set else _image(plan, new)
    how = _write_changed(image, plan, new, place, lock)
    return how, place.size(ref.name for ref in file.index.files), place.path


def _write_copy(plan: ConversionPlan, new: File, place: Place, lock: Any) -> tuple[int, Path]:
    """Write a copy, and with a folder its other files; returns the size, and the first file."""
    target = Path(plan.target)
    if not place.path.is_dir():
        check_target(target, is_folder=False)
        report = execute(plan, new, target)
        return int(report.size or 0), Path(report.target)
    own = [name for ref in new.index.files if (name := _own_name(ref.name)) is not None]
    with copied_folder(place.path, target, own) as (folder, notes):
        execute(plan, new, folder / "new")
        move_files(folder / "new", folder)
    lock.notes += notes
    return Place(target, target).size([]), target


def _check_lock(lock: Any) -> None:
    if isinstance(lock, LockedFile):
        lock.check()
        lock.prepare_rename()


def _options(file: File) -> Mapping[str, str]:
    """Return the write options of a file; UsageError for a format that cannot be edited."""
    container = file.registry.container(file.format)
    if not isinstance(container, Rewriter):
        raise UsageError(
            f"{file.format} cannot be edited: its weights belong to a graph or program that is not written again",
            file=file.name,
            found=file.format,
            code=ErrorCode.USAGE,
            hint="Convert it to a format that can, such as `squish convert FILE OUT.safetensors`, and edit that.",
        )
    return container.rewrite_options(file)


def _check_kept(plan: ConversionPlan, file: File) -> None:
    """Raise FormatError if writing the file again would lose or change something that the edit does not name."""
    lost = [str(item.name or item.kind) for item in plan.dropped]
    encoded = [step.name for step in plan.steps if step.action == "encode"]
    if lost or encoded:
        raise FormatError(
            "the edit would lose something that this format cannot store",
            file=file.name,
            found=", ".join((lost or encoded)[:5]),
            code=ErrorCode.REFUSED,
            hint="`squish convert` writes another format.",
        )


def _image(plan: ConversionPlan, new: File) -> OutputImage | None:
    """Return the layout of the edited file; None if it depends on what is written."""
    try:
        return output_image(plan, new)
    except SquishError as error:
        if error.code != ErrorCode.IMAGE:
            raise
        return None


def _write_changed(image: OutputImage | None, plan: ConversionPlan, new: File, place: Place, lock: Any) -> str:
    """Write the files that differ from what they shall be; returns how."""
    if image is None:
        if place.folder is None:
            _check_lock(lock)
            execute(plan, new, place.path)
            return "rewritten"
        with replaced_folder(place.folder) as folder:
            execute(plan, new, folder / "new")
            move_files(folder / "new", folder)
        return "rewritten"
    names = [_own_name(ref.name) or "" for ref in new.index.files]
    changed = [each for each in image.files if not _is_same(each, place.file(each.name), plan, new, names)]
    gone = sorted({*filter(None, names)} - {each.name for each in image.files}) if place.folder else []
    if not changed and not gone:
        return "unchanged"
    check_space(place.path, sum(each.size for each in changed))
    if len(changed) == 1 and not gone:
        path = place.file(changed[0].name)
        if _in_place(changed[0], path, plan, new, names, lock):
            return "in place"
        with atomic_file(path) as sink:
            _write(sink, changed[0], _streams(plan, new))
            _check_lock(lock)
        lock.notes += sink.notes
        return "rewritten"
    assert place.folder is not None
    with replaced_folder(place.folder) as folder:
        streams = _streams(plan, new)
        for each in changed:
            with atomic_file(folder / each.name) as sink:
                _write(sink, each, streams)
        for name in gone:
            (folder / name).unlink(missing_ok=True)
    return "rewritten"


def _streams(plan: ConversionPlan, new: File) -> Mapping[str, Mapping[str, Stream]]:
    return {tensor.spec.name: tensor.parts for tensor in outgoing_tensors(plan, new)}


def _own_name(name: str) -> str | None:
    """Return the name of a file of an edited Index in the model; None for one of those to add."""
    folder, _, rest = name.partition("/")
    return None if folder in (ADDED, REPLACED) else rest if folder == OWN else name


def _write(sink: Sink, file: OutputFile, streams: Mapping[str, Mapping[str, Stream]]) -> None:
    sink.reserve(file.size)
    for extent in file.extents:
        if isinstance(extent, PartExtent):
            streams[extent.tensor][extent.role].write_to(sink)
        else:
            assert isinstance(extent, bytes)
            sink.write(extent)


def _is_same(file: OutputFile, path: Path, plan: ConversionPlan, new: File, names: list[str]) -> bool:
    return not any(True for _ in _differences(file, path, plan, new, names))


def _differences(
    file: OutputFile, path: Path, plan: ConversionPlan, new: File, names: list[str]
) -> Iterator[tuple[int, bytes] | None]:
    """Yield (offset, bytes) of each literal range that differs; None if anything else does."""
    try:
        size = path.stat().st_size
    except OSError:
        yield None
        return
    copied = {step.spec.name for step in plan.steps if step.action == "copy"}
    if size != file.size:
        yield None
        return
    with open(path, "rb", buffering=0) as stored:
        for extent, start in zip(file.extents, file.starts):
            if isinstance(extent, PartExtent):
                part = new.index.tensors[extent.tensor].encodings[0].parts.get(extent.role)
                segments = tuple(part.segments) if part is not None else ()
                at = [(names[each.file] if each.file < len(names) else "", each.offset) for each in segments]
                is_own = not file.name or (at and at[0][0] == file.name)
                if (
                    extent.tensor not in copied
                    or not is_own
                    or [o for _, o in at] != [start]
                    or _is_other(new, segments)
                ):
                    yield None
                    return
            else:
                assert isinstance(extent, bytes)
                stored.seek(start)
                if stored.read(len(extent)) != extent:
                    yield start, extent


def _is_other(new: File, segments: tuple[Segment, ...]) -> bool:
    """Whether a part lies in a file that is added."""
    return any(_own_name(new.index.files[each.file].name) is None for each in segments)


def _in_place(file: OutputFile, path: Path, plan: ConversionPlan, new: File, names: list[str], lock: Any) -> bool:
    """Overwrite the bytes that differ if they lie in one page of a writable file; return whether they do."""
    if not IS_POSIX or path.is_symlink():
        return False
    ranges = []
    for difference in _differences(file, path, plan, new, names):
        if difference is None:
            return False
        start, data = difference
        with open(path, "rb", buffering=0) as stored:
            stored.seek(start)
            old = stored.read(len(data))
        first = next(at for at in range(len(data)) if old[at : at + 1] != data[at : at + 1])
        last = next(at for at in reversed(range(len(data))) if old[at : at + 1] != data[at : at + 1])
        ranges.append((start + first, data[first : last + 1]))
    low, high = ranges[0][0], ranges[-1][0] + len(ranges[-1][1])
    if low // PAGE != (high - 1) // PAGE:
        return False
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        page = bytearray(read_at(fd, high - low, low))
        for start, data in ranges:
            page[start - low : start - low + len(data)] = data
        if isinstance(lock, LockedFile):
            lock.check()
        write_at(fd, memoryview(page), low)
        os.fsync(fd)
    finally:
        os.close(fd)
    return True
