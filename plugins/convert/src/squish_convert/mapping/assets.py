"""The files of a mapped model as parts, each computed when it is read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from attrs import frozen

from squish_core.errors import FormatError
from squish_core.guard import gc_paused, guarded
from squish_core.model import Part


@frozen(eq=False)
class MappedAssets(Mapping[str, Part]):
    """Files of a mapped model; one with the content of the original's file is the original's part.

    Attributes
    ----------
    files
        The files that a family carries.
    contents, parts
        Those of the original, and their parts.
    name
        Name of the original, for errors.
    """

    files: Mapping[str, bytes]
    contents: Mapping[str, bytes]
    parts: Mapping[str, Part]
    name: str

    def __getitem__(self, name: str) -> Part:
        with self._guard():
            data = self.files.get(name)
        if data is None:
            raise KeyError(name)
        if self.contents.get(name) == data:
            return self.parts[name]
        return Part(dtype="u8", shape=(len(data),), data=data)

    def __contains__(self, name: object) -> bool:
        with self._guard():
            return name in self.files

    def __iter__(self) -> Iterator[str]:
        with self._guard():
            return iter(list(self.files))

    def __len__(self) -> int:
        with self._guard():
            return len(self.files)

    @contextmanager
    def _guard(self) -> Iterator[None]:
        with gc_paused(), guarded(FormatError, "mapping the model's other files", file=self.name):
            yield
