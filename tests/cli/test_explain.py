"""`squish explain`: every word of every table, near words, and its JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("typer")

from squish_cli import command_table, complete, explain, main, settings

import squish_core as squish
from squish_core.plugins import catalog

TABLES = Path(complete.TABLE).parent
KINDS = {"container": "format", "codec": "codec", "backend": "backend", "family": "family", "allocator": "preset"}


def words_of_tables() -> Iterator[tuple[str, str]]:
    """Yield (kind, word) of each table, read from where it is written."""
    registry = squish.registry()
    yield from (("error code", code) for code in json.loads((TABLES / "errors.json").read_text("utf-8")))
    glossary = json.loads((TABLES / "glossary.json").read_text("utf-8"))
    yield from (("word of the glossary", word) for words in glossary for word in words.split(", "))
    for kind, name in KINDS.items():
        yield from ((name, entry.id) for entry in registry.find(kind))
        yield from ((name, each) for each in catalog.table().get(kind, ()))
    for entry in (*registry.find("codec"), *registry.find("encoder"), *registry.find("container")):
        yield from (("encoding", name) for name in entry.info.aliases)
    for entry in registry.find("container", can_write=True):
        yield from (("preset", name) for name in registry.container(entry.id).presets())
    table = command_table.command_table(registry)
    yield from (("command", name) for name in table["commands"])
    for facts in (table, *table["commands"].values()):
        yield from (("option", name) for option in facts["options"] for name in option["names"])
    yield from (("setting", setting.name) for setting in settings.SETTINGS)


def test_every_word_of_the_tables_is_explained() -> None:
    for function in vars(explain).values():
        if hasattr(function, "cache_clear"):  # another test may have declared a family since
            function.cache_clear()
    words = set(words_of_tables())
    kinds = {word: {each.kind for each in explain.explanations(word)} for _, word in words}
    assert len(words) > 600
    assert not [(kind, word) for kind, word in sorted(words) if kind not in kinds[word]]


def test_every_explanation_says_something() -> None:
    for kind, word in explain.all_words():
        [meaning] = [each for each in explain.explanations(word) if each.kind == explain.KINDS[kind]()[word]().kind][:1]
        assert len(meaning.meaning) > 3, word
        assert meaning.lines()


def test_every_word_that_is_completed_is_explained() -> None:
    offered = set(complete.explained(complete.table()))
    assert not [word for word in offered if not explain.explanations(word)]


def test_cures_name_commands_and_options_that_exist() -> None:
    rows = json.loads((TABLES / "errors.json").read_text("utf-8"))
    commands = command_table.command_table(squish.registry())["commands"]
    lines = [
        (code, line.split()) for code, row in rows.items() for line in re.findall(r"`squish ([^`]+)`", row["cure"])
    ]
    assert len(lines) > 30
    words_of_squish = {*commands, "COMMAND"}
    assert not [(code, words) for code, words in lines if not words_of_squish & {words[0], " ".join(words[:2])}]
    options = [(code, each) for code, row in rows.items() for each in re.findall(r"--[a-z-]+", row["cure"])]
    words_of_squish |= {name for facts in commands.values() for option in facts["options"] for name in option["names"]}
    assert not [(code, option) for code, option in options if option not in {*words_of_squish, "--help"}]


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        (("missing",), {"error code"}),
        (("[missing]",), {"error code"}),
        (("MISSING",), {"error code"}),
        (("q4_k_m",), {"preset"}),
        (("q3_k",), {"preset", "encoding"}),
        (("--encode",), {"option"}),
        (("--json",), {"option"}),
        (("-o",), {"option"}),
        (("encode",), {"option", "error code"}),
        (("cache list",), {"command"}),
        (("SQUISH_THREADS",), {"setting"}),
        (("filter",), {"error code", "word of the glossary"}),
        (("qwen3",), {"family"}),
        (("s3",), {"source of URLs"}),
        (("byte codec",), {"word of the glossary"}),
    ],
)
def test_a_word_has_all_its_meanings(words: tuple[str, ...], kinds: set[str]) -> None:
    assert {each.kind for each in explain.explanations(*words)} == kinds


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["explain", *words])
    return (code, *capsys.readouterr())


def test_a_code_has_cause_cure_and_example_printed(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "digest")
    assert code == 0
    assert out.splitlines()[0] == "digest: error code"
    assert [line.split()[0] for line in out.splitlines()[2:]] == ["cure", "example", "raised"]


def test_a_preset_names_the_types_of_tensors_printed(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "q4_k_m")
    rows = {line.split()[0]: line.split()[1:] for line in out.splitlines()[2:]}
    assert (rows["matrices"], rows["output.weight"], rows["attn_v"][0]) == (["q4_k"], ["q6_k"], "q6_k")


@pytest.mark.parametrize("option", ["--encode", "-o", "--json-lines", "--help-me"])
def test_an_option_is_a_word(capsys: pytest.CaptureFixture[str], option: str) -> None:
    code, out, err = run(capsys, option)
    assert (code, bool(out)) == ((0, True) if explain.explanations(option) else (2, False))
    assert "No such option" not in err


@pytest.mark.parametrize(("word", "near"), [("mising", "missing"), ("q4km", "q4_k_m"), ("--encod", "--encode")])
def test_near_words_are_proposed_text(capsys: pytest.CaptureFixture[str], word: str, near: str) -> None:
    code, _, err = run(capsys, word)
    assert code == 2
    assert near in err
    assert err.endswith("[usage]\n")


def test_without_a_word_it_lists_the_kinds(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys)
    assert code == 0
    assert all(kind in out for kind in explain.KINDS)
    data: Any = json.loads(run(capsys, "--json")[1])
    assert data["kinds"].keys() == explain.KINDS.keys()


def test_its_json_has_every_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    data = json.loads(run(capsys, "encode", "--json")[1])
    assert {each["kind"] for each in data["explanations"]} == {"error code", "option"}
    assert data["explanations"][0].keys() == {"kind", "word", "meaning", "facts"}
