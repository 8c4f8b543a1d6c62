"""`squish run`: generate text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer
from squish_cli.api import JSON, JSON_LINES, PIECE, TEXT, Answer, Progress, print_document, style

from squish_core.api import Chain, ErrorCode, UsageError, counted, redact

from .libraries import required_by_command

EXAMPLES = (
    "squish run model.gguf --prompt 'What is a codec?'",
    "squish run model.zt --prompt 'Once upon a time' --raw --greedy --max-new-tokens 32",
    "squish run model.gguf --prompt Hello --explain --json",
    "squish run model.squizd --prompt 'What is a codec?' --greedy --draft",
    "squish run model.gguf --prompt 'What is a codec?' --device cuda",
)
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="A file or folder of any format.")]
Device = Annotated[
    str, typer.Option("--device", metavar="NAME", help="Device that the model runs on: cpu, cuda, cuda:1, mps.")
]
Draft = Annotated[
    str | None,
    typer.Option(
        "--draft",
        metavar="[FILE]",
        help="Propose tokens with an EAGLE-3 head: that of this file or folder, or the one in MODEL.",
    ),
]


def run(
    model: ModelArgument,
    prompt: Annotated[str, typer.Option("--prompt", metavar="TEXT", help="Text to continue or answer.")],
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", metavar="N", help="Generate at most N tokens.")
    ] = 128,
    greedy: Annotated[
        bool,
        typer.Option("--greedy", help="Take the most probable token instead of sampling as the model's config says."),
    ] = False,
    raw: Annotated[bool, typer.Option("--raw", help="Continue the prompt itself, without the chat template.")] = False,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of the sampling.")] = 0,
    draft: Draft = None,
    device: Device = "cpu",
    explain: Annotated[bool, typer.Option("--explain", help="First explain how the weights run.")] = False,
) -> Answer:
    """Generate text with a model whose weights stay compressed.

    The text goes to stdout as it is generated; the last line counts tokens, speed and memory.
    """
    if max_new_tokens < 1:
        raise UsageError(
            "--max-new-tokens takes a positive number", found=max_new_tokens, expected="1 or more", code=ErrorCode.USAGE
        )
    with required_by_command():
        from .generation import Prompt, generate

    chains: list[tuple[int, Chain]] = []
    printed = style()
    with Progress("generating", printed != JSON_LINES, "tokens", file=redact(model)):
        generation = generate(
            model,
            Prompt(prompt, raw=raw, greedy=greedy, seed=seed, max_new_tokens=max_new_tokens),
            write=WRITERS[printed],
            explain=(_write_chains if printed == TEXT else chains.extend) if explain else None,
            draft=draft,
            device=device,
        )
    data: dict[str, Any] = {
        "file": redact(model),
        "text": generation.text,
        "tokens": generation.tokens,
        "tokens_per_second": generation.tokens_per_second,
        "first_token_seconds": generation.first_token_seconds,
        "peak_size": generation.peak_bytes,
        "draft": generation.acceptance.to_dict() if generation.acceptance else None,
        "chains": [{"tensors": count, **chain.to_dict()} for count, chain in chains] if explain else None,
    }
    peak = f", peak {generation.peak_bytes / 1e6:.0f} MB" if generation.peak_bytes is not None else ""
    summary = (
        f"{counted(generation.tokens, 'token')}, {generation.tokens_per_second:.1f} tokens/s, first after "
        f"{generation.first_token_seconds:.2f} s{peak}"
    )
    return Answer(data, [summary, *([generation.acceptance.line()] if generation.acceptance else [])])


def _write(text: str) -> None:
    """Write text without control characters."""
    shown = "".join(char if char.isprintable() or char in "\n\t" else f"\\x{ord(char):02x}" for char in text)
    sys.stdout.write(shown)
    sys.stdout.flush()


def _print_piece(text: str) -> None:
    if text:
        print_document(PIECE, {"text": text})


WRITERS = {TEXT: _write, JSON: None, JSON_LINES: _print_piece}
"""How results are printed -> what prints each piece of the text as it is generated."""


def _write_chains(chains: list[tuple[int, Chain]]) -> None:
    for count, chain in chains:
        _write(f"{count} tensor{'s' if count > 1 else ''} as {chain.explain()}\n")
    _write("\n")
