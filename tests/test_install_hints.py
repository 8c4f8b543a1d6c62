"""Hints that install something work where the packages are not published: they name the checkout's folders."""

from __future__ import annotations

import importlib.metadata
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import squish_core as squish
from squish_core.plugins import catalog

CHECKOUT = catalog.checkout  # the tests' shared fixture replaces it


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with two plugins, one of which needs the other and something of a package index."""
    for name, needs in {"squish-one": [], "squish-two": ["squish-one[x]>=0.1,<0.2", "numpy>=2"]}.items():
        folder = tmp_path / "plugins" / name.removeprefix("squish-")
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(f"[project]\nname = {name!r}\ndependencies = {needs}\n")
    (tmp_path / "squish_core").mkdir()
    monkeypatch.setattr(catalog, "checkout", lambda: tmp_path)
    return tmp_path


def test_a_published_package_is_named() -> None:
    assert catalog.install_command("squish-gguf") == "pip install squish-gguf"
    assert catalog.absent("container", "gguf").install == "pip install squish-gguf"


def test_in_a_checkout_the_hint_names_folders_with_their_dependencies(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(checkout)
    assert catalog.install_command("squish-one") == "pip install ./plugins/one"
    assert catalog.install_command("squish-two") == "pip install ./plugins/one ./plugins/two"
    assert catalog.install_command("elsewhere") == "pip install elsewhere"


def test_outside_the_checkout_the_hint_names_absolute_paths(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(os.sep)
    at = checkout.relative_to(os.sep)
    assert catalog.install_command("squish-one") == f"pip install ./{at}/plugins/one"
    monkeypatch.chdir(checkout / "plugins" / "two")
    assert catalog.install_command("squish-one") == f"pip install {checkout}/plugins/one"


def test_this_checkout_holds_every_package_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    root = CHECKOUT()
    if root is None:
        pytest.skip("squish-core comes from a package index here")
    monkeypatch.setattr(catalog, "checkout", lambda: root)
    packages = {package for table in catalog.PACKAGES.values() for package in table.values()}
    assert packages | set(catalog.COMMANDS.values()) <= catalog.plugin_folders().keys()


def test_a_core_that_was_installed_from_a_checkout_finds_it(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Installed:
        def __init__(self, url: str) -> None:
            self.url = url

        def read_text(self, name: str) -> str:
            return json.dumps({"url": self.url, "dir_info": {}})

    def at(url: str) -> Any:
        monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Installed(url))
        return CHECKOUT.__wrapped__()

    assert at(checkout.as_uri()) == checkout
    monkeypatch.setattr(catalog, "__file__", str(checkout / "lib" / "squish_core" / "catalog.py"))
    assert at("https://example.org/squish_core.whl") is None
    assert at((checkout / "moved").as_uri()) is None


def test_a_file_of_a_missing_plugin_is_known_by_its_suffix() -> None:
    bare = squish.Registry(entry_points=tuple)
    for entry in squish.registry().containers.values():
        for suffix in getattr(entry.info, "suffixes", ()):
            assert bare.needs(f"model{suffix}")[0].dist == entry.dist, suffix


@pytest.mark.parametrize(("target", "to", "code"), [("out.gguf", None, "family"), ("out", "mlx", "engine")])
def test_a_model_of_a_family_that_is_not_installed_names_the_package(
    target: str, to: str | None, code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SQUISH_PLUGINS", "-squish-models")
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    squish.save(tmp_path / "model.safetensors", {"model.norm.weight": np.ones(4, np.float32)})
    with pytest.raises(squish.UsageError) as caught:
        squish.convert(tmp_path, tmp_path / target, to, registry=squish.Registry())
    assert caught.value.code == code
    assert "`pip install squish-models`" in str(caught.value.hint)
    assert not (tmp_path / target).exists()


def test_the_catalog_lists_the_families_of_squish_models() -> None:
    installed = [entry.id for entry in squish.registry().find("family") if entry.dist == "squish-models"]
    assert sorted(catalog.PACKAGES["family"]) == sorted(installed)
