"""The tests of jobs run where Dask is installed; elsewhere they are skipped."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

WITHOUT_DASK = ("test_dask_absent.py", "test_dask_oracle.py")


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Collect one placeholder for the modules that need Dask, where it is absent."""
    if find_spec("distributed"):
        return None
    name = collection_path.name
    return True if name.startswith("test_") and name not in WITHOUT_DASK else None
