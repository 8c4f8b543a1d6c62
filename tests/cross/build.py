"""Compile the native code for other systems, and run what can be run here.

    python tests/cross/build.py windows                     a DLL, by MinGW: its exports, and what it loads
    python tests/cross/build.py aarch64 [WORDS FOR PYTEST]  the tests of the kernels, in a Python of aarch64 under qemu
    python tests/cross/build.py instructions                the instructions of each product, per weight and vector

Debian's packages: g++-mingw-w64-x86-64-posix, g++-aarch64-linux-gnu, qemu-user. The Python of aarch64 is Debian's too,
unpacked into build/aarch64/root, with wheels from the package index beside it. Everything is below build/.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PLUGIN = ROOT / "plugins" / "cpu_backend"
HOME = BUILD / "aarch64"
QEMU = ("qemu-aarch64", "-L", str(HOME / "root"), str(HOME / "root/usr/bin/python3.11"))
DEBS = ("python3.11", "libstdc++6", "libgcc-s1")
WHEELS = ("numpy", "ml-dtypes", "attrs", "pluggy", "cbor2", "importlib-metadata", "pytest", "hypothesis")
OF_WINDOWS = re.compile(r"(KERNEL32|msvcrt|api-ms-win-\S+|ucrtbase)\.dll", re.IGNORECASE)
"""Libraries that every Windows has."""
KERNELS = (
    "values",
    "int8",
    "panels",
    "byte_panels",
    "encoders",
    "encode_affine",
    "encode_triple",
    "statistics",
    "measuring",
)


def run(*words: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command prints; the script ends if it fails."""
    done = subprocess.run(
        [str(word) for word in words], env={**os.environ, **(env or {})}, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        sys.exit(f"{words[0]} failed with {done.returncode}\n{done.stdout}")
    return done.stdout


def compiled(folder: Path, system: str, processor: str, compiler: str) -> Path:
    """Configure and build the library for another system."""
    cmake = (Path(sys.executable).with_name("uv"), "tool", "run", "--quiet", "cmake")
    settings = {"SYSTEM_NAME": system, "SYSTEM_PROCESSOR": processor, "CXX_COMPILER": compiler, "BUILD_TYPE": "Release"}
    run(*cmake, "-S", PLUGIN, "-B", folder, *(f"-DCMAKE_{name}={value}" for name, value in settings.items()))
    run(*cmake, "--build", folder, "--parallel")
    return folder / f"libsquish_cpu.{'dll' if system == 'Windows' else 'so'}"


def loaded_names() -> set[str]:
    """The functions that the plugin's Python loads."""
    return set(re.findall(r"\bloaded\.(squish_\w+)", (PLUGIN / "src/squish_cpu/library.py").read_text("utf-8")))


def windows(words: Sequence[str]) -> None:
    """Compile a DLL whose exports are the functions that Python loads, and which needs no DLL of its compiler."""
    library = compiled(BUILD / "windows", "Windows", "AMD64", "x86_64-w64-mingw32-g++-posix")
    headers = run("x86_64-w64-mingw32-objdump", "-p", library)
    table = headers.partition("Name Pointer] Table")[2]
    exports = set(re.findall(r"^\s+\[ *\d+\] (?:\+base\[ *\d+\] +[0-9a-f]+ )?(\w+)$", table, re.MULTILINE))
    needed = set(re.findall(r"DLL Name: (\S+)", headers))
    print(f"{library.relative_to(ROOT)}: {len(exports)} exports; loads {', '.join(sorted(needed))}")
    if exports != loaded_names():
        sys.exit(f"exports differ from what is loaded: {sorted(exports ^ loaded_names())}")
    if foreign := sorted(name for name in needed if not OF_WINDOWS.fullmatch(name)):
        sys.exit(f"loads libraries that Windows lacks: {foreign}")


def python_of_aarch64() -> None:
    """Unpack Debian's Python and install wheels beside it, unless that is done."""
    done, site = HOME / "complete", HOME / "site"
    if done.exists():
        return
    state = HOME / "apt"
    for folder in ("lists/partial", "archives/partial"):
        (state / folder).mkdir(parents=True, exist_ok=True)
    (state / "status").touch()
    options = {
        "APT::Architecture": "arm64", "APT::Architectures": "arm64", "Dir::State": state, "Dir::Cache": state,
        "Dir::State::status": state / "status",
    }  # fmt: skip
    apt = ("apt-get", "-q", "-y", *(f"-o{name}={value}" for name, value in options.items()))
    run(*apt, "update")
    run(*apt, "install", "--no-install-recommends", "--download-only", *DEBS)
    for package in (state / "archives").glob("*.deb"):
        run("dpkg-deb", "-x", package, HOME / "root")
    pip = (
        Path(sys.executable).with_name("uv"),
        "pip",
        "install",
        "--quiet",
        "--target",
        site,
        "--only-binary",
        ":all:",
    )
    system = ("--python-platform", "aarch64-manylinux_2_28", "--python-version", "3.11")
    run(*pip, *system, "-c", ROOT / "constraints.txt", *WHEELS)
    done.touch()


def linked_packages() -> None:
    """Let that Python see the packages that are installed here: their metadata; it has the sources in its path."""
    for package in Path(sys.prefix).glob("lib/python*/site-packages/squish*.dist-info"):
        link = HOME / "site" / package.name
        link.unlink(missing_ok=True)
        link.symlink_to(package)


def prepared() -> tuple[dict[str, str], list[str]]:
    """Environment of that Python with the compiled library, and the instruction sets that qemu knows."""
    library = compiled(HOME / "native", "Linux", "aarch64", "aarch64-linux-gnu-g++")
    python_of_aarch64()
    linked_packages()
    paths = [HOME / "site", ROOT, ROOT / "tests" / "helpers", *sorted(ROOT.glob("plugins/*/src"))]
    env = {"PYTHONPATH": os.pathsep.join(map(str, paths)), "SQUISH_CPU_LIBRARY": str(library)}
    env["PYTHONDONTWRITEBYTECODE"] = "1"
    sets = run(*QEMU, "-c", "from squish_cpu.library import library; print(*library().instructions)", env=env)
    print(f"instruction sets under qemu: {sets}", flush=True)
    return env, sets.split()


def aarch64(words: Sequence[str]) -> None:
    """Run the tests of the kernels with every instruction set that qemu knows."""
    env, _ = prepared()
    files = [str(PLUGIN / "tests" / f"test_cpu_{name}.py") for name in KERNELS]
    command = [*QEMU, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not oracle", *(words or files)]
    sys.exit(subprocess.run(command, cwd=ROOT, env={**os.environ, **env}).returncode)


def instructions(words: Sequence[str]) -> None:
    """Count the instructions of products, with a plugin of qemu."""
    env, sets = prepared()
    plugin = HOME / "count.so"
    run("cc", "-O2", "-shared", "-fPIC", "-o", plugin, ROOT / "tests" / "cross" / "count.c")
    emulated = (QEMU[0], "-plugin", str(plugin), *QEMU[1:])
    for name in sets:
        line = [*emulated, str(ROOT / "tests" / "cross" / "counted.py")]
        output = subprocess.STDOUT
        chosen = {**os.environ, **env, "SQUISH_CPU_INSTRUCTIONS": name}
        done = subprocess.run(
            line, env=chosen, stdout=subprocess.PIPE, stderr=output, check=True, text=True, encoding="utf-8"
        )
        marks: list[int] = []
        for text in done.stdout.splitlines():
            if text.isdigit():
                marks.append(int(text))
            elif " | " in text:
                case, _, values = text.rpartition(" | ")
                print(f"{name} | {case} | {(marks[-1] - marks[-2]) / int(values):.2f}", flush=True)


TARGETS: dict[str, Callable[[Sequence[str]], None]] = {
    "windows": windows,
    "aarch64": aarch64,
    "instructions": instructions,
}

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1] in TARGETS:
        TARGETS[sys.argv[1]](sys.argv[2:])
    else:
        sys.exit(__doc__)
