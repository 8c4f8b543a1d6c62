"""Vision towers have the names, values, types and keys of llama.cpp's converter, and its engine's embeddings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import families, images, peer, towers, towers_qwen, towers_vl

import squish_core as squish

pytestmark = pytest.mark.oracle
OF_THE_FOLDER = ("general.name", "general.size_label")
"""Keys that the converter takes from the folder's name, and its count of values."""
F16 = {"gemma3": ("mm.input_projection.weight",)}
"""Tensors that the converter rounds to f16 even in a file of f32."""
BREAK = "v.token_embd.img_break"
ADDED = {"mistral3": {BREAK}, "llava": {BREAK}}
"""Tensors that the converter leaves out, although llama.cpp does not load the file without them."""
KEYS = {name: {"clip.use_gelu": True} for name in ("gemma4", "gemma4-clipped")}
"""Keys that the converter leaves out, although llama.cpp computes another activation without them."""
ENCODED = {
    "mistral3": ((112, 84), 3e-3), "llava": ((112, 84), 6e-3), "gemma3": ((56, 56), 3e-3),
    "internvl": ((56, 56), 3e-3),
    "lfm2_vl": ((288, 320), 3e-3),
    "gemma4": ((480, 576), 3e-3),
    "gemma4-clipped": ((480, 576), 3e-3),
    "kimi_vl": ((112, 112), 3e-3), "kimi_k25": ((112, 112), 3e-3),
    **towers_qwen.ENCODED,
}  # fmt: skip
"""Tower -> height and width of an image that llama.cpp encodes without resizing it, and the largest difference of an
embedding in Transformers, which is that of llama.cpp's GELU, rounded to f16."""
MOVED = ("internvl",)
"""Towers whose patches get the position of the patch before in llama.cpp."""


def keys_of(file: squish.File) -> dict[str, Any]:
    values = {key: getattr(value, "value", value) for key, value in file.index.meta.items()}
    others = {key: value for key, value in values.items() if not key.startswith("squish.") and key not in OF_THE_FOLDER}
    return {key: np.asarray(value).tolist() for key, value in others.items()}


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("name", towers.MODELS)
def test_a_tower_is_that_of_the_converter(name: str, dtype: str, tmp_path: Path) -> None:
    folder = towers.make(name, tmp_path / "model")
    theirs = towers.convert(folder, tmp_path / "theirs.gguf", dtype)
    squish.convert(folder, tmp_path / "ours.gguf", part="vision", encode=None if dtype == "f32" else dtype)
    with squish.open(theirs) as one, squish.open(tmp_path / "ours.gguf") as other:
        assert {*one} | ADDED.get(name, set()) == {*other}
        for tensor in one:
            expected, value = one[tensor].numpy(), other[tensor].numpy()
            if tensor in F16.get(name, ()):
                assert np.allclose(expected, value, rtol=2.0**-8)
                continue
            assert one[tensor].dtype == other[tensor].dtype, tensor
            assert np.array_equal(expected, value), tensor
        assert {**keys_of(one), **KEYS.get(name, {})} == keys_of(other)


@pytest.fixture(scope="module")
def text_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model beside which llama.cpp loads any tower of its width."""
    folder = tmp_path_factory.mktemp("text")
    squish.convert(families.make("llama", folder / "model"), folder / "text.gguf")
    return folder / "text.gguf"


def with_mergers(name: str, folder: Path) -> Path:
    """A text model that takes the output of a tower's other mergers, too, into its first layers."""
    squish.convert(
        families.make(name, folder / "text", vision_config=towers.MODELS[name]["config"]["vision_config"]),
        folder / "text.gguf",
    )
    return folder / "text.gguf"


def rotate_as_the_model(tower: Path, heads: int = 2) -> None:
    """Give rows the order that Kimi K2.5 has: in that of Kimi-VL, llama.cpp rotates others than the model."""
    with squish.open(tower) as file:
        meta, arrays = dict(file.index.meta), {name: file[name].numpy() for name in file}
    for name, array in arrays.items():
        if ".attn_q." in name or ".attn_k." in name:
            rows = array.reshape(heads, array.shape[0] // heads // 4, 2, 2, -1).swapaxes(1, 2)
            arrays[name] = np.ascontiguousarray(rows.reshape(array.shape))
    tower.unlink()
    squish.save(tower, arrays, metadata=meta)


@pytest.mark.parametrize("name", ENCODED)
def test_llama_cpp_encodes_an_image_as_transformers_does(name: str, text_model: Path, tmp_path: Path) -> None:
    (height, width), bound = ENCODED[name]
    folder = towers.make(name, tmp_path / "model")
    squish.convert(folder, tmp_path / "tower.gguf", part="vision")
    if name == "kimi_vl":
        rotate_as_the_model(tmp_path / "tower.gguf")
    text_model = with_mergers(name, tmp_path) if name == "qwen3_vl" else text_model
    image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
    found = peer("llama.cpp").run(
        images.llama_cpp, model=str(text_model), tower=str(tmp_path / "tower.gguf"), image=image
    )
    stated = towers.MODELS[name]["images"]
    colors = stated.get("media_proc_cfg", stated)
    mean, std = (np.array(colors[f"image_{each}"]) for each in ("mean", "std"))
    pixels = ((image / 255.0 - mean) / std).transpose(2, 0, 1).astype(np.float32)
    expected = peer("torch").run(
        images.transformers, folder=str(towers_vl.reference(folder)), image=pixels, moved=name in MOVED
    )
    if BREAK in ADDED.get(name, ()):
        with squish.open(tmp_path / "tower.gguf") as tower:
            is_break = (found == tower[BREAK].numpy()).all(-1)
        found = found[~is_break]
    assert found.shape == expected.shape
    assert np.abs(found - expected).max() < bound


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


def make_and_join(name: str, tower: str, tmp_path: Path) -> Path:
    """A folder; the one that is joined from its two GGUFs, Squish's or of others, is beside it."""
    folder, keep = towers.make(name, tmp_path / "model"), "" if tower == "ours" else ":keep=no"
    squish.convert(folder, tmp_path / "text.gguf", f"gguf{keep}", rename="gguf")
    if tower == "ours":
        squish.convert(folder, tmp_path / "mmproj.gguf", part="vision")
    else:
        towers.convert(folder, tmp_path / "mmproj.gguf")
    joined = {"part": {"vision": tmp_path / "mmproj.gguf"}, "rename": "hf"}
    squish.convert(tmp_path / "text.gguf", tmp_path / "joined", "hf", **joined)
    return folder


@pytest.mark.parametrize("name", ["gemma3", "smolvlm", "idefics3"])
@pytest.mark.parametrize("tower", ["ours", "theirs"])
def test_a_joined_folder_computes_the_same_in_transformers(name: str, tower: str, tmp_path: Path) -> None:
    folder = make_and_join(name, tower, tmp_path)
    source, back = (peer("torch").run(computed, folder=str(each)) for each in (folder, tmp_path / "joined"))
    assert back["lost"] == []
    assert np.array_equal(source["logits"], back["logits"])
    rounded = name in F16 and tower == "theirs"
    assert np.abs(source["images"] - back["images"]).max() <= (2e-3 if rounded else 0)


def text_of(folder: str) -> dict[str, Any]:
    """What Transformers loads, and computes of a text; runs in the peer."""
    import torch
    from transformers import AutoModelForImageTextToText

    model, info = AutoModelForImageTextToText.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    with torch.inference_mode():
        logits = model.eval()(input_ids=torch.tensor([[5, 6, 7, 8, 9]])).logits
    return {"logits": logits.numpy(), "lost": sorted([*info["missing_keys"], *info["unexpected_keys"]])}


@pytest.mark.parametrize("name", ["qwen3_vl", "qwen3_vl_moe", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe"])
@pytest.mark.parametrize("tower", ["ours", "theirs"])
def test_a_joined_model_for_videos_computes_the_same_in_transformers(name: str, tower: str, tmp_path: Path) -> None:
    folder = make_and_join(name, tower, tmp_path)
    image = np.random.default_rng(0).standard_normal((3, 224, 224)).astype(np.float32)
    for function, arguments in ((text_of, {}), (images.transformers, {"image": image})):
        one, other = (
            peer("torch").run(function, folder=str(each), **arguments) for each in (folder, tmp_path / "joined")
        )
        if function is text_of:
            assert other["lost"] == []
            one, other = one["logits"], other["logits"]
        assert np.array_equal(one, other)
