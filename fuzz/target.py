"""One atheris target for each format: `python fuzz/target.py FORMAT CORPUS [libFuzzer options]`.

Bytes are opened as the format and everything small in it is read. Whatever is raised must be a SquishError that is no
plugin's bug. A format that lives in folders gets one file of a folder fuzzed, which the first two bytes choose.
"""

import sys
import tarfile
from functools import cache, partial
from pathlib import Path

import atheris

PACKAGES = [
    "squish_core", "squish_codecs", "squish_ggml", "squish_gguf", "squish_hf", "squish_mlx", "squish_npydir",
    "squish_safetensors", "squish_squizd", "squish_uqff", "squish_ztensor",
]  # fmt: skip

with atheris.instrument_imports(include=PACKAGES):
    import squish_core as squish
    from squish_core.testing.hostile import probe
    from squish_core.testing.sources import DamagedFolder, source_of

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "gguf": "**/*.gguf", "safetensors": "**/*.safetensors", "ztensor": "**/*.zt", "squizd": "**/*.squizd",
    "uqff": "**/*.uqff",
}  # fmt: skip
FOLDERS = {"hf": "plugins/hf/tests/data", "mlx": "plugins/mlx_format/tests/data", "npydir": "plugins/npydir/tests/data"}
CONFIG = "config.json"
LARGEST = 1 << 16


@cache
def members(name: str) -> list[tuple[Path, str]]:
    """Folder and path of the files that are fuzzed: every config.json; of npy directories all that are of some size."""
    data = ROOT / FOLDERS[name]
    if name != "npydir":
        return [(path.parent, CONFIG) for path in sorted(data.glob(f"*/{CONFIG}"))]
    (archive,) = data.glob("*.tar.xz")
    folder = ROOT / ".fuzz" / "npydir-samples"
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    found = [
        (each, path) for each in sorted(folder.iterdir()) for path in sorted(each.rglob("[!.]*")) if path.is_file()
    ]
    return [(each, path.relative_to(each).as_posix()) for each, path in found if path.stat().st_size < LARGEST]


def seeds(name: str) -> list[bytes]:
    """Real files of a format: what mutation starts from."""
    if name in FOLDERS:
        files = enumerate(members(name))
        return [number.to_bytes(2, "little") + (folder / path).read_bytes() for number, (folder, path) in files]
    places = (*ROOT.glob(f"plugins/*/tests/data/{FILES[name]}"), *ROOT.glob(f"tests/data/{FILES[name]}"))
    return [path.read_bytes() for path in places if path.stat().st_size < LARGEST]


def opened(name: str, data: bytes) -> squish.File:
    """Fuzzed bytes as a file of a format."""
    if name not in FOLDERS:
        return squish.open(data, name)
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
