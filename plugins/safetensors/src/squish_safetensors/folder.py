"""Files around a safetensors file: index and shards of a set, and the model's other files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen

from squish_core.api import (
    ErrorCode,
    FormatError,
    LimitError,
    Limits,
    Problem,
    Source,
    SquishError,
    check_file_name,
    check_name,
    counted,
    load_json,
)

from .header import MAX_HEADER, Header, TensorRecord, read_header, text_of

SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
UQFF_SUFFIX, UQFF_REST = ".uqff", "residual.safetensors"
STEMS = ("model", "diffusion_pytorch_model", "adapter_model")
"""Names of a model's weights in Transformers, diffusers and PEFT."""
_VARIANT = r"(?:\.[A-Za-z]\w*)?"
INDEX = re.compile(rf".+\.safetensors\.index{_VARIANT}\.json")
STANDARD = re.compile(
    rf"(?:{'|'.join(STEMS)}){_VARIANT}(?:-\d{{5}}-of-\d{{5}}{_VARIANT})?\.safetensors(?:\.index{_VARIANT}\.json)?"
)
SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})(?:\.[A-Za-z]\w*)?\.safetensors")
_VARIANT_NAME = re.compile(r"(.+?)\.[A-Za-z]\w*((?:-\d{5}-of-\d{5})?\.safetensors)|(.+\.index)\.[A-Za-z]\w*(\.json)")
CONFIG_FILE = "config.json"
DECLARING = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Assets other than config.json in which a method may declare its quantization."""
MAX_JSON, MAX_ENTRY = 16 << 20, 4 << 20
"""Maximum bytes of a JSON file and of one entry: a quantization may list every layer."""
MODEL_ASSETS = (
    CONFIG_FILE, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json",
    *DECLARING, "adapter_config.json", "modules.json", "squish.gguf.json",
)  # fmt: skip
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
"""The default chat template, and the folder in which Transformers saves others by name."""
MODULES = "modules.json"
"""The list of a sentence-transformers model's modules, each with its settings in a folder of its own."""
DENSE_MODULE = "Dense"
"""The end of the class of a module that has weights: a matrix behind the pooling."""
MODULE = re.compile(r"\d+_\w+")
"""The folder of such a module, which precedes the names of its tensors with a slash."""
_OTHER_ASSETS = (
    rf"{TEMPLATES}/\w[\w.+ -]*\.jinja",
    r"\d+_\w+/config\.json",  # a module of sentence-transformers, such as 1_Pooling
    r"config_sentence_transformers\.json|sentence_\w+_config\.json",
    r"\w*processor_config\.json",
    r"(configuration|modeling|tokenization|\w*processing|feature_extraction)_\w+\.py",  # loaded by auto_map
    r"tekken\.json|vocab\.txt|\w[\w.-]*\.(model|spm|tiktoken)",  # vocabularies
)
_OTHER_ASSET = re.compile("|".join(f"(?:{pattern})" for pattern in _OTHER_ASSETS))
"""Files of a model that only a listing of its folder shows."""
POOLING_FOLDER = "1_Pooling"
POOLING = f"{POOLING_FOLDER}/{CONFIG_FILE}"
"""The pooling of an embedding model, looked up by name if the folder cannot be listed."""
MODEL_FILE = f"{STEMS[0]}{SUFFIX}"
MODEL_FILES = tuple(name for stem in STEMS for name in (f"{stem}{INDEX_SUFFIX}", f"{stem}{SUFFIX}"))
"""Names of a model's main file, tried if its folder cannot be listed."""


@frozen
class Shard:
    """A checked file of tensors; its position in a list of shards is its number in the Index."""

    source: Source
    header: Header


def is_model_asset(name: str) -> bool:
    """Tell whether a file beside the tensors describes a model.

    Parameters
    ----------
    name : str
        Its name, with its subfolder if it is in one.

    Returns
    -------
    bool
        True for config, tokenizer, chat templates, processors, the modules of sentence-transformers and the like.

    Examples
    --------
    >>> is_model_asset("config.json"), is_model_asset("additional_chat_templates/rag.jinja"), is_model_asset("x.py")
    (True, True, False)
    """
    return name in MODEL_ASSETS or _OTHER_ASSET.fullmatch(name) is not None


def model_assets(folder: Source, members: Collection[str]) -> list[str]:
    """List the files beside the tensors that describe a model.

    Parameters
    ----------
    folder : Source
        The folder, or a file in it.
    members : collection of str
        The names of its files.

    Returns
    -------
    list of str
        Names for which `is_model_asset` is true.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     model_assets(file.source, ["config.json", "README.md"])
    ['config.json']
    """
    first = [name for name in MODEL_ASSETS if name in members]
    others = sorted(frozenset(members).difference(first))
    folders = [TEMPLATES] if TEMPLATE in members else []
    folders += [name for name in folder.subfolders() if name[0].isdigit()] if MODULES in members else []
    nested = [f"{name}/{file}" for name in folders for file in folder.members(name)]
    if MODULES in members and not folder.lists_members and folder.has(CONFIG_FILE, POOLING_FOLDER):
        nested.append(POOLING)
    return [*first, *filter(is_model_asset, (*others, *nested))]


def not_read(folder: Source, members: Iterable[str], files: Iterable[str]) -> tuple[str, ...]:
    """List the other files of a model's folder, and its subfolders with a slash, without hidden ones.

    Parameters
    ----------
    folder : Source
        The folder, or a file in it.
    members : iterable of str
        The names of its files.
    files : iterable of str
        Names of the files that are read.

    Returns
    -------
    tuple of str
        The names.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     not_read(file.source, ["config.json", "README.md", ".gitattributes"], ["config.json"])
    ('README.md',)
    """
    read = frozenset(files)
    nested = [f"{name}/{file}" for name in folder.subfolders() for file in folder.members(name) or ("",)]
    folders = dict.fromkeys(f"{path.partition('/')[0]}/" for path in nested if path not in read)
    return tuple(
        name
        for name in (*members, *folders)
        if name not in read and not name.startswith(".") and not INDEX.fullmatch(name)
    )


@frozen
class Choice:
    """What to open in a folder: a file, an index, or all shards of a set without an index."""

    name: str
    shards: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()


def choose(folder: Source, limits: Limits) -> Choice:
    """Choose the file of a folder to open as Transformers, diffusers and PEFT do; FormatError if it is ambiguous."""
    names = folder.members(likely=MODEL_FILES)
    for stem in STEMS:
        file, index = stem + SUFFIX, stem + INDEX_SUFFIX
        if file in names:
            return _file_or_index(folder, file, index, limits) if index in names else Choice(file)
        if index in names:
            return Choice(index)
    files = [name for name in names if name.endswith(SUFFIX)]
    candidates = _without_variants(filter(INDEX.fullmatch, names)) or _without_variants(files)
    if candidates in ([], [UQFF_REST]):
        # The layers are next to the residual; the refinement determines the set.
        candidates = [name for name in names if name.endswith(UQFF_SUFFIX)][:1] or candidates
    if len({_set_of(name) for name in candidates}) == 1 and (shard := SHARD.fullmatch(candidates[0])):
        return _set_without_index(candidates, int(shard[3]))
    if len(candidates) != 1:
        listing = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
        raise FormatError(
            "is a folder with several safetensors files and no index"
            if candidates
            else "is a folder without a safetensors file",
            expected=f"one file, or one {INDEX_SUFFIX}",
            found=listing or None,
            code=ErrorCode.FOLDER,
            hint="Open one of its files." if candidates else None,
        )
    return Choice(candidates[0])


def _file_or_index(folder: Source, file: str, index: str, limits: Limits) -> Choice:
    """Choose the file, unless the index lists it and all shards of the index exist."""
    try:
        listed = set(_listing(folder.member(index), limits)["weight_map"].values())
        members = folder.members(likely=map(str, listed))
        fault = "" if file in listed else "does not list"
        absent = sorted(name for name in listed if name not in members)
        fault = f"lists {absent[0]!r}, which is missing, beside" if absent else fault
    except (SquishError, TypeError, AttributeError) as error:
        fault = f"cannot be read ({error.reason() if isinstance(error, SquishError) else error}); it is beside"
    if not fault:
        return Choice(index)
    message = f"{fault} {file}, which is opened alone, as Transformers does"
    return Choice(file, problems=(Problem(code="index", severity="warning", where=index, message=message),))


def _without_variants(names: Iterable[str]) -> list[str]:
    """Return names without variants (`model.fp16.safetensors`) of a file or index that also exists."""
    listed = list(names)
    sets = {_set_of(name) for name in listed}
    return [name for name in listed if _set_of(_main_variant(name)) not in sets or _main_variant(name) == name]


def _main_variant(name: str) -> str:
    """Return the name without its variant."""
    return _VARIANT_NAME.sub(lambda match: "".join(filter(None, match.groups())), name) if name else name


def _set_of(name: str) -> str:
    """Return the name without the numbers of a shard."""
    shard = SHARD.fullmatch(name)
    return f"{shard[1]}{SUFFIX}" if shard else name


def _set_without_index(names: Sequence[str], count: int) -> Choice:
    """Choose all shards of a set by their numbers; FormatError if one is missing."""
    numbers = {int(match[2]) for match in map(SHARD.fullmatch, names) if match}
    absent = sorted(set(range(1, count + 1)) - numbers)
    if absent or len(names) != count:
        raise FormatError(
            f"has no index, and {len(numbers)} of the {count} shards that their names state",
            code="shard-missing",
            expected=re.sub(r"-\d{5}-of", f"-{absent[0]:05}-of", names[0]) if absent else f"{count} files",
            found=", ".join(names[:4]),
            hint="Download the missing files and the index to this folder.",
        )
    message = "no index lists these shards: Transformers finds no model here, mlx-lm does"
    problem = Problem(code="index", severity="note", where=names[0], message=message)
    return Choice(names[0], tuple(sorted(names)), (problem,))


def module_weights(folder: Source, members: Collection[str], limits: Limits) -> list[str]:
    """Return the folders of the modules of sentence-transformers that have weights of their own."""
    if MODULES not in members:
        return []
    source = folder.member(MODULES)
    try:
        data = b'{"modules": %s}' % source.read(0, min(source.size, MAX_ENTRY))  # the file is a list
        modules = load_json(data, MODULES, limits, piece=MAX_ENTRY)["modules"]
    except SquishError:  # who reads the list reports it
        return []
    dense = [each for each in modules if type(each) is dict and str(each.get("type")).endswith(DENSE_MODULE)]
    paths = dict.fromkeys(str(each.get("path")) for each in dense)
    return [path for path in paths if MODULE.fullmatch(path) and folder.has(MODEL_FILE, path)]


def read_set(index: Source, limits: Limits) -> tuple[list[Shard], dict[str, TensorRecord], list[Problem]]:
    """Open the shards of an index file, and return them with all their tensors.

    An empty index is compared with all neighboring files, so that it cannot hide their tensors.
    """
    listing = _listing(index, limits)
    places = listing["weight_map"]
    names = _shard_names(places, index) or [name for name in index.members() if name.endswith(SUFFIX)]
    shards = read_shards(index, names, limits)
    records, problems = _merge(places, shards)
    return shards, records, [*_check_total(listing.get("metadata"), shards), *problems]


def read_shards(beside: Source, names: Sequence[str], limits: Limits) -> list[Shard]:
    """Open shards in a folder, or in the folder of a file."""
    return [_shard(beside, name, file, limits) for file, name in enumerate(names)]


def merged(shards: Sequence[Shard]) -> dict[str, TensorRecord]:
    """Return the tensors of shards that no index lists; FormatError for a tensor in two shards."""
    return _merge({}, shards)[0]


def shared_tensors(records: Mapping[str, TensorRecord], meta: Mapping[str, str], limits: Limits) -> dict[str, str]:
    """Return the tensors that `save_model` of safetensors omitted because they share memory with another one.

    Its metadata lists them: name -> name of the stored tensor.
    """
    shared = {}
    for name, kept in meta.items():
        if kept in records and name not in records and name != "format":
            with suppress(SquishError):  # the metadata may have any text
                shared[check_name(name, limits)] = kept
    return shared


def unlisted(listed: Iterable[str], members: Iterable[str]) -> list[Problem]:
    """Report other safetensors files in the model's folder, whose tensors are not read.

    A shard of the same numbered set is a warning; others, such as the draft head `mtp.safetensors`, are a note.
    """
    names = frozenset(listed)
    sets = {(match[1], match[3]) for match in map(SHARD.fullmatch, names) if match}
    problems = []
    for name in members:
        if name in names or not name.endswith(SUFFIX) or name == UQFF_REST:
            continue
        shard = SHARD.fullmatch(name)
        if shard and (shard[1], shard[3]) in sets:
            severity, message = "warning", "not in the index, although it is a shard of this set"
        else:
            severity, message = "note", "beside the model, and not in an index"
        message += ": its tensors are ignored"
        problems.append(Problem(code="shard-unlisted", severity=severity, where=name, message=message))
    return problems


def _listing(index: Source, limits: Limits) -> dict[str, Any]:
    """Read an index file; FormatError if it has no weight_map."""
    cap = min(limits.header, MAX_HEADER)
    if index.size > cap:
        raise LimitError("the index is too large", expected=f"at most {cap} bytes", found=index.size, code="index")
    listing = load_json(text_of(index, 0, index.size), "index", limits)
    places = listing.get("weight_map")
    if type(places) is not dict:
        raise FormatError("the index has no object weight_map", found=type(places).__name__, code="index")
    return listing


def read_json(source: Source, name: str, limits: Limits) -> dict[str, Any]:
    """Read the object in a model's JSON file; a typed error if missing or too large."""
    if source.size > MAX_JSON:
        raise FormatError("file too large", expected=f"at most {MAX_JSON} bytes", found=source.size, code="json")
    return load_json(source.read(0, source.size), name, limits, piece=MAX_ENTRY, constants=True)


def unreadable(files: Iterable[Source], limits: Limits) -> list[Problem]:
    """Return a problem for each unreadable file that may declare a quantization."""
    problems = []
    for file in files:
        if file.filename in (CONFIG_FILE, *DECLARING):
            try:
                read_json(file, file.filename, limits)
            except SquishError as error:
                message = f"{error.reason()}. Its quantization is unknown, so tensors are read as stored"
                problems.append(Problem(code="json", severity="error", where=file.filename, message=message))
    return problems


def set_index(name: str) -> list[str]:
    """Return the index name of a shard's set."""
    shard = SHARD.fullmatch(name)
    return [shard[1] + INDEX_SUFFIX] if shard else []


def part_of_set(name: str, members: Sequence[str]) -> list[Problem]:
    """Return a note if a file is a shard of a set with a neighboring index."""
    indexes = [index for index in set_index(name) if index in members]
    if not indexes:
        return []
    message = f"one shard of a set; open {indexes[0]} for all tensors"
    return [Problem(code=ErrorCode.SHARD, severity="note", where=name, message=message)]


def _shard_names(places: dict[str, Any], index: Source) -> list[str]:
    """Return the shard names, sorted and checked to be existing files of the folder."""
    first: dict[str, str] = {}
    for tensor, name in places.items():
        if type(name) is not str:
            raise FormatError(
                "the weight_map must name a file for each tensor",
                tensor=tensor,
                found=type(name).__name__,
                code="index",
            )
        first.setdefault(name, tensor)
    folded: dict[str, str] = {}
    for name, tensor in first.items():
        try:
            check_file_name(name, index.name)
        except SquishError as error:
            raise error.within(tensor=tensor) from None
        if folded.setdefault(name.casefold(), name) != name:
            raise FormatError(
                "the names of two shards differ only in case",
                tensor=tensor,
                expected=repr(folded[name.casefold()]),
                found=repr(name),
                code="path",
            )
    members = frozenset(index.members(likely=sorted(first)))
    for name, tensor in first.items():
        if name not in members:
            raise FormatError(
                f"the shard {name!r} is missing",
                tensor=tensor,
                code="shard-missing",
                hint="Download it to the same folder.",
            )
    return sorted(first)


def read_module(beside: Source, path: str, file: int, limits: Limits) -> Shard:
    """Open the weights of a module in a subfolder."""
    return _shard(beside, MODEL_FILE, file, limits, path)


def _shard(index: Source, name: str, file: int, limits: Limits, folder: str = "") -> Shard:
    source = index.member(name, folder)
    try:
        return Shard(source, read_header(source, limits, file))
    except SquishError as error:
        raise error.within(file=source.name) from None


def _merge(places: Mapping[str, str], shards: Sequence[Shard]) -> tuple[dict[str, TensorRecord], list[Problem]]:
    """Merge the tensors of shards, and report how they differ from the index; of two copies, its own is read."""
    records: dict[str, TensorRecord] = {}
    shard_of: dict[str, str] = {}
    differences: dict[str, list[str]] = {}
    for shard in shards:
        name = shard.source.filename
        for tensor, record in shard.header.records.items():
            other, stated = shard_of.get(tensor), places.get(tensor)
            if other is not None:
                if stated not in (name, other):
                    raise _in_two_shards(tensor, shard, other)
                unread = name if stated == other else other
                differences.setdefault(f"also in {unread}, whose copy is not read", []).append(tensor)
            if other is None or stated == name:
                records[tensor], shard_of[tensor] = record, name
    for tensor, name in shard_of.items():
        if (stated := places.get(tensor)) != name:
            where = f"the index says {stated}" if stated else "the index does not list it"
            differences.setdefault(f"in {name}; {where}", []).append(tensor)
    problems = [
        Problem(
            code="shard-map",
            severity="warning",
            where=tensors[0],
            message=message + (f" ({counted(len(tensors), 'tensor')})" if len(tensors) > 1 else ""),
        )
        for message, tensors in differences.items()
    ]
    return records, [*problems, *_absent(places, shard_of)]


def _absent(places: Mapping[str, str], present: Collection[str]) -> Iterator[Problem]:
    """Report tensors in the index that no shard has."""
    absent = [tensor for tensor in places if tensor not in present]
    if absent:
        more = f", and so are {len(absent) - 1} more" if len(absent) > 1 else ""
        message = f"missing from the shard {places[absent[0]]!r}, which the index names{more}"
        yield Problem(code="shard-map", severity="error", where=absent[0], message=message)


def _in_two_shards(tensor: str, shard: Shard, other: str) -> FormatError:
    return FormatError(
        "stored in two shards, and no index names one of them for it",
        file=shard.source.name,
        tensor=tensor,
        expected=other,
        found=shard.source.filename,
        code="shard-map",
        hint="The index and the shards may belong to different models; download all of them again.",
    )


def _check_total(metadata: Any, shards: list[Shard]) -> list[Problem]:
    """Check `total_size`, the bytes of all tensors; nothing depends on it."""
    size = metadata.get("total_size") if type(metadata) is dict else None
    total = sum(length for shard in shards for *_, length in shard.header.records.values())
    if size is None or size == total:
        return []
    message = f"{str(size)[:40]}, but the tensors have {total} bytes"
    return [Problem(code="total-size", severity="warning", where="metadata.total_size", message=message)]
