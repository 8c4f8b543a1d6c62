"""gpt-oss: experts whose codes are kept, and which Hugging Face transposes only where they are dense."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_tokenizer import TOKENIZER
from squish_models.api import check_model
from squish_testing import write_model

import squish_core as squish
from squish_core.errors import SquishError

CONFIG: dict[str, Any] = {
    "architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss", "hidden_act": "silu",
    "hidden_size": 64, "intermediate_size": 32, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 64, "num_local_experts": 4,
    "num_experts_per_tok": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "sliding_window": 32,
    "rope_theta": 150000.0, "tie_word_embeddings": False, "torch_dtype": "float32",
    "layer_types": ["sliding_attention", "full_attention"],
}  # fmt: skip
EXPERTS = "model.layers.0.mlp.experts."
AS_CODES = {"*_exps.weight": "mxfp4"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_model(tmp_path / "gpt-oss", "gpt-oss", CONFIG, dtype="f32", files=TOKENIZER)


@pytest.fixture
def coded(folder: Path, tmp_path: Path) -> Path:
    squish.convert(folder, tmp_path / "m.gguf", encode=AS_CODES)
    return tmp_path / "m.gguf"


def states(one: Path, other: Path) -> set[str]:
    return {item.state for item in squish.diff(one, other).tensors}


def test_rows_of_gate_and_up_alternate_in_hugging_face(folder: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "m.gguf")
    with squish.open(folder) as source, squish.open(tmp_path / "m.gguf") as gguf:
        fused, down = source[f"{EXPERTS}gate_up_proj"].numpy(), source[f"{EXPERTS}down_proj"].numpy()
        bias = source[f"{EXPERTS}gate_up_proj_bias"].numpy()
        for start, name in enumerate(("gate", "up")):
            np.testing.assert_array_equal(
                gguf[f"blk.0.ffn_{name}_exps.weight"].numpy().swapaxes(1, 2), fused[..., start::2]
            )
            np.testing.assert_array_equal(gguf[f"blk.0.ffn_{name}_exps.bias"].numpy(), bias[:, start::2])
        np.testing.assert_array_equal(gguf["blk.0.ffn_down_exps.weight"].numpy(), down.swapaxes(1, 2))


def test_codes_of_experts_are_kept_between_all_layouts(coded: Path, tmp_path: Path) -> None:
    squish.convert(coded, tmp_path / "hf", "hf:method=mxfp4")
    squish.convert(tmp_path / "hf", tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "again", "hf:method=mxfp4")
    squish.convert(tmp_path / "again", tmp_path / "back.gguf")
    assert states(coded, tmp_path / "back.gguf") == {"bytes"}
    assert states(tmp_path / "hf", tmp_path / "again") == {"bytes"}
    assert states(tmp_path / "hf", coded) == {"bytes", "values"}
    assert states(coded, tmp_path / "hf") == {"bytes", "values"}
    with squish.open(tmp_path / "hf") as file:
        spec = file[f"{EXPERTS}gate_up_proj"].spec
        assert (spec.shape, spec.encodings[0].codec.id) == ((4, 64, 64), "mx")


def test_decoded_experts_are_transposed(coded: Path, tmp_path: Path) -> None:
    squish.convert(coded, tmp_path / "hf", "hf:method=mxfp4")
    squish.convert(tmp_path / "hf", tmp_path / "dense", "hf", "f32")
    squish.convert(coded, tmp_path / "same", "hf", "f32")
    assert states(tmp_path / "dense", tmp_path / "same") == {"bytes"}
    with squish.open(tmp_path / "hf") as codes, squish.open(tmp_path / "dense") as floats:
        for name in ("gate_up_proj", "down_proj"):
            transposed = codes[f"{EXPERTS}{name}"].numpy().swapaxes(1, 2)
            np.testing.assert_array_equal(floats[f"{EXPERTS}{name}"].numpy(), transposed)


def test_fused_experts_of_a_uqff_of_mistral_rs_are_read(folder: Path, coded: Path, tmp_path: Path) -> None:
    """It keeps the rows of Hugging Face's codes, under names with a suffix."""
    squish.convert(coded, tmp_path / "codes", "hf:method=mxfp4")
    with squish.open(tmp_path / "codes") as file:
        arrays = {name: file[name].numpy() for name in file}
    for name in [name for name in arrays if ".experts." in name]:
        arrays[f"{name.removesuffix('_bias')}.{'bias' if name.endswith('_bias') else 'weight'}"] = arrays.pop(name)
    squish.save(tmp_path / "m.safetensors", arrays)
    squish.convert(tmp_path / "m.safetensors", tmp_path / "own", "uqff", assets=folder, rename="keep")
    squish.convert(tmp_path / "own", tmp_path / "again.gguf")
    assert states(coded, tmp_path / "again.gguf") <= {"bytes", "values"}


def test_encoded_experts_have_the_rows_of_codes(folder: Path, coded: Path, tmp_path: Path) -> None:
    squish.convert(folder, tmp_path / "codes", "hf:method=mxfp4", {"*experts.*_proj": "mxfp4"})
    assert states(tmp_path / "codes", coded) == {"bytes", "values"}
    with pytest.raises(SquishError) as caught:
        squish.convert(folder, tmp_path / "floats", "hf:method=mxfp4")
    assert caught.value.code == "rows"


@pytest.mark.parametrize("encode", ["bf16", {"*.1.*_exps.weight": "bf16"}])
def test_floats_among_codes_are_refused(encode: Any, coded: Path, tmp_path: Path) -> None:
    """Transformers would read them transposed, silently where a matrix is square."""
    with pytest.raises(SquishError) as caught:
        squish.convert(coded, tmp_path / "hf", "hf:method=mxfp4", encode)
    assert caught.value.code == "rows"
    assert not (tmp_path / "hf").exists()


def test_codes_without_their_method_are_refused(coded: Path, tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(coded, tmp_path / "hf", "hf")
    assert caught.value.code == "refused"


def test_settings_of_yarn_that_llama_cpp_ignores_are_reported(folder: Path, tmp_path: Path) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    own = {"beta_fast": 16.0, "beta_slow": 1.0, "truncate": False}
    config = {**CONFIG, "rope_scaling": {**scaling, **own}}
    (folder / "config.json").write_text(json.dumps(config))
    notes = " ".join(squish.convert(folder, tmp_path / "m.gguf").notes)
    assert [word for word in ("beta_fast", "beta_slow", "truncate") if word in notes] == ["beta_fast", "truncate"]


@pytest.mark.parametrize(("encode", "method"), [("mxfp4", "hf:method=mxfp4"), ("q8_0", "")])
def test_the_refusal_names_the_method_that_stores_the_experts(
    encode: str, method: str, folder: Path, tmp_path: Path
) -> None:
    squish.convert(folder, tmp_path / "m.gguf", encode={"*_exps.weight": encode})
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "m.gguf", tmp_path / "hf", "hf")
    assert caught.value.code == "refused"
    assert re.findall(r"hf:method=\w+", caught.value.message) == ([method] if method else [])
    assert not (tmp_path / "hf").exists()
    squish.convert(tmp_path / "m.gguf", tmp_path / "hf", method or "hf", None if method else {"*.experts.*": "bf16"})


def test_layers_that_do_not_alternate_are_refused(folder: Path, tmp_path: Path) -> None:
    config = {**CONFIG, "layer_types": ["full_attention", "sliding_attention"]}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SquishError) as caught:
        squish.convert(folder, tmp_path / "m.gguf")
    assert (caught.value.code, caught.value.part) == ("config", "config.json")


@pytest.mark.parametrize(
    ("engine", "to"),
    [("llama.cpp", "gguf"), ("mlx", "mlx"), ("transformers", "hf:method=mxfp4")],
)
def test_the_check_lets_what_is_written_pass(engine: str, to: str, folder: Path, coded: Path, tmp_path: Path) -> None:
    target = tmp_path / f"checked.{to.partition(':')[0]}"
    squish.convert(coded, target, to)
    assert check_model(target, engine).problems == ()


def test_yarn_without_its_original_length_takes_the_models(folder: Path, tmp_path: Path) -> None:
    """As llama.cpp does."""
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
    (folder / "config.json").write_text(json.dumps({**CONFIG, "rope_scaling": scaling}))
    squish.convert(folder, tmp_path / "m.gguf", "gguf:keep=no")
    with squish.open(tmp_path / "m.gguf") as file:
        arrays, meta = {name: file[name].numpy() for name in file}, dict(file.index.meta)
    del meta["gpt-oss.rope.scaling.original_context_length"]
    squish.save(tmp_path / "edited.gguf", arrays, metadata=meta)
    squish.convert(tmp_path / "edited.gguf", tmp_path / "hf", "hf")
    stated = json.loads((tmp_path / "hf" / "config.json").read_text())["rope_scaling"]
    assert (stated["original_max_position_embeddings"], stated["truncate"]) == (128, False)
