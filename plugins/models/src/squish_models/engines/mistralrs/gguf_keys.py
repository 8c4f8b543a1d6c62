"""Keys of a GGUF as mistral.rs reads them: each has one kind of type, and is required or optional."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from squish_core.api import Typed

WHOLE = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")
REAL = ("f32", "f64")
SCALING = "rope.scaling."
FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Parts of the names of RoPE factor tensors."""


class UnreadError(Exception):
    """A key with which mistral.rs refuses a file: its name, and what is wrong with it."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where} {message}")
        self.where, self.message = where, message


class Keys:
    """The keys of an architecture, and the names of the file's tensors."""

    def __init__(self, architecture: str, meta: Mapping[str, Any], tensors: Sequence[str]) -> None:
        self.architecture, self.meta, self.tensors = architecture, meta, tensors

    def name(self, key: str) -> str:
        """Return the full name of a key of the architecture."""
        return f"{self.architecture}.{key}"

    def stored(self, name: str) -> Typed | None:
        """Return the value of a key by its full name."""
        value = self.meta.get(name)
        return value if isinstance(value, Typed) else None

    def refuse(self, key: str, message: str) -> UnreadError:
        return UnreadError(self.name(key), message)

    def _read(self, key: str, kinds: tuple[str, ...], expected: str) -> Any:
        stored = self.stored(self.name(key))
        if stored is None:
            return None
        if stored.type not in kinds or (kinds is WHOLE and stored.value < 0):
            raise self.refuse(key, f"is not {expected}, as mistral.rs expects")
        return stored.value

    def _needed(self, key: str, value: Any) -> Any:
        if value is None:
            raise self.refuse(key, "is missing, and mistral.rs does not load without it")
        return value

    def maybe_size(self, key: str) -> int | None:
        value = self._read(key, WHOLE, "a whole number from 0")
        return None if value is None else int(value)

    def size(self, key: str) -> int:
        return int(self._needed(key, self.maybe_size(key)))

    def maybe_number(self, key: str) -> float | None:
        value = self._read(key, REAL, "a number of f32 or f64")
        return None if value is None else float(value)

    def number(self, key: str) -> float:
        return float(self._needed(key, self.maybe_number(key)))

    def maybe_switch(self, key: str) -> bool | None:
        value = self._read(key, ("bool",), "a bool")
        return None if value is None else bool(value)

    def maybe_text(self, key: str) -> str | None:
        value = self._read(key, ("str",), "a text")
        return None if value is None else str(value)

    def sizes(self, key: str) -> list[int]:
        """Return integers: one for all layers, or one per layer."""
        stored = self.stored(self.name(key))
        if stored is not None and stored.type.removeprefix("array:") in WHOLE and stored.type.startswith("array:"):
            values = list(stored.value)
            if all(value >= 0 for value in values):
                return values
        return [self.size(key)]

    def uniform(self, key: str, but_zero: bool = False) -> int:
        """Return the integer that all layers share; `but_zero`: ignore layers with 0."""
        values = [value for value in self.sizes(key) if value or not but_zero]
        if not values:
            raise self.refuse(key, "has no number, and mistral.rs does not load without one")
        if len(set(values)) > 1:
            raise self.refuse(key, "differs between layers, and mistral.rs takes one number for all")
        return values[0]

    def layers(self) -> int:
        """Return the number of layers without those that predict further tokens."""
        count, extra = self.size("block_count"), self.maybe_size("nextn_predict_layers") or 0
        if extra > count:
            raise self.refuse("nextn_predict_layers", f"is {extra}, more than the {count} layers")
        if count - extra > len(self.tensors):
            raise self.refuse("block_count", f"is {count}, more than there are tensors")
        return count - extra

    def has(self, part: str) -> bool:
        """Return whether the name of any tensor contains a string."""
        return any(part in name for name in self.tensors)

    def layers_with(self, *parts: str) -> set[int]:
        """Return the layers with a tensor whose name contains one of the strings."""
        return {layer for layer, name in self._of_layers() if any(part in name for part in parts)}

    def _of_layers(self) -> Iterator[tuple[int, str]]:
        for name in self.tensors:
            start, _, rest = name.removeprefix("blk.").partition(".")
            if name.startswith("blk.") and start.isdecimal():
                yield int(start), f".{rest}"

    def divided(self, key: str, by: str) -> int:
        """Return a size divided by another; raise `UnreadError` if there is a remainder."""
        number, divisor = self.uniform(key), self.uniform(by)
        if not divisor or number % divisor:
            raise self.refuse(by, f"is {divisor}, by which {number} cannot be divided")
        return number // divisor

    def window(self) -> int | None:
        return self.maybe_size("attention.sliding_window") or None

    def pattern(self, layers: int) -> list[bool] | None:
        """Return which layers have a window."""
        key = "attention.sliding_window_pattern"
        stored = self.stored(self.name(key))
        if stored is None:
            return None
        if stored.type.startswith("array:"):
            if stored.type != "array:bool" and len(stored.value):
                raise self.refuse(key, "is not an array of bools, as mistral.rs expects")
            if len(stored.value) != layers:
                raise self.refuse(key, f"has {len(stored.value)} elements for {layers} layers")
            return [bool(value) for value in stored.value]
        period = self.size(key)
        if not period:
            raise self.refuse(key, "is 0, and mistral.rs takes a positive one")
        return [layer % period < period - 1 for layer in range(layers)]

    def scaling(self, *known: str) -> str | None:
        """Return the kind of RoPE scaling, which must be one of `known`."""
        key = f"{SCALING}type"
        kind = self.maybe_text(key)
        if kind in (None, "none"):
            return None
        if kind not in known:
            raise self.refuse(key, f"is {str(kind)[:40]!r}, which mistral.rs does not know for {self.architecture}")
        return kind

    def refuse_scaling(self) -> None:
        """Raise `UnreadError` for any RoPE scaling, including scaling by factors."""
        for name in self.tensors:
            if any(part in name for part in FACTORS):
                raise UnreadError(name, f"has rope factors, which mistral.rs does not read for {self.architecture}")
        self.scaling()
