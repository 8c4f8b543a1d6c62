"""Checkpoints written by mlx: the values of its own dequantization; contradictions refuse one layer."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.api import SquishError

DATA = Path(__file__).with_name("data")
EXPECTED = json.loads((DATA / "expected.json").read_text())
OUTCOMES = json.loads((DATA / "malformed" / "outcomes.json").read_text())
LAYER = "model.layers.0.self_attn.k_proj"


def digest(values: np.ndarray) -> str:
    """As in expected.json."""
    return hashlib.sha256((values.astype("<f4") + np.float32(0)).tobytes()).hexdigest()


@pytest.mark.parametrize("name", EXPECTED)
def test_every_tensor_has_the_values_of_mlx(name: str) -> None:
    with squish.open(DATA / name) as file:
        assert (file.format, set(file), file.problems) == ("mlx", set(EXPECTED[name]), ())
        for key, (shape, expected) in EXPECTED[name].items():
            assert (list(file[key].shape), digest(file[key].numpy())) == (shape, expected), key


@pytest.mark.parametrize("name", OUTCOMES)
def test_a_contradiction_fails_one_layer_and_leaves_the_others(name: str) -> None:
    outcome = OUTCOMES[name]
    with squish.open(DATA / "malformed" / name) as file:
        for key, expected in outcome["good"].items():
            assert digest(file[key].numpy()) == expected
        for key in outcome["bad"]:
            with pytest.raises(SquishError) as caught:
                file[key].numpy()
            assert caught.value.tensor == key
            assert key in {problem.where for problem in file.problems}
            assert {"weight", "scales", "biases"} <= set(file[key].parts())


def changed(tmp_path: Path, **quantization: Any) -> squish.File:
    """The 4-bit checkpoint under another declaration."""
    folder = tmp_path / "changed"
    shutil.copytree(DATA / "mlx-affine_b4_g64", folder)
    config = {"quantization": {"group_size": 64, "bits": 4, **quantization}}
    (folder / "config.json").write_text(json.dumps(config))
    return squish.open(folder)


@pytest.mark.parametrize(
    ("quantization", "code"),
    [
        ({"bits": 7}, "config"),
        ({"bits": "4"}, "config"),
        ({"mode": "quip"}, "config"),
        ({"mode": ["affine"]}, "config"),
        ({LAYER: {"mode": {"affine": 4}}}, "config"),
        ({"mode": "mxfp4", "group_size": 32}, "contradiction"),
        ({LAYER: False}, "contradiction"),
        ({LAYER: {"group_size": 32, "bits": 4}}, "shape"),
        ({"bits": 3}, "group_size"),
    ],
)
def test_an_invalid_declaration_fails_the_layer(quantization: dict[str, Any], code: str, tmp_path: Path) -> None:
    with changed(tmp_path, **quantization) as file:
        assert (code, f"{LAYER}.weight") in {(problem.code, problem.where) for problem in file.problems}
        with pytest.raises(SquishError) as caught:
            file[f"{LAYER}.weight"].numpy()
        assert caught.value.tensor == f"{LAYER}.weight"
        assert file["model.norm.weight"].numpy().any()


def test_words_without_scales_are_not_a_dense_tensor(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "mlx-quantization_only_key", folder)
    with squish.open(folder / "model-00002-of-00002.safetensors") as file:
        assert ("missing", f"{LAYER}.weight") in {(problem.code, problem.where) for problem in file.problems}


def test_an_override_for_a_missing_layer_is_noted(tmp_path: Path) -> None:
    with changed(tmp_path, **{"model.absent": {"bits": 8}}) as file:
        assert [(problem.severity, problem.where) for problem in file.problems] == [("note", "model.absent")]


@pytest.mark.parametrize("key", [LAYER, f"language_model.{LAYER}", LAYER.removeprefix("model.")])
def test_an_override_names_its_layer_with_or_without_the_modules_around_it(key: str, tmp_path: Path) -> None:
    own = {"group_size": 64, "bits": 4}
    with changed(tmp_path, bits=8, **{key: own}) as file, squish.open(DATA / "mlx-affine_b4_g64") as expected:
        assert key not in {problem.where for problem in file.problems}
        np.testing.assert_array_equal(file[f"{LAYER}.weight"].numpy(), expected[f"{LAYER}.weight"].numpy())


def test_an_override_of_two_layers_names_none(tmp_path: Path) -> None:
    with changed(tmp_path, **{f"a.{LAYER}": {"bits": 2}, f"b.{LAYER}": {"bits": 3}}) as file:
        assert not any(problem.severity == "error" for problem in file.problems)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("mlx-affine_b3_g64", {"bits": 4, "group_size": 64}), ("mlx-mxfp4", {"bits": 4, "group_size": 64}),
        ("mlx-nvfp4", {"bits": 4, "group_size": 32, "mode": "mxfp4"}),
    ],
)  # fmt: skip
def test_shapes_that_fit_one_mode_alone_decide(name: str, wrong: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / name, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization"] = wrong
    (folder / "config.json").write_text(json.dumps(config))
    with squish.open(folder) as file, squish.open(DATA / name) as expected:
        layers = [key for key in expected if expected[key].codec != "dense"]
        if name == "mlx-affine_b3_g64":  # 3 * 64 is 6 * 32, too
            assert {problem.where for problem in file.problems} == set(layers)
            return
        for key in layers:
            np.testing.assert_array_equal(file[key].numpy(), expected[key].numpy())


def test_a_config_without_quantization_leaves_the_stored_tensors(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(DATA / "mlx-affine_b4_g64", folder)
    (folder / "config.json").write_text("{}")
    with squish.open(folder) as file:
        assert (file.format, file[f"{LAYER}.weight"].dtype) == ("safetensors", "u32")
        assert {problem.code for problem in file.problems} == {"undeclared-scales"}
    with squish.open(folder, "mlx:bits=4,group_size=64") as file, squish.open(DATA / "mlx-affine_b4_g64") as expected:
        np.testing.assert_array_equal(file[f"{LAYER}.weight"].numpy(), expected[f"{LAYER}.weight"].numpy())


def packed(codes: np.ndarray, bits: int) -> np.ndarray:
    """Rows of codes as one stream of bits in words, low bits first."""
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(*codes.shape[:-1], -1)
    return np.packbits(stream, axis=-1, bitorder="little").view("<u4")


TAGS = {"uint32": "U32", "uint8": "U8", "float32": "F32"}


def written(folder: Path, quantization: dict[str, Any], tensors: dict[str, np.ndarray]) -> squish.File:
    header, data = {}, b""
    for name, array in tensors.items():
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": TAGS[array.dtype.name], "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    config = {"text_config": {}, "quantization": quantization, "quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(config))
    return squish.open(folder)


def test_layers_have_modes_of_their_own(tmp_path: Path) -> None:
    """In a model of text and images; what an override leaves out is the default of its mode, not that of all."""
    rng, stored, decoded = np.random.default_rng(0), {}, {}
    layers: dict[str, tuple[Any, int, int]] = {
        "language_model.model.q": (None, 5, 32), "language_model.model.k": (True, 5, 32),
        "language_model.model.v": ({"bits": 8}, 8, 64), "language_model.model.o": ({"group_size": 128}, 4, 128),
        "vision_tower.fc": ({"group_size": 32, "bits": 1}, 1, 32),
    }  # fmt: skip
    quantization: dict[str, Any] = {"group_size": 32, "bits": 5, "mode": "affine", "lm_head": False}
    for name, (override, bits, group) in layers.items():
        codes = rng.integers(0, 1 << bits, (3, 16, 256))
        scales, biases = rng.uniform(-1, 1, (2, 3, 16, 256 // group)).astype(np.float32)
        stored |= {f"{name}.weight": packed(codes, bits), f"{name}.scales": scales, f"{name}.biases": biases}
        product = codes.astype(np.float32) * np.repeat(scales, group, axis=-1)
        decoded[f"{name}.weight"] = product + np.repeat(biases, group, axis=-1)
        if override is not None:
            quantization[name] = override
    experts = "language_model.model.experts"
    codes, exponents = rng.integers(0, 16, (3, 16, 256)), rng.integers(120, 130, (3, 16, 8), np.uint8)
    quantization[experts] = {"mode": "mxfp4"}
    stored |= {f"{experts}.weight": packed(codes, 4), f"{experts}.scales": exponents}
    table = np.concatenate([half := np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6], np.float32), -half])
    decoded[f"{experts}.weight"] = table[codes] * np.repeat(np.exp2(exponents - 127.0), 32, axis=-1).astype(np.float32)
    decoded["lm_head.weight"] = stored["lm_head.weight"] = rng.normal(size=(4, 4)).astype(np.float32)
    with written(tmp_path, quantization, stored) as file:
        assert (set(file), [(problem.severity, problem.where) for problem in file.problems]) == (set(decoded), [])
        for name, values in decoded.items():
            np.testing.assert_array_equal(file[name].numpy(), values, err_msg=name)


def test_a_global_scale_of_experts_is_refused_with_its_layer(tmp_path: Path) -> None:
    stored = {
        "a.weight": np.zeros((2, 8, 4), np.uint32), "a.scales": np.zeros((2, 8, 2), np.uint8),
        "a.global_scale": np.ones(2, np.float32),
    }  # fmt: skip
    with written(tmp_path, {"group_size": 16, "bits": 4, "mode": "nvfp4"}, stored) as file:
        assert [(problem.code, problem.where) for problem in file.problems] == [("global-scale", "a.weight")]
        assert set(file["a.weight"].parts()) == {"weight", "scales", "global_scale"}
