"""One atheris target for each format: `python fuzz/target.py FORMAT CORPUS [libFuzzer options]`.

Bytes are opened as the format and everything small in it is read. Whatever is raised must be a SquishError that is no
plugin's bug. A format that lives in folders gets one file of a folder fuzzed, which the first two bytes choose; `zstd`
are the files of the other formats, compressed whole.
"""

import shutil
import sys
from functools import cache, partial
from pathlib import Path

import atheris
import zstandard

PACKAGES = [
    "squish_core", "squish_ane", "squish_codecs", "squish_ggml", "squish_gguf", "squish_hf", "squish_mlx",
    "squish_npydir", "squish_onnx", "squish_safetensors", "squish_squizd", "squish_uqff", "squish_zstd",
    "squish_ztensor",
]  # fmt: skip

with atheris.instrument_imports(include=PACKAGES):
    from squish_testing.hostile import probe
    from squish_testing.sources import DamagedFolder, source_of

    import squish_core as squish

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "gguf": "**/*.gguf", "safetensors": "**/*.safetensors", "ztensor": "**/*.zt", "squizd": "**/*.squizd",
    "uqff": "**/*.uqff", "onnx": "**/*.onnx",
}  # fmt: skip
CONFIGS = {"hf": "plugins/hf/tests/data", "mlx": "plugins/mlx_format/tests/data"}
ARCHIVES = {"npydir": "plugins/npydir/tests/data/*.tar.xz", "mlpackage": "plugins/ane_backend/tests/data/packages.zip"}
FOLDERS = (*CONFIGS, *ARCHIVES)
PACKED = "zstd"
FORMATS = (*FILES, *FOLDERS, PACKED)
CONFIG = "config.json"
LARGEST = 1 << 16
FRAME = 1 << 12


@cache
def members(name: str) -> list[tuple[Path, str]]:
    """Folder and path of the files that are fuzzed: every config.json; of archives all that are of some size."""
    if name in CONFIGS:
        return [(path.parent, CONFIG) for path in sorted((ROOT / CONFIGS[name]).glob(f"*/{CONFIG}"))]
    (archive,) = ROOT.glob(ARCHIVES[name])
    folder = ROOT / ".fuzz" / f"{name}-samples"
    shutil.unpack_archive(archive, folder)
    entries = [
        (each, path) for each in sorted(folder.iterdir()) for path in sorted(each.rglob("[!.]*")) if path.is_file()
    ]
    return [(each, path.relative_to(each).as_posix()) for each, path in entries if path.stat().st_size < LARGEST]


def seeds(name: str) -> list[bytes]:
    """Real files of a format: what mutation starts from."""
    if name in FOLDERS:
        files = enumerate(members(name))
        return [number.to_bytes(2, "little") + (folder / path).read_bytes() for number, (folder, path) in files]
    if name == PACKED:
        return [packed for each in FILES for seed in seeds(each) for packed in compressed(seed)]
    places = (*ROOT.glob(f"plugins/*/tests/data/{FILES[name]}"), *ROOT.glob(f"tests/data/{FILES[name]}"))
    return [path.read_bytes() for path in places if path.stat().st_size < LARGEST]


def compressed(content: bytes) -> tuple[bytes, bytes]:
    """A file compressed whole: in frames as any zstd writes them, and with the seek table that Squish writes."""
    frames = [zstandard.compress(content[start : start + FRAME]) for start in range(0, len(content), FRAME)]
    seekable: list[bytes] = []
    with squish.registry().codec(PACKED).packing(seekable.append) as write:
        write(content)
    return b"".join(frames), b"".join(seekable)


def opened(name: str, data: bytes) -> squish.File:
    """Fuzzed bytes as a file of a format."""
    if name not in FOLDERS:
        return squish.open(data, None if name == PACKED else name)
    choices = members(name)
    folder, path = choices[int.from_bytes(data[:2], "little") % len(choices)]
    return squish.open(DamagedFolder(source_of(folder), path, data[2:]), name)


def one_file(name: str, data: bytes) -> None:
    """Read everything that is small; only a SquishError may come, and no bug of a plugin."""
    try:
        with opened(name, data) as file:
            probe(file)
    except squish.SquishError as error:
        if error.code in ("plugin-bug", "memory"):
            raise


def main() -> None:
    name = sys.argv.pop(1)
    with atheris.instrument_imports(include=PACKAGES):  # plugins are imported when they are first needed
        for seed in seeds(name):
            one_file(name, seed)

    atheris.Setup(sys.argv, partial(one_file, name))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
