"""Operations on devices copy nothing from the host and read nothing back: they can be part of a CUDA graph."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from squish_torch import device_ops
from squish_torch.decoding import is_decodable
from squish_torch.decoding.ggml import BLOCKS
from squish_torch.decoding.grids import GRIDS
from squish_torch.description import describe
from squish_torch.modules import CompressedEmbedding
from squish_torch.weights import roles_of
from test_torch_decoding import ENCODED, OTHERS
from torch.utils._python_dispatch import TorchDispatchMode

import squish_core as squish
from squish_core.api import CodecSpec

READ_BACK = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "_unique2", "unique_dim", "masked_select", "equal")
"""Operations that wait for the device, so that the host sees a value."""
FROM_HOST = ("lift_fresh", "lift_fresh_copy", "_pin_memory")
"""What `torch.tensor` of numbers does."""
GPTQ = {
    "bits": 4, "group_size": 32, "axis": -2, "transposed": True, "word": "i32", "offset": "zero_point",
    "offset_dtype": "packed", "scale_dtype": "f16",
}  # fmt: skip
CODECS = {
    **ENCODED,
    **OTHERS,
    "GPTQ": CodecSpec("affine", GPTQ),
    "GPTQ with g_idx": CodecSpec("hf.act_order", {}, inner=CodecSpec("affine", GPTQ)),
    **{f"ggml.{name}": CodecSpec(f"ggml.{name}") for name in (*BLOCKS, *GRIDS)},
}


class Transfers(TorchDispatchMode):
    """Counts operations that move numbers between the host and a device."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        tensors = [item for item in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        masks = name == "index" and any(item.dtype in (torch.bool, torch.uint8) for item in tensors[1:])
        if name in READ_BACK + FROM_HOST or masks:
            self.found[name] += 1
        result = func(*args, **(kwargs or {}))
        if name in ("_to_copy", "copy_") and isinstance(result, torch.Tensor):
            self.found[name] += any(item.device != result.device for item in tensors)
        return result


def stored(codec: CodecSpec, shape: tuple[int, ...]) -> tuple[list[torch.Tensor], str]:
    """Random parts of a tensor, and its description."""
    random_parts = pytest.importorskip("random_parts", reason="it is in the tests of the whole repository")
    tensor = random_parts.random_tensor(codec, shape, finite=True)
    description = describe(tensor.spec, tensor.bound.encoding)
    arrays = tensor.parts(tensor.bound.encoding)
    parts = [torch.from_numpy(np.array(arrays[role]).reshape(-1).view(np.uint8)) for role in roles_of(description)]
    return parts, description


def transfers(call: Any, *arguments: Any) -> Counter[str]:
    """What a second call transfers; the first may fill caches."""
    call(*arguments)
    with Transfers() as counted:
        call(*arguments)
    return +counted.found


@pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS)
def test_operations_transfer_nothing(codec: CodecSpec) -> None:
    parts, description = stored(codec, (24, 512))
    assert is_decodable(description)
    x, ids, gradient = torch.randn(3, 512), torch.tensor([[5, 0], [23, 5]]), torch.randn(3, 24)
    assert not transfers(device_ops.linear, x, parts, description, "")
    assert not transfers(device_ops.embed, ids, parts, description, "", torch.bfloat16)
    assert not transfers(device_ops.dequantize, parts, description, "", torch.bfloat16)
    assert not transfers(device_ops.linear_gradient, gradient, parts, description, "")


@pytest.mark.parametrize("codec", [CodecSpec("ggml.q4_k"), CodecSpec("mx"), ENCODED["int4"]], ids=str)
def test_experts_of_few_tokens_transfer_nothing(codec: CodecSpec) -> None:
    parts, description = stored(codec, (4, 24, 512))
    x, ids = torch.randn(5, 512), torch.tensor([3, 0, 3, 1, 2])
    assert not transfers(device_ops.experts, x, ids, parts, description, "")


def test_a_scaled_embedding_copies_no_scale() -> None:
    _, description = stored(CodecSpec("ggml.q4_0"), (24, 512))
    module = CompressedEmbedding(description, scale=22.6)
    ids = torch.tensor([1, 2])
    with Transfers() as counted:
        module(ids)
    assert not +counted.found


def test_the_count_finds_what_transfers() -> None:
    x = torch.ones(3)
    assert transfers(lambda: torch.tensor([1.0, 2.0])) == {"lift_fresh": 1}
    assert transfers(lambda: bool((x > 0).any()))
    assert transfers(lambda: x[x > 0])
    assert transfers(lambda: x.unique())


def test_a_group_that_does_not_exist_is_refused_at_load() -> None:
    random_parts = pytest.importorskip("random_parts", reason="it is in the tests of the whole repository")
    memory_file = pytest.importorskip("squish_testing.sources").memory_file
    codec = CODECS["GPTQ with g_idx"]
    tensor = random_parts.random_tensor(codec, (24, 512))
    arrays = {role: np.array(part) for role, part in tensor.parts(tensor.bound.encoding).items()}
    arrays["g_idx"][7] = 16
    file, _ = memory_file(squish.registry(), {"w": (tensor.spec, codec, arrays)})
    from squish_torch import CompressedLinear

    with pytest.raises(squish.CodecError) as caught:
        CompressedLinear.of(file["w"])
    assert (caught.value.code, caught.value.part) == ("g_idx", "g_idx")
