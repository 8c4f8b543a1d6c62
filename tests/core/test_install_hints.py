"""Hints that install something work where the packages are not published: they name the checkout's folders."""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from squish_cli import tables
from squish_cli.app import COMMAND_EXTRAS
from squish_testing import expect_error

import squish_core as squish
from squish_core import environment
from squish_core.errors import MissingPluginError
from squish_core.io.digest import ALGORITHMS
from squish_core.plugins import catalog

CHECKOUT, REPOSITORY, WHEELS = catalog.checkout, catalog.repository, catalog.wheels
INSTALLER: Any = environment.installer
DATA = Path(__file__).parents[1] / "data"
"""The tests' shared fixture replaces these."""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with three plugins, one of which requires another always, and one with an extra."""
    required = {
        "core": {"cli": ["squish-cli"]},
        "cli": {},
        "one": {},
        "two": {"": ["squish-one[x]"]},
        "three": {"more": ["squish-one"], "serve": ["squish-core[cli]"]},
    }
    table = {f"squish-{name}": {"folder": f"plugins/{name}", "requires": each} for name, each in required.items()}
    table["squish-core"]["folder"] = ""
    for each in table.values():
        (tmp_path / each["folder"]).mkdir(parents=True, exist_ok=True)
    (tmp_path / "squish_core").mkdir()
    monkeypatch.setattr(catalog, "checkout", lambda: tmp_path)
    monkeypatch.setattr(catalog, "distributions", lambda: table)
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


def test_this_checkout_holds_every_package_of_the_catalog() -> None:
    root = CHECKOUT()
    if root is None:
        pytest.skip("squish-core comes from a folder of wheels here")
    for facts in catalog.distributions().values():
        assert (root / facts["folder"] / "pyproject.toml").is_file()


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


def test_listing_plugins_and_opening_read_nothing_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(catalog, "TABLE", None)
    catalog.table.cache_clear()
    registry = squish.Registry()
    with squish.open(DATA / "sample.gguf", registry=registry) as file:
        assert registry.find("containers", id=file.format)


def test_a_file_of_a_missing_plugin_is_known_by_its_suffix() -> None:
    bare = squish.Registry(entry_points=tuple)
    for entry in squish.registry().containers.values():
        for suffix in entry.info.suffixes:
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


UV_TOOL = "uv tool install 'squish-core[cli]' --with=squish-ggml==0.1.0 '--with=squish-zstd @ file:///src/zstd'"
ENVIRONMENTS = [
    ("pip", {}, "pip install {}"),
    ("pip of another environment", {"which": ["pip"]}, "{python} -m pip install {}"),
    ("no pip on the path", {"which": []}, "{python} -m pip install {}"),
    ("conda", {"files": {"conda-meta/": ""}, "which": ["pip"]}, "{python} -m pip install {}"),
    ("conda without pip", {"files": {"conda-meta/": ""}, "pip": False, "which": ["mamba", "uv"]},
     "mamba install --yes --prefix {prefix} pip && {python} -m pip install {}"),
    ("conda without conda", {"files": {"conda-meta/": ""}, "pip": False, "which": ["uv"]},
     "uv pip install --python {python} {}"),
    ("uv", {"pip": False, "which": ["uv"]}, "uv pip install --python {python} {}"),
    ("neither pip nor uv", {"pip": False, "which": []}, "{python} -m ensurepip && {python} -m pip install {}"),
    ("pipx", {"files": {"pipx_metadata.json": '{"main_package": {"pip_args": []}}'}}, "pipx inject squish-core {}"),
    ("pipx of wheels", {"files": {"pipx_metadata.json": '{"main_package": {"pip_args": ["--find-links", "/a b"]}}'}},
     """pipx inject squish-core '--pip-args=--find-links '"'"'/a b'"'"'' {}"""),
    ("pipx, unreadable", {"files": {"pipx_metadata.json": "[]"}}, "pipx inject squish-core {}"),
    ("uv tool", {"files": {"uv-receipt.toml": "RECEIPT"}}, f"{UV_TOOL} {{with}}"),
    ("uv tool of wheels", {"files": {"uv-receipt.toml": 'RECEIPT[tool.options]\nfind-links = ["file:///dist"]\n'}},
     f"{UV_TOOL} --find-links=file:///dist {{with}}"),
    ("uv tool, unreadable", {"files": {"uv-receipt.toml": "[tool]\nrequirements = 1"}},
     "uv pip install --python {python} {}"),
]  # fmt: skip
RECEIPT = """
[tool]
requirements = [
  { name = "squish-core", extras = ["cli"] }, { name = "squish-ggml", specifier = "==0.1.0" },
  { name = "squish-zstd", directory = "/src/zstd" },
]
"""


@pytest.mark.parametrize(
    ("facts", "command"), [case[1:] for case in ENVIRONMENTS], ids=[name for name, *_ in ENVIRONMENTS]
)
def test_the_tool_of_the_environment_installs(
    facts: dict[str, Any], command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / "squish-core"
    (prefix / "bin").mkdir(parents=True)
    for name, text in facts.get("files", {}).items():
        (prefix / name).mkdir() if name.endswith("/") else (prefix / name).write_text(text.replace("RECEIPT", RECEIPT))
    folder = "elsewhere" if "which" in facts else str(prefix / "bin")
    monkeypatch.setattr(sys, "prefix", str(prefix))
    monkeypatch.setattr(sys, "executable", str(prefix / "bin" / "python"))
    on_path = facts.get("which", ["pip"])
    monkeypatch.setattr(environment.shutil, "which", lambda name: f"{folder}/{name}" if name in on_path else None)
    monkeypatch.setattr(environment, "find_spec", lambda name: object() if facts.get("pip", True) else None)
    monkeypatch.setattr(environment, "installer", INSTALLER.__wrapped__)
    places = {"prefix": prefix, "python": prefix / "bin" / "python", "with": "--with=squish-gguf --with=scipy"}
    assert catalog.install_command("squish-gguf", "scipy") == command.format("squish-gguf scipy", **places)


def test_pipx_gets_folders_after_those_that_they_require(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It installs the packages of a command one at a time, sorted."""
    monkeypatch.setattr(environment, "installer", lambda: ([["pipx", "inject", "squish-core"]], ()))
    monkeypatch.chdir(checkout)
    assert catalog.install_command("squish-two", "squish-three") == (
        "pipx inject squish-core ./plugins/one ./plugins/two && pipx inject squish-core ./plugins/three"
    )


def test_an_environment_that_the_system_manages_needs_an_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    monkeypatch.setattr(environment.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(environment, "installer", INSTALLER.__wrapped__)
    assert catalog.install_command("scipy").endswith(" -m pip install --break-system-packages scipy")


ADDRESS = "git+https://host/repo@abc#subdirectory=plugins"
OWN = f"git+{catalog.REPOSITORY}#subdirectory=plugins"


@pytest.mark.parametrize(
    ("origin", "links", "is_released", "command"),
    [
        (
            {"url": "https://host/repo", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            (),
            True,
            f"pip install 'squish-one @ {ADDRESS}/one' 'squish-two @ {ADDRESS}/two' scipy",
        ),
        (
            {"url": "file:///dist/squish_core-0.1.0-py3-none-any.whl", "archive_info": {}},
            (),
            False,
            "pip install --find-links=/dist squish-two scipy",
        ),
        ({}, (), True, "pip install squish-two scipy"),
        ({}, (), False, f"pip install 'squish-one @ {OWN}/one' 'squish-two @ {OWN}/two' scipy"),
        ({}, ("--find-links=/wheels",), False, "pip install --find-links=/wheels squish-two scipy"),
    ],
    ids=["repository", "wheel", "index", "unknown", "tool"],
)
def test_plugins_come_from_where_the_core_came_from(
    origin: dict[str, Any],
    links: tuple[str, ...],
    is_released: bool,
    command: str,
    checkout: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(catalog, "_origin", lambda: origin)
    monkeypatch.setattr(catalog, "RELEASED", is_released)
    monkeypatch.setattr(catalog, "checkout", lambda: None)
    monkeypatch.setattr(catalog, "repository", REPOSITORY.__wrapped__)
    monkeypatch.setattr(catalog, "wheels", WHEELS.__wrapped__)
    monkeypatch.setattr(environment, "installer", lambda: ([["pip", "install"]], links))
    assert catalog.install_command("squish-two", "scipy") == command


def test_a_folder_of_wheels_is_named_instead_of_the_checkout(checkout: Path) -> None:
    assert catalog.install_commands("squish-two", find_links="/d") == [
        ["pip", "install", "--find-links=/d", "squish-two"]
    ]


def test_extras_and_what_they_require_are_listed(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    assert catalog.install_command("squish-three[more]") == "pip install ./plugins/one './plugins/three[more]'"
    assert catalog.install_command("squish-three", extra="[more]") == catalog.install_command("squish-three[more]")
    assert catalog.install_command("squish-three[serve]") == "pip install ./plugins/cli './plugins/three[serve]'"
    assert catalog.install_command("squish-three") == "pip install ./plugins/three"
    assert catalog.install_command("squish-core", "squish-two", fresh=True).split()[2:] == [
        ".",
        "./plugins/one",
        "./plugins/two",
    ]


@pytest.mark.parametrize(("command", "extra"), COMMAND_EXTRAS.items())
def test_the_extra_of_a_command_exists(command: str, extra: str) -> None:
    root = CHECKOUT()
    if root is None:
        pytest.skip("squish-core comes from a folder of wheels here")
    package = tables.read("commands")["commands"][command]["package"]
    file = root / catalog.distributions()[package]["folder"] / "pyproject.toml"
    assert extra.strip("[]") in tomllib.loads(file.read_text())["project"]["optional-dependencies"]


@pytest.mark.parametrize("scheme", ["hf", "https", "ftp"])
def test_the_source_of_a_scheme_comes_with_its_library(scheme: str) -> None:
    extra = {"hf": "[hf]", "ftp": "[fsspec]"}.get(scheme, "")
    with expect_error(MissingPluginError, hint=f"squish-remote{extra}"):
        squish.open(f"{scheme}://example.org/model.gguf", registry=squish.Registry(entry_points=tuple))


def test_a_digest_without_its_library_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with expect_error(MissingPluginError, code="not-installed", hint="pip install xxhash"):
        ALGORITHMS["xxh3"][0]()
