"""What is written is an MLX checkpoint with the same codes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from squish_safetensors.api import dump_header

import squish_core as squish
from squish_core.api import SquishError

DATA = Path(__file__).with_name("data")
SETS = sorted(json.loads((DATA / "expected.json").read_text()))
LAYER = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize("name", SETS)
def test_written_again_every_stored_tensor_has_its_bytes(name: str, tmp_path: Path) -> None:
    report = squish.convert(DATA / name, tmp_path / "out", "mlx")
    assert {step.action for step in report.steps} == {"copy"}
    with (
        squish.open(DATA / name, "safetensors") as old,
        squish.open(tmp_path / "out", "safetensors") as new,
    ):
        assert set(old) == set(new)
        for key in old:
            assert (old[key].dtype, old[key].shape) == (new[key].dtype, new[key].shape)
            assert old[key].numpy().tobytes() == new[key].numpy().tobytes()
    declared = json.loads((tmp_path / "out" / "config.json").read_text())["quantization"]
    assert declared == {"mode": "affine", **json.loads((DATA / name / "config.json").read_text())["quantization"]}


def test_values_are_encoded_and_layers_of_another_mode_are_stated(tmp_path: Path) -> None:
    weights = {f"layers.{number}.up_proj.weight": np.float32([[0.75] * 128] * 4) * number for number in range(3)}
    source = tmp_path / "plain.safetensors"
    write_plain(source, weights)
    squish.convert(source, tmp_path / "out", "mlx", encode=["q4", "layers.2.*=mxfp4"])
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (
        config["quantization"]
        == config["quantization_config"]
        == {
            "group_size": 64,
            "bits": 4,
            "mode": "affine",
            "layers.2.up_proj": {"group_size": 32, "bits": 4, "mode": "mxfp4"},
        }
    )
    with squish.open(tmp_path / "out") as file:
        assert file.format == "mlx"
        for name, values in weights.items():
            np.testing.assert_allclose(file[name].numpy(), values, rtol=1e-3)


def test_codes_of_another_family_are_carried_without_floats(tmp_path: Path) -> None:
    source = DATA / "mlx-affine_b4_g64"
    report = squish.convert(source, tmp_path / "copy", "mlx", dry_run=True, only=f"{LAYER}.weight")
    assert [str(step.exactness) for step in report.steps] == ["bytes"]


def test_codes_without_an_mlx_mode_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "plain.safetensors"
    write_plain(source, {"up.weight": np.ones((4, 120), np.float32)})
    for encode in ("*=affine:bits=4,group_size=8", "*=affine:bits=7,group_size=40"):
        with pytest.raises(SquishError) as caught:
            squish.convert(source, tmp_path / "out", "mlx", encode=encode)
        assert (caught.value.tensor, caught.value.code) == ("up.weight", "refused")


@pytest.mark.parametrize("shape", [(0, 32), (2, 0, 32)])
def test_a_tensor_without_elements_stays_plain(shape: tuple[int, ...], tmp_path: Path) -> None:
    source = tmp_path / "plain.safetensors"
    write_plain(source, {"none.weight": np.ones(shape), "up.weight": np.ones((4, 32))})
    squish.convert(source, tmp_path / "out", "mlx", encode="int4:group_size=32")
    with squish.open(tmp_path / "out") as file:
        assert {name: (tensor.shape, tensor.codec) for name, tensor in file.items()} == {
            "none.weight": (shape, "dense"),
            "up.weight": ((4, 32), "affine"),
        }


def write_plain(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """A safetensors file of float32 arrays."""
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": values.shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


@pytest.mark.parametrize(("name", "config", "reason"), [
    ("model.layers.0.mlp.up_proj.weight", False, "no model_type in a config.json"),
    ("blk.0.ffn_up.weight", True, "no general.architecture"),
    ("blk.0.ffn_up.weight", False, "no general.architecture"),
])  # fmt: skip
@pytest.mark.parametrize("dry_run", [True, False])
def test_the_report_says_what_mlx_lm_cannot_load(
    tmp_path: Path, name: str, config: bool, reason: str, dry_run: bool
) -> None:
    (tmp_path / "m").mkdir()
    array = np.ones((8, 64), np.float32)
    (tmp_path / "m" / "model.safetensors").write_bytes(dump_header([(name, "f32", array.shape)], {}) + array.tobytes())
    if config:
        (tmp_path / "m" / "config.json").write_text('{"model_type": "strange"}')
    report = squish.convert(tmp_path / "m", tmp_path / "out", "mlx", "q4", dry_run=dry_run)
    (note,) = report.notes
    assert "mlx-lm will not load this" in note
    assert reason in note
    assert report.to_dict()["notes"] == [note]


@pytest.mark.parametrize("suffix", [".scales", ".biases"])
def test_a_tensor_with_the_name_of_scales_is_not_written_beside_quantized_layers(suffix: str, tmp_path: Path) -> None:
    source = tmp_path / "plain.safetensors"
    write_plain(source, {"a.weight": np.ones((4, 64), np.float32), f"b{suffix}": np.ones((4, 1), np.float32)})
    squish.convert(source, tmp_path / "dense", "mlx")
    assert squish.verify(tmp_path / "dense", deep=True).ok
    with pytest.raises(SquishError) as refused:
        squish.convert(source, tmp_path / "out", "mlx", encode=["a.weight=q4"])
    assert (refused.value.code, refused.value.tensor) == ("names", f"b{suffix}")
    assert not (tmp_path / "out").exists()
