"""The result of an evaluation, its JSON form, and its text form."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from squish_core.api import counted, table

from ..speculation import Acceptance
from .hidden_states import HiddenError
from .language_model import LanguageModel
from .scores import PER_UNIT, Divergence, Perplexity
from .sensitivity import TensorGroup, exchanges
from .windows import DEFINITIONS, LM_EVAL, Windows

SHOWN = 20
"""Largest number of rows of a table in the text form; JSON has all."""


class Evaluation:
    """The evaluation of a model on a text.

    Attributes
    ----------
    model, base
        Names of the files; `base` is None without one.
    mapped
        How they were mapped to common names; empty if neither was.
    windows
        The windows of the text.
    perplexity
        Sums of the model's log-likelihoods.
    base_perplexity, divergence
        The same of the base, and the KL divergence from it; None without a base.
    hidden
        Error of the hidden states after each layer; without values unless the base is a model.
    per_tensor
        The cost of each tensor or group, by descending divergence; None without `by`.
    acceptance
        The acceptance of a draft head; None without one.
    rows_past_vocabulary
        Rows of the embedding without a token; their logits are cut.
    """

    def __init__(self, model: LanguageModel, windows: Windows, base: str | None, mapped: str = "") -> None:
        self.model, self.base, self.mapped = model.file.name, base, mapped
        self.windows, self.rows_past_vocabulary = windows, model.rows_past_vocabulary
        self.perplexity = Perplexity()
        self.base_perplexity = Perplexity() if base else None
        self.divergence = Divergence() if base else None
        self.hidden = HiddenError()
        self.per_tensor: list[TensorGroup] | None = None
        self.acceptance: Acceptance | None = None

    def _sums(self) -> dict[str, Any]:
        sums = {
            "perplexity": self.perplexity, "base_perplexity": self.base_perplexity, "divergence": self.divergence,
            "hidden": self.hidden,
        }  # fmt: skip
        return {name: value for name, value in sums.items() if value is not None}

    def state(self) -> dict[str, Any]:
        """Return all sums, for JSON."""
        return {name: value.state() for name, value in self._sums().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from stored sums."""
        for name, value in self._sums().items():
            value.restore(state[name])

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        windows, score = self.windows, self.perplexity
        data: dict[str, Any] = {
            "file": self.model, "definition": windows.definition, "scored": DEFINITIONS[windows.definition],
            "window": windows.size, "windows": len(windows), "tokens": score.tokens,
            "text_tokens_sha256": windows.digest, "rows_past_vocabulary": self.rows_past_vocabulary,
            "perplexity": score.value, "perplexity_uncertainty": score.uncertainty,
        }  # fmt: skip
        scored_units = windows.definition == LM_EVAL and windows.content
        base, divergence, groups = self.base_perplexity, self.divergence, self.per_tensor
        return {
            **data,
            **(score.per_unit(windows.words, windows.bytes) if scored_units else dict.fromkeys(PER_UNIT)),
            "against": self.base,
            "mapped": self.mapped,
            "base_perplexity": None if base is None else base.value,
            "kl": None if divergence is None else divergence.to_dict(),
            "same_top": None if divergence is None else divergence.same_top,
            "hidden_states": self.hidden.to_list(),
            "draft": None if self.acceptance is None else self.acceptance.to_dict(),
            "per_tensor": None if groups is None else [group.to_dict() for group in groups],
            "exchange": None if groups is None else [group.label for group in exchanges(groups)],
        }

    def lines(self) -> list[str]:
        """Format the evaluation as text."""
        score, base, divergence, windows = self.perplexity, self.base_perplexity, self.divergence, self.windows
        scored = f"{DEFINITIONS[windows.definition]} ({counted(len(windows), 'window')} of {windows.size})"
        lines = [
            *filter(None, [self.mapped]),
            f"perplexity {score.value:.4f} +- {score.uncertainty:.4f}",
            f"{counted(score.tokens, 'token')} scored: {scored}",
        ]
        if windows.definition == LM_EVAL and windows.content:
            units = score.per_unit(windows.words, windows.bytes)
            lines.append(", ".join(f"{name.replace('_', ' ')} {value:.4f}" for name, value in units.items()))
        if self.rows_past_vocabulary:
            lines.append(f"{self.rows_past_vocabulary} embedding rows past the vocabulary are left out")
        if base is not None and divergence is not None:
            kl = divergence.to_dict()
            lines += [
                f"base {self.base}: perplexity {base.value:.4f} +- {base.uncertainty:.4f}",
                "KL " + ", ".join(f"{name.replace('_', '.')} {value:.3g}" for name, value in kl.items()),
                f"same top token {divergence.same_top:.2%}",
            ]
        drafted = [self.acceptance.line()] if self.acceptance else []
        return [*lines, *self._hidden_lines(), *drafted, *self._cost_lines()]

    def _hidden_lines(self) -> list[str]:
        layers = self.hidden.to_list()
        if not layers:
            return []
        first, last, worst = layers[0], layers[-1], max(layers, key=lambda layer: layer["nmse"])
        if not worst["nmse"]:
            return ["hidden states: equal after every layer"]
        return [
            f"hidden states: NMSE {first['nmse']:.3g} after the first layer, {last['nmse']:.3g} after the last",
            f"  largest {worst['nmse']:.3g}, after {worst['layer']}",
        ]

    def _cost_lines(self) -> list[str]:
        if not self.per_tensor:
            return []
        rows = [
            (f"{group.kl:.3g}", f"{group.nmse:.3g}", f"{group.nbytes:,}", f"{group.base_nbytes:,}", group.label)
            for group in self.per_tensor[:SHOWN]
        ]
        lines = ["", "cost alone, the highest first:"]
        lines += table(("KL", "NMSE", "bytes", "in base", "tensors"), ">>>><", rows)
        if len(self.per_tensor) > SHOWN:
            lines.append(f"and {len(self.per_tensor) - SHOWN:,} more; --json lists all")
        best = exchanges(self.per_tensor)[:SHOWN]
        if best:
            lines += ["", "best kept as in the base, by KL saved for each MB:"]
            rates = [
                (f"{group.kl_per_byte * 1e6:.3g}", f"{group.kl:.3g}", f"{group.saved:,}", group.label) for group in best
            ]
            lines += table(("KL/MB", "KL", "more bytes", "tensors"), ">>><", rates)
        return lines
