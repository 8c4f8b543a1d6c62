"""Logits of real models in onnxruntime: as near to the compressed model in PyTorch as f32 itself is to float64."""

from __future__ import annotations

import demo
import numpy as np
import oracles
import pytest
from oracles import engines

import squish_core as squish

pytestmark = pytest.mark.oracle
LEAST, FACTOR = 1e-4, 3
"""The bound: this, or so many times the error of transformers in f32 against float64, whichever is larger."""
TOKENS = 32


def run_compressed(path, texts, tokens):
    """Runs in the peer: ids of texts, logits after each of them, and greedy tokens, from compressed weights."""
    import squish_torch
    import torch

    torch.set_num_threads(2)
    model, tokenizer = squish_torch.from_pretrained(path), squish_torch.tokenizer_of(path)
    ids, logits, greedy = [tokenizer.encode(text) for text in texts], [], []
    with torch.inference_mode():
        for row in ids:
            outputs = model(torch.tensor([row]), use_cache=True)
            logits.append(outputs.logits[0, -1].float().numpy())
            greedy.append([])
            for _ in range(tokens):
                greedy[-1].append(int(outputs.logits[0, -1].argmax()))
                token = torch.tensor([greedy[-1][-1:]])
                outputs = model(token, past_key_values=outputs.past_key_values, use_cache=True)
    return {"ids": ids, "logits": np.stack(logits), "greedy": greedy}


def run_onnx(path, ids, greedy):
    """Runs in the peer: logits after each row of ids, and greedy tokens, from the written graph.

    Each row is continued from its past: the first token by token, the others by all expected tokens at once. Greedy
    tokens are equal if each is the most probable one after those before it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1  # more than idle cores spin
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    states = [state for state in session.get_inputs() if state.name.startswith("past")]
    sizes = {"batch_size": 1, "past_sequence_length": 0}
    empty = [np.zeros([sizes.get(size, size) for size in state.shape], np.float32) for state in states]

    def run(tokens, seen, past):
        feeds = {
            "input_ids": np.array([tokens]),
            "attention_mask": np.ones((1, seen + len(tokens)), np.int64),
            "position_ids": np.arange(seen, seen + len(tokens))[None],
            **{state.name: values for state, values in zip(states, past)},
        }
        scores, *past = session.run(None, feeds)
        return scores[0], past

    scores, past = run(ids[0], 0, empty)
    logits, generated = [scores[-1]], [int(scores[-1].argmax())]
    for seen in range(len(ids[0]), len(ids[0]) + len(greedy[0]) - 1):
        scores, past = run(generated[-1:], seen, past)
        generated.append(int(scores[-1].argmax()))
    actual = [generated]
    for row, expected in zip(ids[1:], greedy[1:]):
        scores, past = run(row, 0, empty)
        logits.append(scores[-1])
        more, _ = run(expected[:-1], len(row), past)
        actual.append([int(scores[-1].argmax()), *more.argmax(1).tolist()])
    return {"logits": np.stack(logits), "greedy": actual}


def error_of_f32(path, ids):
    """Runs in the peer: by how much logits of transformers in f32 differ from those in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.set_num_threads(2)
    logits = []
    for dtype in (torch.float32, torch.float64):
        model = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, attn_implementation="eager")
        with torch.inference_mode():
            logits.append(torch.stack([model(torch.tensor([row])).logits[0, -1].double() for row in ids]))
    return float((logits[0] - logits[1]).abs().max())


@pytest.mark.parametrize("model", ["smollm2", "gemma"])
def test_logits_are_within_the_error_of_f32(model, tmp_path):
    source, peer = demo.fetch(model), oracles.peer("squish-torch")
    expected = peer.run(run_compressed, timeout=600, path=str(source), texts=list(engines.PROMPTS), tokens=TOKENS)
    squish.convert(source, tmp_path / "values", "hf", encode="f32")
    error = peer.run(error_of_f32, timeout=600, path=str(tmp_path / "values"), ids=expected["ids"])
    (tmp_path / "out").mkdir()
    report = squish.convert(source, tmp_path / "out" / "model.onnx")
    assert {step.exactness.kind for step in report.steps} <= {"bytes", "values"}
    actual = oracles.peer("onnxruntime").run(
        run_onnx,
        timeout=1800,
        path=str(tmp_path / "out" / "model.onnx"),
        ids=expected["ids"],
        greedy=expected["greedy"],
    )
    distance = np.abs(actual["logits"] - expected["logits"]).max()
    print(f"{model}: {distance:.3g} from the compressed model, f32 is {error:.3g} from float64")
    assert distance <= max(LEAST, FACTOR * error)
    assert actual["greedy"] == expected["greedy"]
