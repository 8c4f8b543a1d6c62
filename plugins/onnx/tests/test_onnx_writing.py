"""Which models can be written, and how their weights are stored; whether they run is for the oracle tests."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_codecs.api import Scheme

import squish_core as squish

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 96, "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True, "eos_token_id": 2,
}  # fmt: skip
MATRICES = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
}  # fmt: skip


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    layer = {
        f"model.layers.0.{name}.weight": rng.standard_normal(shape, np.float32) for name, shape in MATRICES.items()
    }
    norms = ("model.layers.0.input_layernorm", "model.layers.0.post_attention_layernorm", "model.norm")
    return {
        "model.embed_tokens.weight": rng.standard_normal((96, 64), np.float32),
        **layer,
        **{f"{name}.weight": np.ones(64, np.float32) for name in norms},
    }


@pytest.fixture
def model(tmp_path: Path):
    """A function that saves a model with changes, and converts it."""

    def convert(
        arrays: dict[str, np.ndarray] | None = None, *, encode: str | None = None, config: dict | None = None
    ) -> squish.Conversion:
        assets = {"config.json": json.dumps({**CONFIG, **(config or {})}).encode()}
        squish.save(tmp_path / "source", arrays or tensors(), format="hf", assets=assets)
        (tmp_path / "out").mkdir()
        return squish.convert(tmp_path / "source", tmp_path / "out" / "m.onnx", encode=encode)

    return convert


def test_weights_lie_beside_the_model_on_pages_of_64_kib(model, tmp_path):
    arrays = tensors() | {"model.embed_tokens.weight": np.ones((2048, 64), np.float32)}
    report = model(arrays, config={"vocab_size": 2048})
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "m.onnx",
        "m.onnx.data",
        "config.json",
        "genai_config.json",
    }
    assert report.size == sum(path.stat().st_size for path in (tmp_path / "out").iterdir())
    with squish.open(tmp_path / "out" / "m.onnx") as file:
        extents = [
            part.segments[0] for spec in file.index.tensors.values() for part in spec.encodings[0].parts.values()
        ]
        assert {segment.offset % (1 << 16) for segment in extents if segment.file} == {0}
        for name, array in arrays.items():
            assert np.array_equal(file[name].numpy(), array)


def test_codes_scales_and_biases_are_stored_as_they_are(model, tmp_path):
    model(encode="affine:bits=4,group_size=32,offset=bias")
    with squish.open(tmp_path / "out" / "m.onnx") as file:
        assert set(file) == set(tensors())
        parts = file["model.layers.0.mlp.up_proj.weight"].spec.encodings[0].parts
        assert {role: part.shape for role, part in parts.items()} == {
            "data": (128, 32),
            "scale": (128, 2),
            "offset": (128, 2),
        }
        assert file["model.embed_tokens.weight"].spec.encodings[0].codec.params["offset"] == "bias"


CODES = {
    "half a range": "affine:bits=4,group_size=32,zero=8,signed=false,scale_dtype=f16",
    "zero points": "affine:bits=4,group_size=32,axis=flat,offset=zero_point,offset_dtype=packed",
    "8 bits": "affine:bits=8,group_size=64,zero=128,signed=false",
    "2 bits": "affine:bits=2,group_size=16,axis=flat,offset=zero_point,offset_dtype=packed,scale_dtype=bf16",
    "biases": "affine:bits=8,group_size=16,offset=bias",
}


@pytest.mark.parametrize("name", CODES)
def test_codes_that_an_operator_has_are_written_and_read_as_they_are(model, tmp_path, name):
    report = model(encode=CODES[name])
    targets = {step.name: step.codec for step in report.steps if step.action == "encode"}
    assert len(targets) == len(MATRICES) + 1
    with squish.open(tmp_path / "out" / "m.onnx") as file, squish.open(tmp_path / "source") as source:
        assert set(file) == set(source)
        for tensor_name, target in targets.items():
            assert Scheme.of(file[tensor_name].spec.encodings[0].codec.params) == Scheme.of(target.params)
            step = file[tensor_name].parts()["scale"].numpy().astype(np.float32).max()
            assert np.abs(file[tensor_name].numpy() - source[tensor_name].numpy()).max() <= step * 0.6


@pytest.mark.parametrize("method", ["compressed-tensors", "gptq"])
@pytest.mark.parametrize(
    ("bits", "group", "scale", "offset"),
    [(4, 32, "f32", "zero_point"), (8, 64, "f32", "zero_point"), (4, 32, "f16", "bias"), (4, 64, "f16", "bias")],
)
def test_zero_points_are_kept_where_biases_would_round(tmp_path, method, bits, group, scale, offset):
    """An f32 scale times a zero point has too many digits for a bias."""
    encode = f"affine:bits={bits},group_size={group},offset=zero_point,scale_dtype={scale}"
    assets = {"config.json": json.dumps(CONFIG).encode()}
    squish.save(tmp_path / "source", tensors(), format=f"hf:method={method}", encode=encode, assets=assets)
    (tmp_path / "out").mkdir()
    squish.convert(tmp_path / "source", tmp_path / "out" / "m.onnx")
    with squish.open(tmp_path / "out" / "m.onnx") as file, squish.open(tmp_path / "source") as source:
        assert file["model.layers.0.mlp.up_proj.weight"].spec.encodings[0].codec.params["offset"] == offset
        for name in source:
            assert np.array_equal(file[name].numpy(), source[name].numpy())


def error(model, **changes) -> squish.SquishError:
    with pytest.raises(squish.SquishError) as caught:
        model(**changes)
    return caught.value


def test_a_family_without_a_graph_is_refused_by_name(model, tmp_path):
    refusal = error(model, config={"model_type": "mamba"})
    assert (refusal.code, refusal.part, refusal.found) == ("graph-family", "config.json", "'mamba'")
    assert not list((tmp_path / "out").iterdir())


LONGROPE = {"rope_type": "longrope", "original_max_position_embeddings": 8, "factor": 2.0}
CONFIGS = [
    ({"hidden_act": "relu6"}, "config"), ({"hidden_act": ["silu"]}, "config"), ({"rms_norm_eps": None}, "config"),
    ({"num_hidden_layers": "1"}, "config"), ({"num_hidden_layers": -1}, "config"), ({"text_config": 5}, "config"),
    ({"num_hidden_layers": 1 << 30}, "config"), ({"num_hidden_layers": 2}, "tensor-missing"),
    ({"head_dim": "16"}, "config"), ({"head_dim": 1 << 40}, "config"), ({"num_key_value_heads": [2]}, "config"),
    ({"layer_types": 3}, "config"), ({"layer_types": []}, "config"), ({"rope_theta": "many"}, "config"),
    ({"rope_scaling": {"rope_type": "su"}}, "config"), ({"rope_scaling": {"rope_type": "yarn"}}, "config"),
    ({"rope_scaling": [1]}, "config"), ({"rope_scaling": {"rope_type": "linear", "factor": 0}}, "rope"),
    ({"rope_scaling": {**LONGROPE, "short_factor": [1.0], "long_factor": [1.0] * 8}}, "config"),
    ({"model_type": "lfm2", "layer_types": ["conv"]}, "tensor-missing"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "code"), CONFIGS)
def test_a_configuration_that_the_graph_cannot_follow_is_refused(model, config, code):
    assert error(model, config=config).code == code


def test_a_tensor_without_a_place_in_the_graph_is_refused(model):
    refusal = error(model, arrays=tensors() | {"model.extra.weight": np.ones(3, np.float32)})
    assert (refusal.code, refusal.tensor) == ("tensor-unused", "model.extra.weight")


def test_the_reason_for_refusing_codes_with_a_table_names_the_nearest_encoding(model):
    refusal = error(model, encode="nf4")
    assert (refusal.code, refusal.found) == ("encode", "8 of 11 tensors with this reason")
    assert "int4" in refusal.message


def test_a_model_without_a_configuration_is_refused(tmp_path):
    squish.save(tmp_path / "w.safetensors", tensors())
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(tmp_path / "w.safetensors", tmp_path / "m.onnx")
    assert caught.value.code == "config"


def test_a_compressed_target_is_refused(model, tmp_path):
    model()
    with pytest.raises(squish.SquishError) as caught:
        squish.convert(tmp_path / "source", tmp_path / "out" / "n.onnx.zst")
    assert (caught.value.code, caught.value.expected) == ("format", "n.onnx")
    assert not (tmp_path / "out" / "n.onnx.zst").exists()


def test_config_and_tokenizer_beside_a_model_belong_to_it(model, tmp_path):
    model(encode="q4_0")
    with squish.open(tmp_path / "out" / "m.onnx") as file:
        assert set(file.assets) == {"config.json"}


def test_the_weights_of_a_written_model_are_those_of_the_source_in_other_formats(model, tmp_path):
    model(config={"max_position_embeddings": 64})
    squish.convert(tmp_path / "source", tmp_path / "direct.gguf", encode="q4_1", rename="gguf")
    (tmp_path / "q4_1").mkdir()
    squish.convert(tmp_path / "direct.gguf", tmp_path / "q4_1" / "m.onnx", rename="hf")
    report = squish.convert(tmp_path / "q4_1" / "m.onnx", tmp_path / "through.gguf", rename="gguf")
    assert {step.exactness.kind for step in report.steps} == {"bytes", "values"}
    assert "graph" in {item.kind for item in report.dropped}
    difference = squish.diff(tmp_path / "direct.gguf", tmp_path / "through.gguf")
    assert {row.state for row in difference.tensors} == {"bytes"}


def test_a_model_that_has_no_path_is_written_with_the_graph_of_its_config(model, tmp_path):
    model()
    data = (tmp_path / "out" / "m.onnx").read_bytes()
    (tmp_path / "other").mkdir()
    squish.convert(data, tmp_path / "other" / "m.onnx", assets=tmp_path / "source")
    assert {row.state for row in squish.diff(data, tmp_path / "other" / "m.onnx").tensors} == {"bytes"}
    assert (tmp_path / "other" / "genai_config.json").exists()


VISION = {"visual.patch_embed.weight": np.ones((4, 4), np.float32)}


def test_the_text_part_of_a_multimodal_model_is_written(model, tmp_path):
    report = model({**tensors(), **VISION}, config={"model_type": "qwen2_vl", "vision_config": {"depth": 1}})
    assert [item.name for item in report.dropped if item.kind == "tensor"] == list(VISION)
    with squish.open(tmp_path / "out" / "m.onnx") as file:
        assert set(file) == set(tensors())


def test_an_unused_tensor_of_a_text_model_is_refused(model):
    refusal = error(model, arrays={**tensors(), **VISION})
    assert (refusal.code, refusal.tensor) == ("tensor-unused", *VISION)
