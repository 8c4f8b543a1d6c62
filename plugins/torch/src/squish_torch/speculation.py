"""Speculative decoding: a draft head proposes tokens, and the model verifies them in one pass."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from transformers import DynamicCache

from squish_core.api import ErrorCode, File, UsageError

from .draft import head_of
from .eagle import EagleHead, HeadConfig
from .evaluation.hidden_states import layers_of

GREEDY: Mapping[str, Any] = {"do_sample": False, "temperature": None, "top_p": None, "top_k": None}
"""Arguments of `generate` that select the most probable token."""
PROPOSED = 4
"""Number of tokens that a head proposes per pass of the model."""
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
"""Layer types whose state can be rolled back to an earlier token."""


class Acceptance:
    """Counts of proposed and accepted tokens.

    Attributes
    ----------
    passes
        Passes of the model that verified proposed tokens.
    proposed, accepted
        Tokens that the head proposed, and those that the model accepted.
    """

    def __init__(self) -> None:
        self.passes = self.proposed = self.accepted = 0

    def add(self, proposed: int, accepted: int) -> None:
        """Count a pass, unless nothing was proposed."""
        if proposed:
            self.passes, self.proposed, self.accepted = (
                self.passes + 1, self.proposed + proposed, self.accepted + accepted
            )  # fmt: skip

    @property
    def rate(self) -> float:
        """Share of the proposed tokens that were accepted."""
        return self.accepted / self.proposed if self.proposed else 0.0

    @property
    def mean_length(self) -> float:
        """Tokens per pass: the accepted ones, and one that the model adds."""
        return 1 + self.accepted / self.passes if self.passes else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "passes": self.passes,
            "proposed": self.proposed,
            "accepted": self.accepted,
            "acceptance_rate": self.rate,
            "mean_accepted_length": self.mean_length,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from stored counts."""
        self.passes, self.proposed, self.accepted = (state[name] for name in ("passes", "proposed", "accepted"))

    def line(self) -> str:
        """Format the counts as text."""
        return (
            f"draft: {self.accepted} of {self.proposed} proposed tokens accepted ({self.rate:.1%}), "
            f"{self.mean_length:.2f} tokens a pass"
        )


class Drafter:
    """A model with an EAGLE-3 head, which generates the same text in fewer passes of the model.

    Parameters
    ----------
    model
        A causal model of transformers, such as from `from_pretrained`.
    draft
        A file with a draft head (SQUIZD), a head's own file or folder, or an open `File`. Its config states its sizes.

    Attributes
    ----------
    acceptance
        Counts of all calls of `generate`.

    Raises
    ------
    FormatError
        The head is missing, or its config is incomplete or disagrees with the model's.
    TensorError
        A tensor of the head is missing, unknown, or of another shape.
    UsageError
        The model's state cannot be rolled back to an earlier token.

    Examples
    --------
    >>> model = from_pretrained("model.squizd")  # doctest: +SKIP
    >>> drafter = Drafter(model, "model.squizd")  # doctest: +SKIP
    >>> ids = drafter.generate(**inputs, do_sample=False, max_new_tokens=64)  # doctest: +SKIP
    >>> drafter.acceptance.rate  # doctest: +SKIP
    """

    def __init__(self, model: Any, draft: Any) -> None:
        head = head_of(draft)
        config = check_draft(head, model.config)
        self.model, self.acceptance = model, Acceptance()
        self.head = EagleHead(head, config, model).to(model.device).eval()
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters
        layers = list(layers_of(model).values())
        if not layers or getattr(model, "_is_stateful", False):
            raise _not_possible(model.config.model_type)
        self._layers = [layers[number - 1] for number in config.layers]

    def generate(self, *args: Any, streamer: Any = None, **options: Any) -> torch.Tensor:
        """Continue one prompt as `model.generate` does, with the same arguments.

        Parameters
        ----------
        *args, streamer, **options
            Of transformers' `generate`. Each token is drawn from the model's own logits, so the text has the model's
            distribution; greedy text is that of the model alone.

        Returns
        -------
        torch.Tensor
            The prompt and the new tokens.

        Raises
        ------
        UsageError
            There are several prompts or beams, or an argument that speculative decoding does not support.
        """
        if options.get("past_key_values") is not None:
            raise _not_supported("past_key_values", type(options["past_key_values"]).__name__)
        options["cache_implementation"] = "dynamic"  # a static cache would be allocated but not used
        decode = partial(self._decode, streamer=streamer)
        ids: torch.Tensor = self.model.generate(*args, streamer=streamer, custom_generate=decode, **options)
        return ids

    def _decode(
        self,
        model: Any,
        input_ids: torch.Tensor,
        *,
        logits_processor: Any,
        stopping_criteria: Any,
        generation_config: Any,
        streamer: Any = None,
        **inputs: Any,
    ) -> torch.Tensor:
        """Decode as transformers' `custom_generate`."""
        _check_call(input_ids, generation_config, inputs)
        choose = partial(_choose, logits_processor, stopping_criteria, generation_config.do_sample, streamer)
        ids = chunk = input_ids
        chain = ids[:, :0]
        cache, head_cache = DynamicCache(), DynamicCache()
        with self._hidden_states() as outputs:
            while True:
                count = chain.shape[1] + 1
                options = {"logits_to_keep": count} if self._keeps else {}
                logits = model(chunk, past_key_values=cache, use_cache=True, **options).logits[:, -count:]
                ids, accepted, finished = choose(ids, logits, chain)
                self.acceptance.add(count - 1, accepted)
                if finished:
                    break
                rejected = count - 1 - accepted
                if rejected:
                    cache.crop(-rejected)
                kept = chunk.shape[1] - rejected
                states = torch.cat([output[:, :kept] for output in outputs], dim=-1)
                room = generation_config.max_length - ids.shape[1] - 1
                chain = self.head.propose(states, ids[:, -kept:], head_cache, min(PROPOSED, room))
                chunk = torch.cat((ids[:, -1:], chain), dim=1)
        if streamer is not None:
            streamer.end()
        return ids

    @contextmanager
    def _hidden_states(self) -> Iterator[list[torch.Tensor]]:
        """Yield a list that holds, after each pass, the outputs of the layers that the head reads."""
        outputs: list[torch.Tensor] = [torch.empty(0)] * len(self._layers)

        def hook(number: int, module: Any, inputs: Any, output: Any) -> None:
            outputs[number] = output[0] if isinstance(output, tuple) else output

        hooks = [layer.register_forward_hook(partial(hook, number)) for number, layer in enumerate(self._layers)]
        try:
            yield outputs
        finally:
            for each in hooks:
                each.remove()


def draft_of(draft: Any, model: File, config: Any) -> File:
    """Open a draft head (the model's own for "" or True), and check its config."""
    head = head_of(model if draft in ("", True) else draft)
    check_draft(head, config)
    return head


def check_draft(head: File, model: Any) -> HeadConfig:
    """Read and check the config of a head for a model with this config; raises what `Drafter` raises."""
    others = set(getattr(model.get_text_config(), "layer_types", None) or ()) - ATTENTION
    if others:
        raise _not_possible(sorted(others)[0])
    return HeadConfig.of(head, model)


def _not_possible(found: str) -> UsageError:
    return UsageError(
        "the model's state cannot be rolled back to an earlier token, so a draft head cannot run with it",
        found=found,
        expected="layers of attention",
        code=ErrorCode.USAGE,
        hint="Run the model without --draft.",
    )


def _check_call(ids: torch.Tensor, config: Any, inputs: Mapping[str, Any]) -> None:
    """Raise UsageError for arguments that speculative decoding does not support."""
    mask = inputs.get("attention_mask")
    wrong = {
        "sequences": ids.shape[0] if ids.shape[0] != 1 else None,
        "num_beams": config.num_beams if (config.num_beams or 1) != 1 else None,
        "return_dict_in_generate": config.return_dict_in_generate or None,
        "attention_mask": "padding" if mask is not None and not mask.all() else None,
        "inputs_embeds": "given" if inputs.get("inputs_embeds") is not None else None,
    }
    for name, found in wrong.items():
        if found is not None:
            raise _not_supported(name, found)


def _not_supported(name: str, found: Any) -> UsageError:
    return UsageError(
        f"a draft head does not run with {name}", found=found, expected="one prompt of tokens", code=ErrorCode.USAGE
    )


def _choose(
    processor: Any,
    stopping: Any,
    sample: bool,
    streamer: Any,
    ids: torch.Tensor,
    logits: torch.Tensor,
    chain: torch.Tensor,
) -> tuple[torch.Tensor, int, bool]:
    """Append tokens from the model's logits, up to the first that differs from the chain.

    Return all tokens, the number of accepted ones, and whether to stop.
    """
    proposed = [*chain[0].tolist(), -1]
    for number, proposal in enumerate(proposed):
        scores = processor(ids, logits[:, number].to(torch.float32, copy=True))
        token = torch.multinomial(scores.softmax(-1), 1) if sample else scores.argmax(-1, keepdim=True)
        ids = torch.cat((ids, token), dim=1)
        if streamer is not None:
            streamer.put(token[0].cpu())
        is_accepted, finished = int(token) == proposal, bool(stopping(ids, None).all())
        if finished or not is_accepted:
            break
    return ids, number + is_accepted, finished
