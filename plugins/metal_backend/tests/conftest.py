"""Metal kernels on the CPU: the interface of `mx.fast.metal_kernel`, with a C++ compiler."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import squish_core as squish

sys.path.insert(0, str(Path(__file__).parent))  # metal_stand_in is a module of these tests

SHIM = (Path(__file__).parent / "data" / "metal_on_cpu.hpp").read_text()
TYPES = {"float32": "float", "float16": "half", "uint32": "uint", "uint8": "uint8_t", "int8": "int8_t"}
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)
ATTRIBUTES = {
    "uint3 thread_position_in_grid": "me.in_grid",
    "uint3 thread_position_in_threadgroup": "me.in_group",
    "uint3 threadgroup_position_in_grid": "group",
    "uint3 threads_per_threadgroup": "group_size",
    "uint3 threads_per_grid": "grid",
    "uint thread_index_in_threadgroup": "index",
    "uint thread_index_in_simdgroup": "index & 31",
    "uint simdgroup_index_in_threadgroup": "index >> 5",
}
RUN = """
static void** arguments;
static uint3 grid, group_size, group;
static void entry() {
    auto& me = fibers::all[fibers::current];
    uint index = uint(fibers::current);
    kernel(CALL);
    me.done = true;
    swapcontext(&me.context, &fibers::scheduler);
}
extern "C" void run(void** given, const uint* sizes) {
    arguments = given;
    grid = {sizes[0], sizes[1], sizes[2]};
    group_size = {sizes[3], sizes[4], sizes[5]};
    for (uint z = 0; z < grid.z; z += group_size.z)
        for (uint y = 0; y < grid.y; y += group_size.y)
            for (uint x = 0; x < grid.x; x += group_size.x) {
                group = {x / group_size.x, y / group_size.y, z / group_size.z};
                fibers::count = 0;
                for (uint k = 0; k < group_size.z; ++k)
                    for (uint j = 0; j < group_size.y; ++j)
                        for (uint i = 0; i < group_size.x; ++i)
                            if (x + i < grid.x && y + j < grid.y && z + k < grid.z) {
                                auto& fiber = fibers::all[fibers::count++];
                                fiber.in_grid = {x + i, y + j, z + k};
                                fiber.in_group = {i, j, k};
                                fiber.done = false;
                            }
                fibers::run(entry);
            }
}
"""


class Shim:
    """A kernel with the arguments of `mx.fast.metal_kernel`; calling it runs it on the CPU."""

    compiler, prelude = COMPILER, SHIM

    def __init__(self, folder, *, name, input_names, output_names, source, header=""):
        self.folder, self.name, self.inputs, self.outputs = folder, name, input_names, output_names
        self.source, self.header = source, header

    def __call__(self, *, inputs, grid, threadgroup, output_shapes, output_dtypes, template=()):
        import mlx.core as mx

        arrays = [np.array(array) for array in inputs]
        outputs = [np.full(shape, np.nan, np.float32) for shape in output_shapes]  # unwritten output stays visible
        assert all(dtype == mx.float32 for dtype in output_dtypes)
        kernel = self._compiled(tuple(TYPES[array.dtype.name] for array in arrays), tuple(template))
        shapes = [np.array(array.shape, np.int32) for array in arrays]
        pointers = [array.ctypes.data for pair in zip(arrays, shapes) for array in pair]
        pointers += [array.ctypes.data for array in outputs]
        kernel((ctypes.c_void_p * len(pointers))(*pointers), (ctypes.c_uint32 * 6)(*grid, *threadgroup))
        return [mx.array(array) for array in outputs]

    def text(self, types, template):
        """The C++ source: shim, template values, header, and the body as a function."""
        inputs = [f"const {kind}* {name}" for kind, name in zip(types, self.inputs)]
        parameters = [each for kind, name in zip(inputs, self.inputs) for each in (kind, f"const int* {name}_shape")]
        parameters += [f"float* {name}" for name in self.outputs]
        call = [f"({each.rsplit(' ', 1)[0]})arguments[{at}]" for at, each in enumerate(parameters)]
        values = "".join(f"constexpr int {name} = {value};\n" for name, value in template)
        signature = ", ".join([*parameters, *ATTRIBUTES])
        body = f"static void kernel({signature}) {{\n{self.source}\n}}\n"
        return SHIM + values + self.header + body + RUN.replace("CALL", ", ".join([*call, *ATTRIBUTES.values()]))

    def _compiled(self, types, template):
        text = self.text(types, template)
        library = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:20]}.so"
        if not library.exists():
            command = [COMPILER, "-std=c++17", "-O0", "-ffp-contract=off", "-w", "-shared", "-fPIC", "-x", "c++", "-"]
            done = subprocess.run([*command, "-o", library], input=text, text=True, capture_output=True)
            assert done.returncode == 0, f"{self.name}: {done.stderr[:2000]}"
        return ctypes.CDLL(os.fspath(library)).run


@pytest.fixture(scope="session")
def shim_folder(tmp_path_factory):
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture
def shim():
    """The compiler and the shim."""
    assert COMPILER, "these tests need a C++ compiler"
    return Shim


@pytest.fixture
def metal_on_cpu(monkeypatch, shim, shim_folder):
    """The backend detects a GPU, and its kernels run on the CPU; on a Mac they run on its GPU."""
    import mlx.core as mx
    from squish_metal import backend, device

    if device.has_gpu():
        yield shim
        return
    monkeypatch.setenv(device.VARIABLE, "cpu")
    monkeypatch.setattr(device, "has_gpu", lambda: True)
    monkeypatch.setattr(mx.fast, "metal_kernel", lambda **definition: Shim(shim_folder, **definition))
    backend._kernels.cache_clear()
    squish.registry().answers.clear()  # those for MLX on the CPU, for tensors of the same kind
    yield shim
    backend._kernels.cache_clear()
    squish.registry().answers.clear()


@pytest.fixture(autouse=True)
def mlx_on_cpu(monkeypatch):
    """Allow MLX on the CPU in these tests; on a Mac it uses the GPU."""
    monkeypatch.setenv("SQUISH_METAL", "cpu")
