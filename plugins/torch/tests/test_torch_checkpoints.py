"""Checkpoint folders whose codes transformers would need other packages for, and mixtures of experts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import squish_torch
import torch
import transformers
from squish_torch import device_ops
from tiny_models import SIZES, _saved, _seeded, converted, logits, tiny_llama

import squish_core as squish


def through_transformers(folder: Path, *settings: Any, **options: Any) -> Any:
    """The model as `AutoModelForCausalLM` loads it with our quantizer."""
    return transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        config=squish_torch.config_of(folder),
        dtype=torch.float32,
        quantization_config=squish_torch.SquishConfig(*settings, **options),
    )


def decoded(path: Path, folder: Path) -> Any:
    """The model of the decoded values, as transformers loads a plain checkpoint."""
    squish.convert(path, folder, to="hf", encode="f32", rename="hf")
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


@pytest.mark.parametrize("method", ["gptq", "awq", "compressed-tensors"])
def test_quantized_folders_load_through_transformers(tmp_path: Path, method: str) -> None:
    source = tiny_llama(tmp_path / "f32", tied=False)
    options = ["int4:group_size=32", "*norm*=keep", "*embed*=keep", "lm_head*=keep"]
    squish.convert(source, tmp_path / "q", to=f"hf:method={method}", encode=options)
    reference = decoded(tmp_path / "q", tmp_path / "plain")
    direct = squish_torch.from_pretrained(tmp_path / "q")
    through = through_transformers(tmp_path / "q")
    for model in (direct, through):
        assert isinstance(model.model.layers[0].mlp.up_proj, squish_torch.CompressedLinear)
        assert (logits(model) - logits(reference)).abs().max() <= 1e-4
    assert torch.equal(logits(direct), logits(through))
    for number, model in enumerate((direct, through)):
        model.save_pretrained(tmp_path / f"saved{number}")
        again = squish_torch.from_pretrained(tmp_path / f"saved{number}")
        assert torch.equal(logits(again), logits(direct))


def test_a_tied_embedding_stays_tied_compressed_or_decoded(tmp_path: Path) -> None:
    source = tiny_llama(tmp_path / "f32")
    squish.convert(
        source, tmp_path / "q", to="hf:method=compressed-tensors", encode=["int4:group_size=32", "*norm*=keep"]
    )
    expected = logits(squish_torch.from_pretrained(tmp_path / "q"))
    model = through_transformers(tmp_path / "q")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.uint8
    assert torch.equal(logits(model), expected)
    with pytest.warns(UserWarning, match="is decoded"):
        model = through_transformers(tmp_path / "q", "metal", on_unsupported="dense")
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert model.lm_head.weight.dtype == torch.float32
    assert (logits(model) - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("kind", ["Qwen3Moe", "Mixtral"])
def test_experts_stay_compressed(tmp_path: Path, kind: str) -> None:
    counts = {"num_experts": 4} if kind == "Qwen3Moe" else {"num_local_experts": 4}
    sizes = {**SIZES, **counts, "num_experts_per_tok": 2, "moe_intermediate_size": 64, "norm_topk_prob": True}
    config = getattr(transformers, f"{kind}Config")(**sizes)
    folder = _saved(getattr(transformers, f"{kind}ForCausalLM")(_seeded(config)), tmp_path / "f32")
    encode = ["q4_1", "*norm*=keep", "*embed*=q8_0", "*gate.weight=keep", "*gate_inp*=keep"]
    path = converted(folder, tmp_path / "m.gguf", encode)
    model, reference = squish_torch.from_pretrained(path), decoded(path, tmp_path / "plain")
    experts = model.model.layers[0].mlp.experts
    assert isinstance(experts, squish_torch.CompressedExperts)
    assert {parameter.dtype for parameter in experts.parameters()} == {torch.uint8}
    assert (logits(model) - logits(reference)).abs().max() <= 1e-4
    encode = ["int4:group_size=32", "*norm*=keep", "*embed*=keep", "lm_head*=keep", "*gate.weight=keep"]
    squish.convert(folder, tmp_path / "q", to="hf:method=gptq", encode=encode)
    direct, through = squish_torch.from_pretrained(tmp_path / "q"), through_transformers(tmp_path / "q")
    assert isinstance(through.model.layers[0].mlp.experts, squish_torch.CompressedExperts)
    assert torch.equal(logits(direct), logits(through))


def test_the_operation_for_stacks_of_experts(tmp_path: Path) -> None:
    values = torch.randn(3, 8, 64, generator=torch.Generator().manual_seed(0))
    squish.save(tmp_path / "x.gguf", {"w": values.numpy()}, encode="q4_1")
    bundle = squish_torch.load_file(tmp_path / "x.gguf", compressed=True)["w"]
    x, ids = torch.randn(5, 64), torch.tensor([2, 0, 0, 1, 2])
    args = (x, ids, list(bundle.parts.values()), bundle.description, "")
    tensor = squish_torch.load_file(tmp_path / "x.gguf")["w"]
    expected = torch.einsum("ni,noi->no", x, tensor[ids])
    assert torch.allclose(torch.ops.squish.experts(*args), expected, atol=1e-3)
    torch.library.opcheck(torch.ops.squish.experts.default, args)
    u, exact = x.clone().requires_grad_(), x.double().requires_grad_()
    gradient = torch.randn(5, 8)
    torch.ops.squish.experts(u, *args[1:]).backward(gradient)
    torch.einsum("ni,noi->no", exact, tensor[ids].double()).backward(gradient.double())
    assert torch.allclose(u.grad.double(), exact.grad, atol=1e-3)
    assert torch.allclose(device_ops.experts_gradient(gradient, *args[1:]), u.grad, atol=1e-4)
    torch.library.opcheck(torch.ops.squish.experts.default, (u, *args[1:]))
    torch.library.opcheck(torch.ops.squish.experts_gradient.default, (gradient, *args[1:]))
