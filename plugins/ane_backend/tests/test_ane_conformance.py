"""The core's kit on Core ML packages."""

import tempfile
import zipfile
from pathlib import Path

from squish_core.testing import ContainerSuite

FOLDER = tempfile.TemporaryDirectory()
with zipfile.ZipFile(Path(__file__).parent / "data" / "packages.zip") as archive:
    archive.extractall(FOLDER.name)


class TestMlpackage(ContainerSuite):
    container = "mlpackage"

    def samples(self):
        wanted = ("dense", "old_uint8_zero_points", "lut2", "lut4_vectors", "uint4_blocks_offset", "int4_odd")
        return {name: Path(FOLDER.name) / f"{name}.mlpackage" for name in wanted}
