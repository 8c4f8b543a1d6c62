"""What the command line says to a stranger: lists, links, usage errors, widths."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve

pytest.importorskip("typer")

from squish_cli import main
from squish_cli.output import error_line, option
from squish_convert.compare.diff import Difference, difference_lines
from squish_convert.report import conversion_lines

import squish_core
from squish_core import convert, text
from squish_core.api import Dropped, Problem
from squish_core.model import Index

LONG = "model.layers.0.a_module_with_a_name.and_another.inside_of_it.projection.weight"
VALUES = np.linspace(-1, 1, 48, dtype=np.float32).reshape(6, 8)
TENSORS = {"small": VALUES[:2], LONG: toys.rows(VALUES), "large": np.ones(400, np.float32)}


@pytest.fixture
def squish(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command with the toys alone; gives code, out, err."""
    from squish_core.plugins import registry as plugins

    monkeypatch.setattr(plugins, "_default", toys.registry())

    def run(*words: object) -> Any:
        code = main([str(word) for word in words])
        out, err = capsys.readouterr()
        return SimpleNamespace(code=code, out=out, err=err, lines=out.splitlines())

    return run


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "m.box").write_bytes(toys.box(TENSORS))
    return tmp_path / "m.box"


# ls


def test_ls_ends_with_a_total(squish: Any, path: Path) -> None:
    stored = sum(values.nbytes for values in (VALUES[:2], np.ones(400, np.float32))) + 48 + 6 * 4
    bits = 8 * stored / (16 + 48 + 400)
    assert squish("ls", path).lines[-1] == (
        f"3 tensors in {path}: 464 parameters, {stored / 1000:.4g} kB, {bits:.2f} bits each"
    )
    assert squish("ls", path, "small").lines[-1].startswith(f"1 tensor in {path}: 16 parameters, 64 B")


@pytest.mark.parametrize(
    ("key", "names"),
    [
        ("file", ["small", LONG, "large"]),
        ("name", ["large", LONG, "small"]),
        ("size", ["large", LONG, "small"]),
        ("bits", ["small", "large", LONG]),
    ],
)
def test_ls_sorts(squish: Any, path: Path, key: str, names: list[str]) -> None:
    assert [line.split()[-1] for line in squish("ls", path, "--sort", key).lines[1:-1]] == names
    data = json.loads(squish("ls", path, "--sort", key, "--json").out)
    assert [tensor["name"] for tensor in data["tensors"]] == names


def test_an_unknown_order_is_a_usage_error(squish: Any, path: Path) -> None:
    ran = squish("ls", path, "--sort", "age")
    assert ran.code == 2
    assert ran.err == "error: no such --sort (expected file, name, size, bits, found 'age') [usage]\n"


def test_ls_long_lists_the_offset_of_each_part(squish: Any, path: Path) -> None:
    ran = squish("ls", "-l", path, LONG)
    rows = [line.split() for line in ran.lines[1:-1]]
    assert [row[-1] for row in rows[:1]] == [LONG]
    assert [" ".join(row[-5:-1]) for row in rows[1:]] == ["codes: m.box at byte", "scale: m.box at byte"]
    parts = json.loads(squish("ls", "--long", path, LONG, "--json").out)["tensors"][0]["parts"]
    assert [(part["role"], part["dtype"], part["size"]) for part in parts] == [
        ("codes", "i8", 48),
        ("scale", "f32", 24),
    ]
    assert [int(row[-1].replace(",", "")) for row in rows[1:]] == [part["offset"] for part in parts]


# links


def test_a_link_is_named_as_one(squish: Any, path: Path) -> None:
    link = path.with_name("link.box")
    link.symlink_to(path.name)
    assert squish("ls", link).lines[-1].startswith(f"3 tensors in {link} (a link to {path}): ")
    assert squish("info", link).lines[0].split(maxsplit=1)[1] == f"{link} (a link to {path})"
    assert json.loads(squish("info", link, "--json").out)["link"] == str(path)
    assert json.loads(squish("info", path, "--json").out)["link"] is None
    assert "a link to" not in squish("info", path).out + squish("ls", path).out


# usage errors


@pytest.mark.parametrize(
    "words",
    [
        ("plan", "FILE", "--prefer", "best"),
        ("plan", "FILE", "--op", "sing"),
        ("plan", "FILE", "--backend", "nowhere"),
        ("ls", "FILE", "--format", "nowhere"),
        ("convert", "FILE", "OUT", "--to", "toy.box:color=red"),
        ("convert", "FILE", "OUT", "--encode", "f16:x=1"),
        ("convert", "FILE", "OUT", "--encode", "(("),
        ("convert", "FILE", "OUT", "--names", "mlx"),
        ("convert", "FILE", "OUT", "--imatrix", "MEANS"),
    ],
    ids=" ".join,
)
def test_a_usage_error_blames_no_file_and_no_tensor(squish: Any, path: Path, words: tuple[str, ...]) -> None:
    places = {"FILE": path, "OUT": path.with_name("out.box"), "MEANS": path.with_name("means.box")}
    places["MEANS"].write_bytes(toys.box({"small": np.ones(VALUES.shape[1], np.float32)}))
    ran = squish(*(places.get(word, word) for word in words), "--json")
    error = json.loads(ran.out)["error"]
    assert (ran.code, error["file"], error["tensor"]) == (2, None, None)


def test_an_operation_that_does_not_fit_is_reported_per_tensor(squish: Any, path: Path) -> None:
    ran = squish("plan", path, "--op", "linear")
    assert ran.code == 0
    assert "large\n  none     its rank does not fit the operation" in ran.out


def test_arguments_are_written_as_the_command_line_has_them(squish: Any, path: Path) -> None:
    assert "Pass --to, one of toy.box." in squish("convert", path, path.with_name("out")).err
    again = squish("convert", path, path.with_name("out.box"), "--encode", "toy.rows", "--only", "small")
    assert again.code == 0
    quantized = path.with_name("q.box")
    quantized.write_bytes(toys.box({"w": toys.rows(VALUES, "toy.shifted")}))
    ran = squish("convert", quantized, path.with_name("out.box"), "--encode", "toy.rows")
    assert (ran.code, "allow it with --requantize." in ran.err) == (2, True)
    assert squish("convert", quantized, path.with_name("out.box"), "--encode", "toy.rows", "--requantize").code == 0


@pytest.mark.parametrize(
    ("template", "python", "shell"),
    [
        (
            "Give {option:to=...}, or {option:encode=f32}.",
            "Give to=..., or encode='f32'.",
            "Give --to, or --encode f32.",
        ),
        ("with {option:activations=FILE}.", "with activations=FILE.", "with --imatrix FILE."),
        ("({option:deep=True} reads them)", "(deep=True reads them)", "(--deep reads them)"),
        ("({option:unset=KEY})", "(unset='KEY')", "(--unset KEY)"),
        ("leave out {option:rename}.", "leave out rename=.", "leave out --names."),
        ("({option:assets=DIR}, {option:only})", "(assets=DIR, only=)", "(--assets DIR, --only)"),
        ("{option:encode=a{0}=keep}", "encode='a{0}=keep'", "--encode a{0}=keep"),
        ("mx:format=E4M3, to=x", "mx:format=E4M3, to=x", "mx:format=E4M3, to=x"),
    ],
)
def test_an_option_in_a_text_is_spelled_for_its_reader(
    template: str, python: str, shell: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert text.words(template) == python
    monkeypatch.setattr(text, "spelling", option)
    assert text.words(template) == shell


def test_stats_is_the_old_name_of_imatrix(squish: Any, path: Path) -> None:
    ran = squish("convert", path, path.with_name("out.box"), "--stats", path)
    assert ran.err.startswith(f"warning: --stats is now --imatrix\nerror: {path}: ")
    assert "--stats" not in squish("convert", "--help").out


def test_the_help_explains_policies_and_operations(squish: Any) -> None:
    text = " ".join(squish("plan", "--help").out.split())
    for word in (
        "smallest (least memory",
        "exact (backends that round neither",
        "linear (y = x W^T)",
        "embed (rows by token id)",
    ):
        assert word in text


def test_verify_of_a_wrong_argument_is_a_usage_error(squish: Any, path: Path) -> None:
    ran = squish("verify", path, "--format", "toy.box:color=red", "--json")
    assert (ran.code, json.loads(ran.out)["error"]["code"]) == (2, "option")


def test_an_unknown_operation_is_answered_with_all_of_them(squish: Any, path: Path) -> None:
    error = json.loads(squish("plan", path, "--op", "sing", "--json").out)["error"]
    assert (error["code"], error["expected"]) == ("op", "linear, embed, experts, dense")


def test_problems_name_options_and_have_no_empty_place(
    squish: Any, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_index = toys.Box.read_index

    def read_with_problem(*arguments: Any) -> Index:
        message = "read it with {option:format=toy.box:x=1}"
        problem = Problem(code="toy", severity="note", where="", message=message)
        return evolve(read_index(*arguments), problems=(problem,))

    monkeypatch.setattr(toys.Box, "read_index", read_with_problem)
    assert squish("info", path).lines[-1] == "  note: read it with --format toy.box:x=1"
    assert (
        json.loads(squish("info", path, "--json").out)["problems"][0]["message"] == "read it with --format toy.box:x=1"
    )


# reports


def test_the_verdict_of_a_diff_comes_first() -> None:
    difference = Difference(a="a", b="b", tensors=(), meta=("k: differs",), assets=(), mapped="compared as llama")
    verdict, *_ = difference_lines(difference)
    assert verdict.startswith("differs: ")
    assert verdict.endswith("; compared as llama")


def test_a_diff_names_shapes_only_where_they_differ(squish: Any, path: Path) -> None:
    other = path.with_name("other.box")
    other.write_bytes(toys.box({"small": VALUES[:2] * 2, LONG: VALUES[:3], "large": np.ones(400, np.float32)}))
    rows = {line.split()[0]: line for line in squish("diff", path, other, "--quiet").lines[2:]}
    assert "[" not in rows["differs"]
    assert "[6, 8]" in rows["shape"]
    assert "[3, 8]" in rows["shape"]


def test_a_diff_has_columns_of_errors_only_if_a_tensor_has_one(squish: Any, path: Path) -> None:
    other = path.with_name("other.box")
    other.write_bytes(toys.box({"more": VALUES, "larger": np.ones(400, np.float32)}))
    assert squish("diff", path, other, "--quiet").lines[1].split() == ["state", "stored", "as", "name"]


def test_what_is_not_carried_over_shares_a_line_by_kind_and_reason(squish: Any, path: Path) -> None:
    dropped = [Dropped("metadata", key, "not text") for key in "abc"]
    dropped += [Dropped("asset", "d"), Dropped("part", "scale", where="w")]
    report = evolve(convert(path, path.with_name("out.box"), registry=toys.registry()), dropped=tuple(dropped))
    lines = list(conversion_lines(report))
    assert lines[lines.index("not carried over:") + 1 :] == [
        "  metadata (not text): a, b, c",
        "  asset d",
        "  w: part scale",
    ]


# widths


@pytest.mark.parametrize("width", [80, 100, 160])
def test_every_command_fits_the_terminal(squish: Any, path: Path, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    other, out = path.with_name("other.box"), path.with_name("out.box")
    other.write_bytes(toys.box({"small": VALUES[:2] * 2, LONG: VALUES}))
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(path.parent)
    for words in (
        ("ls", path.name),
        ("ls", "-l", path.name),
        ("info", path.name),
        ("info", path.name, "*"),
        ("plan", path.name),
        ("verify", path.name, "--deep"),
        ("diff", path.name, other.name),
        ("convert", path.name, out.name, "--encode", "f16"),
        ("formats",),
        ("formats", "toy.box"),
        ("codecs",),
        ("backends",),
        ("plugins",),
        ("doctor",),
        ("doctor", "."),
    ):
        lines = squish(*words).lines
        assert max(map(len, lines)) <= width, words
        assert LONG in "".join(line.strip() for line in lines) or LONG not in " ".join(words)


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize(
    "words",
    [("info", "some/folder/that/does/not/exist/at/all/model.gguf"), ("plan", "m.box", "--prefer", "best"),
     ("convert", "m.box", "out.none"), ("ls", "--sort", "nonsense", "m.box"), ("convert", "m.box", "--imatrix")],
)  # fmt: skip
def test_errors_fit_the_terminal(
    squish: Any, path: Path, monkeypatch: pytest.MonkeyPatch, width: int, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(path.parent)
    monkeypatch.setenv("COLUMNS", "1000")
    whole = squish(*words)
    assert (whole.code, whole.err.count("\n")) == (2, 1)
    monkeypatch.setenv("COLUMNS", str(width))
    first, *rest = lines = squish(*words).err.splitlines()
    assert max(map(len, lines)) <= width
    assert first.startswith("error: ")
    assert all(line.startswith("  ") for line in rest)
    assert "".join(first.split()) + "".join("".join(line.split()) for line in rest) == "".join(whole.err.split())
    for line in lines[:-1]:  # no word is cut
        assert line.split()[-1] in whole.err.split() or line[-1] in "./,:"


def test_metadata_is_printed_as_it_is(squish: Any, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_bytes(toys.box(TENSORS, {"chat": "word " * 40 + "end"}))
    monkeypatch.setenv("COLUMNS", "80")
    assert squish("info", path, "--meta", "chat").out == "word " * 40 + "end\n"


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("ls", "missing.box"), "missing"),
        (("ls",), "usage"),
        (("convert", "{model}", "out.none"), "format"),
        (("plan", "{model}", "--prefer", "best"), "policy"),
        (("plan", "{model}", "none"), "pattern"),
        (("lss", "{model}"), "usage"),
    ],
)
def test_every_error_line_ends_with_its_code(squish: Any, path: Path, words: tuple[str, ...], code: str) -> None:
    ran = squish(*(word.format(model=path) for word in words))
    assert (ran.code, ran.err.rstrip("\n").rpartition(" ")[2]) == (2, f"[{code}]")
    ran = squish(*(word.format(model=path) for word in words), "--json")
    assert json.loads(ran.out)["error"]["code"] == code


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(28, "No space left on device"), "error: [Errno 28] No space left on device [os]"),
        (squish_core.CodecError("entries out of order [P3]", code="P3"), "error: entries out of order [P3]"),
        (squish_core.SquishError("of a plugin without codes"), "error: of a plugin without codes"),
    ],
)
def test_the_code_is_printed_once(error: Exception, line: str) -> None:
    assert error_line(error) == line
