"""Quantisers against the bounds that Squish's architecture document states, and memory against the model's size."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from npydir_samples import make, nibbles, source
from squish_safetensors.api import dump_header

import squish_core as squish

RNG = np.random.default_rng(8)
WEIGHT = (RNG.standard_normal((256, 512)) * 0.02).astype(np.float32)


def encoded(tmp_path: Path, rule: str) -> tuple[squish.conversion.Step, np.ndarray, dict[str, np.ndarray]]:
    """The report of a matrix, what a reader sees of it, and its parts."""
    tmp_path.mkdir(exist_ok=True)
    checkpoint = source(tmp_path / "m.safetensors", w=WEIGHT)
    (step,) = squish.convert(checkpoint, tmp_path / "out", "npydir", rule).steps
    with squish.open(tmp_path / "out") as file:
        tensor = file["w"]
        return step, tensor.numpy(), {role: buffer.numpy() for role, buffer in tensor.parts().items()}


# rule -> least cosine; steps of a group's scale that an error may have
BOUNDS = {
    "int8": (0.99995, 0.5),
    "int8:group_size=64": (0.99995, 0.5),
    "int4": (0.995, 0.5),
    "int4:group_size=128": (0.99, 0.5),
    "int3": (0.96, 0.5),
    "int2": (0.8, 0.5),
    "nf4": (0.995, 0.16),  # half of the widest gap of its table, 0.304
}


@pytest.mark.parametrize(("rule", "cosine", "steps"), [(rule, *bounds) for rule, bounds in BOUNDS.items()])
def test_errors_stay_within_the_bounds(tmp_path: Path, rule: str, cosine: float, steps: float) -> None:
    step, values, parts = encoded(tmp_path, rule)
    gap, scale = np.abs(values - WEIGHT), parts["scale"]
    groups = gap.reshape(-1, gap.size // scale.size)
    assert (groups <= steps * scale.reshape(-1, 1) * 1.0001).all()
    reached = float(np.sum(values * WEIGHT, dtype=np.float64) / np.linalg.norm(values) / np.linalg.norm(WEIGHT))
    assert reached >= cosine
    assert step.quality is not None  # the report says what a reader sees
    assert step.quality.cosine == pytest.approx(reached, abs=1e-6)
    assert step.quality.max_error == pytest.approx(float(gap.max()), rel=1e-6)
    assert step.quality.nmse == pytest.approx(float(np.square(gap).sum() / np.square(WEIGHT).sum()), rel=1e-4)


def test_ties_go_to_the_even_code(tmp_path: Path) -> None:
    ties = np.array([[127, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 3.5]], np.float32)
    squish.convert(source(tmp_path / "m.safetensors", w=ties), tmp_path / "out", "npydir", "int8")
    with squish.open(tmp_path / "out") as file:
        assert file["w"].parts()["data"].numpy().tolist() == [[127, 0, 2, 2, 0, -2, -2, 4]]


@pytest.mark.parametrize("group", [4, 8, 16, 32, 64])
def test_q4a_of_every_group_size_is_offset_plus_code_times_scale(tmp_path: Path, group: int) -> None:
    packed, codes = nibbles(6, 128)
    scale, offset = (RNG.standard_normal((6, 128 // group)).astype(np.float32) for _ in range(2))
    folder = make(tmp_path / "m", {"w": {"q4a": packed, "s4a": scale, "z4a": offset, "shape": (2, 3, 128)}})
    expected = (codes * np.repeat(scale, group, 1) + np.repeat(offset, group, 1)).reshape(2, 3, 128)
    with squish.open(folder) as file:
        tensor = file["w"]
        assert tensor.spec.encodings[0].codec.params["group_size"] == group
        np.testing.assert_array_equal(tensor.numpy(), expected)
        np.testing.assert_array_equal(tensor[1, 1:, 64:], expected[1, 1:, 64:])
    squish.convert(folder, tmp_path / "copy", "npydir")
    for suffix in ("q4a", "s4a", "z4a"):
        name = f"tensors/w__{suffix}.npy"
        assert (tmp_path / "copy" / name).read_bytes() == (folder / name).read_bytes()


@pytest.mark.parametrize("encode", ["int8", "int4", None])
def test_a_sharded_model_takes_memory_of_panels(tmp_path: Path, encode: str | None) -> None:
    """Three shards of 48 MiB; the bound is less than one of their tensors."""
    files, raw = {}, RNG.standard_normal((1 << 20, 12)).astype(np.float32).tobytes()
    for number in range(3):
        file = f"model-{number + 1:05}-of-00003.safetensors"
        header = dump_header([(f"layers.{number}.w", "f32", (12 << 10, 1 << 10))], {})
        (tmp_path / file).write_bytes(header + raw)
        files[f"layers.{number}.w"] = file
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    squish.convert(source(tmp_path / "small", w=WEIGHT), tmp_path / "warm", "npydir", encode)
    tracemalloc.start()
    try:
        squish.convert(tmp_path, tmp_path / "out", "npydir", encode)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 44 << 20
    assert len(squish.open(tmp_path / "out")) == 3


def whole(decoded: np.ndarray) -> tuple[float, float]:
    """Cosine, and squared error over squared values."""
    cosine = np.sum(decoded * WEIGHT, dtype=np.float64) / np.linalg.norm(decoded) / np.linalg.norm(WEIGHT)
    return float(cosine), float(np.square(decoded - WEIGHT).sum() / np.square(WEIGHT).sum())


@pytest.mark.parametrize("rank", [1, 8, 64, 256])
def test_a_correction_leaves_no_more_than_the_other_singular_values(tmp_path: Path, rank: int) -> None:
    _, without_factors, _ = encoded(tmp_path / "plain", "int3")
    step, decoded, _ = encoded(tmp_path / "lowrank", f"lowrank:rank={rank}(int3)")
    singular = np.linalg.svd(WEIGHT.astype(np.float64) - without_factors, compute_uv=False)
    least = float(np.square(singular[rank:]).sum() / np.square(WEIGHT, dtype=np.float64).sum())
    cosine, nmse = whole(decoded)
    assert nmse == pytest.approx(least, rel=1e-3, abs=1e-11)
    assert cosine >= 0.96
    assert step.quality is not None
    assert step.quality.nmse == pytest.approx(nmse, rel=1e-3, abs=1e-11)


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_one_width_for_all_has_the_bounds_of_that_width(tmp_path: Path, bits: int) -> None:
    step, decoded, _ = encoded(tmp_path, f"mixed:bits={bits}")
    assert step.target == encoded(tmp_path / "alone", f"int{bits}")[0].target
    assert whole(decoded)[0] >= BOUNDS[f"int{bits}"][0]


def test_a_budget_is_kept_and_more_of_it_is_nearer(tmp_path: Path) -> None:
    weights = {f"layers__{place}__w": (WEIGHT * 4.0**-place)[:, : 512 >> place] for place in range(3)}
    checkpoint, last = source(tmp_path / "m.safetensors", **weights), np.inf
    for budget in (3.5, 4.5, 6, 8.5):
        steps = squish.convert(checkpoint, tmp_path / str(budget), "npydir", f"mixed:bpw={budget}").steps
        weighted = sum(step.bits * step.spec.elements for step in steps)
        assert weighted <= budget * sum(step.spec.elements for step in steps)
        error = sum(step.quality.nmse * step.spec.elements for step in steps if step.quality)
        assert error < last
        last = error


@pytest.mark.parametrize("rank", [0, 8])
def test_rotated_two_bit_weights_are_half_a_step_away_where_they_were_rounded(tmp_path: Path, rank: int) -> None:
    rows, columns, group, start = 256, 512, 32, 42
    turns = [
        hadamard(size) * np.random.default_rng(start + place).choice([-1, 1], size)
        for place, size in enumerate((rows, columns))
    ]
    turned = turns[0] @ WEIGHT.astype(np.float64) @ turns[1].T
    scale = np.abs(turned.reshape(rows, -1, group)).max(-1).astype(np.float32) / np.float32(1.5)
    codes = np.rint(turned / scale.repeat(group, 1) + 1.5).clip(0, 3).astype(np.uint8)
    packed = sum(codes[:, place::4] << 2 * place for place in range(4))
    meta = np.zeros(16)
    meta[:9] = 1, columns, rows, group, start, 0, 1, 1, rank
    files = {"sqint2_idx": packed, "sqint2_scales": scale, "sqint2_zp": np.zeros_like(scale), "sqint2_meta": meta}
    rest = turned - (codes - 1.5) * scale.repeat(group, 1)
    if rank:
        left, values, right = np.linalg.svd(rest)
        files |= {"sqint2_L": left[:, :rank].astype(np.float16)}
        files |= {"sqint2_R": (values[:rank, None] * right[:rank]).astype(np.float16)}
    with squish.open(make(tmp_path / "m", {"w": {**files, "shape": WEIGHT.shape}})) as file:
        decoded = file["w"].numpy()
    gap = turns[0] @ (decoded.astype(np.float64) - WEIGHT) @ turns[1].T
    if not rank:
        assert (np.abs(gap) <= scale.repeat(group, 1) * 0.5001).all()
        assert np.linalg.norm(gap) == pytest.approx(np.linalg.norm(rest), rel=1e-4)
    else:
        assert np.linalg.norm(gap) == pytest.approx(np.linalg.norm(values[rank:]), rel=1e-3)
    assert whole(decoded)[0] >= 0.85


def hadamard(size: int) -> np.ndarray:
    """Sylvester's matrix by its definition, over the root of its size."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / np.sqrt(size)
