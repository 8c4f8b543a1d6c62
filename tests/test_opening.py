"""What `open` may be told beyond the file: options of a refinement, and a folder with the model's other files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import toys

import squish_core as squish
from squish_core import api
from squish_core.errors import FormatError
from squish_core.limits import Limits
from squish_core.plugins import Registry

VALUES = np.ones((2, 3), np.float32)


@pytest.fixture
def known() -> Registry:
    info = api.ContainerInfo(
        id="toy.named", title="named", factory="toys:Named", refines="toy.box", reading={"arch": "whose names"}
    )
    return toys.registry(toys.plugin(squish_containers=[info]))


def test_a_refinement_gets_limits_and_options(known: Registry) -> None:
    box = toys.box({"w": VALUES})
    file = squish.open(box, "toy.named:arch=llama", limits=Limits(tensors=7), registry=known)
    assert file.meta == {"limit": "7", "arch": "llama"}
    assert squish.open(box, registry=known).meta == {"limit": str(Limits().tensors)}
    assert squish.open(box, "toy.box", registry=known).format == "toy.box"


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("toy.named:colour=red", r"no such option \(expected arch, found colour\)"),
        ("toy.box:arch=llama", r"no such option \(expected no options, found arch\)"),
    ],
)  # fmt: skip
def test_an_unknown_option_is_refused(wanted: str, said: str, known: Registry) -> None:
    with pytest.raises(FormatError, match=said):
        squish.open(toys.box({"w": VALUES}), wanted, registry=known)


def test_a_folder_lends_the_files_that_are_not_there(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    for folder in (own, other):
        folder.mkdir()
    (own / "a.box").write_bytes(toys.box({"w": VALUES}))
    (own / "config.json").write_bytes(b"own")
    for name in ("config.json", "tokenizer.json", "model.safetensors", "model.safetensors.index.json", ".hidden.json"):
        (other / name).write_bytes(b"other")
    with squish.open(own / "a.box", assets=other, registry=toys.registry()) as file:
        assert {name: bytes(buffer.raw) for name, buffer in file.assets.items()} == {"tokenizer.json": b"other"}
        assert file.source.members() == ("a.box", "config.json", "tokenizer.json")
        assert bytes(file.source.member("config.json").read(0, 3)) == b"own"
    made = squish.convert(own / "a.box", tmp_path / "b.box", assets=other, registry=toys.registry())
    assert not made.dropped
    with squish.open(tmp_path / "b.box", registry=toys.registry()) as file:
        assert list(file.assets) == ["tokenizer.json"]


def test_bytes_in_memory_borrow_too_and_a_file_lends_nothing(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b"{}")
    box = toys.box({"w": VALUES})
    with squish.open(box, assets=tmp_path, registry=toys.registry()) as file:
        assert list(file.assets) == ["config.json"]
    with pytest.raises(FormatError, match="is not a folder"):
        squish.open(box, assets=tmp_path / "config.json", registry=toys.registry())
