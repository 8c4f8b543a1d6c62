"""The acceptance rate of a draft head on a text."""

from __future__ import annotations

import torch

from squish_core.api import File

from ..speculation import GREEDY, Acceptance, Drafter
from .language_model import LanguageModel
from .state_file import StateFile
from .windows import Progress, Windows

SECTION = "draft"
"""Section of the state file."""


def measure_acceptance(
    model: LanguageModel, head: File, windows: Windows, state_file: StateFile | None, progress: Progress | None
) -> Acceptance:
    """Continue the first half of each window greedily by the length of the second half.

    A continuation ends early at an end token.
    """
    drafter = Drafter(model.model, head)
    state = state_file.load(SECTION) if state_file else {}
    if state:
        drafter.acceptance.restore(state)
    for number in range(state.get("count", 0), len(windows)):
        ids = windows[number].ids[None].to(model.model.device)
        prompt = ids[:, : ids.shape[1] // 2]
        with torch.inference_mode():
            drafter.generate(
                prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=ids.shape[1] - prompt.shape[1], **GREEDY
            )
        if state_file is not None:
            state_file.save(SECTION, {"count": number + 1, **drafter.acceptance.to_dict()})
        if progress is not None:
            progress("drafting", (number + 1) * windows.size, windows.total)
    return drafter.acceptance
