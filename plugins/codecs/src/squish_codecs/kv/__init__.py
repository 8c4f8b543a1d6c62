"""Compressed keys and values of attention: KIVI's groups and SnapKV's choice of tokens, for NumPy arrays."""

from .cache import Cache
from .groups import KEYS, VALUES, Groups, quantize
from .selection import select_tokens

__all__ = ["KEYS", "VALUES", "Cache", "Groups", "quantize", "select_tokens"]
