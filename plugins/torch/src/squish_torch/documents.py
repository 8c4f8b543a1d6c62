"""What `squish run`, `eval`, `activations` and `tune` print with `--json`.

Apart from the commands, because only `squish schema` imports these classes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen


@frozen
class Drafted:
    """The acceptance of a draft head."""

    passes: int
    proposed: int
    accepted: int
    acceptance_rate: float
    mean_accepted_length: float


@frozen
class Run:
    """A generated text.

    Attributes
    ----------
    tokens
        Their number.
    peak_size
        Peak memory of the process, in bytes.
    draft
        The acceptance of a draft head, with `--draft`.
    chains
        How the weights run, with `--explain`: chains as in `squish plan`, each with its number of tensors.
    """

    file: str
    text: str
    tokens: int
    tokens_per_second: float
    first_token_seconds: float
    peak_size: int | None
    draft: Drafted | None
    chains: tuple[Mapping[str, Any], ...] | None


@frozen
class Divergence:
    """KL divergence from the base, position by position."""

    mean: float
    max: float
    q99_9: float
    q99: float
    q95: float
    q90: float
    q50: float
    q10: float
    q5: float
    q1: float


@frozen
class LayerError:
    """The error of the hidden states after a layer."""

    layer: str
    nmse: float


@frozen
class GroupCost:
    """The cost of a tensor, or of a group of them, in the base.

    Attributes
    ----------
    size, base_size
        Stored bytes in the model and in the base.
    """

    name: str
    kl: float
    nmse: float
    size: int
    base_size: int
    kl_per_byte: float


@frozen
class TextEvaluation:
    """An evaluation on a text.

    Attributes
    ----------
    tasks, lm_eval
        Results of `--task`: those of each task, and lm-eval's whole document.
    definition, scored
        How positions are scored.
    window, windows, tokens
        Tokens per window, number of windows, number of scored tokens.
    word_perplexity, byte_perplexity, bits_per_byte
        Of a whole text, with `--definition lm-eval`.
    against, base_perplexity, kl, same_top, hidden_states
        The base, and the comparison with it; null and empty without one.
    per_tensor, exchange
        Costs, and the names by what they save for each byte; null without `--per-tensor` and `--by`.
    """

    tasks: Mapping[str, Any] | None
    lm_eval: Mapping[str, Any] | None
    file: str
    definition: str
    scored: str
    window: int
    windows: int
    tokens: int
    text_tokens_sha256: str
    rows_past_vocabulary: int
    perplexity: float
    perplexity_uncertainty: float
    word_perplexity: float | None
    byte_perplexity: float | None
    bits_per_byte: float | None
    against: str | None
    mapped: str
    base_perplexity: float | None
    kl: Divergence | None
    same_top: float | None
    hidden_states: tuple[LayerError, ...]
    draft: Drafted | None
    per_tensor: tuple[GroupCost, ...] | None
    exchange: tuple[str, ...] | None


@frozen
class TaskEvaluation:
    """An evaluation on tasks alone: the results of each, and lm-eval's whole document."""

    tasks: Mapping[str, Any]
    lm_eval: Mapping[str, Any]
    file: str


Eval = TextEvaluation | TaskEvaluation


@frozen
class Activations:
    """The file of activation statistics that was written, and its number of matrices."""

    file: str
    target: str
    tensors: int


@frozen
class Step:
    """A step of the search: bits per weight, and the sum of the matrices' own divergences."""

    bits: float
    kl: float


@frozen
class Tune:
    """A recipe within a budget.

    Attributes
    ----------
    rules
        Rules of `--encode`, in order.
    bits
        Bits per weight of the matrices, scales included.
    size
        Bytes of all files that the recipe writes; None if they are known only after they are written.
    kl
        Measured mean divergence.
    """

    file: str
    target: str
    rules: tuple[str, ...]
    bits: float
    size: int | None
    kl: float
    frontier: tuple[Step, ...]
