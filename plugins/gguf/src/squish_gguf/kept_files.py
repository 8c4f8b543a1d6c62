"""The files of a checkpoint in GGUF's metadata, which llama.cpp ignores: `squish.hf.<file name>`, u8, zstd."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import MAX_INLINE, FormatError, LazyAssets, Options, Part, Typed

FILE = "squish.hf."
ARCHITECTURE = "general.architecture"
"""The key that llama.cpp requires of every model."""
MOST = 256 << 20
"""Maximum size of all kept files, in bytes."""
SMALL = 1 << 16
"""Maximum size in bytes of files for the slowest compression, which takes no noticeable time up to here."""


def pack_files(files: Mapping[str, bytes]) -> dict[str, Typed]:
    """Return GGUF keys for files.

    Parameters
    ----------
    files
        Contents by name.

    Returns
    -------
    dict
        `squish.hf.<file name>` to u8 arrays, compressed with zstd.

    Examples
    --------
    >>> unpack_files(pack_files({"config.json": b"{}"}))["config.json"]
    b'{}'
    """
    import numpy as np
    import zstandard

    pack = zstandard.ZstdCompressor(level=19 if sum(map(len, files.values())) < SMALL else 3).compress
    return {f"{FILE}{name}": Typed("array:u8", np.frombuffer(pack(data), np.uint8)) for name, data in files.items()}


def unpack_files(meta: Mapping[str, Any]) -> Mapping[str, bytes]:
    """Return the files in GGUF keys, each unpacked on access.

    Parameters
    ----------
    meta
        The keys.

    Returns
    -------
    Mapping
        Contents by name.

    Raises
    ------
    FormatError
        On a lookup: a file does not unpack, or all have more than 256 MiB (code `kept`).

    Examples
    --------
    >>> list(unpack_files({"general.name": Typed("str", "tiny")}))
    []
    """
    space = MOST

    def read(name: str) -> bytes:
        nonlocal space
        data = _unpacked(f"{FILE}{name}", meta[f"{FILE}{name}"].value, space)
        space -= len(data)
        return data

    return LazyAssets((key.removeprefix(FILE) for key in meta if _is_file(key, meta)), read)


def split_files(meta: dict[str, Any]) -> tuple[dict[str, Any], Mapping[str, Part]]:
    """Return the keys and the files in them, for a GGUF that is not a model; those of a model are all keys."""
    if ARCHITECTURE in meta or not any(_is_file(key, meta) for key in meta):
        return meta, {}
    files = unpack_files(meta)

    def read(name: str) -> Part:
        return Part(dtype="u8", shape=(len(files[name]),), data=files[name])

    return {key: value for key, value in meta.items() if not _is_file(key, meta)}, LazyAssets(files, read)


def keeps_files(meta: Mapping[str, Any], options: Options) -> bool:
    """Return whether files are stored with these keys: not for a model, whose keys describe the files."""
    return ARCHITECTURE not in meta and options.get("keep") != "no"


def small_files(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """Return the files that are small enough to compress while planning, so that the plan has their packed size."""
    return {name: data for name in files if len(data := files[name]) <= MAX_INLINE}


def _is_file(key: str, meta: Mapping[str, Any]) -> bool:
    return key.startswith(FILE) and isinstance(meta[key], Typed) and meta[key].type == "array:u8"


def _unpacked(key: str, packed: Any, space: int) -> bytes:
    """Return a stored file of at most `space` bytes."""
    import numpy as np
    import zstandard

    raw = np.asarray(packed, np.uint8).tobytes()
    try:
        if zstandard.frame_content_size(raw) <= space:
            return bytes(zstandard.ZstdDecompressor().decompress(raw, max_output_size=space))
    except zstandard.ZstdError as error:
        raise FormatError(
            "is a kept file that cannot be decompressed", part=key, found=str(error), code="kept"
        ) from None
    raise FormatError("is a kept file that is too large", part=key, expected=f"at most {space} bytes", code="kept")
