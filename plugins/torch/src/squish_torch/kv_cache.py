"""Compressed KV caches under transformers: KIVI's quantization and SnapKV's selection of `squish_codecs.kv`."""

from __future__ import annotations

from typing import Any
from weakref import WeakValueDictionary

import torch
from squish_codecs.api import Cache as ArrayCache
from transformers import AttentionInterface
from transformers import Cache as TransformersCache
from transformers.cache_utils import CacheLayerMixin, DynamicSlidingWindowLayer
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from squish_core.api import ErrorCode, UsageError

ATTENTION = "squish_snapkv"
"""The attention implementation of transformers that passes the queries of a prompt to the cache."""
_prompts: WeakValueDictionary[int, CompressedLayer] = WeakValueDictionary()
"""Id of a prompt's keys (kept alive by the layer) -> the layer that waits for their queries."""


class CompressedCache(TransformersCache):
    """A KV cache of transformers that compresses all but the newest tokens.

    The newest `residual` tokens stay uncompressed; older keys are quantized per channel and values per token, in groups
    of `group_size`. Layers with a sliding window use transformers' cache.

    Parameters
    ----------
    model
        The model; with `keep`, its attention implementation becomes `ATTENTION` (sdpa that passes queries on).
    bits, group_size, residual, keep, kernel
        As in `squish_codecs.kv.Cache`; `keep` reduces a longer prompt to this number of tokens per head (SnapKV).
    window
        Number of last queries of a prompt that select them.

    Raises
    ------
    CodecError
        The settings do not fit the model's heads; raised at the first token.

    Examples
    --------
    >>> cache = CompressedCache(model, bits=4)  # doctest: +SKIP
    >>> model.generate(**inputs, past_key_values=cache)  # doctest: +SKIP
    """

    def __init__(
        self,
        model: Any,
        *,
        bits: int = 8,
        group_size: int = 32,
        residual: int = 128,
        keep: int | None = None,
        kernel: int = 7,
        window: int = 32,
    ) -> None:
        config = model.config.get_text_config(decoder=True)
        kinds = getattr(config, "layer_types", None) or ["full_attention"] * config.num_hidden_layers
        settings = {"bits": bits, "group_size": group_size, "residual": residual, "keep": keep, "kernel": kernel}
        super().__init__(
            layers=[
                DynamicSlidingWindowLayer(config.sliding_window)
                if kind == "sliding_attention"
                else CompressedLayer(settings, window)
                for kind in kinds
            ]
        )
        if keep is not None:
            model.set_attn_implementation(ATTENTION)

    @property
    def nbytes(self) -> int:
        """Bytes of all tokens, compressed or not, sliding-window layers included."""
        total = 0
        for layer in self.layers:
            if isinstance(layer, CompressedLayer):
                total += layer.array_cache.nbytes
            elif layer.is_initialized:
                total += layer.keys.nbytes + layer.values.nbytes
        return total


class CompressedLayer(CacheLayerMixin):
    """The cache of one layer."""

    is_croppable = False
    is_sliding = False

    def __init__(self, settings: dict[str, Any], window: int) -> None:
        super().__init__()
        self._settings, self._window = settings, window
        self.array_cache = ArrayCache(**settings)
        self._prompt: tuple[torch.Tensor, torch.Tensor] | None = None

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        self.dtype, self.device, self.is_initialized = key_states.dtype, key_states.device, True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append tokens, and return all keys and values in the dtype of the new ones."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        if self._prompt is not None:
            raise UsageError(
                "the cache did not receive the queries of the prompt",
                code=ErrorCode.USAGE,
                hint=f'Call model.set_attn_implementation("{ATTENTION}").',
            )
        cache, keep = self.array_cache, self._settings["keep"]
        if keep is not None and not len(cache) and key_states.shape[-2] > keep:
            self._prompt = key_states, value_states
            _prompts[id(key_states)] = self
            return key_states, value_states
        keys, values = cache.update_and_fetch(_array(key_states), _array(value_states))
        return self._tensor(keys), self._tensor(values)

    def select(self, queries: torch.Tensor) -> None:
        """Store the tokens of the prompt that its last queries attend to."""
        assert self._prompt is not None
        keys, values = map(_array, self._prompt)
        self.array_cache.update_and_fetch(keys, values, _array(queries[..., -self._window :, :]))
        self._prompt = None

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the number of keys, and the position of the first; selected tokens count as the newest."""
        cache = self.array_cache
        return len(cache) + query_length, cache.offset - len(cache)

    def get_seq_length(self) -> int:
        """Return the position of the next token."""
        return self.array_cache.offset

    def get_max_length(self) -> int:
        """Return -1: there is no maximum."""
        return -1

    def reset(self) -> None:
        """Drop all tokens."""
        self.array_cache, self._prompt = ArrayCache(**self._settings), None

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Refuse beam search."""
        raise UsageError(
            "a compressed cache does not support beam search", code=ErrorCode.USAGE, hint="Use num_beams=1."
        )

    def _tensor(self, array: Any) -> torch.Tensor:
        return torch.tensor(array, dtype=self.dtype, device=self.device)


def _array(states: torch.Tensor) -> Any:
    return states.detach().float().cpu().numpy()


def attention(
    module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: Any, **options: Any
) -> tuple[torch.Tensor, Any]:
    """Run transformers' scaled dot-product attention, then pass the queries of a prompt to its cache."""
    result = sdpa_attention_forward(module, query, key, value, mask, **options)
    layer = _prompts.pop(id(key), None)
    if layer is not None:
        layer.select(query)
    return result


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, sdpa_mask)
