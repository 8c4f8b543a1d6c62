"""mistralrs 0.9.5 loads folders written by Squish; log-probabilities of all tokens are compared."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import oracles
import pytest

import squish_core as squish

pytestmark = [pytest.mark.oracle, pytest.mark.peers]

CONFIG = {
    "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 512,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32", "bos_token_id": 0,
    "eos_token_id": 1, "sliding_window": 512, "use_sliding_window": False, "max_window_layers": 2,
}  # fmt: skip
MOE = {
    "hidden_size": 128, "moe_intermediate_size": 64, "num_experts": 4, "num_experts_per_tok": 2, "head_dim": 64,
    "num_attention_heads": 2, "num_key_value_heads": 1, "decoder_sparse_step": 1, "norm_topk_prob": True,
    "mlp_only_layers": [], "attention_bias": False, "num_hidden_layers": 1,
}  # fmt: skip
ARCHITECTURES = {"qwen2": "Qwen2", "llama": "Llama", "qwen3_moe": "Qwen3Moe"}
TYPES = (
    "afq2", "afq3", "afq4", "afq6", "afq8", "hqq1", "hqq2", "hqq4", "hqq8", "fp8", "f8q8", "mxfp4", "q4_0", "q4_1",
    "q8_0", "unquant",
)  # fmt: skip
BLOCKS = 0.08  # mistral.rs multiplies GGML blocks by int8 activations
EXACT = 1.5e-3


def tokenizer() -> tuple[dict[str, Any], dict[str, Any]]:
    """A single-byte tokenizer and its config."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    letters = [*map(chr, shown), *(chr(256 + place) for place in range(len(hidden)))]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    whole = {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None, "pre_tokenizer": level,
        "post_processor": None, "decoder": level,
        "added_tokens": [{"id": number, "content": name, **special} for number, name in enumerate(("<s>", "</s>"))],
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {name: number for number, name in enumerate(["<s>", "</s>", *letters])}, "merges": [],
        },
    }  # fmt: skip
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    return whole, {"bos_token": "<s>", "eos_token": "</s>", "chat_template": template, "model_max_length": 512}


def shapes(model: str, config: dict[str, Any]) -> dict[str, list[int]]:
    """Names and shapes of a model's tensors."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    head = config.get("head_dim", hidden // heads)
    shapes = {name: [config["vocab_size"], hidden] for name in ("model.embed_tokens.weight", "lm_head.weight")}
    shapes["model.norm.weight"] = [hidden]
    for number in range(config["num_hidden_layers"]):
        layer = f"model.layers.{number}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"{layer}.{norm}.weight"] = [hidden]
        for name, wide in (("q", heads), ("k", config["num_key_value_heads"]), ("v", config["num_key_value_heads"])):
            shapes[f"{layer}.self_attn.{name}_proj.weight"] = [wide * head, hidden]
            if model == "qwen2":
                shapes[f"{layer}.self_attn.{name}_proj.bias"] = [wide * head]
        shapes[f"{layer}.self_attn.o_proj.weight"] = [hidden, heads * head]
        inner, places = config["intermediate_size"], [f"{layer}.mlp"]
        if model == "qwen3_moe":
            inner, places = config["moe_intermediate_size"], [f"{layer}.mlp.experts.{e}" for e in range(4)]
            shapes[f"{layer}.mlp.gate.weight"] = [config["num_experts"], hidden]
            shapes |= {f"{layer}.self_attn.{name}_norm.weight": [head] for name in "qk"}
        for place in places:
            shapes |= {f"{place}.{name}_proj.weight": [inner, hidden] for name in ("gate", "up")}
            shapes[f"{place}.down_proj.weight"] = [hidden, inner]
    return shapes


@pytest.fixture
def make_model(uqff: SimpleNamespace, tmp_path: Path) -> Callable[[str], Path]:
    """A function that writes the folder of a small model."""

    def make(model: str) -> Path:
        folder = tmp_path / model
        folder.mkdir()
        whole, config = tokenizer()
        settings = {**CONFIG, **(MOE if model == "qwen3_moe" else {}), "vocab_size": 258, "model_type": model,
                    "architectures": [f"{ARCHITECTURES[model]}ForCausalLM"]}  # fmt: skip
        for name, value in (("tokenizer", whole), ("tokenizer_config", config), ("config", settings)):
            (folder / f"{name}.json").write_text(json.dumps(value))
        rng = np.random.default_rng(0)
        tensors = {}
        for name, shape in shapes(model, settings).items():
            values = rng.normal(1 if "norm" in name else 0, 0.06, shape).astype("<f4")
            tensors[name] = ("F32", shape, values.tobytes())
        (folder / "model.safetensors").write_bytes(uqff.safetensors(tensors))
        return folder

    return make


def peer_probabilities(folder, file, arch, write, quant):  # type: ignore[no-untyped-def] # runs in the peer
    import os

    os.environ["HF_HUB_OFFLINE"] = "1"
    from mistralrs import Architecture, ChatCompletionRequest, ModelDType, Runner, Which

    more = {"write_uqff": write} if write else {"from_uqff": file} if file else {}
    which = Which.Plain(model_id=folder, arch=getattr(Architecture, arch), dtype=ModelDType.F32, **more)
    runner = Runner(which=which, in_situ_quant=quant) if quant else Runner(which=which)
    if write:
        return []
    messages = [{"role": "user", "content": "hello there"}]
    request = ChatCompletionRequest(
        model="m", messages=messages, logprobs=True, top_logprobs=258, temperature=0, max_tokens=2
    )
    tokens = runner.send_chat_completion_request(request).choices[0].logprobs.content
    logprobs = [{int(top.token): top.logprob for top in token.top_logprobs} for token in tokens]
    return [[each[number] for number in range(258)] for each in logprobs]


def ask(folder: Path, file: str = "", *, arch: str, write: str = "", quant: str = "") -> np.ndarray:
    """Log-probabilities [2, 258]; retries, since its threads sometimes hang."""
    for patience in (20.0, 20.0, 60.0):
        try:
            return np.array(
                oracles.peer("mistralrs").run(
                    peer_probabilities,
                    timeout=patience,
                    folder=str(folder),
                    file=file,
                    arch=ARCHITECTURES[arch],
                    write=write,
                    quant=quant,
                )
            )
        except oracles.PeerTimeout as error:
            last = error
    raise last


def decoded(folder: Path, target: Path) -> Path:
    """The same weights in float32, a folder mistral.rs loads without UQFF."""
    target.mkdir()
    squish.convert(folder, target / "model.safetensors", "safetensors", "f32")
    for asset in folder.glob("*.json"):
        shutil.copy(asset, target)
    return target


@pytest.mark.parametrize("quant", TYPES)
def test_a_written_folder_gives_the_probabilities_of_its_weights(
    quant: str, make_model: Callable[[str], Path], tmp_path: Path
) -> None:
    conversion = squish.convert(make_model("qwen2"), tmp_path / "out", "uqff", None if quant == "unquant" else quant)
    assert quant == "unquant" or any(step.action == "encode" for step in conversion.steps)
    ours = ask(tmp_path / "out", "model-0.uqff", arch="qwen2")
    theirs = ask(decoded(tmp_path / "out", tmp_path / "plain"), arch="qwen2")
    np.testing.assert_allclose(ours, theirs, atol=BLOCKS if quant.startswith("q") else EXACT)


@pytest.mark.parametrize(
    ("model", "quant"), [("qwen2", "q8_0"), ("llama", "q8_0"), ("llama", "mxfp4"), ("qwen3_moe", "q8_0")]
)
def test_equal_codes_give_the_probabilities_of_mistralrs_own_file(
    model: str, quant: str, make_model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = make_model(model)
    (tmp_path / "own").mkdir()
    ask(source, arch=model, write=str(tmp_path / "own" / f"{quant}.uqff"), quant=quant)
    squish.convert(source, tmp_path / "out", f"uqff:name={quant}", quant)
    with squish.open(tmp_path / "own") as own, squish.open(tmp_path / "out") as out:
        assert set(own) == set(out)
        for name in own:
            assert own[name].parts()["data"].numpy().tobytes() == out[name].parts()["data"].numpy().tobytes(), name
    np.testing.assert_array_equal(
        ask(tmp_path / "out", f"{quant}-0.uqff", arch=model), ask(tmp_path / "own", f"{quant}-0.uqff", arch=model)
    )


@pytest.mark.parametrize("quant", ["afq4", "hqq4", "fp8"])
def test_rewritten_and_upgraded_files_give_the_same_probabilities(
    quant: str, make_model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = make_model("llama")
    (tmp_path / "own").mkdir()
    ask(source, arch="llama", write=str(tmp_path / "own" / f"{quant}.uqff"), quant=quant)
    own = ask(tmp_path / "own", f"{quant}-0.uqff", arch="llama")
    squish.convert(tmp_path / "own", tmp_path / "again", "uqff:max_shard_size=100KB")
    np.testing.assert_array_equal(ask(tmp_path / "again", "model-0.uqff", arch="llama"), own)
    squish.convert(tmp_path / "own", tmp_path / "old", "uqff:version=0.1.3", "model.embed_tokens.weight=f32")
    conversion = squish.convert(tmp_path / "old", tmp_path / "new", "uqff")
    assert {step.action for step in conversion.steps} == {"copy"}
    np.testing.assert_array_equal(ask(tmp_path / "new", "model-0.uqff", arch="llama"), own)


@pytest.mark.parametrize("quant", ["afq2", "afq4", "afq6", "afq8", "hqq4", "fp8", "f8q8", "mxfp4", "q8_0"])
def test_layers_get_the_types_of_mistralrs(quant: str, make_model: Callable[[str], Path], tmp_path: Path) -> None:
    source = make_model("qwen2")
    (tmp_path / "own").mkdir()
    ask(source, arch="qwen2", write=str(tmp_path / "own" / f"{quant}.uqff"), quant=quant)
    squish.convert(source, tmp_path / "out", f"uqff:name={quant}", quant)
    own, ours = (
        json.loads((tmp_path / folder / "uqff_report.json").read_text())["outputs"][0] for folder in ("own", "out")
    )
    for field in ("quant", "shards", "layers", "actual_counts", "fallback_count"):
        assert ours[field] == own[field]
    kinds = ("module", "default_target", "resolved_target", "stored")
    first, second = (sorted([each[k] for k in kinds] for each in report["layer_details"]) for report in (ours, own))
    assert first == second
    if quant.startswith("afq"):
        return  # its codes must equal MLX's
    with (
        squish.open(source) as source_file,
        squish.open(tmp_path / "own") as own_file,
        squish.open(tmp_path / "out") as file,
    ):
        for module in (layer["module"] for layer in ours["layer_details"]):
            error, theirs = (
                np.square(each[f"{module}.weight"].numpy() - source_file[f"{module}.weight"].numpy()).mean()
                for each in (file, own_file)
            )
            assert error <= theirs * (1 + 1e-5), module


@pytest.mark.parametrize("quant", ["q8_0", "q4_1"])
def test_blocks_converted_through_gguf_give_the_same_probabilities(
    quant: str, make_model: Callable[[str], Path], tmp_path: Path
) -> None:
    source = make_model("qwen2")
    squish.convert(source, tmp_path / "out", "uqff", quant)
    squish.convert(tmp_path / "out", tmp_path / "m.gguf", rename="gguf:qwen2")
    conversion = squish.convert(tmp_path / "m.gguf", tmp_path / "back", "uqff", assets=source, rename="hf:qwen2")
    assert {step.action for step in conversion.steps} == {"copy"}
    np.testing.assert_array_equal(
        ask(tmp_path / "back", "model-0.uqff", arch="qwen2"), ask(tmp_path / "out", "model-0.uqff", arch="qwen2")
    )
