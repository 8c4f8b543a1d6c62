"""Files in memory as sources of packages, and packages that coremltools wrote."""

import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from squish_testing.sources import memory_file

import squish_core as squish

sys.path.insert(0, str(Path(__file__).parent))  # ane_samples is a module of these tests

from ane_samples import stored


@pytest.fixture
def file_of():
    """`file_of(name=(codec, params, shape), ...)`: an open file with these tensors."""

    def open_file(**tensors):
        chance = np.random.default_rng(0)
        stored_tensors = {
            name: stored(codec, params, shape, chance) for name, (codec, params, shape) in tensors.items()
        }
        return memory_file(squish.registry(), stored_tensors)[0]

    return open_file


@pytest.fixture(scope="session")
def packages(tmp_path_factory):
    """A folder with the packages of the archives in `data`."""
    folder = tmp_path_factory.mktemp("packages")
    for name in ("packages.zip", "optimised.zip"):
        with zipfile.ZipFile(Path(__file__).parent / "data" / name) as archive:
            archive.extractall(folder)
    return folder
