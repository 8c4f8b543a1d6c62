"""What `squish info` tells of a file: a summary as plain data and as lines, and one metadata value whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from attrs import asdict

from squish_core.cli.output import Answer, plain_data
from squish_core.display.tables import counted, table
from squish_core.errors import MAX_MESSAGE, MAX_PLACE, SquishError, shorten
from squish_core.text import close_matches, escape

if TYPE_CHECKING:
    from pathlib import Path

    from squish_core.file import File
    from squish_core.tensor import Tensor

MOST_FILES = 16
"""Files that `info` shows to people."""
LONG = 64
"""Longest metadata value or list that is shown whole: characters for people, items in JSON."""


def stored_as(tensor: Tensor, long: bool = False) -> str:
    """The dtype of a dense tensor, else the codec, with the width of its codes where it has several; with `long` all
    its parameters."""
    if tensor.codec == "dense":
        return str(tensor.dtype)
    if long and tensor.spec.encodings:
        return str(tensor.spec.encodings[0].codec)
    params = tensor.spec.encodings[0].codec.params if tensor.spec.encodings else {}
    return f"{tensor.codec}:bits={params['bits']}" if "bits" in params else tensor.codec


def stored_kinds(file: File) -> list[dict[str, Any]]:
    """What the tensors are stored as, the most bytes first; of tied tensors one alone is counted."""
    kinds = dict[str, dict[str, Any]]()
    for tensor in map(file.__getitem__, file):
        blank = {"stored_as": stored_as(tensor), "tensors": 0, "parameters": 0, "nbytes": 0, "lacks": None}
        kind = kinds.setdefault(stored_as(tensor), blank)
        kind["tensors"] += 1
        if tensor.spec.tied_to is None:
            kind["parameters"] += tensor.spec.elements
            kind["nbytes"] += tensor.nbytes
        missing = [file.registry.missing(encoding) for encoding in tensor.spec.encodings]
        if missing and all(missing) and kind["lacks"] is None:
            kind["lacks"] = missing[0].install or missing[0].why  # type: ignore[union-attr]
    for kind in kinds.values():
        kind["bits_per_weight"] = 8 * kind["nbytes"] / kind["parameters"] if kind["parameters"] else 0.0
    return sorted(kinds.values(), key=lambda kind: -kind["nbytes"])


def summary(file: File) -> dict[str, Any]:
    """What `info` tells, as plain data."""
    index, codecs = file.index, stored_kinds(file)
    parameters, nbytes = (sum(entry[key] for entry in codecs) for key in ("parameters", "nbytes"))
    return {
        "file": file.name, "link": link_of(file.path),
        "format": file.format, "version": file.version, "kind": index.kind,
        "files": [{"name": ref.name, "link": link_of(path), "size": ref.size, "digest": ref.digest}
                  for ref, path in zip(index.files, paths(file))],
        "size": file.size, "packed": packed(file), "tensors": len(file), "parameters": parameters,
        "bits_per_weight": 8 * nbytes / parameters if parameters else 0.0, "codecs": codecs,
        "meta": {key: brief(value) for key, value in file.meta.items()},
        "assets": {name: part.nbytes for name, part in index.assets.items()}, "caches": list(index.caches),
        "sections": [asdict(section) for section in index.sections],
        "whole": [str(encoding.codec) for encoding in index.whole],
        "children": {
            name: {"kind": child.kind, "tensors": len(child.tensors)} for name, child in index.children.items()
        },
        "problems": [
            {"severity": p.severity, "code": p.code, "where": p.where, "message": p.message} for p in index.problems
        ],
    }  # fmt: skip


def link_of(path: Path | None) -> str | None:
    """Where a path leads if it is a symbolic link; None if it is none."""
    return str(path.resolve()) if path is not None and path.is_symlink() else None


def linked(file: File) -> str:
    """The name of a file, and where it leads if it is a symbolic link."""
    target = link_of(file.path)
    return f"{file.name} (a link to {target})" if target else file.name


def paths(file: File) -> list[Path | None]:
    """The path of each file of the Index; None for bytes in memory."""
    folder = file.path if file.source.is_dir or file.path is None else file.path.parent
    return [folder / ref.name if folder is not None else None for ref in file.index.files]


def file_label(ref: dict[str, Any]) -> str:
    """The name of one of several files, and where it leads if it is a symbolic link."""
    return f"{ref['name']} (a link to {ref['link']})" if ref["link"] else str(ref["name"])


def packed(file: File) -> dict[str, Any] | None:
    """With what, and to how many bytes, the files are compressed whole; None when they are not."""
    if file.source.packed is None:
        return None
    sources = [file.source_for(number) for number in range(len(file.index.files))]
    size = sum(source.packed[1] if source.packed else source.size for source in sources)
    return {"codec": file.source.packed[0], "size": size}


def facts(data: dict[str, Any]) -> Iterable[tuple[str, str]]:
    """The first lines of a summary."""
    from squish_core.text import format_bytes

    version = f" {data['version']}" if data["version"] else ""
    kind = f" ({data['kind']})" if data["kind"] != "model" else ""
    yield "format", f"{data['format']}{version}{kind}"
    packed = data["packed"]
    unpacked = f" unpacked, {format_bytes(packed['size'])} compressed with {packed['codec']}," if packed else ""
    yield "size", f"{format_bytes(data['size'])}{unpacked} in {counted(len(data['files']), 'file')}"
    yield "tensors", f"{data['tensors']:,}"
    yield "parameters", f"{data['parameters']:,} at {data['bits_per_weight']:.2f} bits each"
    if data["caches"]:
        yield "caches", f"{', '.join(data['caches'])} (the first is used)"


def summary_lines(data: dict[str, Any], file: File) -> Iterable[str]:
    """What `info` tells, for people."""
    from squish_core.text import format_bytes

    yield from table(("file", escape(linked(file))), "<<", facts(data))
    if len(data["files"]) > 1:
        shown = data["files"][:MOST_FILES]
        yield from ("", "files", *(f"  {format_bytes(ref['size']):>8}  {file_label(ref)}" for ref in shown))
        if more := len(data["files"]) - len(shown):
            yield f"            and {more:,} more (--json lists them)"
    rows = [
        (entry["stored_as"], f"{entry['tensors']:,}", f"{entry['parameters']:,}", format_bytes(entry["nbytes"]),
         f"{entry['bits_per_weight']:.2f}", f"cannot be decoded here: {entry['lacks']}" if entry["lacks"] else "")
        for entry in data["codecs"]
    ]  # fmt: skip
    yield from section("", table(("stored as", "tensors", "parameters", "size", "bits", ""), "<>>>><", rows))
    meta = [(key, shortened(fewest_digits(file.index.meta[key], value))) for key, value in file.meta.items()]
    yield from section("metadata", table(("", ""), "<<", meta, "  ")[1:])
    places = [(part["offset"], part["size"], part["kind"], part["holds"]) for part in data["sections"]]
    yield from section("", table(("offset", "bytes", "section", "holds"), ">><<", places))
    yield from section("assets", [f"  {format_bytes(size):>8}  {name}" for name, size in data["assets"].items()])
    yield from section("encodings of the whole model", [f"  {codec}" for codec in data["whole"]])
    children = [
        f"  {name}: {child['kind']}, {counted(child['tensors'], 'tensor')}" for name, child in data["children"].items()
    ]
    yield from section("children", children)
    problems = (
        f"  {each['severity']}: {shorten(each['where'], MAX_PLACE)}: {shorten(each['message'], MAX_MESSAGE)}"
        for each in data["problems"]
    )
    yield from section("problems", list(problems))


def section(title: str, lines: Sequence[str]) -> list[str]:
    """Lines under a title after an empty line; nothing when there are none."""
    return ["", *([title] if title else []), *lines] if lines else []


def one_value(file: File, key: str) -> Answer:
    """One metadata value, whole."""
    if key not in file.meta:
        near = close_matches(key, file.meta)
        raise SquishError(
            "has no such metadata", file=file.name, found=repr(key), code="meta",
            hint=f"Near: {', '.join(near)}." if near else "`squish info` lists the keys.",
        )  # fmt: skip
    value = plain_data(file.meta[key])
    lines = value.split("\n") if isinstance(value, str) else value if isinstance(value, list) else [value]
    return Answer(value, [str(line) for line in lines], verbatim=True)


def brief(value: Any) -> Any:
    """A metadata value for JSON: a long array is only counted (`--meta` prints it)."""
    size = len(value) if hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) else 0
    return {"length": size} if size > LONG else value


def fewest_digits(stored: Any, value: Any) -> Any:
    """A metadata value, an f32 as text of the fewest digits that mean it."""
    if getattr(stored, "type", None) != "f32":
        return value
    import numpy as np

    return str(np.float32(value))


def shortened(value: Any) -> str:
    """A metadata value in a line; of a long list the first items alone are looked at."""
    if not isinstance(value, Sequence) or isinstance(value, (bytes, bytearray, memoryview)):
        value = plain_data(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        text = ", ".join(str(item) for item in plain_data(value[:LONG]))
        return f"[{text}]" if len(text) <= LONG >= len(value) else f"[{text[: LONG - 16]}...] {len(value):,} values"
    text = str(value)
    return text if len(text) <= LONG else f"{text[: LONG - 16]}... {len(text):,} characters"
