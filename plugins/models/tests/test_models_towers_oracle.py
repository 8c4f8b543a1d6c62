"""Vision towers have the names, values and keys of llama.cpp's converter."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import peer, towers

import squish_core as squish

pytestmark = pytest.mark.oracle
OF_THE_FOLDER = ("general.name", "general.size_label")
"""Keys that the converter takes from the folder's name, and its count of values."""
F16 = {"gemma3": ("mm.input_projection.weight",)}
"""Tensors that the converter rounds to f16 even in a file of f32."""


def keys_of(file: squish.File) -> dict[str, Any]:
    values = {key: getattr(value, "value", value) for key, value in file.index.meta.items()}
    others = {key: value for key, value in values.items() if not key.startswith("squish.") and key not in OF_THE_FOLDER}
    return {key: np.asarray(value).tolist() for key, value in others.items()}


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


def computed(folder: str) -> dict[str, Any]:
    """What Transformers loads and computes; runs in the peer."""
    import torch
    from transformers import AutoModelForImageTextToText

    model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    model.eval()
    size = model.config.vision_config.image_size
    pixels = torch.linspace(-1, 1, 3 * size * size).reshape(1, 3, size, size)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits
        many = hasattr(model.model, "connector")  # with images of several parts
        images = model.model.get_image_features(pixels[None] if many else pixels)
        images = getattr(images, "pooler_output", images)
        images = torch.cat(list(images)) if isinstance(images, (list, tuple)) else images
    lost = [*info["missing_keys"], *info["unexpected_keys"]]
    return {"logits": logits.numpy(), "images": images.numpy(), "lost": sorted(lost)}


@pytest.mark.parametrize("name", ["gemma3", "smolvlm", "idefics3"])
@pytest.mark.parametrize("tower", ["ours", "theirs"])
def test_a_joined_folder_computes_the_same_in_transformers(name: str, tower: str, tmp_path: Path) -> None:
    folder, keep = towers.make(name, tmp_path / "model"), "" if tower == "ours" else ":keep=no"
    squish.convert(folder, tmp_path / "text.gguf", f"gguf{keep}", rename="gguf")
    if tower == "ours":
        squish.convert(folder, tmp_path / "mmproj.gguf", part="vision")
    else:
        towers.convert(folder, tmp_path / "mmproj.gguf")
    joined = {"part": {"vision": tmp_path / "mmproj.gguf"}, "rename": "hf"}
    squish.convert(tmp_path / "text.gguf", tmp_path / "joined", "hf", **joined)
    source, back = (peer("torch").run(computed, folder=str(each)) for each in (folder, tmp_path / "joined"))
    assert back["lost"] == []
    assert np.array_equal(source["logits"], back["logits"])
    rounded = name in F16 and tower == "theirs"
    assert np.abs(source["images"] - back["images"]).max() <= (2e-3 if rounded else 0)
