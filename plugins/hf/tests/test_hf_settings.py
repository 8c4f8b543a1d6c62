"""AutoRound, HQQ and torchao: settings of layers, and declarations that contradict what is stored."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hf_samples import checkpoint

import squish_core as squish
from squish_core.api import SquishError

DATA = Path(__file__).with_name("data")
NAME = "model.layers.0.mlp.up_proj"
HQQ = {"quant_method": "hqq", "quant_config": {}}


def auto_round(folder: Path, **changes: Any) -> squish.File:
    """A copy of an AutoRound checkpoint with other settings."""
    shutil.copytree(DATA / "auto-round-w4_g32_asym", folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    return squish.open(folder)


@pytest.mark.parametrize("key", [NAME, r"model\.layers\.\d+\.mlp\..*"])
def test_a_layer_may_have_settings_of_its_own(key: str, tmp_path: Path) -> None:
    own = {key: {"bits": 4, "group_size": 32}, "lm_head": {"bits": 16}}
    with (
        auto_round(tmp_path / "own", bits=8, group_size=128, extra_config=own) as file,
        squish.open(DATA / "auto-round-w4_g32_asym") as expected,
    ):
        assert not file.problems
        np.testing.assert_array_equal(file[f"{NAME}.weight"].numpy(), expected[f"{NAME}.weight"].numpy())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"packing_format": "auto_round:fp8_static"}, "config"), ({"packing_format": None}, "config"),
        ({"data_type": "mx_fp"}, "config"), ({"bits": 9}, "config"), ({"extra_config": {NAME: 4}}, "config"),
        ({"extra_config": {NAME: {"bits": 16}}}, "contradiction"), ({"extra_config": {"[": {"bits": 4}}}, "config"),
    ],
)  # fmt: skip
def test_other_auto_round_settings_refuse_their_layers(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    with auto_round(tmp_path / "other", **changes) as file:
        assert {problem.code for problem in file.problems} == {code}
        with pytest.raises(SquishError) as caught:
            file[f"{NAME}.weight"].numpy()
        assert caught.value.tensor == f"{NAME}.weight"
        assert set(file[f"{NAME}.weight"].parts()) == {"qweight", "qzeros", "scales"}


def test_an_old_auto_round_checkpoint_names_its_backend(tmp_path: Path) -> None:
    with auto_round(
        tmp_path / "old", quant_method="intel/auto-round", packing_format=None, backend="auto_round"
    ) as file:
        assert not file.problems
        assert file[f"{NAME}.weight"].codec == "affine"


def test_auto_round_in_the_order_of_awq(tmp_path: Path) -> None:
    source = DATA / "awq-gemm_w4_g128"
    shutil.copytree(source, tmp_path / "awq")
    config = json.loads((source / "config.json").read_text())
    group = config["quantization_config"]["group_size"]
    settings = {"quant_method": "auto-round", "packing_format": "auto_round:auto_awq", "bits": 4, "group_size": group}
    (tmp_path / "awq" / "config.json").write_text(json.dumps({**config, "quantization_config": settings}))
    with squish.open(tmp_path / "awq") as file, squish.open(source) as expected:
        for name in expected:
            np.testing.assert_array_equal(file[name].numpy(), expected[name].numpy())


def hqq_layer(**changes: Any) -> dict[str, np.ndarray]:
    """An HQQ layer of 4 bits."""
    parts: dict[str, Any] = {
        "W_q": np.zeros((2, 8), np.uint8), "scale": np.ones((4, 1), np.float16), "zero": np.zeros((4, 1), np.float16),
        "nbits": np.array(4, np.int32), "group_size": np.array(8, np.int32), "axis": np.array(1, np.int32),
        "shape": np.array([4, 8]), "packing": np.frombuffer(b"4bit_u8", np.uint8), "quant_scale": np.array(0, np.uint8),
    }  # fmt: skip
    return {f"a__{role}": array for role, array in {**parts, **changes}.items() if array is not None}


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nbits": np.array(5, np.int32)}, "config"), ({"nbits": None}, "missing"),
        ({"shape": np.array([4, 9])}, "group_size"),
        ({"packing": np.frombuffer(b"2bit_u8", np.uint8)}, "config"), ({"quant_scale": np.array(1, np.uint8)}, "hqq"),
        ({"axis": np.array(2, np.int32)}, "config"), ({"group_size": np.array(0, np.int32)}, "config"),
        ({"packing": np.zeros(65, np.uint8)}, "config"), ({"shape": np.array([1 << 62, 1 << 62])}, "shape"),
        ({"scale": np.ones((3, 1), np.float16)}, "shape"), ({"zero": np.ones((4, 1), np.float32)}, "dtype"),
        ({"W_q": np.zeros((3, 8), np.uint8)}, "shape"),
    ],
)  # fmt: skip
def test_an_invalid_hqq_layer_is_refused_alone(changes: dict[str, Any], code: str, tmp_path: Path) -> None:
    layer = hqq_layer(**changes)
    with checkpoint(tmp_path, HQQ, **layer, b__weight=np.ones((2, 2), np.float32)) as file:
        (problem,) = file.problems
        assert (problem.where, problem.code) == ("a.weight", code)
        with pytest.raises(SquishError) as caught:
            file["a.weight"].numpy()
        assert caught.value.tensor == "a.weight"
        assert file["b.weight"].numpy().all()


def described(kind: str, **fields: Any) -> str:
    """The metadata of a tensor."""
    return json.dumps({"_type": kind, "_data": fields})


def tensor_class(folder: Path, text: str | None) -> squish.File:
    """A checkpoint of torchao whose metadata describes its weight with `text`."""
    arrays = {"a._weight_qdata": np.zeros((4, 8), np.int8), "a._weight_scale": np.ones((4, 1), np.float32)}
    squish.save(folder / "model.safetensors", arrays, metadata={} if text is None else {"a.weight": text})
    config = {"model_type": "llama", "quantization_config": {"quant_method": "torchao"}}
    (folder / "config.json").write_text(json.dumps(config))
    return squish.open(folder)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (None, "missing"), ("{", "json"), (described("Int4TilePackedTo4dTensor"), "torchao"),
        (json.dumps({"_type": ["Int8Tensor"]}), "torchao"), (described("Int8Tensor", block_size=[2, 8]), "config"),
        (described("Int8Tensor", block_size=[1, True]), "config"), (described("Int8Tensor"), "config"),
        (described("Int8Tensor", block_size=[1, 4]), "shape"), (described("Float8Tensor", block_size=[1, 8]), "dtype"),
    ],
)  # fmt: skip
def test_another_tensor_class_is_refused_and_named(text: str | None, code: str, tmp_path: Path) -> None:
    with tensor_class(tmp_path, text) as file:
        assert [(problem.where, problem.code) for problem in file.problems] == [("a.weight", code)]
        with pytest.raises(SquishError) as caught:
            file["a.weight"].numpy()
        assert caught.value.tensor == "a.weight"
        assert set(file["a.weight"].parts()) == {"_weight_qdata", "_weight_scale"}


@pytest.mark.parametrize("name", ["hqq-w4_g64", "hqq-w3_g32", "auto-round-w5_g32_asym", "torchao-int4_g32"])
def test_a_copy_keeps_every_stored_tensor(name: str, tmp_path: Path) -> None:
    with squish.open(DATA / name, format="safetensors") as stored:
        report = squish.convert(stored, tmp_path / "copy", "safetensors:max_shard_size=5GB")
    assert {step.action for step in report.steps} == {"copy"}
    assert (tmp_path / "copy" / "config.json").read_text() == (DATA / name / "config.json").read_text()
    with squish.open(DATA / name) as first, squish.open(tmp_path / "copy") as last:
        assert last.format == "hf"
        for tensor in first:
            parts = {role: bytes(part.raw) for role, part in last[tensor].parts().items()}
            assert parts == {role: bytes(part.raw) for role, part in first[tensor].parts().items()}
            np.testing.assert_array_equal(last[tensor].numpy(), first[tensor].numpy())
    assert not [
        problem for problem in squish.verify(tmp_path / "copy", deep=True).problems if problem.severity == "error"
    ]
