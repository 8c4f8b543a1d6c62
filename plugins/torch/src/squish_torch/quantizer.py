"""The quantizer `squish` of transformers, which loads stored codes into compressed modules."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING
from transformers.utils.quantization_config import QuantizationConfigMixin

from squish_core.api import UsageError

from .checkpoint import PendingModules, folder_of, replace_modules
from .experts import stack_forms
from .modules import take_forms
from .replacement import ModuleOptions, dequantize_modules
from .saving import attach, detach
from .state import LazyState

METHOD = "squish"
_states: WeakKeyDictionary[Any, LazyState] = WeakKeyDictionary()


class ClassName(str):
    """A name of a config class whose comparison raises a helpful error.

    Transformers compares it with the class name of the checkpoint's own config, and rejects the checkpoint if they
    differ; this class states what to call instead.
    """

    __slots__ = ()

    def __ne__(self, other: object) -> bool:
        names = {config.__name__ for config in AUTO_QUANTIZATION_CONFIG_MAPPING.values()}
        if str.__ne__(self, other) and other in names:
            raise UsageError(
                "config.json declares another quantization",
                expected="a config without quantization_config",
                found=str(other),
                code="quant-method",
                hint="Call from_pretrained(folder, config=squish_torch.config_of(folder), "
                "quantization_config=SquishConfig()), or squish_torch.from_pretrained(folder).",
            )
        return str.__ne__(self, other)

    __eq__, __hash__ = str.__eq__, str.__hash__


class SquishConfig(QuantizationConfigMixin):
    """The quantization config for compressed modules.

    Parameters
    ----------
    backend
        Backend id, with options for some; the best for each tensor by default.
    on_unsupported
        For a tensor that the backend does not run: "error", or "dense" to decode its values.
    copy
        Copy stored parts into memory, so that later changes to the file do not reach them.
    """

    def __init__(self, backend: str = "", *, on_unsupported: str = "error", copy: bool = False, **ignored: Any) -> None:
        self.quant_method = METHOD
        options = ModuleOptions(backend, on_unsupported, copy)
        self.backend, self.on_unsupported, self.copy = options.backend, options.on_unsupported, options.copy

    @property
    def options(self) -> ModuleOptions:
        """How to load weights."""
        return ModuleOptions(self.backend, self.on_unsupported, self.copy)

    __eq__, __hash__ = object.__eq__, object.__hash__

    def attach(self, state: LazyState) -> SquishConfig:
        """Attach the state dict of the model to load, and return this config."""
        _states[self] = state
        return self

    def get(self, key: str, default: Any = None) -> Any:
        """Get a value as from a dictionary; transformers uses both forms."""
        return getattr(self, key, default)


SquishConfig.__name__ = ClassName(SquishConfig.__name__)


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
        return False  # nothing else loads a state dict of bytes; `saving.save_pretrained` converts the file

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        options = self.quantization_config.options
        state = _states.pop(self.quantization_config, None)
        if state is not None:
            replace_modules(model, state, options)
            attach(model, state)
        else:
            self._pending = PendingModules(model, folder_of(kwargs.get("checkpoint_files")), options)
        return model

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        if self._pending is not None:
            self._pending.fill(model)
            attach(model, self._pending.state)
            self._pending = None
        take_forms(model)
        stack_forms(model)
        return model

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        dequantize_modules(model, dtype)
        detach(model)
        return model


if METHOD not in AUTO_QUANTIZATION_CONFIG_MAPPING:
    register_quantization_config(METHOD)(SquishConfig)
    register_quantizer(METHOD)(SquishQuantizer)
