"""All tensors of a file as arrays at once."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.plugins.entry_points import Distribution, EntryPoint, entry_points

DATA = Path(__file__).parents[1] / "data"


@pytest.mark.parametrize("name", ["sample.gguf", "sample.safetensors", "sample.zt"])
def test_arrays_are_those_of_the_tensors_and_read_only(name: str) -> None:
    with squish.open(DATA / name) as file:
        arrays = file.numpy()
        assert list(arrays) == list(file)
        for key, tensor in file.items():
            np.testing.assert_array_equal(arrays[key], tensor.numpy())
            assert not arrays[key].flags.writeable


@pytest.mark.parametrize("name", ["sample.gguf", "sample.safetensors", "sample.zt"])
def test_copies_are_writable_and_outlive_the_file(name: str) -> None:
    with squish.open(DATA / name) as file:
        arrays, views = file.numpy(copy=True), file.numpy()
    for key, array in arrays.items():
        np.testing.assert_array_equal(array, views[key])
        assert array.flags.writeable
        assert array.base is None


def test_a_large_read_is_split_and_whole(tmp_path: Path) -> None:
    """Large copies are read in pieces by several threads."""
    data = np.arange(5 << 20, dtype=np.uint32)
    head = b'{"w":{"dtype":"U32","shape":[%d],"data_offsets":[0,%d]}}' % (data.size, data.nbytes)
    path = tmp_path / "large.safetensors"
    path.write_bytes(len(head).to_bytes(8, "little") + head + data.tobytes())
    with squish.open(path) as file:
        np.testing.assert_array_equal(file["w"].numpy(copy=True), data)


def test_squish_torch_makes_the_tensors_of_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    def lists(file: squish.File, device: Any, dtype: Any) -> dict[str, Any]:
        return {name: (device, dtype, tensor.numpy().tolist()) for name, tensor in file.items()}

    monkeypatch.setitem(sys.modules, "squish_torch.to_torch", SimpleNamespace(to_torch=lists))  # type: ignore[arg-type]
    registry = squish.Registry("-squish-torch")
    registry.register(SimpleNamespace(), dist="squish-torch")
    with squish.open(DATA / "sample.safetensors", registry=registry) as file:
        tensors = file.to_torch("gpu", dtype="half")
        assert tensors == {name: ("gpu", "half", array.tolist()) for name, array in file.numpy().items()}


def test_the_message_for_a_broken_squish_torch_has_its_reason() -> None:
    points = [point for point in entry_points() if point.dist.name != "squish-torch"]
    points.append(EntryPoint("torch", "squish_absent", Distribution("squish-torch", "0")))
    registry = squish.Registry(entry_points=lambda: points)
    with (
        squish.open(DATA / "sample.safetensors", registry=registry) as file,
        pytest.raises(squish.MissingPluginError, match="squish-torch is installed but broken: ModuleNotFoundError: "),
    ):
        file.to_torch()


def test_without_the_plugin_an_error_has_the_command_that_installs_it() -> None:
    with (
        squish.open(DATA / "sample.safetensors", registry=squish.Registry("-squish-torch")) as file,
        pytest.raises(squish.MissingPluginError) as caught,
    ):
        file.to_torch()
    assert caught.value.code == "not-installed"
    assert "pip install" in caught.value.hint
    assert "torch" in caught.value.hint
