"""The conformance kit, refusals, and selecting and sharing the library."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import random_parts
from cases import AWQ
from random_parts import random_tensor, same
from squish_cpu import library
from squish_testing import BackendSuite, expect_error

import squish_core as squish
from squish_core.api import BoundEncoding, CodecSpec, ErrorCode, SquishError, UsageError

pytestmark = pytest.mark.alone


class TestCpuConformance(BackendSuite):
    """The kit's suite over dense and encoded tensors."""

    backend = "cpu"

    def cases(self) -> Mapping[str, tuple[CodecSpec, np.ndarray]]:
        values = np.random.default_rng(0).standard_normal((24, 64), np.float32)
        encoded = {
            "q8_0": CodecSpec("ggml.q8_0"), "q4_1": CodecSpec("ggml.q4_1"), "mx": CodecSpec("mx"),
            "int4": CodecSpec("affine", {"bits": 4, "group_size": 32, "offset": "bias"}),
        }  # fmt: skip
        return {**super().cases(), **{name: (codec, values) for name, codec in encoded.items()}}


@pytest.mark.parametrize(
    ("codec", "shape", "dtype", "why"),
    [
        (CodecSpec("dense"), (4, 4), "f64", "dense f64"),
        (CodecSpec("dense"), (), "f32", "scalar or empty"),
        (CodecSpec("affine", {"bits": 4, "axis": "flat", "group_size": 24}), (3, 32), "f32", "span rows"),
        (CodecSpec("affine", {"bits": 3, "axis": "flat", "group_size": 5}), (3, 5), "f32", "share bytes"),
        (CodecSpec("affine", {"bits": 4, "axis": -2}), (2, 4, 4), "f32", "stack"),
        (CodecSpec("affine", {"bits": 3, "word": "i32", "order": "planes"}), (4, 32), "f32", "bit planes"),
        (CodecSpec("palette", {"bits": 4, "codebook_size": 16}), (4, 16), "f32", "several tables"),
        (CodecSpec("bitmask", {"dtype": "f16", "kept": "run", "bits": 4}), (9, 64), "f32", "a codebook under a mask"),
    ],
)
def test_unsupported_encodings_fall_back_to_numpy_with_a_reason(
    codec: CodecSpec, shape: tuple[int, ...], dtype: str, why: str
) -> None:
    chain = random_tensor(codec, shape, dtype=dtype).plan(op="dense")
    assert chain.chosen.backend == "numpy"
    (refused,) = (item for item in chain.refused if item.backend == "cpu")
    assert why in refused.why
    assert why in chain.explain()


def test_cpu_is_the_default_and_gives_a_reason() -> None:
    chain = random_tensor(CodecSpec("ggml.q4_k"), (2, 256)).plan()
    assert chain.chosen.backend == "cpu"
    assert "in place" in chain.explain()
    assert chain.chosen.cost is not None
    assert chain.chosen.cost.resident == 0


def test_probe_names_the_instructions(instructions: str) -> None:
    available = squish.registry().backend("cpu").probe()
    assert available.ok
    assert available.facts["instructions"] == instructions


@pytest.mark.parametrize(
    ("variable", "value"), [(library.INSTRUCTIONS, "mmx"), (library.THREADS, "0"), (library.THREADS, "many")]
)
def test_invalid_settings_are_refused(variable: str, value: str) -> None:
    """In a separate process: the backend is unavailable and reports why."""
    code = "import squish_core as s; a = s.registry().backend('cpu').probe(); print(a.ok, a.reason)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, variable: value}, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("False")
    assert variable in done.stdout
    assert value in done.stdout


@pytest.mark.parametrize("layout", [{}, {"axis": -2, "transposed": True, "word": "i32"}, AWQ])
def test_threads_give_the_same_bits(layout: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = random_tensor(CodecSpec("affine", {"bits": 4, "group_size": 32, **layout}), (1000, 256))
    x = np.random.default_rng(0).standard_normal((3, 256), np.float32)
    results = []
    for count in ("1", "2", "7"):
        monkeypatch.setenv(library.THREADS, count)
        weight = tensor.load("cpu")
        results.append((weight.dense(), weight.linear(x), weight.linear(x[0])))
    for other in results[1:]:
        for result, expected in zip(other, results[0]):
            same(result, expected)


def test_threads_default_to_the_cores_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(library.THREADS, raising=False)
    monkeypatch.setenv("SQUISH_THREADS", "1")
    assert library.threads() == 1
    monkeypatch.setenv(library.THREADS, "3")
    assert (library.threads(), library.threads("2")) == (3, 2)
    monkeypatch.delenv(library.THREADS)
    monkeypatch.setenv("SQUISH_THREADS", "none")
    with pytest.raises(UsageError) as error:
        library.threads()
    assert error.value.code == ErrorCode.USAGE


def test_python_threads_may_call_concurrently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library.THREADS, "3")
    weight = random_tensor(CodecSpec("ggml.q8_0"), (2000, 256)).load("cpu")
    expected = weight.dense()
    failed: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(5):
                same(weight.dense(), expected)
        except BaseException as error:
            failed.append(error)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not failed


FORK = """
import os, sys
import numpy as np
sys.path.insert(0, {modules!r})
from random_parts import random_tensor
from squish_core.api import CodecSpec
weight = random_tensor(CodecSpec("ggml.q8_0"), (4000, 256)).load("cpu")
wanted = weight.dense()
child = os.fork()
if not child:
    os._exit(0 if weight.dense().tobytes() == wanted.tobytes() else 1)
assert weight.dense().tobytes() == wanted.tobytes()
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_can_use_the_library() -> None:
    code = FORK.format(modules=os.path.dirname(random_parts.__file__))
    environment = {**os.environ, library.THREADS: "4"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_part_shape_mismatch_is_an_error() -> None:
    """Kernels do not check bounds, so shapes are checked before any pointer is passed."""
    tensor = random_tensor(CodecSpec("ggml.q4_0"), (4, 64))
    backend, chain = squish.registry().backend("cpu"), tensor.plan("cpu")
    arrays = {"data": tensor.parts()["data"].numpy()[:, :-1]}
    with expect_error(SquishError, code="shape", tensor="w", part="data"):
        backend.load(chain, BoundEncoding(tensor.bound.codec, tensor.spec, tensor.bound.encoding, arrays))


def test_operands_are_checked() -> None:
    weight = random_tensor(CodecSpec("ggml.q4_0"), (4, 64)).load("cpu")
    with expect_error(SquishError, code="shape", tensor="w", expected=64, found="shape (63,)"):
        weight.linear(np.zeros(63, np.float32))
    with expect_error(SquishError, code="ids", tensor="w", expected="0..3", found="4..4"):
        weight.embed(np.array([4]))
    with expect_error(SquishError, code="out", tensor="w", expected="writable f32 (4, 64)", found="float32 (4, 63)"):
        weight.dense(out=np.zeros((4, 63), np.float32))
    with expect_error(SquishError, code="dtype", tensor="w", expected="f32, f16, bf16", found="f64"):
        weight.dense(dtype="f64")


def test_the_size_of_a_weight_counts_mapped_bytes() -> None:
    dense, blocks = random_tensor(CodecSpec("dense"), (32, 256)), random_tensor(CodecSpec("ggml.q4_0"), (32, 256))
    assert dense.load("cpu").nbytes == 4 * 32 * 256
    assert blocks.load("cpu").nbytes == blocks.nbytes == 32 * 256 * 18 // 32
    repacked = blocks.load("cpu:repack=rows")
    assert repacked.nbytes == blocks.nbytes + 32 * (256 // 2 + 256 // 32 * 2)  # 4-bit codes, f16 scales
    assert blocks.load("numpy").nbytes >= blocks.nbytes
