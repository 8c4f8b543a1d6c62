"""Builds a tier for the next load in a thread, while the first load reads the directory's own files.

The tier is MLX's layout for codes that it can keep, else dense weights. Tiers that need more memory than the machine
has, and widths that the model's family does not tolerate, are not built.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from squish_core.api import Encoding, File, SquishError, load_json, start_daemon
from squish_core.api import open as open_model

from . import cache, panels

INT3_FAMILIES = ("qwen3",)
"""Prefixes of `model_type` of the families that tolerate three bits.

Source: Squish architecture document, section 2, tier 0c.
"""
DENSE_MEMORY = 34 / 16
"""Memory that the machine needs for the tier of dense weights, relative to the model in bf16: 34 GB for 8B.

Source: Squish architecture document, note on tier 2.
"""
_builds: dict[str, Build] = {}
_lock = threading.Lock()


class Build:
    """A build in progress; `error` is set if it failed."""

    def __init__(self, folder: Path, tier: str) -> None:
        self.folder, self.tier = folder, tier
        self.error: SquishError | None = None
        self._thread = start_daemon(self._run, f"squish tier {tier}")

    def is_alive(self) -> bool:
        """Whether it is still in progress."""
        return self._thread.is_alive()

    def join(self) -> None:
        """Wait until it has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            cache.build(self.folder, self.tier)
        except SquishError as error:  # the model stays readable, so the load succeeds
            self.error = error


def start(folder: Path) -> Build | None:
    """Start building the next tier of a directory without tiers; None if it has one, or none can be built.

    Returns the running build if there is one.
    """
    key = os.path.realpath(folder)
    with _lock:
        if key in _builds and _builds[key].is_alive():
            return _builds[key]
        with open_model(folder, "npydir") as file:
            tier = None if file.index.caches else next_tier(file)
        if tier is None:
            return None
        _builds[key] = build = Build(folder, tier)
        return build


def wait(folder: Path) -> Build | None:
    """Wait for the build of a directory and return it; None if none was started in this process."""
    build = _builds.get(os.path.realpath(folder))
    if build is not None:
        build.join()
    return build


def next_tier(file: File) -> str | None:
    """Return the tier to build, by the codes and the size of the model; None if there is none."""
    tensors = file.index.tensors
    if not tensors or any(not spec.encodings for spec in tensors.values()):
        return None
    first = [spec.encodings[0] for spec in tensors.values()]
    if any(encoding.label in panels.LABELS and _group(encoding) in cache.MLX_GROUPS for encoding in first):
        return "4bit"
    if any(encoding.label.startswith("int3") for encoding in first) and is_int3_family(file):
        return "3bit"
    memory = total_memory()
    weights = sum(spec.elements for spec in tensors.values())
    return "mlx" if memory is None or 2 * weights * DENSE_MEMORY <= memory else "finalized"


def is_int3_family(file: File) -> bool:
    """Whether config.json declares a family that tolerates three bits."""
    if "config.json" not in file.assets:
        return False
    family = load_json(bytes(file.assets["config.json"].raw), "configuration", file.limits).get("model_type")
    return isinstance(family, str) and family.startswith(INT3_FAMILIES)


def total_memory() -> int | None:
    """Return the memory of the machine in bytes; None if the system does not report it."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def _group(encoding: Encoding) -> int:
    return int(encoding.codec.params.get("group_size", 0))
