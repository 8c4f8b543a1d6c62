"""Errors of a model's hidden states relative to its base, layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn


class HiddenError:
    """Sums of the squared error and of the base's squared output, per layer, over the scored positions."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, layer: str, base: torch.Tensor, output: torch.Tensor) -> None:
        """Add positions: outputs [positions, columns] of one layer."""
        error, size = self._sums.get(layer, (0.0, 0.0))
        reference = base.double()
        error += float((output.double() - reference).square().sum())
        self._sums[layer] = error, size + float(reference.square().sum())

    def state(self) -> dict[str, Any]:
        """Return the sums, for JSON."""
        return {name: list(sums) for name, sums in self._sums.items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from stored sums."""
        self._sums = {name: (error, size) for name, (error, size) in state.items()}

    def to_list(self) -> list[dict[str, Any]]:
        """Return the relative squared error (NMSE) of each layer, in order."""
        return [{"layer": name, "nmse": error / size if size else 0.0} for name, (error, size) in self._sums.items()]


def layers_of(model: Any) -> dict[str, nn.Module]:
    """Return path -> layer of the decoder; empty for a model without a list of them."""
    count = model.config.get_text_config().num_hidden_layers
    for path, module in model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) == count and path.rpartition(".")[2] in ("layers", "h"):
            return {f"{path}.{number}": layer for number, layer in enumerate(module)}
    return {}


@contextmanager
def layer_outputs(model: Any, first: int, take: Callable[[str, torch.Tensor], None]) -> Iterator[None]:
    """Within the context, pass the output of each layer at the scored positions to `take`: [positions, columns]."""

    def hook_of(path: str) -> Callable[[nn.Module, Any, Any], None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            states = output[0] if isinstance(output, tuple) else output
            take(path, states[0, first:-1])

        return hook

    hooks = [layer.register_forward_hook(hook_of(path)) for path, layer in layers_of(model).items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
