"""A cache of the keys and values of one layer that compresses all but the newest tokens."""

from __future__ import annotations

import numpy as np
from attrs import field, mutable

from squish_core.api import CodecError

from .groups import KEYS, VALUES, Groups, quantize
from .selection import select_tokens

Array = np.ndarray


@mutable(eq=False)
class Cache:
    """Keys and values of one attention layer, compressed as KIVI does, and thinned out as SnapKV does.

    The newest `residual` tokens stay as they came. Whenever `group_size` more have come, the oldest of them are
    quantized: keys in groups of tokens (by channel), values in groups of channels (by token).

    Parameters
    ----------
    bits
        Bits of a code: 2, 4 or 8.
    group_size
        Values that share a scale and a zero point.
    residual
        Newest tokens that stay as they came.
    keep
        Tokens of the prompt that stay (SnapKV); None keeps all.
    kernel
        Neighbors over which SnapKV averages attention; odd.

    Notes
    -----
    KIVI (2024), algorithm 1, with 32 and 128 as its settings of group size and residual; SnapKV (2024), listing 1.
    `update_and_fetch` works as that of mlx_lm's caches.

    Examples
    --------
    >>> import numpy as np
    >>> from squish_codecs.kv import Cache
    >>> cache = Cache(bits=4, group_size=32, residual=32)
    >>> new = np.ones((1, 2, 100, 64), np.float16)
    >>> keys, values = cache.update_and_fetch(new, new)
    >>> keys.shape, keys.dtype, len(cache), cache.nbytes / (2 * new.nbytes)
    ((1, 2, 100, 64), dtype('float32'), 100, 0.54...)
    """

    bits: int = 8
    group_size: int = 32
    residual: int = 128
    keep: int | None = None
    kernel: int = 7
    offset: int = field(default=0, init=False)
    """Tokens seen, those that SnapKV dropped included: the position of the next token."""
    _stored: tuple[list[Groups], list[Groups]] = field(factory=lambda: ([], []), init=False)
    _newest: list[Array] = field(factory=list, init=False)
    _dense: list[Array] = field(factory=list, init=False)
    """Keys and values in f32, with room for more tokens: what `update_and_fetch` returns views of."""
    _tokens: int = field(default=0, init=False)

    def __len__(self) -> int:
        """Tokens in the cache."""
        return self._tokens

    @property
    def nbytes(self) -> int:
        """Bytes of the compressed tokens and of the newest; without the f32 copy that `update_and_fetch` returns."""
        keys, values = self._stored
        return sum(groups.nbytes for groups in keys + values) + sum(array.nbytes for array in self._newest)

    def update_and_fetch(self, keys: Array, values: Array, queries: Array | None = None) -> tuple[Array, Array]:
        """Append tokens and return all keys and values; a step costs as much as the tokens it adds.

        Parameters
        ----------
        keys, values
            Floats [..., heads, tokens, channels]; channels of keys and values may differ.
        queries
            [..., query heads, window, channels] of the last tokens of the prompt; needed where `keep` is smaller than
            the prompt.

        Returns
        -------
        tuple of numpy.ndarray
            Keys and values, f32 [..., heads, tokens, channels], read-only views that the next call overwrites. The
            prompt comes back whole, also where SnapKV keeps a part of it for the steps that follow.

        Raises
        ------
        CodecError
            `shape` where the arrays do not fit each other or the cache; `range` where a group does not fit f16.
        """
        self._check(keys, values)
        if self.keep is not None and not self._tokens and keys.shape[-2] > self.keep:
            whole = keys.astype(np.float32), values.astype(np.float32)
            self._append(*self._selected(keys, values, queries))
            self.offset += keys.shape[-2]
            return whole
        self._append(keys, values)
        self.offset += keys.shape[-2]
        return self.fetch()

    def fetch(self) -> tuple[Array, Array]:
        """All keys and values in the order in which they came, f32; read-only views that the next update overwrites."""
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
                "keys and values do not fit each other or the cache", code="shape",
                expected=f"{[list(shape) for shape in old] or list(keys.shape)}",
                found=f"keys {list(keys.shape)}, values {list(values.shape)}",
            )  # fmt: skip
        if not old:  # a setting that fits no token is refused before the first, not when the first group is full
            for array, axis in ((keys, KEYS), (values, VALUES)):
                quantize(array[..., :0, :], axis, self.bits, self.group_size)

    def _selected(self, keys: Array, values: Array, queries: Array | None) -> tuple[Array, Array]:
        """The tokens of the prompt that SnapKV keeps."""
        assert self.keep is not None
        if queries is None:
            raise CodecError(
                "the prompt is longer than `keep`, and which tokens stay depends on its last queries", code="shape",
                expected="queries=", found=f"{keys.shape[-2]} tokens, keep={self.keep}",
            )  # fmt: skip
        chosen = select_tokens(queries, keys, self.keep, kernel=self.kernel)[..., None]
        return np.take_along_axis(keys, chosen, axis=-2), np.take_along_axis(values, chosen, axis=-2)

    def _append(self, keys: Array, values: Array) -> None:
        """Add tokens to the newest, and quantize those of them that are old enough."""
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
                self._stored[number].append(groups[number])
                dense[..., first : first + old, :] = groups[number].dequantize()
        # Copies: views would keep the quantized tokens in memory.
        self._newest = [array[..., old:, :].copy() for array in newest]

    def _room(self, number: int, added: Array) -> Array:
        """The f32 copy of keys (0) or values (1), with room for all tokens; it doubles, so a step is cheap."""
        if number == len(self._dense):
            self._dense.append(np.empty((*added.shape[:-2], 0, added.shape[-1]), np.float32))
        dense = self._dense[number]
        if dense.shape[-2] < self._tokens:
            room = max(2 * dense.shape[-2], self._tokens, 256)
            larger = np.empty((*dense.shape[:-2], room, dense.shape[-1]), np.float32)
            larger[..., : dense.shape[-2], :] = dense
            self._dense[number] = dense = larger
        return dense
