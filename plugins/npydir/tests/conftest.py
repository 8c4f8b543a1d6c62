"""Directories that Squish itself wrote."""

from __future__ import annotations

import sys
import tarfile
from pathlib import Path

import pytest

DATA = Path(__file__).with_name("data")
sys.path.insert(0, str(Path(__file__).parent))  # npydir_samples is a module of these tests


@pytest.fixture(scope="session")
def squish_wrote(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden directories, unpacked."""
    folder = tmp_path_factory.mktemp("squish")
    with tarfile.open(DATA / "squish-9.34.15.tar.xz") as archive:
        archive.extractall(folder, **({"filter": "data"} if hasattr(tarfile, "data_filter") else {}))  # 3.11.4
    return folder
