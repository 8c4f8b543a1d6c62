"""What holds without Dask: the scheduler is listed, and says what to install."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(find_spec("distributed") is not None, reason="Dask is installed here"),
]


def test_the_message_says_what_to_install(tmp_path: Path) -> None:
    assert "dask" in squish.registry().schedulers
    squish.save(tmp_path / "in.safetensors", {"w": np.ones((2, 32), "f4")})
    with pytest.raises(squish.MissingPluginError) as caught:
        squish.convert(tmp_path / "in.safetensors", tmp_path / "out.gguf", job="dask")
    assert caught.value.code == "not-installed"
    assert str(caught.value) == "the scheduler 'dask' needs distributed. Run `pip install distributed`."
    assert [path.name for path in tmp_path.iterdir()] == ["in.safetensors"]


@pytest.mark.skip(reason="needs Dask: `make oracles` runs these tests in an environment of their own")
def test_everything_else() -> None: ...
