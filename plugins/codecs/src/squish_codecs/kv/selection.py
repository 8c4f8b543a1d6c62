"""Token selection by attention (SnapKV, 2024)."""

from __future__ import annotations

import numpy as np

from squish_core.api import CodecError

Array = np.ndarray


def select_tokens(queries: Array, keys: Array, keep: int, *, kernel: int = 7) -> Array:
    """Select the tokens with the most attention from the last queries, per head.

    Parameters
    ----------
    queries
        [..., query heads, window, channels] of the last `window` tokens, which are always kept. Query heads with the
        same key head are summed.
    keys
        [..., key heads, tokens, channels].
    keep
        Number of tokens to keep; all if there are no more.
    kernel
        Width of the average pooling of attention, so that selected tokens are contiguous; odd.

    Returns
    -------
    numpy.ndarray
        Token numbers, i64 [..., key heads, keep], ascending.

    Raises
    ------
    CodecError
        `shape` if the queries do not match the keys, or the window is larger than `keep`.

    Notes
    -----
    SnapKV (2024), listing 1.

    Examples
    --------
    >>> import numpy as np
    >>> from squish_codecs.kv import select_tokens
    >>> keys = np.zeros((1, 6, 2), np.float32)
    >>> keys[0, 1] = 4
    >>> select_tokens(np.ones((1, 1, 2)), keys, 2, kernel=1)
    array([[1, 5]])
    """
    *batch, heads, tokens, channels = keys.shape
    if tokens <= keep:
        return np.broadcast_to(np.arange(tokens), (*batch, heads, tokens)).copy()
    query_heads, window = queries.shape[-3:-1]
    if not window <= keep or query_heads % heads or queries.shape[-1] != channels or kernel % 2 == 0:
        raise CodecError(
            "the queries do not match the keys",
            code="shape",
            expected=f"a multiple of {heads} heads, at most {keep} tokens of {channels} channels, an odd kernel",
            found=f"queries {list(queries.shape)}, kernel {kernel}",
        )
    grouped = queries.reshape(*batch, heads, -1, window, channels).astype(np.float32)
    scores = grouped @ keys[..., None, :, :].astype(np.float32).swapaxes(-1, -2) / np.float32(np.sqrt(channels))
    later = np.arange(tokens) > np.arange(tokens - window, tokens)[:, None]
    scores[..., later] = -np.inf
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    attention = (scores / scores.sum(axis=-1, keepdims=True)).sum(axis=(-3, -2))[..., : tokens - window]
    padding = [(0, 0)] * (attention.ndim - 1) + [(kernel // 2, kernel // 2)]
    pooled = np.lib.stride_tricks.sliding_window_view(np.pad(attention, padding), kernel, axis=-1).mean(axis=-1)
    best = np.argsort(-pooled, axis=-1, kind="stable")[..., : keep - window]
    newest = np.broadcast_to(np.arange(tokens - window, tokens), (*batch, heads, window))
    return np.concatenate([np.sort(best, axis=-1), newest], axis=-1)
