"""Keys and values of attention in eight bits, and the choice of those worth keeping; functions of arrays."""

from __future__ import annotations

import numpy as np
from attrs import field, frozen, mutable

from squish_core.api import CodecError

Array = np.ndarray
KEYS, VALUES = -2, -1
"""The axis that shares a scale: keys are scaled by channel (over tokens), values by token (over channels)."""


@frozen(eq=False)
class Quantised:
    """`codes * scale`: codes i8 [..., tokens, channels]; scale f32, 1 long along the axis that shares it."""

    codes: Array
    scale: Array

    def dense(self) -> Array:
        """The values, f32."""
        return np.asarray(self.codes * self.scale, np.float32)


def quantise(values: Array, axis: int) -> Quantised:
    """Symmetric INT8 with one scale along `axis` (KEYS or VALUES): absmax / 127, codes rounded half to even.

    A value comes back within half a scale step, up to rounding in float32. CodecError for values that are not finite.
    Source: KIVI (2024), section 3.
    """
    largest = np.abs(values).max(axis=axis, keepdims=True, initial=0).astype(np.float32)
    if not np.isfinite(largest).all():
        raise CodecError("values that are not finite cannot be encoded", code="range")
    # Rounded up, so that no code leaves its range; a scale of zero would divide by it.
    scale = np.where(largest > 0, np.nextafter(largest / np.float32(127), np.float32(np.inf)), np.float32(1))
    codes = np.rint(values / scale).astype(np.int8)
    return Quantised(codes, scale)


@mutable
class Cache:
    """Keys and values of one layer, [heads, tokens, channels]: old ones in INT8, the newest `residual` as they came.

    Whenever `group` tokens more than `residual` have come, that many of the oldest are quantised together: keys need
    several tokens for a scale by channel. Source: KIVI, algorithm 1.
    """

    residual: int = 128
    group: int = 32
    _keys: list[Quantised] = field(factory=list, init=False)
    _values: list[Quantised] = field(factory=list, init=False)
    _recent: tuple[Array, Array] | None = field(default=None, init=False)

    def __len__(self) -> int:
        """Tokens held."""
        recent = 0 if self._recent is None else self._recent[0].shape[-2]
        return recent + sum(part.codes.shape[-2] for part in self._keys)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        parts = [array for part in (*self._keys, *self._values) for array in (part.codes, part.scale)]
        return sum(array.nbytes for array in (*parts, *(self._recent or ())))

    def update(self, keys: Array, values: Array) -> tuple[Array, Array]:
        """Append tokens; all keys and values, f32."""
        if keys.shape != values.shape or keys.ndim < 2:
            raise CodecError(
                "keys and values do not fit each other", expected=f"{list(keys.shape)}", found=f"{list(values.shape)}",
                code="shape",
            )  # fmt: skip
        if self._recent is not None:
            keys, values = (np.concatenate(pair, axis=-2) for pair in zip(self._recent, (keys, values)))
        while keys.shape[-2] >= self.residual + self.group:
            self._keys.append(quantise(keys[..., : self.group, :], KEYS))
            self._values.append(quantise(values[..., : self.group, :], VALUES))
            keys, values = keys[..., self.group :, :], values[..., self.group :, :]
        # Copies: a view would keep the quantised tokens in memory.
        self._recent = keys.copy(), values.copy()
        return self.fetch()

    def fetch(self) -> tuple[Array, Array]:
        """All keys and values in the order in which they came, f32."""
        if self._recent is None:
            raise CodecError("the cache is empty", code="empty")
        both = zip((self._keys, self._values), self._recent)
        keys, values = (
            np.concatenate([*(part.dense() for part in parts), recent.astype(np.float32)], axis=-2)
            for parts, recent in both
        )
        return keys, values


def select(queries: Array, keys: Array, keep: int, *, kernel: int = 7) -> Array:
    """The tokens worth keeping for each head: ids i64 [key heads, keep], ascending.

    `queries` [query heads, window, channels] are those of the last tokens, which stay; of the others those stay that
    the window attends to most, its attention summed and then averaged over `kernel` neighbours, so that they come in
    runs. Query heads that share a key head are summed. Everything stays when `keep` is the number of tokens or more.
    Source: SnapKV (2024), listing 1.
    """
    heads, tokens, channels = keys.shape
    window = queries.shape[-2]
    if tokens <= keep:
        return np.broadcast_to(np.arange(tokens), (heads, tokens)).copy()
    if not window <= keep or queries.shape[0] % heads or queries.shape[-1] != channels or kernel % 2 == 0:
        raise CodecError(
            "the window does not fit", expected=f"at most {keep} tokens, a multiple of {heads} heads, an odd kernel",
            found=f"queries {list(queries.shape)}, kernel {kernel}", code="shape",
        )  # fmt: skip
    grouped = queries.reshape(heads, -1, window, channels).astype(np.float32)
    scores = grouped @ keys[:, None].astype(np.float32).swapaxes(-1, -2) / np.float32(np.sqrt(channels))
    later = np.arange(tokens) > np.arange(tokens - window, tokens)[:, None]
    scores[..., later] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention = (scores / scores.sum(axis=-1, keepdims=True)).sum(axis=(1, 2))[:, : tokens - window]
    padded = np.pad(attention, ((0, 0), (kernel // 2, kernel // 2)))
    pooled = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=-1).mean(axis=-1)
    best = np.argsort(-pooled, axis=-1, kind="stable")[:, : keep - window]
    newest = np.broadcast_to(np.arange(tokens - window, tokens), (heads, window))
    return np.concatenate([np.sort(best, axis=-1), newest], axis=-1)
