"""Lock a computation: contents of its files and versions of its distributions, as plain data, and what changed since.

Plans, journals, workers and states of evaluations store a lock, and report the first difference.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from importlib.metadata import distributions
from typing import Any

from squish_core.display import to_json
from squish_core.file import File
from squish_core.model import CodecSpec
from squish_core.plugins.registry import Registry
from squish_core.version import __version__

from .compatible import encoder_problem
from .plan import ConversionPlan


def source_pins(source: File) -> Iterator[dict[str, Any]]:
    """Identify the current content of each file of an open source.

    Parameters
    ----------
    source
        An open file.

    Yields
    ------
    dict
        Plain data: the file's name, its size in bytes, and its modification time or what its store calls the version.

    Examples
    --------
    >>> with squish.open("model.gguf") as file:
    ...     [pin["name"] for pin in source_pins(file)]
    ['model.gguf']
    """
    for number, ref in enumerate(source.index.files):
        file = source.source_for(number)
        pin: dict[str, Any] = {"name": ref.name, "size": file.size}
        if file.pin is not None:
            pin |= {key: value for key, value in file.pin.to_dict().items() if value is not None}
        elif file.path is not None:
            pin["modified_ns"] = file.path.stat().st_mtime_ns
        yield pin


def plugin_lock(plan: ConversionPlan, source: File) -> dict[str, Any]:
    """Versions of the distributions that the conversion uses, and its encoders."""
    registry = source.registry
    used = {
        (entry.dist, entry.version) for entry in map(registry.containers.get, (source.format, plan.format)) if entry
    }
    encoders = {}
    for step in plan.steps:
        for codec in (*_chain(step.codec), *_chain(step.encoding_codec), *_chain(step.origin.codec)):
            used.add((registry.codecs[codec.id].dist, registry.codecs[codec.id].version))
        if step.action == "encode":
            encoder = step.encoding_codec
            entry = registry.encoders.get(encoder.id)
            works = entry is not None and _encodes(registry, encoder)
            encoders[encoder.id] = entry.dist if entry and works else registry.codecs[encoder.id].dist
            used |= {(entry.dist, entry.version)} if entry and works else set()
    versions = {dist: version for dist, version in used if version}
    return {"versions": {"squish-core": __version__, **versions}, "encoders": encoders}


def _encodes(registry: Registry, codec: CodecSpec) -> bool:
    return codec.inner is None and encoder_problem(registry, codec) is None


def _chain(codec: CodecSpec) -> Iterator[CodecSpec]:
    yield codec
    if codec.inner is not None:
        yield from _chain(codec.inner)


def library_versions(*names: str) -> dict[str, str]:
    """Return the versions of every distribution of Squish, and of the named libraries.

    Parameters
    ----------
    names
        Other distributions, such as "numpy".

    Returns
    -------
    dict of str to str
        Names and versions of those that are installed, sorted by name.

    Examples
    --------
    >>> sorted(library_versions("numpy"))[0]
    'numpy'
    """
    versions = {each.metadata["Name"] or "": each.version for each in distributions()}
    return {name: versions[name] for name in sorted(versions) if name in names or name.startswith("squish-")}


def differences(stored: Any, now: Any, where: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Compare two documents.

    Parameters
    ----------
    stored, now
        JSON data: from another time or process, and from this one.
    where
        The path of both in larger documents.

    Yields
    ------
    tuple of (str, Any, Any)
        The path of a difference and both values, in the order of the newer document.

    Examples
    --------
    >>> list(differences({"files": ["a", "b"]}, {"files": ["a", "c"]}))
    [('files[1]', 'b', 'c')]
    """
    if isinstance(stored, dict) and isinstance(now, dict):
        for key in (*now, *(key for key in stored if key not in now)):
            yield from differences(stored.get(key), now.get(key), f"{where}.{key}" if where else key)
    elif isinstance(stored, list) and isinstance(now, list) and len(stored) == len(now):
        for number, (old, new) in enumerate(zip(stored, now)):
            yield from differences(old, new, f"{where}[{number}]")
    elif stored != now:
        yield where, stored, now


def excerpt(value: Any) -> str:
    """Return the beginning of a value as JSON, for errors."""
    return json.dumps(to_json(value), ensure_ascii=False)[:120]
