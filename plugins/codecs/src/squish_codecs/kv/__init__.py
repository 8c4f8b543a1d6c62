"""KV cache compression for NumPy arrays: KIVI's quantization and SnapKV's token selection."""

from .cache import Cache
from .groups import KEYS, VALUES, Groups, quantize
from .selection import select_tokens

__all__ = ["KEYS", "VALUES", "Cache", "Groups", "quantize", "select_tokens"]
