"""The pages with tasks do what they say: every block runs, on small models under the names of the text."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import oracles
import pages
import pytest
import stand_ins

HOWTO = pages.ROOT / "docs" / "howto"
PAGES = {path.stem: path for path in sorted(HOWTO.glob("*.md"))}


@pytest.fixture(scope="session", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> None:
    stand_ins.PLACE[:] = [tmp_path_factory.mktemp("stand-ins")]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty current folder, on a terminal of 100 columns, with `squish` on the path."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def place_models(page: Path, folder: Path) -> None:
    """Put the models that a page names into the folder."""
    text = page.read_text(encoding="utf-8")
    for name in stand_ins.STAND_INS:
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-]|\.\w)", text):
            source = stand_ins.stand_in(name)
            (shutil.copytree if source.is_dir() else shutil.copy2)(source, folder / name)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_does_what_it_says(name: str, folder: Path) -> None:
    place_models(PAGES[name], folder)
    pages.run_page(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_short_and_its_links_lead_somewhere(name: str) -> None:
    text = PAGES[name].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text)
    assert [link for link in links if not (HOWTO / link).exists()] == []


def test_the_index_lists_every_page() -> None:
    listed = re.findall(r"\]\((\S+)\.md\)", (HOWTO / "index.md").read_text(encoding="utf-8"))
    assert [name for name in listed if name in PAGES] == [*dict.fromkeys(listed)]
    assert {*PAGES} - {"index"} == {*listed}


@pytest.mark.parametrize(
    ("block", "is_same"),
    [
        ("$ echo wrote 98.36 MB, 1.6 s", True),
        ("$ echo wrote 12.1 kB, 3 ms", True),
        ("$ echo wrote 210 tensors", False),
    ],
)
def test_sizes_and_times_may_differ_and_counts_may_not(block: str, is_same: bool, folder: Path) -> None:
    printed = pages.run_line(block.removeprefix("$ "))
    assert pages.matches("wrote 97.69 MB, 0.5 s", printed) is is_same


@pytest.mark.parametrize("line", ["squish convrt a b", "squish convert a b --to-format gguf", "squish verify a --dep"])
def test_a_block_that_cannot_run_here_still_has_no_unknown_option(line: str) -> None:
    with pytest.raises(Exception, match=r".") as caught:
        pages.check_lines(f"# needs: the network\n{line}")
    assert not isinstance(caught.value, KeyError)


def test_an_unknown_need_is_an_error() -> None:
    with pytest.raises(KeyError):
        pages.is_present(pages.needed("# needs: patience\nsquish ls model.gguf"))


@pytest.mark.oracle
@pytest.mark.parametrize(("environment", "names"), [("squish-torch", "does_what"), ("dask", "jobs")])
def test_blocks_that_need_other_software_run_there(environment: str, names: str) -> None:
    python = oracles.peer(environment).python
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not oracle", "-k", names, __file__]
    done = subprocess.run(command, cwd=oracles.ROOT, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]


@pytest.mark.oracle
def test_a_page_about_mlx_runs_mlx_lm(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = oracles.peer("mlx-lm").python.parent
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{programs}")
    place_models(PAGES["gguf-to-mlx"], folder)
    assert pages.run_page(PAGES["gguf-to-mlx"]) == []


@pytest.mark.oracle
def test_a_page_about_onnx_runs_onnxruntime(folder: Path) -> None:
    place_models(PAGES["onnx"], folder)
    pages.run_page(PAGES["onnx"])
    blocks = re.findall(r"```python\n(# needs: onnxruntime\n.*?)```", PAGES["onnx"].read_text("utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        subprocess.run([oracles.peer("onnxruntime").python, "-c", block], check=True)
