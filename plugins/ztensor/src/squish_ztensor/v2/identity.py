"""The content digest of v2, independent of offsets, alignment, encoding and shards (wires 6.7)."""

from __future__ import annotations

from typing import Any

from squish_core.api import Digest, ErrorCode, FormatError, Limits, Source

from ..v1.manifest import read_manifest
from ..wire import locate
from . import deterministic


def content_digest(source: Source, limits: Limits | None = None, *, algorithm: str = "sha256") -> str:
    """Return a digest of the content of a v2 file: digests, shapes, layouts and attributes of its parts.

    Reads the manifest only. Two files with equal content have the same digest if their parts' digests are of the same
    kind.

    Parameters
    ----------
    source
        The file, such as `squish_core.api.open_source(path)`.
    limits
        Limits for reading the manifest.
    algorithm
        Kind of digest: sha256 or xxh3.

    Returns
    -------
    str
        `<algorithm>:<hex>`.

    Raises
    ------
    FormatError
        The file is not zTensor v2, or a part has no digest.

    Examples
    --------
    >>> import numpy as np, squish_core as squish, tempfile
    >>> from pathlib import Path
    >>> from squish_core.api import open_source
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "model.zt")
    ...     _ = squish.save(path, {"a": np.zeros(3, np.float32)}, format="ztensor:wire=2")
    ...     content_digest(open_source(path))[:15]
    'sha256:021d7f48'
    """
    limits = limits or Limits()
    location = locate(source, limits)
    if location.wire != "2":
        raise FormatError(
            "no content digest: the file is not zTensor v2",
            file=source.name,
            code="version",
            hint="Convert it: `squish convert OLD NEW --to ztensor:wire=2`.",
        )
    read_manifest(source, limits)  # raises if the file is damaged
    root = (
        deterministic.decode(source.read(location.offset, location.length), location.offset, limits)
        if location.length
        else {}
    )
    objects = {name: _object(name, record, source) for name, record in root.get("objects", {}).items()}
    digest = Digest(algorithm)
    digest.update(deterministic.encode(["zt.content/1", objects]))
    return str(digest)


def _object(name: str, record: dict[str, Any], source: Source) -> dict[str, Any]:
    parts = {}
    for role, part in record["parts"].items():
        if "digest" not in part:
            message = "no content digest: this part has no digest"
            raise FormatError(message, file=source.name, tensor=name, part=role, code=ErrorCode.DIGEST)
        parts[role] = {key: part[key] for key in ("dtype", "type", "digest") if key in part}
    entry: dict[str, Any] = {key: record[key] for key in ("shape", "layout", "attributes") if key in record}
    return {**entry, "parts": parts}
