"""`evaluate`: run a model and its base in lockstep, window by window."""

from __future__ import annotations

from contextlib import ExitStack
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import torch
from attrs import frozen

from squish_core.api import ErrorCode, Sink, UsageError, atomic_file

from ..devices import CPU, device_named
from ..pretrained import config_of, named_file
from ..speculation import draft_of
from .acceptance import measure_acceptance
from .hidden_states import layer_outputs
from .language_model import LanguageModel, check_tokens
from .logits_file import FLOOR, LogitsFile, is_logits_file, write_header, write_rows
from .report import Evaluation
from .scores import log_softmax, slices
from .sensitivity import GROUPS, measure_tensors
from .state_file import StateFile, identity_of
from .windows import LLAMA_CPP, Progress, Window, Windows
from .workers import Processes

SECTION = "windows"
"""Section of the state file."""


def evaluate(
    model: Any,
    *,
    text: str | Path,
    against: Any = None,
    window: int = 512,
    definition: str = LLAMA_CPP,
    limit: int | None = None,
    by: str | None = None,
    draft: Any = None,
    logits: str | Path | None = None,
    resume: str | Path | None = None,
    backend: str | None = None,
    scheduler: str | None = None,
    device: Any = CPU,
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
        The base, as `model` (often the float file of the same model), or a logits file of llama.cpp.
    window
        Tokens per window.
    definition
        "llama.cpp": the second half of each window is scored. "lm-eval": each token once, in sliding windows.
    limit
        Number of windows to run; all by default.
    by
        "tensor", "layer" or "kind": also measure the cost of each tensor or group of tensors: the divergence of the
        base with only that group replaced. Needs a model as `against`.
    draft
        A file or folder with an EAGLE-3 draft head; True for the one in the model's own file. The model continues the
        first half of each window greedily, and the result states how many proposed tokens it accepts.
    logits
        Write the model's log-probabilities to this file, as llama.cpp does.
    resume
        A state file. If it exists, the evaluation continues after the last window in it.
    backend
        Backend id for the model's weights; the best for each tensor by default.
    scheduler
        Measure the costs of tensors in other processes, which load both models by their paths: "local:4",
        "dask:tcp://...". Needs `by`. The results are identical.
    device
        Device that both models run on.
    progress
        Called with the name of the step, the tokens so far, and all tokens.

    Returns
    -------
    Evaluation
        Sums, and `to_dict()`.

    Raises
    ------
    FormatError
        The draft head is missing, or its config does not fit the model.
    UsageError
        The text is too short, the models differ in vocabulary or tokenizer, the state file belongs to another
        evaluation, an argument is invalid, or the device is not available.
    TensorError
        A layer's output is not finite.

    Examples
    --------
    >>> evaluation = evaluate("model-q4.gguf", text="wiki.txt", against="model-f32.gguf", limit=8)  # doctest: +SKIP
    >>> evaluation.to_dict()  # doctest: +SKIP
    """
    stored = LogitsFile(against) if is_logits_file(against) else None
    check_arguments(definition, by, against, stored, logits, resume, scheduler)
    where, file = device_named(device), named_file(model)
    head = None if draft is None else draft_of(draft, file, config_of(file))
    subject = LanguageModel(file, backend, where)
    base = None if against is None or stored else LanguageModel(against, device=where)
    windows = Windows(subject.tokenizer, text, window, definition, limit)
    if base is not None:
        check_tokens(subject, windows, base, Windows(base.tokenizer, text, window, definition, limit))
    if stored is not None:
        stored.check(windows, subject.vocabulary)
    processes = None
    if scheduler and base:
        processes = Processes.of(scheduler, (subject, base), backend, windows, str(where))
    evaluation = Evaluation(
        subject,
        windows,
        base.file.name if base else stored.name if stored else None,
        base.mapping(subject) if base else "",
    )
    state_file = None
    if resume is not None:
        files = {"model": subject.file, "base": against if stored else base and base.file, "draft": head}
        settings = {"tokens": windows.digest, "window": window, "definition": definition, "backend": backend, "by": by}
        if where.type != CPU:
            settings["device"] = str(where)
        state_file = StateFile(resume, identity_of(files, settings))
    with ExitStack() as stack:
        sink = None if logits is None else stack.enter_context(atomic_file(Path(logits)))
        _Lockstep(evaluation, subject, base, stored, sink).run(state_file, progress)
    if head is not None:
        evaluation.acceptance = measure_acceptance(subject, head, windows, state_file, progress)
    if by is not None and base is not None:
        evaluation.per_tensor = measure_tensors(subject, base, windows, by, state_file, progress, processes)
    return evaluation


def check_arguments(
    definition: str,
    by: str | None,
    against: Any,
    stored: LogitsFile | None,
    logits: Any,
    resume: Any,
    scheduler: str | None,
) -> None:
    """Raise UsageError for mutually exclusive arguments."""
    usage = ErrorCode.USAGE
    if by is not None and by not in GROUPS:
        raise UsageError("unknown groups of tensors", found=repr(by), expected=", ".join(GROUPS), code=usage)
    if by is not None and (against is None or stored):
        raise UsageError(
            "the cost of tensors can only be measured against a model",
            found=repr(by),
            code=usage,
            hint="Name the base: against=FILE.",
        )
    if scheduler is not None and by is None:
        raise UsageError(
            "a scheduler only measures the cost of tensors",
            found=repr(scheduler),
            code=usage,
            hint="Add by='tensor' (--per-tensor), or leave out {option:scheduler}.",
        )
    if definition != LLAMA_CPP and (stored or logits):
        raise UsageError(
            "a logits file needs llama.cpp's windows", found=repr(definition), expected=repr(LLAMA_CPP), code=usage
        )
    if logits and resume:
        raise UsageError("a logits file is written in one run, so {option:resume} does not apply", code=usage)


@frozen
class _Lockstep:
    """A model and its base; the base is a model or a logits file."""

    evaluation: Evaluation
    model: LanguageModel
    base: LanguageModel | None
    stored: LogitsFile | None
    sink: Sink | None

    def run(self, state_file: StateFile | None, progress: Progress | None) -> None:
        """Run the windows that the state file lacks, and add their sums."""
        evaluation, windows = self.evaluation, self.evaluation.windows
        state = state_file.load(SECTION) if state_file else {}
        first = min(state.get("count", 0), len(windows))
        if state.get("count", 0) > len(windows):
            raise UsageError(
                "the state file has more windows than the limit",
                found=len(windows),
                expected=state["count"],
                code="resume",
                hint="Raise --limit, or name a new file.",
            )
        if state:
            evaluation.restore(state["sums"])
        if self.sink is not None:
            write_header(self.sink, windows, self.model.vocabulary)
        if progress is not None:
            progress(evaluation.model, first * windows.size, windows.total)
        for number in range(first, len(windows)):
            self._add(number, windows[number])
            if state_file is not None:
                state_file.save(SECTION, {"count": number + 1, "sums": evaluation.state()})
            if progress is not None:
                progress(evaluation.model, (number + 1) * windows.size, windows.total)

    def _add(self, number: int, window: Window) -> None:
        """Run a window, and add its sums."""
        evaluation, targets = self.evaluation, window.targets
        base_logits, outputs = None, dict[str, torch.Tensor]()
        if self.base is not None:
            with layer_outputs(self.base.model, window.first, lambda path, x: outputs.update({path: x.clone()})):
                base_logits = self.base.logits(window)
        compare = partial(_add_hidden, evaluation, outputs)
        with layer_outputs(self.model.model, window.first, compare) if outputs else ExitStack():
            logits = self.model.logits(window)
        base_rows = base_logits if self.stored is None else self.stored[number]
        for part in slices(logits):
            scores = log_softmax(logits[part])
            evaluation.perplexity.add(scores, targets[part])
            if self.sink is not None:
                write_rows(self.sink, scores)
            if base_rows is not None and evaluation.base_perplexity is not None and evaluation.divergence is not None:
                base_scores = base_rows[part] if self.stored else log_softmax(base_rows[part])
                evaluation.base_perplexity.add(base_scores, targets[part])
                evaluation.divergence.add(base_scores, scores, FLOOR if self.stored else -inf)


def _add_hidden(evaluation: Evaluation, base: dict[str, torch.Tensor], layer: str, output: torch.Tensor) -> None:
    """Add the error of a layer's output, and release the base's."""
    if layer in base:
        evaluation.hidden.add(layer, base.pop(layer), output)
