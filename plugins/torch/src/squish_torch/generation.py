"""Text generation, with its speed and memory use."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from transformers import TextStreamer
from transformers.utils import logging

from squish_core.api import Chain, File, UsageError, peak_memory, workers

from .devices import CPU, device_named
from .pretrained import config_of, from_pretrained, named_file, tokenizer_of
from .speculation import GREEDY, Acceptance, Drafter, draft_of


class Prompt:
    """A prompt and how to continue it.

    Parameters
    ----------
    text
        The text that the model answers, or continues if `raw`.
    raw
        Skip the chat template.
    greedy
        Take the most probable token at each step.
    seed
        Seed of the sampling.
    max_new_tokens
        Maximum number of tokens to generate.
    """

    def __init__(self, text: str, *, raw: bool, greedy: bool, seed: int, max_new_tokens: int) -> None:
        self.text, self.raw, self.greedy, self.seed, self.max_new_tokens = text, raw, greedy, seed, max_new_tokens

    def encode(self, tokenizer: Any) -> dict[str, torch.Tensor]:
        """Return the token ids and the attention mask."""
        if tokenizer.chat_template and not self.raw:
            messages = [{"role": "user", "content": self.text}]
            encoded = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
            )
        else:
            encoded = tokenizer(self.text, return_tensors="pt")
        if not encoded["input_ids"].numel():
            raise UsageError("the prompt has no tokens", found=repr(self.text), code="prompt")
        return {name: encoded[name] for name in ("input_ids", "attention_mask")}


class Generation:
    """Generated text and its measurements.

    Attributes
    ----------
    text, tokens
        The generated text, and its number of tokens, including the end token.
    tokens_per_second
        Speed after the first token; 0 for a single token.
    first_token_seconds
        Time from the prompt to the first token.
    peak_bytes
        Peak memory of the process; None if the system does not report it.
    acceptance
        The acceptance of the draft head; None without one.
    """

    def __init__(self, text: str, tokens: int, times: list[float], acceptance: Acceptance | None = None) -> None:
        self.text, self.tokens, self.acceptance = text, tokens, acceptance
        start, first, last = times[0], times[1], times[-1]
        self.first_token_seconds = first - start
        self.tokens_per_second = (tokens - 1) / (last - first) if last > first else 0.0
        self.peak_bytes = peak_memory()


class _Streamer(TextStreamer):
    """Records the time of each token, and forwards the text."""

    def __init__(self, tokenizer: Any, write: Callable[[str], None] | None) -> None:
        super().__init__(tokenizer, skip_prompt=True, skip_special_tokens=True)
        self.times = [time.perf_counter()]
        self._write = write

    def put(self, value: torch.Tensor) -> None:
        if not self.next_tokens_are_prompt:
            self.times.append(time.perf_counter())
        super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        if self._write is not None:
            self._write(text + ("\n" if stream_end else ""))


def generate(
    path: str,
    prompt: Prompt,
    *,
    write: Callable[[str], None] | None,
    explain: Callable[[list[tuple[int, Chain]]], None] | None,
    draft: str | None = None,
    device: str = CPU,
) -> Generation:
    """Load a model, continue a prompt, and measure.

    Parameters
    ----------
    path
        A file or folder of any format.
    prompt
        The prompt to continue.
    write
        Called with each piece of text.
    explain
        Receives the result of `chains_of` before anything is loaded.
    draft
        A file or folder with a draft head; "" for the one in the model's own file. None runs the model alone.
    device
        Device of the model.

    Returns
    -------
    Generation
        The text, its speed and memory.
    """
    set_up()
    where, file = device_named(device), named_file(path)
    head = None if draft is None else draft_of(draft, file, config_of(file))
    if explain is not None:
        explain(chains_of(file))
    tokenizer, model = tokenizer_of(file), from_pretrained(file, device=where)
    inputs = {name: ids.to(model.device) for name, ids in prompt.encode(tokenizer).items()}
    drafter = None if head is None else Drafter(model, head)
    torch.manual_seed(prompt.seed)
    streamer = _Streamer(tokenizer, write)
    run = model.generate if drafter is None else drafter.generate
    with torch.inference_mode():
        ids = run(
            **inputs, max_new_tokens=prompt.max_new_tokens, streamer=streamer, **(GREEDY if prompt.greedy else {})
        )
    new = ids[0, inputs["input_ids"].shape[1] :]
    text = tokenizer.decode(new, skip_special_tokens=True)
    return Generation(text, len(new), streamer.times, drafter.acceptance if drafter else None)


def set_up() -> None:
    """Silence transformers, and set Squish's number of threads."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(workers())


def chains_of(file: File) -> list[tuple[int, Chain]]:
    """Return, per backend, the number of its tensors and the chain of the first."""
    first: dict[tuple[str, str, str], Chain] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for tensor in file.values():
        chain = tensor.plan()
        key = (str(chain.chosen.encoding.codec), chain.chosen.backend, chain.because)
        first.setdefault(key, chain)
        counts[key] += 1
    return [(count, first[key]) for key, count in counts.most_common()]
