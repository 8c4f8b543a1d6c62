"""`prove`: which encoder made the tensors of a quantized file from those of its base model, byte for byte.

Each tensor is encoded again, from the base's values under the names and rows of the quantized file, and compared with
the stored bytes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

from attrs import evolve, field, frozen

from squish_core import opening
from squish_core.checking.check import ProgressCallback
from squish_core.codecs.regions import stored_panels
from squish_core.codes import ErrorCode
from squish_core.display import fit_all, table, to_json
from squish_core.errors import CodecError, MissingPluginError, SquishError, UsageError, redact
from squish_core.file import File
from squish_core.model import CodecSpec, Encoding, TensorSpec
from squish_core.plugins.registry import Registry

from .activations import ActivationStatistics, open_activations
from .compare.metrics import Distance
from .mapping.pairing import map_to_first
from .panels import PanelEncoder

if TYPE_CHECKING:
    import numpy as np

EXACT, NEAR, DIFFERS, UNPROVEN, MISSING = "exact", "near", "differs", "no encoder", "not in the base"
STATES = (EXACT, NEAR, DIFFERS, UNPROVEN, MISSING)
ALIKE, HALF, TOLERANCE = 0.99, 0.5, 1.1
"""Near is an encoding of which this share of the bytes is equal, or half, if its error is at most the encoder's times
this: another rounding, precision of the base or weighting of errors."""
SHOWN = 20
"""Tensors to list by default."""
SEARCHES: tuple[Mapping[str, Any], ...] = ({}, {"search": "mse"}, {"search": "activations"})
"""Parameters of encoders that files do not state, which are tried."""


@frozen(kw_only=True)
class ProvenTensor:
    """What is known of the origin of a tensor.

    Attributes
    ----------
    name, stored_as
        The tensor of the quantized file, and its codec.
    state
        "exact": every stored byte is what the encoder gives. "near": 99 % of the bytes are equal, or half of them and
        the error is like the encoder's: it had another precision of the base, or weighted errors. "differs": else, or
        the shape is another. "no encoder": none that is installed writes this codec. "not in the base".
    encoder
        The encoder that gives the most equal bytes, with its parameters.
    equal
        Share of the bytes that are equal.
    nmse, encoder_nmse
        Squared error of the stored tensor relative to the base, and of what the encoder gives.
    reason
        Why nothing is known.
    """

    name: str
    stored_as: str
    state: str
    encoder: str = ""
    equal: float | None = None
    nmse: float | None = None
    encoder_nmse: float | None = None
    reason: str = ""


@frozen(kw_only=True, repr=False)
class Proof:
    """The origin of every tensor of a quantized file.

    Attributes
    ----------
    file, base
        The quantized file and its base.
    tensors
        Every tensor of the quantized file.
    mapped
        How the base was mapped to the names of the file; empty if it was not.
    """

    file: str = field(converter=redact)
    base: str = field(converter=redact)
    tensors: tuple[ProvenTensor, ...]
    mapped: str = ""

    @property
    def proven(self) -> bool:
        """Whether every tensor is exactly what an encoder gives."""
        return all(tensor.state == EXACT for tensor in self.tensors)

    def __str__(self) -> str:
        return "\n".join(fit_all(proof_lines(self)))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON.

        Returns
        -------
        dict
            `proven` and the fields by name.

        Examples
        --------
        >>> prove("model.gguf", "model.gguf").to_dict()["proven"]
        True
        """
        return {"proven": self.proven, **to_json(self)}


def prove(
    file: Any,
    base: Any,
    *,
    activations: Any = None,
    registry: Registry | None = None,
    progress: ProgressCallback | None = None,
) -> Proof:
    """Find the encoder of each tensor of a quantized file, by encoding its base again.

    Parameters
    ----------
    file
        The quantized file: a path, bytes or an open `File`.
    base
        The model that it was made from, in any format; its names and rows are mapped if its family is known.
    activations
        Activation statistics (imatrix) that the encoder may have had.
    registry
        The plugins to use; the installed ones by default.
    progress
        Called with the tensor's name, the bytes compared and the total bytes.

    Returns
    -------
    Proof
        The encoder of each tensor, and whether it gives exactly the stored bytes.

    Raises
    ------
    UsageError
        No tensor of the file has the name of one of the base.
    SquishError
        A file cannot be opened.

    Examples
    --------
    >>> _ = squish.convert("model.safetensors", "q8.gguf", encode="q8_0", rename="keep")
    >>> print(prove("q8.gguf", "model.safetensors"))
    exact: 3 of 3 tensors: ggml.q8_0 2, f32 1
    """
    with ExitStack() as stack:
        one, two = (
            item if isinstance(item, File) else stack.enter_context(opening.open(item, registry=registry))
            for item in (file, base)
        )
        two, mapped = map_to_first(one, two)
        statistics = None
        if activations is not None:
            opened = stack.enter_context(open_activations(activations, registry=registry))
            statistics = ActivationStatistics(opened, two)
        specs = list(one.without_caches().index.tensors.values())
        if specs and not any(spec.name in two for spec in specs):
            raise UsageError(
                "has no tensor of the base",
                file=one.name,
                expected=f"names such as {next(iter(two), '')}",
                found=specs[0].name,
                code=ErrorCode.USAGE,
                hint="Pass the model that it was made from; if its family is unknown, in the same layout of names.",
            )
        total, done, tensors = sum(_size(spec) for spec in specs), 0, list[ProvenTensor]()
        for spec in specs:
            tensors.append(_prove(one, two, spec, statistics))
            done += _size(spec)
            if progress:
                progress(spec.name, done, total)
        return Proof(file=one.name, base=two.name, tensors=tuple(tensors), mapped=mapped)


def _size(spec: TensorSpec) -> int:
    return spec.encodings[0].stored if spec.encodings else 0


def _prove(file: File, base: File, spec: TensorSpec, statistics: ActivationStatistics | None) -> ProvenTensor:
    """Return what is known of one tensor."""
    stored_as = str(spec.encodings[0].codec) if spec.encodings else spec.problem or ""
    stored_as = spec.dtype if stored_as == "dense" else stored_as
    proven = partial(ProvenTensor, name=spec.name, stored_as=stored_as)
    if spec.name not in base:
        return proven(state=MISSING)
    if base[spec.name].shape != spec.shape:
        return proven(state=DIFFERS, reason=f"shape {list(base[spec.name].shape)} in the base")
    try:
        trials = [_Trial(file, base, spec, codec, statistics) for codec in _candidates(file, spec, statistics)]
        best = max(trials, key=lambda trial: trial.first_share, default=None)
        if best is None:
            return proven(state=UNPROVEN, reason="no encoder takes this shape or these parameters")
        share = best.share()
    except (CodecError, MissingPluginError) as error:
        return proven(state=UNPROVEN, reason=error.message)
    encoder = spec.dtype if best.codec.id == "dense" else str(best.codec)
    if share == 1:
        return proven(state=EXACT, encoder=encoder, equal=1.0)
    stored, encoded = best.distances()
    alike = share >= HALF and stored.nmse <= TOLERANCE * encoded.nmse
    state = NEAR if share >= ALIKE or alike else DIFFERS
    return proven(state=state, encoder=encoder, equal=share, nmse=stored.nmse, encoder_nmse=encoded.nmse)


def _candidates(file: File, spec: TensorSpec, statistics: ActivationStatistics | None) -> Iterator[CodecSpec]:
    """Codecs, with parameters of their encoders, that may have made a tensor."""
    stored = spec.encodings[0].codec
    if stored.id == "dense":
        yield CodecSpec("dense", {"dtype": spec.dtype}) if stored.params else stored
        return
    params = {key: value for key, value in stored.params.items() if key != "symmetric"}
    for search in SEARCHES:
        if search.get("search") == "activations" and statistics is None:
            continue
        codec = evolve(stored, params={**params, **search})
        try:
            accepted = file.registry.encoder_type(codec).params_for(spec, codec.params)
        except SquishError:
            continue
        if search and "search" not in accepted:
            continue
        yield evolve(codec, params=accepted)


class _Trial:
    """One encoder, tried on one tensor."""

    def __init__(
        self, file: File, base: File, spec: TensorSpec, codec: CodecSpec, statistics: ActivationStatistics | None
    ) -> None:
        stored = spec.encodings[0]
        self.codec, self._file, self._base, self._spec = codec, file, base, spec
        target = evolve(spec, encodings=(Encoding(codec=codec, parts=stored.parts),))
        needs = codec.params.get("search") == "activations"
        magnitudes = statistics.of(target) if statistics is not None and needs else None
        origin = base.without_caches().index.tensors[spec.name].encodings[0]
        self._encoder = PanelEncoder(base, spec.name, target, origin, magnitudes)
        self._read = self._encoder.reader()
        self._parts = {role: file.array(part) for role, part in stored.parts.items()}
        self._panels = list(stored_panels(spec.shape, self._encoder.grain, 4))
        self.first_share = self._share(self._panels[:1])

    def share(self) -> float:
        """Share of the stored bytes that the encoder gives."""
        return self._share(self._panels)

    def _share(self, panels: Sequence[Any]) -> float:
        equal = total = 0
        places = dict.fromkeys(self._parts, 0)
        for region in panels:
            for role, array in self._encode(region)[1].items():
                found = _bytes(array)
                stored = _bytes(self._parts[role].bytes(places[role], found.size))
                places[role] += found.size
                equal += int((found == stored).sum())
                total += found.size
        return equal / total if total else 1.0

    def _encode(self, region: Any) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        values = self._read(region)
        return values, self._encoder.encode(region, self._encoder.panel(values))

    def distances(self) -> tuple[Distance, Distance]:
        """The errors of the stored tensor and of what the encoder gives, relative to the base."""
        stored, encoded = Distance(), Distance()
        tensor = self._file[self._spec.name]
        for region in self._panels:
            values, parts = self._encode(region)
            stored.add(values, tensor[region])
            self._encoder.add_distance(encoded, values, parts, None)
        return stored, encoded


def _bytes(data: Any) -> np.ndarray:
    import numpy as np

    if isinstance(data, np.ndarray):
        return np.ascontiguousarray(data).reshape(-1).view(np.uint8)
    return np.frombuffer(data, np.uint8)


def proof_lines(proof: Proof, most: int | None = SHOWN) -> Iterator[str]:
    """Yield the counts of each state, then up to `most` tensors that are not exact."""
    count = len(proof.tensors)
    for state in STATES:
        if chosen := [tensor for tensor in proof.tensors if tensor.state == state]:
            encoders = Counter(tensor.encoder or tensor.stored_as for tensor in chosen)
            listed = ", ".join(f"{name} {number:,}" for name, number in encoders.most_common())
            yield f"{state}: {len(chosen):,} of {count:,} tensors: {listed}"
    if proof.mapped:
        yield proof.mapped
    others = [tensor for tensor in proof.tensors if tensor.state != EXACT]
    if others:
        header = ("state", "equal", "NMSE", "encoder's", "encoder", "name")
        yield from table(header, "<>>><<", [_row(tensor) for tensor in others[:most]])
    if most is not None and len(others) > most:
        yield f"{len(others) - most:,} more"


def _row(tensor: ProvenTensor) -> tuple[str, ...]:
    equal = "-" if tensor.equal is None else f"{100 * tensor.equal:.4g} %"
    errors = ("-" if value is None else f"{value:.3g}" for value in (tensor.nmse, tensor.encoder_nmse))
    return tensor.state, equal, *errors, tensor.encoder or tensor.reason or tensor.stored_as, tensor.name
