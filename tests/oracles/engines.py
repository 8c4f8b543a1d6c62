"""Engines that run whole models, and how their answers are compared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from . import OracleError, PeerTimeout, peer, runners

TOKENS = 32
LIKELY = 50
PROMPTS = (
    "The work is licensed under the terms",
    "Copyright 2004, in 3 parts: a == b + 10;\n\tcaf\u00e9 \u2615 na\u00efve\n\n  (end)",
    (
        "Subject to the terms and conditions of this License, each Contributor hereby grants to You a perpetual, "
        "worldwide, non-exclusive, no-charge, royalty-free, irrevocable copyright license to reproduce, prepare "
        "Derivative Works of, publicly display, publicly perform, sublicense, and distribute the Work and such "
        "Derivative Works in Source or Object form."
    ),
)
"""Plain words; digits, spaces, letters beyond ASCII; and a text longer than the windows of the small models."""


class NoAnswerError(OracleError):
    """The engine did not answer, twice."""


@frozen
class Answer:
    """An engine's tokens of the prompts, log-probabilities after them, and greedy continuations.

    `seconds`: of a generated token in one thread, 0 if it is not known.
    """

    engine: str
    ids: list[list[int]]
    logprobs: np.ndarray
    greedy: list[list[int]]
    seconds: float = 0.0


@frozen
class Engine:
    """An engine: its peer, and the function that runs there."""

    peer: str
    runner: Callable[..., dict[str, Any]]


ENGINES = {
    "llama.cpp": Engine("llama.cpp", runners.llama_cpp),
    "transformers": Engine("transformers", runners.transformers),
    "mlx": Engine("mlx-lm", runners.mlx),
    "mistralrs": Engine("mistralrs", runners.mistralrs),
    "onnxruntime": Engine("onnxruntime", runners.onnxruntime),
    "squish-torch": Engine("squish-torch", runners.squish_torch),
}


def ask(
    engine: str,
    model: Path,
    ids: Sequence[Sequence[int]] | None = None,
    *,
    tokens: int = TOKENS,
    vocabulary: int = 0,
    timeout: float = 120.0,
    adapter: Path | None = None,
) -> Answer:
    """An engine's answer to PROMPTS; an engine that hangs is asked once more, in a new process.

    `ids` are tokens to run on instead of the engine's own; `vocabulary` is how many log-probabilities mistral.rs lists;
    `adapter` is a LoRA for llama.cpp.
    """
    entry = ENGINES[engine]
    arguments: dict[str, Any] = {"path": str(model), "texts": list(PROMPTS), "tokens": tokens}
    if adapter is not None:
        arguments["adapter"] = str(adapter)
    arguments["ids"] = None if ids is None else [list(map(int, row)) for row in ids]
    if engine == "mistralrs":
        folder, file = (model, uqff_file(model)) if model.is_dir() else (model.parent, model.name)
        arguments |= {"path": str(folder), "file": file, "vocabulary": vocabulary}
    for _ in range(2):
        try:
            answer = peer(entry.peer).run(entry.runner, timeout=timeout, **arguments)
        except PeerTimeout:
            continue
        return Answer(engine, **answer)
    raise NoAnswerError(f"{engine}: no answer within {timeout:g} s, twice")


def uqff_file(folder: Path) -> str:
    """The UQFF file to name to mistral.rs (the first shard); "" for a folder without one."""
    return next((path.name for path in sorted(folder.glob("*.uqff"))), "")


def difference(source: Answer, result: Answer, bound: float, *, exact: bool = True) -> str:
    """How a result's answer differs from the source's, or "": token ids, log-probabilities, then greedy tokens.

    Unless they are `exact`, only the LIKELY tokens are compared, and greedy continuations are not.
    """
    for number, (before, after) in enumerate(zip(source.ids, result.ids, strict=True), 1):
        if before != after:
            first = next((n for n, (a, b) in enumerate(zip(before, after)) if a != b), min(len(before), len(after)))
            return f"prompt {number} has other token ids from token {first}"
    width = min(source.logprobs.shape[1], result.logprobs.shape[1])  # padded vocabularies
    expected, actual = source.logprobs[:, :width], result.logprobs[:, :width]
    distance = np.abs(expected - actual)
    if not exact:
        least = np.partition(expected, -LIKELY, axis=1)[:, [-LIKELY]] if width > LIKELY else -np.inf
        distance = np.where(expected >= least, distance, 0.0)
    if not np.isfinite(distance).any(axis=1).all():
        return "log-probabilities are missing"
    if (largest := float(np.nanmax(distance))) > bound:
        return f"log-probabilities differ by {largest:.3g} (bound {bound:g})"
    if (np.nanargmax(expected, 1) != np.nanargmax(actual, 1)).any():
        return "the most probable token differs"
    for number, rows in enumerate(zip(source.greedy, result.greedy, strict=True) if exact else (), 1):
        for token, (a, b) in enumerate(zip(*rows)):  # as many as both have generated
            if a != b:
                return f"greedy token {token} after prompt {number} differs"
    return ""
