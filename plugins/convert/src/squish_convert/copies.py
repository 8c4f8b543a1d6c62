"""Checks of parts that are copied without decoding: a copy would propagate their damage."""

from __future__ import annotations

from collections.abc import Iterable

from squish_core.codecs.bound import MEMORY_LIMIT
from squish_core.errors import TensorError
from squish_core.file import File
from squish_core.guard import computing
from squish_core.io.wrapped import CachedSource, RangeCache

from .digests import Digests
from .mapping.mapped import MappedFile
from .step import Step


class CopyChecks:
    """Checks copies before anything is written; for a source without cheap views, each tensor before its copy.

    Bytes read by such a check are kept for the copy, up to `MEMORY_LIMIT`. `file` is the file to read through.
    """

    def __init__(self, file: File) -> None:
        self.file, self._cache = file, RangeCache(MEMORY_LIMIT)
        self._checked = set[str]()
        self._is_cheap = file.source.cheap_views or isinstance(file, MappedFile)
        if not self._is_cheap:
            self.file = File(CachedSource(file.source, self._cache), file.index, file.registry, file.limits)
            self._cache.is_complete = True

    def begin(self, file: File, steps: Iterable[Step]) -> None:
        """Check all copies if that costs nothing."""
        for step in steps if self._is_cheap else ():
            self._checked.add(step.name)
            check_copy(file, step)

    def check(self, file: File, step: Step, digests: Digests) -> None:
        """Check the copy, if it was not checked yet, and the digests that are not checked on the way."""
        self._cache.is_complete = False
        try:
            if step.name not in self._checked:
                self._checked.add(step.name)
                check_copy(file, step)
            digests.check(file, step)
        finally:
            self._cache.is_complete = True


def check_copy(file: File, step: Step) -> None:
    """Raise an error if parts to copy cannot be decoded."""
    if not step.is_computed and file.registry.missing(step.origin) is None:
        with computing(TensorError, "checking parts", file=file.name, tensor=step.name):
            bound = file.bind(file.index.tensors[step.name], step.origin)
            bound.codec.check_parts(bound.parts, bound.spec)
