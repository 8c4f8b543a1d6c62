"""Writing UQFF 1.2: the same tensors and bytes as mistral.rs."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_testing import expect_error
from squish_testing.writeback import check_conversion
from squish_uqff.write.accept import accepts, accepts_codes, choose

import squish_core as squish
from squish_core.api import DENSE, CodecSpec, CodeLayout, Encoding, Part, Refusal, TensorSpec

DATA = Path(__file__).with_name("data")
SETS = sorted(json.loads((DATA / "expected.json").read_text()))
BY_HAND = ("1.2.0-afq4-3shards", "1.2.0-hqq3-gs40")
NEWEST = [name for name in SETS if name.startswith("1.2.0") and name not in BY_HAND]


def stored(path: Path) -> tuple[dict[str, Any], bytes]:
    """Header, without metadata, and data of a safetensors file."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8:end])
    header.pop("__metadata__", None)
    return header, raw[end:]


@pytest.mark.parametrize("name", NEWEST)
def test_a_rewritten_1_2_file_has_the_tensors_of_mistral_rs(name: str, tmp_path: Path) -> None:
    (source,) = (DATA / name).glob("*.uqff")
    squish.convert(source, tmp_path / "out", "uqff")
    assert stored(tmp_path / "out" / "model-0.uqff") == stored(source)


@pytest.mark.parametrize("name", [name for name in SETS if name.startswith("0.1.3")])
def test_a_rewritten_0_1_3_file_has_the_blobs_of_mistral_rs(name: str, tmp_path: Path) -> None:
    (source,) = (DATA / name).glob("*.uqff")
    squish.convert(source, tmp_path / "out", "uqff:version=0.1.3")
    assert stored(tmp_path / "out" / "model-0.uqff") == stored(source)
    assert not (tmp_path / "out" / "uqff_report.json").exists()


@pytest.mark.parametrize("name", [name for name in SETS if name.startswith("0.1.") and "afq" not in name])
def test_0_1_0_is_one_file_whose_blobs_have_the_published_layout(name: str, tmp_path: Path) -> None:
    """Types 0 to 3 did not change since 0.1.0: only the version of each blob differs."""
    (source,) = (DATA / name).glob("*.uqff")
    planned = squish.convert(source, tmp_path / "plan", "uqff:version=0.1.0", dry_run=True)
    written = squish.convert(source, tmp_path / "out", "uqff:version=0.1.0")
    assert planned.size == written.size
    assert {step.action for step in written.steps} == {"copy"}
    (path,) = (tmp_path / "out").glob("*.uqff")
    assert path.name == "model.uqff"
    (header, data), (old_header, old_data) = stored(path), stored(source)
    assert header == old_header
    for record in header.values():
        start, end = record["data_offsets"]
        assert data[start : start + 4] == bytes([0, 1, 0, 0])
        assert data[start + 4 : end] == old_data[start + 4 : end]
    with squish.open(tmp_path / "out") as file, squish.open(source) as old:
        assert (file.format, file.index.version) == ("uqff", "0.1.0")
        for tensor in file:
            np.testing.assert_array_equal(file[tensor].numpy(), old[tensor].numpy())


@pytest.mark.parametrize(
    ("options", "encode", "code", "reason"),
    [
        ("version=0.1.0", "afq4", "encode", "UQFF 0.1.0 has no type for affine"),
        ("version=0.1.0", "mxfp4", "encode", "UQFF 0.1.0 has no type for mx"),
        ("version=0.1.0,max_shard_size=1MB", "q8_0", "option", "UQFF 0.1.0 has no shards"),
        ("version=0.1.1", "q8_0", "option", "cannot write this UQFF version"),
    ],
)
def test_what_0_1_0_lacks_is_refused_with_the_reason_before_writing(
    options: str, encode: str, code: str, reason: str, tmp_path: Path, uqff: Any
) -> None:
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(LLAMA_TENSORS))
    with expect_error(squish.SquishError, code=code) as caught:
        squish.convert(tmp_path / "m.safetensors", tmp_path / "out", f"uqff:{options}", encode)
    assert reason in caught.value.message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", SETS)
def test_every_generation_converts_to_1_2_with_the_same_codes(name: str, expected: Any, tmp_path: Path) -> None:
    planned = squish.convert(DATA / name, tmp_path / "out", "uqff", dry_run=True)
    conversion = squish.convert(DATA / name, tmp_path / "out", "uqff")
    assert (conversion.size, {step.action for step in conversion.steps}) == (planned.size, {"copy"})
    with squish.open(tmp_path / "out") as file:
        assert (file.format, file.index.version) == ("uqff", "1.2.0")
        for key, (layer, _, expected_values) in expected[name].items():
            values = file[key if key in file else layer].numpy().astype("<f4")
            assert hashlib.sha256(values.tobytes()).hexdigest() == expected_values


def test_shards_are_cut_by_size_and_listed_in_the_report(tmp_path: Path) -> None:
    source = DATA / "1.2.0-moe-afq4"
    squish.convert(source, tmp_path / "out", "uqff:name=afq4,max_shard_size=40KB")
    report = json.loads((tmp_path / "out" / "uqff_report.json").read_text())
    (output,) = report["outputs"]
    shards = sorted(path.name for path in (tmp_path / "out").glob("*.uqff"))
    assert sorted(output["shards"]) == shards == [f"afq4-{number}.uqff" for number in range(len(shards))]
    assert len(shards) > 3
    assert (output["layers"], output["actual_counts"]) == (9, {"afq4": 7, "afq6": 2})
    with squish.open(tmp_path / "out" / shards[2]) as file, squish.open(source) as old:
        assert set(file) == set(old)
        np.testing.assert_array_equal(file["lm_head.weight"].numpy(), old["lm_head.weight"].numpy())


def test_other_tensors_go_to_the_residual_and_assets_are_copied(tmp_path: Path) -> None:
    squish.convert(DATA / "1.2.0-moe-afq4", tmp_path / "out", "uqff")
    assert stored(tmp_path / "out" / "residual.safetensors") == stored(DATA / "1.2.0-moe-afq4" / "residual.safetensors")
    config = (DATA / "1.2.0-moe-afq4" / "config.json").read_bytes()
    assert (tmp_path / "out" / "config.json").read_bytes() == config


@pytest.mark.parametrize(
    ("encoding", "counts"),
    [
        ("affine:bits=4,group_size=64,word=u32,offset=bias", "afq4"), ("mx", "mxfp4"), ("uqff.f8q8", "f8q8"),
        ("q4_0", "q4_0"),
    ],
)  # fmt: skip
def test_dense_weights_are_encoded_on_request(encoding: str, counts: str, tmp_path: Path, uqff: Any) -> None:
    values = np.random.default_rng(0).standard_normal((16, 128)).astype("<f4")
    (tmp_path / "m.safetensors").write_bytes(
        uqff.safetensors({"a.q_proj.weight": ("F32", [16, 128], values.tobytes())})
    )
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff", encode=encoding)
    report = json.loads((tmp_path / "out" / "uqff_report.json").read_text())
    assert report["outputs"][0]["actual_counts"] == {counts: 1}
    with squish.open(tmp_path / "out") as file:
        assert np.abs(file["a.q_proj.weight"].numpy() - values).mean() < 0.2


def test_an_unquantized_linear_layer_is_a_layer(tmp_path: Path, uqff: Any) -> None:
    raw = {name: ("F32", [2, 2], bytes(16)) for name in ("a.q_proj.weight", "model.embed_tokens.weight")}
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(raw))
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff")
    assert "a.q_proj.weight.format" in stored(tmp_path / "out" / "model-0.uqff")[0]
    assert list(stored(tmp_path / "out" / "residual.safetensors")[0]) == ["model.embed_tokens.weight"]


def test_codecs_without_a_uqff_type_are_refused(tmp_path: Path, uqff: Any) -> None:
    source = tmp_path / "m.safetensors"
    source.write_bytes(uqff.safetensors({"a.q_proj.weight": ("F32", [16, 128], bytes(8192))}))
    with expect_error(
        squish.SquishError, code="refused", tensor="a.q_proj.weight", found="affine:bits=5,group_size=32"
    ):
        squish.convert(source, tmp_path / "out", "uqff", encode="*=affine:bits=5,group_size=32")


def test_a_vector_of_codes_is_refused() -> None:
    spec = TensorSpec(name="a.weight", shape=(64,), dtype="f32")
    layout = CodeLayout(bits=4, group=(32,), scale_dtype="f32", offset_kind="bias", offset_dtype="f32")
    answer = accepts_codes(spec, layout, legacy=None)
    assert isinstance(answer, Refusal)
    assert answer.why == "AFQ has rows of codes, not [64]"


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("gguf", "1.2.0-q4_0"), ("gguf", "0.1.2-q4k"), ("ztensor", "1.2.0-q4_0"), ("ztensor", "1.2.0-q2k"),
        ("mlx", "1.2.0-afq4"), ("mlx", "0.1.3-afq3"), ("mlx", "1.2.0-afq6"), ("mlx", "1.2.0-mxfp4"),
    ],
)  # fmt: skip
def test_codes_round_trip_through_other_formats(target: str, name: str, tmp_path: Path) -> None:
    assets = tmp_path / "assets"  # MLX puts the quantization in the config
    assets.mkdir()
    (assets / "config.json").write_text('{"model_type": "other"}')
    there = squish.convert(DATA / name, tmp_path / "there", target, assets=assets, rename="keep")
    back = squish.convert(tmp_path / "there", tmp_path / "back", "uqff", rename="keep")
    assert {step.action for conversion in (there, back) for step in conversion.steps} == {"copy"}
    old, new = squish.open(DATA / name), squish.open(tmp_path / "back")
    for tensor in old:
        for role, part in old[tensor].parts().items():
            if role in old[tensor].spec.encodings[0].parts:
                assert part.numpy().tobytes() == new[tensor].parts()[role].numpy().tobytes()


def test_zero_points_under_narrow_scales_become_exact_biases(tmp_path: Path, uqff: Any) -> None:
    values = np.random.default_rng(0).standard_normal((16, 128)).astype("<f4")
    raw = {"a.q_proj.weight": ("F32", [16, 128], values.tobytes())}
    encode = "affine:bits=4,group_size=32,word=u32,offset=zero_point,scale_dtype=f16,offset_dtype=f16"
    squish.convert(uqff.safetensors(raw), tmp_path / "m.zt", "ztensor", encode)
    (step,) = squish.convert(tmp_path / "m.zt", tmp_path / "out", "uqff").steps
    assert (step.action, str(step.exactness)) == ("repack", "values(f32)")
    with squish.open(tmp_path / "m.zt") as old, squish.open(tmp_path / "out") as new:
        np.testing.assert_array_equal(old["a.q_proj.weight"].numpy(), new["a.q_proj.weight"].numpy())


def dense(*shapes: tuple[str, list[int]], dtype: str = "F32") -> dict[str, Any]:
    size = 4 if dtype == "F32" else 2
    return {name: (dtype, shape, bytes(size * int(np.prod(shape)))) for name, shape in shapes}


def written(out: Path) -> dict[str, str]:
    """Module -> stored type."""
    (output,) = json.loads((out / "uqff_report.json").read_text())["outputs"]
    return {each["module"]: each["stored"] for each in output["layer_details"]}


MODEL = (
    ("lm_head.weight", [32, 128]), ("model.embed_tokens.weight", [32, 128]), ("a.q_proj.weight", [32, 128]),
    ("a.q_proj.bias", [32]), ("a.k_proj.weight", [32, 96]), ("a.gate.weight", [8, 128]), ("norm.weight", [128]),
)  # fmt: skip


@pytest.mark.parametrize(
    ("quant", "codec"),
    [
        # mistral.rs 0.9.5; 96 is not a multiple of AFQ's 64, nor 128 of the K types' 256
        ("afq4", {"lm_head": "afq6", "model.embed_tokens": "afq6", "a.q_proj": "afq4", "a.k_proj": "unquant"}),
        ("afq8", {"lm_head": "afq8", "model.embed_tokens": "afq8", "a.q_proj": "afq8", "a.k_proj": "unquant"}),
        ("q4_0", {"lm_head": "q5_1", "model.embed_tokens": "q5_1", "a.q_proj": "q4_0", "a.k_proj": "q4_0"}),
        ("q4k", {"lm_head": "q5_1", "model.embed_tokens": "q5_1", "a.q_proj": "q4_1", "a.k_proj": "q4_1"}),
        ("hqq4", dict.fromkeys(("lm_head", "model.embed_tokens", "a.q_proj", "a.k_proj"), "hqq4")),
        ("hqq2", dict.fromkeys(("lm_head", "a.q_proj", "a.k_proj"), "hqq2")),
        ("mxfp4", dict.fromkeys(("lm_head", "model.embed_tokens", "a.q_proj", "a.k_proj"), "mxfp4")),
    ],
)  # fmt: skip
def test_a_catch_all_rule_follows_the_formats_rules(quant: str, codec: Any, tmp_path: Path, uqff: Any) -> None:
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(dense(*MODEL, dtype="BF16")))
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff", quant)
    assert written(tmp_path / "out") == codec
    with squish.open(tmp_path / "out") as file:
        assert {file[name].codec for name in ("a.gate.weight", "norm.weight")} == {"dense"}
        assert file["a.q_proj.bias"].dtype == ("bf16" if quant in ("afq4", "afq8", "mxfp4") else "f32")
        if quant == "afq4":
            assert file["a.q_proj.weight"].spec.encodings[0].codec.params["scale_dtype"] == "bf16"


@pytest.mark.parametrize(("requested", "head"), [("q4_k", "q6_k"), ("q5_k", "q8_0"), ("q4_0", "q8_0")])
def test_the_head_is_promoted_to_a_type_with_an_encoder(requested: str, head: str) -> None:
    names = ("lm_head.weight", "model.layers.0.mlp.up_proj.weight")
    specs = [TensorSpec(name=name, shape=(256, 256), dtype="f32", encodings=()) for name in names]
    codec = CodecSpec(f"ggml.{requested}", {"search": "activations"} if requested == "q4_k" else {})
    chosen = choose(specs, codec)
    assert [chosen[name] for name in names] == [CodecSpec(f"ggml.{head}", codec.params), codec]


@pytest.mark.parametrize("name", ["lm_head", "output", "token_embd", "model.embed_tokens"])
def test_heads_and_embeddings_are_promoted_in_every_naming(name: str) -> None:
    layer = "model.layers.0.mlp.up_proj" if name in ("lm_head", "model.embed_tokens") else "blk.0.ffn_up"
    specs = [TensorSpec(name=f"{each}.weight", shape=(256, 256), dtype="f32", encodings=()) for each in (name, layer)]
    chosen = choose(specs, CodecSpec("ggml.q4_0"))
    assert [chosen[spec.name].id for spec in specs] == ["ggml.q8_0", "ggml.q4_0"]


def test_matrices_under_unknown_names_are_layers(tmp_path: Path, uqff: Any) -> None:
    tensors = dense(("blk.0.attn_q.weight", [32, 128]), ("blk.0.attn_norm.weight", [128]), ("x", [32, 128]))
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(tensors))
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff", "q8_0")
    assert written(tmp_path / "out") == {"blk.0.attn_q": "q8_0"}


def test_the_report_lists_fallback_types(tmp_path: Path, uqff: Any) -> None:
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(dense(*MODEL)))
    squish.convert(
        tmp_path / "m.safetensors", tmp_path / "out", "uqff", ["afq4", "a.gate.weight=afq4", "lm_head*=afq4"]
    )
    (output,) = json.loads((tmp_path / "out" / "uqff_report.json").read_text())["outputs"]
    assert output["fallback_count"] == 2
    assert {each["module"]: (each["from"], each["to"]) for each in output["fallbacks"]} == {
        "a.k_proj": ("afq4", "unquant"),
        "lm_head": ("afq6", "afq4"),
    }


def test_experts_are_stacked_in_1_2_and_separate_in_0_1_3(tmp_path: Path, uqff: Any) -> None:
    rng = np.random.default_rng(0)
    values = {
        f"model.layers.0.mlp.experts.{e}.{p}_proj.weight": rng.normal(size=(32, 64)).astype("<f4")
        for e in range(3)
        for p in ("gate", "up")
    }
    raw = {name: ("F32", [32, 64], array.tobytes()) for name, array in values.items()}
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(raw))
    squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff", "q8_0")
    with squish.open(tmp_path / "out") as file:
        up = file["model.layers.0.mlp.experts.up_proj.weight"]
        assert (len(file), up.shape) == (2, (3, 32, 64))
        for expert in range(3):
            expected = values[f"model.layers.0.mlp.experts.{expert}.up_proj.weight"]
            assert np.abs(up[expert] - expected).max() < 0.02
    raw["model.layers.0.mlp.experts.1.up_proj.weight"] = ("F32", [16, 128], bytes(8192))
    (tmp_path / "odd.safetensors").write_bytes(uqff.safetensors(raw))
    squish.convert(tmp_path / "odd.safetensors", tmp_path / "apart", "uqff", "q8_0")
    with squish.open(tmp_path / "apart") as file:
        assert "model.layers.0.mlp.experts.2.up_proj.weight" in file


@pytest.mark.parametrize(
    ("tensors", "encode", "code", "tensor", "reason"),
    [
        (dense(("a.q_proj.weight", [32, 64])), "mxfp4", "encode", None, "no type for mx"),
        (dense(("a.q_proj.weight", [32, 64])), "*=f8q8", "refused", "a.q_proj.weight",
         "no type for uqff.f8q8"),
        (dense(("a.q_proj.weight", [32, 64])), "hqq4", "names", "a.q_proj", "not in the layer order"),
        (dense(("model.embed_tokens.weight", [32, 64])), "*=hqq4", "refused", "model.embed_tokens.weight",
         "stores embeddings only as dense values"),
    ],
)  # fmt: skip
def test_tensors_0_1_3_cannot_store_are_refused_with_the_reason(
    tensors: Any, encode: str, code: str, tensor: str | None, reason: str, tmp_path: Path, uqff: Any
) -> None:
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(tensors))
    with expect_error(squish.SquishError, code=code, tensor=tensor) as caught:
        squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff:version=0.1.3", encode)
    assert reason in caught.value.message


LLAMA = {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 1, "vocab_size": 32,
         "intermediate_size": 128, "num_hidden_layers": 1, "tie_word_embeddings": True}  # fmt: skip
LLAMA_TENSORS = dense(
    ("model.embed_tokens.weight", [32, 64]),
    *((f"model.layers.0.self_attn.{name}_proj.weight", [64, 64]) for name in ("q", "k", "v", "o")),
    *((f"model.layers.0.mlp.{name}_proj.weight", [128, 64]) for name in ("gate", "up")),
    ("model.layers.0.mlp.down_proj.weight", [64, 128]),
)


@pytest.mark.parametrize("dry_run", [True, False])
@pytest.mark.parametrize(
    ("changes", "rename", "code"),
    [
        ({"intermediate_size": 256}, None, "names"), ({"hidden_size": 128}, None, "names"),
        ({"num_hidden_layers": 0}, None, "names"), ({"model_type": "unknown"}, None, "engine"),
        ({"model_type": "unknown"}, "keep", "names"),
    ],
)  # fmt: skip
def test_a_config_with_other_names_is_refused_before_writing_0_1_3(
    changes: dict[str, Any], rename: str | None, code: str, dry_run: bool, tmp_path: Path, uqff: Any
) -> None:
    pytest.importorskip("squish_models")
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "config.json").write_text(json.dumps({**LLAMA, **changes}))
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(LLAMA_TENSORS))
    with pytest.raises(squish.SquishError) as refused:
        squish.convert(
            tmp_path / "m.safetensors",
            tmp_path / "out",
            "uqff:version=0.1.3",
            "q8_0",
            assets=assets,
            rename=rename,
            dry_run=dry_run,
        )
    assert refused.value.code == code
    assert (refused.value.tensor is not None) == (code == "names")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("config", [json.dumps(LLAMA)[:-1], "[]", ""])
def test_a_config_that_cannot_be_parsed_is_refused_before_writing_0_1_3(config: str, tmp_path: Path, uqff: Any) -> None:
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "config.json").write_text(config)
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(LLAMA_TENSORS))
    with pytest.raises(squish.FormatError) as refused:
        squish.convert(tmp_path / "m.safetensors", tmp_path / "out", "uqff:version=0.1.3", "q8_0", assets=assets)
    assert (refused.value.code, refused.value.part) == ("json", "config.json")
    assert not (tmp_path / "out").exists()


def test_names_from_an_option_are_not_written_without_a_config(tmp_path: Path, uqff: Any) -> None:
    """A 0.x file opened with `arch=` has layer names that could not be read back without a config."""
    pytest.importorskip("squish_models")
    assets, old = tmp_path / "assets", tmp_path / "old"
    assets.mkdir()
    (assets / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(LLAMA_TENSORS))
    squish.convert(tmp_path / "m.safetensors", old, "uqff:version=0.1.3", "q8_0", assets=assets)
    (old / "config.json").unlink()
    with squish.open(old, "uqff:arch=llama") as file, pytest.raises(squish.SquishError) as refused:
        squish.convert(file, tmp_path / "out", "uqff:version=0.1.3")
    assert (refused.value.code, refused.value.tensor) == ("names", "lm_head.weight")
    squish.convert(old, tmp_path / "out", "uqff:version=0.1.3")
    with squish.open(tmp_path / "out") as file:
        assert "7.weight" in file


def test_assets_give_0_1_3_its_numbers_and_names(tmp_path: Path, uqff: Any) -> None:
    pytest.importorskip("squish_models")
    assets = tmp_path / "assets"
    assets.mkdir()
    (assets / "config.json").write_text(json.dumps(LLAMA))
    layer, tensors = "model.layers.0", LLAMA_TENSORS
    (tmp_path / "m.safetensors").write_bytes(uqff.safetensors(tensors))
    to = "uqff:version=0.1.3"
    planned = squish.convert(
        tmp_path / "m.safetensors", tmp_path / "out", to, ["*proj.weight=afq4"], assets=assets, dry_run=True
    )
    report = squish.convert(tmp_path / "m.safetensors", tmp_path / "out", to, ["*proj.weight=afq4"], assets=assets)
    assert report.size == planned.size
    assert any("lm_head.weight" in note for note in report.notes)
    (tmp_path / "checked").mkdir()
    with squish.open(tmp_path / "m.safetensors", assets=assets) as file:
        assert check_conversion(file, tmp_path / "checked/out", to, "q8_0").report is not None
    header, _ = stored(tmp_path / "out" / "model-0.uqff")
    assert sorted(map(int, header)) == list(range(8))  # tied embeddings are also blob 0
    with squish.open(tmp_path / "out") as file:
        assert set(file) == {"lm_head.weight", *tensors}
    (tmp_path / "out" / "config.json").unlink()
    for options in ({"format": "uqff:arch=llama"}, {"assets": assets}):
        with squish.open(tmp_path / "out", **options) as file:
            assert f"{layer}.self_attn.q_proj.weight" in file
    with squish.open(tmp_path / "out") as file:
        assert "arch=" in next(problem.message for problem in file.problems if problem.code == "names")
    with expect_error(squish.FormatError, code="option", found="bert"):
        squish.open(tmp_path / "out", "uqff:arch=bert")


def test_a_0_1_3_file_without_layers_is_refused(tmp_path: Path) -> None:
    source = Path(__file__).parents[3] / "tests" / "data" / "sample.safetensors"
    with pytest.raises(squish.FormatError) as refused:
        squish.convert(source, tmp_path / "out", "uqff:version=0.1.3")
    assert refused.value.code == "layers"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("shape", "legacy", "fits"), [((1 << 32, 0), None, False), ((1 << 32,), (0, 1, 3), False),
                                                        ((1 << 32,), None, True)])  # fmt: skip
def test_a_dimension_of_more_than_32_bits_is_refused(
    shape: tuple[int, ...], legacy: tuple[int, int, int] | None, fits: bool
) -> None:
    part = Part(dtype="f32", shape=shape)
    answer = accepts(
        TensorSpec(name="w.weight", shape=shape, dtype="f32"), Encoding(codec=DENSE, parts={"data": part}), legacy
    )
    assert isinstance(answer, Encoding) == fits
    assert fits or answer.code == "shape"  # type: ignore[union-attr]


@pytest.mark.parametrize("key", ["num_hidden_layers", "hidden_size", "vocab_size", "intermediate_size"])
def test_a_key_that_0_1_3_needs_for_the_order_of_layers_is_named(key: str, tmp_path: Path) -> None:
    config = {
        "model_type": "llama", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
        "num_attention_heads": 4, "vocab_size": 64,
    }  # fmt: skip
    assets = {"config.json": json.dumps({name: value for name, value in config.items() if name != key}).encode()}
    arrays = {"model.layers.0.self_attn.q_proj.weight": np.ones((32, 32), np.float32)}
    squish.save(tmp_path / "hf", arrays, format="safetensors:max_shard_size=1GB", assets=assets)
    with pytest.raises(squish.FormatError) as caught:
        squish.convert(tmp_path / "hf", tmp_path / "old", "uqff:version=0.1.3", "q4_0", rename="keep")
    assert (caught.value.code, caught.value.part) == ("names", f"config.json {key}")
    assert not (tmp_path / "old").exists()
