"""Directories: those that Squish itself wrote, and small ones by hand."""

from __future__ import annotations

import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

DATA = Path(__file__).with_name("data")


@pytest.fixture(scope="session")
def squish_wrote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden directories, unpacked."""
    folder = tmp_path_factory.mktemp("squish")
    with tarfile.open(DATA / "squish-9.34.15.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def make(folder: Path, tensors: Mapping[str, Mapping[str, Any]], *, ready: bool = True) -> Path:
    """A directory of tensors given as {suffix: array}; `shape` may be a plain tuple."""
    (folder / "tensors").mkdir(parents=True)
    manifest = {name: name.replace(".", "__") for name in tensors}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2))
    for name, files in tensors.items():
        for suffix, array in files.items():
            stored = np.array(array, np.int64) if suffix == "shape" else np.asarray(array)
            np.save(folder / "tensors" / f"{manifest[name]}__{suffix}.npy", stored)
    if ready:
        (folder / "tensors" / ".manifest_ready").touch()
    return folder


def int8(shape: tuple[int, ...] = (4, 8), seed: int = 0) -> dict[str, Any]:
    """The files of a tensor in INT8 by rows."""
    rng = np.random.default_rng(seed)
    matrix = (int(np.prod(shape[:-1])), shape[-1]) if shape else (1, 1)
    return {
        "q": rng.integers(-127, 128, matrix).astype(np.int8), "s": rng.random(matrix[0], np.float32), "shape": shape,
    }  # fmt: skip
