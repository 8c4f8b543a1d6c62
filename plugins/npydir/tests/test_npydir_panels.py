"""The tier of panels: four-bit codes laid for compiled products, found first, exact, and refused where damaged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npydir_samples import floats, int8, make, nibbles
from squish_cli import main
from squish_npydir.tiers import cache
from squish_npydir.tiers.seal import Sealed

import squish_core as squish
from squish_core.api import FormatError

PLACE = "squish_panels"
NAMES = {"bias": (5, 3, 64), "plain": (37, 128), "eight": (4, 64), "narrow": (4, 48), "line": (64,), "norm": (8,)}


def directory(tmp_path: Path) -> Path:
    """Four-bit tensors with biases and without, and others that panels do not hold."""
    biased, symmetric, narrow, line = (nibbles(*size)[0] for size in ((15, 64), (37, 128), (4, 48), (1, 64)))
    return make(
        tmp_path / "m",
        {
            "layers.0.bias": {"q4a": biased, "s4a": floats(15, 2), "z4a": floats(15, 2), "shape": NAMES["bias"]},
            "layers.0.plain": {"q4": symmetric, "s4": floats(37, 2), "shape": NAMES["plain"]},
            "eight": int8(NAMES["eight"]),
            "narrow": {"q4a": narrow, "s4a": floats(4, 3), "z4a": floats(4, 3), "shape": NAMES["narrow"]},
            "line": {"q4": line, "s4": floats(1, 2), "shape": NAMES["line"]},
            "norm": {"pt": np.ones(8, np.float16), "shape": NAMES["norm"]},
        },
    )


def opened(folder: Path) -> dict[str, tuple[list[str], np.ndarray]]:
    with squish.open(folder) as file:
        assert not file.problems
        return {name: ([each.label for each in file[name].spec.encodings], file[name].numpy()) for name in file}


def test_panels_come_first_and_hold_the_same_values(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    before = opened(folder)
    cache.build(folder, "finalized")
    built = cache.build(folder, "panels")
    assert (built.tier, built.built, built.reused) == ("panels", 2, 0)
    assert built.size == sum(path.stat().st_size for path in (folder / PLACE).glob("*.npy"))
    for name, (labels, values) in opened(folder).items():
        if name.startswith("layers"):
            assert labels[:2] == [PLACE, "finalized"]
            assert values.tobytes() == before[name][1].tobytes()
        else:
            assert PLACE not in labels
    assert cache.build(folder, "panels").built == 0
    assert squish.verify(folder, deep=True).clean


def test_a_tensor_can_be_read_from_its_panels_alone(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    before = opened(folder)
    cache.build(folder, "panels")
    for path in (folder / "tensors").glob("layers*"):
        path.unlink()
    with squish.open(folder) as file:
        for name in ("layers.0.bias", "layers.0.plain"):
            np.testing.assert_array_equal(file[name].numpy(), before[name][1])
            np.testing.assert_array_equal(file[name][3:, 1:2], before[name][1][3:, 1:2])
    squish.convert(folder, tmp_path / "out", "npydir", only=["layers.0.bias", "layers.0.plain"])
    for name, (labels, values) in opened(tmp_path / "out").items():
        assert labels == [before[name][0][0]]
        np.testing.assert_array_equal(values, before[name][1])


def test_scales_of_sixteen_bits_are_stored_so_where_all_are_exact(tmp_path: Path) -> None:
    codes, short = nibbles(4, 64)[0], floats(4, 2).astype(np.float16).astype(np.float32)
    longer = np.where(np.arange(8).reshape(4, 2) < 7, short, np.float32(1 / 3))
    tensors = {
        "both": {"q4a": codes, "s4a": short, "z4a": short}, "plain": {"q4": codes, "s4": short},
        "scales": {"q4a": codes, "s4a": short, "z4a": longer}, "offsets": {"q4a": codes, "s4a": longer, "z4a": short},
    }  # fmt: skip
    folder = make(tmp_path / "m", tensors)
    before = opened(folder)
    cache.build(folder, "panels")
    with squish.open(folder) as file:
        dtypes = {
            name: {part.dtype for role, part in file[name].spec.encodings[0].parts.items() if role != "data"}
            for name in file
        }
        assert dtypes == {"both": {"f16"}, "plain": {"f16"}, "scales": {"f32"}, "offsets": {"f32"}}
        for name, (_, values) in before.items():
            assert file[name].numpy().tobytes() == values.tobytes()


def test_converting_takes_the_arrays_and_not_the_panels(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    cache.build(folder, "panels")
    steps = squish.convert(folder, tmp_path / "kept", "npydir").steps
    assert {step.action for step in steps} == {"copy"}
    assert PLACE not in {step.origin.label for step in steps}


def test_a_sealed_tier_does_not_hide_them(tmp_path: Path) -> None:
    folder = directory(tmp_path)
    cache.build(folder, "mlx")
    with squish.open(folder) as file:
        assert isinstance(file.index.tensors, Sealed)
    cache.build(folder, "panels")
    assert opened(folder)["layers.0.plain"][0] == [PLACE, "squish_weights", "int4 symmetric"]


def test_a_build_that_was_interrupted_is_completed(tmp_path: Path) -> None:
    folder = directory(tmp_path)

    def stop(name: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        cache.build(folder, "panels", stop)
    with squish.open(folder) as file:
        assert file.problems[0].code == "tier"
        assert file["layers.0.bias"].spec.encodings[0].label == "int4"
    assert not list(folder.glob(".squish-*"))
    (folder / PLACE / "layers__0__plain__scale.npy").write_bytes(b"half")  # before its codes: built again
    built = cache.build(folder, "panels")
    assert (built.built, built.reused) == (1, 1)
    assert opened(folder)["layers.0.plain"][0][0] == PLACE


def test_a_directory_without_4_bit_codes_has_no_panels(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"eight": int8((4, 64))})
    with pytest.raises(FormatError) as caught:
        cache.build(folder, "panels")
    assert caught.value.code == "tier"
    assert not (folder / PLACE).exists()
    assert main(["cache", "build", str(folder), "--tier", "panels"]) == 2


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def saved(array: Any) -> Callable[[Path], None]:
    return lambda path: np.save(path, array)


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "codes of fewer rows": ("codes", saved(np.zeros((2, 1024), np.uint8))),
    "codes of a shorter row": ("codes", saved(np.zeros((3, 512), np.uint8))),
    "codes of another type": ("codes", saved(np.zeros((3, 1024), np.int8))),
    "no codes": ("codes", Path.unlink),
    "codes cut": ("codes", cut),
    "scales of another type": ("scale", saved(np.zeros((3, 2, 16), np.float64))),
    "scales of other lanes": ("scale", saved(np.zeros((3, 2, 8), np.float32))),
    "scales as a matrix": ("scale", saved(np.zeros((3, 32), np.float32))),
    "scales of no group": ("scale", saved(np.zeros((3, 0, 16), np.float32))),
    "scales of odd groups": ("scale", saved(np.zeros((3, 3, 16), np.float32))),
    "scales of small groups": ("scale", saved(np.zeros((3, 8, 16), np.float32))),
    "no scales": ("scale", Path.unlink),
    "no shape": ("shape", Path.unlink),
    "another shape": ("shape", saved(np.array([48, 128]))),
    "a shape that does not fit": ("shape", saved(np.array([37, 64]))),
    "a shape of nothing": ("shape", saved(np.array([], np.int64))),
    "a shape beyond all limits": ("shape", saved(np.array([1 << 62, 1 << 62]))),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damaged_panels_are_reported_and_left_out(tmp_path: Path, what: str) -> None:
    folder = directory(tmp_path)
    before = opened(folder)
    cache.build(folder, "panels")
    suffix, damage = DAMAGE[what]
    damage(folder / PLACE / f"layers__0__plain__{suffix}.npy")
    with squish.open(folder) as file:
        (problem,) = file.problems
        assert (problem.code, problem.where) == ("tier", "layers.0.plain")
        assert file["layers.0.plain"].spec.encodings[0].label == "int4 symmetric"
        assert file["layers.0.bias"].spec.encodings[0].label == PLACE
        np.testing.assert_array_equal(file["layers.0.plain"].numpy(), before["layers.0.plain"][1])
