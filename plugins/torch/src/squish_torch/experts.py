"""Experts over stored codes: a linear module per projection, or one stack of matrices per projection."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from .modules import Compressed

GATE_UP, DOWN, BIAS = "gate_up_proj", "down_proj", "_bias"
"""Parameters of transformers' expert modules, [experts, out, in], and the suffix of their biases."""


class Expert(nn.Module):
    """The projections of one expert, each compressed in its own way."""

    def __init__(self, gate: nn.Module, up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate, up, down


class CompressedExperts(nn.Module):
    """The experts of a layer over stored codes, with the call signature of transformers.

    Parameters
    ----------
    experts
        Linear modules of each expert: gate, up and down; their codecs may differ.
    act_fn
        Activation function of the gate.
    """

    def __init__(self, experts: Sequence[tuple[nn.Module, nn.Module, nn.Module]], act_fn: nn.Module) -> None:
        super().__init__()
        self.num_experts, self.act_fn = len(experts), act_fn
        for number, projections in enumerate(experts):
            self.add_module(str(number), Expert(*projections))

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the weighted sum of the selected experts for each token.

        Parameters
        ----------
        hidden_states
            Of shape [tokens, in].
        top_k_index, top_k_weights
            The experts of each token, and their weights: [tokens, k].

        Returns
        -------
        torch.Tensor
            Of the shape of `hidden_states`.
        """
        result = torch.zeros_like(hidden_states)
        for number in top_k_index.unique().tolist():
            if number >= self.num_experts:
                continue
            expert = self.get_submodule(str(number))
            tokens, ranks = torch.where(top_k_index == number)
            x = hidden_states[tokens]
            y = expert.down_proj(self.act_fn(expert.gate_proj(x)) * expert.up_proj(x))
            result.index_add_(0, tokens, (y * top_k_weights[tokens, ranks, None]).to(result.dtype))
        return result


class CompressedStack(Compressed):
    """One projection of all experts: a stack of matrices [experts, out, in]."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Compute `x[i] @ W[ids[i]].T`."""
        if self._form_text:
            return torch.ops.squish.device_experts(x, ids, self.arrays, self._form_text)
        return torch.ops.squish.experts(x, ids, self.parts, self.description, self.backend)


class CompressedExpertStack(nn.Module):
    """The experts of a layer whose file stores each projection as one stack.

    Parameters
    ----------
    original
        Transformers' expert module, which applies the gate and takes the decoded values in `dequantized`.
    gate_up, down
        The stacks.
    """

    def __init__(self, original: nn.Module, gate_up: CompressedStack, down: CompressedStack) -> None:
        super().__init__()
        self.num_experts, self.gate_up_proj, self.down_proj = gate_up.shape[0], gate_up, down
        self.transposed = bool(getattr(original, "is_transposed", False))
        for name in (GATE_UP + BIAS, DOWN + BIAS):
            self.register_parameter(name, original._parameters.pop(name, None))
        for name in (GATE_UP, DOWN):
            original.register_parameter(name, None)
        self._original = (original,)  # not a submodule, so that nothing initializes its parameters

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Compute the weighted sum of the selected experts for each token, as `CompressedExperts.forward`."""
        tokens, choices = top_k_index.shape
        ids = top_k_index.reshape(-1)
        chosen = ids < self.num_experts
        ids = ids.clamp(max=self.num_experts - 1)
        x = hidden_states.repeat_interleave(choices, 0)
        biases: Any = self._parameters
        y = self.gate_up_proj(x, ids)
        y = y if biases[GATE_UP + BIAS] is None else y + biases[GATE_UP + BIAS][ids]
        y = self.down_proj(self._original[0]._apply_gate(y), ids)
        y = y if biases[DOWN + BIAS] is None else y + biases[DOWN + BIAS][ids]
        weights = (top_k_weights.reshape(-1) * chosen)[:, None]
        return (y * weights).reshape(tokens, choices, -1).sum(1).to(hidden_states.dtype)

    def dequantized(self, dtype: torch.dtype) -> nn.Module:
        """Return transformers' module with the decoded values."""
        (original,) = self._original
        for name, stack in ((GATE_UP, self.gate_up_proj), (DOWN, self.down_proj)):
            values = stack.dequantize(dtype)
            values = values.transpose(1, 2).contiguous() if self.transposed else values
            original.register_parameter(name, nn.Parameter(values, requires_grad=False))
            original.register_parameter(name + BIAS, self._parameters[name + BIAS])
        return original
