"""What `open` may be told beyond the file: options of a refinement, and a folder with the model's other files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import toys
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.checking.verify import verify
from squish_core.errors import FormatError, UsageError
from squish_core.limits import Limits
from squish_core.plugins.registry import Registry

VALUES = np.ones((2, 3), np.float32)


@pytest.fixture
def reg() -> Registry:
    info = api.ContainerInfo(
        id="toy.named", title="named", factory="toys:Named", refines="toy.box", reading={"arch": "whose names"}
    )
    return toys.registry(toys.plugin(squish_containers=[info]))


def test_a_refinement_gets_limits_and_options(reg: Registry) -> None:
    box = toys.box({"w": VALUES})
    file = squish.open(box, "toy.named:arch=llama", limits=Limits(tensors=7), registry=reg)
    assert file.meta == {"limit": "7", "arch": "llama"}
    assert squish.open(box, registry=reg).meta == {"limit": str(Limits().tensors)}
    assert squish.open(box, "toy.box", registry=reg).format == "toy.box"


@pytest.mark.parametrize(
    ("target", "expected", "found"),
    [("toy.named:color=red", "arch", "color"), ("toy.box:arch=llama", "no options", "arch")],
)
def test_an_unknown_option_is_refused(target: str, expected: str, found: str, reg: Registry) -> None:
    with expect_error(UsageError, code="option", expected=expected, found=found):
        squish.open(toys.box({"w": VALUES}), target, registry=reg)


def test_missing_assets_come_from_the_assets_folder(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    (own / "a.box").write_bytes(toys.box({"w": VALUES}))
    (own / "config.json").write_bytes(b"own")
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", ".hidden.json"):
        (other / name).write_bytes(b"other")
    with squish.open(own / "a.box", assets=other, registry=toys.registry()) as file:
        expected = {"config.json": b"other", "tokenizer.json": b"other"}  # a box reads no config.json beside it
        assert {name: bytes(buffer.raw) for name, buffer in file.assets.items()} == expected
        assert file.source.members() == ("a.box", "config.json", "tokenizer.json")
    report = squish.convert(own / "a.box", tmp_path / "b.box", assets=other, registry=toys.registry())
    assert not report.dropped
    with squish.open(tmp_path / "b.box", registry=toys.registry()) as file:
        assert list(file.assets) == ["config.json", "tokenizer.json"]


def test_bytes_in_memory_take_assets_from_a_folder_but_not_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    box = toys.box({"w": VALUES})
    with squish.open(box, assets=tmp_path, registry=toys.registry()) as file:
        assert list(file.assets) == ["config.json"]
    with expect_error(FormatError, code="file-kind"):
        squish.open(box, assets=tmp_path / "config.json", registry=toys.registry())


def box_of_views(**views: tuple[int, int]) -> bytes:
    """A box of six numbers and of views of them: name -> (offset in bytes, length)."""
    box = toys.box({"storage": np.arange(6, dtype=np.float32)})
    length = int.from_bytes(box[4:8], "little")
    header = json.loads(box[8 : 8 + length])
    for name, (offset, count) in views.items():
        parts = {"data": ["f32", [count], offset, 4 * count, "<", []]}
        header["tensors"].append({**header["tensors"][0], "name": name, "shape": [count], "parts": parts})
    raw = json.dumps(header).encode()
    return box[:4] + len(raw).to_bytes(4, "little") + raw + box[8 + length :]


def with_views() -> Registry:
    """A registry whose box declares that its tensors may be views of one storage."""
    info = toys.container_info("toy.views", suffixes=(".views",), views=True)
    return toys.registry(toys.plugin(squish_containers=[info]))


def test_a_container_that_declares_views_opens_tensors_of_one_storage(tmp_path: Path) -> None:
    registry = with_views()
    with squish.open(box_of_views(head=(0, 2), middle=(4, 3)), "toy.views", registry=registry) as file:
        assert not file.problems
        assert {name: array.tolist() for name, array in file.numpy().items()} == {
            "storage": [0, 1, 2, 3, 4, 5],
            "head": [0, 1],
            "middle": [1, 2, 3],
        }
        assert verify(file, deep=True).clean
        squish.convert(file, tmp_path / "copy.box", registry=registry)
    with squish.open(tmp_path / "copy.box", registry=registry) as copy:
        assert copy["middle"].numpy().tolist() == [1, 2, 3]


def test_a_container_without_views_refuses_tensors_that_overlap() -> None:
    with pytest.raises(FormatError) as caught:
        squish.open(box_of_views(middle=(4, 3)), registry=with_views())
    assert (caught.value.code, caught.value.tensor) == ("overlap", "middle")


def test_a_view_that_leaves_the_file_is_refused() -> None:
    with pytest.raises(FormatError) as caught:
        squish.open(box_of_views(outside=(12, 6)), "toy.views", registry=with_views())
    assert (caught.value.code, caught.value.tensor) == ("bounds", "outside")
