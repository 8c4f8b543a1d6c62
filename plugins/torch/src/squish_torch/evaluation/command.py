"""`squish eval`, `squish activations` and `squish tune`."""

from __future__ import annotations

import sys
from math import inf, nan
from pathlib import Path
from typing import Annotated, Any

import typer
from squish_cli.api import Answer, Progress, check_page, options

from squish_core.api import ErrorCode, UsageError, atomic_file, parse_bytes, redact

from ..command import Device, Draft, ModelArgument
from ..libraries import required, required_by_command

TEXT: Any = typer.Option("--text", metavar="FILE", help="Text to run the model on, in UTF-8.")
Window = Annotated[int, typer.Option("--window", metavar="N", help="Tokens per window.")]
LLAMA_CPP = "llama.cpp"

EVAL_EXAMPLES = (
    "squish eval q4.gguf --text wiki.txt",
    "squish eval q4.gguf --against model.safetensors --text wiki.txt --json",
    "squish eval q4.gguf --against model.safetensors --text wiki.txt --by layer",
    "squish eval q4.gguf --against model.safetensors --text wiki.txt --per-tensor --scheduler local:4",
    "squish eval model.squizd --text wiki.txt --limit 4 --draft",
    "squish eval q4.gguf --task questions.yaml",
    "squish eval q4.gguf --text wiki.txt --device cuda",
)
ACTIVATIONS_EXAMPLES = (
    "squish activations model.gguf --text calibration.txt -o imatrix.gguf",
    "squish convert model.gguf small.gguf --encode q3_k --imatrix imatrix.gguf",
)
TUNE_EXAMPLES = (
    "squish tune model.safetensors --target bpw=4.5 --text calibration.txt -o recipe.toml",
    "squish tune model.safetensors --to gguf --target size=700MB --encode q8_0 --encode q4_k --text calibration.txt",
    "squish convert model.safetensors small.zt --recipe recipe.toml",
)
STATE = ".state"
"""Suffix of the state file of `tune`, beside the recipe."""


def eval_model(
    model: ModelArgument,
    text: Annotated[str | None, TEXT] = None,
    task: Annotated[
        list[str] | None,
        typer.Option("--task", metavar="NAME|YAML", help="A task of lm-eval with local data. Repeatable."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option("--against", metavar="BASE", help="Compare with this model, or with a logits file of llama.cpp."),
    ] = None,
    window: Window = 512,
    definition: Annotated[
        str,
        typer.Option(
            "--definition",
            metavar="llama.cpp|lm-eval",
            help="Score the second half of each window, or each token once in sliding windows.",
        ),
    ] = LLAMA_CPP,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="Run N windows, or N examples of each task.")
    ] = None,
    per_tensor: Annotated[
        bool, typer.Option("--per-tensor", help="List the cost of each tensor: its KL in the base. Needs --against.")
    ] = False,
    by: Annotated[
        str | None, typer.Option("--by", metavar="layer|kind", help="The same for groups of tensors.")
    ] = None,
    draft: Draft = None,
    logits: Annotated[
        str | None,
        typer.Option("--logits", metavar="OUT", help="Also write the model's logits file in llama.cpp's format."),
    ] = None,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="FILE", help="Keep sums in this file, and continue from it if it exists."),
    ] = None,
    html: options.HtmlPage = None,
    scheduler: options.Scheduler = None,
    device: Device = "cpu",
    quiet: options.Quiet = False,
) -> Answer:
    """Measure perplexity, divergence from a base, and accuracy.

    Perplexity and divergence are measured on a text, accuracy on tasks of lm-eval. Both models run in lockstep,
    window by window, without a logits file.
    """
    check_page(html)
    if text is None and not task:
        raise UsageError(
            "neither a text nor a task is given", expected="--text FILE or --task NAME", code=ErrorCode.USAGE
        )
    if text is None and (against or per_tensor or by or logits or state or html or scheduler or draft is not None):
        raise UsageError("without a text, only --limit and --task apply", expected="--text FILE", code=ErrorCode.USAGE)
    with required_by_command():
        from ..generation import set_up
        from .tasks import evaluate_tasks, task_lines

    set_up()
    data, lines = dict[str, Any](tasks=None, lm_eval=None), list[str]()
    if task:
        with required("transformers"):
            results = evaluate_tasks(model, task, limit=limit, device=device)
        data |= {"file": redact(model), "tasks": results["results"], "lm_eval": results}
        lines += task_lines(results)
    if text is None:
        return Answer(data, lines)
    with required("transformers"):
        from .lockstep import evaluate
        from .page import evaluation_page

    with Progress("evaluating", quiet, "tokens", file=redact(model)) as progress:
        evaluation = evaluate(
            model,
            text=text,
            against=against,
            window=window,
            definition=definition,
            limit=limit,
            by=by or ("tensor" if per_tensor else None),
            draft=draft,
            logits=logits,
            resume=state,
            scheduler=scheduler,
            device=device,
            progress=progress,
        )
    document = data | evaluation.to_dict()
    if html is not None:
        from squish_cli.api import write_page

        write_page(html, evaluation_page(evaluation, document))
    return Answer(document, [*lines, *evaluation.lines()])


def write(path: str, text: str) -> None:
    """Write a text file atomically."""
    with atomic_file(Path(path)) as sink:
        sink.write(text.encode())


def activations(
    model: ModelArgument,
    text: Annotated[str, TEXT],
    output: Annotated[
        str, typer.Option("-o", "--output", metavar="OUT", help="GGUF file to write; .dat for the older format.")
    ],
    window: Window = 512,
    names: Annotated[
        str, typer.Option("--names", metavar="keep|hf|gguf", help="Names of the model's file, or of another layout.")
    ] = "keep",
    scheduler: options.Scheduler = None,
    device: Device = "cpu",
    quiet: options.Quiet = False,
) -> Answer:
    """Collect activation statistics (imatrix) of a model on a text.

    Writes a file for `squish convert --imatrix` and llama-quantize.
    """
    with required_by_command():
        from ..generation import set_up
        from .activations import collect_activations

    set_up()
    with Progress("collecting", quiet, "tokens", file=redact(model)) as progress:
        count = collect_activations(
            model,
            output,
            text=text,
            window=window,
            names=names,
            scheduler=scheduler,
            device=device,
            progress=progress,
        )
    return Answer(
        {"file": redact(model), "target": output, "tensors": count}, [f"statistics of {count} matrices in {output}"]
    )


def parse_target(target: str) -> tuple[float | None, int | None]:
    """Return the bits per weight and the bytes of `--target`, one of them None."""
    kind, _, value = target.partition("=")
    if kind == "size" and (size := parse_bytes(value)):
        return None, size
    try:
        bpw = float(value) if kind == "bpw" else nan
    except ValueError:
        bpw = nan
    if not 0 < bpw < inf:
        raise UsageError(
            "--target takes bpw=N or size=N", found=repr(target), expected="bpw=4.5 or size=12GB", code=ErrorCode.USAGE
        )
    return bpw, None


def announce(seconds: float) -> None:
    """Print how long a measurement will take."""
    hours, minutes = divmod(round(seconds / 60), 60)
    time = f"{hours} h {minutes} min" if hours else f"{minutes} min" if minutes else f"{max(round(seconds), 1)} s"
    print(f"measuring takes about {time}, by a run of the base; an interrupted run continues", file=sys.stderr)


def tune_model(
    model: ModelArgument,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            metavar="bpw=N|size=N",
            help="Most bits per weight of the matrices, scales included, or most bytes of all files: size=12GB.",
        ),
    ],
    text: Annotated[str, TEXT],
    output: Annotated[str, typer.Option("-o", "--output", metavar="OUT", help="Recipe to write.")] = "recipe.toml",
    to: Annotated[
        str, typer.Option("--to", metavar="ID[:key=value,...]", help="Format that the recipe is for.")
    ] = "ztensor",
    encode: Annotated[
        list[str] | None,
        typer.Option("--encode", metavar="SPEC", help="An encoding to choose from: int8, q4_k. Repeatable."),
    ] = None,
    window: Window = 512,
    state: Annotated[
        str | None,
        typer.Option(
            "--state",
            metavar="FILE",
            help="Keep what is measured in this file, and continue from it: for another --target, too. Without it, "
            "OUT.state, until the recipe is written.",
        ),
    ] = None,
    html: options.HtmlPage = None,
    quiet: options.Quiet = False,
) -> Answer:
    """Choose encodings within a budget by measured KL divergence.

    Writes a recipe for `squish convert --recipe`. A budget that cannot be met is an error. States how long it takes;
    a run that was interrupted continues.
    """
    check_page(html)
    bpw, size = parse_target(target)
    with required_by_command():
        from ..generation import set_up
        from .page import tuning_page
        from .tuning import CANDIDATES, tune

    set_up()
    with Progress("measuring", quiet, "tokens", file=redact(model)) as progress:
        tuning = tune(
            model,
            bpw=bpw,
            size=size,
            text=text,
            to=to,
            candidates=tuple(encode or CANDIDATES),
            window=window,
            resume=state or output + STATE,
            progress=progress,
            announce=None if quiet else announce,
        )
    write(output, tuning.policy())
    if state is None:
        Path(output + STATE).unlink()
    lines = [f"{bits:.3f} bits per weight, sum of KL {kl:.3g}" for bits, kl in tuning.frontier]
    lines.append(f"{output}: {tuning.bpw:.3f} bits per weight, mean KL {tuning.kl:.3g} (measured)")
    data = {"file": redact(model), "target": output, **tuning.to_dict()}
    if html is not None:
        from squish_cli.api import write_page

        write_page(html, tuning_page(model, tuning, data))
    return Answer(data, lines)
