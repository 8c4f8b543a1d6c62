"""Vision towers have the names, values and keys of llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import towers

import squish_core as squish

pytestmark = pytest.mark.oracle
OF_THE_FOLDER = ("general.name", "general.size_label")
"""Keys that the converter takes from the folder's name, and its count of values."""
F16 = {"gemma3": ("mm.input_projection.weight",)}
"""Tensors that the converter rounds to f16 even in a file of f32."""


def keys_of(file: squish.File) -> dict[str, Any]:
    values = {key: getattr(value, "value", value) for key, value in file.index.meta.items()}
    return {key: np.asarray(value).tolist() for key, value in values.items() if key not in OF_THE_FOLDER}


@pytest.mark.parametrize("name", towers.MODELS)
def test_a_tower_is_that_of_the_converter(name: str, tmp_path: Path) -> None:
    folder = towers.make(name, tmp_path / "model")
    theirs = towers.convert(folder, tmp_path / "theirs.gguf")
    squish.convert(folder, tmp_path / "ours.gguf", part="vision")
    with squish.open(theirs) as one, squish.open(tmp_path / "ours.gguf") as other:
        assert {*one} == {*other}
        for tensor in one:
            value = other[tensor].numpy()
            rounded = value.astype(np.float16) if tensor in F16.get(name, ()) else value
            assert np.array_equal(one[tensor].numpy(), rounded), tensor
        assert keys_of(one) == keys_of(other)
