"""One vocabulary: an option has one text in all commands; old names work, unlisted, with one warning."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("typer")

import typer.main
from squish_cli import main
from squish_cli.api import Answer
from squish_cli.app import build
from squish_cli.options import App
from squish_cli.spellings import OLD_OPTIONS, normalize

import squish_core as squish

OWN_TEXTS = {
    ("diff", "--names"), ("activations", "--names"), ("tune", "--encode"), ("tune", "--to"), ("needs", "--backend"),
    ("matrix", "--backend"), ("cache build", "--delete-source"), ("activations", "--output"), ("tune", "--output"),
    ("new-plugin", "--output"), ("edit", "--output"), ("report", "--output"), ("info", "--by"), ("hash", "--manifest"),
    ("hash", "--signature"), ("prove", "--all"), ("prove", "--imatrix"), ("install", "--dry-run"), ("card", "--base"),
    ("merge", "--output"), ("tune", "--state"),
}  # fmt: skip
"""Options that mean something of the command's own: other values, or another file."""


def parameters(command: Any, name: str = "") -> Any:
    """(command, parameter) of all commands."""
    for child, inner in getattr(command, "commands", {}).items():
        yield from parameters(inner, f"{name} {child}".strip())
    yield from ((name, parameter) for parameter in command.params if parameter.param_type_name == "option")


COMMANDS = typer.main.get_command(build([]))


def test_an_option_has_one_text_in_all_commands() -> None:
    texts = defaultdict[str, dict[str, str]](dict)
    for command, parameter in parameters(COMMANDS):
        option = max(parameter.opts, key=len)
        if (command, option) not in OWN_TEXTS:
            texts[option].setdefault(f"{parameter.metavar} {parameter.help}", command)
    assert {option: found for option, found in texts.items() if len(found) > 1} == {}


def test_every_command_takes_json() -> None:
    json = {command for command, parameter in parameters(COMMANDS) if "--json" in parameter.opts}
    commands = {command for command, _ in parameters(COMMANDS)} - {""}
    assert commands - json == set()


@pytest.mark.parametrize("examples", [(), ("squish greet x",), ("squish greet x", "squish greet y")])
def test_a_command_takes_json_and_shows_its_examples(examples: tuple[str, ...]) -> None:
    app = App()

    @app.command("greet", examples=examples)
    def greet(name: str) -> Answer:
        return Answer({"name": name}, [f"hello {name}"])

    command = typer.main.get_command(app)
    assert [option for _, parameter in parameters(command) for option in parameter.opts if option == "--json"]
    assert command.main(["x", "--json"], standalone_mode=False) == greet("x") == Answer({"name": "x"}, ["hello x"])
    title = "Examples" if len(examples) > 1 else "Example"
    assert command.epilog == ("\n  ".join([f"\b\n{title}:", *examples]) if examples else None)


def test_old_names_are_not_listed() -> None:
    listed = {(command, option) for command, parameter in parameters(COMMANDS) for option in parameter.opts}
    for command, names in OLD_OPTIONS.items():
        for old, new in names.items():
            assert (command, new) in listed
            assert (command, old) not in listed


@pytest.mark.parametrize(("command", "old", "new"), [
    (command, old, new) for command, names in OLD_OPTIONS.items() for old, new in names.items()
])  # fmt: skip
@pytest.mark.parametrize("form", ["{} x", "{}=x"])
def test_an_old_name_is_todays_with_one_warning(
    command: str, old: str, new: str, form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert normalize([command, "FILE", *form.format(old).split()]) == [command, "FILE", *form.format(new).split()]
    assert capsys.readouterr().err == f"warning: {old} is now {new}\n"
    assert normalize([command, "--", old]) == [command, "--", old]


@pytest.mark.parametrize(
    ("words", "result"),
    [
        (["m", "--draft"], ["m", "--draft="]), (["m", "--draft", "--greedy"], ["m", "--draft=", "--greedy"]),
        (["m", "--draft", "head"], ["m", "--draft", "head"]), (["m", "--draft=head"], ["m", "--draft=head"]),
        (["m", "--draft", "--", "-x"], ["m", "--draft=", "--", "-x"]),
    ],
)  # fmt: skip
def test_draft_takes_the_next_word_unless_that_is_an_option(words: list[str], result: list[str]) -> None:
    assert normalize(["run", *words]) == ["run", *result]


def test_old_lines_still_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    squish.save("m.safetensors", {"w": np.ones((64, 64), np.float32), "v": np.ones(4, np.float32)})
    Path("recipe.toml").write_text('encode = ["int8"]\n')
    for line in (
        "plan m.safetensors --policy smallest",
        "convert m.safetensors a.zt --policy-file recipe.toml",
        "convert m.safetensors b.zt --plan plan.json",
        "cp m.safetensors c.zt --tensors v",
        "new-plugin zeta --out new",
    ):
        assert main(line.split()) == 0, line
        old = next(word for word in line.split() if word.startswith("--"))
        assert capsys.readouterr().err.startswith(f"warning: {old} is now ")
    assert list(squish.open("c.zt")) == ["v"]
    assert Path("new/zeta/pyproject.toml").is_file()
