"""Keys of a GGUF as mistral.rs reads them: each has one kind of types, and is required or may be missing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from squish_core.api import Typed

WHOLE = ("u8", "u16", "u32", "u64", "i8", "i16", "i32", "i64")
REAL = ("f32", "f64")
SCALING = "rope.scaling."
FACTORS = ("rope_freqs", "rope_factors_long", "rope_factors_short")
"""Parts of the names of tensors with factors of RoPE."""


class UnreadError(Exception):
    """A key with which mistral.rs does not load a file: its name, and what is wrong with it."""

    def __init__(self, where: str, message: str) -> None:
        super().__init__(f"{where} {message}")
        self.where, self.message = where, message


class Keys:
    """The keys of an architecture, and the names of the tensors beside them."""

    def __init__(self, architecture: str, meta: Mapping[str, Any], tensors: Sequence[str]) -> None:
        self.architecture, self.meta, self.tensors = architecture, meta, tensors

    def name(self, key: str) -> str:
        """The full name of a key of the architecture."""
        return f"{self.architecture}.{key}"

    def stored(self, name: str) -> Typed | None:
        """The value of a key by its full name."""
        value = self.meta.get(name)
        return value if isinstance(value, Typed) else None

    def refuse(self, key: str, message: str) -> UnreadError:
        return UnreadError(self.name(key), message)

    def _read(self, key: str, kinds: tuple[str, ...], expected: str) -> Any:
        found = self.stored(self.name(key))
        if found is None:
            return None
        if found.type not in kinds or (kinds is WHOLE and found.value < 0):
            raise self.refuse(key, f"is not {expected}, as mistral.rs expects")
        return found.value

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
        """Whole numbers: one for all layers, or one a layer."""
        found = self.stored(self.name(key))
        if found is not None and found.type.removeprefix("array:") in WHOLE and found.type.startswith("array:"):
            values = list(found.value)
            if all(value >= 0 for value in values):
                return values
        return [self.size(key)]

    def uniform(self, key: str, but_zero: bool = False) -> int:
        """One whole number, however often it is stated; `but_zero`: beside layers that have none."""
        values = [value for value in self.sizes(key) if value or not but_zero]
        if not values:
            raise self.refuse(key, "has no number, and mistral.rs does not load without one")
        if len(set(values)) > 1:
            raise self.refuse(key, "differs between layers, and mistral.rs takes one number for all")
        return values[0]

    def layers(self) -> int:
        """The number of layers without those that predict further tokens."""
        count, later = self.size("block_count"), self.maybe_size("nextn_predict_layers") or 0
        if later > count:
            raise self.refuse("nextn_predict_layers", f"is {later}, more than the {count} layers")
        if count - later > len(self.tensors):
            raise self.refuse("block_count", f"is {count}, more than there are tensors")
        return count - later

    def has(self, part: str) -> bool:
        """Whether the name of a tensor contains a text."""
        return any(part in name for name in self.tensors)

    def layers_with(self, *parts: str) -> set[int]:
        """Layers of which the name of a tensor contains one of the texts."""
        return {layer for layer, name in self._of_layers() if any(part in name for part in parts)}

    def _of_layers(self) -> Iterator[tuple[int, str]]:
        for name in self.tensors:
            start, _, rest = name.removeprefix("blk.").partition(".")
            if name.startswith("blk.") and start.isdecimal():
                yield int(start), f".{rest}"

    def divided(self, key: str, by: str) -> int:
        """A size divided by another, which must leave no rest."""
        number, divisor = self.uniform(key), self.uniform(by)
        if not divisor or number % divisor:
            raise self.refuse(by, f"is {divisor}, by which {number} cannot be divided")
        return number // divisor

    def window(self) -> int | None:
        return self.maybe_size("attention.sliding_window") or None

    def pattern(self, layers: int) -> list[bool] | None:
        """Which layers have a window."""
        key = "attention.sliding_window_pattern"
        found = self.stored(self.name(key))
        if found is None:
            return None
        if found.type.startswith("array:"):
            if found.type != "array:bool" and len(found.value):
                raise self.refuse(key, "is not an array of bools, as mistral.rs expects")
            if len(found.value) != layers:
                raise self.refuse(key, f"has {len(found.value)} elements for {layers} layers")
            return [bool(value) for value in found.value]
        period = self.size(key)
        if not period:
            raise self.refuse(key, "is 0, and mistral.rs takes a positive one")
        return [layer % period < period - 1 for layer in range(layers)]

    def scaling(self, *known: str) -> str | None:
        """The kind of RoPE scaling, one of those `known`."""
        key = f"{SCALING}type"
        kind = self.maybe_text(key)
        if kind in (None, "none"):
            return None
        if kind not in known:
            raise self.refuse(key, f"is {str(kind)[:40]!r}, which mistral.rs does not know for {self.architecture}")
        return kind

    def refuse_scaling(self) -> None:
        """Refuse any RoPE scaling, also by factors."""
        for name in self.tensors:
            if any(part in name for part in FACTORS):
                raise UnreadError(name, f"has rope factors, which mistral.rs does not read for {self.architecture}")
        self.scaling()
