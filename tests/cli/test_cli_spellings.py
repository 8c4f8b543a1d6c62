"""Options of llama-quantize and mlx_lm.convert, as rules of `--encode`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli import main
from squish_cli.spellings import graph_target, mlx_rules, preset_rules

import squish_core as squish


@pytest.mark.parametrize(
    ("encode", "options", "rules"),
    [
        (["q4_k_m"], {}, ["q4_k_m"]),
        ([], {}, []),
        (["q4_k_m"], {"pure": True}, ["llama-quantize:type=q4_k_m,pure=yes"]),
        (["Q8_0"], {"output": "q6_k"}, ["llama-quantize:type=q8_0,output=q6_k"]),
        (["q4_k_m:output=f16"], {"embedding": "q8_0"}, ["llama-quantize:type=q4_k_m,output=f16,embedding=q8_0"]),
        (["llama-quantize:type=q6_k"], {"pure": True}, ["llama-quantize:type=q6_k,pure=yes"]),
        (
            ["blk.0.*=keep", "q4_k_m"], {"types": ["attn_v=q8_0"]},
            ["blk.0.*=keep", "llama-quantize:type=q4_k_m,attn_v=q8_0"],
        ),
        (["q4_k_m"], {"types": [r"blk\.(1|2)=q8_0"]}, [r"llama-quantize:type=q4_k_m,blk\.%281|2%29=q8_0"]),
        (["q4_k_m"], {"types": ["a{1,2}=q8_0"]}, ["llama-quantize:type=q4_k_m,a{1%2C2}=q8_0"]),
    ],
)  # fmt: skip
def test_llama_quantizes_options_are_parameters_of_the_preset(
    encode: list[str], options: dict[str, Any], rules: list[str]
) -> None:
    values = {"types": [], "output": None, "embedding": None, "pure": False, **options}
    assert preset_rules(encode, **values) == rules


@pytest.mark.parametrize(
    ("encode", "types"), [([], ["a=q8_0"]), (["q4_k_m", "q8_0"], ["a=q8_0"]), (["q4_k_m"], ["attn_v"])]
)
def test_options_without_one_preset_are_errors(encode: list[str], types: list[str]) -> None:
    with pytest.raises(squish.SquishError) as caught:
        preset_rules(encode, types, None, None, False)
    assert caught.value.code == "usage"


@pytest.mark.parametrize(
    ("options", "rules"),
    [
        ((None, None, None), ["last"]),
        ((4, None, None), ["q4:group_size=64", "last"]),
        ((8, 32, "affine"), ["q8:group_size=32", "last"]),
        ((None, None, "nvfp4"), ["nvfp4", "last"]),
        ((4, 32, "mxfp4"), ["mxfp4", "last"]),
    ],
)
def test_mlx_lms_options_are_a_rule_before_the_others(options: tuple[Any, Any, Any], rules: list[str]) -> None:
    assert mlx_rules(["last"], "mlx", *options) == rules


@pytest.mark.parametrize("options", [(8, None, "mxfp4"), (None, 64, "nvfp4"), (None, None, "int4"), (7, None, None)])
def test_modes_that_mlx_lm_lacks_are_errors(options: tuple[Any, Any, Any]) -> None:
    with pytest.raises(squish.SquishError) as caught:
        mlx_rules([], "mlx", *options)
    assert caught.value.code == "usage"


@pytest.mark.parametrize("to", [None, "gguf", "safetensors:max_shard_size=1GB"])
def test_mlx_lms_options_are_for_mlx_alone(to: str | None) -> None:
    with pytest.raises(squish.SquishError) as caught:
        mlx_rules([], to, 4, None, None)
    assert caught.value.code == "usage"
    assert mlx_rules(["q4_k"], to, None, None, None) == ["q4_k"]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    names = ("token_embd.weight", "blk.0.attn_v.weight", "blk.0.attn_q.weight", "output.weight")
    rng = np.random.default_rng(0)
    squish.save(tmp_path / "in.gguf", {name: rng.standard_normal((4, 256)).astype("f2") for name in names})
    return tmp_path / "in.gguf"


def test_a_command_line_of_llama_quantize(source: Path, tmp_path: Path) -> None:
    line = ["convert", str(source), str(tmp_path / "out.gguf"), "--encode", "Q4_K_M", "--tensor-type", "attn_[vk]=q8_0"]
    assert main([*line, "--output-tensor-type", "q5_0", "--token-embedding-type", "F16", "-q"]) == 0
    with squish.open(tmp_path / "out.gguf") as file:
        types = {name: file[name].codec for name in file}
    assert types["blk.0.attn_v.weight"] == "ggml.q8_0"
    assert types["blk.0.attn_q.weight"] == "ggml.q4_k"
    assert types["output.weight"] == "ggml.q5_0"
    assert types["token_embd.weight"] not in ("ggml.q4_k", "ggml.q6_k")


def test_a_command_line_of_mlx_lm(tmp_path: Path) -> None:
    squish.save(tmp_path / "in.safetensors", {"model.layers.0.mlp.up_proj.weight": np.ones((4, 128), np.float16)})
    line = ["convert", str(tmp_path / "in.safetensors"), str(tmp_path / "out"), "--to", "mlx"]
    assert main([*line, "--q-bits", "8", "--q-group-size", "32"]) == 0
    with squish.open(tmp_path / "out") as file:
        (tensor,) = file.values()
        assert (tensor.codec, dict(tensor.spec.encodings[0].codec.params)["group_size"]) == ("affine", 32)


@pytest.mark.parametrize(
    ("to", "graph", "names", "result"),
    [
        ("zt", None, "hf", ("zt", "hf")),
        (None, "g.onnx", None, ("onnx:graph=g.onnx", None)),
        ("onnx", "g.onnx", "keep", ("onnx:graph=g.onnx", "keep")),
        (None, "g.onnx", "hf:qwen3", ("onnx:graph=g.onnx", "hf:qwen3")),
        ("onnx", "g.onnx", "names.json", ("onnx:graph=g.onnx,names=names.json", None)),
    ],
)
def test_a_graph_is_an_option_of_onnx(to: str | None, graph: str | None, names: str | None, result: Any) -> None:
    assert graph_target(to, graph, names) == result


def test_a_graph_is_for_onnx_alone() -> None:
    with pytest.raises(squish.SquishError) as caught:
        graph_target("gguf", "g.onnx", None)
    assert caught.value.code == "usage"
