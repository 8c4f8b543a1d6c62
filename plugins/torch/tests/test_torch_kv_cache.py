"""Compressed KV caches under transformers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import squish_torch
import torch
import transformers
from squish_codecs.kv import select_tokens
from squish_torch.kv_cache import CompressedCache
from tiny_models import IDS, greedy, tiny_gemma, tiny_llama

import squish_core as squish

PROMPT = torch.arange(3, 91)[None] % 89


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama") / "hf")


@pytest.fixture
def model(llama: Path) -> transformers.PreTrainedModel:
    return squish_torch.from_pretrained(llama)


def after(model: transformers.PreTrainedModel, cache: CompressedCache | None) -> torch.Tensor:
    """Logits after a prompt and after each of `IDS`."""
    with torch.no_grad():
        rows = [model(PROMPT, past_key_values=cache, use_cache=True)]
        for token in IDS[0]:
            rows.append(model(token[None, None], past_key_values=rows[-1].past_key_values, use_cache=True))
    return torch.cat([row.logits[0, -1:] for row in rows])


def test_tokens_within_the_residual_change_nothing(model: transformers.PreTrainedModel) -> None:
    cache = CompressedCache(model, bits=2)
    assert torch.equal(after(model, cache), after(model, None))
    assert cache.get_seq_length() == PROMPT.shape[1] + IDS.shape[1]


def test_fewer_bits_are_fewer_bytes_and_further_away(model: transformers.PreTrainedModel) -> None:
    expected = after(model, None)
    sizes, errors = [], []
    for bits in (8, 4, 2):
        cache = CompressedCache(model, bits=bits, residual=32)
        errors.append(float((after(model, cache) - expected).square().mean()))
        sizes.append(cache.nbytes)
    assert sizes == sorted(sizes, reverse=True)
    assert 0 < errors[0] < errors[1] < errors[2]


def test_a_long_prompt_keeps_the_tokens_that_snapkv_selects(model: transformers.PreTrainedModel) -> None:
    keep, window = 40, 16
    states: list[tuple[torch.Tensor, torch.Tensor]] = []
    dense = after(model, None)
    own = squish_torch.kv_cache.sdpa_attention_forward

    def attention(module, query, key, *rest, **options):
        if query.shape[-2] > 1:
            states.append((query, key))
        return own(module, query, key, *rest, **options)

    cache = CompressedCache(model, keep=keep, window=window, residual=128)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(squish_torch.kv_cache, "sdpa_attention_forward", attention)
        shown = after(model, cache)
    assert torch.equal(shown[0], dense[0])
    assert not torch.equal(shown[1], dense[1])
    assert cache.get_seq_length() == PROMPT.shape[1] + IDS.shape[1]
    for layer, (query, key) in zip(cache.layers, states, strict=True):
        tokens = select_tokens(query[..., -window:, :].numpy(), key.numpy(), keep)[..., None]
        keys = layer.array_cache.fetch()[0]
        assert np.array_equal(keys[..., :keep, :], np.take_along_axis(key.numpy(), tokens, axis=-2))
        assert keys.shape[-2] == keep + IDS.shape[1]


def test_generate_takes_the_cache(model: transformers.PreTrainedModel) -> None:
    expected = greedy(model, 8)
    settings = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0, "attention_mask": torch.ones_like(IDS)}
    for options in ({"bits": 8}, {"bits": 8, "keep": 64}):
        cache = CompressedCache(model, **options)
        assert model.generate(IDS, max_new_tokens=8, past_key_values=cache, **settings)[0].tolist() == expected
        cache.reset()
        assert cache.get_seq_length() == 0


def test_sliding_layers_keep_their_own_cache(tmp_path: Path) -> None:
    model = squish_torch.from_pretrained(tiny_gemma(tmp_path / "hf"))
    assert torch.equal(after(model, CompressedCache(model, bits=4)), after(model, None))


def test_another_attention_and_beams_are_errors(model: transformers.PreTrainedModel) -> None:
    cache = CompressedCache(model, keep=40)
    model.set_attn_implementation("sdpa")
    with pytest.raises(squish.UsageError):
        after(model, cache)
    with pytest.raises(squish.UsageError):
        CompressedCache(model).layers[0].reorder_cache(torch.tensor([0]))
