"""A budget over all encodings of the target: the size of the written file holds, errors are least, statistics count."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from squish_codecs.allocate.mixed import allot
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import CodecSpec, EncodingOption

ROWS, COLUMNS = 64, 256


def model(layers: int = 3) -> dict[str, np.ndarray]:
    """Matrices of very different distributions, with an embedding, a head and norms."""
    chance = np.random.default_rng(0)
    arrays = {}
    for layer in range(layers):
        for name, power in (("self_attn.q_proj", 1), ("mlp.up_proj", 3), ("mlp.down_proj", 5)):
            values = chance.standard_normal((ROWS, COLUMNS)) ** power
            arrays[f"model.layers.{layer}.{name}.weight"] = values.astype(np.float32)
        arrays[f"model.layers.{layer}.input_layernorm.weight"] = np.ones(COLUMNS, np.float32)
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        arrays[name] = chance.standard_normal((2 * ROWS, COLUMNS)).astype(np.float32)
    return arrays


def written(path: Path) -> int:
    """Bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())


def error(report: squish.Conversion) -> float:
    """The error that a budget minimizes, as measured while writing."""
    noise = [(step.spec.elements, step.quality.snr) for step in report.steps if step.quality]
    return sum(elements * 10 ** (-snr / 10) for elements, snr in noise if snr is not None)


@pytest.mark.parametrize(
    ("format_id", "suffix"), [("gguf", ".gguf"), ("mlx", ""), ("ztensor", ".zt"), ("uqff", ".uqff")]
)
def test_the_target_is_never_larger_and_close_below(tmp_path: Path, format_id: str, suffix: str) -> None:
    for size in (150_000, 260_000):
        target = tmp_path / f"{size}{suffix}"
        report = squish.convert(model(), target, format_id, f"mixed:size={size}")
        assert 0.9 * size < written(target) <= size
        assert report.size == written(target)


def test_the_error_is_not_above_that_of_one_encoding_for_all_at_equal_size(tmp_path: Path) -> None:
    for rule in ("q4_k", "q6_k"):
        uniform = squish.convert(model(), tmp_path / f"{rule}.gguf", encode=rule)
        mixed = squish.convert(
            model(), tmp_path / f"m-{rule}.gguf", encode=f"mixed:size={written(tmp_path / f'{rule}.gguf')}"
        )
        assert error(mixed) <= error(uniform)


def test_the_error_is_below_that_of_the_best_choice_among_widths_at_equal_size(tmp_path: Path) -> None:
    options: dict[str, list[EncodingOption]] = {}
    for width in ("int2", "int3", "int4", "int8"):
        for step in squish.convert(model(), tmp_path / f"{width}.zt", encode=width).steps:
            if step.quality and step.quality.snr is not None:
                noise = step.spec.elements * 10 ** (-step.quality.snr / 10)
                options.setdefault(step.name, []).append(EncodingOption(CodecSpec(width), step.size, noise))
    chosen = allot(options, 130_000)
    widths = squish.convert(model(), tmp_path / "w.zt", encode={name: str(each.codec) for name, each in chosen.items()})
    mixed = squish.convert(model(), tmp_path / "m.zt", encode=f"mixed:size={written(tmp_path / 'w.zt')}")
    assert {str(each.codec) for each in chosen.values()} > {"int4"}
    assert written(tmp_path / "m.zt") <= written(tmp_path / "w.zt")
    assert error(mixed) < 0.9 * error(widths)


def test_statistics_change_the_choice(tmp_path: Path) -> None:
    chance = np.random.default_rng(1)
    arrays = {f"blk.{layer}.ffn_up.weight": chance.standard_normal((ROWS, COLUMNS), np.float32) for layer in range(4)}
    arrays["blk.0.ffn_up.weight"][:, ::2] *= 1e-3  # small values count little, unless their inputs are large
    seen = dict.fromkeys(arrays, np.ones(COLUMNS, np.float32))
    seen["blk.0.ffn_up.weight"] = np.where(np.arange(COLUMNS) % 2, 1e-6, 1).astype(np.float32)
    squish.save(tmp_path / "seen.safetensors", seen)
    choices = [
        [
            step.target
            for step in squish.convert(arrays, tmp_path / name, encode="mixed:size=40kB", activations=each).steps
        ]
        for name, each in (("plain.gguf", None), ("weighed.gguf", tmp_path / "seen.safetensors"))
    ]
    assert choices[0] != choices[1]


def test_other_rules_and_tensors_that_fit_no_encoding_count(tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    report = squish.convert(model(), target, encode=["mixed:size=400kB", "lm_head.weight=f32"])
    assert written(target) <= 400_000
    assert next(step for step in report.steps if step.name == "lm_head.weight").target == "f32"


def test_a_tensor_stays_as_it_is_where_an_encoding_of_its_size_saves_nothing(tmp_path: Path) -> None:
    codes = {name: values.astype("bfloat16") for name, values in model(1).items()}
    report = squish.convert(codes, tmp_path / "out.gguf", encode="mixed:size=1GB")
    assert {step.target for step in report.steps if len(step.spec.shape) == 2} == {"bf16"}


def test_a_size_that_cannot_be_reached_names_the_least_one_which_can(tmp_path: Path) -> None:
    with pytest.raises(squish.SquishError) as refused:
        squish.convert(model(), tmp_path / "out.gguf", encode="mixed:size=10kB")
    assert refused.value.code == "params"
    least = int(str(refused.value.expected).removeprefix("size=").removesuffix(" or more"))
    squish.convert(model(), tmp_path / "out.gguf", encode=f"mixed:size={least}")
    assert written(tmp_path / "out.gguf") == least


def test_the_size_of_a_compressed_target_cannot_be_promised(tmp_path: Path) -> None:
    with expect_error(squish.SquishError, code="params"):
        squish.convert(model(1), tmp_path / "out.gguf.zst", encode="mixed:size=1MB")
