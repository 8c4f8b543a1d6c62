"""Cache tiers: their order, their sentinels, and what happens when they are half built."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from npydir_samples import int8, make
from squish_npydir.tiers import cache, seal
from squish_npydir.tiers.seal import SEALS, Sealed
from squish_safetensors.api import dump_header

import squish_core as squish
from squish_core.api import FormatError, dtypes

RNG = np.random.default_rng(2)


def safetensors(path: Path, tensors: Mapping[str, np.ndarray]) -> None:
    path.parent.mkdir(exist_ok=True)
    listing = [(name, dtypes.from_numpy(array.dtype), array.shape) for name, array in tensors.items()]
    path.write_bytes(dump_header(listing, {}) + b"".join(array.tobytes() for array in tensors.values()))


def mlx(folder: Path, bits: int, *, ready: bool = True) -> np.ndarray:
    """A quantised and a dense tensor in an MLX folder; returns the values of the first."""
    codes = RNG.integers(0, 1 << bits, (4, 64))
    stream = (codes[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(4, -1)
    words = np.packbits(stream, axis=-1, bitorder="little").view(np.uint32)
    scales, biases = (RNG.normal(size=(4, 2)).astype(np.float16) for _ in range(2))
    place = folder / f"squish_{bits}bit"
    parts = {"a.weight": words, "a.scales": scales, "a.biases": biases, "norm": np.ones(8, np.float16)}
    safetensors(place / "model.safetensors", parts)
    (place / "config.json").write_text(json.dumps({"quantization": {"bits": bits, "group_size": 32}}))
    if ready:
        (folder / f".squish_{bits}bit_ready").touch()
    return codes.astype(np.float32) * np.repeat(scales, 32, 1) + np.repeat(biases, 32, 1).astype(np.float32)


def directory(tmp_path: Path) -> Path:
    return make(tmp_path / "m", {"a.weight": int8((4, 64)), "norm": {"pt": np.ones(8, np.float16), "shape": (8,)}})


def finalize(folder: Path, *names: str, ready: bool = True) -> None:
    (folder / "finalized").mkdir(exist_ok=True)
    for name in names:
        shape = (8,) if name == "norm" else (4, 64)
        np.save(folder / "finalized" / f"{name.replace('.', '__')}.npy", np.full(shape, 3, np.float16))
    if ready:
        (folder / "finalized" / ".ready").touch()


def labels(folder: Path, name: str = "a.weight") -> list[str]:
    return [encoding.label for encoding in squish.open(folder)[name].spec.encodings]


def test_tiers_come_in_the_loaders_order_before_the_own_files(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    values = {bits: mlx(folder, bits) for bits in (4, 3)}
    weights = np.full((4, 64), 2, dtypes.to_numpy("bf16"))
    safetensors(folder / "squish_weights.safetensors", {"a.weight": weights})
    (folder / ".squish_ready").touch()
    finalize(folder, "a.weight", "norm")
    expected = ["squish_4bit", "squish_3bit", "squish_weights", "finalized", "int8"]
    for label in expected:
        assert labels(folder) == expected
        tensor = squish.open(folder)["a.weight"]
        assert label in tensor.plan().explain()
        if label in ("squish_4bit", "squish_3bit"):
            np.testing.assert_array_equal(tensor.numpy(), values[int(label[7])])
            (folder / f".{label}_ready").unlink()
        if label == "squish_weights":
            assert tensor.dtype == "bf16"
            assert (tensor.numpy() == 2).all()
            (folder / ".squish_ready").unlink()
        if label == "finalized":
            assert tensor.numpy().dtype == np.float16
            (folder / "finalized" / ".ready").unlink()
        expected = expected[1:]
    assert len(squish.open(folder).problems) == 4  # four tiers that look unfinished now


def test_a_tier_without_its_sentinel_is_ignored_and_reported(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    mlx(folder, 4, ready=False)
    assert labels(folder) == ["int8"]
    (problem,) = squish.open(folder).problems
    assert (problem.code, problem.where) == ("tier", "squish_4bit")
    assert ".squish_4bit_ready" in problem.message


def test_a_sentinel_without_its_files_is_reported(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    (folder / ".squish_ready").touch()
    (folder / ".squish_3bit_ready").touch()
    assert labels(folder) == ["int8"]
    assert {problem.where for problem in squish.open(folder).problems} == {"squish_weights", "squish_3bit"}
    assert squish.verify(folder).ok


def test_a_damaged_tier_is_ignored_and_reported(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    mlx(folder, 4)
    path = folder / "squish_4bit" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    assert labels(folder) == ["int8"]
    (problem,) = squish.open(folder).problems
    assert problem.severity == "error"
    assert "model.safetensors" in problem.message


def test_an_incomplete_finalized_cache_is_used_and_reported(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    finalize(folder, "a.weight")
    assert labels(folder) == ["finalized", "int8"]
    assert labels(folder, "norm") == ["passthrough"]
    (problem,) = squish.open(folder).problems
    assert (problem.code, problem.where) == ("tier", "finalized")


def test_a_tier_with_another_shape_is_left_out(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    safetensors(folder / "squish_weights.safetensors", {"a.weight": np.zeros((64, 4), np.float16)})
    (folder / ".squish_ready").touch()
    assert labels(folder) == ["int8"]
    problem = squish.open(folder).problems[0]
    assert (problem.code, problem.where) == ("tier", "a.weight")


def test_tiers_are_readable_without_the_directorys_own_files(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    values = mlx(folder, 4)
    for path in (folder / "tensors").iterdir():
        path.unlink()
    with squish.open(folder) as file:
        np.testing.assert_array_equal(file["a.weight"].numpy(), values)
        assert file["norm"].shape == (8,)


def test_a_layer_may_have_its_own_bits(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    values = mlx(folder, 4)
    settings = {"quantization": {"bits": 8, "group_size": 64, "a": {"bits": 4, "group_size": 32}}}
    (folder / "squish_4bit" / "config.json").write_text(json.dumps(settings))
    np.testing.assert_array_equal(squish.open(folder)["a.weight"].numpy(), values)
    settings["quantization"]["a"] = {"bits": 4, "group_size": 64}
    (folder / "squish_4bit" / "config.json").write_text(json.dumps(settings))
    assert labels(folder) == ["int8"]
    problem = squish.open(folder).problems[0]
    assert (problem.code, problem.where) == ("tier", "a.weight")


@pytest.mark.parametrize("bits", [0, -4, 5, 99, 10**30, True, None, "4"])
def test_a_tier_with_an_invalid_configuration_is_left_out(tmp_path: Path, bits: object) -> None:
    folder = directory(tmp_path)
    mlx(folder, 4)
    settings = {"quantization": {"bits": bits, "group_size": 32}}
    (folder / "squish_4bit" / "config.json").write_text(json.dumps(settings))
    assert labels(folder) == ["int8"]
    assert squish.open(folder).problems[0].code == "tier"


@pytest.mark.parametrize(("role", "dtype"), [("weight", b"U32"), ("scales", b"F16"), ("weight", None)])
def test_a_tier_with_invalid_arrays_is_left_out(tmp_path: Path, role: str, dtype: bytes | None) -> None:
    folder = directory(tmp_path)
    mlx(folder, 4)
    path = folder / "squish_4bit" / "model.safetensors"
    if dtype is None:
        one = {"weight": np.uint32(0), "scales": np.float16(0), "biases": np.float16(0)}
        safetensors(path, {f"a.{part}": np.array(value) for part, value in one.items()})
    else:
        prefix = f'"a.{role}":{{"dtype":"'.encode()
        path.write_bytes(path.read_bytes().replace(prefix + dtype, prefix + b"Q16"))
    assert labels(folder) == ["int8"]
    assert squish.open(folder).problems[0].code == "tier"


def test_a_finalized_cache_may_be_compressed(tmp_path: Path) -> None:
    import zstandard

    folder = directory(tmp_path)
    finalize(folder, "a.weight", "norm")
    path = folder / "finalized" / "a__weight.npy"
    path.with_suffix(".npy.zst").write_bytes(zstandard.compress(path.read_bytes()))
    path.unlink()
    assert (squish.open(folder)["a.weight"].numpy() == 3).all()


def sealed(tmp_path: Path) -> Path:
    """A directory with a tier of one file that was built here."""
    folder = directory(tmp_path)
    cache.build(folder, "finalized")
    cache.build(folder, "mlx")
    return folder


def test_a_sealed_tier_opens_without_reading_the_arrays(tmp_path: Path) -> None:
    folder = sealed(tmp_path)
    with squish.open(folder) as file:
        assert isinstance(file.index.tensors, Sealed)
        arrays = file.numpy()
        assert {ref.name for ref in file.index.files[:1]} == {"squish_weights.safetensors"}
        assert not file.index.tensors._specs
        assert labels(folder) == ["squish_weights", "finalized", "int8"]
        assert pickle.loads(pickle.dumps(file.index)).tensors == dict(file.index.tensors)
        np.testing.assert_array_equal(file["a.weight"].numpy(), arrays["a.weight"])
    (folder / SEALS).unlink()
    with squish.open(folder) as file:
        assert isinstance(file.index.tensors, dict)
        for name, tensor in file.items():
            np.testing.assert_array_equal(tensor.numpy(), arrays[name])
    assert cache.build(folder, "mlx").built == 0  # which seals it again
    assert isinstance(squish.open(folder).index.tensors, Sealed)


@pytest.mark.parametrize("what", ["an array replaced", "an array more", "the manifest", "the tier", "finished anew"])
def test_a_change_breaks_the_seal(tmp_path: Path, what: str) -> None:
    folder = sealed(tmp_path)
    shape = folder / "tensors" / "norm__shape.npy"
    tier = folder / "squish_weights.safetensors"
    if what == "an array replaced":
        np.save(tmp_path / "new.npy", np.array([2, 4]))
        (tmp_path / "new.npy").replace(shape)
    elif what == "an array more":
        np.save(folder / "tensors" / "norm__q.npy", np.zeros((1, 8), np.int8))
    else:
        path = {"the manifest": folder / "manifest.json", "the tier": tier}.get(what, folder / seal.READY)
        os.utime(path, ns=(0, 0))
    assert not isinstance(squish.open(folder).index.tensors, Sealed)


def test_a_contradiction_of_a_seal_is_an_error_when_read(tmp_path: Path) -> None:
    folder = sealed(tmp_path)
    np.save(folder / "tensors" / "norm__shape.npy", np.array([2, 4]))  # in place: only the file shows it
    with squish.open(folder) as file:
        assert isinstance(file.index.tensors, Sealed)
        with pytest.raises(FormatError) as caught:
            file["norm"].numpy()
        assert (caught.value.tensor, caught.value.code) == ("norm", "changed")


def test_a_tier_that_disagrees_is_not_sealed(tmp_path: Path) -> None:
    folder = sealed(tmp_path)
    np.save(folder / "tensors" / "a__weight__shape.npy", np.array([2, 2, 64]))
    (folder / SEALS).unlink()
    cache.build(folder, "mlx")
    assert not (folder / SEALS).exists()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"squish_weights": 3}', '{"squish_weights": ""}'])
def test_an_invalid_seal_is_ignored(tmp_path: Path, text: str) -> None:
    folder = sealed(tmp_path)
    (folder / SEALS).write_text(text)
    assert not isinstance(squish.open(folder).index.tensors, Sealed)


@pytest.mark.parametrize("tier", ["finalized", "mlx", "4bit"])
def test_conversion_uses_the_stored_codes_instead_of_a_tier(tmp_path: Path, tier: str) -> None:
    """A tier is rounded, or encoded anew: what is read first is not what is carried on."""
    folder = directory(tmp_path)
    cache.build(folder, tier)
    assert labels(folder)[0] != "int8"
    codes, norm = squish.convert(folder, tmp_path / "kept", "npydir").steps
    assert (codes.action, codes.origin.label) == ("copy", "int8")
    assert norm.action == "copy"
    squish.convert(folder, tmp_path / "values.safetensors", "safetensors", "f32")
    exact = {name: tensor.numpy() for name, tensor in squish.open(directory(tmp_path / "again")).items()}
    for target in ("kept", "values.safetensors"):
        with squish.open(tmp_path / target) as file:
            for name, values in exact.items():
                np.testing.assert_array_equal(file[name].numpy(), values)


def test_a_tensor_that_only_a_tier_holds_is_converted_from_it(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    finalize(folder, "a.weight", "norm")
    for path in (folder / "tensors").glob("a__weight__[qs].npy"):
        path.unlink()
    squish.convert(folder, tmp_path / "out", "npydir", "keep")
    assert (squish.open(tmp_path / "out")["a.weight"].numpy() == 3).all()
    assert (squish.open(tmp_path / "out")["norm"].numpy() == 1).all()


def test_a_source_with_a_tier_is_deleted_once_its_own_values_are_written(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"w": {"pt": np.full((4, 8), 1 / 3, np.float32), "shape": (4, 8)}})
    cache.build(folder, "finalized")
    squish.convert(folder, tmp_path / "out", "npydir", delete_source=True)
    assert (squish.open(tmp_path / "out")["w"].numpy() == np.float32(1 / 3)).all()
    assert not list(folder.rglob("w__pt.npy"))
