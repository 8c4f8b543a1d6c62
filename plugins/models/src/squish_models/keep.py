"""What a target has no place for and its engine ignores: files inside GGUF, and keys beside config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import zstandard

from squish_core.api import FormatError, Model, Typed

FILE = "squish.hf."
"""Key of a file of the source in GGUF: u8, compressed with zstd."""
KEYS_FILE = "squish.gguf.json"
"""File of the keys of a GGUF that config.json and the tokenizer do not give back."""
MOST = 256 << 20
"""Bytes of a kept file."""


def kept_files(assets: Mapping[str, bytes]) -> dict[str, Typed]:
    """The files as values of GGUF keys."""
    pack = zstandard.ZstdCompressor(level=19 if sum(map(len, assets.values())) < 1 << 20 else 6).compress
    return {
        f"{FILE}{name}": Typed("array:u8", np.frombuffer(pack(data), np.uint8))
        for name, data in assets.items() if name != KEYS_FILE
    }  # fmt: skip


def restored_files(meta: Mapping[str, Any]) -> dict[str, bytes]:
    """The files that GGUF keys hold; FormatError for one that does not unpack."""
    files = {}
    for key, value in meta.items():
        if key.startswith(FILE) and isinstance(value, Typed) and value.type == "array:u8":
            packed = np.asarray(value.value, np.uint8).tobytes()
            try:
                if zstandard.frame_content_size(packed) > MOST:
                    raise FormatError(
                        "is a kept file of more bytes than are read", part=key, expected=f"at most {MOST}", code="kept"
                    )
                files[key.removeprefix(FILE)] = zstandard.ZstdDecompressor().decompress(packed, max_output_size=MOST)
            except zstandard.ZstdError as error:
                raise FormatError(
                    "is a kept file that does not unpack", part=key, found=str(error), code="kept"
                ) from None
    return files


def kept_keys(meta: Mapping[str, Any], rebuilt: Mapping[str, Any]) -> dict[str, bytes]:
    """The file of the keys that are not rebuilt as they are, with the order of all."""
    lost = {
        key: {"type": value.type, "value": _plain(value)}
        for key, value in meta.items()
        if isinstance(value, Typed) and not key.startswith(FILE) and not _same(rebuilt.get(key), value)
    }
    order = [key for key in meta if not key.startswith(FILE)]
    if not lost and order == list(rebuilt):
        return {}
    return {KEYS_FILE: json.dumps({"version": 1, "keys": lost, "order": order}, ensure_ascii=False).encode()}


def restored_keys(model: Model, rebuilt: Mapping[str, Any]) -> dict[str, Any]:
    """The rebuilt keys with those that were kept beside config.json, in the order of the GGUF they came from."""
    if KEYS_FILE not in model.assets:
        return dict(rebuilt)
    stored = model.config(KEYS_FILE)
    keys, order = stored.get("keys"), stored.get("order")
    if not isinstance(keys, dict) or not isinstance(order, list):
        raise FormatError("has no keys and order", part=KEYS_FILE, code="kept")
    own = {key: _typed(key, value) for key, value in keys.items()}
    merged = {**own, **{key: value for key, value in rebuilt.items() if key not in own}}
    first = {key: merged[key] for key in order if isinstance(key, str) and key in merged}
    return {**first, **merged}


def _plain(value: Typed) -> Any:
    inner = value.value
    return (
        inner.tolist() if isinstance(inner, np.ndarray) else list(inner) if value.type.startswith("array:") else inner
    )


def _typed(key: str, stored: Any) -> Typed:
    if not isinstance(stored, dict) or set(stored) != {"type", "value"} or not isinstance(stored["type"], str):
        raise FormatError("is no typed value", part=f"{KEYS_FILE} {key}"[:200], code="kept")
    return Typed(stored["type"], stored["value"])


def _same(one: Any, other: Typed) -> bool:
    return isinstance(one, Typed) and one.type == other.type and np.array_equal(one.value, other.value)
