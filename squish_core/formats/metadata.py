"""Typed metadata and assets as one CBOR block (key `squish.meta`), for formats that cannot store them."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

from squish_core.errors import FormatError
from squish_core.limits import Limits
from squish_core.model import Typed

NAME = "squish.meta"


def untyped(value: Any) -> Any:
    """Return a metadata value without its stored type."""
    return value.value if isinstance(value, Typed) else value


def dump_meta(meta: Mapping[str, Any], assets: Mapping[str, bytes]) -> bytes:
    """Encode metadata and assets as one block of bytes; order, types and array values are preserved.

    Parameters
    ----------
    meta
        Metadata: plain values, and `Typed` ones.
    assets
        File name -> content.

    Returns
    -------
    bytes
        CBOR; `load_meta` decodes it.

    Examples
    --------
    >>> load_meta(dump_meta({"author": "me"}, {"config.json": b"{}"}), squish.Limits())
    ({'author': 'me'}, {'config.json': b'{}'})
    """
    import cbor2

    entries = [[key, *_flat(value)] for key, value in meta.items()]
    return cbor2.dumps({"v": 1, "meta": entries, "assets": dict(assets)})


def load_meta(data: bytes | memoryview, limits: Limits) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Decode the output of `dump_meta`.

    Parameters
    ----------
    data
        The block.
    limits
        Limits to check.

    Returns
    -------
    meta : dict
        Metadata, with `Typed` values.
    assets : dict
        File name -> content.

    Raises
    ------
    FormatError
        The bytes are not a metadata block (code `meta`).

    Examples
    --------
    >>> load_meta(dump_meta({"layers": 2}, {}), squish.Limits())
    ({'layers': 2}, {})
    """
    import cbor2

    try:
        block = cbor2.loads(bytes(data), max_depth=limits.depth, allow_duplicate_keys=False)
        if block["v"] != 1:
            raise ValueError(f"version {block['v']}")
        meta = {key: (Typed(kind, _unpacked(kind, value)) if kind else value) for key, kind, value in block["meta"]}
        assets = dict(block["assets"])
        if not all(isinstance(key, str) for key in (*meta, *assets)):
            raise TypeError("a key is not text")
        if not all(isinstance(blob, bytes) for blob in assets.values()):
            raise TypeError("an asset is not bytes")
        return meta, assets
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, cbor2.CBORError) as error:
        raise FormatError("cannot read the block squish.meta", tensor=NAME, found=str(error), code="meta") from None


def _flat(value: Any) -> tuple[str | None, Any]:
    if not isinstance(value, Typed):
        return None, value
    if value.type.startswith("array:"):
        return value.type, _packed(value.type[6:], value.value)
    if isinstance(value.value, float) and value.value != value.value:
        return value.type, struct.pack("<d", value.value)  # CBOR has only one NaN; bytes keep the payload
    return value.type, value.value


def _packed(kind: str, values: Any) -> Any:
    """Pack numbers as little-endian bytes (compact, and NaN payloads survive), other values as lists."""
    import numpy as np

    from squish_core import dtypes

    if dtypes.is_dtype(kind) and kind != "bool":
        return np.asarray(values, dtypes.to_numpy(kind)).tobytes()
    if kind.startswith("array:"):
        return [_packed(kind[6:], inner) for inner in values]
    return list(values)


def _unpacked(kind: str, value: Any) -> Any:
    import numpy as np

    from squish_core import dtypes

    if not kind.startswith("array:"):
        nan = kind in dtypes.FLOATS and isinstance(value, bytes) and len(value) == 8
        return struct.unpack("<d", value)[0] if nan else value
    kind = kind[6:]
    if dtypes.is_dtype(kind) and kind != "bool":
        return np.frombuffer(value, dtypes.to_numpy(kind))
    if kind.startswith("array:"):
        return [_unpacked(kind, inner) for inner in value]
    return list(value)
