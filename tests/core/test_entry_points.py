"""Entry points of installed distributions: the same as the library finds, without importing it."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import importlib_metadata
import pytest

from squish_core.plugins.entry_points import entry_points

GROUP = "squish.test"


def rows(points: Any) -> list[tuple[str, str, str, str]]:
    return [(point.name, point.value, point.dist.name, point.dist.version) for point in points]


def distribution(folder: Path, name: str, version: str = "1.0", points: str = "", suffix: str = "dist-info") -> None:
    """Write the metadata of a distribution."""
    info = folder / f"{name.replace('-', '_')}-{version}.{suffix}"
    info.mkdir(parents=True)
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nName: of the description\n"
    (info / ("METADATA" if suffix == "dist-info" else "PKG-INFO")).write_text(metadata)
    if points:
        (info / "entry_points.txt").write_text(points)


def test_the_installed_plugins_are_those_of_the_library() -> None:
    expected = importlib_metadata.entry_points(group="squish")
    assert sorted(rows(entry_points("squish"))) == sorted(rows(expected))


@pytest.mark.parametrize("suffix", ["dist-info", "egg-info"])
def test_a_section_is_read_to_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    ours = f"[{GROUP}]\n# a remark\nfirst = os.path:join\nsecond=json [fast]\n"
    text = f"[console_scripts]\ntool = tool:main\n\n{ours}[x]\na=b\n"
    distribution(tmp_path, "acme-one", points=text, suffix=suffix)
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(tmp_path / "absent")])
    first, second = entry_points(GROUP)
    assert rows([first]) == [("first", "os.path:join", "acme-one", "1.0")]
    assert first.load() is __import__("os").path.join
    assert second.load() is __import__("json")
    assert rows([first, second]) == rows(importlib_metadata.entry_points(group=GROUP))


def test_the_first_distribution_of_a_name_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "a", "Acme.One", "2.0")
    distribution(tmp_path / "b", "acme-one", points=f"[{GROUP}]\nhidden = os\n")
    distribution(tmp_path / "b", "acme-two", points=f"[{GROUP}]\nvisible = os\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path / "a"), str(tmp_path / "b")])
    assert [point.name for point in entry_points(GROUP)] == ["visible"]


def test_zip_files_and_other_finders_are_left_to_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path / "in", "acme-zip", points=f"[{GROUP}]\nzipped = os\n")
    with zipfile.ZipFile(tmp_path / "lib.zip", "w") as archive:
        for file in sorted((tmp_path / "in").rglob("*")):
            archive.write(file, file.relative_to(tmp_path / "in"))
    monkeypatch.setattr(sys, "path", [str(tmp_path / "lib.zip")])
    assert rows(entry_points(GROUP)) == [("zipped", "os", "acme-zip", "1.0")]
    distribution(tmp_path / "hidden", "acme-finder", points=f"[{GROUP}]\nfound = os\n")
    folder = importlib_metadata.PathDistribution(next((tmp_path / "hidden").iterdir()))
    finder = SimpleNamespace(find_spec=lambda *_: None, find_distributions=lambda _: [folder], __module__="acme")
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, finder])
    assert ("found", "os", "acme-finder", "1.0") in rows(entry_points(GROUP))


def test_a_distribution_without_metadata_has_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    distribution(tmp_path, "acme-bare", points=f"[{GROUP}]\nbare = os\n")
    next(tmp_path.rglob("METADATA")).unlink()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    (point,) = entry_points(GROUP)
    assert (point.name, point.dist) == ("bare", None)


def test_listing_plugins_parses_no_metadata() -> None:
    code = "import sys, squish_core; squish_core.registry(); print(*{'email', 'importlib_metadata'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "\n"
