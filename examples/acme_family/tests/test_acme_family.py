"""The kit on the family of ACME, and its models in llama.cpp and Transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from squish_models.api import small_config, small_tokenizer

import squish_core as squish
from squish_core.testing import FamilySuite, write_model

BASE = "llama"
CONFIG = {**small_config(BASE), "model_type": "acme", "architectures": ["AcmeForCausalLM"]}
"""config.json of a small model. Write the published one here, with small sizes."""


class TestAcme(FamilySuite):
    family = "acme"

    def configs(self) -> Mapping[str, Mapping[str, Any]]:
        return {"small": CONFIG}


def test_a_gguf_continues_a_text_as_the_checkpoint_does(tmp_path: Path) -> None:
    """llama.cpp and Transformers choose the same tokens: names, rows and settings are right, not only reversible."""
    xllamacpp, torch = pytest.importorskip("xllamacpp"), pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    files = small_tokenizer(CONFIG["vocab_size"])
    folder = write_model(tmp_path / "acme", "acme", CONFIG, dtype="f32", files=files)
    squish.convert(folder, tmp_path / "acme.gguf")

    settings = {**small_config(BASE), "bos_token_id": None, "eos_token_id": None}  # Transformers has the base's class
    (folder / "config.json").write_text(json.dumps(settings))
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = [5, 17, 40, 8]
    generated = model.generate(torch.tensor([prompt]), max_new_tokens=8, do_sample=False)[0, len(prompt) :].tolist()

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(tmp_path / "acme.gguf")
    parameters.n_ctx, parameters.cpuparams.n_threads = 256, 1
    request = {"prompt": prompt, "max_tokens": 8, "temperature": 0.0, "logprobs": 1, "ignore_eos": True}
    answer = xllamacpp.Server(parameters).handle_completions(request)
    assert [token["id"] for token in answer["choices"][0]["logprobs"]["content"]] == generated
