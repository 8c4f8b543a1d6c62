"""Runs the blocks of a documentation page, in order, in a folder with the models that it names.

Each block is one of these; another language is an error:

- `sh`: commands, each of which must succeed; one that ends with `# exit 1` must end with that status.
- `console`: commands after `$`, and what they print. Numbers that depend on the size of a model may differ, and `...`
  stands for any text.
- `python`: code in one namespace for the page, or a session with `>>>`.
- `yaml`: a workflow; its `- run:` lines are commands.
- `json`, `toml`: data.

`https://example.org/` is a server of the folder. A block whose first line is `# needs: NAME` runs where NAME is present
(`NEEDS`); elsewhere its syntax is checked, and that the commands and options of `squish` exist.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE
from importlib.util import find_spec
from pathlib import Path

import yaml
from squish_cli import app as cli
from squish_cli import spellings
from sybil import Document, Example, Lexeme, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser
from web_server import serving

ROOT = Path(__file__).resolve().parents[2]


def installed(module: str) -> Callable[[], bool]:
    return lambda: find_spec(module) is not None


def runnable(program: str) -> Callable[[], bool]:
    return lambda: shutil.which(program) is not None


def has_cuda() -> bool:
    return find_spec("torch") is not None and importlib.import_module("torch").cuda.is_available()


NEEDS: dict[str, Callable[[], bool]] = {
    "torch": installed("transformers"),
    "mlx-lm": runnable("mlx_lm.generate"),
    "llama.cpp": runnable("llama-cli"),
    "onnxruntime": installed("onnxruntime"),
    "dask": installed("distributed"),
    "model-signing": installed("model_signing"),
    "an NVIDIA GPU": has_cuda,
    "a Mac": lambda: sys.platform == "darwin",
    "a draft head": lambda: False,
    "two terminals": lambda: False,
    "the network": lambda: False,
}
"""What a block may need -> whether it is here. Nothing is downloaded in tests."""

SERVER = "https://example.org"
NEED = re.compile(r"# needs: ([^;\n]+)")
STATUS = re.compile(r"\s+# exit (\d+)$")
SHELL_ONLY = re.compile(r"[|<>;&$`*?]|^(?!squish )")
NUMBER = re.compile(
    r"(?:\d[\d,]*\.\d+(?:e[-+]?\d+)?|\d{1,3}(?:,\d{3})+|\d+(?= ?(?:[kMGT]?B|ms|s)\b))(?: ?(?:[kMGT]?B|ms|s)(?:/s)?\b)?"
)
INSTALLS = re.compile(r"(sudo|pip|pipx|uv|uvx|conda|brew|apt|curl|wget|git)\b")
PROGRESS = re.compile(r"^\w+ing: .* \(\d+%\), .*\n", re.MULTILINE)
"""What slow commands print now and then."""
RUN_LINE = re.compile(r"^ *- run: (.*)$", re.MULTILINE)


def needed(block: str) -> str | None:
    """What a block needs beyond the plugins, from its first line."""
    match = NEED.match(block)
    return match[1].strip() if match else None


def is_present(need: str | None) -> bool:
    return need is None or NEEDS[need]()


def run_page(path: Path) -> list[str]:
    """Run a page in the current folder, and return the needs of blocks that could only be checked."""
    unmet: list[str] = []
    evaluators: dict[str, Callable[[str], None]] = {
        "sh": run_shell,
        "console": run_console,
        "yaml": run_workflow,
        "json": json.loads,
        "toml": tomllib.loads,
    }

    def evaluator(run: Callable[[str], None]) -> Callable[[Example], None]:
        def evaluate(example: Example) -> None:
            block = str(example.parsed)
            if is_present(need := needed(block)):
                run(block)
            else:
                unmet.append(str(need))
                check_lines(block)

        return evaluate

    parsers = [CodeBlockParser(language, evaluator(run)) for language, run in evaluators.items()]
    document = Sybil(parsers=[*parsers, PythonBlocks(unmet)]).parse(path)
    check_languages(document, {*evaluators, "python"})
    with serving() as address:
        for example in document.examples():
            if isinstance(example.parsed, Lexeme):
                text = example.parsed.replace(SERVER, address)
                example.parsed = Lexeme(text, example.parsed.offset, example.parsed.line_offset)
            try:
                example.evaluate()
            except AssertionError as error:
                raise AssertionError(f"{path.name}:{example.line}: {error}") from None
    return unmet


class PythonBlocks(PythonCodeBlockParser):
    """Python blocks: run, or compiled if what they need is absent."""

    def __init__(self, unmet: list[str]) -> None:
        super().__init__(doctest_optionflags=ELLIPSIS | NORMALIZE_WHITESPACE)
        self.unmet = unmet

    def __call__(self, document: Document) -> Iterator[object]:
        for region in super().__call__(document):
            if not is_present(need := needed(str(region.parsed))):
                self.unmet.append(str(need))
                region.evaluator = lambda example: check_python(str(example.parsed))
            yield region


def check_languages(document: Document, languages: set[str]) -> None:
    """Every fence states a language whose blocks are run."""
    stated = re.findall(r"^ *```(.*)$", document.text, re.MULTILINE)[::2]
    others = [language for language in stated if language not in languages]
    assert not others, f"{document.path}: blocks of {others} would not be run"


def command_lines(block: str) -> list[str]:
    """The commands of a shell block, without comments; a continued line is one command."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(r"\s+# (?!exit \d+$).*$", "", line) for line in lines if line.strip() and line[0] != "#"]


def run_shell(block: str) -> None:
    """Run the commands of a block; those of several lines (a loop) together."""
    lines = command_lines(block)
    if any(line.startswith((" ", "do", "done")) for line in lines):
        lines = ["\n".join(lines)]
    for line in lines:
        run_line(line)


def run_line(line: str) -> str:
    """Run a command and return what it prints; a `squish` command without shell syntax in this process."""
    status = int(match[1]) if (match := STATUS.search(line)) else 0
    line = STATUS.sub("", line)
    assert not INSTALLS.match(line), f"`{line}` changes this machine: such a block needs the network"
    if SHELL_ONLY.search(re.sub(r"'[^']*'|\"[^\"]*\"", "", line)):
        code, printed = run_in_shell(line)
    else:
        code, printed = run_here(shlex.split(line)[1:])
    assert code == status, f"`{line}` ended with {code}:\n{printed}"
    return printed


def run_in_shell(line: str) -> tuple[int, str]:
    bash = ["bash", "-e", "-o", "pipefail", "-c", line]
    done = subprocess.run(bash, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    return done.returncode, done.stdout


def run_here(words: list[str]) -> tuple[int, str]:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed), warnings.catch_warnings():
        warnings.simplefilter("default")
        code = cli.run(words)
    return code, printed.getvalue()


def run_console(block: str) -> None:
    """Run the commands after `$`, and compare what they print."""
    for session in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        line, _, expected = session.replace("\\\n", " ").partition("\n")
        printed = run_line(line)
        printed = PROGRESS.sub("", printed)
        assert matches(expected, printed), f"`{line}` printed\n{printed}\ninstead of\n{expected}"


def matches(expected: str, printed: str) -> bool:
    """Whether a text is as expected, but for sizes, times and what `...` stands for."""
    parts = [re.escape(simplified(part).strip()) for part in expected.split("...")]
    return re.fullmatch(".*".join(parts), simplified(printed).strip()) is not None


def simplified(text: str) -> str:
    return re.sub(r"\s+", " ", NUMBER.sub("#", text))


def run_workflow(block: str) -> None:
    """Run what a block of YAML runs: lines of a workflow, our action with its inputs, or our hooks for pre-commit."""
    facts = yaml.safe_load(block)
    lines = RUN_LINE.findall(block)
    steps = [step for job in facts.get("jobs", {}).values() for step in job["steps"]]
    for step in steps:
        if step.get("uses", "").startswith("squish-weights/squish@"):
            inputs = [f"{name.upper()}={shlex.quote(value)}" for name, value in step["with"].items()]
            lines.append(f"{' '.join(inputs)} {shlex.quote(sys.executable)} {ROOT}/.github/action/check.py")
    hooks = {hook["id"]: hook for hook in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text("utf-8"))}
    for each in (hook["id"] for repository in facts.get("repos", ()) for hook in repository["hooks"]):
        lines.append(f"{hooks[each]['entry']} *.gguf")
    assert lines, "a block of YAML that runs nothing"
    run_shell("\n".join(lines))


def check_lines(block: str) -> None:
    """Check the syntax of a shell block or of a session, and that its `squish` commands and options exist."""
    commands = re.findall(r"^\$ (.*)$", block.replace("\\\n", " "), re.MULTILINE) or command_lines(block)
    done = subprocess.run(["bash", "-n"], input="\n".join(commands), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for line in commands:
        for command in re.split(r"\||&&|;", STATUS.sub("", line)):
            words = shlex.split(command)
            if "squish" in words:
                check_options(words[words.index("squish") + 1 :])


def check_options(words: list[str]) -> None:
    """Parse a command line as `squish` does, without running it."""
    import typer

    words = spellings.normalize([word for word in words if word != "&"])
    group = typer.main.get_command(cli.build(words))
    with group.make_context("squish", list(words), resilient_parsing=True) as context:
        name, command, rest = group.resolve_command(context, list(words))
        with command.make_context(name, [], resilient_parsing=True) as inner:
            inner.resilient_parsing = False
            command.make_parser(inner).parse_args(list(rest))


def check_python(code: str) -> None:
    """Compile a block, and look up what it takes from Squish's modules."""
    code = re.sub(r"^(>>>|\.\.\.) ?", "", code, flags=re.MULTILINE) if code.startswith(">>>") else code
    tree = ast.parse(code)
    modules = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            own = [each for each in node.names if each.name.startswith("squish")]
            modules |= {each.asname or each.name: importlib.import_module(each.name) for each in own}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            module = modules[node.value.id]
            assert node.attr in {*dir(module), *getattr(module, "__all__", ())}, f"{module.__name__} has no {node.attr}"
