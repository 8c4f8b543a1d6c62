"""`load_file`, `save_file`, `load_model`, `safe_open`: safetensors' names over any format."""

from __future__ import annotations

import inspect
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import squish_torch
import torch
from tiny_models import converted, tiny_llama

import squish_core as squish

DTYPES = (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2, torch.int64,
    torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


@pytest.fixture
def dense(tmp_path: Path) -> Path:
    generator = torch.Generator().manual_seed(0)
    tensors = {str(dtype): torch.randint(0, 2, (3, 50000), generator=generator).to(dtype) for dtype in DTYPES}
    safetensors.torch.save_file(
        {**tensors, "scalar": torch.tensor(2.0), "empty": torch.empty(0, 3)}, tmp_path / "x.safetensors"
    )
    return tmp_path / "x.safetensors"


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    """Whether names, dtypes, shapes and bytes are equal."""
    same = [
        (value.dtype, value.shape) == (other[name].dtype, other[name].shape)
        and torch.equal(value.reshape(-1).view(torch.uint8), other[name].reshape(-1).view(torch.uint8))
        for name, value in one.items()
        if name in other
    ]
    return one.keys() == other.keys() and all(same)


def test_dense_tensors_are_those_of_safetensors(dense: Path) -> None:
    assert equal(squish_torch.load_file(dense), safetensors.torch.load_file(dense))


def test_writing_to_tensors_never_reaches_the_file(dense: Path) -> None:
    before = dense.read_bytes()
    for tensor in squish_torch.load_file(dense).values():
        tensor.zero_()
    with squish.open(dense) as file:
        for stored in file.values():
            torch.from_dlpack(stored.parts()["data"]).zero_()
            torch.from_dlpack(stored).zero_()
    with squish_torch.safe_open(dense) as opened:
        opened.get_slice("torch.float32")[:].zero_()
        opened.get_tensor("torch.float32").zero_()
    assert dense.read_bytes() == before


def test_an_open_file_becomes_tensors(dense: Path, tmp_path: Path) -> None:
    rows = np.linspace(-1, 1, 2 * 32, dtype=np.float32).reshape(2, 32)
    squish.save(tmp_path / "q.gguf", {"w.weight": rows}, encode="q8_0")
    with squish.open(dense) as file, squish.open(tmp_path / "q.gguf") as quantized:
        tensors = file.to_torch(dtype=torch.bfloat16)
        decoded = quantized.to_torch()["w.weight"]
        half = quantized.to_torch("cpu", dtype=torch.bfloat16)["w.weight"]
        again = file.to_torch()
        stored = quantized["w.weight"].numpy()
    assert list(tensors) == list(again)
    assert equal(tensors, safetensors.torch.load_file(dense))
    assert equal(again, tensors)
    assert np.array_equal(decoded.numpy(), stored)
    assert half.dtype == torch.bfloat16
    assert torch.equal(half, decoded.to(torch.bfloat16))
    before = dense.read_bytes()
    for tensor in tensors.values():
        tensor.zero_()
    assert dense.read_bytes() == before


def test_tensors_may_be_freed_while_an_exception_is_in_flight(dense: Path) -> None:
    with squish.open(dense) as file:
        for name in ("torch.bfloat16", "torch.float32", "torch.bool", "scalar"):
            with pytest.raises(ZeroDivisionError):
                [torch.from_dlpack(file[name]), 1 / 0]


def test_files_that_were_saved_load_again(tmp_path: Path, dense: Path) -> None:
    tensors = squish_torch.load_file(dense)
    tensors["transposed"] = torch.arange(6.0).reshape(2, 3).T
    for suffix in (".safetensors", ".zt"):
        squish_torch.save_file(tensors, tmp_path / f"again{suffix}", {"note": "kept"})
        assert equal(squish_torch.load_file(tmp_path / f"again{suffix}"), tensors)
    with squish_torch.safe_open(tmp_path / "again.safetensors") as file:
        assert file.metadata() == {"note": "kept"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compressed_tensors_are_decoded(tmp_path: Path, dtype: torch.dtype) -> None:
    values = np.random.default_rng(0).standard_normal((300, 64), np.float32)
    squish.save(tmp_path / "x.gguf", {"w": values}, encode="q4_1")
    expected = torch.from_numpy(squish.open(tmp_path / "x.gguf")["w"].numpy(copy=True)).to(dtype)
    assert torch.equal(squish_torch.load_file(tmp_path / "x.gguf", dtype=dtype)["w"], expected)


def test_compressed_tensors_come_as_parts_and_description(tmp_path: Path) -> None:
    squish.save(tmp_path / "x.gguf", {"w": np.ones((300, 64), np.float32)}, encode="q4_1")
    bundle = squish_torch.load_file(tmp_path / "x.gguf", compressed=True)["w"]
    assert {role: part.dtype for role, part in bundle.parts.items()} == {"data": torch.uint8}
    ops = torch.ops.squish.dequantize(list(bundle.parts.values()), bundle.description, "", torch.float32)
    assert torch.equal(ops, squish_torch.load_file(tmp_path / "x.gguf")["w"])


def test_names_of_transformers(tmp_path: Path) -> None:
    path = converted(tiny_llama(tmp_path / "hf"), tmp_path / "m.gguf", "f32")
    expected = safetensors.torch.load_file(tmp_path / "hf" / "model.safetensors")
    assert equal(squish_torch.load_file(path, names="hf"), expected)
    assert "blk.0.attn_q.weight" in squish_torch.load_file(path)


def test_a_model_is_filled_and_ties_may_be_there_once(tmp_path: Path) -> None:
    class Tied(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.norm = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4), torch.nn.LayerNorm(4)
            self.two.weight = self.one.weight

    source, target = Tied(), Tied()
    state = {name: value for name, value in source.state_dict().items() if name != "two.weight"}
    squish_torch.save_file(state, tmp_path / "x.zt")
    assert squish_torch.load_model(target, tmp_path / "x.zt") == (set(), [])
    assert torch.equal(target.two.weight, source.one.weight)
    squish_torch.save_file({**state, "more": torch.ones(1)}, tmp_path / "x.zt")
    with pytest.raises(squish.TensorError) as caught:
        squish_torch.load_model(target, tmp_path / "x.zt")
    assert caught.value.code == "state"
    assert squish_torch.load_model(target, tmp_path / "x.zt", strict=False) == (set(), ["more"])


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float8_e8m0fnu, torch.float8_e4m3fnuz, torch.uint16])
def test_a_slice_names_its_dtype_as_safetensors_does(dtype: torch.dtype, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    safetensors.torch.save_file({"x": torch.zeros(2, 4).to(dtype)}, path)
    with squish_torch.safe_open(path, framework="pt") as ours, safetensors.safe_open(path, framework="pt") as theirs:
        assert ours.get_slice("x").get_dtype() == theirs.get_slice("x").get_dtype()


def test_slices_read_what_is_indexed(dense: Path) -> None:
    with squish_torch.safe_open(dense, framework="pt") as ours, safetensors.safe_open(dense, framework="pt") as theirs:
        assert ours.keys() == sorted(theirs.keys())
        for name in (str(dtype) for dtype in DTYPES if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2)):
            one, other = ours.get_slice(name), theirs.get_slice(name)
            assert (one.get_shape(), one.get_dtype()) == (other.get_shape(), other.get_dtype())
            assert torch.equal(one[1:2, 5:9], other[1:2, 5:9])
        assert equal(ours.get_tensors(["scalar", "empty"]), {n: theirs.get_tensor(n) for n in ("scalar", "empty")})


def test_tensors_outlive_the_file_and_its_removal(dense: Path) -> None:
    tensors, expected = squish_torch.load_file(dense), safetensors.torch.load_file(dense)
    expected = {name: tensor.clone() for name, tensor in expected.items()}
    dense.unlink()
    assert equal(tensors, expected)


def test_arguments_of_safetensors_are_accepted_by_position_and_name() -> None:
    for function in ("load_file", "load_model", "save_file"):
        theirs = inspect.signature(getattr(safetensors.torch, function)).parameters
        ours = inspect.signature(getattr(squish_torch, function)).parameters
        assert [(name, ours[name].kind, ours[name].default) for name in theirs] == [
            (name, parameter.kind, parameter.default) for name, parameter in theirs.items()
        ]
        assert list(ours)[: len(theirs)] == list(theirs)


def test_tensors_read_into_memory_do_not_change_with_the_file(dense: Path) -> None:
    expected = {name: tensor.clone() for name, tensor in safetensors.torch.load_file(dense).items()}
    tensors = squish_torch.load_file(dense, backend="pread")
    with squish_torch.safe_open(dense, backend="pread") as file:
        wide = file.get_tensor("torch.float32")
    dense.write_bytes(bytes(dense.stat().st_size))
    assert equal(tensors, expected)
    assert torch.equal(wide, expected["torch.float32"])


def test_an_unknown_backend_is_refused(dense: Path) -> None:
    for call in (squish_torch.load_file, squish_torch.safe_open):
        with pytest.raises(squish.UsageError) as caught:
            call(dense, backend="gds")
        assert caught.value.code == "usage"


def test_other_frameworks_and_names_are_refused(dense: Path) -> None:
    with pytest.raises(squish.UsageError):
        squish_torch.safe_open(dense, framework="tf")
    with pytest.raises(squish.UsageError):
        squish_torch.load_file(dense, names="mlx")
