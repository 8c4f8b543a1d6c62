"""Wrong arguments of a conversion are UsageErrors, which are ValueErrors, whoever finds them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from squish_cli import main
from squish_cli.spellings import mlx_rules

import squish_core as squish

WRONG = [
    "int8:bits=99", "int8:bits=x", "int8:foo=1", "*=int8:bits=99", "affine", "int4:group_size=-1", "q4_0:search=maybe",
    "ggml.q4_k:x=1", "transpose:x=1", "mixed:bpw=99", "mixed:foo=1", "q4_k_m:type=zz", "masked:block_size=0(int4)",
    "float8:foo=1", "nope", "f16:x=1", "int8(", "keep:a=1",
]  # fmt: skip


@pytest.fixture
def source(tmp_path: Path) -> Path:
    squish.save(tmp_path / "m.safetensors", {"w": np.ones((64, 64), np.float32)})
    return tmp_path / "m.safetensors"


@pytest.mark.parametrize("encode", WRONG)
def test_a_wrong_encoding_is_a_value_error_about_the_argument(source: Path, encode: str) -> None:
    with pytest.raises(ValueError) as caught:
        squish.convert(source, source.with_suffix(".zt"), encode=encode)
    assert isinstance(caught.value, squish.UsageError)
    assert (caught.value.file, caught.value.tensor) == (None, None)
    assert caught.value.code in ("params", "encode", "spec")
    assert not source.with_suffix(".zt").exists()


@pytest.mark.parametrize("options", ["--q-bits 0", "--q-group-size 0", "--q-bits -4", "--q-mode mxfp4 --q-bits 0",
    "--q-mode mxfp4 --q-group-size 0", "--q-group-size 7"])  # fmt: skip
def test_zero_is_a_value_of_mlx_lms_options_and_a_wrong_one(
    source: Path, options: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["convert", str(source), str(source.parent / "out"), "--to", "mlx", *options.split()]) == 2
    assert options.split()[-1] in capsys.readouterr().err
    assert not (source.parent / "out").exists()
    assert mlx_rules((), "mlx", None, 32, None) == ["q4:group_size=32"]


@pytest.mark.parametrize("content", [
    "a=" + "[" * 2000 + "]" * 2000, "encode = " + "[" * 100_000, "a" + ".a" * 5000 + " = 1", "a=" + "{a=" * 3000 + "1",
], ids=["arrays", "open arrays", "dotted keys", "tables"])  # fmt: skip
def test_a_deeply_nested_recipe_is_an_error(source: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = source.parent / "recipe.toml"
    recipe.write_text(content)
    assert main(["convert", str(source), str(source.parent / "out.zt"), "--recipe", str(recipe)]) == 2
    assert "recipe.toml: not a recipe" in capsys.readouterr().err
