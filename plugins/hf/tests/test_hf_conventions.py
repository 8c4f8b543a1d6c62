"""Conventions that software applies by the names of tensors (ComfyUI, Mistral), and what the user says instead."""

from __future__ import annotations

import json
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_samples import BF16, E4M3, TAGS, written

import squish_core as squish
from squish_core.api import SquishError

CODES = np.array([[1, -2, 3, 0.5], [4, 8, -16, 0.25]], np.float32).astype(E4M3)
SCALE = np.array([0.5], np.float32)
INTEGERS = np.arange(-128, 128, 4, dtype=np.int8).reshape(4, 16)
ROWS = np.array([0.5, 1, 2, 4], np.float32)
H4 = np.array([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], np.float32)


def marker(**settings: Any) -> np.ndarray:
    """A tensor `comfy_quant`."""
    return np.frombuffer(json.dumps(settings).encode(), np.uint8)


def hadamard(size: int) -> np.ndarray:
    """The normalized regular Hadamard matrix of an order that is a power of 4."""
    return reduce(np.kron, [H4] * (size.bit_length() // 2)) / np.float32(np.sqrt(size))


def rotated(values: np.ndarray, group: int) -> np.ndarray:
    return (values.reshape(len(values), -1, group) @ hadamard(group).T).reshape(values.shape)


@pytest.mark.parametrize(
    ("tensors", "values"),
    [
        # ComfyUI, convert_old_quants: `scaled_fp8` and `scale_weight`
        ({"scaled_fp8": np.zeros(2, E4M3), "up__weight": CODES, "up__scale_weight": SCALE,
          "up__scale_input": SCALE}, CODES.astype(np.float32) / 2),
        ({"m__scaled_fp8": np.zeros(0, E4M3), "m__up__weight": CODES, "m__up__scale_weight": SCALE[0]},
         CODES.astype(np.float32) / 2),
        # ComfyUI, _load_quantized_module: `comfy_quant`
        ({"up__weight": CODES, "up__weight_scale": SCALE, "up__comfy_quant": marker(format="float8_e4m3fn")},
         CODES.astype(np.float32) / 2),
        ({"up__weight": INTEGERS, "up__weight_scale": SCALE[0], "up__comfy_quant": marker(format="int8_tensorwise")},
         INTEGERS / np.float32(2)),
        ({"up__weight": INTEGERS, "up__weight_scale": ROWS, "up__comfy_quant": marker(format="int8_tensorwise")},
         INTEGERS * ROWS[:, None]),
        *(({"up__weight": INTEGERS, "up__weight_scale": ROWS.reshape(shape), "up__comfy_quant": marker(
            format="int8_tensorwise", **settings)}, rotated(INTEGERS * ROWS[:, None], group))
          for shape, group, settings in (
              ((4,), 16, {"convrot": True, "convrot_groupsize": 16}),
              ((4, 1), 4, {"convrot": True, "convrot_groupsize": 4}),
              ((4,), 16, {"params": {"convrot": True, "convrot_groupsize": 16}}),
          )),
        # Mistral: vLLM, mistral_mapping
        ({"up__weight": CODES, "up__qscale_weight": SCALE.astype(BF16)[0], "up__qscale_act": SCALE.astype(BF16)[0]},
         CODES.astype(np.float32) / 2),
    ],
)  # fmt: skip
def test_software_applies_these_by_name(tensors: dict[str, Any], values: np.ndarray, tmp_path: Path) -> None:
    name = next(name.replace("__", ".") for name in tensors if name.endswith("__weight"))
    with written(tmp_path / "in", {}, **tensors) as file:
        assert {problem.severity for problem in file.problems} <= {"note"}
        assert list(file) == [name]
        np.testing.assert_allclose(file[name].numpy(), values, rtol=1e-6)
        np.testing.assert_allclose(file[name][1:2], values[1:2], rtol=1e-6)
        squish.convert(file, tmp_path / "out.safetensors", encode="f32")
    with squish.open(tmp_path / "out.safetensors") as file:
        np.testing.assert_allclose(file[name].numpy(), values, rtol=1e-6)
        assert (list(file), file.problems) == ([name], ())


def with_metadata(path: Path, metadata: dict[str, str], **tensors: np.ndarray) -> Path:
    """A file with metadata."""
    header: dict[str, Any] = {"__metadata__": metadata}
    data = b""
    for name, array in tensors.items():
        header[name.replace("__", ".")] = {
            "dtype": TAGS[array.dtype.name], "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]
        }  # fmt: skip
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


@pytest.mark.parametrize("settings", [{"format": "int8_tensorwise"}, "int8_tensorwise"])
def test_metadata_declares_layers_of_comfyui_and_is_not_carried_to_values(settings: Any, tmp_path: Path) -> None:
    metadata = {"_quantization_metadata": json.dumps({"layers": {"up": settings}}), "format": "pt"}
    path = with_metadata(tmp_path / "m.safetensors", metadata, up__weight=INTEGERS, up__weight_scale=ROWS)
    with squish.open(path) as file:
        np.testing.assert_array_equal(file["up.weight"].numpy(), INTEGERS * ROWS[:, None])
    squish.convert(path, tmp_path / "out.safetensors", encode="f32")
    with squish.open(tmp_path / "out.safetensors") as file:
        assert file.metadata == {"format": "pt"}
    with squish.open(path, "safetensors") as stored:
        squish.convert(stored, tmp_path / "copy.safetensors")
    with squish.open(tmp_path / "copy.safetensors") as file:
        np.testing.assert_array_equal(file["up.weight"].numpy(), INTEGERS * ROWS[:, None])


def test_rotated_layers_are_noted(tmp_path: Path) -> None:
    settings = marker(format="int8_tensorwise", convrot=True, convrot_groupsize=16)
    with written(tmp_path, {}, up__weight=INTEGERS, up__weight_scale=ROWS, up__comfy_quant=settings) as file:
        assert [(problem.severity, problem.where) for problem in file.problems] == [("note", "up.weight")]
        assert "comfy_quant" in file.problems[0].message


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({"format": "nvfp4"}, "undeclared-scales"), ({"format": "convrot_w4a4"}, "undeclared-scales"), ({}, "json"),
        ({"format": "int8_tensorwise", "convrot": True}, "shape"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": 8}, "params"),
        ({"format": "int8_tensorwise", "convrot": True, "convrot_groupsize": "x"}, "params"),
        ({"format": "float8_e4m3fn"}, "dtype"),
    ],
)  # fmt: skip
def test_other_markers_refuse_their_layer(settings: dict[str, Any], code: str, tmp_path: Path) -> None:
    tensors = {"up__weight": INTEGERS, "up__weight_scale": ROWS, "up__comfy_quant": marker(**settings)}
    if not settings:
        tensors["up__comfy_quant"] = np.zeros(2, np.uint8)
    with written(tmp_path, {}, **tensors) as file:
        assert [(problem.code, problem.severity) for problem in file.problems] == [(code, "error")]
        with pytest.raises(SquishError) as caught:
            file["up.weight"].numpy()
        assert caught.value.code in (code, "unreadable")
        assert set(file["up.weight"].parts()) == {"weight", "weight_scale", "comfy_quant"}


def test_scale_weight_without_its_marker_is_undeclared(tmp_path: Path) -> None:
    with written(tmp_path, {}, up__weight=CODES, up__scale_weight=SCALE) as file:
        assert [problem.code for problem in file.problems] == ["undeclared-scales"]
        assert "hf:method=comfyui" in file.problems[0].message
    with squish.open(tmp_path, "hf:method=comfyui") as file:
        np.testing.assert_array_equal(file["up.weight"].numpy(), CODES.astype(np.float32) / 2)
