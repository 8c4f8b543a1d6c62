"""The quantizer `squish` of transformers: replaces modules so that stored codes are loaded as they are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from squish_core.api import ErrorCode, UsageError
from squish_core.api import open as open_file

from .modules import CompressedEmbedding, CompressedLinear, stored_bytes
from .replacement import (
    compressed_module,
    dequantize_modules,
    experts_module,
    replaceable,
    replaceable_experts,
    tied_parts,
)
from .state import LazyState
from .values import values_of

METHOD = "squish"
_states: WeakKeyDictionary[Any, LazyState] = WeakKeyDictionary()


class SquishConfig(QuantizationConfigMixin):
    """Tells transformers that modules stay compressed.

    Parameters
    ----------
    backend
        Backend id, with options for some; the best for each tensor by default.
    """

    def __init__(self, backend: str = "", **ignored: Any) -> None:
        self.quant_method = METHOD
        self.backend = backend

    __eq__, __hash__ = object.__eq__, object.__hash__

    def attach(self, state: LazyState) -> SquishConfig:
        """This config, with the state dict of the model that is being loaded."""
        _states[self] = state
        return self

    def get(self, key: str, default: Any = None) -> Any:
        """As of a dictionary: transformers asks both forms."""
        return getattr(self, key, default)


class SquishQuantizer(HfQuantizer):
    """Replaces linear and embedding modules whose tensors are compressed."""

    def __init__(self, quantization_config: SquishConfig, **kwargs: Any) -> None:
        super().__init__(quantization_config, **{**kwargs, "pre_quantized": True})
        self._pending: PendingModules | None = None

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True

    def is_serializable(self) -> bool:
        return False  # `squish.convert` writes the file in any format; a state dict of bytes would load nowhere else

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        backend = self.quantization_config.backend
        state = _states.pop(self.quantization_config, None)
        if state is not None:
            replace_modules(model, state, backend)
        else:
            self._pending = PendingModules(model, folder_of(kwargs.get("checkpoint_files")), backend)
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self._pending is not None:
            self._pending.fill(model)
            self._pending = None
        return model

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        dequantize_modules(model, dtype)
        return model


if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config(METHOD)(SquishConfig)
    register_quantizer(METHOD)(SquishQuantizer)


def replace_modules(model: Any, state: LazyState, backend: str) -> None:
    """Put compressed modules on meta in the place of those whose tensors are compressed, tied ones and experts
    included; the loader fills them from the state."""
    for path, module, source in list(replaceable(model, state.file)):
        new = compressed_module(module, state.file[source], backend, state.dtype)
        model.set_submodule(path, new)
        state.compressed[path] = source
        if source != f"{path}.weight":
            state.tied.add(path)
            model.all_tied_weights_keys.update(tied_parts(new, path, source))
    for path, module, tensors in list(replaceable_experts(model, state.file)):
        experts = experts_module(module, tensors, state.file, backend, state.dtype)
        model.set_submodule(path, experts)
        for number, names in enumerate(tensors):
            for projection, name in zip(("gate_proj", "up_proj", "down_proj"), names):
                place = f"{path}.{number}.{projection}"
                if isinstance(experts.get_submodule(f"{number}.{projection}"), CompressedLinear):
                    state.compressed[place] = name
                else:
                    state.renamed[name] = f"{place}.weight"


class PendingModules:
    """Compressed modules of a checkpoint folder that transformers itself reads: it fills what is not compressed, while
    placeholders without parameters stand in the place of the others.

    Parameters
    ----------
    model
        On meta.
    folder
        The checkpoint.
    backend
        Backend id, with options for some.
    """

    def __init__(self, model: Any, folder: Path, backend: str) -> None:
        self.file, self.modules = open_file(folder), dict[str, tuple[nn.Module, str]]()
        dtype = model.dtype
        for path, module, source in list(replaceable(model, self.file)):
            self.modules[path] = compressed_module(module, self.file[source], backend, dtype), source
            if getattr(module, "bias", None) is not None:
                self.modules[path][0].bias = None  # taken from the file, too
        for path in self.modules:
            model.set_submodule(path, nn.Identity())
            model.all_tied_weights_keys.pop(f"{path}.weight", None)
        stored = "|".join(re.escape(path) for path in self.modules)
        if stored:
            ignored = getattr(model, "_keys_to_ignore_on_load_unexpected", None) or set()
            model._keys_to_ignore_on_load_unexpected = {*ignored, rf"^({stored})\."}

    def fill(self, model: Any) -> None:
        """Put the modules with their parts into the model; a tied one shares those of its owner."""
        owners: dict[str, nn.Module] = {}
        for path, (module, source) in self.modules.items():
            if source in owners:
                for name in module._names.values():
                    setattr(module, name, getattr(owners[source], name))
            else:
                for name, part in stored_bytes(self.file[source]).items():
                    setattr(module, name, nn.Parameter(part, requires_grad=False))
                owners[source] = module
            bias = f"{path}.bias"
            if isinstance(module, CompressedLinear) and bias in self.file:
                module.bias = nn.Parameter(values_of(self.file[bias], model.dtype), requires_grad=False)
            if isinstance(module, CompressedEmbedding):
                module._like = torch.empty(0, dtype=model.dtype)
            model.set_submodule(path, module)
            if source != f"{path}.weight":
                model.all_tied_weights_keys.update(tied_parts(module, path, source))


def folder_of(files: Any) -> Path:
    """The folder of a checkpoint's files; UsageError where there are none."""
    if not files:
        raise UsageError(
            "SquishConfig is for a checkpoint folder", expected="from_pretrained(folder, config=..., ...)",
            code=ErrorCode.USAGE,
            hint="For a file of another format call squish_torch.from_pretrained(path).",
        )  # fmt: skip
    return Path(files[0]).parent
