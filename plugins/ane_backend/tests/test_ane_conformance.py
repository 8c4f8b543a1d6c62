"""The core's kit on Core ML packages."""

import shutil
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from squish_testing import ContainerSuite

pytestmark = pytest.mark.alone

FOLDER = tempfile.TemporaryDirectory()
with zipfile.ZipFile(Path(__file__).parent / "data" / "packages.zip") as archive:
    archive.extractall(FOLDER.name)

WEIGHTS = dict(np.load(Path(__file__).parent / "data" / "weights.npz"))


class TestMlpackage(ContainerSuite):
    container = "mlpackage"
    accuracy = 2**-10  # coremltools rounds to float16

    def samples(self):
        names = ("dense", "old_uint8_zero_points", "lut2", "lut4_vectors", "uint4_blocks_offset", "int4_odd")
        return {name: Path(FOLDER.name) / f"{name}.mlpackage" for name in names}

    def values(self):
        """The values decoded by coremltools, in float16."""
        values = {}
        for sample, path in self.samples().items():
            with self.open(path) as file:
                (name,) = (name for name, tensor in file.items() if len(tensor.shape) == 2)
                values[sample] = {name: WEIGHTS[sample].astype(file[name].numpy().dtype)}
        return values

    def damaged(self):
        """Truncated weights; a truncated program."""
        folders = {}
        for label, pattern in (
            ("weights cut short", "Data/*/weights/weight.bin"),
            ("program cut short", "**/*.mlmodel"),
        ):
            folder = Path(FOLDER.name) / f"damaged {pattern[-4:]}.mlpackage"
            if not folder.exists():
                shutil.copytree(self.samples()["lut2"], folder)
                (file,) = folder.glob(pattern)
                file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            folders[label] = folder
        return folders
