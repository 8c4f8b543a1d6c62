"""What `dir()`, `__all__` and the documentation say of the public names agrees."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import numpy as np
import pytest
from faces import FACES, stub

import squish_core as squish
from squish_core import api
from squish_core.dtypes import NAMES, DType


@pytest.mark.parametrize("module", [squish, api], ids=["squish_core", "api"])
def test_dir_lists_the_public_names(module: object) -> None:
    assert dir(module) == sorted(module.__all__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", squish.__all__)
def test_every_public_name_loads_and_is_documented(name: str) -> None:
    value = getattr(squish, name)
    assert name == "__version__" or value.__doc__


@pytest.mark.parametrize("face", FACES)
def test_type_checkers_see_the_names_that_the_table_lists(face: str) -> None:
    path, text = stub(face)
    assert path.read_text(encoding="utf-8") == text, "run `python tests/lint/faces.py`"


@pytest.mark.parametrize("backwards", [False, True])
def test_no_submodule_takes_the_place_of_a_public_name(backwards: bool) -> None:
    """Importing a submodule binds its name in the package, over a function of that name."""
    names = [info.name for info in pkgutil.walk_packages(squish.__path__, "squish_core.")]
    names = [name for name in names if not name.endswith("__main__")]
    code = (
        "import importlib, sys, types\n"
        f"for name in {sorted(names, reverse=backwards)!r}: importlib.import_module(name)\n"
        "import squish_core\n"
        "taken = [n for n in squish_core.__all__ if isinstance(getattr(squish_core, n), types.ModuleType)]\n"
        "assert not taken, taken"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("name", NAMES)
def test_numpy_gets_the_right_dtype_or_fails(name: str) -> None:
    dtype = DType(name)
    assert dtype == name
    assert hash(dtype) == hash(name)
    assert f"{dtype}" == str(dtype) == name
    if dtype.bits % 8:
        with pytest.raises(TypeError, match="packed"):
            np.empty(2, dtype)  # type: ignore[call-overload]
    else:
        array = np.empty(2, dtype)  # type: ignore[call-overload]
        assert array.dtype == dtype.dtype
        assert array.itemsize == dtype.itemsize == dtype.bits // 8


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (squish.UsageError, ValueError),
        (squish.MissingFileError, FileNotFoundError),
        (squish.FileAccessError, OSError),
        (squish.WriteError, OSError),
        (squish.RangeError, IndexError),
    ],
)
def test_errors_are_the_builtin_ones_too(error: type[squish.SquishError], builtin: type[Exception]) -> None:
    assert issubclass(error, builtin)
    assert issubclass(error, squish.SquishError)
