"""Models of transformers over files of any format, against transformers on the same GGUF."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path

import pytest
import squish_torch
import torch
import transformers
from tiny_models import IDS, by_transformers, converted, greedy, logits, tiny_gemma, tiny_llama, tiny_phi

import squish_core as squish

ENCODE = ["q4_1", "*norm*=keep", "*embed*=q8_0", "token_embd*=q8_0"]


@pytest.fixture(scope="module")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    return converted(tiny_llama(folder / "hf"), folder / "model.gguf", ENCODE)


def test_logits_and_greedy_tokens_are_those_of_transformers(gguf: Path) -> None:
    model, reference = squish_torch.from_pretrained(gguf), by_transformers(gguf)
    assert (logits(model) - logits(reference)).abs().max() <= 1e-4
    assert greedy(model, 32) == greedy(reference, 32)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize(
    ("cast", "dtype"), [("half", torch.float16), ("float", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_a_model_is_cast_by_any_method(gguf: Path, cast: str, dtype: torch.dtype, pickled: bool) -> None:
    model = squish_torch.from_pretrained(gguf)
    model = pickle.loads(pickle.dumps(model)) if pickled else copy.deepcopy(model)
    assert getattr(model, cast)() is model
    assert {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()} == {dtype}
    assert logits(model).dtype == dtype


@pytest.mark.parametrize("activations", ["int8", "bf16"])
def test_a_byte_embedding_and_its_head_run_from_panels(gguf: Path, activations: str) -> None:
    model = squish_torch.from_pretrained(gguf, backend=f"cpu:activations={activations},repack=rows")
    assert isinstance(model.lm_head, squish_torch.CompressedLinear)
    assert "q8_0" in model.lm_head.description
    exact = logits(squish_torch.from_pretrained(gguf))
    assert (logits(model) - exact).abs().max() <= 0.05 * exact.abs().max()


def test_gemma_has_scaled_embeddings_and_norms_less_one(tmp_path: Path) -> None:
    path = converted(tiny_gemma(tmp_path / "hf"), tmp_path / "model.gguf", ENCODE)
    model, reference = squish_torch.from_pretrained(path), by_transformers(path)
    assert (logits(model) - logits(reference)).abs().max() <= 1e-4


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("model.zt", {}),
        ("model.uqff", {"rename": "hf"}),
        ("model.npydir", {"to": "npydir", "rename": "hf"}),
        ("mlx", {"to": "mlx", "rename": "hf"}),
    ],
)
def test_other_formats_with_equal_codes_give_equal_bits(
    gguf: Path, tmp_path: Path, name: str, options: dict[str, str]
) -> None:
    squish.convert(gguf, tmp_path / name, **options)
    assert torch.equal(
        logits(squish_torch.from_pretrained(tmp_path / name)), logits(squish_torch.from_pretrained(gguf))
    )


def test_squizd_holds_its_4_bit_codes(tmp_path: Path) -> None:
    path = converted(tiny_llama(tmp_path / "hf"), tmp_path / "model.gguf", ["q4_1", "*norm*=keep", "*embed*=f32"])
    squish.convert(path, tmp_path / "model.squizd", rename="gguf")
    model = squish_torch.from_pretrained(tmp_path / "model.squizd")
    assert (logits(model) - logits(squish_torch.from_pretrained(path))).abs().max() <= 1e-4


def test_fused_projections_stay_one_module(tmp_path: Path) -> None:
    folder = tiny_phi(tmp_path / "hf")
    dense = squish_torch.from_pretrained(converted(folder, tmp_path / "dense.gguf", "f32"))
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    assert (logits(dense) - logits(reference)).abs().max() <= 1e-4
    model = squish_torch.from_pretrained(converted(folder, tmp_path / "model.gguf", ["q4_1", "*norm*=keep"]))
    layer = model.model.layers[1]
    for module in (layer.self_attn.qkv_proj, layer.mlp.gate_up_proj):
        assert isinstance(module, squish_torch.CompressedLinear)
    before = logits(model)
    assert (logits(model.dequantize()) - before).abs().max() <= 1e-4


def test_weights_stay_compressed_and_the_head_shares_the_embedding(gguf: Path) -> None:
    model = squish_torch.from_pretrained(gguf)
    assert isinstance(model.lm_head, squish_torch.CompressedLinear)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
    assert {parameter.dtype for parameter in matrices} == {torch.uint8}
    model.tie_weights()
    assert model.get_memory_footprint() < gguf.stat().st_size * 1.15


def test_dequantize_gives_a_plain_model_of_equal_values(gguf: Path) -> None:
    model = squish_torch.from_pretrained(gguf)
    before, dequantized = logits(model), copy.deepcopy(model).dequantize()
    assert not any(isinstance(module, squish_torch.CompressedLinear) for module in dequantized.modules())
    assert (logits(dequantized) - before).abs().max() <= 1e-4
    assert dequantized.lm_head.weight is dequantized.model.embed_tokens.weight


def test_bf16_models_run(gguf: Path) -> None:
    model, reference = squish_torch.from_pretrained(gguf, dtype=torch.bfloat16), squish_torch.from_pretrained(gguf)
    assert logits(model).dtype == torch.bfloat16
    assert torch.nn.functional.cosine_similarity(logits(model).float(), logits(reference), dim=-1).min() > 0.99


def test_a_missing_tensor_is_an_error(gguf: Path, tmp_path: Path) -> None:
    folder = tmp_path / "hf"
    squish.convert(gguf, folder, to="hf", encode="f32", rename="hf")
    weights = next(folder.glob("*.safetensors"))
    arrays = {name: tensor.numpy(copy=True) for name, tensor in squish.open(weights).items()}
    del arrays["model.layers.1.mlp.up_proj.weight"]
    (tmp_path / "less").mkdir()
    squish.save(tmp_path / "less" / "model.safetensors", arrays)
    (tmp_path / "less" / "config.json").write_bytes((folder / "config.json").read_bytes())
    with pytest.raises(squish.TensorError) as caught:
        squish_torch.from_pretrained(tmp_path / "less")
    assert caught.value.code == "missing-tensor"
    assert caught.value.tensor == "model.layers.1.mlp.up_proj.weight"


def test_a_file_without_a_config_says_so(tmp_path: Path) -> None:
    squish.save(tmp_path / "x.safetensors", {"w": torch.ones(2, 32).numpy()})
    with pytest.raises(squish.FormatError) as caught:
        squish_torch.from_pretrained(tmp_path / "x.safetensors")
    assert caught.value.code == "config"


def test_the_config_states_no_foreign_quantization(gguf: Path) -> None:
    config = squish_torch.config_of(gguf)
    assert config.model_type == "llama"
    assert getattr(config, "quantization_config", None) is None
    json.dumps(squish_torch.from_pretrained(gguf).config.to_dict())


def test_ids_of_any_shape_and_batch(gguf: Path) -> None:
    model = squish_torch.from_pretrained(gguf)
    both = logits(model, IDS.repeat(2, 1))
    assert (both[1] - logits(model)[0]).abs().max() <= 1e-5


@pytest.mark.parametrize(
    ("target", "file", "options"),
    [
        ("out", "out/model.gguf", {}), ("out.gguf", "out.gguf", {}), ("out", "out/model.zt", {"to": "ztensor"}),
        ("out", "out", {"to": "npydir"}), ("out.zt", "out.zt", {}),
    ],
)  # fmt: skip
def test_a_saved_model_has_the_same_codes(
    gguf: Path, tmp_path: Path, target: str, file: str, options: dict[str, str]
) -> None:
    model = squish_torch.from_pretrained(gguf)
    model.save_pretrained(tmp_path / target, **options)
    assert torch.equal(logits(squish_torch.from_pretrained(tmp_path / file)), logits(model))


def test_changed_weights_are_not_saved_as_those_of_the_file(gguf: Path, tmp_path: Path) -> None:
    model = squish_torch.from_pretrained(gguf)
    copies = copy.deepcopy(model), pickle.loads(pickle.dumps(model))
    copies[0].save_pretrained(tmp_path / "copy")
    assert (tmp_path / "copy" / "model.gguf").exists()
    with pytest.raises(ValueError, match="not serializable"):
        copies[1].save_pretrained(tmp_path / "pickled")
    with torch.no_grad():
        model.model.norm.weight.mul_(2)
    with pytest.raises(squish.TensorError) as caught:
        model.save_pretrained(tmp_path / "changed")
    assert (caught.value.code, caught.value.tensor) == ("state", "model.norm.weight")
    with pytest.raises(squish.UsageError):
        copies[0].save_pretrained(tmp_path / "hub", push_to_hub=True)
    changed = logits(model)
    model.dequantize().save_pretrained(tmp_path / "dense")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "dense", dtype=torch.float32)
    assert (logits(again) - changed).abs().max() <= 1e-4
