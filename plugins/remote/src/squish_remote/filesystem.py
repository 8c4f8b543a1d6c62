"""`squish://` for fsspec: the files of a checkpoint presented as another format, read-only."""

from __future__ import annotations

from typing import Any, ClassVar

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem
from squish_convert.api import OutputFile, VirtualSource, as_format

from squish_core.api import open as open_file


class SquishFileSystem(AbstractFileSystem):
    """Files of `source` as `format`; `encode` and further options as in `squish.as_format`."""

    protocol = "squish"
    cachable = False
    root_marker = ""
    options: ClassVar[tuple[str, ...]] = ("only", "rename", "requantize")

    def __init__(self, source: Any, format: str, encode: Any = None, **options: Any) -> None:  # noqa: A002
        format_options = {key: options.pop(key) for key in self.options if key in options}
        super().__init__(**options)
        self._source = open_file(source)
        virtual = as_format(self._source, format, encode, **format_options)
        assert isinstance(virtual, VirtualSource)
        self._reader = virtual.reader
        self._files = {file.name or virtual.filename: file for file in virtual.reader.image.files}

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """List the files below a path."""
        start = f"{self._strip_protocol(path)}/".lstrip("/")
        entries = {}
        for name, file in self._files.items():
            if f"{name}/" == start:
                return [self._entry(name, file)] if detail else [name]
            if name.startswith(start):
                head, slash, _rest = name[len(start) :].partition("/")
                entries[start + head] = (
                    {"name": start + head, "size": 0, "type": "directory"} if slash else self._entry(name, file)
                )
        if not entries:
            raise FileNotFoundError(path)
        return list(entries.values()) if detail else list(entries)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes of a file, or a range of them."""
        file = self._file(path)
        low, high, _step = slice(start, end).indices(file.size)
        return self._reader.read(file, low, high)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> _VirtualFile:
        if mode != "rb":
            raise NotImplementedError("squish:// is read-only")
        return _VirtualFile(self, path, mode, size=self._file(path).size, cache_type="none")

    def _file(self, path: str) -> OutputFile:
        try:
            return self._files[self._strip_protocol(path).lstrip("/")]
        except KeyError:
            raise FileNotFoundError(path) from None

    @staticmethod
    def _entry(name: str, file: OutputFile) -> dict[str, Any]:
        return {"name": name, "size": file.size, "type": "file"}


class _VirtualFile(AbstractBufferedFile):
    def _fetch_range(self, start: int, end: int) -> bytes:
        return bytes(self.fs.cat_file(self.path, start, end))
