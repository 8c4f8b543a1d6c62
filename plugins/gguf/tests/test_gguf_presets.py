"""Presets give the same types as llama.cpp's own quantizer (`data/make_presets.py`)."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import preset_models
import pytest
from preset_models import MODELS, in_runs, is_low, matrices, metadata, requests, title
from squish_gguf.container import Gguf
from squish_gguf.presets import PRESETS
from squish_gguf.quantize import LlamaQuantize, matching_preset

import squish_core as squish
from squish_core.api import CodecError, CodecSpec, ModelFacts, TensorSpec

EXPECTED: dict[str, dict[str, str | None]] = json.loads((Path(__file__).parent / "data" / "presets.json").read_text())
DIGESTS = json.loads((Path(__file__).parent / "data" / "preset_digests.json").read_text())
UNWEIGHED = ("f16", "bf16", "f32", "q8_0", "mxfp4_moe")
"""Presets whose encoders have no errors to weigh, so that activation statistics are refused."""
needs_encoders = pytest.mark.skipif(find_spec("squish_cpu") is None, reason="squish-cpu encodes the K and IQ4 types")
CASES = [(model, request) for model in MODELS for request in requests(model, tuple(PRESETS))]


def short(name: str) -> CodecSpec:
    return CodecSpec("dense", {"dtype": name}) if name in ("f32", "f16", "bf16") else CodecSpec(f"ggml.{name}")


def choose(model: str, request: preset_models.Request) -> Mapping[str, CodecSpec | str]:
    preset, params, statistics = request
    shapes = MODELS[model][-1]
    specs = [TensorSpec(name=name, shape=shape, dtype="f16") for name, shape in shapes.items()]
    measured = frozenset(shapes) if statistics else None
    allocator = LlamaQuantize()
    allocator.id = "llama-quantize"
    facts = ModelFacts(tuple(shapes), metadata(model), measured)
    return allocator.choose(specs, {"type": preset, **params}, lambda spec: iter(()), short, facts)


def type_of(chosen: CodecSpec | str) -> str:
    if isinstance(chosen, str):
        return "f16"
    return str(chosen.params["dtype"]) if chosen.id == "dense" else chosen.id.removeprefix("ggml.")


@pytest.mark.parametrize(
    ("model", "request_"), CASES, ids=lambda value: value if isinstance(value, str) else title(value)
)
def test_types_match_llama_cpp(model: str, request_: preset_models.Request) -> None:
    expected = EXPECTED[model][title(request_)]
    if expected is None:
        with pytest.raises(CodecError) as caught:
            choose(model, request_)
        assert caught.value.code == "params"
        assert caught.value.tensor in MODELS[model][-1]
        return
    chosen = choose(model, request_)
    assert in_runs([type_of(chosen[name]) for name in matrices(MODELS[model][-1])]) == expected


def test_every_preset_is_tested() -> None:
    assert {(model, each) for model, rows in EXPECTED.items() for each in rows} == {(m, title(r)) for m, r in CASES}


@pytest.mark.parametrize(
    "params",
    [
        {"type": "q4_k_x"}, {}, {"type": "q4_k_m", "pure": "maybe"}, {"type": "q4_k_m", "output": "q9"},
        {"type": "q4_k_m", "attn_v": "int4"}, {"type": "q4_k_m", "attn_(v": "q8_0"},
    ],
)  # fmt: skip
def test_invalid_parameters_are_errors(params: dict[str, Any]) -> None:
    allocator = LlamaQuantize()
    allocator.id = "llama-quantize"
    with pytest.raises(CodecError) as caught:
        allocator.choose([], params, lambda spec: iter(()), short, ModelFacts(("output.weight",)))
    assert caught.value.code == "params"


def test_an_unknown_type_names_its_option() -> None:
    allocator = LlamaQuantize()
    allocator.id = "q4_k_m"
    with pytest.raises(CodecError) as caught:
        allocator.choose([], {"attn_v": "q9"}, lambda spec: iter(()), short, ModelFacts(("output.weight",)))
    assert (caught.value.code, caught.value.found) == ("params", "attn_v=q9")


def test_a_pattern_without_a_tensor_is_an_error() -> None:
    allocator = LlamaQuantize()
    allocator.id = "q4_k_m"
    with pytest.raises(CodecError) as caught:
        allocator.choose([], {"atn_v": "q8_0"}, lambda spec: iter(()), short, ModelFacts(("blk.0.attn_v.weight",)))
    assert (caught.value.code, caught.value.found) == ("params", "atn_v=q8_0")


def test_names_outside_gguf_are_refused() -> None:
    allocator = LlamaQuantize()
    allocator.id = "q4_k_m"
    with pytest.raises(CodecError) as caught:
        allocator.choose(
            [], {}, lambda spec: iter(()), short, ModelFacts(("model.embed_tokens.weight", "lm_head.weight"))
        )
    assert caught.value.code == "params"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An f16 file with the settings of an 8-layer llama."""
    path = tmp_path / "f16.gguf"
    preset_models.write_f16(path, "llama, 8 layers")
    return path


@needs_encoders
@pytest.mark.parametrize("preset", [name for name in PRESETS if name != "q2_k_s" and not is_low(name)])
def test_convert_writes_the_types_and_the_file_type(preset: str, source: Path, tmp_path: Path) -> None:
    squish.convert(source, tmp_path / "out.gguf", encode=preset)
    with squish.open(tmp_path / "out.gguf") as file:
        types = [
            str(file[name].codec).removeprefix("ggml.")
            if str(file[name].codec).startswith("ggml.")
            else file[name].dtype
            for name in matrices(MODELS["llama, 8 layers"][-1])
        ]
        assert in_runs([str(each) for each in types]) == EXPECTED["llama, 8 layers"][f"{preset}:"]
        same_types = {"mxfp4_moe": "q8_0"}.get(preset, preset)  # without experts they have one file
        assert file.metadata["general.file_type"] == PRESETS[same_types].number


HELP = re.findall(
    r"\S+",
    """
    Q1_0 Q2_0 Q4_0 Q4_1 MXFP4_MOE Q5_0 Q5_1 IQ2_XXS IQ2_XS IQ2_S IQ2_M IQ1_S IQ1_M TQ1_0
    TQ2_0 Q2_K Q2_K_S IQ3_XXS IQ3_S IQ3_M Q3_K IQ3_XS Q3_K_S Q3_K_M Q3_K_L IQ4_NL IQ4_XS Q4_K
    Q4_K_S Q4_K_M Q5_K Q5_K_S Q5_K_M Q6_K Q8_0
    """,
)
"""The names of quantized types that `llama-quantize --help` lists."""
WHOLE = ModelFacts(("blk.0.attn_q.weight",), {"general.architecture": "llama"})


@pytest.mark.parametrize("name", HELP)
def test_a_name_of_llama_quantize_is_its_preset(name: str) -> None:
    preset = Gguf().preset(name.lower(), WHOLE)
    kind = {"Q3_K": "q3_k_m", "Q4_K": "q4_k_m", "Q5_K": "q5_k_m"}.get(name, name.lower())
    assert preset in (kind, f"llama-quantize:type={kind}")
    assert kind in PRESETS


@pytest.mark.parametrize("name", ["f32", "f16", "bf16", "ggml.q6_k", "int4", "keep", "nvfp4", "mxfp4"])
def test_other_names_are_encodings(name: str) -> None:
    assert Gguf().preset(name, WHOLE) is None


@pytest.mark.parametrize(
    "model",
    [
        ModelFacts(("blk.0.attn_q.weight",), {}),
        ModelFacts(("double_blocks.0.img_mod.lin.weight",), {"general.architecture": "flux"}),
    ],
    ids=["no architecture", "no model of llama.cpp"],
)
def test_what_llama_quantize_would_not_take_has_no_presets(model: ModelFacts) -> None:
    assert Gguf().preset("q6_k", model) is None


def rows_of_96(path: Path) -> Path:
    """A model whose rows blocks of 256 do not divide."""
    tensors = {name: np.ones((4, 96), np.float32) for name in ("blk.0.attn_q.weight", "blk.0.ffn_down.weight")}
    settings = {"general.architecture": "llama", "llama.block_count": 1}
    squish.save(path, {**tensors, "blk.0.attn_norm.weight": np.ones(96, np.float32)}, metadata=settings)
    return path


FALLBACK_RULES = {
    "q6_k": ("ggml.q8_0", "ggml.q8_0"),
    "IQ4_XS": ("ggml.iq4_nl", "ggml.iq4_nl"),
    "*=q6_k": ("ggml.q8_0", "ggml.q8_0"),
    "*.ffn_down.*=q4_k": ("dense", "ggml.q5_0"),
    "*.ffn_down.*=ggml.q5_k": ("dense", "ggml.q5_1"),
    "*.ffn_down.*=q4_0": ("dense", "ggml.q4_0"),
}


@needs_encoders
@pytest.mark.parametrize("rule", FALLBACK_RULES)
def test_rows_that_blocks_do_not_divide_fall_back_as_in_llama_quantize(rule: str, tmp_path: Path) -> None:
    report = squish.convert(rows_of_96(tmp_path / "f32.gguf"), tmp_path / "out.gguf", encode=rule)
    with squish.open(tmp_path / "out.gguf") as file:
        codecs = file["blk.0.attn_q.weight"].codec, file["blk.0.ffn_down.weight"].codec
        assert file["blk.0.attn_norm.weight"].dtype == "f32"
    assert codecs == FALLBACK_RULES[rule]
    if rule.startswith("*.ffn_down") and not rule.endswith("q4_0"):
        assert {step.note for step in report.steps if step.codec.id != "dense"} == {
            f"encoded as {codecs[1]}: ggml.{rule[-4:]} does not fit its shape"
        }


@needs_encoders
@pytest.mark.parametrize("model", preset_models.WEIGHED)
def test_blocks_match_llama_cpp(model: str, tmp_path: Path) -> None:
    count = np.float32(8)
    sums = {f"{name}.in_sum2": means * count for name, means in preset_models.statistics(model).items()}
    counts = {f"{name.removesuffix('in_sum2')}counts": np.full((len(each), 1), count) for name, each in sums.items()}
    squish.save(tmp_path / "imatrix.gguf", {**sums, **counts})
    preset_models.write_f16(tmp_path / "f16.gguf", model)
    computed = {}
    for label in DIGESTS[model]:
        preset, _, weighed = label.partition(" ")
        encode = f"llama-quantize:type={preset}"
        activations = tmp_path / "imatrix.gguf" if weighed and preset not in UNWEIGHED else None
        squish.convert(tmp_path / "f16.gguf", tmp_path / "out.gguf", encode=encode, activations=activations)
        computed[label] = preset_models.digest(tmp_path / "out.gguf")
    assert computed == DIGESTS[model]
    assert {label.partition(" ")[0] for label in computed} == {name for name in PRESETS if not is_low(name)}


@needs_encoders
def test_an_explicit_rule_overrides_a_preset(source: Path, tmp_path: Path) -> None:
    squish.convert(source, tmp_path / "out.gguf", encode=["q4_k_m", "*.attn_q.weight=q8_0", "output.weight=keep"])
    with squish.open(tmp_path / "out.gguf") as file:
        assert file["blk.0.attn_q.weight"].codec == "ggml.q8_0"
        assert file["output.weight"].dtype == "f16"
        assert file["blk.0.attn_v.weight"].codec == "ggml.q6_k"


def test_a_mix_outside_the_presets_has_no_number() -> None:
    shapes = MODELS["llama, 8 layers"][-1]
    types = dict.fromkeys(matrices(shapes), "q4_k")
    assert matching_preset(shapes, types, metadata("llama, 8 layers")) == -1


def test_types_of_a_preset_that_does_not_fit_all_shapes_match_none() -> None:
    shapes = {"blk.0.attn_k.weight": (64, 576), "blk.0.ffn_down.weight": (576, 1536)}  # q1_0 has blocks of 128
    types = {"blk.0.attn_k.weight": "q8_0", "blk.0.ffn_down.weight": "q1_0"}
    assert matching_preset(shapes, types, {}) == -1


def test_the_documented_table_matches_the_code() -> None:
    rows = (Path(__file__).parents[3] / "docs" / "formats" / "gguf.md").read_text().splitlines()
    for name, preset in PRESETS.items():
        cells = [f"`{name}`", str(preset.number), preset.type]
        for kind in ("attn_v", "ffn_down", "attn_output", "token_embd"):
            choices = [(condition, each or preset.type) for condition, each in preset.choices.get(kind, ())]
            cells.append("; ".join(each if when == "always" else f"{each} if {when}" for when, each in choices))
        assert f"| {' | '.join(cells)} |" in rows
