"""Opening files: decompress, detect, read, check and refine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codes import ErrorCode
from squish_core.detect import Probe, compressed_by, detect, matches, missing_refinements
from squish_core.errors import FormatError, SquishError, UnknownFormatError, UsageError
from squish_core.file import File, file_problems
from squish_core.formats.assets import overlay_assets
from squish_core.formats.base import Options
from squish_core.formats.validate import check_index, lookalike_names
from squish_core.guard import gc_paused, guarded
from squish_core.io.local import open_folder
from squish_core.io.source import Source
from squish_core.limits import Limits, default
from squish_core.model import FileRef, Index, Part, Segment
from squish_core.plugins import catalog
from squish_core.plugins.hookspecs import ContainerInfo
from squish_core.plugins.registry import Registry
from squish_core.plugins.registry import registry as installed
from squish_core.plugins.sources import open_target
from squish_core.specs import parse_format

if TYPE_CHECKING:
    from squish_core.formats.refinement import Refinement


def open(  # noqa: A001
    target: Any,
    format: str | None = None,  # noqa: A002
    *,
    assets: Any = None,
    strict: bool = False,
    mmap: bool = True,
    limits: Limits | None = None,
    registry: Registry | None = None,
    source_options: Mapping[str, Any] | None = None,
) -> File:
    """Open a file, a folder or bytes, reading only the header.

    Parameters
    ----------
    target
        A path, bytes, a `Source`, or a URL that an installed source opens (`https://...`, with squish-remote). A `Pin`
        (`file.source.pin`) opens the content that it identifies, or fails.
    format
        Skip detection and read the file as this format, `ID[:key=value,...]`. Raises if it has another format.
    assets
        A folder with the config and tokenizer, if they are not beside the file.
    strict
        Fail on warnings, too, and verify the digests of whole files that the header lists.
    mmap
        If False, read data into memory instead of mapping it: slower, but truncating the file cannot kill the process.
    limits
        Upper bounds for what a file may declare, such as its number of tensors; `SQUISH_LIMITS` by default.
    registry
        The plugins to use; the installed ones by default.
    source_options
        Options of the source that opens a URL, by name; `SQUISH_SOURCE` by default.

    Returns
    -------
    File
        A mapping from tensor names to tensors; close it, or use it in a `with` statement.

    Raises
    ------
    MissingFileError
        The path does not exist; also a `FileNotFoundError`.
    UnknownFormatError, MissingPluginError
        No known plugin reads the format, or it is not installed.
    FormatError, TruncatedError, LimitError
        The file violates its format, is truncated, or exceeds the limits.
    UsageError
        An argument is invalid; also a `ValueError`.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     print(file.format, list(file))
    gguf ['token_embd.weight', 'blk.0.ffn_up.weight', 'blk.0.ffn_norm.weight']
    """
    registry, limits = registry or installed(), limits or default()
    if not isinstance(limits, Limits):
        raise UsageError("limits must be a Limits", expected="Limits(...)", found=repr(limits), code=ErrorCode.USAGE)
    source = open_target(target, registry, source_options)
    try:
        folder, source = source, _main_file(source, registry, format)
        is_alone = source is folder
        source = decompress(source if mmap else source.unmapped(), registry, limits)
        overlay = overlay_assets(source, open_folder(assets)) if assets is not None else ()
        own = _read_whole(source, registry, limits, format)
        own = own if is_alone else evolve(own, ignored=_others(folder, own))
        index = with_assets(own, source, overlay)
        declarations = {**foreign_declarations(own, overlay), **own.declarations}
        index = evolve(index, declarations=declarations, problems=(*own.problems, *source.problems()))
        file = File(source, index, registry, limits)
        if strict:
            fail_on_warnings(file)
        return file
    except BaseException:
        if source is not target:
            source.close()
        raise


def fail_on_warnings(file: File) -> None:
    """Raise the first warning or error, wrong digests of whole files included."""
    for problem in chain(file.problems, file_problems(file)):
        if problem.severity != "note":
            raise FormatError(
                f"{problem.message} (strict)",
                file=file.name,
                tensor=problem.where or None,
                code=problem.code,
                hint="`squish verify` lists all findings.",
            )


def _main_file(source: Source, registry: Registry, format_spec: str | None) -> Source:
    """Return the file that a folder stands for, if no format reads the folder; else the source itself."""
    if not source.is_dir or not source.lists_members:
        return source
    infos = [entry.info for entry in registry.find("container")]
    if format_spec:
        chosen = {info.id: info for info in infos if info.id == format_spec.partition(":")[0]}
        bases = {info.refines for info in chosen.values()}
        infos = [info for info in infos if info.id in chosen or info.id in bases]
    probe = Probe.of(source)
    of_folders = (signature for info in infos for signature in info.signatures if signature.where == "member")
    if any(matches(signature, probe) for signature in of_folders) or catalog.absent_format(b"", probe.members):
        return source
    from squish_core.plugins.folders import file_of  # rarely needed

    suffixes = {suffix for info in infos for suffix in info.suffixes}
    return file_of(source, suffixes if format_spec else suffixes.union(catalog.suffixes()))


def _others(folder: Source, index: Index) -> tuple[str, ...]:
    """Other files and subfolders beside the file that a folder stands for, without hidden ones."""
    read = {file.name for file in index.files}
    names = (*folder.members(), *(f"{name}/" for name in folder.subfolders()))
    return tuple(name for name in names if name not in read and not name.startswith("."))


def _read_whole(source: Source, registry: Registry, limits: Limits, format_spec: str | None) -> Index:
    """Read the Index; if a file named like a piece of another one cannot be read, the error says so."""
    try:
        return read_index(source, registry, limits, format_spec)
    except SquishError as error:
        hint = catalog.piece_hint(source.filename)
        if hint is None:
            raise
        raise UnknownFormatError(
            "is a piece of a file that was cut", file=source.name, code="lookalike", hint=hint
        ) from error


def decompress(source: Source, registry: Registry, limits: Limits) -> Source:
    """Return the content of a compressed file, or the source itself."""
    info = compressed_by(source, registry)
    if info is None:
        return source
    with guarded(FormatError, f"reading it through {info.id}", file=source.name):
        content = registry.byte_codec(info.id).unpacked(source, limits)
        if compressed_by(content, registry) is not None:
            raise FormatError("is compressed twice", code="nested", hint="Decompress it once; Squish opens the result.")
    return content


def read_index(source: Source, registry: Registry, limits: Limits, format_spec: str | None = None) -> Index:
    """Read the Index of a source: detect the format, read, check and refine."""
    name, options = parse_format(format_spec, registry.reading_options) if format_spec else (None, {})
    base = name or detect(source, registry)
    info = _info(registry, base)
    refinement = None
    if info is not None and info.refines:
        refinement, base = base, info.refines
        registry.container(refinement)  # raises if it cannot be used
        info = _info(registry, base)
    views = info is not None and info.views
    if name is not None:
        registry.container(base)  # raised here, the error is about the argument and not about the file
    with guarded(FormatError, f"reading the {base} header", file=source.name):
        container = registry.container(base)
        if source.size == 0 and not source.is_dir:
            raise FormatError("is empty (0 bytes)", code="empty", hint="Fetch the file again.")
        with gc_paused():
            own = options if refinement is None else {}
            index = container.read_index_with(source, limits, own) if own else container.read_index(source, limits)
            if name == base:
                index = container.unrefined(index, source, limits)
            check_index(index, limits, views=views)
        warnings = lookalike_names(index.tensors)
        if warnings:
            index = evolve(index, problems=(*index.problems, *warnings))
    if name != base:  # by name, the base format shows the stored tensors, unrefined
        index = refine(index, source, registry, limits, refinement, options, views=views)
    return evolve(index, reading=options) if options else index


def refine(
    index: Index, source: Source, registry: Registry, limits: Limits, name: str | None, options: Options, *, views: bool
) -> Index:
    """Apply installed refinements to an Index until none matches, first those with the file's suffix.

    `name`: the refinement to apply, if given, with its `options`. `views`: tensors of the base format may overlap.
    """
    filename = index.files[0].name.lower() if index.files else ""
    entries = [entry for entry in registry.find("container", refines=index.format) if name in (None, entry.id)]
    for entry in sorted(entries, key=lambda entry: (not filename.endswith(entry.info.suffixes or "/"), entry.id)):
        info = entry.info
        shared = views or info.views
        with guarded(FormatError, f"refining as {info.id}", file=source.name):
            with gc_paused():
                refinement: Refinement = registry.instance("container", entry)
                refined = refinement.refine(index, source, limits, options)
                if refined is not None:
                    registry.container(info.id)  # raises if the id is in conflict
                    check_index(refined, limits, views=shared)
            if refined is not None:
                refined = without_explained(refined)
                return refine(refined, source, registry, limits, None, {}, views=shared)
    if name is not None:
        raise FormatError(f"does not declare itself as {name}", file=source.name, code="format")
    missing = missing_refinements(index, source, registry)
    return evolve(index, problems=(*index.problems, *missing)) if missing else index


def without_explained(index: Index) -> Index:
    """Leave out findings about undeclared values that a refinement explains."""
    tensors = index.tensors
    remaining = tuple(
        problem
        for problem in index.problems
        if problem.code != ErrorCode.UNDECLARED_SCALES
        or (problem.where in tensors and tensors[problem.where].undeclared == problem)
    )
    return index if len(remaining) == len(index.problems) else evolve(index, problems=remaining)


def with_assets(index: Index, source: Source, names: Sequence[str]) -> Index:
    """Append files beside the source to the assets of an Index."""
    if not names:
        return index
    files, assets = list(index.files), dict(index.assets)
    for name in names:
        if name not in assets:
            file = source.member(name)
            assets[name] = Part(dtype="u8", shape=(file.size,), segments=(Segment(len(files), 0, file.size),))
            files.append(FileRef(name, file.size))
    return evolve(index, files=tuple(files), assets=assets)


def foreign_declarations(index: Index, overlay: Sequence[str]) -> dict[str, tuple[tuple[str, ...], ...]]:
    """`Index.declarations` of overlaid assets that describe tensors in a format other than the file's own."""
    places = [
        (place, keys[:-1] or keys)
        for _, base, place, keys in catalog.DECLARATIONS
        if base != index.format and place in overlay and place not in index.assets
    ]
    return {place: tuple(keys for other, keys in places if other == place) for place, _ in places}


def _info(registry: Registry, name: str) -> ContainerInfo | None:
    """Return the declaration of a format; None if it is not installed."""
    entry = registry.containers.get(name)
    return entry.info if entry is not None else None
