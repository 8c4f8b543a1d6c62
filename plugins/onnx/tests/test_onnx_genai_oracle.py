"""onnxruntime-genai runs the folder that a conversion writes."""

from __future__ import annotations

import oracles
import pytest
from oracles import engines, families

import squish_core as squish

pytestmark = pytest.mark.oracle
IDS = [[3, 1, 4, 1, 5, 9], [2, 6, 5, 3, 5], [8, 9, 7]]
TOKENS = 8
MESSAGES = '[{"role": "user", "content": "Subject to the terms"}]'


def generated(folder, ids, tokens):
    """Runs in the peer: greedy continuations of ids."""
    import onnxruntime_genai as genai

    model, continuations = genai.Model(genai.Config(folder)), []
    for row in ids:
        params = genai.GeneratorParams(model)
        params.set_search_options(max_length=len(row) + tokens, do_sample=False)
        generator = genai.Generator(model, params)
        generator.append_tokens(np.array([row], np.int32))  # noqa: F821 - the peer has it
        while not generator.is_done():
            generator.generate_next_token()
        continuations.append([int(token) for token in generator.get_sequence(0)][len(row) :])
    return continuations


def texts(folder, text, messages):
    """Runs in the peer: a text there and back, and messages in the chat template."""
    import onnxruntime_genai as genai

    tokenizer = genai.Tokenizer(genai.Model(genai.Config(folder)))
    ids = tokenizer.encode(text)
    return [int(token) for token in ids], tokenizer.decode(ids), tokenizer.apply_chat_template(messages)


@pytest.mark.parametrize(
    "family",
    [
        "llama", "mistral", "mixtral", "qwen2", "qwen2_5_vl", "qwen3", "qwen3_moe", "gemma2", "gemma3_text", "phi3",
        "granite", "olmo2", "glm4", "starcoder2", "lfm2",
    ],
)  # fmt: skip
def test_the_folder_generates_what_onnxruntime_generates(family, tmp_path):
    source = families.make(family, tmp_path / "source")
    (tmp_path / "out").mkdir()
    squish.convert(source, tmp_path / "out" / "model.onnx")
    expected = engines.ask("onnxruntime", tmp_path / "out" / "model.onnx", IDS, tokens=TOKENS).greedy
    peer = oracles.peer("onnxruntime-genai")
    actual = peer.run(generated, folder=str(tmp_path / "out"), ids=IDS, tokens=TOKENS)
    assert actual == expected


@pytest.mark.peers
def test_the_tokenizer_and_the_chat_template_are_read(tmp_path):
    source = families.make("llama", tmp_path / "source")
    squish.convert(source, tmp_path / "m.gguf", encode="q8_0")
    (tmp_path / "out").mkdir()
    squish.convert(tmp_path / "m.gguf", tmp_path / "out" / "model.onnx")
    peer = oracles.peer("onnxruntime-genai")
    ids, text, prompt = peer.run(texts, folder=str(tmp_path / "out"), text=engines.PROMPTS[0], messages=MESSAGES)
    assert text.endswith(engines.PROMPTS[0])
    assert prompt == "user: Subject to the terms\n"
    assert len(ids) > 4
