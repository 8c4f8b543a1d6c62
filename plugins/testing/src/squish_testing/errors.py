"""Assertions about typed errors: their fields, not their text."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from squish_core.errors import SquishError

if TYPE_CHECKING:
    from collections.abc import Iterator

E = TypeVar("E", bound=SquishError)


@contextmanager
def expect_error(kind: type[E], /, **fields: Any) -> Iterator[pytest.ExceptionInfo[E]]:
    """Expect an error of one class with these fields, in a `with` statement.

    Parameters
    ----------
    kind
        The class of the error, `SquishError` or a class derived from it.
    **fields
        Fields of the error (`code`, `tensor`, `part`, `offset`, `file`, `expected`, `found`) and their values;
        `hint` is a text that the next step contains.

    Yields
    ------
    pytest.ExceptionInfo
        Its `value` is the error, after the block.

    Raises
    ------
    AssertionError
        A field of the error has another value; pytest fails the test if the block raises no error.

    Examples
    --------
    >>> from squish_testing import expect_error
    >>> with squish.open("model.gguf") as file, expect_error(squish.RangeError, code="index", expected="-8..7"):
    ...     file["token_embd.weight"][8]
    """
    unknown = fields.keys() - set(SquishError.FIELDS)
    assert not unknown, f"an error has no field {', '.join(sorted(unknown))}"
    with pytest.raises(kind) as caught:
        yield caught
    values = {name: getattr(caught.value, name) for name in fields}
    if str(fields.get("hint")) in str(values.get("hint")):
        values["hint"] = fields.get("hint")
    different = [f"{name} is {values[name]!r}, not {fields[name]!r}" for name in fields if values[name] != fields[name]]
    assert not different, f"{'; '.join(different)}: {caught.value}"
