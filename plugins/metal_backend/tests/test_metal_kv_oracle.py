"""The KV cache under mlx_lm: its generation loop, masks, trimming and saving use it as one of its own."""

import sysconfig
from pathlib import Path

import pytest

oracles = pytest.importorskip("oracles", reason="the peers of the repository are not on the path")

ROOT = Path(__file__).parents[3]
PATHS = [str(ROOT), str(ROOT / "plugins/metal_backend/src"), sysconfig.get_paths()["purelib"]]


def generate(paths, folder):
    import sys

    sys.path.extend(paths)  # last, so that the peer's own packages come first
    import mlx.core as mx
    from mlx_lm.generate import generate_step
    from mlx_lm.models import llama
    from mlx_lm.models.cache import can_trim_prompt_cache, make_prompt_cache, save_prompt_cache, trim_prompt_cache
    from squish_metal.kv import Cache

    mx.random.seed(7)
    arguments = llama.ModelArgs(
        model_type="llama",
        hidden_size=128,
        num_hidden_layers=3,
        intermediate_size=256,
        num_attention_heads=4,
        num_key_value_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=200,
    )
    model = llama.Model(arguments)
    prompt = mx.random.randint(0, 200, (90,))

    def run(cache, tokens=40):
        """Tokens and log-probabilities, with the prompt in pieces of 32."""
        steps = generate_step(prompt, model, max_tokens=tokens, prompt_cache=cache, prefill_step_size=32)
        found = [(int(token), logprobs) for token, logprobs in steps]
        return [token for token, _ in found], mx.stack([each for _, each in found])

    def caches(*settings):
        return [Cache(*settings) for _ in model.layers]

    dense = make_prompt_cache(model)
    reference = run(dense)
    unquantized = run(caches(8, 32, 1000))
    compressed_cache = caches(8, 32, 32)
    compressed = run(compressed_cache)
    result = {
        "same": reference[0] == unquantized[0],
        "gap": mx.abs(reference[1] - unquantized[1]).max().item(),
        "compressed_gap": mx.abs(reference[1][0] - compressed[1][0]).max().item(),
        "offset": compressed_cache[0].offset, "nbytes": sum(cache.nbytes for cache in compressed_cache),
        "dense": sum(sum(array.nbytes for array in cache.keys_and_values()) for cache in dense),
        "trimmable": can_trim_prompt_cache(compressed_cache),
        "trimmed": trim_prompt_cache(compressed_cache, 60), "after": compressed_cache[0].offset,
    }  # fmt: skip
    save_prompt_cache(folder + "/cache.safetensors", compressed_cache)
    more = run(compressed_cache, 5)
    result["more"] = len(more[0])
    return result


@pytest.mark.oracle
def test_mlx_lm_generates_with_the_cache(tmp_path):
    found = oracles.peer("mlx-lm").run(generate, paths=PATHS, folder=str(tmp_path))
    assert found["same"]
    assert found["gap"] < 1e-4
    assert found["compressed_gap"] < 0.05
    assert found["nbytes"] < 0.6 * found["dense"]
    assert (found["trimmable"], found["trimmed"], found["after"], found["more"]) == (True, 60, found["offset"] - 60, 5)
    assert (tmp_path / "cache.safetensors").stat().st_size > 0
