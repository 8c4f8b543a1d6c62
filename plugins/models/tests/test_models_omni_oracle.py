"""Qwen 3 Omni as Transformers saves the part that thinks, run by Transformers, llama.cpp and mlx-lm."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracles import families, peer
from oracles.engines import ask
from oracles.families_moe import MOE, SIZE
from squish_models.api import check_model

import squish_core as squish

pytestmark = pytest.mark.oracle
TEXT = {
    **SIZE, **MOE, "head_dim": 32, "tie_word_embeddings": False,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [6, 5, 5], "mrope_interleaved": True,
    },
}  # fmt: skip
VISION = {
    "depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64,
    "deepstack_visual_indexes": [0], "num_position_embeddings": 16,
}  # fmt: skip
AUDIO = {
    "d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "output_dim": 64,
    "downsample_hidden_size": 8, "num_mel_bins": 16,
}  # fmt: skip
BOUNDS = {"gguf": ("llama.cpp", 1e-4), "hf": ("transformers", 1e-4), "mlx": ("mlx", 1e-3)}


def save(folder: str, thinker: dict[str, Any]) -> None:
    """Runs in the peer: saves a model of seeded weights, without the part that speaks."""
    import torch
    from transformers import AutoConfig, Qwen3OmniMoeForConditionalGeneration

    config = AutoConfig.for_model("qwen3_omni_moe", thinker_config=thinker, enable_audio_output=False)
    torch.manual_seed(0)
    model = Qwen3OmniMoeForConditionalGeneration(config).float()
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            center, scale = (1.0, 0.2) if "norm" in name else (0.0, parameter.shape[-1] ** -0.5)
            parameter.copy_(center + scale * torch.randn(parameter.shape))
    model.save_pretrained(folder)


def logprobs(folder: str, ids: list[list[int]]) -> list[Any]:
    """Runs in the peer: the log-probabilities after the last token of each text."""
    import torch
    from transformers import Qwen3OmniMoeForConditionalGeneration

    model = Qwen3OmniMoeForConditionalGeneration.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        results = [model.thinker(input_ids=torch.tensor([each])).logits[0, -1] for each in ids]
    return [result.log_softmax(-1).numpy() for result in results]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omni") / "m"
    families.make("qwen3_moe", path)  # for its tokenizer
    for each in [each for each in path.iterdir() if "tokenizer" not in each.name]:
        each.unlink()
    thinker = {"text_config": TEXT, "vision_config": VISION, "audio_config": AUDIO, "tie_word_embeddings": False}
    peer("transformers").run(save, folder=str(path), thinker=thinker)
    return path


@pytest.mark.parametrize("layout", BOUNDS)
def test_engines_compute_what_the_part_that_thinks_does(layout: str, folder: Path, tmp_path: Path) -> None:
    engine, bound = BOUNDS[layout]
    target = tmp_path / "m.gguf"
    squish.convert(folder, target)
    if layout != "gguf":
        squish.convert(target, tmp_path / "m", layout)
        target = tmp_path / "m"
    answer = ask(engine, target)
    ids = [[*map(int, each)] for each in answer.ids]
    expected = np.stack(peer("transformers").run(logprobs, folder=str(folder), ids=ids))
    assert np.abs(answer.logprobs - expected).max() < bound
    assert not [each for each in check_model(target, engine).problems if each.severity == "error"]
