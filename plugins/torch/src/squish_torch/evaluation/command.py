"""`squish eval` and `squish activations`."""

from __future__ import annotations

from typing import Annotated

import typer

from squish_core.api import Answer

from ..libraries import required

EVAL_EXAMPLES = (
    "squish eval q4.gguf --text wiki.txt",
    "squish eval q4.gguf --against model.safetensors --text wiki.txt --json",
    "squish eval q4.gguf --against model.safetensors --text wiki.txt --by layer",
)
ACTIVATIONS_EXAMPLES = (
    "squish activations model.gguf --text calibration.txt -o imatrix.gguf",
    "squish convert model.gguf small.gguf --encode q3_k --imatrix imatrix.gguf",
)


def eval_model(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A file or folder of any format.")],
    text: Annotated[str, typer.Option("--text", metavar="FILE", help="Text to measure on, in UTF-8.")],
    against: Annotated[
        str | None, typer.Option("--against", metavar="BASE", help="Compare with this model, in any format.")
    ] = None,
    window: Annotated[int, typer.Option("--window", metavar="N", help="Tokens per window.")] = 512,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="List what each tensor costs: its KL in the base. Needs --against.")
    ] = False,
    by: Annotated[str | None, typer.Option("--by", metavar="layer|kind", help="The same of groups of tensors.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> Answer:
    """Measure perplexity on a text, and KL divergence from a base.

    Scores the second half of each window, as llama.cpp does. Both models run in lockstep, without a file of logits.
    """
    with required():
        from ..generation import set_up
        from .report import evaluate

    set_up()
    evaluation = evaluate(model, text=text, against=against, window=window, by=by or ("tensor" if per_tensor else None))
    return Answer(evaluation.to_dict(), evaluation.lines())


def activations(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="A file or folder of any format.")],
    text: Annotated[str, typer.Option("--text", metavar="FILE", help="Text to run the model on, in UTF-8.")],
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="GGUF file to write.")],
    window: Annotated[int, typer.Option("--window", metavar="N", help="Tokens per window.")] = 512,
    names: Annotated[
        str, typer.Option("--names", metavar="keep|hf|gguf", help="Names of the model's file, or of another layout.")
    ] = "keep",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON document instead of text.")] = False,
) -> Answer:
    """Collect activation statistics (imatrix) of a model on a text.

    Writes what `squish convert --imatrix` and llama-quantize take.
    """
    with required():
        from ..generation import set_up
        from .activations import collect_activations

    set_up()
    count = collect_activations(model, output, text=text, window=window, names=names)
    return Answer({"output": output, "tensors": count}, [f"statistics of {count} matrices in {output}"])
