"""Text of a model with an EAGLE-3 draft head: that of the model alone, in fewer passes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
import transformers
from draft_heads import HIDDEN, agreeing_tensors, cycling_llama, proposals, random_tensors, save_head
from squish_cli import main
from squish_torch.eagle import HeadConfig
from tiny_models import IDS, SIZES, tiny_gemma, tiny_llama, with_tokenizer
from transformers import DynamicCache

import squish_core as squish

TOP = "eagle_aux_hidden_state_layer_ids"
GREEDY = {"do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a seeded Llama of four layers."""
    return with_tokenizer(
        tiny_llama(tmp_path_factory.mktemp("model") / "hf", tied=False, vocab_size=264, num_hidden_layers=4)
    )


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_head(tmp_path_factory.mktemp("head") / "head", random_tensors())


@pytest.fixture(scope="module")
def cycling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cycling_llama(tmp_path_factory.mktemp("cycling") / "hf")


@pytest.fixture(scope="module")
def loaded(model: Path) -> Any:
    return squish_torch.from_pretrained(model)


@pytest.mark.parametrize(
    "options",
    [
        *({"max_new_tokens": count} for count in (1, 2, 6, 40)), {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2}, {"min_new_tokens": 30, "eos_token_id": [7, 90]},
        {"eos_token_id": list(range(0, 264, 9))}, {"do_sample": True, "temperature": 0.8, "top_k": 20},
    ],
    ids=str,
)  # fmt: skip
def test_text_is_that_of_the_model_alone(loaded: Any, head: Path, options: dict[str, Any]) -> None:
    drafter = squish_torch.Drafter(loaded, head)
    arguments = {"max_new_tokens": 40, **GREEDY, **options, "attention_mask": torch.ones_like(IDS)}
    torch.manual_seed(5)
    expected = loaded.generate(IDS, **arguments)
    torch.manual_seed(5)
    assert drafter.generate(IDS, **arguments).tolist() == expected.tolist()
    assert (drafter.acceptance.proposed > 0) == (arguments["max_new_tokens"] > 2)


def test_a_window_of_attention_does_not_change_the_text(tmp_path: Path) -> None:
    alone = squish_torch.from_pretrained(tiny_gemma(tmp_path / "hf"))
    settings = {"vocab_size": 96, TOP: [1, 1, 2]}
    tensors = {
        **random_tensors(),
        "d2t": np.zeros(96, np.int64),
        "lm_head.weight": random_tensors()["lm_head.weight"][:96],
    }
    head = save_head(tmp_path / "head", tensors | {"t2d": np.ones(96, bool)}, draft_vocab_size=96, **settings)
    drafter = squish_torch.Drafter(alone, head)
    arguments = {**GREEDY, "max_new_tokens": 60, "attention_mask": torch.ones_like(IDS)}
    assert drafter.generate(IDS, **arguments).tolist() == alone.generate(IDS, **arguments).tolist()
    assert alone.config.sliding_window < 60
    embedded = alone.get_input_embeddings()(IDS) / HIDDEN**0.5
    assert (drafter.head._embed(IDS) - embedded).abs().max() < 1e-6


@pytest.mark.parametrize("encode", ["int4", "f16"])
def test_the_head_in_a_file_is_the_draft(model: Path, tmp_path: Path, encode: str) -> None:
    floats = {name: np.asarray(values, np.float32) for name, values in random_tensors().items()}
    head = save_head(tmp_path / "head", floats)  # SQUIZD itself has no integers
    squish.convert(head, tmp_path / "head.squizd", encode=["keep", f"*_proj.weight={encode}"])
    squish.convert(model, tmp_path / "m.squizd", f"squizd:draft={tmp_path / 'head.squizd'}", encode="int4")
    squish.convert(tmp_path / "m.squizd", tmp_path / "again.squizd")
    target = f"squizd:draft={tmp_path / 'head.squizd'}"
    squish.convert(model, tmp_path / "named.squizd", target, encode="int4", rename="gguf")
    for path in (tmp_path / "m.squizd", tmp_path / "again.squizd", tmp_path / "named.squizd"):
        alone = squish_torch.from_pretrained(path)
        drafter = squish_torch.Drafter(alone, path)
        is_compressed = isinstance(drafter.head.attention.q_proj, squish_torch.CompressedLinear)
        assert is_compressed == (encode == "int4")
        arguments = {**GREEDY, "max_new_tokens": 24, "attention_mask": torch.ones_like(IDS)}
        assert drafter.generate(IDS, **arguments).tolist() == alone.generate(IDS, **arguments).tolist()
        assert drafter.acceptance.proposed > 0


@pytest.mark.parametrize(("reads_tokens", "accepted"), [(True, 4), (False, 1)])
def test_what_a_head_knows_is_accepted(cycling: Path, tmp_path: Path, reads_tokens: bool, accepted: int) -> None:
    head = save_head(tmp_path / "head", agreeing_tensors(reads_tokens), norm_before_residual=reads_tokens)
    alone = squish_torch.from_pretrained(cycling)
    drafter = squish_torch.Drafter(alone, head)
    prompt = torch.tensor([[4, 9, 2, 2, 15, 11]])
    passes = []
    hook = alone.model.layers[0].register_forward_hook(lambda *_: passes.append(1))
    ids = drafter.generate(prompt, **GREEDY, max_new_tokens=41, attention_mask=torch.ones_like(prompt))
    hook.remove()
    assert ids[0, 6:].tolist() == [(12 + number) % 16 for number in range(41)]
    steps = 40 // (accepted + 1)
    assert len(passes) == 1 + steps
    assert drafter.acceptance.to_dict() == {
        "passes": steps,
        "proposed": drafter.acceptance.proposed,
        "accepted": accepted * steps,
        "acceptance_rate": accepted * steps / drafter.acceptance.proposed,
        "mean_accepted_length": accepted + 1,
    }
    assert reads_tokens == (drafter.acceptance.rate == 1)


def test_an_accepted_end_token_is_counted(cycling: Path, tmp_path: Path) -> None:
    head = save_head(tmp_path / "head", agreeing_tensors(True), norm_before_residual=True)
    drafter = squish_torch.Drafter(squish_torch.from_pretrained(cycling), head)
    ids = drafter.generate(torch.tensor([[4, 11]]), **{**GREEDY, "eos_token_id": 15}, max_new_tokens=40)
    assert ids.tolist() == [[4, 11, 12, 13, 14, 15]]
    assert (drafter.acceptance.proposed, drafter.acceptance.accepted) == (4, 3)


@pytest.mark.parametrize("norm_before_residual", [False, True])
@pytest.mark.parametrize("spelling", ["midlayer.", "layers.0."])
def test_proposals_are_those_of_the_equations(
    loaded: Any, tmp_path: Path, norm_before_residual: bool, spelling: str
) -> None:
    tensors = random_tensors(3)
    named = {name.replace("midlayer.", spelling): values for name, values in tensors.items()}
    head = save_head(tmp_path / "head", named, norm_before_residual=norm_before_residual)
    drafter = squish_torch.Drafter(loaded, head)
    with torch.no_grad(), drafter._hidden_states() as outputs:
        states = loaded(IDS, output_hidden_states=True).hidden_states
        assert [torch.equal(a, b) for a, b in zip(outputs, states[1:4])] == [True] * 3
        states = torch.cat(outputs, -1)
        following, cache = torch.cat((IDS[:, 1:], torch.tensor([[7]])), 1), DynamicCache()
        drafter.head.propose(states[:, :3], following[:, :3], cache, 4)
        chain = drafter.head.propose(states[:, 3:], following[:, 3:], cache, 4)  # continues the cache
    embedding = loaded.get_input_embeddings().weight
    expected = proposals(tensors, embedding, states[0], following[0], 4, norm_before_residual)
    assert chain[0].tolist() == expected
    assert cache.get_seq_length() == 8


def test_a_head_may_be_narrower_than_its_model_and_have_an_embedding(loaded: Any, tmp_path: Path) -> None:
    tensors = random_tensors(4, hidden=32, width=HIDDEN)
    tensors["embed_tokens.weight"] = np.random.default_rng(1).standard_normal((264, 32)).astype(np.float32)
    head = save_head(tmp_path / "head", tensors, hidden_size=32, target_hidden_size=HIDDEN)
    drafter = squish_torch.Drafter(loaded, head)
    arguments = {**GREEDY, "max_new_tokens": 12, "attention_mask": torch.ones_like(IDS)}
    assert drafter.generate(IDS, **arguments).tolist() == loaded.generate(IDS, **arguments).tolist()
    assert drafter.head.embedding is not None


@pytest.mark.parametrize(
    ("settings", "count", "layers"),
    [
        ({TOP: [1, 2, 4]}, 4, (1, 2, 4)), ({TOP: None, "eagle_config": {TOP: [0, 1, 3]}}, 4, (1, 2, 4)),
        ({TOP: None}, 12, (2, 6, 9)), ({TOP: None, "eagle_config": {TOP: []}}, 12, (2, 6, 9)),
    ],
)  # fmt: skip
def test_the_config_states_the_layers(
    tmp_path: Path, settings: dict[str, Any], count: int, layers: tuple[int, ...]
) -> None:
    head = squish.open(save_head(tmp_path / "head", random_tensors(), **settings))
    config = transformers.LlamaConfig(**{**SIZES, "vocab_size": 264, "num_hidden_layers": count})
    assert HeadConfig.of(head, config).layers == layers


@pytest.mark.parametrize(
    ("settings", "key", "found"),
    [
        ({"hidden_size": "left out"}, "hidden_size", None), ({"num_attention_heads": 0}, "num_attention_heads", 0),
        ({"intermediate_size": "96"}, "intermediate_size", "96"), ({"rms_norm_eps": None}, "rms_norm_eps", None),
        ({"hidden_size": 128}, "hidden_size", 128), ({"target_hidden_size": 96}, "target_hidden_size", 96),
        ({"vocab_size": 300}, "vocab_size", 300), ({"num_hidden_layers": 2}, "num_hidden_layers", 2),
        ({"model_type": "qwen3"}, "model_type", "qwen3"), ({"fc_norm": True}, "fc_norm", True),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state", False),
        ({"num_key_value_heads": 3}, "num_key_value_heads", 3), ({TOP: [1, 2, 5]}, TOP, [1, 2, 5]),
        ({"hidden_act": ["silu"]}, "hidden_act", ["silu"]),
        ({TOP: None}, TOP, None), ({TOP: "1"}, TOP, "1"), ({"rope_scaling": {"rope_type": "odd"}}, "odd", None),
    ],
    ids=str,
)  # fmt: skip
def test_the_message_about_a_config_that_does_not_fit_has_key_and_value(
    loaded: Any, tmp_path: Path, settings: dict[str, Any], key: str, found: Any
) -> None:
    head = save_head(tmp_path / "head", random_tensors(), **settings)
    with pytest.raises(squish.FormatError) as caught:
        squish_torch.Drafter(loaded, head)
    assert caught.value.code == "config"
    assert key in str(caught.value)
    assert caught.value.found == found


@pytest.mark.parametrize(
    ("change", "settings", "code", "tensor"),
    [
        ({"midlayer.mlp.up_proj.weight": None}, {}, "missing-tensor", "midlayer.mlp.up_proj.weight"),
        ({"d2t": None}, {}, "missing-tensor", "d2t"),
        ({}, {"head_dim": 1 << 50}, "shape", "midlayer.self_attn.q_proj.weight"),
        ({}, {"draft_vocab_size": 90}, "shape", "lm_head.weight"), ({}, {TOP: [1, 2]}, "shape", "fc.weight"),
        ({"midlayer.self_attn.q_proj.bias": np.zeros(128, np.float32)}, {}, "draft", "midlayer.self_attn.q_proj.bias"),
        ({"d2t": np.full(100, 200)}, {}, "draft", "d2t"),
    ],
    ids=str,
)  # fmt: skip
def test_tensors_that_do_not_fit_the_config_are_refused(
    loaded: Any, tmp_path: Path, change: dict[str, Any], settings: dict[str, Any], code: str, tensor: str
) -> None:
    tensors = {name: values for name, values in (random_tensors() | change).items() if values is not None}
    head = save_head(tmp_path / "head", tensors, **settings)
    with pytest.raises(squish.TensorError) as caught:
        squish_torch.Drafter(loaded, head)
    assert (caught.value.code, caught.value.tensor) == (code, tensor)


def test_the_message_about_a_head_without_a_config_says_where_to_put_it(loaded: Any, tmp_path: Path) -> None:
    squish.save(tmp_path / "head.safetensors", random_tensors())
    with pytest.raises(squish.FormatError) as caught:
        squish_torch.Drafter(loaded, tmp_path / "head.safetensors")
    assert (caught.value.code, caught.value.part) == ("config", "config.json")
    assert "num_attention_heads" in str(caught.value)


def test_what_cannot_be_drafted_is_refused(loaded: Any, head: Path) -> None:
    drafter = squish_torch.Drafter(loaded, head)
    cases: list[dict[str, Any]] = [
        {"inputs": IDS.repeat(2, 1)}, {"inputs": IDS, "num_beams": 2},
        {"inputs": IDS, "return_dict_in_generate": True},
        {"inputs": IDS, "attention_mask": torch.tensor([[0, *[1] * 7]])},
        {"inputs": IDS, "past_key_values": squish_torch.CompressedCache(drafter.model, bits=4)},
    ]  # fmt: skip
    for case in cases:
        with pytest.raises(squish.UsageError):
            drafter.generate(**{**GREEDY, "max_new_tokens": 4, **case})


def answer(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_the_command_runs_with_a_draft(cycling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    head = save_head(tmp_path / "head", agreeing_tensors(True), norm_before_residual=True)
    squish.convert(cycling, tmp_path / "m.squizd", f"squizd:draft={head}")
    words = ["run", str(tmp_path / "m.squizd"), "--prompt", '!"#', "--raw", "--greedy", "--max-new-tokens", "21"]
    _, alone = answer(words, capsys)
    assert alone["draft"] is None
    for draft in (["--draft"], ["--draft", str(head)], ["--draft", str(tmp_path / "m.squizd")]):
        code, data = answer([*words, *draft], capsys)
        assert (code, data["text"], data["tokens"]) == (0, alone["text"], 21)
        assert data["draft"] == {
            "passes": 4,
            "proposed": 16,
            "accepted": 16,
            "acceptance_rate": 1.0,
            "mean_accepted_length": 5.0,
        }
    assert main([*words, "--draft"]) == 0
    assert "draft: 16 of 16 proposed tokens accepted (100.0%), 5.00 tokens a pass" in capsys.readouterr().out


def test_a_model_without_a_head_is_refused_before_it_is_loaded(
    cycling: Path, head: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["run", str(cycling), "--prompt", "a", "--raw"]
    for draft, code in (([], "draft"), ([str(cycling)], "draft")):
        status, data = answer([*words, "--draft", *draft], capsys)
        assert (status, data["error"]["code"]) == (2, code)


def test_evaluation_reports_the_acceptance(cycling: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text.txt").write_text("\"#$%&'()*+,-./" * 8)
    head = save_head(tmp_path / "head", agreeing_tensors(True), norm_before_residual=True)
    words = ["eval", str(cycling), "--text", str(tmp_path / "text.txt"), "--window", "32"]
    state = ["--state", str(tmp_path / "state.json")]
    code, first = answer([*words, "--draft", str(head), "--limit", "1", *state], capsys)
    assert code == 0
    assert first["draft"]["acceptance_rate"] == 1.0
    code, resumed = answer([*words, "--draft", str(head), "--limit", "3", *state], capsys)
    _, whole = answer([*words, "--draft", str(head), "--limit", "3"], capsys)
    assert resumed["draft"] == whole["draft"]
    assert whole["draft"]["accepted"] == 3 * first["draft"]["accepted"]
    assert main([*words, "--limit", "1", "--draft", str(head)]) == 0
    assert "proposed tokens accepted (100.0%)" in capsys.readouterr().out
