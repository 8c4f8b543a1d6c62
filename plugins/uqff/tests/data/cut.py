"""Cut layers out of UQFF files without touching a byte of a tensor: `python cut.py FIXTURES DEST`.

FIXTURES has manifest.json and the unpacked files. Small files are kept whole.
"""

import json
import shutil
import sys
from pathlib import Path

KEPT = ("self_attn.k_proj", "self_attn.v_proj")
WHOLE = ("s-moe/afq4",)
WITH_THE_REST = ("s-moe/afq4", "0.6.0_uqff-0.1.3/s-qwen2/hqq4")


def read(path):
    """The entries of a safetensors header and the data behind it."""
    raw = path.read_bytes()
    end = 8 + int.from_bytes(raw[:8], "little")
    return json.loads(raw[8:end]), raw[end:]


def cut(source, target, names):
    """The tensors that `wanted` takes, in the order of their data."""
    entries, data = read(source)
    header, blobs, at = {}, [], 0
    meta = entries.pop("__metadata__", None)
    if meta:
        header["__metadata__"] = meta
    for name, entry in sorted(entries.items(), key=lambda item: item[1]["data_offsets"]):
        if names(name):
            begin, end = entry["data_offsets"]
            header[name] = {**entry, "data_offsets": [at, at + end - begin]}
            blobs.append(data[begin:end])
            at += end - begin
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(blobs))


def main(fixtures, dest):
    expected = {}
    for entry in json.loads((fixtures / "manifest.json").read_text())["entries"]:
        if entry["format"] != "uqff":
            continue
        path, layers = fixtures / entry["path"], json.loads((fixtures / entry["expected"]).read_text())
        model = "moe-" if "s-moe" in entry["path"] else ""
        folder = dest / f"{entry['generation']}-{model}{entry['quant']}"
        if path.is_dir() or any(part in entry["path"] for part in WHOLE):
            kept = layers
        elif entry["layout"] == "legacy" and "derived" in entry["path"]:
            kept = dict(list(layers.items())[-1:])
        else:
            kept = {key: layer for key, layer in layers.items() if layer["layer"].endswith(KEPT)}
        folder.mkdir()
        for file in [path] if path.is_file() else sorted(path.glob("*.uqff")):
            if kept is layers:
                shutil.copyfile(file, folder / file.name)
            else:
                cut(
                    file,
                    folder / file.name,
                    lambda name, kept=kept: name.split(".weight")[0].split(".bias")[0] in kept or "version" in name,
                )
        if any(part in entry["path"] for part in WITH_THE_REST):
            shutil.copyfile(fixtures / entry["config"], folder / "config.json")
            cut(fixtures / entry["residual"], folder / "residual.safetensors", lambda name: "norm" in name)
        values = expected[folder.name] = {}
        for key, layer in kept.items():
            values[f"{key}.weight"] = [layer["layer"] + ".weight", layer["shape"], layer["dequant_f32_sha256"]]
            if layer["bias"]:
                values[f"{key}.bias"] = [layer["layer"] + ".bias", layer["bias"]["shape"], layer["bias"]["f32_sha256"]]
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(values)}" for name, values in expected.items())
    (dest / "expected.json").write_text(f"{{\n{lines}\n}}\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
