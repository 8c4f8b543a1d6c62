"""A file that is read through one source around its own."""

from __future__ import annotations

from squish_core.codecs.bound import MEMORY_LIMIT
from squish_core.file import File
from squish_core.io.wrapped import CachedSource, Listener, RangeCache


class SourceReader:
    """Reads a file through one source around its own, so that bytes are checked and used, but fetched once.

    `file` is the file to read through. `cache` keeps what is read, up to `MEMORY_LIMIT`, until it `is_complete`; the
    file of an earlier reader brings its cache. `listener` gets what is read. A source with cheap views, and a mapped
    file, are read as they are.
    """

    def __init__(self, file: File, *, wraps: bool = True, listener: Listener | None = None) -> None:
        source, self.cache, self.file = file.source, RangeCache(MEMORY_LIMIT), file
        self.is_wrapped = wraps and not source.cheap_views and file.original is file
        if self.is_wrapped:
            if isinstance(source, CachedSource):
                self.cache, source = source.cache, source.inner
            self.file = File(CachedSource(source, self.cache, listener), file.index, file.registry, file.limits)
