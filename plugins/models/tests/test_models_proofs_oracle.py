"""`prove` names the encoder of what mlx-lm made from a checkpoint, byte for byte."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import oracles
import pytest
from oracles import families
from squish_convert.api import prove

pytestmark = pytest.mark.oracle


def convert_mlx(source: str, target: str, bits: int, group: int) -> str:
    """Runs in the peer: `mlx_lm.convert -q`."""
    from mlx_lm import convert

    convert(source, target, quantize=True, q_bits=bits, q_group_size=group)
    return target


@pytest.mark.parametrize(("bits", "group"), [(4, 64), (8, 32)])
def test_what_mlx_lm_made_is_exact(bits: int, group: int, tmp_path: Path) -> None:
    source = families.make("llama", tmp_path / "model")
    oracles.peer("mlx-lm").run(
        convert_mlx, source=str(source), target=str(tmp_path / "mlx"), bits=bits, group=group, timeout=120
    )
    assert states(prove(tmp_path / "mlx", source)) == {"exact"}


def states(proof: Any) -> set[str]:
    return {tensor.state for tensor in proof.tensors}
