"""Encoding by what activations make of errors: nearer where it matters, still the matrix, and clear refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from npydir_samples import source
from squish_cli import main

import squish_core as squish
from squish_core.api import SquishError, TensorError

RNG = np.random.default_rng(6)
WEIGHT = (RNG.standard_t(6, (64, 256)) * 0.02).astype(np.float32)
SEEN = np.exp(RNG.normal(0, 1, 256)).astype(np.float32)
SEEN[::50] *= 20  # a few channels carry most of what a layer sees
RULE = "int4:group_size=128,search=activations"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return source(tmp_path / "m.safetensors", up__weight=WEIGHT, norm__weight=np.ones(256, np.float16))


def stats(tmp_path: Path, values: np.ndarray = SEEN, name: str = "up") -> Path:
    return source(tmp_path / "stats.safetensors", **{name: values})


def lost(path: Path) -> tuple[float, float]:
    """Relative error of what the activations make of the matrix, and of the matrix."""
    with squish.open(path) as file:
        gap = file["up.weight"].numpy() - WEIGHT
    whole = np.linalg.norm(gap) / np.linalg.norm(WEIGHT)
    return float(np.linalg.norm(gap * SEEN) / np.linalg.norm(WEIGHT * SEEN)), float(whole)


@pytest.mark.parametrize("name", ["up", "up__weight"])
def test_errors_go_where_activations_are_small(tmp_path: Path, model: Path, name: str) -> None:
    for place, search in (("plain", "none"), ("mse", "mse")):
        squish.convert(model, tmp_path / place, "npydir", f"int4:group_size=128,search={search}")
    report = squish.convert(model, tmp_path / "aware", "npydir", RULE, activations=stats(tmp_path, name=name))
    aware, whole = lost(tmp_path / "aware")
    assert aware < 0.75 * min(lost(tmp_path / "plain")[0], lost(tmp_path / "mse")[0])
    assert whole < 0.25  # it is still the matrix
    assert {step.name: step.action for step in report.steps} == {"up.weight": "encode", "norm.weight": "copy"}
    assert squish.verify(tmp_path / "aware", deep=True).clean


def test_equal_activations_are_plain_search(tmp_path: Path, model: Path) -> None:
    squish.convert(model, tmp_path / "aware", "npydir", RULE, activations=stats(tmp_path, np.ones(256, np.float32)))
    squish.convert(model, tmp_path / "mse", "npydir", "int4:group_size=128,search=mse")
    assert squish.diff(tmp_path / "aware", tmp_path / "mse").same


def test_tensors_without_statistics_are_kept_with_a_note(tmp_path: Path, model: Path) -> None:
    two = source(tmp_path / "two.safetensors", up__weight=WEIGHT, down__weight=WEIGHT)
    report = squish.convert(two, tmp_path / "out", "npydir", RULE, activations=stats(tmp_path))
    assert {step.name: step.note for step in report.steps if step.action != "encode"} == {
        "down.weight": "kept: the statistics file has no entry for it"
    }
    with pytest.raises(TensorError) as caught:
        squish.convert(two, tmp_path / "out2", "npydir", {"down.weight": RULE}, activations=stats(tmp_path))
    assert (caught.value.tensor, caught.value.code) == ("down.weight", "imatrix")


@pytest.mark.parametrize("values", [SEEN[:-1], -SEEN, np.full(256, np.nan, np.float32)])
def test_invalid_statistics(tmp_path: Path, model: Path, values: np.ndarray) -> None:
    with pytest.raises(TensorError) as caught:
        squish.convert(model, tmp_path / "out", "npydir", {"up.weight": RULE}, activations=stats(tmp_path, values))
    assert (caught.value.tensor, caught.value.code) == ("up.weight", "imatrix")
    assert not (tmp_path / "out").exists()


def test_statistics_and_encodings_need_each_other(tmp_path: Path, model: Path, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(model, tmp_path / "out", "npydir", RULE)
    assert caught.value.code == "encode"
    with pytest.raises(SquishError) as caught:
        squish.convert(model, tmp_path / "out", "npydir", "int4", activations=stats(tmp_path))
    assert caught.value.code == "imatrix"
    options = ["--encode", RULE, "--stats", str(stats(tmp_path)), "--to", "npydir"]
    assert main(["convert", str(model), str(tmp_path / "out"), *options, "--json"]) == 0
    assert "search=activations" in capsys.readouterr().out


AWQ = "awq(int4:group_size=128)"


def test_awq_scales_columns_and_reads_the_matrix(tmp_path: Path, model: Path) -> None:
    report = squish.convert(model, tmp_path / "awq", "npydir", AWQ, activations=stats(tmp_path))
    squish.convert(model, tmp_path / "plain", "npydir", "int4:group_size=128")
    aware, whole = lost(tmp_path / "awq")
    assert aware < 0.7 * lost(tmp_path / "plain")[0]
    assert whole < 0.25
    assert report.steps[0].quality is not None
    assert report.steps[0].quality.nmse == pytest.approx(whole**2, rel=1e-3)
    place = tmp_path / "awq" / "tensors"
    factor = np.load(place / "up__weight__awq_s.npy").reshape(-1)
    assert np.corrcoef(np.log(factor), np.log(SEEN))[0, 1] > 0.99  # a power of the activations
    codes, scale, offset = (np.load(place / f"up__weight__awq_{part}4.npy") for part in "qsz")
    spread = np.stack([codes & 15, codes >> 4], -1).reshape(64, 256) * scale.repeat(128, 1) + offset.repeat(128, 1)
    with squish.open(tmp_path / "awq") as file:
        tensor = file["up.weight"]
        np.testing.assert_array_equal(tensor.numpy(), spread / factor)
        np.testing.assert_array_equal(tensor[5:9, 100:200], (spread / factor)[5:9, 100:200])
        x = RNG.normal(size=(3, 256)).astype(np.float32)
        np.testing.assert_allclose(tensor.load().linear(x), x @ (spread / factor).T, rtol=1e-3, atol=1e-3)
    assert squish.verify(tmp_path / "awq", deep=True).clean
    squish.convert(tmp_path / "awq", tmp_path / "again", "npydir")
    assert squish.diff(tmp_path / "awq", tmp_path / "again").same


@pytest.mark.parametrize(("rule", "to"), [
    (AWQ, "mlx"), (AWQ, "safetensors"), (AWQ, "ztensor"), (AWQ, "squizd"), ("awq(int8)", "npydir"),
    ("awq(nf4)", "npydir"), ("awq:bits=4(int4)", "npydir"),
])  # fmt: skip
def test_awq_is_refused_by_other_formats_and_around_other_codecs(
    tmp_path: Path, model: Path, rule: str, to: str
) -> None:
    with pytest.raises(SquishError) as caught:
        squish.convert(model, tmp_path / "out", to, {"up.weight": rule}, activations=stats(tmp_path))
    assert caught.value.code == ("params" if ":" in rule.partition("(")[0] else "refused")


def test_awq_converts_to_other_formats_only_as_values(tmp_path: Path, model: Path) -> None:
    squish.convert(model, tmp_path / "awq", "npydir", AWQ, activations=stats(tmp_path))
    for to in ("mlx", "uqff", "squizd", "ztensor"):
        with pytest.raises(SquishError) as caught:
            squish.convert(tmp_path / "awq", tmp_path / to, to, only="up.weight")
        assert (caught.value.tensor, caught.value.code) == ("up.weight", "refused")
    squish.convert(tmp_path / "awq", tmp_path / "values.safetensors", "safetensors", "f32")
    assert lost(tmp_path / "values.safetensors") == lost(tmp_path / "awq")
