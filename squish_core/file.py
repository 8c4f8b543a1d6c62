"""Open files: mappings from names to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from attrs import evolve

from squish_core.codecs.views import dense_arrays
from squish_core.codes import ErrorCode
from squish_core.concurrency import Pool, workers
from squish_core.errors import MissingPluginError, Problem, SquishError, TensorError
from squish_core.formats.metadata import untyped
from squish_core.io.buffer import Buffer
from squish_core.io.local import READERS
from squish_core.plugins.catalog import install_command
from squish_core.reader import Assets, Reader
from squish_core.tensor import Tensor
from squish_core.text import did_you_mean

if TYPE_CHECKING:
    import numpy as np

    from squish_core.backends.chain import OfferOrder
    from squish_core.backends.plan import FilePlan
    from squish_core.backends.whole import WholeModel
    from squish_core.formats.dropped import Dropped
    from squish_core.summary import Summary


class File(Reader, Mapping[str, "Tensor"]):
    """An open file: a mapping from tensor names to tensors, in file order. Safe to share between threads."""

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
        """Names of the original tensors that a tensor is built from."""
        return (name,)

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Dtypes that an engine expects of dense tensors, where the file is mapped for one."""
        return {}

    @property
    def dropped(self) -> tuple[Dropped, ...]:
        """Data of the original that has no place here."""
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

        return plan_tensors(
            self.registry, self.name, self.index, self.index.tensors.values(), self.bind,
            backend=backend, policy=policy, op=op,
        )  # fmt: skip

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
        """The file's draft head (EAGLE-3), as a file of its own.

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
        """The same file without its cache tiers, as conversions use it.

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
            near = did_you_mean(name, self.index.tensors)
            raise KeyError(f"{name!r} is not in {self.name}" + (f". {near}" if near else "")) from None

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

    def get_tensor(self, name: str) -> np.ndarray:
        """The decoded array of one tensor, under the name of the safetensors API.

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

    def _repr_html_(self) -> str:
        from squish_core.display.notebook import file_lines, page

        return page(file_lines(self))
