"""The conformance kit on zTensor files."""

from __future__ import annotations

from pathlib import Path

from squish_core.testing import ContainerSuite

DATA = Path(__file__).with_name("data")


class TestZtensor(ContainerSuite):
    """Files of the reference 1.1.1 and 1.2.3, and one with the dtypes that only the specification has."""

    container = "ztensor"
    header = 1 << 20  # the manifest lies at the end
    not_rewritten = ("v12_logical_types",)  # 1.1 has no f8_e4m3fnuz and f8_e5m2fnuz

    def samples(self) -> dict[str, Path]:
        names = ("v11_dense_all_dtypes", "h11_f8_complex_dtype", "v12_digest_sha256", "v12_logical_types")
        return {name: DATA / f"{name}.zt" for name in names}
