"""On a CUDA device: torch's own operations run the codes, and give what the CPU gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import squish_torch
import torch
import transformers
from squish_torch import device_forms, device_ops
from test_torch_decoding import ENCODED, OTHERS, check, masked_module, module_of
from tiny_models import IDS, converted, greedy, logits, tiny_llama
from torch.library import opcheck

import squish_core as squish
from squish_core.api import CodecSpec

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
OPS = torch.ops.squish


@pytest.fixture(autouse=True)
def _without_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(device_forms.BACKENDS, "cuda")


@pytest.mark.parametrize("codec", ENCODED.values(), ids=ENCODED)
def test_values_are_those_of_the_codec_bit_by_bit(codec: CodecSpec) -> None:
    module, values = module_of(codec)
    there = copy.deepcopy(module).to("cuda")
    assert torch.equal(there.dequantize().cpu(), values)
    assert torch.equal(there.dequantize(torch.bfloat16).cpu(), values.to(torch.bfloat16))


@pytest.mark.parametrize("codec", OTHERS.values(), ids=OTHERS)
def test_values_of_other_formats_are_those_of_the_codec(codec: CodecSpec) -> None:
    assert check(codec, (20, 128), 0, 3, 17, device="cuda")


def test_values_of_many_layouts_are_those_of_the_codec() -> None:
    layouts = pytest.importorskip("random_layouts", reason="the strategies are in the tests of the whole repository")
    from hypothesis import given, settings
    from hypothesis import strategies as st

    @settings(max_examples=200, deadline=None)
    @given(layouts.layouts(), st.integers(0, 99))
    def compare(layout: Any, seed: int) -> None:
        codec, shape, dtype = layout
        rows = int(np.prod(shape[:-1]))
        assert check(codec, shape, seed, 0, rows, dtype, device="cuda") or codec.id in ("masked", "palette")

    compare()


@pytest.mark.parametrize("codec", ENCODED.values(), ids=ENCODED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["f32", "bf16", "f16"])
def test_products_and_rows_agree_with_the_cpu(codec: CodecSpec, dtype: torch.dtype) -> None:
    module, values = module_of(codec)
    there = copy.deepcopy(module).to("cuda")
    x = torch.randn(2, 3, 512, generator=torch.Generator().manual_seed(0)).to(dtype)
    y = there(x.cuda())
    assert (y.dtype, y.device.type) == (dtype, "cuda")
    expected = (x.double() @ values.double().T).to(torch.float64)
    tolerance = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}[dtype]
    assert (y.cpu().double() - expected).abs().max() <= tolerance * expected.abs().max()
    ids = torch.tensor([[5, 0], [39, 5]])
    rows = OPS.embed(ids.cuda(), there.parts, there.description, "", dtype)
    assert torch.equal(rows.cpu(), values[ids].to(dtype))


def test_a_module_comes_back_from_the_device() -> None:
    module, _ = module_of(ENCODED["q4_1"])
    x = torch.randn(3, 512)
    expected = module(x)
    there = copy.deepcopy(module).to("cuda")
    assert all(part.is_cuda and part.dtype == torch.uint8 for part in there.parts)
    assert torch.equal(there.to("cpu")(x), expected)
    assert torch.allclose(there.to("cuda")(x.cuda()).cpu(), expected, atol=1e-3)


def test_torch_finds_no_fault_with_the_operations() -> None:
    module, _ = module_of(ENCODED["q4_1"])
    there = module.to("cuda")
    about = (there.parts, there.description, "")
    x = torch.randn(3, 512, device="cuda")
    opcheck(OPS.linear.default, (x, *about))
    opcheck(OPS.linear.default, (x.clone().requires_grad_(), *about))
    opcheck(OPS.embed.default, (torch.tensor([[1, 2]], device="cuda"), *about, torch.float32))
    opcheck(OPS.dequantize.default, (*about, torch.float32))
    opcheck(OPS.linear_gradient.default, (torch.randn(3, 40, device="cuda"), *about))


def test_autocast_and_gradients() -> None:
    module, values = module_of(ENCODED["q4_1"])
    there = module.to("cuda")
    x = torch.randn(3, 512, device="cuda", requires_grad=True)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert there(x).dtype == torch.bfloat16
    gradient = torch.randn(3, 40, device="cuda")
    there(x).backward(gradient)
    assert torch.allclose(x.grad.cpu(), gradient.cpu() @ values, atol=1e-3)


@pytest.mark.parametrize("encode", ["q8_0", "q4_1"])
def test_experts(tmp_path: Path, encode: str) -> None:
    squish.save(
        tmp_path / "w.gguf", {"w": np.random.default_rng(0).standard_normal((4, 24, 64), np.float32)}, encode=encode
    )
    bundle = squish_torch.load_file(tmp_path / "w.gguf", compressed=True)["w"]
    parts = [part.cuda() for part in bundle.parts.values()]
    x, ids = torch.randn(5, 64), torch.tensor([3, 0, 3, 1, 2])
    y = OPS.experts(x.cuda(), ids.cuda(), parts, bundle.description, "")
    weights = squish_torch.load_file(tmp_path / "w.gguf")["w"]
    assert torch.allclose(y.cpu(), torch.einsum("ni,noi->no", x, weights[ids]), atol=1e-3)


def test_what_torch_cannot_decode_is_decoded_on_the_cpu() -> None:
    module = masked_module()
    values = module.dequantize()
    with pytest.warns(UserWarning, match="masked is decoded on the CPU"):
        assert torch.equal(module.to("cuda").dequantize().cpu(), values)


def test_files_load_onto_the_device(tmp_path: Path) -> None:
    path = tmp_path / "w.gguf"
    squish.save(path, {"w": np.random.default_rng(0).standard_normal((16, 64), np.float32)}, encode="q8_0")
    values = squish_torch.load_file(path)["w"]
    assert torch.equal(squish_torch.load_file(path, device="cuda")["w"].cpu(), values)
    with squish_torch.safe_open(path, framework="pt", device="cuda") as file:
        assert file.get_tensor("w").is_cuda
        assert torch.equal(file.get_tensor("w").cpu(), values)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return converted(tiny_llama(folder / "hf"), folder / "m.gguf", ["q4_1", "*norm*=keep", "*embed*=q8_0"])


def test_a_model_on_the_device_says_what_it_says_on_the_cpu(path: Path) -> None:
    here, there = squish_torch.from_pretrained(path), squish_torch.from_pretrained(path, device="cuda")
    assert {parameter.device.type for parameter in there.parameters()} == {"cuda"}
    expected = logits(here)
    assert torch.allclose(logits(there, IDS.cuda()).cpu(), expected, atol=1e-3)
    assert greedy(there, 32, IDS.cuda()) == greedy(here, 32)


def test_a_model_on_the_device_compiles_as_one_graph(path: Path) -> None:
    model = squish_torch.from_pretrained(path, device="cuda")
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    fast = torch.compile(model.forward, fullgraph=True, dynamic=False)
    ids, start, tokens = IDS.cuda(), 0, IDS[0].tolist()
    with torch.no_grad():
        for step in range(16):
            positions = torch.arange(start, start + ids.shape[1], device="cuda")[None]
            out = (model if step == 0 else fast)(ids, past_key_values=cache, position_ids=positions, use_cache=True)
            start += ids.shape[1]
            ids = out.logits[:, -1:].argmax(-1)
            tokens.append(int(ids))
    assert tokens == greedy(model, 16, IDS.cuda())


def test_accelerate_moves_parts_to_the_device_and_back(path: Path) -> None:
    accelerate = pytest.importorskip("accelerate")
    model = squish_torch.from_pretrained(path)
    expected = logits(model)
    accelerate.cpu_offload(model, execution_device=torch.device("cuda"))
    for _ in range(2):
        assert torch.allclose(logits(model, IDS.cuda()).cpu(), expected, atol=1e-3)
    accelerate.hooks.remove_hook_from_module(model, recurse=True)
    assert torch.equal(logits(model), expected)


def test_few_values_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_ops, "LIMIT", 7 * 512)
    module, values = module_of(ENCODED["q4_1"])
    there = module.to("cuda")
    x = torch.randn(3, 512)
    assert torch.allclose(there(x.cuda()).cpu(), x @ values.T, atol=1e-3)
