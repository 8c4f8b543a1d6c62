"""A panel in memory, never a tensor: what each operation takes beside its result."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import toys

import squish_core as squish
from squish_core.codecs.regions import PANEL_BYTES

SHAPE = (8192, 1024)  # 32 MiB in f32, 8 MiB of codes
X = np.ones((2, SHAPE[1]), np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files with one large tensor, dense and quantized."""
    folder = tmp_path_factory.mktemp("large")
    values = np.random.default_rng(0).standard_normal(SHAPE, np.float32)
    (folder / "dense.box").write_bytes(toys.box({"w": values}))
    (folder / "rows.box").write_bytes(toys.box({"w": toys.rows(values)}))
    return folder


@pytest.mark.parametrize("name", ["dense.box", "rows.box"])
@pytest.mark.parametrize(
    "work",
    [
        lambda file, out: file["w"].load().linear(X),
        lambda file, out: file["w"].load().embed([0, 8191, 7]),
        lambda file, out: squish.verify(file, deep=True),
        lambda file, out: squish.convert(file, out, "toy.box"),
        lambda file, out: squish.convert(file, out, "toy.box", "f16"),
        lambda file, out: squish.convert(file, out, "toy.box", "toy.shifted"),
        lambda file, out: squish.diff(file, squish.open(out.parent / "dense.box", registry=file.registry)),
    ],
    ids=["linear", "embed", "verify", "copy", "encode f16", "encode codes", "diff"],
)
def test_a_panel_is_enough(folder: Path, name: str, work: Callable[[Any, Path], Any]) -> None:
    with squish.open(folder / name, registry=toys.registry()) as file:
        work(file, folder / "out.box")  # what is imported on first use is not counted
        tracemalloc.start()
        try:
            work(file, folder / "out.box")
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert peak < 6.5 * PANEL_BYTES  # six of eight, if all are there at once, and what is around them
