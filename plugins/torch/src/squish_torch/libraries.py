"""The optional libraries of this plugin, and the error if one is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec

from squish_core.api import ErrorCode, MissingPluginError, install_command

PACKAGES = {"torch": "torch", "transformers": "transformers", "lm_eval": "lm-eval"}
"""Library -> its package."""


@contextmanager
def required(*libraries: str) -> Iterator[None]:
    """Turn the ImportError of a missing library into a MissingPluginError that names all missing ones.

    Parameters
    ----------
    *libraries
        Libraries needed besides torch, from `PACKAGES`.

    Yields
    ------
    None
        To imports of the libraries in `PACKAGES`.

    Raises
    ------
    MissingPluginError
        With code `not-installed` if one is missing; the hint has the command that installs them.

    Examples
    --------
    >>> with required():
    ...     raise ModuleNotFoundError("No module named 'lm_eval'", name="lm_eval")
    Traceback (most recent call last):
    ...
    squish_core.errors.MissingPluginError: squish-torch needs lm_eval, which is not installed...
    """
    try:
        yield
    except ModuleNotFoundError as error:
        first = (error.name or "").partition(".")[0]
        if first not in PACKAGES:
            raise
        absent = [name for name in PACKAGES if name == first or (name in ("torch", *libraries) and not _is_there(name))]
        command = install_command(*(PACKAGES[name] for name in absent))
        raise MissingPluginError(
            f"squish-torch needs {' and '.join(absent)}, which {'are' if len(absent) > 1 else 'is'} not installed",
            code=ErrorCode.NOT_INSTALLED,
            hint=f"Run `{command}`{' (a CPU build of torch is enough)' if 'torch' in absent else ''}.",
        ) from None


def required_by_command() -> AbstractContextManager[None]:
    """As `required`, for a command that runs a model, before anything has imported torch.

    Threads of torch that wait for others sleep. By default they spin, and on a machine with other busy processes they
    use up the time in which those they wait for could run. `OMP_WAIT_POLICY` of the environment has precedence.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # libgomp reads it when torch loads it; workers inherit it
    return required("transformers")


def _is_there(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ValueError:  # a module replaced in sys.modules
        return False
