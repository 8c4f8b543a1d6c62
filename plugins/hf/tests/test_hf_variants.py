"""Ways of storing that the sample checkpoints lack, against values worked out here from each format's description."""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_samples import BF16, E4M3, checkpoint, packed

import squish_core as squish
from squish_core.api import Dropped, SquishError

RNG = np.random.default_rng(0)


def test_awq_for_gemv_has_padded_scales_and_zero_points(tmp_path: Path) -> None:
    codes, zeros = RNG.integers(0, 16, (8, 192)), RNG.integers(0, 16, (8, 3))
    scales = np.zeros((8, 16), np.float16)
    scales[:, :3] = RNG.uniform(0.1, 1, (8, 3))
    words = np.zeros((8, 16), np.int64)
    words[:, :3] = zeros
    config = {"quant_method": "awq", "version": "gemv", "bits": 4, "group_size": 64, "zero_point": True}
    with checkpoint(tmp_path, config, a__qweight=packed(codes), a__qzeros=packed(words), a__scales=scales) as file:
        wide = [np.repeat(part, 64, axis=1) for part in (zeros.astype(np.float32), scales[:, :3].astype(np.float32))]
        expected = (codes.astype(np.float32) - wide[0]) * wide[1]
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected)
        np.testing.assert_array_equal(file["a.weight"][3:5, 70:130], expected[3:5, 70:130])


@pytest.mark.parametrize("scaled", ["", "rows", "all"])
def test_a_sparse_bitmask_holds_what_is_not_zero(scaled: str, tmp_path: Path) -> None:
    dense = np.where(RNG.random((5, 24)) < 0.4, RNG.normal(size=(5, 24)), 0).astype(np.float32)
    kind = E4M3 if scaled else BF16
    dense = dense.astype(kind)
    keep = dense.astype(np.float32) != 0
    starts = np.concatenate([[0], np.cumsum(keep.sum(axis=1))[:-1]]).astype(np.int64)
    parts = {
        "a__weight__shape": np.array([[5], [24]]), "a__weight__compressed": dense[keep],
        "a__weight__bitmask": np.packbits(keep, axis=1, bitorder="little"), "a__weight__row_offsets": starts,
    }  # fmt: skip
    expected = dense.astype(np.float32)
    if scaled:
        parts["a__weight_scale"] = RNG.uniform(0.1, 1, (5, 1) if scaled == "rows" else (1,)).astype(np.float32)
        expected = expected * parts["a__weight_scale"]
    config = {"quant_method": "compressed-tensors", "format": "dense", "sparsity_config": {"format": "sparse-bitmask"}}
    with checkpoint(tmp_path, config, **parts) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy().astype(np.float32), expected)
        np.testing.assert_array_equal(file["a.weight"][2:4].astype(np.float32), expected[2:4])


def test_a_mask_that_does_not_fit_the_values_is_refused(tmp_path: Path) -> None:
    mask = np.full((4, 2), 0x0F, np.uint8)
    mask[2, 0] = 0xFF
    parts = {"a__shape": np.array([[4], [16]]), "a__compressed": np.ones((4, 8), BF16), "a__bitmask": mask}
    config = {"quant_method": "compressed-tensors", "sparsity_config": {"format": "sparse-24-bitmask"}}
    with checkpoint(tmp_path, config, **parts) as file, pytest.raises(SquishError) as caught:
        file["a.weight"].numpy()
    assert (caught.value.tensor, caught.value.code) == ("a.weight", "mask")


def test_modelopt_multiplies_its_global_scale_and_compressed_tensors_divides(tmp_path: Path) -> None:
    codes, scale = RNG.integers(0, 256, (4, 16), np.uint8), RNG.uniform(1, 8, (4, 2)).astype(E4M3)
    half = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32)
    table = np.concatenate([half, -half])
    values = np.stack([table[codes & 15], table[codes >> 4]], axis=-1).reshape(4, 2, 16)
    whole = np.float32(0.37)
    modelopt = checkpoint(
        tmp_path / "modelopt",
        {"quant_method": "modelopt", "quant_algo": "NVFP4"},
        a__weight=codes,
        a__weight_scale=scale,
        a__weight_scale_2=whole,
        a__input_scale=np.float32(3),
    )
    expected = values * (scale.astype(np.float32) * whole)[..., None]
    np.testing.assert_array_equal(modelopt["a.weight"].numpy(), expected.reshape(4, 32))
    assert set(modelopt["a.weight"].spec.extras) == {"input_scale"}
    weights = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16}
    group = {"targets": ["Linear"], "weights": weights}
    config = {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized", "config_groups": {"g": group}}
    other = checkpoint(
        tmp_path / "ct",
        config,
        a__weight_packed=codes,
        a__weight_scale=scale,
        a__weight_global_scale=whole[None],
        a__input_global_scale=whole[None],
    )
    expected = values * (scale.astype(np.float32) / whole)[..., None]
    np.testing.assert_array_equal(other["a.weight"].numpy(), expected.reshape(4, 32))
    assert set(other["a.weight"].spec.extras) == {"input_global_scale"}


def test_bitsandbytes_int8_is_a_code_times_its_row_over_127(tmp_path: Path) -> None:
    codes, scale = RNG.integers(-127, 128, (6, 10)).astype(np.int8), RNG.uniform(1, 2, 6).astype(np.float32)
    config = {"quant_method": "bitsandbytes", "load_in_8bit": True}
    with checkpoint(tmp_path, config, a__weight=codes, a__SCB=scale, a__weight_format=np.uint8(0)) as file:
        np.testing.assert_allclose(file["a.weight"].numpy(), codes * scale[:, None] / 127, rtol=3e-7)


@pytest.mark.parametrize("storage", [np.dtype(np.uint8), BF16])
def test_bitsandbytes_blocks_run_over_rows_whatever_the_storage_is_called(storage: np.dtype, tmp_path: Path) -> None:
    table = np.sort(RNG.normal(size=16)).astype(np.float32)
    codes, scale = RNG.integers(0, 16, 6 * 48), RNG.uniform(0.1, 1, -(-6 * 48 // 64)).astype(np.float32)
    data = (codes[::2] << 4 | codes[1::2]).astype(np.uint8)
    state = json.dumps({"quant_type": "fp4", "blocksize": 64, "shape": [6, 48], "dtype": "float16"}).encode()
    parts = {
        "a__weight": data.view(storage)[:, None], "a__weight__absmax": scale, "a__weight__quant_map": table,
        "a__weight__quant_state__bitsandbytes__fp4": np.frombuffer(state, np.uint8),
    }  # fmt: skip
    parts = {name.replace("bitsandbytes__fp4", "bitsandbytes_FP4"): values for name, values in parts.items()}
    config = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    checkpoint(tmp_path, config, **parts)
    path = tmp_path / "model.safetensors"  # the name has two underscores of its own
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    text = raw[8:end].replace(b"bitsandbytes_FP4", b"bitsandbytes__fp4")
    path.write_bytes(len(text).to_bytes(8, "little") + text + raw[end:])
    expected = (table[codes] * np.repeat(scale, 64)[: codes.size]).reshape(6, 48)
    with squish.open(tmp_path) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected)
        np.testing.assert_array_equal(file["a.weight"][4:, 3:9], expected[4:, 3:9])


@pytest.mark.parametrize(
    ("name", "grid", "config"),
    [
        ("weight_scale", (), {}),
        ("weight_scale", (1,), {}),
        ("weight_scale", (7,), {}),
        ("weight_scale", (7, 1), {}),
        ("weight_scale_inv", (), {}),
        ("weight_scale_inv", (4, 3), {"weight_block_size": [2, 4]}),
    ],
)
def test_fp8_scales_of_every_shape(name: str, grid: tuple[int, ...], config: dict[str, Any], tmp_path: Path) -> None:
    codes, scale = RNG.normal(size=(7, 10)).astype(E4M3), RNG.uniform(0.1, 1, grid).astype(np.float32)
    wide = scale.reshape(-1, 1) if len(grid) == 1 else scale
    if len(grid) == 2 and grid[1] > 1:
        wide = np.repeat(np.repeat(scale, 2, axis=0)[:7], 4, axis=1)[:, :10]
    with checkpoint(tmp_path, {"quant_method": "fp8", **config}, a__weight=codes, **{f"a__{name}": scale}) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy(), codes.astype(np.float32) * wide)


def test_block_scales_without_a_declared_block_are_refused(tmp_path: Path) -> None:
    tensors = {"a__weight": np.zeros((8, 8), E4M3), "a__weight_scale_inv": np.ones((2, 2), np.float32)}
    with checkpoint(tmp_path, {"quant_method": "fp8"}, **tensors) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("config", "a.weight")]


@pytest.mark.parametrize("strategy", ["tensor", "channel", "group"])
@pytest.mark.parametrize("symmetric", [True, False])
def test_int_quantized_of_every_strategy(strategy: str, symmetric: bool, tmp_path: Path) -> None:
    codes = RNG.integers(-128, 128, (6, 32)).astype(np.int8)
    grid = {"tensor": (1,), "channel": (6, 1), "group": (6, 4)}[strategy]
    scale, zero = RNG.uniform(0.1, 1, grid).astype(BF16), RNG.integers(-9, 9, grid).astype(np.int8)
    weights = {"num_bits": 8, "type": "int", "strategy": strategy, "symmetric": symmetric}
    group = {"targets": ["re:a.*"], "weights": {**weights, "group_size": 8 if strategy == "group" else None}}
    config = {"quant_method": "compressed-tensors", "format": "naive-quantized", "config_groups": {"g": group}}
    more = {} if symmetric else {"a__weight_zero_point": zero}
    with checkpoint(tmp_path, config, a__weight=codes, a__weight_scale=scale, **more) as file:
        wide = [np.repeat(np.broadcast_to(part, (6, grid[-1])), 32 // grid[-1], axis=1) for part in (scale, zero)]
        expected = (codes.astype(np.float32) - (0 if symmetric else wide[1])) * wide[0].astype(np.float32)
        np.testing.assert_array_equal(file["a.weight"].numpy(), expected)


def gptq(tmp_path: Path, **config: Any) -> squish.File:
    """Two small layers, `a.x` and `a.y`, of four bits."""
    tensors = {}
    for layer in ("x", "y"):
        tensors[f"a__{layer}__qweight"] = np.zeros((4, 8), np.int32)
        tensors[f"a__{layer}__qzeros"] = np.zeros((1, 1), np.int32)
        tensors[f"a__{layer}__scales"] = np.ones((1, 8), np.float16)
    return checkpoint(tmp_path, {"quant_method": "gptq", "bits": 4, "group_size": 32, **config}, **tensors)


@pytest.mark.parametrize(
    ("target", "action"), [("hf:method=gptq", "copy"), ("hf:method=gptq_v2", "repack"), ("mlx", "repack")]
)
def test_a_checkpoint_without_g_idx_keeps_its_codes(target: str, action: str, tmp_path: Path) -> None:
    with gptq(tmp_path / "source") as file:
        report = squish.convert(file, tmp_path / "out", target)
        assert {step.action for step in report.steps} == {action}
        with squish.open(tmp_path / "out") as new:
            np.testing.assert_array_equal(new["a.x.weight"].numpy(), file["a.x.weight"].numpy())


def test_dynamic_settings_apply_to_matching_layers(tmp_path: Path) -> None:
    with gptq(tmp_path, dynamic={r"+:.*\.y": {"bits": 8}}) as file:
        assert (file["a.x.weight"].numpy() == -1).all()
        assert [(problem.code, problem.where) for problem in file.problems] == [("shape", "a.y.weight")]
    with gptq(tmp_path / "2", dynamic={r"-:.*\.y": {}}) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("contradiction", "a.y.weight")]


@pytest.mark.parametrize("named", ["checkpoint_format", "format"])
def test_the_layout_may_stand_in_either_field(named: str, tmp_path: Path) -> None:
    for stated, zero in (("gptq", 1), ("GPTQ_V2", 0)):
        with gptq(tmp_path / stated, **{named: stated}) as file:
            assert (file["a.x.weight"].numpy() == -zero).all()


def test_settings_that_name_no_layer_change_nothing(tmp_path: Path) -> None:
    with gptq(tmp_path, dynamic={r"+:.*\.absent": {"bits": 8}, r"-:other": {}}) as file:
        for layer in ("x", "y"):
            assert (file[f"a.{layer}.weight"].numpy() == -1).all()
        assert [(problem.severity, problem.code, problem.where) for problem in file.problems] == [
            ("note", "override", r"+:.*\.absent")
        ]


def test_names_of_layers_that_are_not_there_are_noted_in_every_method(tmp_path: Path) -> None:
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    groups = {
        "g": {"targets": ["Linear", "m.absent", "re:.*gone", "re:.*a$"], "weights": weights},
        "cache": {"targets": ["re:.*attn"], "weights": None},
    }
    named = {"a": {"quant_algo": "FP8"}, "m.absent": {"quant_algo": "FP8"}}
    declared = {
        "compressed-tensors": ({"format": "float-quantized", "config_groups": groups}, ["m.absent", "re:.*gone"]),
        "modelopt": ({"quant_algo": "MIXED_PRECISION", "quantized_layers": named}, ["m.absent"]),
    }
    tensors = {"a__weight": np.ones((8, 8), E4M3), "a__weight_scale": np.ones(1, np.float32)}
    for method, (config, idle) in declared.items():
        with checkpoint(tmp_path / method, {"quant_method": method, **config}, **tensors) as file:
            assert [(problem.code, problem.where) for problem in file.problems] == [("override", name) for name in idle]
            assert (file["a.weight"].numpy() == 1).all()


def test_a_group_for_each_of_thousands_of_layers_opens_fast(tmp_path: Path) -> None:
    """Names are looked up; comparing each layer with each target would take a minute."""
    weights = {"num_bits": 8, "type": "float", "strategy": "tensor"}
    names = [f"m.{number}.w" for number in range(4000)]
    groups = {name: {"targets": [name], "weights": weights} for name in names}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": groups}
    tensors = {}
    for name in names:
        tensors |= {f"{name}.weight": np.ones((1, 1), E4M3), f"{name}.weight_scale": np.ones(1, np.float32)}
    started = time.monotonic()
    with checkpoint(tmp_path, {**config, "ignore": [f"{name}.absent" for name in names]}, **tensors) as file:
        assert (len(file), file.problems) == (len(names), ())
    assert time.monotonic() - started < 30  # a guard against hanging


@pytest.mark.parametrize("pattern", ["(((a+)+)+)+$", "(a|a)*b" * 20, "(", "a{1,99999}{1,99999}", "(?:" * 400])
def test_hostile_patterns_end_soon(pattern: str, tmp_path: Path) -> None:
    started = time.monotonic()
    with gptq(tmp_path, dynamic={f"+:{'a.' + pattern}": {"bits": 8}}) as file:
        for name in file:
            with contextlib.suppress(SquishError):
                file[name].numpy()
    assert time.monotonic() - started < 30  # a guard against hanging


@pytest.mark.parametrize(
    ("config", "code"),
    [
        ({"checkpoint_format": "marlin"}, "marlin"),
        ({"is_marlin_format": True}, "marlin"),
        ({"checkpoint_format": "gptq_v3"}, "config"),
        ({"format": "gptq_v3"}, "config"),
        ({"checkpoint_format": "gptq", "format": "gptq_v2"}, "contradiction"),
        ({"bits": True}, "config"),
        ({"bits": 5}, "config"),
        ({"group_size": 0}, "config"),
        ({"group_size": 24}, "group_size"),
        ({"desc_act": True}, "missing"),
        ({"pack_dtype": "int128"}, "config"),
        ({"dynamic": []}, "config"),
    ],
)
def test_an_invalid_declaration_fails_the_layers(config: dict[str, Any], code: str, tmp_path: Path) -> None:
    with gptq(tmp_path, **config) as file:
        assert {problem.code for problem in file.problems} == {code}
        with pytest.raises(SquishError) as caught:
            file["a.x.weight"].numpy()
        assert caught.value.tensor == "a.x.weight"


def test_marlin_is_refused_by_name_in_awq_too(tmp_path: Path) -> None:
    config = {"quant_method": "awq", "version": "marlin", "bits": 4, "group_size": 8}
    with checkpoint(tmp_path, config, **AWQ_LAYER) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("marlin", "a.weight")]
        assert set(file["a.weight"].parts()) == {"qweight", "qzeros", "scales"}


def test_marlin_under_its_own_names_is_a_finding(tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 4, "group_size": 128, "is_marlin_format": True}
    with checkpoint(tmp_path, config, a__B=np.ones((2, 8), np.int32), a__s=np.ones((1, 8), np.float16)) as file:
        assert [(problem.code, problem.severity) for problem in file.problems] == [("marlin", "error")]
        assert file["a.B"].numpy().all()


@pytest.mark.parametrize(
    ("method", "text"), [("exl3", "trellis.*exllamav3, save"), ("", "no method"),
                         ("marlin", "Marlin"), ("quip", "'quip'")],
)  # fmt: skip
def test_an_unsupported_method_is_named_and_tensors_are_read_as_stored(method: str, text: str, tmp_path: Path) -> None:
    codes = RNG.integers(0, 256, (4, 8), np.uint8)
    stored = {"a__W_q": codes, "a__scale": np.ones((8, 1), np.float16), "a__nbits": np.array([4])}
    config = {"quant_method": method, "skip_modules": []}
    with checkpoint(tmp_path, config, **stored) as file:
        (problem,) = file.problems
        assert (problem.code, problem.severity) == ("quant-method", "error")
        assert re.search(text, problem.message)
        np.testing.assert_array_equal(file["a.W_q"].numpy(), codes)
    with pytest.raises(SquishError) as caught:
        squish.open(tmp_path, strict=True)
    assert caught.value.code == "quant-method"


def test_a_contradictory_second_file_is_a_finding(tmp_path: Path) -> None:
    gptq(tmp_path).close()
    (tmp_path / "quantize_config.json").write_text('{"bits": 8, "group_size": 32}')
    with squish.open(tmp_path) as file:
        assert [(problem.code, "bits" in problem.message) for problem in file.problems] == [("contradiction", True)]
        assert (file["a.x.weight"].numpy() == -1).all()


def test_an_ignored_layer_that_is_quantized_is_a_contradiction(tmp_path: Path) -> None:
    group = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}
    config = {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": group}}
    tensors = {"a__weight": np.zeros((8, 8), E4M3), "a__weight_scale": np.ones(1, np.float32)}
    with checkpoint(tmp_path, {**config, "ignore": ["re:a$"]}, **tensors) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("contradiction", "a.weight")]
        assert set(file["a.weight"].parts()) == {"weight", "weight_scale"}


E4M3_LAYER = {"a__weight": np.ones((8, 8), E4M3), "a__weight_scale": np.ones(1, np.float32)}
FOUR_BIT_LAYER = {
    "a__qweight": np.zeros((4, 8), np.int32), "a__qzeros": np.zeros((1, 1), np.int32),
    "a__scales": np.ones((1, 8), np.float16),
}  # fmt: skip
AWQ_LAYER = {**FOUR_BIT_LAYER, "a__qweight": np.zeros((8, 1), np.int32)}
FP8_GROUP = {"targets": ["Linear"], "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}}
CACHE_SCHEME = {"num_bits": 8, "type": "float", "strategy": "tensor", "dynamic": False}


@pytest.mark.parametrize(
    ("config", "tensors"),
    [
        ({"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": FP8_GROUP},
          "kv_cache_scheme": CACHE_SCHEME}, E4M3_LAYER),
        ({"quant_method": "modelopt", "quant_algo": "FP8", "kv_cache_scheme": CACHE_SCHEME}, E4M3_LAYER),
        ({"quant_method": "fp8"}, E4M3_LAYER),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32}, FOUR_BIT_LAYER),
        ({"quant_method": "awq", "bits": 4, "group_size": 8}, AWQ_LAYER),
    ],
    ids=["compressed-tensors", "modelopt", "fp8", "gptq", "awq"],
)  # fmt: skip
def test_cache_scales_beside_a_layer_are_its_extras(
    config: dict[str, Any], tensors: dict[str, np.ndarray], tmp_path: Path
) -> None:
    cached = {"a__k_scale": np.float32(0.5), "a__v_scale": np.full(1, 0.25, np.float32)}
    with checkpoint(tmp_path / "in", config, **tensors, **cached) as file:
        assert (set(file), file.problems) == ({"a.weight"}, ())
        assert set(file["a.weight"].spec.extras) == {"k_scale", "v_scale"}
        assert file["a.weight"].parts()["k_scale"].numpy() == 0.5
        assert json.loads(bytes(file.assets["config.json"].raw))["quantization_config"] == config
        report = squish.convert(file, tmp_path / "out.safetensors", "safetensors", encode="f32")
        assert set(report.dropped) >= {Dropped("part", role, where="a.weight") for role in ("k_scale", "v_scale")}


def test_cache_scales_alone_are_plain_tensors(tmp_path: Path) -> None:
    tensors = {"attn__k_scale": np.ones(1, np.float32), "a__weight": np.zeros((8, 8), np.float16)}
    with checkpoint(tmp_path, {"quant_method": "fp8"}, **tensors) as file:
        assert (set(file), file.problems) == ({"attn.k_scale", "a.weight"}, ())


@pytest.mark.parametrize("config", ['{"quantization_config": {"quant_method": "gptq", "bits": 4', "[]", "not json"])
@pytest.mark.parametrize("name", ["config.json", "quantize_config.json"])
def test_a_checkpoint_whose_declaration_is_cut_is_an_error_with_the_stored_tensors(
    name: str, config: str, tmp_path: Path
) -> None:
    gptq(tmp_path).close()
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / name).write_text(config)
    with squish.open(tmp_path) as file:
        assert [(problem.code, problem.severity, problem.where) for problem in file.problems] == [
            ("json", "error", name)
        ]
        assert file["a.x.qweight"].numpy().dtype == np.int32
    assert not squish.verify(tmp_path).ok


def test_converting_a_checkpoint_whose_declaration_is_cut_notes_the_error(tmp_path: Path) -> None:
    gptq(tmp_path / "source").close()
    (tmp_path / "source/config.json").write_text('{"quantization_config": {')
    (note,) = squish.convert(tmp_path / "source", tmp_path / "out.zt", dry_run=True).notes
    assert "config.json" in note


def test_a_cut_config_is_not_written_as_a_new_one(tmp_path: Path) -> None:
    checkpoint(tmp_path / "source", {}, a__weight=np.ones((8, 64), np.float32)).close()
    (tmp_path / "source/config.json").write_text('{"model_type": "llama", ')
    with pytest.raises(SquishError) as caught:
        squish.convert(tmp_path / "source", tmp_path / "out", "hf:method=gptq", encode="int4:group_size=32")
    assert (caught.value.code, caught.value.part) == ("json", "config.json")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("declared", ["gptq", ["gptq"], 4])
def test_a_declaration_that_is_no_object_is_an_error(declared: Any, tmp_path: Path) -> None:
    with checkpoint(tmp_path, declared, a__weight=np.ones((2, 8), np.float32)) as file:
        assert [(problem.code, problem.severity) for problem in file.problems] == [("quant-method", "error")]


def test_the_limits_of_the_caller_hold_for_layers_and_their_parts(tmp_path: Path) -> None:
    gptq(tmp_path).close()
    with squish.open(tmp_path, limits=squish.Limits(rank=2)) as file:
        assert file["a.x.weight"].numpy().any()
    config = json.loads((tmp_path / "config.json").read_text())
    for _ in range(4):
        config["quantization_config"] = {**config["quantization_config"], "extra": config["quantization_config"]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with squish.open(tmp_path) as file:
        assert file.format == "hf"
    with squish.open(tmp_path, limits=squish.Limits(depth=3)) as file:
        assert file.format == "safetensors"


def test_no_part_of_a_packed_layer_is_lost_on_conversion(tmp_path: Path) -> None:
    source = Path(__file__).parent / "data/compressed-tensors-w4_g32_sym"
    report = squish.convert(source, tmp_path / "out.zt", dry_run=True)
    assert not [str(item) for item in report.dropped if "weight_shape" in str(item)]
