"""A KV cache for mlx_lm that compresses all but the newest tokens, like `squish_codecs.kv` (KIVI, 2024)."""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from squish_core.api import CodecError, ErrorCode

BITS, GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)
"""Widths and group sizes of `mx.quantize`."""
Arrays = tuple[mx.array, ...]


class Cache:
    """Keys and values of one attention layer, one per layer in mlx_lm's `prompt_cache`.

    The newest `residual` tokens stay in the type of the input. After every `group_size` further tokens, the oldest are
    quantized: keys in groups of tokens (per channel), values in groups of channels (per token).

    Parameters
    ----------
    bits
        Bits of a code: 2, 3, 4, 5, 6 or 8.
    group_size
        Values per scale and bias: 32, 64 or 128.
    residual
        Number of newest tokens to keep unquantized.

    Notes
    -----
    The interface is that of mlx_lm 0.32.2: `update_and_fetch`, `offset`, `state`, `make_mask`, `trim`. There is no
    attribute `bits`, by which mlx_lm recognizes caches of its own packing.

    Examples
    --------
    >>> import mlx.core as mx
    >>> from squish_metal.kv import Cache
    >>> cache = Cache(bits=4, group_size=32, residual=32)
    >>> new = mx.ones((1, 2, 100, 64), mx.float16)
    >>> keys, values = cache.update_and_fetch(new, new)
    >>> keys.shape, keys.dtype, cache.offset, cache.nbytes / (2 * new.nbytes)
    ((1, 2, 100, 64), mlx.core.float16, 100, 0.56)
    """

    def __init__(self, bits: int = 8, group_size: int = 32, residual: int = 128) -> None:
        if bits not in BITS or group_size not in GROUPS or residual < 0:
            raise CodecError(
                "unsupported settings of a KV cache",
                code=ErrorCode.PARAMS,
                expected=f"bits of {BITS}, group_size of {GROUPS}, residual from 0",
                found=f"bits {bits}, group_size {group_size}, residual {residual}",
            )
        self._settings = (bits, group_size, residual)
        self._packed: tuple[Arrays, Arrays] | None = None
        self._newest: tuple[mx.array, mx.array] | None = None
        self.offset = 0

    @classmethod
    def from_state(cls, state: Any) -> Cache:
        """Return the cache that has this `state`."""
        cache = cls()
        cache.state = state
        return cache

    @property
    def state(self) -> Any:
        """Codes, scales and biases of keys and of values, the newest keys and values, and the settings, as a tree."""
        return self._packed, self._newest, self.offset, self._settings

    @state.setter
    def state(self, state: Any) -> None:
        packed, newest, self.offset, settings = state
        self._settings = tuple(settings)
        self._packed = None if packed is None else (tuple(packed[0]), tuple(packed[1]))
        self._newest = None if newest is None else tuple(newest)

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        """Append tokens and return all keys and values.

        Parameters
        ----------
        keys, values
            Floats [batch, heads, tokens, channels]; keys and values may have different channels.

        Returns
        -------
        tuple of mlx.core.array
            Keys and values of all tokens, in the type of the input.

        Raises
        ------
        CodecError
            `shape` if groups do not divide the channels of the values.
        """
        if values.shape[-1] % self._settings[1]:
            raise CodecError(
                "groups do not divide the channels",
                code="shape",
                expected=f"a multiple of {self._settings[1]}",
                found=f"values {list(values.shape)}",
            )
        newest = (keys, values)
        if self._newest is not None:
            newest = _joined(self._newest, newest)
        self._newest = newest
        self.offset += keys.shape[-2]
        result = newest if self._packed is None else _joined(self._dequantized(keys.dtype), newest)
        self._pack_oldest()
        return result

    def make_mask(
        self, count: int, return_array: bool = False, window_size: int | None = None
    ) -> mx.array | str | None:
        """Return the causal mask of `count` new tokens, as mlx_lm's caches do."""
        if window_size is None and (count == 1 or not return_array):
            return None if count == 1 else "causal"
        columns = mx.arange(self.offset + count)[None]
        rows = mx.arange(self.offset, self.offset + count)[:, None]
        mask = rows >= columns
        return mask if window_size is None else mask & (rows < columns + window_size)

    def is_trimmable(self) -> bool:
        """Return whether `trim` removes tokens."""
        return True

    def trim(self, count: int) -> int:
        """Remove the newest tokens, and return their number; a partly removed group is dequantized."""
        count = min(self.offset, count)
        left = self.offset - count
        if self._newest is not None and count:
            packed = self.offset - self._newest[0].shape[-2]
            if left < packed:  # the last groups become newest tokens again
                whole = left // self._settings[1] * self._settings[1]
                dense = self._dequantized(self._newest[0].dtype)
                self._newest = (dense[0][..., whole:left, :], dense[1][..., whole:left, :])
                self._packed = self._first(whole) if whole else None
            else:
                self._newest = (self._newest[0][..., : left - packed, :], self._newest[1][..., : left - packed, :])
        self.offset = left
        return count

    def size(self) -> int:
        """Return the number of tokens."""
        return self.offset

    def empty(self) -> bool:
        """Return whether the cache is empty."""
        return self.offset == 0

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, biases and the newest tokens."""
        packed = [] if self._packed is None else [*self._packed[0], *self._packed[1]]
        return sum(array.nbytes for array in (*packed, *(self._newest or ())))

    def _pack_oldest(self) -> None:
        """Quantize the tokens beyond the residual that fill groups."""
        assert self._newest is not None
        bits, group, residual = self._settings
        keys, values = self._newest
        old = max(keys.shape[-2] - residual, 0) // group * group
        if not old:
            return
        added = (
            tuple(mx.quantize(keys[..., :old, :].swapaxes(-1, -2), group_size=group, bits=bits)),
            tuple(mx.quantize(values[..., :old, :], group_size=group, bits=bits)),
        )
        if self._packed is not None:
            added = (
                tuple(mx.concatenate([*pair], axis=-1) for pair in zip(self._packed[0], added[0])),
                tuple(mx.concatenate([*pair], axis=-2) for pair in zip(self._packed[1], added[1])),
            )
        self._packed = added
        self._newest = (keys[..., old:, :], values[..., old:, :])

    def _dequantized(self, dtype: mx.Dtype) -> tuple[mx.array, mx.array]:
        assert self._packed is not None
        bits, group, _ = self._settings
        keys, values = (
            mx.dequantize(codes, scales, biases, group_size=group, bits=bits) for codes, scales, biases in self._packed
        )
        return keys.swapaxes(-1, -2).astype(dtype), values.astype(dtype)

    def _first(self, tokens: int) -> tuple[Arrays, Arrays]:
        """Return the codes of the first tokens, a whole number of groups."""
        assert self._packed is not None
        bits, group, _ = self._settings
        (codes, *grids), values = self._packed
        keys = (codes[..., : tokens * bits // 32], *(grid[..., : tokens // group] for grid in grids))
        return keys, tuple(array[..., :tokens, :] for array in values)


def _joined(before: tuple[mx.array, mx.array], after: tuple[mx.array, mx.array]) -> tuple[mx.array, mx.array]:
    keys, values = (mx.concatenate([*pair], axis=-2) for pair in zip(before, after))
    return keys, values
