"""Building tiers: what is made, that an interrupted build is completed, and what stops one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npydir_samples import make, source
from squish_cli import main
from squish_npydir.tiers import arrays, cache, resources
from squish_safetensors.api import dump_header

import squish_core as squish
from squish_core.api import FormatError, LimitError, WriteError

RNG = np.random.default_rng(4)


def directory(tmp_path: Path, encode: str) -> Path:
    weights = {f"layers__{number}__up__weight": RNG.normal(size=(8, 128)).astype(np.float32) for number in range(3)}
    checkpoint = source(tmp_path / "s.safetensors", **weights, norm__weight=np.ones(128, np.float16))
    squish.convert(checkpoint, tmp_path / "m", "npydir", encode)
    return tmp_path / "m"


def opened(folder: Path) -> dict[str, tuple[str, np.ndarray]]:
    with squish.open(folder) as file:
        assert not file.problems
        return {name: (file[name].spec.encodings[0].label, file[name].numpy()) for name in file}


def test_the_finalized_tier_holds_the_values_in_float16(tmp_path: Path) -> None:
    folder = directory(tmp_path, "int8")
    before = opened(folder)
    built = cache.build(folder, "finalized")
    assert (built.built, built.reused) == (4, 0)
    for name, (label, values) in opened(folder).items():
        assert label == "finalized"
        np.testing.assert_array_equal(values, before[name][1].astype(np.float16))
    assert cache.build(folder, "finalized").built == 0


def test_the_mlx_tier_is_one_file_of_bfloat16(tmp_path: Path) -> None:
    folder = directory(tmp_path, "int8")
    before = opened(folder)
    cache.build(folder, "mlx")
    for name, (label, values) in opened(folder).items():
        assert label == "squish_weights"
        np.testing.assert_array_equal(values, before[name][1].astype(values.dtype))


def test_the_4bit_tier_keeps_codes_of_four_bits(tmp_path: Path) -> None:
    folder = directory(tmp_path, "int4")
    before = opened(folder)
    cache.build(folder, "4bit")
    after = opened(folder)
    assert {label for label, _ in after.values()} == {"squish_4bit"}
    for name, (_, values) in after.items():
        np.testing.assert_array_equal(values, before[name][1])
    config = json.loads((folder / "squish_4bit" / "config.json").read_text())
    assert config["quantization"].items() >= {"group_size": 32, "bits": 4}.items()


@pytest.mark.parametrize(("tier", "steps"), [("4bit", 15), ("3bit", 7)])
def test_the_quantized_tiers_re_quantize_other_widths(tmp_path: Path, tier: str, steps: int) -> None:
    folder = directory(tmp_path, "int8")
    (folder / "config.json").write_text('{"model_type": "qwen3_moe"}')
    before = opened(folder)
    cache.build(folder, tier)
    for name, (label, values) in opened(folder).items():
        assert label == f"squish_{tier}"
        spread = float(np.ptp(before[name][1])) / steps
        # A whole step: MLX places its grid so that zero is on it.
        assert np.abs(values.astype(np.float64) - before[name][1]).max() <= spread


def test_int8_becomes_int4_in_place(tmp_path: Path) -> None:
    folder = directory(tmp_path, "int8")
    before = opened(folder)
    built = cache.build(folder, "int4a")
    assert built.built == 3
    after = squish.open(folder)["layers.0.up.weight"]
    assert [encoding.label for encoding in after.spec.encodings] == ["int4", "int8"]
    assert after.spec.encodings[0].codec.params["group_size"] == 32
    assert np.abs(after.numpy() - before["layers.0.up.weight"][1]).max() < 0.3
    assert (folder / ".squish_int4_ready").exists()


@pytest.mark.parametrize("config", [None, {}, {"model_type": "llama"}, {"model_type": 3}])
def test_three_bits_are_for_families_that_tolerate_them(tmp_path: Path, config: Any) -> None:
    folder = directory(tmp_path, "int8")
    if config is not None:
        (folder / "config.json").write_text(json.dumps(config))
    before = sorted(folder.rglob("*"))
    with pytest.raises(FormatError) as caught:
        cache.build(folder, "3bit")
    assert (caught.value.code, "--gate TEXT" in str(caught.value.hint)) == ("gate", True)
    assert sorted(folder.rglob("*")) == before
    measured: list[str] = []

    def gate(_: Path, tier: str, label: str) -> dict[str, float]:
        measured.append(label)
        return {"kl": 0.01}

    assert cache.build(folder, "3bit", gate=gate).built
    assert measured == ["squish_3bit"]


@pytest.mark.parametrize(("columns", "group"), [(256, 128), (128, 128), (192, 64), (96, 32), (6, 6)])
def test_the_tier_int4_has_the_arrays_of_the_document(tmp_path: Path, columns: int, group: int) -> None:
    """Section 4: q4 [rows, columns / 2] of nibbles and s4 [rows, groups] in f32, half of INT8's bytes."""
    values = np.random.default_rng(3).standard_normal((8, columns)).astype(np.float32)
    squish.save(tmp_path / "m.safetensors", {"layers.0.up.weight": values})
    eights = f"int8:group_size={64 if columns % 64 == 0 else columns}"
    squish.convert(tmp_path / "m.safetensors", tmp_path / "m", "npydir", eights)
    built = cache.build(tmp_path / "m", "int4")
    stem = tmp_path / "m" / "tensors" / "layers__0__up__weight__"
    packed, scales = np.load(f"{stem}q4.npy"), np.load(f"{stem}s4.npy")
    assert (packed.dtype, packed.shape) == (np.uint8, (8, columns // 2))
    assert (scales.dtype, scales.shape) == (np.float32, (8, columns // group))
    assert not list((tmp_path / "m").rglob("*q4a*"))
    assert (tmp_path / "m" / ".squish_int4_ready").exists()
    with squish.open(tmp_path / "m", strict=True) as file:
        tensor = file["layers.0.up.weight"]
        assert [encoding.label for encoding in tensor.spec.encodings] == ["int4 symmetric", "int8"]
        assert np.abs(tensor.numpy() - values).max() < 0.35
    if group == 128:
        assert built.savings_pct == pytest.approx(50)


def test_a_second_build_in_a_directory_is_refused(tmp_path: Path) -> None:
    """It would take the first one's temporaries for leftovers."""
    folder = directory(tmp_path, "int8")
    refusals: list[squish.SquishError] = []

    def build_another(name: str, done: int, total: int | None) -> None:
        with pytest.raises(squish.WriteError) as caught:
            cache.build(folder, "int4")
        refusals.append(caught.value)

    built = cache.build(folder, "finalized", build_another)
    assert {(error.code, error.file) for error in refusals} == {("locked", str(folder))}
    assert len(refusals) == built.built
    assert cache.build(folder, "int4").built


@pytest.mark.parametrize("tier", ["finalized", "int4", "int4a"])
def test_an_interrupted_build_is_completed(tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path, "int8")
    monkeypatch.setattr(arrays, "BATCH", 2 * 8 * 128)
    (folder / f"{arrays.TEMPORARY}killed" / "output").mkdir(parents=True)

    def stop(name: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build(folder, tier, stop)
    assert not (folder / cache.BUILDERS[tier][0]).exists()
    assert not list(folder.glob(f"{arrays.TEMPORARY}*"))
    built = cache.build(folder, tier)
    assert built.reused == 1
    assert built.built == (3 if tier == "finalized" else 2)
    assert squish.verify(folder, deep=True).ok


def test_an_interrupted_quantized_tier_is_built_again(tmp_path: Path) -> None:
    folder = directory(tmp_path, "int4")
    (folder / "squish_4bit").mkdir()
    (folder / "squish_4bit" / "config.json").write_text("{}")
    assert squish.open(folder).problems
    cache.build(folder, "4bit")
    assert {label for label, _ in opened(folder).values()} == {"squish_4bit"}


def test_a_build_uses_the_directorys_own_files_instead_of_a_tier(tmp_path: Path) -> None:
    folder = directory(tmp_path, "int8")
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    before = opened(folder)
    cache.build(folder, "3bit")
    cache.build(folder, "mlx")
    (folder / ".squish_3bit_ready").unlink()
    (folder / "squish_3bit" / "config.json").unlink()
    for name, (label, values) in opened(folder).items():
        assert label == "squish_weights"
        np.testing.assert_array_equal(values, before[name][1].astype(values.dtype))


def test_little_memory_or_disk_stops_a_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = directory(tmp_path, "int8")
    monkeypatch.setattr(resources, "machine_memory", lambda: (1 << 30, 1 << 20))
    with pytest.raises(LimitError) as caught:
        cache.build(folder, "finalized")
    assert caught.value.code == "memory"
    monkeypatch.setattr(cache, "BUILDERS", {"finalized": (".ready", 1 << 60, cache.BUILDERS["finalized"][2])})
    with pytest.raises(LimitError) as caught:
        cache.build(folder, "finalized")
    assert caught.value.code == "disk"


def test_impossible_builds_are_refused(tmp_path: Path) -> None:
    dense = make(tmp_path / "dense", {"w": {"pt": np.ones((4, 8), np.float16), "shape": (4, 8)}})
    partial = make(tmp_path / "partial", {"w": {}})
    for folder, tier, code in ((tmp_path, "5bit", "tier"), (dense, "4bit", "tier"), (partial, "finalized", "partial")):
        with pytest.raises(FormatError) as caught:
            cache.build(folder, tier)
        assert caught.value.code == code


def test_tensors_with_similar_names_do_not_share_a_cached_array(tmp_path: Path) -> None:
    names = ["a.b.c", "a.b__c", "A.b.c", "x/../y", str(tmp_path / "outside"), "n" * 900]
    arrays = {name: np.full((2, 2), number, np.float32) for number, name in enumerate(names)}
    listing = [(name, "f32", (2, 2)) for name in names]
    (tmp_path / "s.safetensors").write_bytes(dump_header(listing, {}) + b"".join(map(bytes, arrays.values())))
    squish.convert(tmp_path / "s.safetensors", tmp_path / "m", "npydir")
    cache.build(tmp_path / "m", "finalized")
    tensors = opened(tmp_path / "m")
    assert {label for label, _ in tensors.values()} == {"finalized"}
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name][1], array)
    assert {path.name for path in tmp_path.iterdir()} == {"s.safetensors", "m"}


def test_values_beyond_float16_are_cached_as_float32(tmp_path: Path) -> None:
    values = {"a": np.full((2, 2), 1e38, np.float32), "b": np.ones((2, 2), np.float32)}
    squish.convert(source(tmp_path / "s.safetensors", **values), tmp_path / "m", "npydir")
    cache.build(tmp_path / "m", "finalized")
    tensors = opened(tmp_path / "m")
    np.testing.assert_array_equal(tensors["a"][1], values["a"])
    assert tensors["b"][1].dtype == np.float16


def test_values_beyond_float16_are_kept_in_the_quantized_tiers(tmp_path: Path) -> None:
    values = {"a__weight": np.full((2, 30), 1e38, np.float32), "b__weight": np.ones((2, 64), np.float32)}
    squish.convert(source(tmp_path / "s.safetensors", **values), tmp_path / "m", "npydir", "int8")
    before = opened(tmp_path / "m")["a.weight"][1]
    cache.build(tmp_path / "m", "4bit")
    label, after = opened(tmp_path / "m")["a.weight"]
    assert label == "squish_4bit"
    np.testing.assert_array_equal(after, before)


@pytest.mark.parametrize("name", ["finalized", "finalized/.ready", "squish_seals.json", ".squish_ready"])
def test_nothing_is_written_through_a_link(tmp_path: Path, name: str) -> None:
    folder, outside = directory(tmp_path, "int8"), tmp_path / "outside"
    (folder / name).parent.mkdir(exist_ok=True)
    if name == "finalized":
        outside.mkdir()
    (folder / name).symlink_to(outside)
    with pytest.raises((FormatError, WriteError)) as caught:
        cache.build(folder, "finalized" if name.startswith("finalized") else "mlx")
    assert caught.value.code in ("file-kind", "os")
    assert not outside.exists() or not list(outside.iterdir())


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = directory(tmp_path, "int8")
    assert main(["cache", "build", str(folder), "--tier", "finalized"]) == 0
    assert "built 4 tensors of the tier finalized" in capsys.readouterr().out
    assert main(["cache", "build", str(folder), "--tier", "finalized", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["built"] == 0
    assert main(["cache", "build", str(folder), "--tier", "none"]) == 2
    capsys.readouterr()
    assert main(["info", str(folder)]) == 0
    assert "finalized (the first is used)" in capsys.readouterr().out


@pytest.mark.parametrize("tier", ["int4", "int4a"])
def test_int8_arrays_are_deleted_on_request_after_comparison(tmp_path: Path, tier: str) -> None:
    folder = directory(tmp_path, "int8")
    cache.build(folder, tier)
    packed = folder / "tensors" / f"layers__1__up__weight__{'q4' if tier == 'int4' else 'q4a'}.npy"
    right = packed.read_bytes()
    packed.write_bytes(right[:-64] + b"\xff" * 64)
    with pytest.raises(FormatError) as caught:
        cache.build(folder, tier, delete_source=True)
    assert (caught.value.tensor, caught.value.code) == ("layers.1.up.weight", "delete")
    assert len(list(folder.rglob("*__q.npy"))) == 3
    packed.write_bytes(right)
    values = opened(folder)
    assert main(["cache", "build", str(folder), "--tier", tier, "--delete-source"]) == 0
    assert not list(folder.rglob("*__[qs].npy"))
    assert squish.verify(folder, deep=True).clean
    for name, (label, after) in opened(folder).items():
        assert label == values[name][0]
        np.testing.assert_array_equal(after, values[name][1])
    with pytest.raises(FormatError) as caught:
        cache.build(folder, "finalized", delete_source=True)
    assert caught.value.code == "delete"
