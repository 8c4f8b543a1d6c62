"""Checkpoints written by the packages themselves, run by the compiled backend: NumPy's values, whatever the layout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import SquishError

pytest.importorskip("squish_cpu")

PLUGINS = Path(__file__).resolve().parents[2] / "plugins"
SAMPLES = sorted(
    folder.parent
    for plugin in ("hf", "mlx_format")
    for folder in (PLUGINS / plugin / "tests" / "data").glob("*/config.json")
)
LAYER = "model.layers.0.self_attn.k_proj.weight"


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda folder: folder.name)
def test_compiled_loops_agree_with_the_codec(sample: Path) -> None:
    with squish.open(sample) as file:
        for tensor in file.values():
            if len(tensor.shape) != 2 or min(tensor.shape) < 100 or tensor.plan().chosen.backend != "cpu":
                continue
            values, weight = tensor.numpy(), tensor.load("cpu")
            ids = np.array([5, 1, 5])
            np.testing.assert_array_equal(weight.dense(), values)
            np.testing.assert_array_equal(weight.dense(region=(slice(3, 9), slice(40, 99))), values[3:9, 40:99])
            np.testing.assert_array_equal(weight.embed(ids), values[ids].astype(np.float32))
            x = np.random.default_rng(0).normal(size=(3, tensor.shape[1])).astype(np.float32)
            expected = x @ values.astype(np.float32).T
            np.testing.assert_allclose(weight.linear(x), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize("sample", ["gptq-v1_w4_g128_sym", "gptq-v2_w4_g64_asym_actorder"])
def test_groups_in_any_order_are_compiled(sample: str) -> None:
    with squish.open(PLUGINS / "hf" / "tests" / "data" / sample) as file:
        assert file[LAYER].codec == "hf.act_order"
        assert file[LAYER].plan().chosen.backend == "cpu"


def test_groups_of_several_sizes_are_left_to_numpy(tmp_path: Path) -> None:
    source = PLUGINS / "hf" / "tests" / "data" / "gptq-v1_w4_g64_asym"
    with squish.open(source, "safetensors") as file:
        stored = {name: tensor.numpy() for name, tensor in file.items() if "k_proj" in name}
    order = stored["model.layers.0.self_attn.k_proj.g_idx"] = np.zeros(256, np.int32)
    order[200:] = 3
    header, data = {}, b""
    for name, array in stored.items():
        kind = {"int32": "I32", "float16": "F16"}[array.dtype.name]
        offsets = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": offsets}
        data += array.tobytes()
    text = json.dumps(header).encode()
    (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + data)
    (tmp_path / "config.json").write_bytes((source / "config.json").read_bytes())
    with squish.open(tmp_path) as file:
        with expect_error(
            SquishError,
            code="uncovered",
            tensor="model.layers.0.self_attn.k_proj.weight",
            part="g_idx",
            expected="64 each",
            found="0 to 200",
        ):
            file[LAYER].load("cpu")
        weight = file[LAYER].load()
        assert (file[LAYER].plan().chosen.backend, weight.chain.chosen.backend) == ("cpu", "numpy")
        assert "different numbers of columns" in weight.chain.explain()
        np.testing.assert_array_equal(weight.dense(), file[LAYER].numpy())
        x = np.random.default_rng(0).normal(size=(2, 256)).astype(np.float32)
        np.testing.assert_allclose(weight.linear(x), x @ file[LAYER].numpy().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
@pytest.mark.parametrize(
    "sample", [folder for folder in SAMPLES if "mlx" in folder.parts[-4]], ids=lambda path: path.name
)
def test_conversions_give_the_same_bytes_without_the_loops(sample: Path, dtype: str, tmp_path: Path) -> None:
    layouts = []
    for plugins in ("", "-squish-cpu"):
        target = tmp_path / f"made{plugins}.safetensors"
        squish.convert(sample, target, "safetensors", dtype, registry=squish.Registry(plugins))
        layouts.append(target.read_bytes())
    assert layouts[0] == layouts[1]


STALE = """
import squish_core as squish
def told(call):
    try:
        return str(call())
    except squish.SquishError as error:
        return str(error)
tensor = squish.open("m.safetensors")["w.weight"]
calls = [tensor.chain, tensor.load, lambda: tensor.load("cpu")]
calls.append(lambda: squish.convert("m.safetensors", "o.gguf", encode="q4_k"))
print(json.dumps([told(call) for call in calls]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="takes the C library for the kernels")
def test_a_library_of_another_version_is_reported_by_plans_and_encoders(tmp_path: Path) -> None:
    values = np.zeros((4, 256), np.float32).tobytes()
    head = json.dumps({"w.weight": {"dtype": "F32", "shape": [4, 256], "data_offsets": [0, len(values)]}}).encode()
    (tmp_path / "m.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + values)
    environment = {**os.environ, "SQUISH_CPU_LIBRARY": "libc.so.6"}
    done = subprocess.run(
        [sys.executable, "-c", f"import json{STALE}"],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    plan, loaded, options, encoding = json.loads(done.stdout)
    why = "the compiled kernels are of another version (found "
    assert f"not      cpu: {why}" in plan
    assert "dense on numpy" in loaded
    assert why in options
    assert f"ggml.q4_k has no encoder; 'ggml.q4_k' cannot be imported: SquishError: {why}" in encoding
