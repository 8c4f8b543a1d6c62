"""`squish new-plugin` writes a plugin that passes its own tests."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from installed import run_own_tests
from squish_cli import main
from squish_cli.scaffold import example_files, names_for, substitute

from squish_core.errors import SquishError

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = ROOT / "examples" / "acme_format"


def test_the_written_plugin_passes_its_own_tests(tmp_path: Path) -> None:
    assert main(["new-plugin", "zeta-weights", "-o", str(tmp_path)]) == 0
    site = tmp_path / "site"
    site.mkdir()
    done = run_own_tests(tmp_path / "zeta-weights", site)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


def test_nothing_of_the_example_is_left_in_its_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["new-plugin", "zeta-format", "-o", str(tmp_path), "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    written = {path.relative_to(tmp_path / "zeta-format").as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert written == set(files)
    text = "".join((tmp_path / "zeta-format" / name).read_text() for name in files) + "".join(files)
    assert "acme" not in text.lower()
    assert 'b"ZETA"' in text


def test_the_template_is_the_example() -> None:
    """One source: every file of the example that git would track, and nothing else."""
    expected = {
        path.relative_to(EXAMPLE).as_posix(): path.read_text()
        for path in EXAMPLE.rglob("*")
        if path.is_file()
        and "__pycache__" not in path.parts
        and not path.name.startswith(".")
        and ".pytest_cache" not in path.parts
        and ".hypothesis" not in path.parts
    }
    assert dict(example_files()) == expected


def test_the_wheel_holds_the_template() -> None:
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert build["wheel"]["force-include"] == {"examples/acme_format": "squish_core/example"}
    assert "examples/acme_format" in build["sdist"]["include"]


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
