"""Makes family_presets.json: the types that llama.cpp's own quantizer gives the tensors of each family's small model.

    npm pack @node-llama-cpp/linux-x64@3.22.1 && tar xzf node-llama-cpp-linux-x64-3.22.1.tgz
    PYTHONPATH=tests:tests/helpers:plugins/models/tests:plugins/gguf/tests/data \
      python plugins/models/tests/data/make_family_presets.py package/bins/linux-x64 [FAMILY ...]

Only the families that are named, if any are; the others stay as they are. The package holds llama.cpp v0.5.0.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
import tempfile
from pathlib import Path

import numpy as np
from every_family import FAMILIES
from family_presets import REQUESTS, preset_model
from make_presets import load, types
from preset_models import title

import squish_core as squish

DATA = Path(__file__).with_name("family_presets.json")


def types_of(folder: str, family: str) -> dict[str, str | None]:
    """The types of the matrices by preset, in the order of their names; None where llama.cpp refuses the preset."""
    library = load(Path(folder))
    shapes, meta = preset_model(family)
    generator = np.random.default_rng(0)
    tensors = {
        name: generator.standard_normal(shape).astype("f4" if len(shape) == 1 else "f2")
        for name, shape in shapes.items()
    }
    with tempfile.TemporaryDirectory() as temporary:
        source, target = Path(temporary, "f16.gguf"), Path(temporary, "out.gguf")
        squish.save(source, tensors, metadata=meta)
        return {title(each): types(library, source, target, shapes, each) for each in REQUESTS}


def main(folder: str, *families: str) -> None:
    found = json.loads(DATA.read_text()) if DATA.exists() else {}
    context = multiprocessing.get_context("fork")
    for family in families or FAMILIES:
        with context.Pool(1) as pool:  # an assertion of llama.cpp ends only this process
            try:
                found[family] = pool.apply_async(types_of, (folder, family)).get(60)
            except multiprocessing.TimeoutError:
                print(f"{family}: llama.cpp has no such architecture, or stops at it", file=sys.stderr)
                found[family] = None
        DATA.write_text(json.dumps({name: found[name] for name in sorted(found)}, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
