"""Cache tiers: whole-model encodings next to the directory's own files, each with a sentinel.

Panels, our own tier, come first: only they have exactly the values of the directory's own files. The others follow in
the order of Squish's loader. A sentinel without its files, and files without their sentinel, are reported and ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from attrs import field, frozen
from squish_safetensors.api import TensorRecord, read_header, spec_of_record

from squish_core.api import (
    DENSE,
    CodecSpec,
    Encoding,
    FormatError,
    Part,
    Problem,
    SquishError,
    TensorError,
    TensorSpec,
    check_file_name,
)

from ..read.folder import Folder

SUFFIX = ".safetensors"
PANELS_LABEL = "squish_panels"
Entry = tuple[Encoding, tuple[int, ...]]


@frozen(kw_only=True)
class TierFiles:
    """The files of a complete tier. `find` returns encoding and shape of a tensor by its name and its safe key;
    `records` are all its tensors if the tier is one file of dense tensors."""

    tier: Tier
    find: Callable[[str, str], Entry | None]
    records: Mapping[str, TensorRecord] = field(factory=dict)


@frozen(kw_only=True)
class Tier:
    """A kind of tier: label, sentinel, required file or folder, and how to open it. `of_all`: a missing tensor is a
    warning."""

    label: str
    sentinel: str
    needs: str
    open: Callable[[Folder, Tier], TierFiles]
    of_all: bool = True


def read(folder: Folder, problems: list[Problem]) -> Iterator[TierFiles]:
    """Return the complete tiers, best first."""
    for tier in TIERS:
        ready, present = folder.has(tier.sentinel), _is_present(folder, tier)
        if ready and present:
            try:
                yield tier.open(folder, tier)
            except SquishError as error:
                problems.append(_problem(tier, "error", f"cannot be read and is ignored: {error}"))
        elif ready:
            problems.append(_problem(tier, "warning", f"has the sentinel {tier.sentinel}, but {tier.needs} is missing"))
        elif present:
            problems.append(
                _problem(tier, "warning", f"is ignored: it was never finished ({tier.sentinel} is missing)")
            )


def _is_present(folder: Folder, tier: Tier) -> bool:
    if tier.needs.endswith("/"):
        return any(name.endswith((".npy", ".npy.zst")) for name in folder.names(tier.needs[:-1]))
    return folder.has(tier.needs)


def _problem(tier: Tier, severity: str, message: str) -> Problem:
    return Problem(code="tier", severity=severity, where=tier.label, message=f"the tier {tier.label} {message}")


def _mlx(folder: Folder, tier: Tier) -> TierFiles:
    """Read an MLX checkpoint in a subfolder: dense tensors, and triples of codes, scales and biases."""
    place = tier.label
    settings = folder.json(f"{place}/config.json", "configuration").get("quantization")
    shards = [f"{place}/{name}" for name in sorted(folder.names(place)) if name.endswith(SUFFIX)]
    if not shards:
        raise FormatError("no safetensors file in this tier", file=place, code="tier")
    records = {name: record for shard in shards for name, record in _records(folder, shard).items()}

    def find(name: str, key: str) -> Entry | None:
        base = name.removesuffix(".weight")
        if name in records and f"{base}.scales" in records:
            return _quantized(tier.label, name, base, records, settings)
        return _dense(tier.label, name, records)

    return TierFiles(tier=tier, find=find)


def _panels(folder: Folder, tier: Tier) -> TierFiles:
    """Read 4-bit codes in panels of 16 rows."""
    from ..read.dialects import PANELS, encoding

    def find(name: str, key: str) -> Entry | None:
        stem, suffixes = f"{tier.label}/{key}", PANELS.files
        files = {role: stored for role, suffix in suffixes.items() if (stored := folder.find(f"{stem}__{suffix}"))}
        if not files:
            return None
        stored = folder.find(f"{stem}__shape")
        if stored is None or "data" not in files:
            raise TensorError(f"missing {stem}{'__shape' if stored is None else '__codes'}.npy", code="partner")
        shape = folder.shape(stored, name)
        return encoding(PANELS, name, shape, files, folder), shape

    return TierFiles(tier=tier, find=find)


def _quantized(label: str, name: str, base: str, records: Mapping[str, TensorRecord], settings: Any) -> Entry:
    """Return the encoding of u32 words, w = q * scale + bias; bits and group size are in the configuration."""
    from squish_codecs.api import Affine

    own = settings.get(base, settings) if isinstance(settings, dict) else {}
    own = own if isinstance(own, dict) else settings
    bits, group = own.get("bits"), own.get("group_size")
    if f"{base}.biases" not in records or type(bits) is not int or not bits or type(group) is not int:
        raise TensorError(
            f"scales without biases, bits or group_size (in config.json) in the tier {label}",
            tensor=name,
            code="tier",
        )
    parts = {
        role: _part(stored, records)
        for role, stored in (("data", name), ("scale", f"{base}.scales"), ("offset", f"{base}.biases"))
    }
    params = {"bits": bits, "group_size": group, "word": "u32", "offset": "bias", "scale_dtype": parts["scale"].dtype}
    encoding = Encoding(codec=CodecSpec("affine", params), parts=parts, label=label)
    words = parts["data"].shape
    shape = (*words[:-1], words[-1] * 32 // bits) if words else ()
    declared = Affine.from_params(params).parts(TensorSpec(name=name, shape=shape, dtype="f32"))
    if declared != {role: (part.dtype, part.shape) for role, part in parts.items()}:
        raise TensorError("the shapes of codes, scales and biases do not match", tensor=name, code="shape")
    return encoding, shape


def _weights(folder: Folder, tier: Tier) -> TierFiles:
    """Read one safetensors file of dense tensors."""
    records = _records(folder, tier.needs)

    def find(name: str, key: str) -> Entry | None:
        return _dense(tier.label, name, records)

    return TierFiles(tier=tier, find=find, records=records)


def _finalized(folder: Folder, tier: Tier) -> TierFiles:
    """Read one dense array per tensor."""

    def find(name: str, key: str) -> Entry | None:
        stored = folder.find(f"{tier.label}/{key}")  # Squish uses the safe keys for these files too
        if stored is None and _is_file_name(name):  # the names themselves, as in its architecture document
            stored = folder.find(f"{tier.label}/{name}")
        if stored is None:
            return None
        return Encoding(codec=DENSE, parts={"data": stored.raw()}, label=tier.label), stored.npy.shape

    return TierFiles(tier=tier, find=find)


def _is_file_name(name: str) -> bool:
    try:
        check_file_name(name, "finalized")
    except SquishError:
        return False
    return True


def _records(folder: Folder, path: str) -> Mapping[str, TensorRecord]:
    source = folder.open(path)
    try:
        return read_header(source, folder.limits, folder.number(path, source.size)).records
    except SquishError as error:
        raise error.within(file=source.name) from None


def _dense(label: str, name: str, records: Mapping[str, TensorRecord]) -> Entry | None:
    if name not in records:
        return None
    part = _part(name, records)
    return Encoding(codec=DENSE, parts={"data": part}, label=label), part.shape


def _part(name: str, records: Mapping[str, TensorRecord]) -> Part:
    """Return the part of a record; TensorError for an unknown dtype."""
    spec = spec_of_record(name, records[name])
    if not spec.encodings:
        raise TensorError(f"cannot read {name}: {spec.problem}", code="dtype")
    return spec.encodings[0].parts["data"]


TIERS = (
    Tier(label=PANELS_LABEL, sentinel=f"{PANELS_LABEL}/.ready", needs=f"{PANELS_LABEL}/", open=_panels, of_all=False),
    Tier(label="squish_4bit", sentinel=".squish_4bit_ready", needs="squish_4bit/config.json", open=_mlx),
    Tier(label="squish_3bit", sentinel=".squish_3bit_ready", needs="squish_3bit/config.json", open=_mlx),
    Tier(label="squish_weights", sentinel=".squish_ready", needs="squish_weights.safetensors", open=_weights),
    Tier(label="finalized", sentinel="finalized/.ready", needs="finalized/", open=_finalized),
)
LABELS = tuple(tier.label for tier in TIERS)
