"""Experts over stored codes: a linear module per projection, or one stack of matrices per projection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn

from .device_forms import FORM, stacked
from .modules import Compressed, autocast

PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
"""The linear modules of an expert."""
GATE_UP, DOWN, BIAS = "gate_up_proj", "down_proj", "_bias"
"""Parameters of transformers' expert modules, [experts, out, in], and the suffix of their biases."""


class Expert(nn.Module):
    """The projections of one expert, each compressed in its own way."""

    def __init__(self, gate: nn.Module, up: nn.Module, down: nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj, self.down_proj = gate, up, down


class CompressedExperts(nn.Module):
    """The experts of a layer over stored codes, with the call signature of transformers.

    On a device whose backend has forms for them, each projection of all experts is one stack, if its matrices differ
    in their data alone: buffers of this module, of which the experts' own forms are views.

    Parameters
    ----------
    experts
        Linear modules of each expert: gate, up and down; their codecs may differ.
    act_fn
        Activation function of the gate.

    Attributes
    ----------
    is_apart
        Whether the modules of experts run one by one in any case, so that their hooks do.
    """

    def __init__(self, experts: Sequence[tuple[nn.Module, nn.Module, nn.Module]], act_fn: nn.Module) -> None:
        super().__init__()
        self.num_experts, self.act_fn = len(experts), act_fn
        self.is_apart = False
        self._stacks: dict[str, tuple[str, tuple[str, ...]]] = {}
        for number, projections in enumerate(experts):
            self.add_module(str(number), Expert(*projections))
        self.register_load_state_dict_post_hook(_stack_loaded)

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
        if self._stacks and not self.is_apart:
            choices = Choices(top_k_index, self.num_experts)
            x = autocast(choices.inputs(hidden_states))
            gate, up = self._stack(PROJECTIONS[0], x, choices.ids), self._stack(PROJECTIONS[1], x, choices.ids)
            y = self._stack(PROJECTIONS[2], self.act_fn(gate) * up, choices.ids)
            return choices.weighted_sum(y, top_k_weights).to(hidden_states.dtype)
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

    def _stack(self, projection: str, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Compute `x[i] @ W[ids[i]].T` with the stack of a projection."""
        text, names = self._stacks[projection]
        buffers: Mapping[str, Any] = self._buffers
        return torch.ops.squish.device_experts(x, ids, [buffers[name] for name in names], text)

    def stack_forms(self) -> None:
        """Have the forms of each projection as a stack, where all of them can be stacked."""
        self.drop_stacks()
        modules = {
            name: [getattr(self.get_submodule(str(number)), name) for number in range(self.num_experts)]
            for name in PROJECTIONS
        }
        forms: dict[str, list[Any]] = {
            name: [getattr(module, "form", None) for module in each] for name, each in modules.items()
        }
        biases = [getattr(module, "bias", None) for each in modules.values() for module in each]
        if any(form is None for each in forms.values() for form in each) or any(bias is not None for bias in biases):
            return
        stacks: dict[str, Any] = {}
        for name, each in forms.items():
            stacks[name] = stacked(each)
            if stacks[name] is None:
                return
        for name, (stack, views) in stacks.items():
            for module, view in zip(modules[name], views):
                module.lend_form(view)
            names = tuple(f"{FORM}{name}_{role}" for role in stack.arrays)
            for buffer, array in zip(names, stack.arrays.values()):
                self.register_buffer(buffer, array, persistent=False)
            self._stacks[name] = stack.text, names

    def drop_stacks(self) -> None:
        """Have each expert run by itself."""
        for _, names in self._stacks.values():
            for name in names:
                self._buffers.pop(name, None)
        self._stacks = {}

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        """Apply a function as torch does: to the experts, whose forms are then stacked again."""
        self.drop_stacks()
        result = super()._apply(fn, recurse)
        self.stack_forms()
        return result

    def __getstate__(self) -> dict[str, Any]:
        own = {name for _, names in self._stacks.values() for name in names}
        buffers = {name: buffer for name, buffer in self._buffers.items() if name not in own}
        return {**self.__dict__, "_stacks": {}, "_buffers": buffers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.stack_forms()


def _stack_loaded(module: nn.Module, keys: Any) -> None:
    """Stack the forms of a state that was loaded."""
    cast(CompressedExperts, module).stack_forms()


def stack_forms(model: nn.Module) -> None:
    """Stack the forms of experts that a loader has put on a device."""
    for module in model.modules():
        if isinstance(module, CompressedExperts):
            module.stack_forms()


class Choices:
    """The experts that tokens chose, one after the other, without reading them.

    Parameters
    ----------
    top_k_index
        The experts of each token, [tokens, k]; those from `count` on do not exist, and add nothing.
    count
        Number of experts.
    """

    def __init__(self, top_k_index: torch.Tensor, count: int) -> None:
        self.tokens, self.each = top_k_index.shape
        ids = top_k_index.reshape(-1)
        self.exists, self.ids = ids < count, ids.clamp(max=count - 1)

    def inputs(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Return the row of x of each choice."""
        return hidden_states.repeat_interleave(self.each, 0)

    def weighted_sum(self, y: torch.Tensor, top_k_weights: torch.Tensor) -> torch.Tensor:
        """Return the sum of each token's choices."""
        weights = (top_k_weights.reshape(-1) * self.exists)[:, None]
        return (y * weights).reshape(self.tokens, self.each, -1).sum(1)


class CompressedStack(Compressed):
    """One projection of all experts: a stack of matrices [experts, out, in]."""

    def forward(self, x: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
        """Compute `x[i] @ W[ids[i]].T`, in the dtype of x, or autocast's."""
        x = autocast(x)
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
        choices = Choices(top_k_index, self.num_experts)
        ids = choices.ids
        biases: Any = self._parameters
        y = self.gate_up_proj(choices.inputs(hidden_states), ids)
        y = y if biases[GATE_UP + BIAS] is None else y + biases[GATE_UP + BIAS][ids]
        y = self.down_proj(self._original[0]._apply_gate(y), ids)
        y = y if biases[DOWN + BIAS] is None else y + biases[DOWN + BIAS][ids]
        return choices.weighted_sum(y, top_k_weights).to(hidden_states.dtype)

    def dequantized(self, dtype: torch.dtype) -> nn.Module:
        """Return transformers' module with the decoded values."""
        (original,) = self._original
        for name, stack in ((GATE_UP, self.gate_up_proj), (DOWN, self.down_proj)):
            values = stack.dequantize(dtype)
            values = values.transpose(1, 2).contiguous() if self.transposed else values
            original.register_parameter(name, nn.Parameter(values, requires_grad=False))
            original.register_parameter(name + BIAS, self._parameters[name + BIAS])
        return original
