"""Pages: `squish report`, and `--html` of the commands that share its parts."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import web_server
from documents import check
from squish_cli import main
from squish_cli.charts import squarify
from squish_cli.report import report
from squish_testing import expect_error

import squish_core as squish
from squish_core.errors import UsageError

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028'\"&"
LAYERS = {
    f"model.layers.{layer}.{kind}.weight": np.full((8, 32), layer + 1, np.float32)
    for layer in range(12)
    for kind in ("mlp.up_proj", "mlp.down_proj")
}
TENSORS = {**LAYERS, "lm_head.weight": np.ones((4, 32), np.float16), HOSTILE: np.ones(4, np.float32)}
VOID = {"meta", "img", "br", "input", "wbr"}


class Page(HTMLParser):
    """The tables, headings, scripts and attributes of a page; elements must be closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.headings: list[str] = []
        self.content: dict[str, list[str]] = {"script": [], "style": []}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, *pair) for pair in attributes]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        elif tag in ("h1", "h2"):
            self.headings.append("")
        elif tag in self.content:
            self.content[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inner = self.open[-1] if self.open else ""
        if inner in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif inner in ("h1", "h2"):
            self.headings[-1] += data
        elif inner in self.content:
            self.content[inner][-1] += data

    def table(self, *header: str) -> list[list[str]]:
        """The rows of the table with this header."""
        return next(rows[1:] for rows in self.tables if rows and rows[0][: len(header)] == list(header))

    @property
    def data(self) -> Any:
        return json.loads(self.content["script"][0])


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    squish.save("model.safetensors", TENSORS)
    return tmp_path / "model.safetensors"


def reported(*words: object) -> Page:
    assert main(["report", *map(str, words), "-o", "page.html", "--quiet"]) == 0
    return Page(Path("page.html").read_text("utf-8"))


def test_a_page_shows_where_the_bytes_are(model: Path) -> None:
    page = reported(model)
    assert page.headings[0] == "model.safetensors"
    kinds = page.table("kind", "tensors", "parameters", "size", "share", "bits/weight")
    assert ["mlp.up_proj", "12", "3,072", "12.29 kB", "49.5%", "32.00"] in kinds
    layers = [row[0] for row in page.table("layer", "tensors")]
    assert layers == [*(f"model.layers.{number}" for number in range(12)), "outside layers"]
    assert [row[0] for row in page.table("type", "tensors")] == ["f32", "f16"]
    assert len(page.table("tensor", "shape", "stored as", "bits/weight", "bytes")) == len(TENSORS)
    assert sum(int(row[2]) for row in page.table("backend", "mode", "tensors")) == len(TENSORS)


def test_a_page_loads_nothing_and_runs_only_its_own_script(model: Path) -> None:
    page = reported(model)
    policy = next(value for tag, name, value in page.attributes if tag == "meta" and name == "content" and value)
    assert policy.startswith("default-src 'none'")
    for kind, number in (("style", 0), ("script", 1)):
        digest = base64.b64encode(hashlib.sha256(page.content[kind][number].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert len(page.content["script"]) == 2
    names = {name for _, name, _ in page.attributes}
    assert not names & {"style", "src", "href", "onclick", "onerror", "onload"}
    assert "viewport" in str(page.attributes)
    assert "color-scheme" in str(page.attributes)
    assert not re.search(r"https?://|url\(|@import", "".join(page.content["style"]))


def test_names_from_files_are_text(model: Path) -> None:
    page = reported(model)
    assert HOSTILE in page.data["tensors"]["names"]
    raw = Path("page.html").read_text("utf-8")
    assert "<img" not in raw
    assert raw.count("<script") == 2
    assert "\u2028" not in raw
    assert any("<img src=x" in cell for row in page.table("tensor", "shape") for cell in row)


def test_the_data_is_the_document_of_the_command(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = reported(model)
    capsys.readouterr()
    assert main(["report", str(model), "-o", "other.html", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("target") == "other.html"
    assert {key: value for key, value in page.data.items() if key != "target"} == printed
    tensors = printed["tensors"]
    assert [len(column) for column in tensors.values()] == [len(TENSORS)] * 4
    assert printed["types"][tensors["stored_as"][0]]["name"] == "f32"


def test_a_page_replaces_nothing(model: Path) -> None:
    assert main(["report", str(model)]) == 0
    assert Path("model.html").exists()
    with expect_error(UsageError, code="exists"):
        report(str(model))
    for words in (["verify"], ["plan"], ["diff", str(model)]):
        assert main([*words, str(model), "--html", "model.html"]) == 2


def test_values_are_read_on_request(model: Path) -> None:
    page = reported(model)
    assert not page.data["magnitudes"]
    Path("page.html").unlink()
    page = reported(model, "--values")
    assert page.data["magnitudes"]["0"] == 512 + 128 + 4  # ones
    header = ("tensor", "mean", "std", "largest", "in std", "outliers")
    assert ["model.layers.3.mlp.up_proj.weight", "4", "0", "4"] in [row[:4] for row in page.table(*header)]
    assert {row["name"]: row["absmax"] for row in page.data["outliers"]}["model.layers.3.mlp.up_proj.weight"] == 4
    assert ["2^0", "644"] in page.table("from", "number")


def test_the_page_of_the_header_comes_first(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squish_cli.report._values", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        report(str(model), out="page.html", values=True, quiet=True)
    raw = Path("page.html").read_text("utf-8")
    assert "Values are still being read." in raw
    assert len(Page(raw).data["tensors"]["names"]) == len(TENSORS)


def test_all_scales_are_counted_and_a_remote_file_is_fetched_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    squish.save("q.gguf", {"w": np.full((600, 2048), 127, np.float32)}, encode="q8_0")  # more than a panel
    ranges, answer = list[str](), web_server.Handler.answer

    def counting(handler: web_server.Handler, body: bytes | None) -> None:
        ranges.append(handler.headers.get("Range", "bytes=0-0"))
        answer(handler, body)

    monkeypatch.setattr(web_server.Handler, "answer", counting)
    with web_server.serving() as address:
        page = reported(f"{address}/q.gguf", "--values")
    assert page.data["scales"] == {"0": 600 * 2048 // 32}
    ends = (each.removeprefix("bytes=").split("-") for each in ranges)
    fetched = sum(int(stop) + 1 - int(start) for start, stop in ends)
    assert fetched < 1.2 * Path("q.gguf").stat().st_size


def test_a_second_file_is_compared_by_layer_and_kind(model: Path) -> None:
    squish.save("b.safetensors", {**TENSORS, "model.layers.3.mlp.up_proj.weight": np.full((8, 32), 5, np.float32)})
    page = reported(model, "b.safetensors")
    assert "still being read" not in Path("page.html").read_text("utf-8")
    cells = {(cell["layer"], cell["kind"]): cell["nmse"] for cell in page.data["difference"]["cells"]}
    assert cells["model.layers.3", "mlp.up_proj"] == pytest.approx(1 / 16)
    assert ["model.layers.3", "0.062"] in [row[:2] for row in page.table("layer", "mlp.up_proj")]
    assert ["differs", "1"] in page.table("state", "tensors")


@pytest.mark.parametrize(
    ("words", "table"),
    [
        (["verify", "model.safetensors"], ["file", "model.safetensors"]),
        (["plan", "model.safetensors"], ["backend", "mode"]),
        (["diff", "model.safetensors", "model.safetensors"], ["state", "tensors"]),
        (["convert", "model.safetensors", "out.safetensors", "--encode", "f16"], ["tensor", "action"]),
    ],
)
def test_other_commands_write_pages_of_the_same_parts(model: Path, words: list[str], table: list[str]) -> None:
    assert main([*words, "--html", "page.html"]) == 0
    raw = Path("page.html").read_text("utf-8")
    page = Page(raw)
    assert "<img" not in raw
    check(page.data)
    assert table in [row[:2] for rows in page.tables for row in rows]
    assert page.data["schema"].startswith(f"squish/{words[0]}/")
    assert "style-src 'sha256-" in str(page.attributes)


def test_a_page_of_findings_has_files_that_cannot_be_read(model: Path) -> None:
    Path("broken.gguf").write_bytes(b"GGUF\x03")
    assert main(["verify", str(model), "missing.gguf", "broken.gguf", "--html", "page.html"]) == 2
    page = Page(Path("page.html").read_text("utf-8"))
    assert page.headings == ["Findings in 3 files", "model.safetensors", "missing.gguf", "broken.gguf"]
    assert "missing.gguf: no such file" in Path("page.html").read_text("utf-8")


def test_metadata_and_the_architecture_are_in_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    squish.save("m/model.safetensors", LAYERS, metadata={"<b>": "two\nlines"})
    Path("m/config.json").write_text('{"model_type": "llama", "architectures": ["LlamaForCausalLM"]}')
    rows = [row for rows in reported("m").tables for row in rows]
    assert [row for row in rows if row[0] in ("architecture", "class", "<b>")] == [
        ["architecture", "llama"],
        ["class", "LlamaForCausalLM"],
        ["<b>", "two\\nlines"],
    ]


def test_what_a_model_lacks_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m").mkdir()
    squish.save("m/model.safetensors", LAYERS)
    (tmp_path / "m" / "config.json").write_text('{"model_type": "llama", "vision_config": {"x": 1}}')
    rows = reported("m").table("what", "why it is needed")
    assert [row[0] for row in rows] == ["tokenizer", "vision component"]


def test_a_page_of_20000_tensors_is_below_3_mb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    one = np.ones((2, 2), np.float16)
    names = (f"model.layers.{n // 200}.mlp.experts.{n % 200 // 2}.{'ud'[n % 2]}_proj.weight" for n in range(20_000))
    squish.save("big.safetensors", dict.fromkeys(names, one))
    page = reported("big.safetensors")
    assert Path("page.html").stat().st_size < 3_000_000
    assert ["mlp.experts.*.u_proj", "10,000"] in [row[:2] for row in page.table("kind", "tensors")]


@pytest.mark.parametrize("sizes", [[6, 6, 4, 3, 2, 2, 1], [1], [], [0, 0], [5, 0, 1], list(range(1, 60))[::-1]])
def test_a_treemap_fills_its_box(sizes: list[float]) -> None:
    boxes = squarify(sizes, (0, 0, 600, 400))
    assert len(boxes) == len(sizes)
    for size, (x, y, width, height) in zip(sizes, boxes):
        assert width * height == pytest.approx(size / (sum(sizes) or 1) * 240_000, abs=1e-6)
        assert (x >= 0, y >= 0, x + width <= 600.01, y + height <= 400.01) == (True,) * 4
