"""The quantizer `squish` of transformers: replaces modules so that stored codes are loaded as they are."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from squish_core.api import DENSE, describe

from .modules import CompressedEmbedding, CompressedLinear, part_names
from .state import LazyState

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

    @property
    def is_trainable(self) -> bool:
        return False

    @property
    def is_compileable(self) -> bool:
        return True

    def is_serializable(self) -> bool:
        return True

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        state = _states.pop(self.quantization_config)
        replace_modules(model, state, self.quantization_config.backend)
        return model

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        dequantize_modules(model, dtype)
        return model


if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config(METHOD)(SquishConfig)
    register_quantizer(METHOD)(SquishQuantizer)


def replace_modules(model: Any, state: LazyState, backend: str) -> None:
    """Put compressed modules in the place of those whose tensors are compressed, tied ones included."""
    ties = dict(getattr(model, "all_tied_weights_keys", {}))
    modules = dict(model.named_modules())
    for path, module in modules.items():
        tensor_name = f"{path}.weight"
        source = tensor_name if tensor_name in state.file else ties.get(tensor_name)
        if source is None or source not in state.file or not is_replaceable(module):
            continue
        tensor = state.file[source]
        encoding = tensor.bound.encoding
        if encoding.codec == DENSE or len(tensor.shape) != 2:
            continue
        description = describe(tensor.spec, encoding)
        options = {"backend": backend, "device": "meta", "dtype": state.dtype}
        if isinstance(module, nn.Linear):
            new: nn.Module = CompressedLinear(description, bias=module.bias is not None, **options)
        else:
            new = CompressedEmbedding(description, scale=getattr(module, "scalar_embed_scale", None), **options)
        model.set_submodule(path, new)
        state.compressed[path] = source
        if source != tensor_name:
            owner = source.removesuffix(".weight")
            for name in part_names(description).values():
                model.all_tied_weights_keys[f"{path}.{name}"] = f"{owner}.{name}"


def is_replaceable(module: nn.Module) -> bool:
    """Whether a compressed module computes the same: a subclass may compute something else."""
    if type(module) in (nn.Linear, nn.Embedding):
        return True
    return isinstance(module, nn.Embedding) and hasattr(module, "scalar_embed_scale")


def dequantize_modules(model: nn.Module, dtype: torch.dtype) -> None:
    """Put plain modules with the decoded values in the place of the compressed ones; ties stay ties."""
    decoded: dict[int, nn.Parameter] = {}
    for path, module in list(model.named_modules()):
        if not isinstance(module, (CompressedLinear, CompressedEmbedding)):
            continue
        key = module.parts[0].data_ptr()
        if key not in decoded:
            decoded[key] = nn.Parameter(module.dequantize(dtype), requires_grad=False)
        rows, columns = module.shape
        if isinstance(module, CompressedLinear):
            new: nn.Module = nn.Linear(columns, rows, bias=module.bias is not None, device="meta", dtype=dtype)
            new.bias = module.bias
        else:
            new = ScaledEmbedding(rows, columns, module.scale) if module.scale else nn.Embedding(
                rows, columns, device="meta", dtype=dtype
            )  # fmt: skip
        new.weight = decoded[key]
        model.set_submodule(path, new)


class ScaledEmbedding(nn.Embedding):
    """An embedding whose rows are multiplied by a constant."""

    def __init__(self, rows: int, columns: int, scale: float) -> None:
        super().__init__(rows, columns, device="meta")
        self.scalar_embed_scale = scale

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        rows = super().forward(ids)
        return rows * torch.tensor(self.scalar_embed_scale, dtype=rows.dtype, device=rows.device)
