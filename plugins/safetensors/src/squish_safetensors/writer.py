"""Writes safetensors: a file, or a folder with shards, an index and the model's other files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attrs import frozen

from squish_core.api import (
    Dropped,
    Encoding,
    ErrorCode,
    FormatError,
    Options,
    OutgoingTensor,
    Part,
    Refusal,
    Sink,
    TensorSpec,
    Typed,
    dropped_assets,
    dropped_metadata,
    dtypes,
)

from .folder import CONFIG_FILE, INDEX_SUFFIX, MODEL_FILE, MODULE, SUFFIX, is_model_asset
from .header import DTYPE_ORDER, DTYPE_TAGS, METADATA, dump_header

MAX_SHARD_SIZE = "max_shard_size"
PLACES = "places"
"""In the options of an edit: JSON of the file of each tensor."""
ADAPTER_CONFIG, ADAPTER_FILE = "adapter_config.json", "adapter_model.safetensors"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30}


@frozen
class PlannedFile:
    """An outgoing file: its name, tensors in data order, and header; `folder`: that of a module, if it is one's."""

    name: str
    specs: tuple[TensorSpec, ...]
    header: bytes
    folder: str = ""

    @property
    def data(self) -> int:
        """Total size of the tensors in bytes."""
        return sum(_nbytes(spec) for spec in self.specs)


def accepts_dense(spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
    """Accept dense values of supported dtypes, or refuse with a hint.

    Parameters
    ----------
    spec : TensorSpec
        The tensor to write.
    encoding : Encoding
        The encoding to store it in.

    Returns
    -------
    Encoding or Refusal
        The encoding with the stored part; u8 of the packed bytes for dtypes of less than 8 bits.

    Examples
    --------
    >>> from squish_core.api import DENSE
    >>> spec = TensorSpec(name="up", shape=(4, 8), dtype="f32")
    >>> accepts_dense(spec, Encoding(codec=DENSE, parts={"data": Part(dtype="f32", shape=())})).parts["data"].shape
    (4, 8)
    """
    dtype = encoding.codec.params.get("dtype", spec.dtype)
    if encoding.codec.id != "dense" or set(encoding.parts) != {"data"}:
        return Refusal(why="safetensors stores only dense arrays", code="dense-only")
    if dtype not in DTYPE_TAGS:
        return Refusal(why=f"safetensors has no dtype {dtype}", code="dense-only")
    if dtypes.count(spec.shape) * dtypes.bits(dtype) % 8:
        why = f"{dtypes.count(spec.shape)} packed elements of {dtype} are not a whole number of bytes"
        return Refusal(why=why, code="dense-only")
    if spec.name == METADATA or not _encodable(spec.name):
        return Refusal(why=f"safetensors does not allow the tensor name {spec.name!a}", code="name")
    packed = dtypes.bits(dtype) < 8
    part = (
        Part(dtype="u8", shape=(dtypes.nbytes(dtype, spec.shape),)) if packed else Part(dtype=dtype, shape=spec.shape)
    )
    return Encoding(codec=encoding.codec, parts={"data": part})


def dropped_files(assets: Iterable[str], options: Options) -> tuple[Dropped, ...]:
    """Return the assets that are not written."""
    carried = _carried_assets(assets, options)
    return dropped_assets(name for name in assets if name not in carried)


def write(
    sink: Sink,
    tensors: Sequence[OutgoingTensor],
    meta: Mapping[str, Any],
    assets: Mapping[str, bytes],
    options: Options,
    *,
    in_order: bool = False,
) -> None:
    """Write the file, or all files of a folder with the index last: a folder without it is incomplete.

    With `in_order`, data are in the order of `tensors` as far as alignment permits, so that parts encoded together are
    written together.
    """
    adapter = is_adapter(assets, options)
    files = plan([tensor.spec for tensor in tensors], meta, options, in_order, adapter)
    by_name = {tensor.spec.name: tensor for tensor in tensors}
    if MAX_SHARD_SIZE not in options:
        _write_file(sink, files[0], by_name)
        return
    for file in files:
        with sink.member(file.name, file.folder) as member:
            _write_file(member, file, by_name)
    for path in _carried_assets(assets, options):
        folder, _, name = path.rpartition("/")
        with sink.member(name, folder) as member:
            member.write(assets[path])
    if not adapter and not (PLACES in options and [file.name for file in files if not file.folder] == [MODEL_FILE]):
        with sink.member("model" + INDEX_SUFFIX) as member:
            member.write(_index_json(files))


def plan(
    specs: Sequence[TensorSpec],
    meta: Mapping[str, Any],
    options: Options,
    in_order: bool = False,
    adapter: bool = False,
) -> list[PlannedFile]:
    """Plan the files.

    Shards are filled in the order of the tensors. Within a file, data are ordered like in the reference implementation:
    dtypes by decreasing alignment, then names. With `in_order`, tensors with a multiple of 8 bytes come first in their
    order, since they preserve alignment. An adapter is the single file that PEFT loads.
    """
    limit = parse_size(options[MAX_SHARD_SIZE]) if MAX_SHARD_SIZE in options and not adapter else None
    modules: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        folder = spec.name.partition("/")[0] if limit is not None and _IN_MODULE.match(spec.name) else ""
        modules.setdefault(folder, []).append(spec)
    own = modules.pop("", [])
    if PLACES in options:
        files_of: dict[str, list[TensorSpec]] = {}
        named = json.loads(options[PLACES])
        for spec in own:
            files_of.setdefault(named[spec.name], []).append(spec)
        places = [("", name, group) for name, group in files_of.items()]
    else:
        groups = _shard_groups(own, limit)
        count = len(groups)
        places = [("", f"model-{number:05}-of-{count:05}{SUFFIX}", group) for number, group in enumerate(groups, 1)]
    places += [(folder, MODEL_FILE, group) for folder, group in modules.items()]
    files = []
    for folder, name, group in places:
        by_alignment = tuple(
            sorted(group, key=lambda spec: _ALIGNED if in_order and _nbytes(spec) % 8 == 0 else _place(spec))
        )
        entries = [(_name_in(folder, spec), _dtype(spec), spec.shape) for spec in by_alignment]
        header = dump_header(entries, text_metadata(meta))
        files.append(PlannedFile(ADAPTER_FILE if adapter else name, by_alignment, header, folder))
    return files


def _name_in(folder: str, spec: TensorSpec) -> str:
    """Return the name of a tensor in the file of a module, or in the model's own."""
    return spec.name.removeprefix(f"{folder}/") if folder else spec.name


def is_adapter(assets: Iterable[str], options: Options) -> bool:
    """Return whether these files are a PEFT adapter."""
    return MAX_SHARD_SIZE in options and ADAPTER_CONFIG in assets and CONFIG_FILE not in assets


_IN_MODULE = re.compile(rf"{MODULE.pattern}/.")
_ALIGNED = (-len(DTYPE_ORDER), "")


def _place(spec: TensorSpec) -> tuple[int, str]:
    return -DTYPE_ORDER[_dtype(spec)], spec.name


def parse_size(text: str) -> int:
    """Parse a size such as `5GB` (decimal), `500MiB` (binary) or a number of bytes.

    Parameters
    ----------
    text : str
        The size.

    Returns
    -------
    int
        Bytes.

    Raises
    ------
    FormatError
        `option` if it is not a size, or 0.

    Examples
    --------
    >>> parse_size("5GB"), parse_size("500 MiB"), parse_size("4096")
    (5000000000, 524288000, 4096)
    """
    match = re.fullmatch(r"(\d{1,15})\s*([A-Za-z]*)", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if not match or unit is None or not int(match[1]):
        raise FormatError(
            f"invalid value of {MAX_SHARD_SIZE}",
            expected="a size such as 5GB or 500MiB",
            found=repr(text),
            code=ErrorCode.OPTION,
        )
    return int(match[1]) * unit


def _shard_groups(specs: Sequence[TensorSpec], limit: int | None) -> list[list[TensorSpec]]:
    """Group tensors up to `limit` bytes; a larger tensor has its own group."""
    if limit is None:
        return [[*specs]]
    groups: list[list[TensorSpec]] = [[]]
    filled = 0
    for spec in specs:
        size = _nbytes(spec)
        if groups[-1] and filled + size > limit:
            groups.append([])
            filled = 0
        groups[-1].append(spec)
        filled += size
    return groups


def _write_file(sink: Sink, file: PlannedFile, tensors: Mapping[str, OutgoingTensor]) -> None:
    sink.reserve(len(file.header) + file.data)
    sink.write(file.header)
    for spec in file.specs:
        tensors[spec.name].parts["data"].write_to(sink)


def _index_json(files: Sequence[PlannedFile]) -> bytes:
    own = [file for file in files if not file.folder]
    places = {spec.name: file.name for file in own for spec in file.specs}
    listing = {"metadata": {"total_size": sum(file.data for file in own)}, "weight_map": places}
    return (json.dumps(listing, ensure_ascii=False, indent=2, sort_keys=True) + "\n").encode()


def text_metadata(meta: Mapping[str, Any]) -> dict[str, str]:
    """Return the text metadata, in order.

    Parameters
    ----------
    meta : mapping
        Metadata of any types.

    Returns
    -------
    dict of str to str
        Entries that a header can store.

    Examples
    --------
    >>> text_metadata({"format": "pt", "layers": 2})
    {'format': 'pt'}
    """
    texts = {key: value.value if isinstance(value, Typed) else value for key, value in meta.items()}
    return {
        key: value for key, value in texts.items() if isinstance(value, str) and _encodable(value) and _encodable(key)
    }


def dropped_non_text(meta: Mapping[str, Any]) -> tuple[Dropped, ...]:
    """Return the non-text metadata, which a header cannot store.

    Parameters
    ----------
    meta : mapping
        Metadata of any types.

    Returns
    -------
    tuple of Dropped
        One for each entry that `text_metadata` omits.

    Examples
    --------
    >>> [item.name for item in dropped_non_text({"format": "pt", "layers": 2})]
    ['layers']
    """
    text = text_metadata(meta)
    return dropped_metadata((key for key in meta if key not in text), "not text")


def _carried_assets(assets: Iterable[str], options: Options) -> list[str]:
    """Return the assets of a folder; a single file has none."""
    return [name for name in assets if MAX_SHARD_SIZE in options and is_model_asset(name)]


def _encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _dtype(spec: TensorSpec) -> str:
    return str(spec.encodings[0].codec.params.get("dtype", spec.dtype))


def _nbytes(spec: TensorSpec) -> int:
    return dtypes.nbytes(_dtype(spec), spec.shape)
