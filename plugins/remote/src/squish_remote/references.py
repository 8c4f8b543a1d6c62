"""Reference manifests (kerchunk JSON, version 1): tensors as zarr arrays over byte ranges of the checkpoint's files."""

from __future__ import annotations

import json
import os
from typing import Any

from squish_convert.api import VirtualSource

from squish_core.api import DENSE, File, Part, SquishError, Tensor, UsageError, dtypes, redact

ZARR_DTYPES = {
    "f64": "float64", "f32": "float32", "f16": "float16", "i64": "int64", "i32": "int32", "i16": "int16", "i8": "int8",
    "u64": "uint64", "u32": "uint32", "u16": "uint16", "u8": "uint8", "bool": "bool", "complex64": "complex64",
    "complex128": "complex128",
}  # fmt: skip
"""Dtypes with a zarr v3 name; others become bytes."""


def manifest(file: File, address: str) -> dict[str, Any]:
    """Build the reference manifest of a file.

    A dense tensor is an array of its dtype and shape. A part of a quantized tensor, or a tensor of a dtype without a
    zarr name, is an array of bytes with the encoding in its attributes, which zarr does not decode.

    Parameters
    ----------
    file
        An open file.
    address
        Path or URL for readers; the files of a folder are below it. For a file presented in another format
        (`squish.as_format`), the address of the stored file.

    Returns
    -------
    dict
        The manifest, for JSON.

    Raises
    ------
    UsageError
        A part is not one contiguous range of a stored file (code `reference`).
    """
    if redact(address) != address:
        raise UsageError(
            "an address with secrets cannot be stored",
            found=redact(address),
            code="reference",
            hint="Pass it without user, password and query; readers of the manifest use their own credentials.",
        )
    stored = file.source.origin if isinstance(file.source, VirtualSource) else file
    files = [_pin(stored, number) for number in range(len(stored.index.files))]
    attributes = {"squish": {"format": file.format, "files": files}}
    references: dict[str, Any] = {"zarr.json": _text({"node_type": "group", "attributes": attributes})}
    for name, tensor in file.items():
        if name.startswith("/") or any(piece in ("", ".", "..") for piece in name.split("/")):
            raise UsageError("a name cannot be a path in zarr", tensor=name, code="reference")
        for path, array, part in _arrays(name, tensor):
            references[f"{path}/zarr.json"] = _text(array)
            references[f"{path}/{_chunk(array)}"] = _range(file, address, part, name)
    return {"version": 1, "refs": references}


def _arrays(name: str, tensor: Tensor) -> list[tuple[str, dict[str, Any], Part]]:
    """Return the path, metadata and part of each array of a tensor."""
    encoding = tensor.spec.encodings[0]
    if encoding.codec == DENSE and tensor.spec.dtype in ZARR_DTYPES:
        part = encoding.parts["data"]
        return [(name, _array(part, ZARR_DTYPES[tensor.spec.dtype], tensor.shape, {}), part)]
    facts = {"codec": str(encoding.codec), "dtype": str(tensor.dtype), "shape": list(tensor.shape)}
    return [
        (
            f"{name}/{role}",
            _array(
                part,
                "uint8",
                (part.nbytes,),
                {"squish": {**facts, "part": role, "part_dtype": part.dtype, "part_shape": list(part.shape)}},
            ),
            part,
        )
        for role, part in encoding.parts.items()
    ]


def _array(part: Part, dtype: str, shape: tuple[int, ...], attributes: dict[str, Any]) -> dict[str, Any]:
    has_byteorder = dtypes.bits(part.dtype) > 8 and dtype != "uint8"
    bytes_codec: dict[str, Any] = {"name": "bytes"}
    if has_byteorder:
        bytes_codec["configuration"] = {"endian": "big" if part.byteorder == ">" else "little"}
    return {
        "node_type": "array",
        "shape": list(shape),
        "data_type": dtype,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [max(size, 1) for size in shape]}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": False if dtype == "bool" else [0.0, 0.0] if dtype.startswith("complex") else 0,
        "codecs": [bytes_codec],
        "attributes": attributes,
    }


def _chunk(array: dict[str, Any]) -> str:
    return "/".join(["c", *("0" for _ in array["shape"])])


def _range(file: File, address: str, part: Part, name: str) -> list[Any] | str:
    """Return the address, offset and length of a part."""
    if not part.nbytes:
        return ""
    if part.filters or part.data is not None or len(part.segments) != 1:
        raise UsageError(
            "does not lie in one range of a file",
            file=file.name,
            tensor=name,
            code="reference",
            found="compressed bytes" if part.filters else f"{len(part.segments)} ranges",
            hint="Convert the file to raw tensors first, for example to safetensors.",
        )
    (segment,) = part.segments
    source = file.source_for(segment.file)
    if isinstance(source, VirtualSource):
        copied = source.copied_part(segment.offset, segment.length)
        if copied is None:
            raise UsageError(
                "is computed, so no range of the source has its bytes",
                file=file.name,
                tensor=name,
                code="reference",
                hint="Serve the file (`squish serve`) and refer to that address, or write it with `squish convert`.",
            )
        return _range(source.origin, address, copied, name)
    ref = file.index.files[segment.file]
    base = address.rstrip("/") if file.source.is_dir else os.path.dirname(address)
    is_alone = not file.source.is_dir and ref.name == file.source.filename
    return [address if is_alone else f"{base}/{ref.name}" if base else ref.name, segment.offset, segment.length]


def _pin(file: File, number: int) -> dict[str, Any]:
    source = file.source_for(number)
    pin = {} if source.pin is None else {key: value for key, value in source.pin.to_dict().items() if value is not None}
    return {"name": file.index.files[number].name, "size": source.size, **pin}


def _text(metadata: dict[str, Any]) -> str:
    try:
        return json.dumps({"zarr_format": 3, **metadata}, ensure_ascii=False)
    except ValueError as error:
        raise SquishError(f"cannot be written as JSON: {error}", code="reference") from None
