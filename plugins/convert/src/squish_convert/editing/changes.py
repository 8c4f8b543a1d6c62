"""What an edit changes: the request, checked against a file and spelled out for it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from attrs import evolve, field, frozen

from squish_core.codes import ErrorCode
from squish_core.dtypes import is_dtype
from squish_core.errors import FormatError, SquishError, TensorError, UsageError
from squish_core.file import File
from squish_core.formats.assets import parse_object
from squish_core.formats.metadata import untyped
from squish_core.model import FileRef, Index, Part, TensorSpec, Typed
from squish_core.text import did_you_mean, words

from ..joined import JoinedSource, renumbered
from ..rules import check_patterns

TEMPLATE_KEY, TEMPLATE_FILE, TOKENIZER_FILE = "tokenizer.chat_template", "chat_template.jinja", "tokenizer_config.json"
PLACES = "places"
"""In `Index.attrs` of an edited file: name of each tensor -> name of its file. A format that writes several files puts
the tensors there (`WritableContainer.options_for`)."""
OWN, ADDED, REPLACED = "squish.edited", "squish.added", "squish.replaced"
"""Folders of the files of an edited file, in its Index."""


@frozen(kw_only=True)
class Changes:
    """What an edit shall change; a name pattern has `*` for any text.

    Attributes
    ----------
    put, unset, rename_keys
        Metadata: key -> value (text is read as the type that the key has, or as the one in `KEY:TYPE`), keys to
        delete, and key -> new key.
    template
        The chat template, as text.
    rename, remove
        Tensors: pattern -> new name, in which each `*` stands for what that of the pattern matched; patterns.
    add, replace
        Open files with tensors that the file must not have, or must have.
    """

    put: Mapping[str, Any] = field(factory=dict)
    unset: tuple[str, ...] = ()
    rename_keys: Mapping[str, str] = field(factory=dict)
    template: str | None = None
    rename: Mapping[str, str] = field(factory=dict)
    remove: tuple[str, ...] = ()
    add: File | None = None
    replace: File | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is requested."""
        texts = (self.put, self.unset, self.rename_keys, self.rename, self.remove)
        return not any(texts) and self.template is None and self.add is None and self.replace is None


@frozen(kw_only=True)
class Resolved:
    """The changes of one file: `attributes` has None for keys to delete; `assets` has the files that change.

    `notes`: remarks for the user, such as on keys that may be mistyped.
    """

    attributes: Mapping[str, Any]
    assets: Mapping[str, bytes]
    renamed: Mapping[str, str]
    removed: tuple[str, ...]
    added: tuple[str, ...]
    replaced: tuple[str, ...]
    notes: tuple[str, ...] = ()


def resolve(file: File, changes: Changes) -> Resolved:
    """Return the changes for a file; SquishError if one cannot apply."""
    names = list(file.index.tensors)
    check_patterns(list(changes.remove), names, file.name)
    removed = tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in changes.remove))
    remaining = [name for name in names if name not in {*removed}]
    renamed = _renamed(remaining, changes.rename, file.name)
    later = {renamed.get(name, name) for name in remaining}
    replaced, added = tuple(changes.replace or ()), tuple(changes.add or ())
    for name in replaced:
        if name not in later:
            raise _name_error(file, name, "cannot replace: the file has no tensor of this name", names)
    for name in added:
        if name in later:
            raise TensorError(
                "a tensor of this name exists already",
                file=file.name,
                tensor=name,
                code="name",
                hint="Remove it in the same edit to replace it, or use {option:replace}.",
            )
    attributes, assets = _metadata(file, changes)
    return Resolved(
        attributes=attributes,
        assets=assets,
        renamed=renamed,
        removed=removed,
        added=added,
        replaced=replaced,
        notes=tuple(_new_keys(file, changes)),
    )


SIMILAR = 0.85
"""Least similarity (`difflib`) of a new key to one of the file that may be meant; keys often have long prefixes."""


def _new_keys(file: File, changes: Changes) -> Iterator[str]:
    """Notes on keys that are set and new, but nearly those of others."""
    import difflib

    meta = file.index.meta
    for key, _ in (_typed_key(key, meta) for key in changes.put):
        near = [] if key in meta else difflib.get_close_matches(key, meta, 1, SIMILAR)
        if near:
            yield words(f"the key {key} is new; did you mean {near[0]}? {{option:unset={key}}} deletes it")


def _name_error(file: File, name: str, message: str, names: Iterable[str]) -> TensorError:
    hint = did_you_mean(name, list(names)) or "`squish ls` lists the tensors."
    return TensorError(message, file=file.name, tensor=name, code="name", hint=hint)


def _renamed(names: Sequence[str], rename: Mapping[str, str], where: str) -> dict[str, str]:
    """Old name -> new name; of several patterns the first that matches decides."""
    forms = []
    for pattern, new in rename.items():
        if new.count("*") > pattern.count("*"):
            raise UsageError(
                "the new name has more `*` than the pattern",
                found=f"{pattern}={new}",
                expected=f"at most {pattern.count('*')}",
                code=ErrorCode.USAGE,
            )
        forms.append((re.compile("(.*)".join(map(re.escape, pattern.split("*"))), re.DOTALL), new, pattern))
    check_patterns([pattern.replace("[", "[[]").replace("?", "[?]") for pattern in rename], list(names), where)
    renamed = {}
    for name in names:
        for form, new, _ in forms:
            if match := form.fullmatch(name):
                texts = new.split("*")
                pieces = (*match.groups()[: len(texts) - 1], "")
                renamed[name] = "".join(text + piece for text, piece in zip(texts, pieces))
                break
    new_names = [renamed.get(name, name) for name in names]
    if twice := sorted({name for name in new_names if new_names.count(name) > 1} if renamed else ()):
        raise TensorError(
            "two tensors would have this name",
            file=where,
            tensor=twice[0],
            code="name",
            hint="Give the new name as many `*` as the pattern has.",
        )
    return {old: new for old, new in renamed.items() if old != new}


def _metadata(file: File, changes: Changes) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return the metadata to change (None: to delete), and the other files that change."""
    meta, attributes = file.index.meta, dict[str, Any]()
    for key in (*changes.unset, *changes.rename_keys):
        if key not in meta:
            hint = did_you_mean(key, list(meta)) or "`squish info` lists the keys."
            raise SquishError("no such metadata key", file=file.name, found=key, code="key", hint=hint)
        attributes[key] = None
    for key, new in changes.rename_keys.items():
        if new in meta and attributes.get(new, 0) is not None:
            raise SquishError("a metadata key of this name exists already", file=file.name, found=new, code="key")
        attributes[new] = meta[key]
    for key, value in changes.put.items():
        name, kind = _typed_key(key, meta)
        attributes[name] = _value(file, name, value, kind, meta.get(name)) if isinstance(value, str) else value
    assets = dict[str, bytes]()
    if changes.template is not None:
        if file.format != "gguf" and TEMPLATE_KEY not in meta and (file.source.is_dir or TOKENIZER_FILE in file.assets):
            assets = _template_files(file, changes.template)
        else:
            attributes[TEMPLATE_KEY] = _value(file, TEMPLATE_KEY, changes.template, None, meta.get(TEMPLATE_KEY))
    return attributes, assets


def _template_files(file: File, template: str) -> dict[str, bytes]:
    """The files of a folder with a chat template: one of its own, and a tokenizer's configuration without one."""
    files = {TEMPLATE_FILE: template.encode()}
    if TOKENIZER_FILE in file.assets:
        raw = bytes(file.assets[TOKENIZER_FILE].raw)
        config = parse_object(raw, TOKENIZER_FILE)
        if config.pop("chat_template", None) is not None:
            files[TOKENIZER_FILE] = (json.dumps(config, ensure_ascii=False, indent=2) + "\n").encode()
    return files


def _typed_key(key: str, meta: Mapping[str, Any]) -> tuple[str, str | None]:
    """Split `KEY:TYPE`, unless it is a key as a whole."""
    name, colon, kind = key.rpartition(":")
    item = kind.removeprefix("array:")
    if key not in meta and colon and name and (is_dtype(item) or item in ("str", "bytes")):
        name, _, array = name.rpartition(":") if name.endswith(":array") else (name, "", "")
        return name, f"array:{kind}" if array else kind
    return key, None


def _value(file: File, key: str, text: str, kind: str | None, old: Any) -> Any:
    """Return text as the type that it is declared to have, or that the key has; text if there is none."""
    kind = kind or (old.type if isinstance(old, Typed) else None)
    former = untyped(old)
    if kind in (None, "str") and not isinstance(former, (bool, int, float, list, tuple)):
        return Typed("str", text) if kind else text
    if kind == "str":
        return Typed("str", text)
    try:
        if kind == "bytes":
            return Typed("bytes", bytes.fromhex(text))
        value = json.loads(text)
        values = value if isinstance(value, list) else [value]
        is_array = kind.startswith("array:") if kind else isinstance(former, (list, tuple))
        if isinstance(value, list) != is_array or not all(_fits(each, kind, former) for each in values):
            raise ValueError
    except ValueError:
        raise FormatError(
            "the value does not have the type of the key",
            file=file.name,
            part=key,
            expected=kind or type(former).__name__,
            found=repr(text[:60]),
            code=ErrorCode.USAGE,
            hint=f"{{option:set={key}:str=TEXT}} sets text." if file.format == "gguf" else "Lists are written as JSON.",
        ) from None
    return Typed(kind, value) if kind else value


def _fits(value: Any, kind: str | None, old: Any) -> bool:
    """Whether a value of JSON is one of a stored type."""
    kind = (kind or "").removeprefix("array:")
    if kind == "str":
        return isinstance(value, str)
    if kind == "bool" or isinstance(old, bool):
        return isinstance(value, bool)
    if isinstance(value, bool):
        return False
    if kind[:1] in ("i", "u"):
        bits = int(kind[1:])
        low, high = (0, 1 << bits) if kind[0] == "u" else (-(1 << bits - 1), 1 << bits - 1)
        return isinstance(value, int) and low <= value < high
    return isinstance(value, (int, float)) or (not kind and isinstance(value, str))


def edited(file: File, changes: Changes, resolved: Resolved) -> File:
    """Return the file as it shall be; its parts still refer to the bytes of the old one and of the added files."""
    index = file.index
    sources = {key: each for key, each in ((ADDED, changes.add), (REPLACED, changes.replace)) if each is not None}
    source = file.source
    files: Sequence[FileRef] = index.files
    first, firsts = len(files), dict[str, int]()
    if sources:
        source = JoinedSource({OWN: file, **sources}, file.name)
        source.path = file.path
        files = [FileRef(f"{OWN}/{ref.name}", ref.size, ref.digest) for ref in files]
        for key, each in sources.items():
            firsts[key] = first
            files += [FileRef(f"{key}/{ref.name}", ref.size, ref.digest) for ref in each.index.files]
            first += len(each.index.files)
    new = {
        name: renumbered(spec, firsts[key])
        for key, each in sources.items()
        for name, spec in each.without_caches().index.tensors.items()
    }
    tensors = dict[str, TensorSpec]()
    places = dict[str, str]()
    for old, spec in file.without_caches().index.tensors.items():
        if old in {*resolved.removed}:
            continue
        name = resolved.renamed.get(old, old)
        tensors[name] = new.pop(name) if name in new else evolve(spec, name=name)
        places[name] = _file_of(index, spec)
    last = next(reversed(places.values()), index.files[0].name)
    places |= dict.fromkeys(new, last)
    meta = {key: resolved.attributes.get(key, value) for key, value in index.meta.items()}
    meta |= {key: value for key, value in resolved.attributes.items() if key not in meta}
    meta = {key: value for key, value in meta.items() if value is not None}
    inner = {name: part for name, part in index.assets.items() if file.source.is_dir or part.data is not None}
    assets = inner | {name: _inline(data) for name, data in resolved.assets.items()}
    attrs = {**index.attrs, PLACES: places}
    index = evolve(
        index, files=files, tensors={**tensors, **new}, meta=meta, assets=assets, attrs=attrs, ignored=(), caches=()
    )
    return File(source, index, file.registry, file.limits)


def _file_of(index: Index, spec: TensorSpec) -> str:
    """Name of the file with the first byte of a tensor."""
    parts = [part for encoding in spec.encodings for part in encoding.parts.values()]
    number = next((segment.file for part in parts for segment in part.segments), 0)
    return index.files[number].name


def _inline(data: bytes) -> Part:
    return Part(dtype="u8", shape=(len(data),), data=data)
