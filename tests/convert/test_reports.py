"""Reports, files and tensors as text and as HTML; what a conversion says of rules, disks and old arguments."""

from __future__ import annotations

import re
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toys
from squish_cli import main
from squish_convert.rules import EncodeRule, ineffective_rules

import squish_core as squish
from squish_core.errors import Problem
from squish_core.model import CodecSpec
from squish_core.shown import Plotted, Shown

VALUES = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)
NAME = "<b>&\x1b[31m"
TENSORS = {NAME: VALUES, "norm": np.ones(8, np.float32), "large": np.ones(400, np.float32)}


@pytest.fixture(autouse=True)
def default_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """The toys alone, for the command line too."""
    from squish_core.plugins import registry as plugins

    monkeypatch.setattr(plugins, "_default", toys.registry())


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "m.box").write_bytes(toys.box(TENSORS))
    return tmp_path / "m.box"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another file: every tensor has another value, and one tensor more."""
    tensors = {name: array * 1.5 for name, array in TENSORS.items()}
    (tmp_path / "other.box").write_bytes(toys.box({**tensors, "more": VALUES}))
    return tmp_path / "other.box"


def shown(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    main([str(word) for word in words])
    return capsys.readouterr().out.rstrip("\n")


# text


def test_print_shows_what_the_command_line_shows(path: Path, other: Path, capsys: pytest.CaptureFixture[str]) -> None:
    difference = shown(capsys, "diff", path, other, "--quiet")
    assert str(squish.diff(path, other)).replace("\x1b", r"\x1b") == difference
    with squish.open(path) as file:
        assert str(file["norm"].plan()).split("\n")[1:] == shown(capsys, "plan", path, "norm").split("\n")[1:5] + [
            line for line in str(file["norm"].plan()).split("\n") if line.startswith("  not")
        ]
    report = squish.convert(path, path.with_name("out.box"), dry_run=True)
    assert str(report).replace("\x1b", r"\x1b") == shown(
        capsys, "convert", path, path.with_name("out.box"), "--dry-run"
    )
    text = shown(capsys, "verify", path, "--quiet")
    assert str(squish.verify(path)).replace("deep=True", "--deep") == text


def test_reprs_stay_short(path: Path, other: Path) -> None:
    with squish.open(path) as file:
        reports = [squish.diff(path, other), squish.verify(path), file["norm"].plan(), file["norm"].statistics(),
                   squish.convert(path, path.with_name("out.box"), dry_run=True)]  # fmt: skip
    for report in reports:
        assert "\n" not in repr(report)
        assert len(repr(report)) < 300


def test_lines_of_reports_are_not_wider_than_the_terminal(
    path: Path, other: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with squish.open(path) as file:
        texts = [squish.diff(path, other), squish.verify("/dev/null"), file["norm"].plan(), file["norm"].statistics()]
    assert max(len(line) for text in texts for line in str(text).split("\n")) <= 80


# HTML


ELEMENTS = frozenset(
    [
        "caption",
        "details",
        "div",
        "li",
        "p",
        "span",
        "style",
        "summary",
        "table",
        "tbody",
        "td",
        "th",
        "thead",
        "tr",
        "ul",
    ]
)


def shown_in_notebook(result: Any) -> str:
    """The HTML of a result, whose elements are closed in order and are none but these."""
    html: str = result._repr_html_()
    opened: list[str] = []
    for closing, name in re.findall(r"<(/?)(\w+)", html.replace("<wbr>", "")):
        assert name in ELEMENTS
        if closing:
            assert opened.pop() == name
        else:
            opened.append(name)
    assert not opened
    assert "\x1b" not in html
    return html


def test_html_has_tables_and_escapes_markup(path: Path, other: Path) -> None:
    with squish.open(path) as file:
        tensor = file[NAME]
        named = [file, tensor, tensor.plan(), tensor.load(), file.plan(), file.select("*"), file.statistics()]
        named += [squish.diff(path, other), squish.convert(path, path.with_name("out.box"), dry_run=True)]
        for result in named:
            html = shown_in_notebook(result)
            assert "&lt;b&gt;&amp;" in html
            assert "<table" in html
        others = [file.summary(), tensor.statistics(), squish.verify(path), squish.registry()]
        others += [squish.registry().matrix("toy.box"), squish.benchmark(path), squish.diagnose()]
        for result in others:
            assert "<table" in shown_in_notebook(result)
    kinds = {each for each in (*Shown.__subclasses__(), *Plotted.__subclasses__()) if each.__module__[:7] == "squish_"}
    assert {type(result) for result in named + others} >= kinds - {Plotted}


def test_html_of_20000_tensors_is_short_and_quick() -> None:
    names = [f"model.layers.{n // 200}.mlp.experts.{n % 200}.up_proj.weight" for n in range(20_000)]
    with squish.open(toys.box(dict.fromkeys(names, VALUES))) as file:
        plan, conversion = file.plan("numpy"), squish.convert(file, "out.box", dry_run=True)
        for result in (file, plan, conversion, squish.diff(file, file), squish.verify(file), file.select("*")):
            start = time.perf_counter()
            html = shown_in_notebook(result)
            assert time.perf_counter() - start < 3  # 0.3 s on a quiet machine, and the parsing of the check
            assert len(html) < 200_000
    assert html.count("<details>") == 100
    assert "model.layers.99: 200 tensors" in html


def test_findings_unfold_to_their_places() -> None:
    problems = tuple(
        Problem(code="nan", severity="warning", where=f"w{n}", message="has <NaN> values") for n in range(3000)
    )
    html = shown_in_notebook(squish.Report(file="a", format="box", deep=True, problems=problems))
    assert "warning: has &lt;NaN&gt; values (nan), 3,000 times" in html
    assert "<li>w0</li>" in html
    assert len(html) < 200_000


# diff


def test_the_verdict_comes_first_then_the_ten_worst(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sources = {f"w{n:02}": VALUES for n in range(15)}
    changed = {name: array + n / 1000 for n, (name, array) in enumerate(sources.items())}
    for name, tensors in (("a.box", sources), ("b.box", {**changed, "new": VALUES})):
        (tmp_path / name).write_bytes(toys.box(tensors))
    lines = shown(capsys, "diff", tmp_path / "a.box", tmp_path / "b.box").split("\n")
    assert lines[0].startswith("differs: ")
    assert [line.split()[-1] for line in lines[2:-1]] == ["new", *(f"w{n:02}" for n in range(14, 5, -1))]
    assert lines[-1] == "5 more differ (--all lists them)"
    assert len(shown(capsys, "diff", tmp_path / "a.box", tmp_path / "b.box", "--all").split("\n")) == 17


# verify


def test_verify_lists_what_it_did_not_check(path: Path) -> None:
    assert squish.verify(path).not_checked == ("the values of 3 tensors (deep=True decodes them)",)
    (without,) = squish.verify(path, deep=True).not_checked
    assert "no digests" in without
    assert squish.verify(path).to_dict()["not_checked"] == [*squish.verify(path).not_checked]


# convert


def test_a_rule_that_left_most_bytes_unchanged_is_a_warning_above_the_table(path: Path) -> None:
    report = squish.convert(path, path.with_name("out.box"), encode="toy.rows", dry_run=True)
    (effect,) = report.ineffective
    assert (effect.kept, effect.tensors, effect.kept_size, effect.size) == (2, 3, 4 * 408, 4 * 408 + VALUES.nbytes)
    assert "vector" in effect.reason
    lines = str(report).split("\n")
    assert lines[1].startswith("warning: the rule toy.rows left 1.632 kB of 1.824 kB unchanged (2 of 3 tensors): ")
    assert report.to_dict()["ineffective"][0]["kept"] == 2


@pytest.mark.parametrize("encode", [None, {"large": "f16"}, "f16", {"*": "keep"}])
def test_rules_that_encode_most_bytes_do_not_warn(path: Path, encode: Any) -> None:
    assert squish.convert(path, path.with_name("out.box"), encode=encode, dry_run=True).ineffective == ()


def test_each_rule_is_compared_once_with_each_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of rules may name every tensor of a model."""
    rules = tuple(EncodeRule(f"{number}", CodecSpec("int4")) for number in range(30))
    steps: Any = [SimpleNamespace(name=str(number), note="kept: small", stored=1) for number in range(30)]
    calls, matches = [], EncodeRule.matches
    monkeypatch.setattr(EncodeRule, "matches", lambda rule, name: calls.append(name) or matches(rule, name))
    assert len(ineffective_rules(rules, steps)) == 30
    assert len(calls) == 30 * 30


def test_a_disk_without_space_is_an_error_before_the_first_byte(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(path)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1000))
    size = squish.convert(path, path.with_name("out.box"), dry_run=True).size
    with pytest.raises(squish.WriteError) as caught:
        squish.convert(path, path.with_name("out.box"))
    assert (caught.value.code, caught.value.file) == ("space", str(path.with_name("out.box")))
    assert (caught.value.expected, caught.value.found) == (f"{size:,} bytes", "1,000 bytes free")
    assert list(path.parent.iterdir()) == [path]
    (note,) = squish.convert(path, path.with_name("out.box"), dry_run=True).notes
    assert "1,000 bytes free" in note
