"""What an index shows of each package: descriptions, licenses, addresses; nothing is named before it is there."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from squish_core.plugins import catalog
from squish_core.text import SITE

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = [ROOT, *sorted(file.parent for file in ROOT.glob("plugins/*/pyproject.toml"))]
HEAVY = {"squish-testing", "squish-torch", "squish-all"}
"""Packages that squish-all does not install."""
URLS = {
    "Homepage": SITE,
    "Documentation": SITE,
    "Source": catalog.REPOSITORY,
    "Issues": f"{catalog.REPOSITORY}/issues",
    "Changelog": f"{catalog.REPOSITORY}/blob/main/CHANGELOG.md",
}
CLASSIFIERS = {
    "Operating System :: MacOS",
    "Operating System :: Microsoft :: Windows",
    "Operating System :: POSIX :: Linux",
    *(f"Programming Language :: Python :: 3.{minor}" for minor in range(11, 15)),
    "Topic :: Scientific/Engineering :: Artificial Intelligence",
}
PAGES = ("*.md", "*.py", "*.yml", "*.toml", "Makefile")
COMMAND = re.compile(r"\b(?:pip|pipx|uvx|uv pip|uv tool|uv add)\b[^`\n#]*")
SPOKEN = re.compile(r"(inject|runpip) squish-core\b|squish-[\w\[\]-]+ @|--find-links.*")
"""What is neither a package of an index nor named as one: environments of pipx, and packages with a place."""
BY_NAME = re.compile(r"""(?:^|[ "'=])squish-[a-z]+[\w\[\],-]*""")


def project(folder: Path) -> dict[str, Any]:
    """The table `project` of a package."""
    facts: dict[str, Any] = tomllib.loads((folder / "pyproject.toml").read_text("utf-8"))["project"]
    return facts


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_package_describes_itself(folder: Path) -> None:
    facts = project(folder)
    assert (facts["readme"], facts["license"], facts["license-files"]) == ("README.md", "Apache-2.0", ["LICENSE"])
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    assert facts["urls"] == URLS
    assert set(facts["classifiers"]) >= CLASSIFIERS
    assert sorted(facts["classifiers"]) == facts["classifiers"]
    assert ("Typing :: Typed" in facts["classifiers"]) == bool(
        [*folder.glob("src/*/py.typed"), *folder.glob("*/py.typed")]
    )
    assert facts["keywords"][:3] == ["squish", "quantization", "model weights"]
    assert len(facts["keywords"]) > 3
    assert facts["authors"]
    assert 20 <= len(facts["description"]) <= 110


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_description_reads_alone(folder: Path) -> None:
    """An index shows it without the repository: its links are addresses."""
    text = (folder / "README.md").read_text("utf-8")
    assert text.startswith("# ")
    assert len(text) > 200
    assert [link for link in re.findall(r"\]\(([^)]*)\)", text) if not link.startswith(("https://", "#"))] == []
    pages = re.findall(rf"{re.escape(SITE)}([\w/-]+)\.html", text)
    assert [page for page in pages if not (ROOT / "docs" / f"{page}.md").is_file() and "reference/" not in page] == []


def test_squish_all_installs_everything_but_what_is_heavy() -> None:
    facts = {project(folder)["name"]: project(folder) for folder in FOLDERS}
    version = facts["squish-core"]["version"]
    together = {"squish-core", *catalog.RELEASED_TOGETHER.values()}
    assert {facts[name]["version"] for name in together} == {version}
    assert facts["squish-all"]["dependencies"] == [
        f"{name}=={version}" if name in together else f"{name}>=0.1,<0.2"
        for name in ("squish-core", *sorted(facts.keys() - HEAVY - {"squish-core"}))
    ]


def test_nothing_names_a_package_as_installable_before_it_is() -> None:
    """Anyone may take a name in an index until we have it."""
    if catalog.RELEASED:
        return
    listed = subprocess.run(["git", "ls-files", *PAGES], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    pages = [name for name in listed.splitlines() if not re.search(r"(^|/)tests/", name)]
    assert [
        f"{name}:{number}: {line.strip()}"
        for name in pages
        for number, line in enumerate((ROOT / name).read_text("utf-8").splitlines(), 1)
        for command in COMMAND.findall(line)
        if BY_NAME.search(SPOKEN.sub("", command))
    ] == []
