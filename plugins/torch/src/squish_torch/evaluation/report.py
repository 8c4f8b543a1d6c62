"""Evaluation of a model on a text, alone or against a base."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from math import inf
from pathlib import Path
from typing import Any

from squish_core.api import ErrorCode, Sink, UsageError, atomic_file

from .language_model import LanguageModel, check_tokens
from .logits_file import FLOOR, LogitsFile, is_logits_file, write_header, write_rows
from .scores import Divergence, Perplexity, log_softmax, slices
from .sensitivity import GROUPS, Replacement, measure_tensors
from .windows import Windows

SHOWN = 20
"""Most tensors that are listed for people."""
Progress = Callable[[int, int], None]
"""Called with the number of finished windows and of all windows."""


class Evaluation:
    """What a model makes of a text.

    Attributes
    ----------
    model
        The file's name.
    windows
        The text's tokens.
    perplexity
        Sums of the model's log-likelihoods.
    base_perplexity, divergence
        The same of the base, and the KL divergence from it; None without a base.
    per_tensor
        What each tensor or group costs, by descending divergence; None without `by`.
    rows_past_vocabulary
        Rows of the embedding that no token has; their logits are cut.
    """

    def __init__(self, model: LanguageModel, windows: Windows, base: str | None) -> None:
        self.model, self.base = model.file.name, base
        self.windows, self.rows_past_vocabulary = windows, model.rows_past_vocabulary
        self.perplexity = Perplexity()
        self.base_perplexity = Perplexity() if base else None
        self.divergence = Divergence() if base else None
        self.per_tensor: list[Replacement] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        data: dict[str, Any] = {
            "model": self.model, "definition": "llama.cpp, second half of each window", "window": self.windows.size,
            "windows": len(self.windows), "tokens": self.perplexity.tokens, "text_tokens_sha256": self.windows.digest,
            "rows_past_vocabulary": self.rows_past_vocabulary, "perplexity": self.perplexity.value,
            "perplexity_uncertainty": self.perplexity.uncertainty,
        }  # fmt: skip
        if self.base_perplexity is not None and self.divergence is not None:
            data |= {
                "against": self.base, "base_perplexity": self.base_perplexity.value, "kl": self.divergence.to_dict(),
                "same_top": self.divergence.same_top,
            }  # fmt: skip
        if self.per_tensor is not None:
            data["per_tensor"] = [each.to_dict() for each in self.per_tensor]
        return data

    def lines(self) -> list[str]:
        """The same for people."""
        score, base, divergence = self.perplexity, self.base_perplexity, self.divergence
        scored = f"{score.tokens} tokens: the second half of {len(self.windows)} windows of {self.windows.size}"
        lines = [f"perplexity {score.value:.4f} +- {score.uncertainty:.4f} ({scored})"]
        if self.rows_past_vocabulary:
            lines.append(f"{self.rows_past_vocabulary} embedding rows past the vocabulary are left out")
        if base is not None and divergence is not None:
            kl = divergence.to_dict()
            lines += [
                f"base {self.base}: perplexity {base.value:.4f} +- {base.uncertainty:.4f}",
                "KL " + ", ".join(f"{name.replace('_', '.')} {value:.3g}" for name, value in kl.items()),
                f"same top token {divergence.same_top:.2%}",
            ]
        lines += [
            f"{each.label}: KL {each.kl:.3g}, NMSE {each.nmse:.3g}, {each.nbytes} bytes"
            for each in (self.per_tensor or ())[:SHOWN]
        ]
        return lines


def evaluate(
    model: Any,
    *,
    text: str | Path,
    against: Any = None,
    window: int = 512,
    by: str | None = None,
    logits: str | Path | None = None,
    backend: str | None = None,
    progress: Progress | None = None,
) -> Evaluation:
    """Measure a model's perplexity on a text, and its KL divergence from a base.

    Both models run in lockstep, window by window; logits are never stored beyond one window.

    Parameters
    ----------
    model
        A file or folder of any format, or an open `File`.
    text
        File with the text, in UTF-8.
    against
        The base, as `model`; often the float file of the same model. Or a logits file of llama.cpp.
    window
        Tokens per window. The second half of each window is scored, as by llama.cpp.
    by
        "tensor", "layer" or "kind": also state what each tensor or group of tensors costs, by the divergence of the
        base in which it alone is replaced. Needs a model as `against`.
    logits
        Write the model's log-probabilities to this file, as llama.cpp does.
    backend
        Backend id for the model's weights; the best for each tensor by default.
    progress
        Called with the number of finished windows and of all windows.

    Returns
    -------
    Evaluation
        Sums, and `to_dict()`.

    Raises
    ------
    UsageError
        The text is too short, the models differ in vocabulary or tokenizer, or `by` is invalid.
    TensorError
        A layer's output is not finite.
    """
    stored = LogitsFile(against) if is_logits_file(against) else None
    if by is not None and (by not in GROUPS or against is None or stored):
        raise UsageError(
            "unknown groups of tensors" if by not in GROUPS else "what tensors cost is measured against a model",
            found=repr(by), expected=", ".join(GROUPS), code=ErrorCode.USAGE, hint="Name the base: against=FILE.",
        )  # fmt: skip
    subject = LanguageModel(model, backend)
    base = None if against is None or stored else LanguageModel(against)
    windows = Windows(subject.tokenizer, text, window)
    if base is not None:
        check_tokens(subject, windows, base, Windows(base.tokenizer, text, window))
    if stored is not None:
        stored.check(windows, subject.vocabulary)
    evaluation = Evaluation(subject, windows, base.file.name if base else stored.name if stored else None)
    with ExitStack() as stack:
        sink = None if logits is None else stack.enter_context(atomic_file(Path(logits)))
        measure(evaluation, subject, base, stored, sink, progress)
    if by is not None and base is not None:
        evaluation.per_tensor = measure_tensors(subject, base, windows, by, progress)
    return evaluation


def measure(
    evaluation: Evaluation, model: LanguageModel, base: LanguageModel | None, stored: LogitsFile | None,
    sink: Sink | None, progress: Progress | None,
) -> None:  # fmt: skip
    """Run every window, and add its sums; the base's log-probabilities are computed, or stored in a file."""
    windows, rows, floor = evaluation.windows, iter(stored or ()), FLOOR if stored else -inf
    if sink is not None:
        write_header(sink, windows, model.vocabulary)
    for number, ids in enumerate(windows):
        targets = ids[windows.first + 1 :]
        logits = model.logits(ids, windows.first)
        base_rows = base.logits(ids, windows.first) if base is not None else next(rows, None)
        for part in slices(logits):
            scores = log_softmax(logits[part])
            evaluation.perplexity.add(scores, targets[part])
            if sink is not None:
                write_rows(sink, scores)
            if base_rows is not None and evaluation.base_perplexity is not None and evaluation.divergence is not None:
                base_scores = base_rows[part] if stored else log_softmax(base_rows[part])
                evaluation.base_perplexity.add(base_scores, targets[part])
                evaluation.divergence.add(base_scores, scores, floor)
        if progress is not None:
            progress(number + 1, len(windows))
