"""`squish new-plugin` writes a plugin that passes its own tests."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

import pytest
from installed import run_own_tests
from squish_cli import main
from squish_cli.scaffold import example_files, names_for, plugin_files, substitute

from squish_core.errors import SquishError
from squish_core.plugins import catalog

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
KINDS = {
    None: "backend codec codec container container",
    "format": "container",
    "codec": "codec codec",
    "backend": "backend",
    "refinement": "codec container container",
    "family": "family",
}
PARTS = ("format", "codec", "backend", "refinement")
"""Kinds whose plugins are parts of the one without a kind."""


@pytest.mark.parametrize("kind", [None, "family", *(pytest.param(kind, marks=pytest.mark.fuzz) for kind in PARTS)])
def test_the_written_plugin_passes_its_own_tests(kind: str | None, tmp_path: Path) -> None:
    assert main(["new-plugin", "zeta-weights", "-o", str(tmp_path), *(["--kind", kind] if kind else [])]) == 0
    site = tmp_path / "site"
    site.mkdir()
    done = run_own_tests(tmp_path / "zeta-weights", site)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_declares_only_what_it_needs(kind: str | None) -> None:
    files = plugin_files("zeta-weights", kind, None)
    hooks = re.findall(r"def squish_(\w+)s\(", files["src/zeta_weights/__init__.py"])
    kinds = [name.removesuffix("ie") + "y" if name.endswith("ie") else name for name in hooks]
    factories = re.findall(r"(\w+)Info\(", files["src/zeta_weights/__init__.py"])
    assert sorted(map(str.lower, factories)) == KINDS[kind].split()
    assert sorted(kinds) == sorted({*KINDS[kind].split()})
    ids = {*re.findall(r'\bid="([^"]+)"', files["src/zeta_weights/__init__.py"])}
    tested = {
        *re.findall(r'^    (?:container|codec|backend|family) = "(.+)"', files["tests/test_zeta_weights.py"], re.M)
    }
    assert tested == ids


@pytest.mark.parametrize("base", ["qwen3moe", "gemma3", "cohere2", "deepseek2"])
def test_a_new_family_is_like_its_base(base: str) -> None:
    files = plugin_files("zeta-family", "family", base)
    assert f'base = "{base}"' in files["src/zeta_family/zeta.toml"]
    assert f'BASE = "{base}"' in files["tests/test_zeta_family.py"]


@pytest.mark.parametrize(
    "options", [("kernel", None), ("codec", "llama"), (None, "llama"), ("family", "lama"), ("family", "qwen2vl")]
)
def test_a_kind_or_a_base_that_cannot_be_used_is_refused(options: tuple[str | None, str | None]) -> None:
    with pytest.raises(SquishError) as caught:
        plugin_files("zeta-weights", *options)
    assert caught.value.code == "usage"


def test_nothing_of_the_example_is_left_in_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "zeta-format", "-o", str(tmp_path), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    written = {path.relative_to(tmp_path / "zeta-format").as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == set(files)
    text = "".join((tmp_path / "zeta-format" / name).read_text() for name in files) + "".join(files)
    assert "acme" not in text.lower()
    assert 'b"ZETA"' in text


@pytest.mark.parametrize(("kind", "example"), [(None, "acme_format"), ("family", "acme_family")])
def test_the_template_is_the_example(kind: str | None, example: str) -> None:
    """One source: every file of the example that git would track, and nothing else."""
    folder = EXAMPLES / example
    expected = {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in folder.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and ".pytest_cache" not in path.parts
        and ".hypothesis" not in path.parts
    }
    assert dict(example_files(kind)) == expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_new_plugin_is_a_repository_to_publish(kind: str | None) -> None:
    files = plugin_files("zeta-weights", kind, None)
    assert {"README.md", "LICENSE", ".gitignore", ".github/workflows/test.yml", "pyproject.toml"} <= files.keys()
    project = tomllib.loads(files["pyproject.toml"])["project"]
    assert (project["readme"], project["license-files"]) == ("README.md", ["LICENSE"])
    assert project["urls"]["Source"] == "https://github.com/zeta_weights/zeta-weights"
    assert files["LICENSE"] == (ROOT / "LICENSE").read_text()
    assert ("squish-weights/squish" in files[".github/workflows/test.yml"]) != catalog.RELEASED


def test_the_wheel_holds_the_template() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    folders = {"examples/acme_format": "squish_core/example", "examples/acme_family": "squish_core/example_family"}
    assert build["wheel"]["force-include"] == folders
    assert folders.keys() <= {*build["sdist"]["include"]}


@pytest.mark.parametrize(
    "name", ["", "My-Format", "a--b", "1st", "squish-mine", "json", "class", "numpy", "gguf-next", "a/b", ".."]
)
def test_a_name_that_cannot_be_used_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(SquishError) as caught:
        names_for(name)
    assert caught.value.code == "usage"


def test_a_folder_that_exists_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "zeta").mkdir()
    assert main(["new-plugin", "zeta", "-o", str(tmp_path)]) == 2
    assert list((tmp_path / "zeta").iterdir()) == []
    assert "already exists" in capsys.readouterr().err


def test_names_are_replaced_at_once() -> None:
    names = names_for("acmeish-format")
    assert substitute('acme_format acme-format acme.foo b"ACME" ACME', names) == (
        'acmeish_format acmeish-format acmeish.foo b"ACME" ACMEISH'
    )
