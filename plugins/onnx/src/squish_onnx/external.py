"""External data: files beside the model that its tensors refer to."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from squish_core.api import FormatError, Source, SquishError, TensorError, TruncatedError

from .tensor import TensorProto

_MOST_DIGITS = 19


@frozen
class ExternalValues:
    """The location of external values: the file's path in the folder, offset and size."""

    path: str
    offset: int
    size: int


class ExternalFiles:
    """The files that a model refers to; each is opened once.

    They must be regular files in the model's folder, unless the model itself is a link into the same folder of blobs.
    """

    def __init__(self, source: Source, model: Source) -> None:
        self._source, self._model = source, model
        self.files: dict[str, Source] = {}

    def locate(self, tensor: TensorProto, entries: Mapping[str, str]) -> ExternalValues:
        """Locate a tensor's values.

        Parameters
        ----------
        tensor
            The tensor, for its size.
        entries
            `location`, and optionally `offset` and `length`.

        Returns
        -------
        ExternalValues
            A range inside the file.

        Raises
        ------
        FormatError
            The location leaves the folder or is a link, or the range has the wrong size or exceeds the file.
        """
        path = entries.get("location", "")
        offset = _number(tensor, entries, "offset", 0)
        file = self._open(tensor, path)
        length = _number(tensor, entries, "length", min(tensor.nbytes, max(file.size - offset, 0)))
        if length != tensor.nbytes:
            raise FormatError(
                "the external data does not fill the shape",
                tensor=tensor.name,
                offset=tensor.offset,
                expected=f"{tensor.nbytes} bytes for {tensor.dtype} {list(tensor.shape)}",
                found=f"{length} bytes in {path}",
                code="size",
            )
        if offset + length > file.size:
            raise TruncatedError(
                "external data runs past the end of its file",
                file=file.name,
                tensor=tensor.name,
                offset=offset,
                expected=f"{length} bytes",
                found=f"a file of {file.size} bytes",
                code="bounds",
                hint="The file is truncated (an interrupted download?) or belongs to another model.",
            )
        return ExternalValues(path, offset, length)

    def _open(self, tensor: TensorProto, path: str) -> Source:
        if path not in self.files:
            folder, _, name = path.rpartition("/")
            try:
                if path == self._model.filename:
                    raise FormatError("refers to itself as external data", code="path", found=repr(path))
                # A model may be a link into a blob store (the hub's cache); its files may then be links, too.
                opener = self._source if self._model.path is None else self._model
                self.files[path] = opener.member(name, folder, links=False)
            except SquishError as error:
                raise error.within(tensor=tensor.name) from None
        return self.files[path]


def _number(tensor: TensorProto, entries: Mapping[str, str], key: str, default: int) -> int:
    text = entries.get(key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS):
        raise TensorError(
            f"the {key} of the external data is not a number",
            tensor=tensor.name,
            offset=tensor.offset,
            expected="a non-negative integer",
            found=repr(text[:40]),
            code="external",
        )
    return int(text)
