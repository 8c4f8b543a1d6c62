"""Files around a safetensors file: index and shards of a set, and the model's other files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
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
    load_json,
)

from .header import MAX_HEADER, Header, read_header, text_of

SUFFIX, INDEX_SUFFIX = ".safetensors", ".safetensors.index.json"
UQFF_SUFFIX, UQFF_REST = ".uqff", "residual.safetensors"
STANDARD = re.compile(r"(adapter_)?model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")
SHARD = re.compile(r"(.+)-\d{5}-of-(\d{5})\.safetensors")
CONFIG_FILE = "config.json"
DECLARING = ("quantize_config.json", "quant_config.json", "hf_quant_config.json")
"""Assets other than config.json in which a method may declare its quantization."""
MAX_JSON, MAX_ENTRY = 16 << 20, 4 << 20
"""Maximum bytes of a JSON file and of one entry: a quantization may list every layer."""
MODEL_ASSETS = (
    CONFIG_FILE, "generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model",
    "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja",
    "chat_template.json", "preprocessor_config.json", "processor_config.json", *DECLARING, "adapter_config.json",
    "squish.gguf.json", "modules.json",
)  # fmt: skip
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
"""The default chat template, and the folder beside it in which Transformers saves others by name."""
POOLING_FOLDER = "1_Pooling"
POOLING = f"{POOLING_FOLDER}/{CONFIG_FILE}"
"""The pooling of an embedding model, which modules.json names."""
_NAMED_TEMPLATE = re.compile(rf"{TEMPLATES}/\w[\w.+ -]*\.jinja")
MODEL_FILES = (f"model{INDEX_SUFFIX}", f"model{SUFFIX}", f"adapter_model{SUFFIX}")
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
        Its name, with the folder of a named chat template.

    Returns
    -------
    bool
        True for config, tokenizer, chat templates and the like.

    Examples
    --------
    >>> is_model_asset("config.json"), is_model_asset("additional_chat_templates/rag.jinja"), is_model_asset("x.py")
    (True, True, False)
    """
    return name in (*MODEL_ASSETS, POOLING) or _NAMED_TEMPLATE.fullmatch(name) is not None


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
    named = folder.members(TEMPLATES) if TEMPLATE in members else ()
    pooling = [POOLING] if "modules.json" in members and folder.has(CONFIG_FILE, POOLING_FOLDER) else []
    paths = [*(name for name in MODEL_ASSETS if name in members), *(f"{TEMPLATES}/{name}" for name in named), *pooling]
    return list(filter(is_model_asset, paths))


def choose(folder: Source) -> str:
    """Return the file of a folder to open; FormatError if it is ambiguous."""
    names = folder.members(likely=MODEL_FILES)
    # Transformers reads these two alone; Mistral's own `consolidated.safetensors` may lie beside them.
    for name in (f"model{INDEX_SUFFIX}", f"model{SUFFIX}"):
        if name in names:
            return name
    indexes = [name for name in names if name.endswith(INDEX_SUFFIX)]
    candidates = indexes or [name for name in names if name.endswith(SUFFIX)]
    if candidates in ([], [UQFF_REST]):
        # The layers are next to the residual; the refinement determines the set.
        candidates = [name for name in names if name.endswith(UQFF_SUFFIX)][:1] or candidates
    if len(candidates) != 1:
        listing = ", ".join(candidates[:8]) + (f" and {len(candidates) - 8} more" if len(candidates) > 8 else "")
        raise FormatError(
            "is a folder with several safetensors files and no index"
            if candidates else "is a folder without a safetensors file",
            expected=f"one file, or one {INDEX_SUFFIX}", found=listing or None, code=ErrorCode.FOLDER,
            hint="Open one of its files." if candidates else None,
        )  # fmt: skip
    return candidates[0]


def read_set(index: Source, limits: Limits) -> tuple[list[Shard], list[Problem]]:
    """Open the shards of an index file; index and shards must agree on every tensor.

    An empty index is compared with all neighboring files, so that it cannot hide their tensors.
    """
    cap = min(limits.header, MAX_HEADER)
    if index.size > cap:
        raise LimitError("the index is too large", expected=f"at most {cap} bytes", found=index.size, code="index")
    listing = load_json(text_of(index, 0, index.size), "index", limits)
    places = listing.get("weight_map")
    if type(places) is not dict:
        raise FormatError("the index has no object weight_map", found=type(places).__name__, code="index")
    names, members = _shard_names(places, index), index.members()
    names = names or [name for name in members if name.endswith(SUFFIX)]
    shards = [_shard(index, name, file, limits) for file, name in enumerate(names)]
    _check_agreement(places, shards)
    return shards, [*_check_total(listing.get("metadata"), shards), *_unlisted(names, members)]


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
                "the names of two shards differ only in case", tensor=tensor, expected=repr(folded[name.casefold()]),
                found=repr(name), code="path",
            )  # fmt: skip
    members = frozenset(index.members(likely=sorted(first)))
    for name, tensor in first.items():
        if name not in members:
            raise FormatError(
                f"the shard {name!r} is missing", tensor=tensor, code="shard-missing",
                hint="Download it to the same folder.",
            )  # fmt: skip
    return sorted(first)


def _unlisted(names: Sequence[str], members: Sequence[str]) -> list[Problem]:
    """Warn about shards of the numbered set that the index omits."""
    listed = frozenset(names)
    sets = {match.groups() for match in map(SHARD.fullmatch, names) if match}
    message = "not in the index, although it is a shard of this set: its tensors are ignored"
    return [
        Problem(code="shard-unlisted", severity="warning", where=name, message=message)
        for name in members
        if name not in listed and (match := SHARD.fullmatch(name)) and match.groups() in sets
    ]


def _shard(index: Source, name: str, file: int, limits: Limits) -> Shard:
    source = index.member(name)
    try:
        return Shard(source, read_header(source, limits, file))
    except SquishError as error:
        raise error.within(file=source.name) from None


def _check_agreement(places: dict[str, str], shards: list[Shard]) -> None:
    shard_of: dict[str, str] = {}
    for shard in shards:
        name = shard.source.filename
        for tensor in shard.header.records:
            if shard_of.setdefault(tensor, name) != name:
                raise _disagreement(tensor, shard, "stored in two shards", shard_of[tensor])
            if places.get(tensor) != name:
                expected = places.get(tensor, "an entry in the index")
                raise _disagreement(tensor, shard, "stored in another shard than the index says", expected)
    for tensor, name in places.items():
        if tensor not in shard_of:
            raise FormatError(
                f"missing from the shard {name!r}, which the index names", tensor=tensor, code="shard-map"
            )


def _disagreement(tensor: str, shard: Shard, fault: str, expected: str) -> FormatError:
    return FormatError(
        fault, file=shard.source.name, tensor=tensor, expected=expected, found=shard.source.filename, code="shard-map",
        hint="The index and the shards may belong to different models; download all of them again.",
    )  # fmt: skip


def _check_total(metadata: Any, shards: list[Shard]) -> list[Problem]:
    """Check `total_size`, the bytes of all tensors; nothing depends on it."""
    size = metadata.get("total_size") if type(metadata) is dict else None
    total = sum(length for shard in shards for *_, length in shard.header.records.values())
    if size is None or size == total:
        return []
    message = f"{str(size)[:40]}, but the tensors have {total} bytes"
    return [Problem(code="total-size", severity="warning", where="metadata.total_size", message=message)]
