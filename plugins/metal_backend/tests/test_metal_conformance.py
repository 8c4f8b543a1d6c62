"""The core's kit, with MLX on this device and with the custom kernels on an emulated GPU."""

import numpy as np
import pytest
from squish_metal import device
from squish_testing import BackendSuite

from squish_core.api import CodecSpec

pytestmark = pytest.mark.alone

GGML = ("q4_0", "q4_1", "q8_0")
AFFINE = {
    "int8 per row": {"bits": 8},
    "int4 as SQUIZD has it": {"bits": 4, "group_size": 32},
    "int2 with biases": {"bits": 2, "group_size": 64, "offset": "bias"},
    "three bits": {"bits": 3, "group_size": 32},
    "five bits with zero points": {"bits": 5, "group_size": 64, "offset": "zero_point", "scale_dtype": "f16"},
    "six bits": {"bits": 6, "group_size": 128},
    "one bit": {"bits": 1, "group_size": 32, "offset": "bias"},
    "groups of 16, which MLX lacks": {"bits": 4, "group_size": 16},
}


class TestMetal(BackendSuite):
    backend = "metal"
    tolerance = 1e-2 if device.has_gpu() else 2e-5
    exact_tolerance = 0.0 if device.has_gpu() else 2e-5  # on the CPU, MLX rounds q * scale before adding the bias

    def cases(self):
        chance = np.random.default_rng(0)
        matrix = chance.standard_normal((24, 256), np.float32)
        affine = {name: (CodecSpec("affine", params), matrix) for name, params in AFFINE.items()}
        return {**super().cases(), **affine, "mxfp4": (CodecSpec("mx"), matrix)}


@pytest.mark.usefixtures("metal_on_cpu")
class TestKernels(BackendSuite):
    backend = "metal"
    tolerance = 1e-5

    def cases(self):
        chance = np.random.default_rng(0)
        return {name: (CodecSpec(f"ggml.{name}"), chance.standard_normal((7, 288), np.float32)) for name in GGML}
