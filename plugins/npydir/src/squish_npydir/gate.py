"""The gate of a tier: how far its model may diverge from that of the directory's own files, on a text."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from squish_core.api import (
    ErrorCode,
    File,
    FormatError,
    Index,
    MissingPluginError,
    TensorSpec,
    UsageError,
    install_command,
)
from squish_core.api import open as open_model

from .directory import Directory
from .read.folder import Folder
from .tiers.read import TIERS
from .write.replace import IN_PLACE

DEFAULT = ("kl", 0.05)
_SUFFIX = re.compile(r":(kl|top1)=([0-9.eE+-]+)$")


@frozen
class Gate:
    """A text, and the largest mean KL divergence ("kl") or the least share of equal top tokens ("top1").

    `progress` is called with the running step, the number of tokens so far, and of all tokens.
    """

    text: Path
    metric: str
    bound: float
    window: int = 512
    progress: Callable[[str, int, int], None] | None = field(default=None, eq=False)

    @classmethod
    def parse(cls, value: str) -> Gate:
        """Read `TEXT[:kl=0.05|top1=0.97]`; kl=0.05 if neither is stated."""
        match = _SUFFIX.search(value)
        metric, bound = DEFAULT
        if match:
            try:
                metric, bound = match[1], float(match[2])
            except ValueError:
                bound = -1.0
        if bound < 0 or (metric == "top1" and bound > 1):
            raise UsageError(
                "not a bound of a gate",
                found=repr(value),
                expected="TEXT:kl=0.05 or TEXT:top1=0.97",
                code=ErrorCode.USAGE,
            )
        return cls(Path(value[: match.start()] if match else value), metric, bound)

    def check(self, folder: Path, tier: str, label: str) -> dict[str, float]:
        """Measure the divergence of a tier that may lack its sentinel; FormatError if it exceeds the bound."""
        evaluate = evaluator()
        with open_model(folder, "npydir") as file:
            own, other = _sides(file, tier, label)
            result = evaluate(other, text=self.text, against=own, window=self.window, progress=self.progress)
        measured = {"kl": result.divergence.to_dict()["mean"], "top1": result.divergence.same_top}
        value = measured[self.metric]
        if value > self.bound if self.metric == "kl" else value < self.bound:
            raise FormatError(
                f"the tier {tier} does not pass its gate",
                file=str(folder),
                code="gate",
                expected=f"{self.metric} {'at most' if self.metric == 'kl' else 'at least'} {self.bound:g}",
                found=f"{value:.4g}",
                hint="Build a tier with more bits, or loosen --gate.",
            )
        return measured


def _sides(file: File, tier: str, label: str) -> tuple[File, File]:
    """Return the model of the directory's own files, and that of the tier."""
    own = file.without_caches()
    if label in IN_PLACE.values():
        return _labelled(own, own.index, lambda each: each != label), _labelled(own, own.index, lambda each: True)
    directory = Directory(Folder(source=file.source, limits=file.limits))
    (declared,) = (each for each in TIERS if each.label == label)
    directory.tiers = [declared.open(directory.folder, declared)]
    return own, _labelled(own, directory.index(), lambda each: True)


def _labelled(file: File, index: Index, keeps: Callable[[str], bool]) -> File:
    """Return the model with the first encoding of each tensor whose label `keeps` accepts."""

    def reduced(spec: TensorSpec) -> TensorSpec:
        encodings = [encoding for encoding in spec.encodings if keeps(encoding.label or "")]
        return evolve(spec, encodings=tuple(encodings[:1]))

    tensors = {name: reduced(spec) for name, spec in index.tensors.items()}
    return File(file.source, evolve(index, tensors=tensors, caches=()), file.registry, file.limits)


def evaluator() -> Callable[..., Any]:
    """Return `squish_torch.evaluate`; MissingPluginError without squish-torch or its requirements."""
    try:
        from squish_torch.api import required
    except ModuleNotFoundError:
        raise MissingPluginError(
            "a gate needs squish-torch, which is not installed",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{install_command('squish-torch')}`.",
        ) from None
    with required():
        from squish_torch.api import evaluate
    return evaluate
