"""Insertion of compressed modules while transformers loads a model, from a lazy state or a checkpoint folder."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from squish_core.api import ErrorCode, UsageError
from squish_core.api import Tensor as StoredTensor
from squish_core.api import open as open_file

from .modules import Compressed, CompressedEmbedding, stored_bytes
from .replacement import WEIGHT, ModuleOptions, Replacement, replacements, tied_parts
from .state import LazyState
from .values import is_compressed, values_of


def replace_modules(model: Any, state: LazyState, options: ModuleOptions) -> None:
    """Replace modules with compressed tensors by compressed modules on meta, which the loader fills from the state."""
    for replacement in replacements(model, state.file, options, state.dtype):
        model.set_submodule(replacement.path, replacement.module)
        state.include(replacement)
        if replacement.owner is not None:
            model.all_tied_weights_keys.update(tied_parts(replacement))


class PendingModules:
    """Compressed modules of a checkpoint folder that transformers loads: empty modules take their place meanwhile.

    Parameters
    ----------
    model
        On meta.
    folder
        The checkpoint.
    options
        How to load weights.
    """

    def __init__(self, model: Any, folder: Path, options: ModuleOptions) -> None:
        self.file, self.options = open_file(folder), options
        self.state = LazyState(self.file, model.dtype)
        self.replacements = replacements(model, self.file, options, model.dtype)
        self.ties: dict[str, str] = {}
        compressed = {tensor for replacement in self.replacements for tensor in replacement.compressed.values()}
        self.replacements += list(self._decoded(model, compressed))
        for replacement in self.replacements:
            model.set_submodule(replacement.path, nn.Identity())
            model.all_tied_weights_keys.pop(f"{replacement.path}{WEIGHT}", None)
        dense = {tensor for replacement in self.replacements for tensor in replacement.dense.values()}
        layers = "|".join(re.escape(name.removesuffix(WEIGHT)) for name in sorted(compressed | dense))
        if layers:
            ignored = model._keys_to_ignore_on_load_unexpected
            collection = list if ignored is None else type(ignored)  # a set in transformers 5.23, elsewhere a list
            model._keys_to_ignore_on_load_unexpected = collection([*(ignored or ()), rf"^({layers})([._]|$)"])

    def _decoded(self, model: Any, compressed: Collection[str]) -> Iterator[Replacement]:
        """Yield the modules that stay dense although their tensors are compressed, and the modules tied to them."""
        paths = {replacement.path for replacement in self.replacements}
        for path, module in list(model.named_modules()):
            names = [f"{path}.{name}" for name in module._parameters]
            stored = [name for name in names if name in self.file]
            ties = {name: source for name in names if (source := model.all_tied_weights_keys.get(name)) in self.file}
            values = [name for name in (*stored, *ties.values()) if is_compressed(self.file[name])]
            if values and path not in paths and not set(compressed).intersection(values):
                self.ties |= ties
                yield Replacement(path, module, {}, {name: name for name in stored})

    def fill(self, model: Any) -> None:
        """Insert the modules and their parts into the model; a tied module shares its owner's parts."""
        for replacement in self.replacements:
            module, path = replacement.module, replacement.path
            model.set_submodule(path, module)
            self.state.include(replacement)
            if replacement.owner is not None:
                owner = model.get_submodule(replacement.owner)
                module._parameters.update({**owner._parameters, "bias": module._parameters.get("bias")})
                model.all_tied_weights_keys.update(tied_parts(replacement))
            else:
                for module_path, tensor in replacement.compressed.items():
                    self._take(cast(Compressed, model.get_submodule(module_path)), self.file[tensor])
            for parameter, tensor in replacement.dense.items():
                set_parameter(model, parameter, self._values(self.file[tensor], model.dtype))
            if isinstance(module, CompressedEmbedding):
                module._like = torch.empty(0, dtype=model.dtype)
        if self.ties:
            model.all_tied_weights_keys.update(self.ties)
            model.tie_weights()

    def _take(self, module: Compressed, tensor: StoredTensor) -> None:
        for name, part in stored_bytes(tensor).items():
            data = part.clone() if self.options.copy else part
            setattr(module, name, nn.Parameter(data, requires_grad=False))

    def _values(self, tensor: StoredTensor, dtype: torch.dtype) -> torch.Tensor:
        values = values_of(tensor, dtype)
        return values.clone() if self.options.copy else values


def set_parameter(model: nn.Module, name: str, values: torch.Tensor) -> None:
    """Replace a parameter by values."""
    path, _, parameter = name.rpartition(".")
    setattr(model.get_submodule(path), parameter, nn.Parameter(values, requires_grad=False))


def folder_of(files: Any) -> Path:
    """Return the folder of a checkpoint's files; raise UsageError if there are none."""
    if not files:
        raise UsageError(
            "SquishConfig needs a checkpoint folder",
            expected="from_pretrained(folder, config=..., ...)",
            code=ErrorCode.USAGE,
            hint="For a file of another format call squish_torch.from_pretrained(path).",
        )
    return Path(files[0]).parent
