"""What is written is loaded by Transformers, with the kernels of GPTQModel and with compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = pytest.mark.oracle
PACKED = "affine:bits={},group_size=32,word=i32,scale_dtype=f16"
ZEROS = ",offset=zero_point,offset_dtype=packed"


def model(folder: str) -> None:
    """Runs in the peer: saves a small seeded model of one layer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128, intermediate_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=128, tie_word_embeddings=False,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)


def loaded(folder: str) -> Any:
    """Runs in the peer: what loading left over, the class of a layer, and all layers' weights by name."""
    import torch
    from compressed_tensors.compressors import decompress_module
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", output_loading_info=True)
    weights, kinds = {}, set()
    for name, layer in model.named_modules():
        if hasattr(layer, "dequantize_weight"):
            found = layer.dequantize_weight().T
        elif hasattr(layer, "weight_packed"):
            decompress_module(layer)
            found = layer.weight
        else:
            continue
        kinds.add(type(layer).__module__.split(".")[0])
        weights[f"{name}.weight"] = found.detach().to(torch.float32).numpy()
    left = [str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in told[kind]]
    return {"left": left, "weights": weights, "kinds": sorted(kinds)}


def decompressed(parts: dict[str, Any], arguments: dict[str, Any], shape: list[int]) -> Any:
    """Runs in the peer: the weight of one layer, by compressed-tensors alone."""
    import torch
    from compressed_tensors.compressors import decompress_module
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme, QuantizationStatus

    layer = torch.nn.Linear(shape[1], shape[0], bias=False)
    del layer.weight
    for name, part in parts.items():
        layer.register_parameter(name, torch.nn.Parameter(torch.from_numpy(part.copy()), requires_grad=False))
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments), format="pack-quantized")
    layer.quantization_scheme, layer.quantization_status = scheme, QuantizationStatus.COMPRESSED
    decompress_module(layer)
    return layer.weight.detach().to(torch.float32).numpy()


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dense")
    oracles.peer("transformers").run(model, folder=str(folder))
    return folder


def packed(dense: Path, folder: Path, bits: int, zeros: str) -> Path:
    """The model's projections in compressed-tensors, from which the other methods are repacked."""
    squish.convert(dense, folder, "hf:method=compressed-tensors", encode=f"*proj.weight={PACKED.format(bits)}{zeros}")
    return folder


@pytest.mark.parametrize(
    ("method", "bits", "zeros"),
    [
        *(("gptq", bits, "") for bits in (2, 3, 4, 8)),
        *(("gptq_v2", bits, ZEROS) for bits in (2, 3, 4, 8)),
        ("awq", 4, ""), ("awq", 4, ZEROS), ("compressed-tensors", 4, ""), ("compressed-tensors", 8, ""),
    ],
)  # fmt: skip
def test_transformers_loads_it_with_the_same_weights(
    method: str, bits: int, zeros: str, dense: Path, tmp_path: Path
) -> None:
    source = packed(dense, tmp_path / "source", bits, zeros)
    squish.convert(source, tmp_path / "out", f"hf:method={method}")
    found = oracles.peer("transformers").run(loaded, folder=str(tmp_path / "out"))
    own = "torch" if method == "compressed-tensors" else "gptqmodel"
    assert (found["left"], found["kinds"], len(found["weights"])) == ([], [own], 7)
    with squish.open(tmp_path / "out") as file:
        for name, weight in found["weights"].items():
            values = file[name].numpy()
            if own == "gptqmodel":  # its kernels multiply in the scales' f16
                values = values.astype(np.float16)
            np.testing.assert_array_equal(weight, values)


@pytest.mark.parametrize("zeros", ["", ZEROS])
@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 7, 8])
def test_compressed_tensors_unpacks_it(bits: int, zeros: str, dense: Path, tmp_path: Path) -> None:
    """Zero points, too, which Transformers 5.23 refuses to load in checkpoints of the package's own as well."""
    layer = "model.layers.0.mlp.down_proj"
    source = packed(dense, tmp_path / "source", bits, zeros)
    with squish.open(source, "safetensors") as file:
        parts = {name.rpartition(".")[2]: file[name].numpy() for name in file if name.startswith(layer)}
    arguments = {"num_bits": bits, "symmetric": not zeros, "strategy": "group", "group_size": 32}
    shape = [128, 256]
    found = oracles.peer("transformers").run(decompressed, parts=parts, arguments=arguments, shape=shape)
    with squish.open(source) as file:
        np.testing.assert_array_equal(found, file[f"{layer}.weight"].numpy().astype(np.float16))


def packed_for_gemv(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> Any:
    """Runs in the peer: what GPTQModel stores of a layer for AWQ's GEMV; its kernels need another device."""
    import torch
    from gptqmodel.nn_modules.qlinear.gemv_awq import AwqGEMVLinear

    rows, columns = codes.shape
    group = columns // scales.shape[1]
    wide = [torch.from_numpy(np.repeat(part, group, axis=1)).float() for part in (zeros, scales)]
    plain = torch.nn.Linear(columns, rows, bias=False)
    plain.weight.data = (torch.from_numpy(codes).float() - wide[0]) * wide[1]
    asked = {"bits": 4, "group_size": group, "sym": False, "desc_act": False}
    layer = AwqGEMVLinear(in_features=columns, out_features=rows, **asked)
    layer.pack(plain, torch.from_numpy(scales).half(), torch.from_numpy(zeros))
    return {name: getattr(layer, name).numpy() for name in ("qweight", "qzeros", "scales")}


@pytest.mark.parametrize("groups", [2, 4, 9])
def test_awq_for_gemv_as_gptqmodel_packs_it(groups: int, tmp_path: Path) -> None:
    rng = np.random.default_rng(groups)
    codes, zeros = rng.integers(0, 16, (64, 64 * groups)), rng.integers(0, 16, (64, groups))
    scales = rng.uniform(0.1, 1, (64, groups)).astype(np.float16).astype(np.float32)
    parts = oracles.peer("transformers").run(packed_for_gemv, codes=codes, zeros=zeros, scales=scales)
    header, data = {}, b""
    for name, part in parts.items():
        dtype = {"int32": "I32", "float16": "F16"}[part.dtype.name]
        offsets = [len(data), len(data) + part.nbytes]
        header[f"a.{name}"] = {"dtype": dtype, "shape": part.shape, "data_offsets": offsets}
        data += part.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = {"quant_method": "awq", "version": "gemv", "bits": 4, "group_size": 64, "zero_point": True}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
    with squish.open(tmp_path) as file:
        wanted = (codes - np.repeat(zeros, 64, axis=1)).astype(np.float32) * np.repeat(scales, 64, axis=1)
        np.testing.assert_array_equal(file["a.weight"].numpy(), wanted)
