"""A model and its tokenizer, for evaluation."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from squish_convert.api import compared_as
from torch import nn

from squish_core.api import ErrorCode, TensorError, UsageError

from ..devices import CPU
from ..pretrained import from_pretrained, named_file, tokenizer_of
from .windows import Window, Windows, vocabulary_digest, vocabulary_size


class LanguageModel:
    """A model of any format with its tokenizer.

    Parameters
    ----------
    path
        A file or folder of any format, or an open `File`.
    backend
        Backend id, with options for some; the best for each tensor by default.
    device
        Device that the model runs on.

    Raises
    ------
    SquishError
        As of `from_pretrained` and `tokenizer_of`.
    """

    def __init__(self, path: Any, backend: str | None = None, device: Any = CPU) -> None:
        self.file = named_file(path)
        self.tokenizer = tokenizer_of(self.file)
        self.model = from_pretrained(self.file, backend=backend, device=device)
        self.vocabulary = vocabulary_size(self.tokenizer)
        self._keeps = "logits_to_keep" in inspect.signature(self.model.forward).parameters

    def mapping(self, other: LanguageModel) -> str:
        """Return how this model and another of its family were mapped to common names; empty if neither was."""
        is_same_family = self.model.config.model_type == other.model.config.model_type
        return compared_as(other.file, self.file) if is_same_family else ""

    def logits(self, window: Window) -> torch.Tensor:
        """Return logits [positions, vocabulary] before each scored token, on the CPU; rows past the vocabulary are cut.

        Raise TensorError with the first layer whose output is not finite.
        """
        count = len(window.ids) - window.first
        with torch.inference_mode():
            logits = self._forward(window.ids, count)[0, -count:-1, : self.vocabulary]
            if not torch.isfinite(logits).all():
                raise TensorError(
                    "a layer's output is not finite",
                    file=self.file.name,
                    tensor=self._first_not_finite(window.ids),
                    code=ErrorCode.NOT_FINITE,
                )
        return logits.cpu()

    def _forward(self, ids: torch.Tensor, count: int) -> torch.Tensor:
        options = {"logits_to_keep": count} if self._keeps else {}
        return self.model(ids[None].to(self.model.device), use_cache=False, **options).logits

    def _first_not_finite(self, ids: torch.Tensor) -> str:
        """Return path of the first module whose output is not finite."""
        paths: list[str] = []

        def check(path: str) -> Any:
            def hook(module: nn.Module, inputs: Any, output: Any) -> None:
                if isinstance(output, torch.Tensor) and not torch.isfinite(output).all():
                    paths.append(path)

            return hook

        leaves = [(path, module) for path, module in self.model.named_modules() if not any(module.children())]
        hooks = [module.register_forward_hook(check(path)) for path, module in leaves]
        try:
            self._forward(ids, 1)
        finally:
            for hook in hooks:
                hook.remove()
        return paths[0] if paths else "logits"

    @property
    def rows_past_vocabulary(self) -> int:
        """Rows of the embedding without a token."""
        return max(0, self.model.get_input_embeddings().num_embeddings - self.vocabulary)


def check_tokens(model: LanguageModel, windows: Windows, base: LanguageModel, base_windows: Windows) -> None:
    """Raise UsageError with both digests if the vocabularies, or the tokens of the text, differ."""
    vocabularies = vocabulary_digest(base.tokenizer), vocabulary_digest(model.tokenizer)
    for code, message, (expected, digest) in (
        ("vocabulary", "the models have different vocabularies", vocabularies),
        ("tokenizer", "the tokenizers split the text differently", (base_windows.digest, windows.digest)),
    ):
        if expected != digest:
            raise UsageError(
                message,
                file=model.file.name,
                code=code,
                expected=f"{expected} ({base.file.name})",
                found=digest,
                hint="Compare models with one tokenizer.",
            )
