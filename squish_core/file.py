"""Open files: mappings from names to tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codecs.bound import BoundEncoding
from squish_core.codecs.stored import StoredArray
from squish_core.codecs.views import dense_arrays
from squish_core.codes import ErrorCode
from squish_core.concurrency import Pool, workers
from squish_core.errors import FormatError, MissingPluginError, Problem, SquishError, TensorError
from squish_core.formats.metadata import untyped
from squish_core.guard import guarded
from squish_core.io.buffer import Buffer
from squish_core.io.digest import check_digest
from squish_core.io.local import READERS
from squish_core.io.source import Source
from squish_core.limits import DEFAULT, MIB, Limits
from squish_core.model import Encoding, Index, Part, TensorSpec
from squish_core.plugins.catalog import install_command
from squish_core.plugins.registry import Registry
from squish_core.shown import Shown, of_convert
from squish_core.tensor import Tensor
from squish_core.text import did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from squish_core.backends.chain import OfferOrder
    from squish_core.backends.plan import FilePlan
    from squish_core.backends.whole import WholeModel
    from squish_core.formats.dropped import Dropped
    from squish_core.summary import Summary


class File(Mapping[str, "Tensor"], Shown):
    """An open file: a mapping from tensor names to tensors, in file order. Safe to share between threads."""

    def __init__(self, source: Source, index: Index, registry: Registry, limits: Limits = DEFAULT) -> None:
        self.source, self.index, self.registry, self.limits = source, index, registry, limits
        self._is_loading = False

    @property
    def name(self) -> str:
        """Path or name of the file."""
        return self.source.name

    @property
    def path(self) -> Path | None:
        """Path of the file or folder; None for bytes in memory."""
        return self.source.path

    @property
    def format(self) -> str:
        """Container id."""
        return self.index.format

    @property
    def format_spec(self) -> str:
        """The format with its read options, as `open(format=)` takes it."""
        options = ",".join(f"{key}={value}" for key, value in self.index.reading.items())
        return f"{self.format}:{options}" if options else self.format

    @property
    def size(self) -> int:
        """Total size in bytes, assets included; of a compressed file, the size of its content."""
        return sum(ref.size for ref in self.index.files)

    @property
    def version(self) -> str:
        """Version or dialect of the format according to the file; "" if there is none."""
        return self.index.version

    def source_for(self, number: int) -> Source:
        """Source of a file of the Index."""
        ref = self.index.files[number]
        if not self.source.is_dir and ref.name == self.source.filename:
            return self.source
        folder, _, name = ref.name.rpartition("/")
        source = self.source.member(name, folder)
        if source.size < ref.size:
            raise FormatError(
                "is smaller than when it was opened",
                file=source.name,
                expected=ref.size,
                found=source.size,
                code=ErrorCode.CHANGED,
            )
        return source

    def array(self, part: Part) -> StoredArray:
        """Return a part as a lazy array."""
        return StoredArray(part, self.values_source, self.registry.byte_codec, self.limits)

    @property
    def values_source(self) -> Callable[[int], Source]:
        """`source_for`; if the Index has `pending_caches`, the first call notifies the format that values are read."""
        return self._loading_source if self.index.pending_caches else self.source_for

    def _loading_source(self, number: int) -> Source:
        if not self._is_loading:
            self._is_loading = True
            self.registry.container(self.format).loading(self.source)
        return self.source_for(number)

    def bind(self, spec: TensorSpec, encoding: Encoding) -> BoundEncoding:
        """Bind an encoding to its codec and stored parts."""
        parts = {role: self.array(part) for role, part in encoding.parts.items()}
        return BoundEncoding(self.registry.codec(encoding.codec), spec, encoding, parts, self.limits)

    @contextmanager
    def reading_ahead(self, parts: Iterable[Part]) -> Iterator[None]:
        """Announce that parts will be read in about this order, each once; a remote source fetches them ahead.

        Parameters
        ----------
        parts
            What will be read in the `with` block.

        Returns
        -------
        context manager
            At its end nothing more is fetched.

        Examples
        --------
        >>> file = squish.open("model.gguf")
        >>> with file.reading_ahead(file["blk.0.ffn_up.weight"].bound.encoding.parts.values()):
        ...     values = file["blk.0.ffn_up.weight"].numpy()
        """
        sources: dict[int, Source] = {}
        if not self.source.cheap_views:
            segments = dict.fromkeys(segment for part in parts for segment in part.segments if segment.length)
            for number, run in groupby(segments, key=lambda segment: segment.file):
                sources[number] = self.source_for(number)
                sources[number].read_ahead([(segment.offset, segment.length) for segment in run])
        try:
            yield
        finally:
            for source in sources.values():
                source.read_ahead(())

    def guard(self, kind: type[SquishError], what: str, **context: Any) -> guarded:
        """Context manager around plugin code, with this file's name."""
        return guarded(kind, what, file=self.name, **context)

    @property
    def metadata(self) -> dict[str, Any]:
        """Metadata as plain values (`index.meta` keeps the stored types)."""
        return {key: untyped(value) for key, value in self.index.meta.items()}

    meta = metadata

    @property
    def assets(self) -> Mapping[str, Buffer]:
        """The model's other files, such as config and tokenizer, read on indexing."""
        return Assets(self)

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems found on opening; empty for a valid file."""
        return self.index.problems

    @property
    def original(self) -> File:
        """The file that contains the bytes: this one, unless its tensors are mapped to other names."""
        return self

    def sources(self, name: str) -> tuple[str, ...]:
        """Return names of the original tensors that a tensor is built from."""
        return (name,)

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Dtypes that an engine expects of dense tensors, where the file is mapped for one."""
        return {}

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Data of the original that this file does not contain."""
        return ()

    @property
    def children(self) -> dict[str, File]:
        """Models inside this file, such as a draft head, as files of their own."""
        return {
            name: File(self.source, evolve(child, files=child.files or self.index.files), self.registry, self.limits)
            for name, child in self.index.children.items()
        }

    def summary(self) -> Summary:
        """Summarize the file: format, sizes, encodings of its tensors, metadata, assets and problems.

        Reads the header only. `print(summary)` shows what `squish info` prints.

        Returns
        -------
        Summary
            Sizes in bytes; `to_dict()` gives plain data for JSON.

        Examples
        --------
        >>> summary = squish.open("model.gguf").summary()
        >>> summary.format, summary.tensors, [kind.stored_as for kind in summary.codecs]
        ('gguf', 3, ['ggml.q8_0', 'f32'])
        """
        from squish_core.summary import summarize

        return summarize(self)

    def plan(self, backend: str | None = None, *, policy: str | OfferOrder = "spec", op: str | None = None) -> FilePlan:
        """How the model would run here, and why; reads no tensor bytes, unless options of the backend ask for it.

        Parameters
        ----------
        backend, policy, op
            As in `Tensor.plan`; backends that run whole models are also asked about the file as a whole.

        Returns
        -------
        FilePlan
            The chain of each tensor, or the error if there is none; `print(plan)` explains them.

        Raises
        ------
        UsageError
            The policy, the operation or the backend does not exist.
        MissingPluginError
            The backend is not installed.

        Examples
        --------
        >>> squish.open("model.gguf").plan("numpy").backends
        {'numpy': 3}
        """
        from squish_core.backends.plan import plan_tensors

        specs = self.index.tensors.values()
        return plan_tensors(
            self.registry, self.name, self.index, specs, self.bind, backend=backend, policy=policy, op=op
        )

    def load(self, backend: str | None = None, *, policy: str | OfferOrder = "spec") -> WholeModel:
        """Load the model as a whole on a backend that runs all of it, such as a Core ML package in a SQUIZD file.

        Parameters
        ----------
        backend, policy
            As in `plan`.

        Returns
        -------
        WholeModel
            `inputs`, `outputs`, `predict({name: array})`, `chain` and `close()`.

        Raises
        ------
        TensorError
            Code `no-whole` if the file contains only tensors; `no-chain`, with every refusal, if no backend here runs
            the whole model.

        Examples
        --------
        >>> squish.open("model.gguf").load()
        Traceback (most recent call last):
            ...
        squish_core.errors.TensorError: model.gguf: has no encoding of the whole model...
        """
        from squish_core.backends.base import chosen_backend
        from squish_core.backends.resolve import resolve
        from squish_core.backends.whole import WHOLE, WholeModel

        if not self.index.whole:
            hint = "Load its tensors: file[name].load()."
            raise TensorError("has no encoding of the whole model", file=self.name, code="no-whole", hint=hint)
        with self.guard(SquishError, "loading the whole model"):
            chain = resolve(self.registry, WHOLE, self.format, self.index.whole, backend=backend, policy=policy)
            return WholeModel(self.name, chain, chosen_backend(chain, self.registry).load_whole(chain, self))

    def draft(self) -> File:
        """Return the file's draft head (EAGLE-3), as a file of its own.

        Returns
        -------
        File
            The tensors of the draft head, under their own names.

        Raises
        ------
        KeyError
            The file has no draft head.

        Examples
        --------
        >>> squish.open("model.gguf").draft()
        Traceback (most recent call last):
            ...
        KeyError: 'model.gguf has no draft head'
        """
        drafts = [name for name, child in self.index.children.items() if child.kind == "draft"]
        if not drafts:
            raise KeyError(f"{self.name} has no draft head")
        return self.children[drafts[0]]

    def without_caches(self) -> File:
        """Return the same file without its cache tiers, as conversions use it.

        Returns
        -------
        File
            This file itself if it has no cache tiers.

        Examples
        --------
        >>> file = squish.open("model.gguf")
        >>> file.without_caches() is file
        True
        """
        if not self.index.caches:
            return self
        tensors = {name: spec.without(self.index.caches) for name, spec in self.index.tensors.items()}
        return File(self.source, evolve(self.index, tensors=tensors, caches=()), self.registry, self.limits)

    def __getitem__(self, name: str) -> Tensor:
        try:
            return Tensor(self, self.index.tensors[name])
        except KeyError:
            raise absent(name, self.name, self.index.tensors) from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.index.tensors)

    def __len__(self) -> int:
        return len(self.index.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.index.tensors

    # Compare by identity: a mapping's equality would compare tensors, which are created on each access.
    __eq__, __hash__ = object.__eq__, object.__hash__

    def numpy(self, *, copy: bool = False) -> dict[str, np.ndarray]:
        """Every tensor as an array, in file order.

        Parameters
        ----------
        copy
            If True, return writable arrays that are independent of the file; otherwise arrays are read-only, and views
            of the file if they are dense.

        Returns
        -------
        dict of numpy.ndarray
            Name -> array; quantized tensors as float32.

        Examples
        --------
        >>> arrays = squish.open("model.gguf").numpy()
        >>> arrays["blk.0.ffn_up.weight"].shape, arrays["blk.0.ffn_up.weight"].dtype.name
        ((64, 32), 'float32')
        """
        tensors = self.index.tensors
        arrays = dense_arrays(tensors, self.values_source, copy=copy)
        remaining = [name for name, array in arrays.items() if array is None]
        if remaining:
            encodings = (encoding for name in remaining for encoding in tensors[name].encodings[:1])
            parts = (part for encoding in encodings for part in encoding.parts.values())
            # In parallel: while one tensor waits for the disk, another is decoded.
            with self.reading_ahead(parts), Pool(workers(READERS)) as readers:
                arrays.update(zip(remaining, readers.map(lambda name: self[name].numpy(copy=copy), remaining)))
        return arrays

    def select(self, *patterns: str) -> Mapping[str, Tensor]:
        """The tensors whose names match any pattern, in file order, as a mapping.

        Parameters
        ----------
        *patterns
            Names or patterns such as `blk.0.*`; all tensors without any.

        Returns
        -------
        Selection
            Name -> tensor; empty if nothing matches.

        Examples
        --------
        >>> list(squish.open("model.gguf").select("*norm*"))
        ['blk.0.ffn_norm.weight']
        """
        selection: Mapping[str, Tensor] = of_convert("tables").Selection(self, patterns)
        return selection

    def statistics(
        self, patterns: str | Iterable[str] = (), *, progress: Callable[[str, int, int], None] | None = None
    ) -> Any:
        """Statistics of every tensor, or of those that match, as a table; each is read once, in file order.

        Parameters
        ----------
        patterns
            A pattern of names or several; all tensors by default.
        progress
            Called with the tensor's name, the stored bytes read so far and their total.

        Returns
        -------
        Table
            A row for each tensor: `to_pandas`, `to_polars`, `to_dict`, `sort`, `plot`. A tensor without statistics,
            such as one of complex numbers, has the reason in `problem`.

        Examples
        --------
        >>> table = squish.open("model.gguf").statistics("*norm*")
        >>> table[0]["name"], table[0]["mean"]
        ('blk.0.ffn_norm.weight', 1.0)
        """
        return of_convert("tables").Selection(self, patterns).statistics(progress=progress)

    def get_tensor(self, name: str) -> np.ndarray:
        """Return the decoded array of one tensor, under the name of the safetensors API.

        Parameters
        ----------
        name
            Name of the tensor.

        Returns
        -------
        numpy.ndarray
            `file[name].numpy()`.

        Examples
        --------
        >>> squish.open("model.gguf").get_tensor("blk.0.ffn_norm.weight").sum()
        np.float32(32.0)
        """
        return self[name].numpy()

    def to_torch(self, device: Any = "cpu", *, dtype: Any = None) -> dict[str, Any]:
        """Every tensor as a PyTorch tensor, in file order, through squish-torch.

        Parameters
        ----------
        device
            Where the tensors go: a device of PyTorch or its name.
        dtype
            Dtype of PyTorch for tensors that are decoded, float32 by default; dense ones keep theirs.

        Returns
        -------
        dict of torch.Tensor
            Name -> tensor. Writing to one never changes the file.

        Raises
        ------
        MissingPluginError
            squish-torch or PyTorch is not installed; the hint has the command that installs it.

        Examples
        --------
        >>> squish.open("model.gguf", registry=squish.Registry("-squish-torch")).to_torch()
        Traceback (most recent call last):
            ...
        squish_core.errors.MissingPluginError: the framework 'torch' is not installed...
        """
        package = "squish-torch"
        if all(plugin.dist != package for plugin in self.registry.plugins):
            reason = {plugin.dist: plugin.reason for plugin in self.registry.broken}.get(package)
            why = f"{package} is installed but broken: {reason}" if reason else "the framework 'torch' is not installed"
            raise MissingPluginError(why, code=ErrorCode.NOT_INSTALLED, hint=f"Run `{install_command(package)}`.")
        module: Any = import_module("squish_torch.to_torch")
        tensors: dict[str, Any] = module.to_torch(self, device, dtype)
        return tensors

    def close(self) -> None:
        """Stop new reads; existing arrays and weights stay valid.

        Examples
        --------
        >>> file = squish.open("model.gguf")
        >>> norm = file["blk.0.ffn_norm.weight"].numpy()
        >>> file.close()
        >>> norm.shape
        (32,)
        """
        self.source.close()

    def __enter__(self) -> File:
        return self

    def __exit__(self, *exception: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<File {self.name!r} format={self.format} tensors={len(self)}>"


class Assets(Mapping[str, Buffer]):
    """Asset name -> Buffer, read on indexing."""

    def __init__(self, file: File) -> None:
        self._file = file

    def __getitem__(self, name: str) -> Buffer:
        if (part := self._file.index.assets.get(name)) is None:
            raise absent(name, self._file.name, self)
        with guarded(FormatError, "reading an asset", file=self._file.name, part=name):
            return self._file.array(part).buffer()

    def __contains__(self, name: object) -> bool:
        return name in self._file.index.assets

    def __iter__(self) -> Iterator[str]:
        return iter(self._file.index.assets)

    def __len__(self) -> int:
        return len(self._file.index.assets)

    def __repr__(self) -> str:
        return f"<Assets {', '.join(self) or 'none'}>"


def absent(name: object, holder: str, names: Iterable[str]) -> KeyError:
    """Return the KeyError for a name that a mapping lacks, with similar names."""
    near = did_you_mean(name, names)
    return KeyError(f"{name!r} is not in {holder}" + (f". {near}" if near else ""))


def file_problems(file: File, numbers: Iterable[int] | None = None) -> Iterator[Problem]:
    """Check the digests of whole files that the header lists: those of all files, or of those with these numbers."""
    files = file.index.files
    for number in range(len(files)) if numbers is None else numbers:
        ref = files[number]
        if ref.digest is None:
            continue
        source = file.source_for(number)
        chunks = (source.view(start, min(4 * MIB, source.size - start)) for start in range(0, source.size, 4 * MIB))
        verdict = check_digest(ref.digest, chunks)
        if verdict.state == "wrong":
            message = f"the file's digest does not match (expected {verdict.expected}, found {verdict.found})"
            yield Problem(code=ErrorCode.DIGEST, severity="error", where=ref.name, message=message)
        elif verdict.state == "unverified":
            message = f"the file's digest {ref.digest[:40]!r} has an unknown algorithm"
            yield Problem(code="unverified", severity="note", where=ref.name, message=message)
