"""Every layout that a method declares, with random codes, against NumPy that unpacks nothing: the codes are known."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_samples import BF16, E4M3, E8M0, bits_of, checkpoint, packed, written

import squish_core as squish

OUT, IN = 64, 128
FLOAT4 = np.concatenate([half := np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32), -half])
FP8 = {"quant_method": "fp8"}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def nibbles(codes: np.ndarray) -> np.ndarray:
    """Two codes of four bits in a byte, the first one low."""
    return (codes[..., ::2] | codes[..., 1::2] << 4).astype(np.uint8)


@pytest.mark.parametrize(
    ("bits", "version", "group", "order"),
    list(itertools.product((2, 3, 4, 8), ("gptq", "gptq_v2"), (32, -1), (False, True))),
)
def test_gptq_of_every_width_version_group_and_order(
    bits: int, version: str, group: int, order: bool, rng: np.random.Generator, tmp_path: Path
) -> None:
    groups = 1 if group == -1 else IN // group
    codes, zeros = rng.integers(0, 1 << bits, (OUT, IN)), rng.integers(1, 1 << bits, (OUT, groups))
    scales = rng.uniform(0.1, 1, (OUT, groups)).astype(np.float16)
    of_group = np.repeat(np.arange(groups), IN // groups)
    if order:
        rng.shuffle(of_group)
    config = {"bits": bits, "group_size": group, "desc_act": order, "sym": False, "checkpoint_format": version}
    stored = {
        "a__qweight": bits_of(codes, bits).T.copy(), "a__g_idx": of_group.astype(np.int32),
        "a__qzeros": bits_of((zeros - (version == "gptq")).T, bits), "a__scales": scales.T.copy(),
    }  # fmt: skip
    expected = (codes - zeros[:, of_group]).astype(np.float32) * scales[:, of_group].astype(np.float32)
    for beside in (
        {"config.json": {"quantization_config": {"quant_method": "gptq", **config}}},
        {"config.json": {}, "quantize_config.json": config},
    ):
        with written(tmp_path / str(len(beside)), beside, **stored) as file:
            assert (set(file), file.problems) == ({"a.weight"}, ())
            np.testing.assert_array_equal(file["a.weight"].numpy(), expected)
            np.testing.assert_array_equal(file["a.weight"][5:40, 33:97], expected[5:40, 33:97])


@pytest.mark.parametrize(
    ("order", "code", "text"),
    [
        (np.arange(IN) // 32, None, ""),
        ((np.arange(IN) // 32)[::-1], None, ""),
        (np.zeros(IN, int), "doubt", "gives the 4 groups 0 to 128 columns, not 32 each"),
        (np.full(IN, 4), "g_idx", "expected 0 to 3, found 4 to 4"),
        (np.full(IN, -1), "g_idx", "expected 0 to 3, found -1 to -1"),
    ],
)
def test_verify_looks_at_the_groups_of_gptq(order: np.ndarray, code: str | None, text: str, tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": False, "sym": False}
    codes = np.arange(OUT * IN).reshape(OUT, IN) % 16
    stored = {
        "a__qweight": bits_of(codes, 4).T.copy(), "a__g_idx": order.astype(np.int32),
        "a__qzeros": bits_of(np.ones((OUT, IN // 32), int).T, 4), "a__scales": np.ones((IN // 32, OUT), np.float16),
    }  # fmt: skip
    written(tmp_path / "m", {"config.json": {"quantization_config": config}}, **stored).close()
    report = squish.verify(tmp_path / "m", deep=True)
    assert [problem.code for problem in report.problems] == [code] * bool(code)
    assert all(problem.where.startswith("a.weight") for problem in report.problems)
    assert text in "".join(problem.message for problem in report.problems)
    assert report.ok == (code != "g_idx")


def test_gptq_rules_give_layers_bits_and_groups_of_their_own(rng: np.random.Generator, tmp_path: Path) -> None:
    """The first rule that matches a layer counts; one that excludes leaves a plain weight."""
    settings = {"m.q": (4, 32), "m.k": (8, 64), "m.v": (2, 128)}
    rules = {r"-:.*\.head$": {}, r"+:m\.k": {"bits": 8, "group_size": 64}, r"m\.[kv]$": {"bits": 2, "group_size": -1}}
    stored: dict[str, Any] = {"m__head__weight": np.ones((4, 4), np.float16)}
    expected = {}
    for name, (bits, group) in settings.items():
        codes, zeros = rng.integers(0, 1 << bits, (OUT, IN)), rng.integers(1, 1 << bits, (OUT, IN // group))
        scales = rng.uniform(0.1, 1, zeros.shape).astype(np.float16)
        stored |= {
            f"{name}.qweight": bits_of(codes, bits).T.copy(), f"{name}.qzeros": bits_of((zeros - 1).T, bits),
            f"{name}.scales": scales.T.copy(),
        }  # fmt: skip
        wide = [np.repeat(part, group, axis=1) for part in (zeros, scales.astype(np.float32))]
        expected[name] = (codes - wide[0]).astype(np.float32) * wide[1]
    declared = {"bits": 4, "group_size": 32, "desc_act": False, "sym": True, "dynamic": rules}
    with written(tmp_path, {"config.json": {}, "quantize_config.json": declared}, **stored) as file:
        assert (set(file), file.problems) == ({"m.head.weight", *(f"{name}.weight" for name in settings)}, ())
        for name, values in expected.items():
            np.testing.assert_array_equal(file[f"{name}.weight"].numpy(), values, err_msg=name)


@pytest.mark.parametrize("group", [32, -1])
@pytest.mark.parametrize("version", ["gemm", "gemv"])
@pytest.mark.parametrize("named", ["version", "format", "checkpoint_format"])
def test_awq_of_every_version_and_group(
    named: str, version: str, group: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    groups = 1 if group == -1 else IN // group
    codes, zeros = rng.integers(0, 16, (OUT, IN)), rng.integers(0, 16, (OUT, groups))
    scales = rng.uniform(0.1, 1, (OUT, groups)).astype(np.float16)
    if version == "gemm":
        mixed = [part.T.reshape(part.shape[1], -1, 8)[..., [0, 2, 4, 6, 1, 3, 5, 7]] for part in (codes, zeros)]
        words, zero_words = (packed(part.reshape(len(part), -1)) for part in mixed)
        stored = {"a__qweight": words, "a__qzeros": zero_words, "a__scales": scales.T.copy()}
    else:
        wide = np.zeros((2, OUT, 8))
        wide[:, :, :groups] = zeros, scales
        stored = {"a__qweight": packed(codes), "a__qzeros": packed(wide[0]), "a__scales": wide[1].astype(np.float16)}
    config = {"quant_method": "awq", "bits": 4, "group_size": group, named: version, "modules_to_not_convert": ["b"]}
    dense = np.ones((4, 4), np.float16)
    with checkpoint(tmp_path, config, **stored, b__weight=dense) as file:
        assert (set(file), file.problems) == ({"a.weight", "b.weight"}, ())
        expected = (codes - np.repeat(zeros, IN // groups, 1)) * np.repeat(scales, IN // groups, 1).astype(np.float32)
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected.astype(np.float32))


@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize(
    ("named", "zeros"),
    [({"version": "GEMV_FAST"}, "qzeros"), ({"version": "llm-awq"}, "scaled_zeros"),
     ({"version": "gemv", "backend": "llm-awq"}, "scaled_zeros")],
)  # fmt: skip
def test_awq_in_the_order_of_its_fast_kernel(
    named: dict[str, str], zeros: str, group: int, rng: np.random.Generator, tmp_path: Path
) -> None:
    groups = 1 if group == -1 else IN // group
    codes = rng.integers(0, 16, (OUT, IN))
    scales, added = np.zeros((2, 8, OUT), np.float16)
    scales[:groups], added[:groups] = rng.uniform(0.1, 1, (groups, OUT)), rng.normal(size=(groups, OUT))
    words = np.zeros((OUT // 4, IN), np.uint16)
    for row, column in np.ndindex(OUT, IN):
        pair, which = divmod(column % 32 // 2, 4)  # the `which`-th of four stretches of 8 gets every fourth pair
        spread = 64 * (row % 4) + column % 64 // 32 * 32 + 8 * which + pair + 4 * (column % 2)
        words[row // 4, column // 64 * 64 + spread // 4] |= codes[row, column] << 4 * (spread % 4)
    config = {"quant_method": "awq", "bits": 4, "group_size": group, **named}
    stored = {"a__qweight": words.view(np.int16), "a__scales": scales, f"a__{zeros}": added}
    with checkpoint(tmp_path, config, **stored) as file:
        assert (set(file), file.problems) == ({"a.weight"}, ())
        wide = [np.repeat(part[:groups].T.astype(np.float32), IN // groups, axis=1) for part in (scales, added)]
        expected = codes.astype(np.float32) * wide[0] + wide[1]
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected)
        np.testing.assert_array_equal(file["a.weight"][5:11, 60:70], expected[5:11, 60:70])


@pytest.mark.parametrize("place", ["", "text_config", "llm_config", "thinker_config/text_config"])
def test_a_part_of_a_model_may_declare_for_it(place: str, tmp_path: Path) -> None:
    config: dict[str, Any] = {"quantization_config": FP8}
    for name in reversed(place.split("/") if place else []):
        config = {"vision_config": {"hidden_size": 8}, name: config}
    stored = {"language_model__a__weight": np.ones((8, 8), E4M3), "language_model__a__weight_scale": np.float32(2)}
    with written(tmp_path, {"config.json": config}, **stored) as file:
        assert (file.format, file.problems) == ("hf", ())
        assert (file["language_model.a.weight"].numpy() == 2).all()


FUSED = {
    "blocks, inverse": ("_scale_inv", (3, 2, 3), (32, 48), {"weight_block_size": [32, 48]}),
    "an expert": ("_scale_inv", (3, 1, 1), (OUT, IN), {"weight_block_size": None}),
    "an expert, no axes": ("_scale_inv", (3,), (OUT, IN), {}),
    "columns, as of Llama 4": ("_scale", (3, 1, IN), (OUT, 1), {"quant_method": "fbgemm_fp8"}),
    "rows, as of Llama 4": ("_scale", (3, OUT, 1), (1, IN), {"quant_method": "fbgemm_fp8"}),
}


@pytest.mark.parametrize("case", FUSED)
def test_fused_experts_in_float8(case: str, rng: np.random.Generator, tmp_path: Path) -> None:
    suffix, grid, (down, across), config = FUSED[case]
    codes, scale = rng.normal(size=(3, OUT, IN)).astype(E4M3), rng.uniform(0.1, 1, grid).astype(np.float32)
    wide = scale.reshape(3, *(grid[1:] or (1, 1)))
    wide = np.repeat(np.repeat(wide, down, axis=1)[:, :OUT], across, axis=2)[:, :, :IN]
    stored = {
        "m__experts__down_proj": codes, f"m__experts__down_proj{suffix}": scale, "m__experts__down_proj_bias": scale,
        "m__experts__down_proj_activation_scale": np.ones(3, np.float32), "logit_scale": np.float32(1),
        "m__logit_scale": np.float32(1),
    }  # fmt: skip
    with checkpoint(tmp_path, {**FP8, **config}, **stored) as file:
        dense = {"m.experts.down_proj_bias", "logit_scale", "m.logit_scale"}
        assert (set(file), file.problems) == ({"m.experts.down_proj", *dense}, ())
        experts = file["m.experts.down_proj"]
        np.testing.assert_array_equal(experts.numpy(), codes.astype(np.float32) * wide)
        np.testing.assert_array_equal(experts[1:3, 40:50, 7:90], (codes.astype(np.float32) * wide)[1:3, 40:50, 7:90])
        assert set(experts.spec.extras) == {"_activation_scale"}


def test_fused_experts_without_their_scale_are_refused_alone(tmp_path: Path) -> None:
    stored = {"m__experts__down_proj": np.ones((2, 8, 8), E4M3), "a__weight": np.ones((8, 8), np.float16)}
    with checkpoint(tmp_path, FP8, **stored) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("missing", "m.experts.down_proj")]
        assert file["m.experts.down_proj"].parts()["data"].numpy().shape == (2, 8, 8)
        assert file["a.weight"].numpy().all()


def test_scales_by_other_names_and_powers_of_two(rng: np.random.Generator, tmp_path: Path) -> None:
    """DeepSeek's own files call them `scale`, and hold experts of four bits; MXFP8 stores exponents as bytes."""
    codes, exponents = rng.normal(size=(OUT, IN)).astype(E4M3), rng.integers(120, 130, (2, 4), np.uint8)
    small, tiny = rng.integers(0, 16, (OUT, IN)), rng.integers(120, 130, (OUT, IN // 32), np.uint8)
    config = {**FP8, "scale_fmt": "ue8m0", "weight_block_size": [32, 32]}
    stored = {
        "a__weight": codes, "a__scale": exponents.view(E8M0), "norm__scale": np.ones(4, np.float32),
        "e__w1__weight": nibbles(small).view(np.int8), "e__w1__scale": tiny.view(E8M0),
    }  # fmt: skip
    with checkpoint(tmp_path / "deepseek", config, **stored) as file:
        assert (set(file), file.problems) == ({"a.weight", "e.w1.weight", "norm.scale"}, ())
        wide = np.repeat(np.repeat(np.exp2(exponents - 127.0), 32, 0), 32, 1).astype(np.float32)
        np.testing.assert_array_equal(file["a.weight"].numpy(), codes.astype(np.float32) * wide)
        wide = np.repeat(np.exp2(tiny - 127.0), 32, 1).astype(np.float32)
        np.testing.assert_array_equal(file["e.w1.weight"].numpy(), FLOAT4[small] * wide)
    config = {"quant_method": "mxfp8", "weight_block_size": [1, 32]}
    with checkpoint(tmp_path / "mxfp8", config, a__weight=codes, a__weight_scale_inv=tiny) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy(), codes.astype(np.float32) * wide)
        (step,) = squish.convert(file, tmp_path / "mlx", "mlx").steps
        assert step.action == "copy"


def test_blocks_of_scales_that_are_not_called_inverse(rng: np.random.Generator, tmp_path: Path) -> None:
    codes, scale = rng.normal(size=(50, 70)).astype(E4M3), rng.uniform(0.1, 1, (2, 3)).astype(BF16)
    config = {**FP8, "weight_block_size": [32, 32]}
    with checkpoint(tmp_path, config, a__weight=codes, a__weight_scale=scale) as file:
        wide = np.repeat(np.repeat(scale.astype(np.float32), 32, 0)[:50], 32, 1)[:, :70]
        np.testing.assert_array_equal(file["a.weight"].numpy(), codes.astype(np.float32) * wide)


MODELOPT = {"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head", "b*"]}}


def test_modelopt_integers_and_blocks(rng: np.random.Generator, tmp_path: Path) -> None:
    small, large = rng.integers(-8, 8, (OUT, IN)), rng.integers(-128, 128, (OUT, IN)).astype(np.int8)
    codes, scale = rng.normal(size=(256, 384)).astype(E4M3), rng.uniform(0.1, 1, (OUT, 4)).astype(np.float32)
    blocks = rng.uniform(0.1, 1, (2, 3)).astype(np.float32)
    rows = small.T.reshape(IN, -1, 2) & 15
    stored = {
        "W4A16_AWQ": ((rows[..., 0] | rows[..., 1] << 4).T.astype(np.uint8).copy(), scale,
                      small * np.repeat(scale, 32, 1)),
        "W8A16": (large, scale[:, 0], large * scale[:, :1]),
        "fp8_pb_wo": (codes, blocks[:, None, :, None],
                      codes.astype(np.float32) * np.repeat(np.repeat(blocks, 128, 0), 128, 1)),
    }  # fmt: skip
    for algorithm, (weight, scales, expected) in stored.items():
        declared = {"quantization": {**MODELOPT["quantization"], "quant_algo": algorithm}}
        tensors = {"a__weight": weight, "a__weight_scale": scales, "b__weight": np.ones((4, 4), BF16)}
        beside = {"config.json": {}, "hf_quant_config.json": declared}
        with written(tmp_path / algorithm, beside, **tensors, a__input_scale=np.float32(1)) as file:
            assert (set(file), file.problems) == ({"a.weight", "b.weight"}, ())
            np.testing.assert_array_equal(file["a.weight"].numpy(), expected.astype(np.float32))
            assert set(file["a.weight"].spec.extras) == {"input_scale"}


def test_modelopt_layers_by_algorithms_of_their_own(tmp_path: Path) -> None:
    named = {"a": {"quant_algo": "FP8"}, "b": {"quant_algo": "W8A16"}, "c": {"quant_algo": "NVFP4_SVD"}}
    stored: dict[str, Any] = {f"{name}__weight_scale": np.ones(8, np.float32) for name in named}
    stored |= {f"{name}__weight": np.ones((8, 8), E4M3 if name == "a" else np.int8) for name in named}
    declared = {"quantization": {"quant_algo": "MIXED_PRECISION", "quantized_layers": named}}
    with written(tmp_path, {"config.json": {}, "hf_quant_config.json": declared}, **stored) as file:
        assert (file["a.weight"].numpy() == 1).all()
        assert (file["b.weight"].numpy() == 1).all()
        assert [(problem.code, problem.where) for problem in file.problems] == [("config", "c.weight")]


@pytest.mark.parametrize("grid", [(), (3,), (3, 1, 1)])
def test_modelopt_fused_experts(grid: tuple[int, ...], rng: np.random.Generator, tmp_path: Path) -> None:
    codes, scale = rng.normal(size=(3, OUT, IN)).astype(E4M3), rng.uniform(0.1, 1, grid).astype(np.float32)
    name = "m__experts__gate_up_proj"
    config = {"quant_method": "modelopt", "quant_algo": "FP8"}
    stored = {name: codes, f"{name}_weight_scale": scale, f"{name}_input_scale": np.float32(1)}
    with checkpoint(tmp_path / "fp8", config, **stored) as file:
        assert (set(file), file.problems) == ({"m.experts.gate_up_proj"}, ())
        expected = codes.astype(np.float32) * scale.reshape(-1, 1, 1)
        np.testing.assert_array_equal(file["m.experts.gate_up_proj"].numpy(), expected)
    stored = {name: codes.view(np.uint8), f"{name}_weight_scale": codes, f"{name}_weight_scale_2": np.float32(1)}
    with checkpoint(tmp_path / "nvfp4", {**config, "quant_algo": "NVFP4"}, **stored) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("layout", "m.experts.gate_up_proj")]
        assert set(file["m.experts.gate_up_proj"].parts()) == {"data", "_weight_scale", "_weight_scale_2"}


def test_modelopt_may_quantize_the_cache_alone(tmp_path: Path) -> None:
    beside = {"config.json": {}, "hf_quant_config.json": MODELOPT}
    stored = {"a__k_proj__weight": np.ones((4, 4), BF16), "a__k_proj__k_scale": np.ones(1, np.float32)}
    with written(tmp_path, beside, **stored) as file:
        assert (set(file), file.problems) == ({"a.k_proj.weight", "a.k_proj.k_scale"}, ())


def int8_layer(strategy: str) -> dict[str, Any]:
    return {"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": True}


def test_weights_that_were_saved_as_they_are_keep_their_scales_beside_them(tmp_path: Path) -> None:
    groups = {"group_0": {"targets": ["Linear"], "weights": int8_layer("channel")}}
    config = {"quant_method": "compressed-tensors", "format": "dense", "quantization_status": "frozen",
              "config_groups": groups}  # fmt: skip
    stored = {"a__weight": np.full((OUT, IN), 0.3, BF16), "a__weight_scale": np.ones((OUT, 1), BF16)}
    with checkpoint(tmp_path, config, **stored) as file:
        assert (set(file), file.problems, file["a.weight"].dtype) == ({"a.weight"}, (), "bf16")
        np.testing.assert_array_equal(file["a.weight"].numpy(), stored["a__weight"])
        assert set(file["a.weight"].spec.extras) == {"weight_scale"}


def test_groups_by_class_are_those_that_the_layers_fit(rng: np.random.Generator, tmp_path: Path) -> None:
    """Groups of caches have no weights, and the outermost modules are names, no classes."""
    small, large = rng.integers(0, 16, (OUT, IN)), rng.integers(-128, 128, (OUT, IN)).astype(np.int8)
    grouped = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": True}
    groups = {
        "cache": {"targets": ["LlamaAttention"], "weights": None},
        "head": {"targets": ["lm_head"], "weights": int8_layer("tensor"), "format": "int-quantized"},
        "linear": {"targets": ["Linear"], "weights": grouped, "format": "pack-quantized"},
        "embedding": {"targets": ["Embedding"], "weights": int8_layer("channel"), "format": "int-quantized"},
    }
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    scale, rows = rng.uniform(0.1, 1, (OUT, 4)).astype(BF16), rng.uniform(0.1, 1, (OUT, 1)).astype(BF16)
    stored = {
        "m__embed__weight": large, "m__embed__weight_scale": rows, "lm_head__weight": large,
        "lm_head__weight_scale": rows[0], "m__fc__weight_packed": packed(small), "m__fc__weight_scale": scale,
        "m__fc__weight_shape": np.array([OUT, IN]),
    }  # fmt: skip
    with checkpoint(tmp_path, config, **stored) as file:
        assert (set(file), file.problems) == ({"m.embed.weight", "lm_head.weight", "m.fc.weight"}, ())
        expected = {
            "m.embed": large * rows.astype(np.float32), "lm_head": large * rows[0].astype(np.float32),
            "m.fc": (small - 8) * np.repeat(scale.astype(np.float32), 32, 1),
        }  # fmt: skip
        for name, values in expected.items():
            np.testing.assert_array_equal(file[f"{name}.weight"].numpy(), values.astype(np.float32), err_msg=name)


def test_bitsandbytes_before_it_named_itself(rng: np.random.Generator, tmp_path: Path) -> None:
    codes, scale = rng.integers(-127, 128, (6, 10)).astype(np.int8), rng.uniform(1, 2, 6).astype(np.float32)
    stored = {"a__weight": codes, "a__SCB": scale, "lm_head__weight": np.ones((4, 4), np.float16)}
    config = {"load_in_8bit": True, "llm_int8_skip_modules": ["lm_head"]}
    with checkpoint(tmp_path / "rows", config, **stored, a__weight_format=np.uint8(0)) as file:
        assert (set(file), file.problems) == ({"a.weight", "lm_head.weight"}, ())
        np.testing.assert_allclose(file["a.weight"].numpy(), codes * scale[:, None] / 127, rtol=3e-7)
    with checkpoint(tmp_path / "tiles", config, **stored, a__weight_format=np.uint8(2)) as file:
        assert ("weight_format", "a.weight") in {(problem.code, problem.where) for problem in file.problems}
        assert file["a.weight"].parts()["weight"].numpy().shape == (6, 10)
