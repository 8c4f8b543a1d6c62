"""Codes beside scales that nothing declares never become values silently, whatever their names and dtypes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import squish_core as squish
from squish_core.api import SquishError

CODE = "undeclared-scales"
FLOATS = {
    "F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2, "F8_E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "F8_E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
}  # fmt: skip
INTEGERS = {"I8": np.int8, "U8": np.uint8, "I16": np.int16, "I32": np.int32, "U32": np.uint32}
SCALES = {
    "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "U8": np.uint8, "F8_E4M3": ml_dtypes.float8_e4m3fn,
}  # fmt: skip
TAGS = {np.dtype(kind): tag for table in (SCALES, INTEGERS, FLOATS) for tag, kind in table.items()}
FLOAT_NAMES = (
    (".weight", ".weight_scale"), (".weight", ".weight_scale_inv"), (".weight", ".scale"), (".weight", ".scales"),
    (".weight", ".weight_scale_2"), (".weight", ".weight_global_scale"), (".weight", ".scale_weight"),
    (".weight", ".weights_scaling_factor"), (".gate_up_proj", ".gate_up_proj_scale_inv"),
    (".down_proj", ".down_proj_scale"), (".gate_up_proj", ".gate_up_proj_weight_scale"),
    ("._weight_qdata", "._weight_scale"), (".weight._data", ".weight._scale"), ("", "_scale_inv"),
)  # fmt: skip
INTEGER_NAMES = (
    (".weight", ".weight_scale"), (".weight", ".scales"), (".weight", ".SCB"), (".qweight", ".scales"),
    (".qweight", ".wscales"), (".weight_packed", ".weight_scale"), (".gate_up_proj_blocks", ".gate_up_proj_scales"),
    (".W_q", ".scale"), ("._weight_qdata", "._weight_scale"), (".weight", ".weight.absmax"),
    (".weight", ".weight_scales"), (".B", ".s"), (".weight", ".weight_s_rel"), (".codes", ".scales"),
)  # fmt: skip
NAMINGS = [(pair, FLOATS) for pair in FLOAT_NAMES] + [(pair, INTEGERS) for pair in INTEGER_NAMES]


def safetensors(path: Path, arrays: dict[str, np.ndarray], metadata: dict[str, str] | None = None) -> Path:
    """Write a file of arrays."""
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    data = b""
    for name, array in arrays.items():
        span = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": TAGS[array.dtype], "shape": array.shape, "data_offsets": span}
        data += array.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)
    return path


def code_of(action: Any) -> str | None:
    """The code of the error that an action raises."""
    with pytest.raises(SquishError) as caught:
        action()
    return caught.value.code


@settings(deadline=None, max_examples=80)
@given(
    naming=st.sampled_from(NAMINGS),
    data=st.data(),
    scale=st.sampled_from(sorted(SCALES)),
    layer=st.sampled_from(("up", "model.layers.0.mlp.up_proj", "transformer.h.3.attn")),
    config=st.booleans(),
)
def test_no_codes_beside_undeclared_scales_become_values(
    tmp_path_factory: pytest.TempPathFactory, naming: Any, data: Any, scale: str, layer: str, config: bool
) -> None:
    (codes, scales), dtypes = naming
    kind = dtypes[data.draw(st.sampled_from(sorted(dtypes)))]
    folder = tmp_path_factory.mktemp("undeclared")
    arrays = {
        layer + codes: np.ones((4, 8), kind), layer + scales: np.ones(4, SCALES[scale]),
        "norm.weight": np.ones(4, np.float32),
    }  # fmt: skip
    file = safetensors(folder / "model.safetensors", arrays)
    if config:
        (folder / "config.json").write_text('{"model_type": "llama"}')
    with squish.open(file) as opened:
        check_refused(opened, layer + codes, arrays, folder)


def check_refused(opened: squish.File, name: str, arrays: dict[str, np.ndarray], folder: Path) -> None:
    """Check that the codes are reported and refused, and that their bytes are read and copied."""
    assert opened.format == "safetensors"
    findings = {problem.where: problem for problem in squish.verify(opened, deep=True).problems}
    assert list(findings) == [name]
    assert (findings[name].code, findings[name].severity) == (CODE, "error")
    assert "would declare them" in findings[name].message
    tensor, source = opened[name], opened.name
    row = np.ones((1, 8), np.float32)
    values = (
        tensor.numpy, tensor.load, tensor.plan, opened.numpy, tensor.statistics, lambda: tensor[:1],
        lambda: tensor.load().linear(row), lambda: np.asarray(tensor), lambda: tensor.__dlpack__(),
        lambda: squish.convert(source, folder / "values.safetensors", encode="bf16"),
        lambda: squish.convert(source, folder / "values.safetensors", encode=f"{name}=f32"),
    )  # fmt: skip
    assert [code_of(action) for action in values] == [CODE] * len(values)
    assert not (folder / "values.safetensors").exists()
    assert tensor.parts()["data"].raw.tobytes() == arrays[name].tobytes()
    assert opened["norm.weight"].numpy().tolist() == [1] * 4
    squish.convert(source, folder / "copy.safetensors")
    squish.convert(source, folder / "norm.safetensors", encode="norm.weight=bf16")
    for copy in ("copy", "norm"):
        with squish.open(folder / f"{copy}.safetensors") as again:
            assert again[name].parts()["data"].raw.tobytes() == arrays[name].tobytes()
            assert {problem.code for problem in again.problems} == {CODE}
    with squish.open(source, "safetensors:scales=ignore") as stored:
        assert not stored.problems
        assert stored[name].numpy().tobytes() == arrays[name].tobytes()
        assert stored.format_spec == "safetensors:scales=ignore"


@pytest.mark.parametrize(
    "arrays",
    [
        {"x.weight": np.ones((2, 2), ml_dtypes.float8_e4m3fn), "x.bias": np.ones(2, np.float32)},
        {"x.weight": np.ones((2, 2), ml_dtypes.float8_e4m3fn), "x.input_scale": np.ones((), np.float32)},
        {"x.weight": np.ones((2, 2), np.float16), "x.weight_scale": np.ones(2, np.float32)},
        {"x.weight": np.ones((2, 2), ml_dtypes.float8_e4m3fn), "y.weight_scale": np.ones(2, np.float32)},
        {"x.position_ids": np.ones((1, 2), np.int32), "x.logit_scale": np.ones((), np.float32)},
        {"x.mask": np.ones((1, 2), np.uint8), "x.scale": np.ones((), np.float32)},
        {"x.layer_scale_1": np.ones(2, np.float32), "x.index": np.ones(2, np.int32)},
        {"x.k_scale": np.ones((), np.float32), "x.qweight": np.ones((2, 2), np.int32)},
    ],
)
def test_values_without_scales_of_their_own_are_values(arrays: dict[str, np.ndarray], tmp_path: Path) -> None:
    with squish.open(safetensors(tmp_path / "model.safetensors", arrays)) as file:
        assert not file.problems
        assert {name: values.tobytes() for name, values in file.numpy().items()} == {
            name: array.tobytes() for name, array in arrays.items()
        }


FP8 = {
    "up.weight": np.arange(8, dtype=np.float32).reshape(2, 4).astype(ml_dtypes.float8_e4m3fn),
    "up.weight_scale": np.array([0.5], np.float32),
}


def test_the_user_says_what_codes_are(tmp_path: Path) -> None:
    file = safetensors(tmp_path / "in/model.safetensors", FP8)
    with squish.open(file, format="hf:method=fp8") as opened:
        assert (opened.format, opened.format_spec, opened.problems) == ("hf", "hf:method=fp8", ())
        assert opened["up.weight"].numpy().tolist() == [[0, 0.5, 1, 1.5], [2, 2.5, 3, 3.5]]
        squish.convert(opened, tmp_path / "out.safetensors", encode="bf16")
    with squish.open(tmp_path / "out.safetensors") as written:
        assert written["up.weight"].numpy().astype(np.float32).tolist() == [[0, 0.5, 1, 1.5], [2, 2.5, 3, 3.5]]


@pytest.mark.parametrize("form", ["hf:method=fp8", "safetensors:scales=ignore"])
def test_other_processes_read_under_the_same_options(form: str, tmp_path: Path) -> None:
    file = safetensors(tmp_path / "in/model.safetensors", FP8)
    report = squish.verify(file, deep=True, format=form, scheduler="local:1")
    assert (report.problems, report.decoded) == ((), len(FP8) - (form[0] == "h"))


@pytest.mark.parametrize(
    ("form", "choice"),
    [
        ("safetensors:scale=ignore", "scales"), ("safetensors:scales=apply", "ignore"),
        ("hf:quant_method=fp8", "method"),
        ("hf:method=fp9", "fbgemm_fp8"), ("hf:method=gptq,bits=four", "number"), ("mlx:bits=7", "8"),
    ],
)  # fmt: skip
def test_unknown_read_options_list_the_known_ones(form: str, choice: str, tmp_path: Path) -> None:
    file = safetensors(tmp_path / "model.safetensors", FP8)
    with pytest.raises(squish.UsageError) as caught:
        squish.open(file, form)
    assert caught.value.code == "option"
    assert choice in str(caught.value.expected)


def test_the_command_line_refuses_and_obeys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from squish_cli import main

    file, target = str(safetensors(tmp_path / "model.safetensors", FP8)), str(tmp_path / "out.safetensors")
    assert main(["convert", file, target, "--encode", "bf16"]) == 2
    assert "--format hf:method=fp8" in " ".join(capsys.readouterr().err.split())
    assert not Path(target).exists()
    assert main(["convert", file, target, "--encode", "bf16", "--format", "hf:method=fp8"]) == 0
    assert main(["formats", "safetensors"]) == 0
    assert "--format safetensors:scales=" in capsys.readouterr().out
