"""Torch's own decoding: bit-equal to the codecs, whatever the layout of codes and scales."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
from attrs import evolve
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_torch import device_ops
from squish_torch.decoding import decode_chosen, decode_rows, is_by_rows, is_decodable
from squish_torch.decoding.ggml import BLOCKS
from squish_torch.decoding.grids import GRIDS
from squish_torch.description import describe, tensor_from_parts
from squish_torch.weights import roles_of

import squish_core as squish
from squish_core.api import BLOCK_TYPES, CodecSpec, Encoding, Part, TensorSpec

ENCODED = {
    "int4": CodecSpec("affine", {"bits": 4, "group_size": 32}),
    "int3 with zero points": CodecSpec("affine", {"bits": 3, "group_size": 64, "offset": "zero_point"}),
    "int2 along columns": CodecSpec("affine", {"bits": 2, "axis": -2, "group_size": 8, "offset": "bias"}),
    "nf4": CodecSpec("palette", {"bits": 4, "table": "nf4", "scale_dtype": "f32", "group_size": 64}),
    "a fitted palette": CodecSpec("palette", {"bits": 4}),
    "mxfp4": CodecSpec("mx"),
    "nvfp4": CodecSpec("mx", {"block_size": 16, "scale_dtype": "f8_e4m3", "global_scale": "multiply"}),
    "float8": CodecSpec("float8"),
    "float8 in blocks": CodecSpec("float8", {"block": [16, 128]}),
    "hqq": CodecSpec("hqq", {"bits": 3, "group_size": 64, "axis": 1}),
    "q4_1": CodecSpec("ggml.q4_1"),
}


def module_of(codec: CodecSpec) -> tuple[Any, torch.Tensor]:
    """A compressed module, and the values that the codec decodes."""
    spec = TensorSpec(name="w", shape=(40, 512), dtype="f32")
    params = squish.registry().codec_type(codec.id).params_for(spec, codec.params)
    bound = squish.registry().codec(evolve(codec, params=params))
    arrays = bound.encode(np.random.default_rng(0).standard_normal(spec.shape, np.float32))
    parts = {role: Part(dtype=dtype, shape=shape) for role, (dtype, shape) in bound.parts(spec).items()}
    module = module_with(arrays, describe(spec, Encoding(codec=evolve(codec, params=params), parts=parts)))
    return module, module.dequantize()


def module_with(arrays: Mapping[str, Any], description: str) -> Any:
    """A module with these parts."""
    module = squish_torch.CompressedLinear(description)
    for part, role in zip(module.parts, roles_of(description)):
        part.copy_(torch.from_numpy(np.array(arrays[role]).reshape(-1).view(np.uint8).copy()).reshape(part.shape))
    return module


def same_bits(actual: torch.Tensor, expected: np.ndarray) -> bool:
    """Whether all bits are equal, except that any NaN equals any other."""
    actual, values = actual.cpu(), torch.from_numpy(np.array(expected, np.float32))
    return bool(((actual.view(torch.int32) == values.view(torch.int32)) | (actual.isnan() & values.isnan())).all())


def check(
    codec: CodecSpec, shape: tuple[int, ...], seed: int, start: int, stop: int, dtype: str = "f32", device: str = "cpu"
) -> bool:
    """Compare with the codec on random parts; False if torch does not decode the encoding."""
    random_parts = pytest.importorskip("random_parts", reason="it is in the tests of the whole repository")
    tensor = random_parts.random_tensor(codec, shape, seed, dtype)
    description = describe(tensor.spec, tensor.bound.encoding)
    if not is_decodable(description):
        return False
    stored = tensor.parts(tensor.bound.encoding)
    arrays = [np.array(stored[role]).reshape(-1).view(np.uint8) for role in roles_of(description)]
    parts = [torch.from_numpy(array).to(device) for array in arrays]
    values = tensor.numpy(copy=True).reshape(-1, shape[-1])
    assert same_bits(decode_rows(parts, description, 0, len(values)), values)
    assert same_bits(decode_rows(parts, description, start, stop), values[start:stop])
    if is_by_rows(description):
        ids = torch.tensor([stop - 1, start, stop - 1])
        assert same_bits(decode_chosen(parts, description, ids.to(device)), values[ids])
    return True


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_layout_of_any_codec_decodes_to_the_bits_of_the_codec(data: st.DataObject) -> None:
    layouts = pytest.importorskip("random_layouts", reason="the strategies are in the tests of the whole repository")
    codec, shape, dtype = data.draw(layouts.layouts())
    rows = int(np.prod(shape[:-1]))
    start = data.draw(st.integers(0, rows - 1))
    stop = data.draw(st.integers(start + 1, rows))
    assert check(codec, shape, data.draw(st.integers(0, 99)), start, stop, dtype) or codec.id in ("masked", "palette")


BOXES = {"bits": 4, "grid": [4, 8], "scale_dtype": "f16"}
OTHERS = {
    "boxes": CodecSpec("boxes", BOXES),
    "boxes with zero points": CodecSpec("boxes", {**BOXES, "signed": True, "offset_dtype": "i8"}),
    "boxes with packed zero points": CodecSpec("boxes", {**BOXES, "offset_dtype": "packed"}),
    "boxes with codebooks": CodecSpec("boxes", {"bits": 2, "books": [4, 1], "codebook_dtype": "f16"}),
    "bitsandbytes int8": CodecSpec("hf.bnb8"),
    "NVFP4 with a global scale": CodecSpec("ggml.scaled_nvfp4"),
    "AWQ": CodecSpec("awq", {}, inner=CodecSpec("ggml.q4_0")),
    "scaled columns": CodecSpec("hf.column_scales", {"scale_dtype": "bf16"}, inner=CodecSpec("float8")),
    "HQQ in bf16": CodecSpec("hqq", {"bits": 2, "group_size": 64, "axis": 0, "scale_dtype": "bf16"}),
}


@pytest.mark.parametrize("codec", OTHERS.values(), ids=OTHERS)
def test_codecs_of_other_formats_decode_to_the_bits_of_the_codec(codec: CodecSpec) -> None:
    assert check(codec, (20, 128), 0, 3, 17)


@pytest.mark.parametrize("name", [*BLOCKS, *GRIDS])
def test_blocks_of_any_bytes_decode_to_the_bits_of_the_codec(name: str) -> None:
    _, _, elements, nbytes = BLOCK_TYPES[name]
    data = np.random.default_rng(0).integers(0, 256, (6, 3 * nbytes), np.uint8)
    spec = TensorSpec(name="w", shape=(6, 3 * elements), dtype="f32")
    encoding = Encoding(codec=CodecSpec(f"ggml.{name}"), parts={"data": Part(dtype="u8", shape=data.shape)})
    description = describe(spec, encoding)
    values = tensor_from_parts(description, {"data": memoryview(data.reshape(-1))}).numpy()
    parts = [torch.from_numpy(data.reshape(-1))]
    assert same_bits(decode_rows(parts, description, 0, 6), values)
    assert same_bits(decode_chosen(parts, description, torch.tensor([4, 1])), values[[4, 1]])


@pytest.mark.parametrize("codec", ENCODED.values(), ids=ENCODED)
def test_operations_without_kernels_agree_with_those_that_have_them(codec: CodecSpec) -> None:
    module, values = module_of(codec)
    about = (module.parts, module.description, "")
    x = torch.randn(2, 3, 512, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[5, 0], [39, 5]])
    assert is_decodable(module.description)
    assert torch.allclose(device_ops.linear(x, *about), module(x), rtol=1e-4, atol=1e-3)
    assert torch.equal(device_ops.embed(ids, *about, torch.float32), values[ids])
    assert torch.equal(device_ops.dequantize(*about, torch.bfloat16), values.to(torch.bfloat16))
    gradient = torch.randn(4, 40)
    assert torch.allclose(
        device_ops.linear_gradient(gradient, *about), torch.ops.squish.linear_gradient(gradient, *about), atol=1e-3
    )


def test_rows_of_an_embedding_that_shares_scales_are_checked() -> None:
    module, values = module_of(ENCODED["float8 in blocks"])
    about = (module.parts, module.description, "", torch.float32)
    assert not is_by_rows(module.description)
    ids = torch.tensor([39, 0, 7])
    assert torch.equal(device_ops.embed(ids, *about), values[ids])
    with pytest.raises(IndexError):
        device_ops.embed(torch.tensor([40]), *about)


def masked_module() -> Any:
    """A module with zeroed tiles, of which torch has no form."""
    codec = CodecSpec("masked", {"block_size": 8}, inner=CodecSpec("ggml.q8_0"))
    parts = {"data": Part(dtype="u8", shape=(16, 68)), "mask": Part(dtype="u8", shape=(2,))}
    arrays = {"data": np.full((16, 68), 60, np.uint8), "mask": np.array([0b01010101, 0b11110000], np.uint8)}
    spec = TensorSpec(name="w", shape=(16, 64), dtype="f32")
    return module_with(arrays, describe(spec, Encoding(codec=codec, parts=parts)))


def test_what_torch_cannot_decode_says_that_the_cpu_does() -> None:
    module = masked_module()
    assert not is_decodable(module.description)
    with pytest.warns(UserWarning, match="masked is decoded on the CPU"):
        values = device_ops.dequantize(module.parts, module.description, "", torch.float32)
    assert torch.equal(values, module.dequantize())


def test_experts_are_decoded_one_after_the_other(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((4, 24, 64), np.float32)
    squish.save(tmp_path / "w.zt", {"w": values}, encode="int4")
    bundle = squish_torch.load_file(tmp_path / "w.zt", compressed=True)["w"]
    about = (list(bundle.parts.values()), bundle.description, "")
    x, ids = torch.randn(5, 64), torch.tensor([3, 0, 3, 1, 2])
    y = device_ops.experts(x, ids, *about)
    assert torch.allclose(y, torch.ops.squish.experts(x, ids, *about), atol=1e-3)
    with pytest.raises(IndexError):
        device_ops.experts(x, ids + 1, *about)
