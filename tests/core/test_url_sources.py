"""Sources of URLs: declared by plugins, imported when a URL with their scheme is opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import acme_source
import numpy as np
import pytest
import toys
from attrs import evolve
from toys import brings, installed

import squish_core as squish
from squish_core.errors import ConflictError, MissingFileError, MissingPluginError, UsageError
from squish_core.plugins.sources import open_target

INFO = acme_source.squish_sources()[0]
VALUES = np.arange(8, dtype=np.float32).reshape(2, 4)


@pytest.fixture(autouse=True)
def shelf() -> Iterator[dict[str, bytes]]:
    acme_source.SHELVES["one"] = {"m.box": toys.box({"w": VALUES}), "config.json": b"{}"}
    yield acme_source.SHELVES["one"]
    acme_source.SHELVES.clear()


def test_a_source_of_a_third_party_is_listed_and_opens_its_scheme() -> None:
    registry = toys.registry(acme_source)
    assert registry.sources["acme"].info.options["copy"].startswith("yes:")
    assert [entry.id for entry in registry.find("sources", schemes=("acme",))] == ["acme"]
    with squish.open("acme://one/m.box", registry=registry) as file:
        np.testing.assert_array_equal(file["w"].numpy(), VALUES)
        assert (file.name, file.path) == ("acme://one/m.box", None)


def test_a_scheme_may_be_in_capitals() -> None:
    with squish.open("ACME://one/m.box", registry=toys.registry(acme_source)) as file:
        assert file.name == "acme://one/m.box"


def test_a_source_is_imported_when_a_url_is_opened(tmp_path: Path) -> None:
    info = evolve(INFO, factory="no_such_module:Opener")
    registry = toys.registry(toys.plugin(squish_sources=[info]))
    (tmp_path / "m.box").write_bytes(toys.box({"w": VALUES}))
    squish.open(tmp_path / "m.box", registry=registry).close()
    with pytest.raises(MissingPluginError) as caught:
        squish.open("acme://one/m.box", registry=registry)
    assert caught.value.code == "import"


def test_two_sources_of_one_scheme_are_a_conflict_until_one_is_chosen() -> None:
    plugins: Any = {
        "a": brings(sources=[INFO]), "b": brings(sources=[evolve(INFO, id="acme2", factory="no_such_module:Opener")]),
    }  # fmt: skip
    with pytest.raises(ConflictError) as caught:
        squish.open("acme://one/m.box", registry=installed(**plugins))
    assert (caught.value.code, caught.value.found) == ("conflict", "dist-a, dist-b")
    assert "SQUISH_PLUGINS=acme=dist-a" in (caught.value.hint or "")
    for settings in ("acme=dist-a", "-dist-b"):
        squish.open("acme://one/m.box", registry=installed(settings, **plugins)).close()


def test_a_declared_scheme_goes_before_a_source_of_all_others() -> None:
    others = evolve(INFO, id="others", schemes=("*",), factory="no_such_module:Opener")
    registry = toys.registry(acme_source, toys.plugin(squish_sources=[others]))
    squish.open("acme://one/m.box", registry=registry).close()
    with pytest.raises(MissingPluginError) as caught:
        squish.open("sftp://one/m.box", registry=registry)
    assert caught.value.code == "import"


def test_options_come_from_the_call_and_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    registry = toys.registry(acme_source)
    received: list[Any] = []
    original = acme_source.Shelves.open
    monkeypatch.setattr(
        acme_source.Shelves, "open", lambda self, url, options: received.append(options) or original(self, url, options)
    )
    monkeypatch.setenv("SQUISH_SOURCE", "copy=no")
    open_target("acme://one/m.box", registry)
    open_target("acme://one/m.box", registry, {"copy": "yes"})
    assert received == [{"copy": "no"}, {"copy": "yes"}]
    for variable, options in (("", {"speed": 3}), ("speed=3", None), ("copy", None)):
        monkeypatch.setenv("SQUISH_SOURCE", variable)
        with pytest.raises(UsageError):
            open_target("acme://one/m.box", registry, options)
    monkeypatch.delenv("SQUISH_SOURCE")
    with pytest.raises(UsageError):
        squish.open(__file__, registry=registry, source_options={"copy": "yes"})


def test_a_source_without_a_listing_says_which_files_are_there() -> None:
    source = open_target("acme://one/m.box", toys.registry(acme_source))
    assert source.has("config.json")
    assert not source.has("tokenizer.json")
    assert source.members(likely=("tokenizer.json", "config.json")) == ("config.json",)
    with pytest.raises(MissingFileError):
        source.member("tokenizer.json")
