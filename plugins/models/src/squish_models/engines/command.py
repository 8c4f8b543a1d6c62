"""`squish check-model`: would an engine load a model."""

from __future__ import annotations

from typing import Annotated

import typer
from attrs import asdict
from squish_cli.api import Answer, Finding, check_output, finding_lines, options

from .check import check_model
from .requirements import ENGINES

EXAMPLES = ("squish check-model model.gguf --for llama.cpp", "squish check-model out/ --for mlx --json")


def check(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A model: a file or a folder.")],
    engine: Annotated[str, typer.Option("--for", metavar="|".join(ENGINES), help="The engine.")],
    output: options.Output = None,
) -> Answer:
    """Check whether an engine would load a model.

    Compares keys, settings, tensors, types and the tokenizer with what the engine needs, and runs nothing.

    Exit codes: 0 it loads, 1 it does not load or computes something else, 2 unknown.
    """
    check_output(output)
    result = check_model(model, engine)
    title = ENGINES[engine].title
    data = {**asdict(result), "loads": result.loads}
    if output is not None:
        found = finding_lines(output, [Finding(result.file, problem) for problem in result.problems])
        return Answer(data, found, 0 if result.loads else 1, verbatim=True)
    findings = [f"  {problem.severity}: {problem.where}: {problem.message}" for problem in result.problems]
    if result.loads:
        return Answer(data, [f"{result.file}: {title} would load it ({result.family})", *findings])
    refused = any(problem.severity == "error" for problem in result.problems)
    verdict = "would not load it" if refused else "would load it and compute otherwise"
    return Answer(data, [f"{result.file}: {title} {verdict}", *findings], 1)
