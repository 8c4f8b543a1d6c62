"""What is written is loaded by Transformers, with the kernels of GPTQModel and with compressed-tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish
from squish_core.api import dtypes

pytestmark = pytest.mark.oracle
PACKED = "affine:bits={},group_size=32,word=i32,scale_dtype=f16"
ZEROS = ",offset=zero_point,offset_dtype=packed"


def model(folder: str) -> None:
    """Runs in the peer: saves a small seeded model of one layer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=128,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)


def loaded(folder: str) -> Any:
    """Runs in the peer: what loading left over, the class of a layer, and all layers' weights by name."""
    import torch
    from compressed_tensors.compressors import decompress_module
    from transformers import AutoConfig, AutoModelForCausalLM, AwqConfig, GPTQConfig

    # The plain kernels: which one is chosen otherwise depends on the processor, and one is compiled for minutes.
    kernels = {"gptq": GPTQConfig(4, backend="gptq_torch"), "awq": AwqConfig(backend="torch_awq")}
    method = AutoConfig.from_pretrained(folder).quantization_config["quant_method"]
    choice = {"quantization_config": kernels[method]} if method in kernels else {}
    model, info = AutoModelForCausalLM.from_pretrained(folder, device_map="cpu", output_loading_info=True, **choice)
    weights, kinds = {}, set()
    for name, layer in model.named_modules():
        if type(layer).__module__.startswith("gptqmodel."):
            values = layer(torch.eye(layer.in_features, dtype=torch.float16)).T
        elif getattr(layer, "quantization_scheme", None):
            decompress_module(layer)
            values = layer.weight
        else:
            continue
        kinds.add(type(layer).__module__.split(".")[0])
        weights[f"{name}.weight"] = values.detach().to(torch.float32).numpy()
    left = [str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
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


@pytest.mark.peers
@pytest.mark.parametrize(
    "encoding",
    ["mx", "mx:block_size=16,scale_dtype=f8_e4m3", "mx:element=f8_e4m3", "fp8", "fp8_row", "fp8_block"],
    ids=["mxfp4", "nvfp4", "mxfp8", "fp8", "fp8_row", "fp8_block"],
)
@pytest.mark.parametrize("mixed", [False, True])
def test_microscaled_layers_are_loaded_with_the_same_weights(
    encoding: str, mixed: bool, dense: Path, tmp_path: Path
) -> None:
    rules = [f"*proj.weight={encoding}", *([f"*mlp*={PACKED.format(4)}"] if mixed else [])]
    squish.convert(dense, tmp_path / "out", "hf:method=compressed-tensors", encode=rules)
    reference = oracles.peer("transformers").run(loaded, folder=str(tmp_path / "out"))
    assert (reference["left"], len(reference["weights"])) == ([], 7)
    with squish.open(tmp_path / "out") as file:
        assert not file.problems
        for name, weight in reference["weights"].items():
            codec = file[name].codec
            own = "float8" if encoding.startswith("fp8") else "mx"
            assert codec == ("affine" if mixed and ".mlp." in name else own)
            # the package multiplies NVFP4 in bfloat16, the others in the model's float32
            dtype = "bf16" if codec == "mx" and "block_size" in encoding else "f32"
            narrow = file[name].numpy().astype(dtypes.to_numpy(dtype))
            np.testing.assert_array_equal(weight, narrow.astype(np.float32), err_msg=name)


def experts(folder: str) -> None:
    """Runs in the peer: saves a small seeded gpt-oss."""
    import torch
    from transformers import GptOssConfig, GptOssForCausalLM

    torch.manual_seed(0)
    config = GptOssConfig(
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        vocab_size=64,
        num_local_experts=3,
        num_experts_per_tok=2,
        tie_word_embeddings=False,
    )
    GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def experts_loaded(folder: str) -> Any:
    """Runs in the peer: what loading left over, and the experts' weights, dequantized in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, Mxfp4Config

    model, info = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), device_map="cpu", output_loading_info=True
    )
    experts = {name: part for name, part in model.named_parameters() if name.endswith(("gate_up_proj", "down_proj"))}
    left = [str(key) for kind in ("missing_keys", "unexpected_keys", "mismatched_keys") for key in info[kind]]
    return {"left": left, "weights": {name: part.detach().to(torch.float32).numpy() for name, part in experts.items()}}


def test_gpt_oss_is_loaded_with_the_same_experts(tmp_path: Path) -> None:
    peer = oracles.peer("transformers")
    peer.run(experts, folder=str(tmp_path / "in"))
    squish.convert(tmp_path / "in", tmp_path / "out", "hf:method=mxfp4", encode="*experts.*_proj=mx", rename="hf")
    reference = peer.run(experts_loaded, folder=str(tmp_path / "out"))
    assert (reference["left"], len(reference["weights"])) == ([], 2)
    with squish.open(tmp_path / "out") as file:
        for name, weight in reference["weights"].items():
            np.testing.assert_array_equal(weight.transpose(0, 2, 1), file[name].numpy())


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
    reference = oracles.peer("transformers").run(loaded, folder=str(tmp_path / "out"))
    own = "torch" if method == "compressed-tensors" else "gptqmodel"
    assert (reference["left"], reference["kinds"], len(reference["weights"])) == ([], [own], 7)
    with squish.open(tmp_path / "out") as file:
        for name, weight in reference["weights"].items():
            values = file[name].numpy()
            if own == "gptqmodel":  # its kernels multiply in the scales' f16
                values = values.astype(np.float16)
            np.testing.assert_array_equal(weight, values)


@pytest.mark.peers
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
    reference = oracles.peer("transformers").run(decompressed, parts=parts, arguments=arguments, shape=shape)
    with squish.open(source) as file:
        np.testing.assert_array_equal(reference, file[f"{layer}.weight"].numpy().astype(np.float16))


def packed_for_gemv(codes: np.ndarray, zeros: np.ndarray, scales: np.ndarray) -> Any:
    """Runs in the peer: what GPTQModel stores of a layer for AWQ's GEMV; its kernels need another device."""
    import torch
    from gptqmodel.nn_modules.qlinear.gemv_awq import AwqGEMVLinear

    rows, columns = codes.shape
    group = columns // scales.shape[1]
    wide = [torch.from_numpy(np.repeat(part, group, axis=1)).float() for part in (zeros, scales)]
    linear = torch.nn.Linear(columns, rows, bias=False)
    linear.weight.data = (torch.from_numpy(codes).float() - wide[0]) * wide[1]
    settings = {"bits": 4, "group_size": group, "sym": False, "desc_act": False}
    layer = AwqGEMVLinear(in_features=columns, out_features=rows, **settings)
    layer.pack(linear, torch.from_numpy(scales).half(), torch.from_numpy(zeros))
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
        expected = (codes - np.repeat(zeros, 64, axis=1)).astype(np.float32) * np.repeat(scales, 64, axis=1)
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected)


@pytest.mark.parametrize("method", ["gptq", "gptq_v2"])
@pytest.mark.parametrize("encode", ["q4_0", "q8_0", "int8:offset=zero_point,symmetric=true"])
def test_symmetric_codes_are_loaded_with_the_same_weights(
    encode: str, method: str, dense: Path, tmp_path: Path
) -> None:
    squish.convert(dense, tmp_path / "out", f"hf:method={method}", encode=f"*proj.weight={encode}", rename="hf")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["quantization_config"]["sym"] is True
    reference = oracles.peer("transformers").run(loaded, folder=str(tmp_path / "out"))
    assert (reference["left"], reference["kinds"], len(reference["weights"])) == ([], ["gptqmodel"], 7)
    with squish.open(tmp_path / "out") as file:
        for name, weight in reference["weights"].items():  # the kernels multiply in f16
            scales = np.asarray(file[name].parts()["scale"])
            exact = file[name].numpy().astype(np.float16) if scales.dtype == np.float16 else None
            if exact is not None:
                np.testing.assert_array_equal(weight, exact)
            else:
                np.testing.assert_allclose(weight, file[name].numpy(), rtol=2e-3)


def loaded_by_gptqmodel(folder: str) -> Any:
    """Runs in the peer: all layers' weights by name as GPTQModel's own loader has them, or why it refuses."""
    import torch
    from gptqmodel import BACKEND, GPTQModel
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))  # it asks for one
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    try:
        model = GPTQModel.load(folder, device="cpu", backend=BACKEND.GPTQ_TORCH, dtype=torch.float16).model
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return {
        f"{name}.weight": layer(torch.eye(layer.in_features, dtype=torch.float16)).T.detach().float().numpy()
        for name, layer in model.named_modules()
        if type(layer).__module__.startswith("gptqmodel.nn_modules.qlinear")
    }


@pytest.mark.parametrize(
    ("method", "encode", "is_loaded"),
    [("gptq", "q4_0", True), ("gptq_v2", "q4_0", True), ("gptq", "q4_1", False), ("gptq_v2", "q4_1", True)],
)
def test_gptqmodel_loads_the_first_version_if_it_is_symmetric(
    method: str, encode: str, is_loaded: bool, dense: Path, tmp_path: Path
) -> None:
    squish.convert(dense, tmp_path / "out", f"hf:method={method}", encode=f"*proj.weight={encode}", rename="hf")
    reference = oracles.peer("transformers").run(loaded_by_gptqmodel, folder=str(tmp_path / "out"))
    if not is_loaded:
        assert "sym=False" in reference
        return
    assert len(reference) == 7, reference
    with squish.open(tmp_path / "out") as file:
        for name, weight in reference.items():
            np.testing.assert_array_equal(weight, file[name].numpy().astype(np.float16))
