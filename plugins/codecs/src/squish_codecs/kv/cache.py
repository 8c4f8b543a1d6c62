"""A KV cache of one layer that compresses all but the newest tokens."""

from __future__ import annotations

import numpy as np
from attrs import field, mutable

from squish_core.api import CodecError

from .groups import KEYS, VALUES, Groups, quantize
from .selection import select_tokens

Array = np.ndarray


@mutable(eq=False)
class Cache:
    """Keys and values of one attention layer, quantized like KIVI and pruned like SnapKV.

    The newest `residual` tokens stay unquantized. After every `group_size` further tokens, the oldest are quantized:
    keys in groups of tokens (per channel), values in groups of channels (per token).

    Parameters
    ----------
    bits
        Bits of a code: 2, 4 or 8.
    group_size
        Values per scale and zero point.
    residual
        Number of newest tokens to keep unquantized.
    keep
        Number of prompt tokens to keep (SnapKV); None keeps all.
    kernel
        Width of SnapKV's average pooling; odd.

    Notes
    -----
    KIVI (2024), algorithm 1, with its group size of 32 and residual of 128; SnapKV (2024), listing 1. For NumPy arrays:
    the cache for mlx_lm is `squish_metal.kv.Cache`, that for transformers `squish_torch.CompressedCache`.

    Examples
    --------
    >>> import numpy as np
    >>> from squish_codecs.kv import Cache
    >>> cache = Cache(bits=4, group_size=32, residual=32)
    >>> new = np.ones((1, 2, 100, 64), np.float16)
    >>> keys, values = cache.update_and_fetch(new, new)
    >>> keys.shape, keys.dtype, len(cache), cache.nbytes / (2 * new.nbytes)
    ((1, 2, 100, 64), dtype('float32'), 100, 0.56)
    """

    bits: int = 8
    group_size: int = 32
    residual: int = 128
    keep: int | None = None
    kernel: int = 7
    offset: int = field(default=0, init=False)
    """Position of the next token, counting tokens dropped by SnapKV."""
    _groups: tuple[list[Groups], list[Groups]] = field(factory=lambda: ([], []), init=False)
    _newest: list[Array] = field(factory=list, init=False)
    _dense: list[Array] = field(factory=list, init=False)
    """f32 keys and values with spare capacity; `update_and_fetch` returns views of them."""
    _tokens: int = field(default=0, init=False)

    def __len__(self) -> int:
        """Return the number of tokens in the cache."""
        return self._tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed and the newest tokens, without the f32 copy for `update_and_fetch`."""
        keys, values = self._groups
        return sum(groups.nbytes for groups in keys + values) + sum(array.nbytes for array in self._newest)

    def update_and_fetch(self, keys: Array, values: Array, queries: Array | None = None) -> tuple[Array, Array]:
        """Append tokens and return all keys and values; the cost is proportional to the new tokens.

        Parameters
        ----------
        keys, values
            Floats [..., heads, tokens, channels]; keys and values may have different channels.
        queries
            [..., query heads, window, channels] for the last tokens of the prompt; required if the prompt is longer
            than `keep`.

        Returns
        -------
        tuple of numpy.ndarray
            Keys and values, f32 [..., heads, tokens, channels], read-only views overwritten by the next call. The
            whole prompt is returned, even if SnapKV keeps only part of it for later steps.

        Raises
        ------
        CodecError
            `shape` if the arrays do not match each other or the cache; `range` if a group does not fit f16.
        """
        self._check(keys, values)
        if self.keep is not None and not self._tokens and keys.shape[-2] > self.keep:
            prompt = keys.astype(np.float32), values.astype(np.float32)
            self._append(*self._select(keys, values, queries))
            self.offset += keys.shape[-2]
            return prompt
        self._append(keys, values)
        self.offset += keys.shape[-2]
        return self.fetch()

    def fetch(self) -> tuple[Array, Array]:
        """Return all keys and values in order, f32; read-only views overwritten by the next update."""
        if not self._dense:
            raise CodecError("the cache is empty", code="empty")
        keys, values = (array[..., : self._tokens, :] for array in self._dense)
        keys.flags.writeable = values.flags.writeable = False
        return keys, values

    def _check(self, keys: Array, values: Array) -> None:
        old = [array.shape[:-2] + array.shape[-1:] for array in self._newest]
        new = [array.shape[:-2] + array.shape[-1:] for array in (keys, values)]
        if keys.ndim < 2 or keys.shape[:-1] != values.shape[:-1] or (old and old != new):
            raise CodecError(
                "keys and values do not match each other or the cache",
                code="shape",
                expected=f"{[list(shape) for shape in old] or list(keys.shape)}",
                found=f"keys {list(keys.shape)}, values {list(values.shape)}",
            )
        if not old:  # refuse invalid settings at the first token, not at the first full group
            for array, axis in ((keys, KEYS), (values, VALUES)):
                quantize(array[..., :0, :], axis, self.bits, self.group_size)

    def _select(self, keys: Array, values: Array, queries: Array | None) -> tuple[Array, Array]:
        """Select the prompt tokens to keep (SnapKV)."""
        assert self.keep is not None
        if queries is None:
            raise CodecError(
                "a prompt longer than `keep` needs its last queries",
                code="shape",
                expected="queries=",
                found=f"{keys.shape[-2]} tokens, keep={self.keep}",
            )
        tokens = select_tokens(queries, keys, self.keep, kernel=self.kernel)[..., None]
        return np.take_along_axis(keys, tokens, axis=-2), np.take_along_axis(values, tokens, axis=-2)

    def _append(self, keys: Array, values: Array) -> None:
        """Append tokens and quantize those beyond the residual."""
        newest = [keys, values]
        if self._newest:
            newest = [np.concatenate(pair, axis=-2) for pair in zip(self._newest, newest)]
        count = newest[0].shape[-2]
        old = max(count - self.residual, 0) // self.group_size * self.group_size
        groups = [
            quantize(array[..., :old, :], axis, self.bits, self.group_size)
            for array, axis in zip(newest, (KEYS, VALUES))
            if old
        ]
        self._tokens += keys.shape[-2]
        first = self._tokens - count
        for number, added in enumerate((keys, values)):
            dense = self._room(number, added)
            dense[..., self._tokens - added.shape[-2] : self._tokens, :] = added
            if groups:
                self._groups[number].append(groups[number])
                dense[..., first : first + old, :] = groups[number].dequantize()
        # A view would keep the quantized tokens in memory.
        self._newest = [array[..., old:, :].copy() for array in newest]

    def _room(self, number: int, added: Array) -> Array:
        """Return the f32 copy of keys (0) or values (1), with capacity for all tokens; capacity doubles."""
        if number == len(self._dense):
            self._dense.append(np.empty((*added.shape[:-2], 0, added.shape[-1]), np.float32))
        dense = self._dense[number]
        if dense.shape[-2] < self._tokens:
            room = max(2 * dense.shape[-2], self._tokens, 256)
            larger = np.empty((*dense.shape[:-2], room, dense.shape[-1]), np.float32)
            larger[..., : dense.shape[-2], :] = dense
            self._dense[number] = dense = larger
        return dense
