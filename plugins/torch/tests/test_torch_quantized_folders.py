"""FP8, MXFP4 and bitsandbytes folders on a CPU, without the packages that transformers needs for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import squish_torch
import torch
import transformers
from quantized_folders import FOLDERS, fp8_folder, int8_folder, mxfp4_folder
from tiny_models import greedy, logits, tiny_llama

import squish_core as squish

OWN_DEQUANTIZATION = pytest.mark.skipif(
    tuple(map(int, transformers.__version__.split(".")[:2])) < (5, 23),
    reason="transformers 5.4 dequantizes FP8 with Triton alone, and MXFP4 in bf16",
)


def through_transformers(folder: Path, settings: Any = None) -> Any:
    """The model as `AutoModelForCausalLM` loads it with our quantizer."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        config=squish_torch.config_of(folder),
        dtype=torch.float32,
        quantization_config=settings or squish_torch.SquishConfig(),
    )


@pytest.mark.parametrize("method", FOLDERS)
def test_both_ways_of_loading_agree_with_the_decoded_values(tmp_path: Path, method: str) -> None:
    folder = FOLDERS[method](tmp_path / "q")
    direct, through = squish_torch.from_pretrained(folder), through_transformers(folder)
    assert torch.equal(logits(direct), logits(through))
    assert greedy(direct, 8) == greedy(through, 8)
    compressed = {name for name, parameter in direct.named_parameters() if parameter.dtype == torch.uint8}
    assert compressed == {name for name, parameter in through.named_parameters() if parameter.dtype == torch.uint8}
    assert any("layers.1.mlp" in name for name in compressed)
    decoded = direct.dequantize()
    assert not any(parameter.dtype == torch.uint8 for parameter in decoded.parameters())
    assert (logits(decoded) - logits(through)).abs().max() <= 1e-4


@OWN_DEQUANTIZATION
def test_fp8_logits_are_those_of_transformers_own_dequantization(tmp_path: Path) -> None:
    folder = fp8_folder(tmp_path / "q", hidden_size=256, intermediate_size=384, num_key_value_heads=4)
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=transformers.FineGrainedFP8Config(dequantize=True), dtype=torch.float32
    )
    assert (logits(squish_torch.from_pretrained(folder)) - logits(reference)).abs().max() <= 1e-4


@OWN_DEQUANTIZATION
def test_mxfp4_logits_are_those_of_transformers_own_dequantization(tmp_path: Path) -> None:
    folder = mxfp4_folder(tmp_path / "q")
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=transformers.Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    assert (logits(squish_torch.from_pretrained(folder)) - logits(reference)).abs().max() <= 1e-4


def test_columns_in_the_order_of_activations_have_their_own_groups(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "hf", tied=False)
    squish.convert(source, tmp_path / "q", "hf:method=gptq", ["keep", "*proj*=int4:group_size=32"])
    (path,) = (tmp_path / "q").glob("*.safetensors")
    tensors, generator = safetensors.torch.load_file(path), torch.Generator().manual_seed(0)
    for name in [name for name in tensors if name.endswith(".g_idx")]:
        tensors[name] = tensors[name][torch.randperm(len(tensors[name]), generator=generator)]
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    direct, through = squish_torch.from_pretrained(tmp_path / "q"), through_transformers(tmp_path / "q")
    assert "hf.act_order" in repr(direct.model.layers[1].mlp.down_proj)
    assert torch.equal(logits(direct), logits(through))
    assert (logits(through.dequantize()) - logits(direct)).abs().max() <= 1e-4


def test_tensors_that_a_backend_does_not_run_are_an_error_or_decoded(tmp_path: Path) -> None:
    folder = FOLDERS["nf4"](tmp_path / "q")
    expected = logits(squish_torch.from_pretrained(folder))
    with pytest.raises(squish.SquishError) as caught:
        squish_torch.from_pretrained(folder, backend="metal")
    assert caught.value.tensor == "model.layers.0.self_attn.q_proj.weight"
    with pytest.warns(UserWarning, match=r"layers\.\d\..*proj\.weight is decoded"):
        model = squish_torch.from_pretrained(folder, backend="metal", on_unsupported="dense")
    assert not any(parameter.dtype == torch.uint8 for parameter in model.parameters())
    assert (logits(model) - expected).abs().max() <= 1e-4
    with pytest.warns(UserWarning, match=r"layers\.\d\..*proj\.weight is decoded"):
        through = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=squish_torch.config_of(folder),
            dtype=torch.float32,
            quantization_config=squish_torch.SquishConfig("metal", on_unsupported="dense"),
        )
    assert torch.equal(logits(through), logits(model))
    with pytest.raises(squish.UsageError):
        squish_torch.SquishConfig(on_unsupported="drop")


@pytest.mark.parametrize("copy", [True, False])
def test_copied_weights_do_not_follow_the_file(tmp_path: Path, copy: bool) -> None:
    folder = int8_folder(tmp_path / "q", intermediate_size=2048)  # smaller parts are always copied
    direct = squish_torch.from_pretrained(folder, copy=copy)
    through = through_transformers(folder, squish_torch.SquishConfig(copy=copy))
    name = "model.layers.0.mlp.up_proj"
    before = [model.get_submodule(name).weight.clone() for model in (direct, through)]
    with open(folder / "model.safetensors", "r+b") as file:
        size = file.seek(0, 2)
        file.seek(0)
        header = int.from_bytes(file.read(8), "little") + 8
        file.seek(header)
        file.write(bytes(size - header))
    for model, values in zip((direct, through), before):
        assert torch.equal(model.get_submodule(name).weight, values) == copy


@pytest.mark.parametrize("method", FOLDERS)
def test_another_quant_method_is_a_typed_error_with_the_call_that_works(tmp_path: Path, method: str) -> None:
    folder = FOLDERS[method](tmp_path / "q")
    with pytest.raises(squish.UsageError) as caught:
        transformers.AutoModelForCausalLM.from_pretrained(folder, quantization_config=squish_torch.SquishConfig())
    assert caught.value.code == "quant-method"
    assert "config=squish_torch.config_of(" in str(caught.value.hint)
