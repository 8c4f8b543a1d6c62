"""Every dialect: Squish's own directories bit for bit, the others against their formulas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from npydir_samples import CASES, RNG, floats, int8, make, nibbles, spread
from squish_npydir.read.npy import WRITABLE, header

import squish_core as squish
from squish_core.api import FormatError, TensorError, dtypes


@pytest.mark.parametrize(("name", "expected"), [("int8", "int8"), ("int8_zst", "int8"), ("int4_q4a", "int4_q4a")])
def test_directories_of_squish_itself_decode_to_its_own_values(squish_wrote: Path, name: str, expected: str) -> None:
    values = np.load(squish_wrote / f"{expected}.npz")
    with squish.open(squish_wrote / name) as file:
        assert file.format == "npydir"
        assert set(file) == set(values)
        assert not file.problems
        for tensor in file.values():
            expected = values[tensor.name]
            assert tensor.shape == expected.shape
            assert tensor.numpy().dtype == expected.dtype
            assert tensor.numpy().tobytes() == expected.tobytes(), tensor.name


@pytest.mark.parametrize("name", CASES)
def test_dialects_follow_their_formulas(tmp_path: Path, name: str) -> None:
    shape, files, values = CASES[name]
    with squish.open(make(tmp_path / "m", {"a.b": {**files, "shape": shape}})) as file:
        decoded = file["a.b"].numpy()
        assert not file.problems
        assert decoded.shape == shape
        np.testing.assert_array_equal(decoded, values)


def bits(codes: np.ndarray, width: int) -> np.ndarray:
    """A stream of codes, the first in the lowest bits."""
    stream = (codes.astype(int)[:, None] >> np.arange(width) & 1).astype(np.uint8).reshape(-1)
    return np.packbits(stream, bitorder="little")


@pytest.mark.parametrize("residue", [True, False])
@pytest.mark.parametrize("filled", [0, 24])
def test_milo_streams_with_and_without_their_residue(tmp_path: Path, residue: bool, filled: int) -> None:
    codes, scale = RNG.integers(0, 8, 200).astype(np.float32), floats(4)
    zero = np.full(4, 3, np.float32)
    files = {"q3": np.append(bits(codes, 3), np.zeros(filled, np.uint8)), "s3": scale, "z3": zero, "shape": (10, 20)}
    values = ((codes - np.float32(3)) * np.repeat(scale, 64)[:200]).reshape(10, 20)
    if residue:
        files |= {"lra": floats(10, 2), "lrb": floats(2, 20)}
        values = values + files["lra"] @ files["lrb"]
    with squish.open(make(tmp_path / "m", {"w": files})) as file:
        np.testing.assert_allclose(file["w"].numpy(), values, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(file["w"][3:5, 7], values[3:5, 7], rtol=1e-5, atol=1e-6)
    if not residue and not filled:
        np.testing.assert_array_equal(squish.open(tmp_path / "m")["w"].numpy(), values)


def sylvester(size: int) -> np.ndarray:
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix[:size, :size] / np.sqrt(size)


def sqint2(rows: int, columns: int, *, rotated: tuple[int, int] = (1, 1)) -> tuple[dict[str, Any], np.ndarray]:
    crumbs = RNG.integers(0, 256, (rows, columns // 4)).astype(np.uint8)
    q = np.stack([crumbs >> 2 * place & 3 for place in range(4)], -1).reshape(rows, columns)
    s, z = floats(rows, columns // 16), floats(rows, columns // 16)
    left, right = floats(rows, 2).astype(np.float16), floats(2, columns).astype(np.float16)
    places = RNG.choice(rows * columns, 5, replace=False)
    values = floats(5).astype(np.float16)
    meta = np.zeros(16)
    meta[:11] = [1, columns, rows, 16, 42, 2, *rotated, 2, 16, 0.01]
    files = {
        "sqint2_idx": crumbs, "sqint2_scales": s, "sqint2_zp": z, "sqint2_L": left, "sqint2_R": right,
        "sqint2_srows": (places // columns).astype(np.int32), "sqint2_scols": (places % columns).astype(np.int32),
        "sqint2_svals": values, "sqint2_meta": meta, "shape": (rows, columns),
    }  # fmt: skip
    dense = (np.array([-1.5, -0.5, 0.5, 1.5])[q] - spread(z, columns)) * spread(s, columns)
    dense = dense + left.astype(float) @ right.astype(float)
    dense.reshape(-1)[places] += values
    turned = [
        sylvester(n) * np.random.default_rng(42 + k).choice([-1, 1], size=n) if flag else np.eye(n)
        for k, (n, flag) in enumerate(zip((rows, columns), rotated))
    ]
    return files, turned[0].T @ dense @ turned[1]


@pytest.mark.parametrize("rotated", [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_rotated_two_bit_weights(tmp_path: Path, rotated: tuple[int, int]) -> None:
    files, values = sqint2(16, 32, rotated=rotated)
    with squish.open(make(tmp_path / "m", {"w": files})) as file:
        np.testing.assert_allclose(file["w"].numpy(), values, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("suffix", ["sqint2_L", "sqint2_R", "sqint2_srows", "sqint2_scols", "sqint2_svals"])
def test_a_missing_file_of_the_description_makes_the_tensor_unreadable(tmp_path: Path, suffix: str) -> None:
    files, _ = sqint2(16, 32)
    del files[suffix]
    with squish.open(make(tmp_path / "m", {"w": files, "good": int8()})) as file:
        file["good"].numpy()
        with pytest.raises(TensorError) as caught:
            file["w"].numpy()
    assert caught.value.tensor == "w"
    assert {problem.where for problem in squish.verify(tmp_path / "m").problems if problem.severity == "error"} == {"w"}


def test_rotated_two_bit_weights_are_written_with_their_description(tmp_path: Path) -> None:
    files, _ = sqint2(16, 32)
    with squish.open(make(tmp_path / "m", {"w": files})) as source:
        squish.convert(source, tmp_path / "copy", "npydir")
        assert squish.verify(tmp_path / "copy", deep=True).ok
        assert squish.diff(source, tmp_path / "copy").tensors[0].state == "bytes"


def test_sparse_values_outside_the_matrix_are_not_copied(tmp_path: Path) -> None:
    files, _ = sqint2(16, 32)
    files["sqint2_srows"][0] = 16
    with pytest.raises(squish.SquishError) as refused:
        squish.convert(make(tmp_path / "m", {"w": files}), tmp_path / "copy", "npydir")
    assert (refused.value.code, refused.value.tensor) == ("sparse", "w")


def test_a_rotation_that_is_not_portable_is_reported(tmp_path: Path) -> None:
    files, _ = sqint2(16, 48)
    file = squish.open(make(tmp_path / "m", {"w": files}))
    with pytest.raises(TensorError) as caught:
        file["w"].numpy()
    assert caught.value.tensor == "w"
    assert file["w"].parts()["sqint2_idx"].nbytes == 16 * 12


@pytest.mark.parametrize("suffix", ["pt_df11", "aqlm_idx"])
def test_unsupported_formats_are_recognized(tmp_path: Path, suffix: str) -> None:
    folder = make(tmp_path / "m", {"w": int8(), "odd": {"shape": (2, 2)}})
    (folder / "tensors" / f"odd__{suffix}.npy").write_bytes(b"\x80\x04.")
    file = squish.open(folder)
    assert file["w"].numpy().shape == (4, 8)
    with pytest.raises(TensorError) as caught:
        file["odd"].numpy()
    assert caught.value.tensor == "odd"


def test_a_tensor_with_several_encodings_has_them_in_the_loaders_order(tmp_path: Path) -> None:
    packed, _ = nibbles(4, 64)
    both = {**int8((4, 64)), "q4": packed, "s4": floats(4, 1), "pt": floats(4, 64).astype(np.float16)}
    file = squish.open(make(tmp_path / "m", {"w": both}))
    spec = file["w"].spec
    assert [encoding.label for encoding in spec.encodings] == ["int4 symmetric", "passthrough", "int8"]
    assert spec.dtype == "f32"
    assert file["w"].plan().explain()


def test_a_missing_shape_comes_from_the_matrix(tmp_path: Path) -> None:
    packed, _ = nibbles(4, 64)
    files = {"q4a": packed, "s4a": floats(4, 2), "z4a": floats(4, 2)}
    with squish.open(make(tmp_path / "m", {"w": files})) as file:
        assert file["w"].shape == (4, 64)


def test_names_are_those_of_the_manifest(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"a.b__c": int8()})
    with squish.open(folder) as file:
        assert list(file) == ["a.b__c"]


def test_the_order_is_that_of_the_manifest(tmp_path: Path) -> None:
    names = ["z", "a", "model.norm"]
    assert list(squish.open(make(tmp_path / "m", {name: int8() for name in names}))) == names


def test_an_unfinished_directory_lists_the_lost_tensors(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"a": int8(), "b": {}, "c": {}}, ready=False)
    file = squish.open(folder)
    (problem,) = file.problems
    assert problem.code == "partial"
    assert "2 of 3 tensors" in problem.message
    assert ".manifest_ready" in problem.message
    report = squish.verify(folder)
    assert not report.ok


def test_damaged_statistics_affect_only_the_metadata(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"w": int8()})
    (folder / "stats.json").write_text("")
    file = squish.open(folder)
    assert file["w"].numpy().shape == (4, 8)
    assert [problem.code for problem in file.problems] == ["stats"]
    with pytest.raises(FormatError) as caught:
        squish.open(folder, strict=True)
    assert caught.value.code == "stats"


def test_the_message_about_a_missing_manifest_has_a_next_step(tmp_path: Path) -> None:
    folder = make(tmp_path / "m", {"w": int8()})
    (folder / "manifest.json").rename(folder / "_compress_progress.json")
    with pytest.raises(FormatError) as caught:
        squish.open(folder)
    assert caught.value.code == "missing"
    assert str(caught.value).endswith(
        "m/manifest.json: missing, so the npy directory is incomplete. The conversion of the model was not finished; "
        "convert it again."
    )
    (folder / "squish_weights.safetensors").touch()
    with pytest.raises(FormatError) as caught:
        squish.open(folder)
    assert "m/squish_weights.safetensors" in str(caught.value.hint)


def test_awq_scales_alone_and_beside_a_model(tmp_path: Path) -> None:
    folder = tmp_path / "awq"
    folder.mkdir()
    scales = floats(8)
    np.save(folder / "model__layers__0__mlp.awq.npy", scales)
    (folder / "awq_index.json").write_text(json.dumps({"model.layers.0.mlp": "model__layers__0__mlp.awq.npy"}))
    file = squish.open(folder)
    assert file.index.kind == "awq"
    assert file.problems[0].code == "partial"
    np.testing.assert_array_equal(file["model.layers.0.mlp"].numpy(), scales)
    make(tmp_path / "m", {"w": int8()})
    for path in folder.iterdir():
        (tmp_path / "m" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "m" / ".awq_ready").touch()
    child = squish.open(tmp_path / "m").children["awq"]
    np.testing.assert_array_equal(child["model.layers.0.mlp"].numpy(), scales)


@pytest.mark.parametrize("dtype", WRITABLE)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (12345, 2, 3), (1,) * 9])
def test_headers_are_those_of_numpy(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    np.save(tmp_path / "a.npy", np.zeros(shape, dtypes.to_numpy(dtype)))
    start = header(dtype, shape)
    assert (tmp_path / "a.npy").read_bytes()[: len(start)] == start
