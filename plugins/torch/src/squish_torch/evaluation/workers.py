"""Evaluation in worker processes: the models and the text that a worker loads and verifies."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import torch
from attrs import frozen
from squish_convert.api import differences, library_versions, worker_name

from squish_core.api import Address, ErrorCode, File, FormatError, SquishError, address_of, file_at, scheduler_named

from ..devices import CPU
from ..generation import set_up
from .language_model import LanguageModel
from .state_file import LIBRARIES
from .windows import Windows

Result = TypeVar("Result")

MEMORY = 1 << 30
"""Approximate memory of a worker besides the weights, in bytes."""
one_at_a_time = Lock()
"""Lock for a loaded model: its hooks and replaced modules belong to one run."""


@frozen(kw_only=True)
class Setup:
    """The models (a base last) and the windows that each worker loads. `threads` determines the order of sums."""

    models: tuple[Address, ...]
    backend: str | None
    device: str
    text: str
    window: int
    definition: str
    limit: int
    tokens: str
    threads: int
    versions: tuple[tuple[str, str], ...]

    @classmethod
    def of(cls, models: Sequence[LanguageModel], backend: str | None, windows: Windows, device: str) -> Setup:
        """Return the setup of loaded models; raise UsageError if other processes cannot open them."""
        return cls(
            models=tuple(address_of(original(model.file)) for model in models),
            backend=backend,
            device=device,
            text=str(Path(windows.text).absolute()),
            window=windows.size,
            definition=windows.definition,
            limit=len(windows),
            tokens=windows.digest,
            threads=torch.get_num_threads(),
            versions=tuple(library_versions(*LIBRARIES).items()),
        )


@frozen
class Processes:
    """Worker processes of a scheduler, which load a `Setup`."""

    setup: Setup
    workers: Any

    @classmethod
    def of(
        cls,
        scheduler: str,
        models: Sequence[LanguageModel],
        backend: str | None,
        windows: Windows,
        device: str = CPU,
    ) -> Processes:
        """Return the processes of a scheduler; raise UsageError if there are none, or they cannot open the models."""
        workers = scheduler_named(scheduler, models[0].file.registry)
        return cls(Setup.of(models, backend, windows, device), workers)

    def map(self, function: Callable[[Any], Result], items: Sequence[Any]) -> Generator[Result, None, None]:
        """Yield the results of a function in the order of the items."""
        memory = sum(model.size for model in self.setup.models) + MEMORY
        with closing(self.workers.map(function, items, memory)) as results:
            yield from in_order(results)


def original(file: File) -> File:
    """Return the file behind a mapped file; any other file unchanged."""
    return getattr(file, "original", file)


@lru_cache(maxsize=1)
def load_models(setup: Setup) -> tuple[tuple[LanguageModel, ...], Windows]:
    """Load the models and windows once per process.

    Raise FormatError if a file or the text differs, and SquishError with code `lock` if a library version differs.
    """
    set_up()
    check_versions(dict(setup.versions), library_versions(*LIBRARIES))
    models = tuple(
        LanguageModel(file_at(address, mmap=True), None if number else setup.backend, setup.device)
        for number, address in enumerate(setup.models)
    )
    windows = Windows(models[0].tokenizer, setup.text, setup.window, setup.definition, setup.limit)
    if windows.digest != setup.tokens:
        raise FormatError(
            "has different tokens in a worker process",
            file=setup.text,
            expected=setup.tokens,
            found=windows.digest,
            code=ErrorCode.CHANGED,
            hint="Give all workers the same files.",
        )
    return models, windows


def check_versions(expected: dict[str, str], installed: dict[str, str]) -> None:
    """Raise SquishError for the first library whose version differs from the client's."""
    for name, version, here in sorted(differences(expected, installed)):
        raise SquishError(
            f"the worker {worker_name()} has another version of {name}",
            expected=version,
            found=here,
            code="lock",
            hint="Install the same versions for all workers.",
        )


def in_order(results: Iterator[tuple[int, Result]]) -> Iterator[Result]:
    """Yield the results of a scheduler in the order of its items."""
    early, position = dict[int, Result](), 0
    for number, answer in results:
        early[number] = answer
        while position in early:
            yield early.pop(position)
            position += 1
