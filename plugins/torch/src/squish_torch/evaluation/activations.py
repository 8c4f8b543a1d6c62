"""`squish activations`: activation statistics (imatrix) of each matrix, in llama.cpp's formats."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from attrs import frozen
from squish_convert.api import save, with_names
from torch import nn

from squish_core.api import ErrorCode, File, Typed, UsageError, atomic_file
from squish_core.api import open as open_file

from ..devices import CPU, device_named
from ..experts import CompressedExperts
from ..modules import CompressedLinear
from ..replacement import WEIGHT
from .language_model import LanguageModel
from .windows import Progress, Window, Windows
from .workers import Processes, Setup, load_models, one_at_a_time

SUMS, COUNTS = ".in_sum2", ".counts"
LEGACY = ".dat"
"""Suffix of llama.cpp's legacy imatrix files."""
NAMES = ("keep", "hf", "gguf")
PIECE = 4
"""Windows per piece: sums are added within a piece, then over pieces, so that processes do not change them."""


class ColumnSums:
    """Sums of the squared activations of one matrix, per column in f64, and the number of rows."""

    def __init__(self, columns: int) -> None:
        self.sums, self.rows = np.zeros(columns), 0

    def add(self, x: torch.Tensor) -> None:
        """Add the inputs of one call, [..., columns]."""
        matrix = x.detach().reshape(-1, len(self.sums))
        self.sums += matrix.double().square_().sum(0).cpu().numpy()
        self.rows += len(matrix)

    def merge(self, other: ColumnSums) -> None:
        """Add the sums of other rows."""
        self.sums += other.sums
        self.rows += other.rows


def collect_activations(
    model: Any,
    target: str | Path,
    *,
    text: str | Path,
    window: int = 512,
    names: str = "keep",
    backend: str | None = None,
    scheduler: str | None = None,
    device: Any = CPU,
    progress: Progress | None = None,
) -> int:
    """Write the activation statistics (imatrix) of a model on a text.

    Parameters
    ----------
    model
        A file or folder of any format, or an open `File`.
    target
        A GGUF file: for each matrix `NAME.in_sum2` and `NAME.counts`, as llama.cpp writes them. With the suffix `.dat`,
        llama.cpp's legacy format.
    text
        File with the text, in UTF-8.
    window
        Tokens per window; each window runs on its own.
    names
        "keep" for the names of the model's file, "hf" or "gguf" for those of another layout.
    backend
        Backend id for the model's weights; the best for each tensor by default.
    scheduler
        Run pieces of the text in other processes, which load the model by its path: "local:4", "dask:tcp://...". The
        statistics are identical.
    device
        Device that the model runs on.
    progress
        Called with the name of the step, the tokens so far, and all tokens.

    Returns
    -------
    int
        Number of matrices with statistics.

    Raises
    ------
    UsageError
        The text is too short, `names` is invalid, or the device is not available.
    TensorError
        A layer's output is not finite.
    """
    if names not in NAMES:
        raise UsageError("unknown names", found=repr(names), expected=", ".join(NAMES), code=ErrorCode.USAGE)
    where, original = device_named(device), model if isinstance(model, File) else open_file(model)
    subject = LanguageModel(original, backend, where)
    windows = Windows(subject.tokenizer, text, window)
    if scheduler is None:
        answers = (piece_sums(subject, windows, start) for start in piece_starts(windows))
    else:
        processes = Processes.of(scheduler, (subject,), backend, windows, str(where))
        answers = processes.map(run_piece, [Piece(processes.setup, start) for start in piece_starts(windows)])
    sums: dict[str, ColumnSums] = {}
    with closing(answers):
        for start in piece_starts(windows):
            if progress is not None:
                progress(subject.file.name, start * window, windows.total)
            for name, piece in next(answers).items():
                sums.setdefault(name, ColumnSums(len(piece.sums))).merge(piece)
    statistics = rename_sums(sums, subject.file, original, names)
    if Path(target).suffix == LEGACY:
        write_legacy(Path(target), statistics, Path(text).name, len(windows))
        return len(statistics)
    arrays: dict[str, np.ndarray] = {}
    for name, columns in statistics.items():
        arrays[f"{name}{SUMS}"] = np.stack([column.sums for column in columns]).astype(np.float32)
        arrays[f"{name}{COUNTS}"] = np.array([[column.rows] for column in columns], np.float32)
    metadata = {
        "general.type": "imatrix", "imatrix.datasets": [Path(text).name],
        "imatrix.chunk_count": Typed("u32", len(windows)), "imatrix.chunk_size": Typed("u32", window),
    }  # fmt: skip
    save(target, arrays, format="gguf", metadata=metadata)
    return len(statistics)


@frozen
class Piece:
    """A piece of the text for a worker process, by its first window."""

    setup: Setup
    start: int


def piece_starts(windows: Windows) -> range:
    """Return the first window of each piece."""
    return range(0, len(windows), PIECE)


def piece_sums(model: LanguageModel, windows: Windows, start: int) -> dict[str, ColumnSums]:
    """Return the sums of a piece of the text."""
    with column_sums(model.model) as sums:
        for number in range(start, min(start + PIECE, len(windows))):
            model.logits(Window(windows[number].ids, windows.size - 2))
    return sums


def run_piece(piece: Piece) -> dict[str, ColumnSums]:
    """Compute the sums of a piece in a worker process."""
    with one_at_a_time:
        torch.set_num_threads(piece.setup.threads)
        (model,), windows = load_models(piece.setup)
        return piece_sums(model, windows, piece.start)


def write_legacy(path: Path, statistics: Mapping[str, list[ColumnSums]], text: str, chunks: int) -> None:
    """Write llama.cpp's legacy format: mean squares times the number of chunks."""

    def number(value: int) -> bytes:
        return value.to_bytes(4, "little", signed=True)

    with atomic_file(path) as sink:
        sink.write(number(len(statistics)))
        for name, columns in statistics.items():
            values = np.concatenate([column.sums / column.rows * chunks for column in columns]).astype("<f4")
            sink.write(number(len(name.encode())) + name.encode() + number(chunks) + number(values.size))
            sink.write(values.tobytes())
        sink.write(number(chunks) + number(len(text.encode())) + text.encode())


@contextmanager
def column_sums(model: nn.Module) -> Iterator[dict[str, ColumnSums]]:
    """Collect the sums of each matrix by name within the context; like llama.cpp, skip tied heads."""
    sums: dict[str, ColumnSums] = {}
    ties = dict(getattr(model, "all_tied_weights_keys", {}))

    def hook_of(name: str) -> Callable[[nn.Module, tuple[torch.Tensor, ...]], None]:
        def hook(module: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            sums.setdefault(name, ColumnSums(inputs[0].shape[-1])).add(inputs[0])

        return hook

    hooks = [
        module.register_forward_pre_hook(hook_of(f"{path}{WEIGHT}"))
        for path, module in model.named_modules()
        if isinstance(module, (CompressedLinear, nn.Linear)) and f"{path}{WEIGHT}" not in ties
    ]
    experts = [module for module in model.modules() if isinstance(module, CompressedExperts)]
    for module in experts:
        module.is_apart = True
    try:
        yield sums
    finally:
        for module in experts:
            module.is_apart = False
        for hook in hooks:
            hook.remove()


def rename_sums(sums: dict[str, ColumnSums], file: File, original: File, names: str) -> dict[str, list[ColumnSums]]:
    """Return the sums under the names of a layout, stacked for stacked experts."""
    if names == "hf" or (names == "keep" and file is original):
        return {name: [columns] for name, columns in sums.items()}
    if names == "keep" or with_names(original, names) is original:
        result: dict[str, list[ColumnSums]] = {}
        for name, columns in sums.items():
            for source in sources_of(file, name):
                result.setdefault(source, []).append(columns)
        return result
    target = with_names(original, names)
    by_source = {source: columns for name, columns in sums.items() for source in sources_of(file, name)}
    return {
        name: [by_source[source] for source in sources_of(target, name)]
        for name in target
        if all(source in by_source for source in sources_of(target, name))
    }


def sources_of(file: File, name: str) -> tuple[str, ...]:
    """Return the source tensors of a tensor in a mapped file; in other files, the tensor."""
    sources: Callable[[str], tuple[str, ...]] | None = getattr(file, "sources", None)
    if name not in file:
        return ()
    return (name,) if sources is None else sources(name)
