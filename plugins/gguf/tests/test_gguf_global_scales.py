"""NVFP4 with a global scale: `NAME.weight` and `NAME.scale`, as llama.cpp's converter writes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from squish_gguf.container import Gguf

import squish_core as squish
from squish_core.api import CodecSpec, Encoding, Part, TensorSpec

RNG = np.random.default_rng(7)
SCALE = np.float32(0.0371)


def file_with_scales(path: Path, shape: tuple[int, ...] = (4, 128), scale: object = (SCALE,)) -> Path:
    """Write NVFP4 blocks as `blk.0.attn_q.weight` with `blk.0.attn_q.scale` as a dense tensor beside them."""
    weights = RNG.normal(size=shape).astype(np.float32)
    tensors = {"blk.0.attn_q.weight": weights, "blk.0.attn_q.scale": np.array(scale, np.float32)}
    source = path.with_suffix(".safetensors")
    squish.save(source, {**tensors, "blk.0.attn_k.weight": weights})
    squish.convert(source, path, encode={"*.weight": "nvfp4"})
    return path


def rounded_once(unscaled: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """The product with the scale in f64, rounded to f32."""
    return (unscaled.astype(np.float64) * scale.astype(np.float64)).astype(np.float32)


def test_the_scale_beside_nvfp4_blocks_belongs_to_their_values(tmp_path):
    with squish.open(file_with_scales(tmp_path / "model.gguf"), strict=True) as file:
        assert set(file) == {"blk.0.attn_q.weight", "blk.0.attn_k.weight"}
        assert file.index.tensors["blk.0.attn_q.weight"].encodings[0].codec == CodecSpec("ggml.scaled_nvfp4")
        values, unscaled = file["blk.0.attn_q.weight"].numpy(), file["blk.0.attn_k.weight"].numpy()
        np.testing.assert_array_max_ulp(values, rounded_once(unscaled, SCALE), 1)
        np.testing.assert_array_equal(file["blk.0.attn_q.weight"][1:3, 64:], values[1:3, 64:])
        assert not file.problems


def test_a_power_of_two_scales_without_rounding(tmp_path):
    with squish.open(file_with_scales(tmp_path / "model.gguf", scale=(0.25,))) as file:
        expected = file["blk.0.attn_k.weight"].numpy() * np.float32(0.25)
        np.testing.assert_array_equal(file["blk.0.attn_q.weight"].numpy(), expected)


def test_experts_have_a_scale_each(tmp_path):
    scales = np.array([0.5, 3, 0.01], np.float32)
    with squish.open(file_with_scales(tmp_path / "model.gguf", (3, 4, 128), scales)) as file:
        values, unscaled = file["blk.0.attn_q.weight"].numpy(), file["blk.0.attn_k.weight"].numpy()
        np.testing.assert_array_max_ulp(values, rounded_once(unscaled, scales[:, None, None]), 1)
        np.testing.assert_array_equal(file["blk.0.attn_q.weight"][1:2, 1:3, 64:], values[1:2, 1:3, 64:])


@pytest.mark.parametrize("scale", [(1.0, 2.0), ((1.0,),)])
def test_a_scale_of_another_shape_stays_a_tensor_and_is_noted(tmp_path, scale):
    with squish.open(file_with_scales(tmp_path / "model.gguf", scale=scale)) as file:
        (note,) = file.problems
        assert (note.code, note.severity, note.where) == ("scale", "note", "blk.0.attn_q.weight")
        assert "blk.0.attn_q.scale" in file


def test_blocks_and_scale_come_back_byte_for_byte(tmp_path):
    data = tmp_path / "model.gguf"
    source = file_with_scales(tmp_path / "first.gguf")
    squish.convert(source, data)
    squish.convert(data, tmp_path / "again.gguf")
    assert data.read_bytes() == (tmp_path / "again.gguf").read_bytes()
    squish.verify(data, deep=True)
    assert squish.diff(source, data).same


def test_a_global_scale_needs_a_weight():
    shape = (4, 128)
    parts = {"data": Part(dtype="u8", shape=(4, 72)), "global_scale": Part(dtype="f32", shape=())}
    encoding = Encoding(codec=CodecSpec("ggml.scaled_nvfp4"), parts=parts)
    spec = TensorSpec(name="table", shape=shape, dtype="f32", encodings=(encoding,))
    assert "NAME.weight" in Gguf().accepts(spec, encoding, {}).why


@pytest.mark.parametrize("shape", [(32, 128), (3, 8, 128)])
def test_values_are_encoded_with_a_global_scale(tmp_path, shape):
    """Small weights need it: alone, the scales of their blocks are below the range of E4M3."""
    values = (RNG.normal(size=shape) * 1e-4).astype(np.float32)
    squish.save(tmp_path / "in.safetensors", {"blk.0.ffn_up.weight": values})
    errors = {}
    for name in ("nvfp4", "scaled_nvfp4"):
        path = tmp_path / f"{name}.gguf"
        report = squish.convert(tmp_path / "in.safetensors", path, encode=name)
        with squish.open(path, strict=True) as file:
            assert str(file["blk.0.ffn_up.weight"].spec.encodings[0].codec) == f"ggml.{name}"
            errors[name] = float(
                np.square(file["blk.0.ffn_up.weight"].numpy() - values).sum() / np.square(values).sum()
            )
        assert report.steps[0].exactness.kind == "bounded"
    assert errors["scaled_nvfp4"] < 0.02 < 0.9 < errors["nvfp4"]


def test_the_encoder_gives_the_codes_of_modelopt(tmp_path):
    values = (RNG.normal(size=(32, 128)) * 0.02).astype(np.float32)
    squish.save(tmp_path / "in.safetensors", {"blk.0.ffn_up.weight": values})
    squish.convert(tmp_path / "in.safetensors", tmp_path / "direct.gguf", encode="scaled_nvfp4")
    spec, params = TensorSpec(name="w", shape=values.shape, dtype="f32"), {
        "block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply",
    }  # fmt: skip
    expected, region = np.empty_like(values), tuple(slice(0, size) for size in values.shape)
    mx = squish.registry().codec_type("mx")
    mx.from_params(params).decode(mx.from_params(params).encode(values), spec, region=region, out=expected)
    with squish.open(tmp_path / "direct.gguf") as file:
        np.testing.assert_array_equal(file["blk.0.ffn_up.weight"].numpy(), expected)
