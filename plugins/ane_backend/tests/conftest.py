"""Files in memory to write packages from."""

import numpy as np
import pytest

import squish_core as squish
from squish_core.api import CodecSpec, TensorSpec
from squish_core.testing.sources import memory_file


def stored(codec_id, params, shape, chance, **given):
    """Random parts of a codec; scales and codebooks are halves between 1/2 and 2."""
    codec, spec = squish.registry().codec(codec_id), TensorSpec(name="w", shape=shape, dtype="f32")
    parts = {}
    for role, (dtype, size) in codec.parts(spec, params).items():
        kind = squish.api.dtypes.to_numpy(dtype)
        if role in ("scale", "codebook") or kind.kind == "f":
            parts[role] = (0.5 + 1.5 * chance.random(size)).astype(np.float16).astype(kind)
        else:
            parts[role] = chance.integers(0, 256, (*size[:-1], size[-1] * kind.itemsize), np.uint8).view(kind)
    return spec, CodecSpec(codec_id, params), {**parts, **given}


@pytest.fixture
def file_of():
    """`file_of(name=(codec, params, shape), ...)`: an open file of such tensors."""

    def made(**tensors):
        chance = np.random.default_rng(0)
        held = {name: stored(codec, params, shape, chance) for name, (codec, params, shape) in tensors.items()}
        return memory_file(squish.registry(), held)[0]

    return made
