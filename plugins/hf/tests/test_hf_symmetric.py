"""Symmetric codes: encoded without zero points, and declared where all of them are symmetric."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("squish_gguf")

import squish_core as squish

DATA = Path(__file__).with_name("data")
GPTQS = ("gptq", "gptq_v2")
FITTED = "affine:bits={},group_size=32,offset=zero_point,offset_dtype=packed,word=i32,scale_dtype=f16"
VALUES = np.random.default_rng(0).standard_t(4, size=(2, 64, 128)).astype(np.float32)


@pytest.fixture
def floats(tmp_path: Path) -> Path:
    path = tmp_path / "floats.safetensors"
    squish.save(path, {"a.weight": VALUES[0], "b.weight": VALUES[1], "norm.weight": VALUES[0, 0]})
    return path


def declared(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())["quantization_config"]


def is_symmetric(folder: Path) -> bool:
    """What the config of a folder says of its codes."""
    config = declared(folder)
    groups = config.get("config_groups")
    return bool(config["sym"] if groups is None else all(group["weights"]["symmetric"] for group in groups.values()))


def stored(path: Path, name: str = "a.weight") -> dict[str, bytes]:
    with squish.open(path) as file:
        return {role: np.asarray(part).tobytes() for role, part in file[name].parts().items()}


@pytest.mark.parametrize("method", [*GPTQS, "compressed-tensors"])
@pytest.mark.parametrize(
    ("encode", "symmetric"),
    [
        ("q4_0", True), ("q8_0", True), ("int8:offset=zero_point,symmetric=true", True),
        ("q4_1", False), ("int4:offset=zero_point", False),
        (FITTED.format(8), False), ("int2", False), (["a.*=q4_0", "b.*=q4_1"], False),
        (["a.*=q4_1", "b.*=q4_0"], False),
    ],
)  # fmt: skip
def test_codes_are_declared_symmetric_if_all_are(
    encode: Any, symmetric: bool, method: str, floats: Path, tmp_path: Path
) -> None:
    squish.convert(floats, tmp_path / "out", f"hf:method={method}", encode)
    assert is_symmetric(tmp_path / "out") is symmetric
    for again in (*GPTQS, "compressed-tensors"):  # whether they are copied or repacked, and never by hearsay
        if again == "gptq" != method and not symmetric:
            continue  # which cannot store the zero point 0
        config = {"quantization_config": {**declared(tmp_path / "out"), "sym": not symmetric}}
        if method in GPTQS:
            (tmp_path / "out" / "config.json").write_text(json.dumps(config))
        squish.convert(tmp_path / "out", tmp_path / again, f"hf:method={again}")
        assert is_symmetric(tmp_path / again) is symmetric
        with squish.open(tmp_path / "out") as old, squish.open(tmp_path / again) as new:
            for name in old:
                np.testing.assert_array_equal(old[name].numpy(), new[name].numpy())


@pytest.mark.parametrize("method", [*GPTQS, "awq", "compressed-tensors"])
@pytest.mark.parametrize("encode", ["q4_0", "q8_0"])
def test_codes_of_gguf_come_back_byte_for_byte(encode: str, method: str, floats: Path, tmp_path: Path) -> None:
    if (encode, method) == ("q8_0", "awq"):
        pytest.skip("AWQ stores 4 bits")
    squish.convert(floats, tmp_path / "direct.gguf", encode=f"?.weight={encode}")
    squish.convert(floats, tmp_path / "out", f"hf:method={method}", encode)
    squish.convert(tmp_path / "out", tmp_path / "back.gguf")
    squish.convert(tmp_path / "direct.gguf", tmp_path / "repacked", f"hf:method={method}")
    for name in ("a.weight", "b.weight"):
        assert stored(tmp_path / "back.gguf", name) == stored(tmp_path / "direct.gguf", name)
        assert stored(tmp_path / "repacked", name) == stored(tmp_path / "out", name)
    assert declared(tmp_path / "repacked") == declared(tmp_path / "out")


def test_the_error_of_codes_of_gguf_is_that_of_the_same_codes(floats: Path, tmp_path: Path) -> None:
    reports = [squish.convert(floats, tmp_path / to, to, "q4_0") for to in ("gguf", "hf:method=gptq")]
    assert [step.quality.to_dict() for step in reports[0].steps if step.quality] == [
        step.quality.to_dict() for step in reports[1].steps if step.quality
    ]


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("gptq-v1_w4_g128_sym", "gptq"), ("gptq-v1_w4_g128_sym", "gptq_v2"), ("gptq-v1_w4_g128_sym_actorder", "gptq"),
        ("gptq-v1_w4_g64_asym", "gptq_v2"), ("gptq-v2_w4_g64_asym_actorder", "gptq_v2"),
        ("auto-round-w4_g128_sym_gptq", "gptq_v2"), ("auto-round-w4_g32_asym", "gptq_v2"),
    ],
)  # fmt: skip
def test_symmetric_files_of_a_package_stay_symmetric(name: str, method: str, tmp_path: Path) -> None:
    """In activation order, too."""
    squish.convert(DATA / name, tmp_path / "out", f"hf:method={method}")
    assert is_symmetric(tmp_path / "out") is ("_asym" not in name)


def test_zero_points_of_another_method_are_looked_at(tmp_path: Path) -> None:
    squish.save(tmp_path / "awq", {"a.weight": VALUES[0]}, format="hf:method=awq", encode="q4_0")
    assert declared(tmp_path / "awq")["zero_point"] is True  # which it stores in any case
    for method in (*GPTQS, "compressed-tensors"):
        squish.convert(tmp_path / "awq", tmp_path / method, f"hf:method={method}")
        assert is_symmetric(tmp_path / method)


@pytest.mark.parametrize("method", [*GPTQS, "compressed-tensors"])
@pytest.mark.parametrize(("encode", "symmetric"), [("q4_0", True), ("q8_0", True), ("q4_1", False)])
def test_biases_are_looked_at(encode: str, symmetric: bool, method: str, tmp_path: Path) -> None:
    """MLX and others store biases, which symmetric codes have as -8 scales."""
    scales = np.full((64, 4), 0.5, np.float32)
    values = (np.random.default_rng(0).integers(2, 15, (64, 4, 32)) - 8) * scales[..., None]
    values[..., :2] = [-8 * 0.5, 7 * 0.5] if symmetric else [-6 * 0.5, 9 * 0.5]
    squish.save(tmp_path / "w.gguf", {"a.weight": values.reshape(64, 128).astype("f4")}, encode=encode)
    squish.convert(tmp_path / "w.gguf", tmp_path / "mlx", "mlx")
    squish.convert(tmp_path / "mlx", tmp_path / "out", f"hf:method={method}")
    assert is_symmetric(tmp_path / "out") is symmetric


def test_a_dry_run_declares_what_is_written(floats: Path, tmp_path: Path) -> None:
    plan = squish.convert(floats, tmp_path / "out", "hf:method=gptq", "q4_0", dry_run=True)
    report = squish.convert(floats, tmp_path / "out", "hf:method=gptq", "q4_0")
    assert [step.target for step in plan.steps] == [step.target for step in report.steps]
    assert "symmetric=True" in report.steps[0].target
