"""Convert between formats: codes are kept, floats are touched only when asked, every tensor's exactness is stated."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from attrs import evolve, field, frozen

from squish_core import dtypes, handles
from squish_core.containers import Container
from squish_core.distances import Distance
from squish_core.errors import FormatError, MissingPluginError, SquishError, TensorError
from squish_core.guard import guarded, uncollected
from squish_core.handles import File
from squish_core.known import SUFFIXES
from squish_core.limits import Limits
from squish_core.model import DENSE, SAME_BYTES, CodecSpec, Encoding, Exactness, Refusal, TensorSpec
from squish_core.naming import parse_names
from squish_core.plugins import Registry
from squish_core.recipes import KEEP, Rule, expand, kind_of, parse_format, parse_rules, rule_for
from squish_core.streams import copied, encoded, repack_exactness, repacked, values_of, widened
from squish_core.writing import Outgoing, atomic_file, atomic_folder

Progress = Callable[[str, int, int | None], None]
_KEPT = "kept: "


@frozen(kw_only=True)
class Step:
    """What happens to one tensor: `action` is "copy" (bytes), "widen" (integers of a part, to a wider type),
    "repack" (codes), "encode" (through floats).

    `quality`: of an encoding with loss, how far the written values are from the source's; measured while writing.
    """

    name: str
    action: str
    source: str
    target: str
    stored: int
    size: int
    exactness: Exactness
    note: str = ""
    quality: Distance | None = field(default=None, eq=False)
    spec: TensorSpec = field(repr=False)
    origin: Encoding = field(repr=False)

    @property
    def bits(self) -> float:
        """Bits per weight of all parts, scales included."""
        return 8 * self.size / max(self.spec.elements, 1)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        keys = ("name", "action", "source", "target", "stored", "size", "bits", "note")
        quality = self.quality.to_dict() if self.quality else None
        return {**{key: getattr(self, key) for key in keys}, "exactness": str(self.exactness), "quality": quality}


@frozen(kw_only=True)
class Conversion:
    """The report of a conversion, or of a dry run: every tensor's step, sizes in bytes, what was not carried.

    `unused`: patterns of `encode` that no tensor's name matches.
    """

    source: str
    target: str
    format: str
    steps: tuple[Step, ...]
    source_size: int
    size: int | None
    dropped: tuple[str, ...]
    unused: tuple[str, ...] = ()
    dry_run: bool
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        keys = ("source", "target", "format", "source_size", "size", "dry_run", "seconds")
        return {
            **{key: getattr(self, key) for key in keys},
            "dropped": list(self.dropped),
            "unused": list(self.unused),
            "tensors": [step.to_dict() for step in self.steps],
        }


def convert(
    src: Any,
    dst: Any,
    to: str | None = None,
    encode: str | Iterable[str] | Mapping[str, str] | None = None,
    *,
    dry_run: bool = False,
    only: str | Iterable[str] | None = None,
    assets: Any = None,
    names: str | None = None,
    progress: Progress | None = None,
    limits: Limits | None = None,
    registry: Registry | None = None,
) -> Conversion:
    """Write `src` (a path, bytes or open File) to `dst` in another format; atomic, in panel memory.

    `to` is `ID[:key=value,...]` (default: from dst's suffix). `encode` holds `SPEC` or `PATTERN=SPEC` rules, the
    last match wins, `keep` leaves a tensor; without a rule codes are kept and what the target cannot hold is an
    error. `only`: name patterns of the tensors to write. `assets`: as in `open`, for a `src` that is not open yet.
    `names`: "hf:ARCH" or "gguf:ARCH" gives tensors the names of Hugging Face or GGUF; all patterns are about the
    source's. Raises SquishError; the old `dst` stays on failure.
    """
    file = src if isinstance(src, File) else handles.open(src, assets=assets, limits=limits, registry=registry)
    started = time.perf_counter()
    try:
        chosen = (only,) if isinstance(only, str) else tuple(only or ())
        plan = Plan(file, Path(dst), to, parse_rules(encode), chosen, parse_names(names))
        report = plan.report(dry_run)
        if not dry_run:
            plan.write(progress, report.size)
            size = _size_of(Path(dst))
            told, steps = plan.quality, report.steps
            steps = tuple(evolve(step, quality=told[step.name]) if step.name in told else step for step in steps)
            report = evolve(report, steps=steps, size=size, seconds=time.perf_counter() - started)
        return report
    finally:
        if file is not src:
            file.close()


def outgoing(file: File, to: str) -> list[Outgoing]:
    """The tensors of a file as the format `to` holds them, codes kept: for formats whose files take further tensors.

    Raises SquishError where it cannot hold one.
    """
    return Plan(file, Path(), to, (), ()).outgoing()


class Plan:
    """One conversion, decided before anything is written."""

    def __init__(
        self,
        file: File,
        target: Path,
        to: str | None,
        rules: tuple[Rule, ...],
        only: tuple[str, ...],
        rename: Callable[[str], str] = str,
    ) -> None:
        self.file, self.target, self.known = file, target, file.registry
        self.format, self.options = parse_format(to or format_for(target, self.known), "options", self.known)
        self.container = self._writable()
        self.rules = tuple(Rule(rule.pattern, expand(rule.spec, self.format, self.known)) for rule in rules)
        self.rename = rename
        with uncollected():
            self.steps = self._decide(self._selected(only))
        self.specs = [step.spec for step in self.steps]
        if len({spec.name for spec in self.specs}) != len(self.specs):
            raise FormatError("two tensors would have one name", file=self.file.name, code="names")
        self.quality: dict[str, Distance] = {}

    def report(self, dry_run: bool) -> Conversion:
        """Sizes and losses as the target format predicts them."""
        index = self.file.index
        with uncollected(), guarded(FormatError, f"planning the {self.format} file", file=str(self.target)):
            layout = self.container.layout(self.specs, index.meta, index.assets, self.options)
        dropped = [*layout.dropped, *(f"child {name}" for name in index.children)]
        dropped += [f"whole-model encoding {encoding.codec}" for encoding in index.whole]
        names = [step.name for step in self.steps]
        dropped += [f"{name}: {role}" for name in names for role in index.tensors[name].extras]
        return Conversion(
            source=self.file.name, target=str(self.target), format=self.format, steps=tuple(self.steps),
            source_size=sum(ref.size for ref in index.files), size=layout.size, dropped=tuple(dropped), dry_run=dry_run,
            unused=tuple(rule.pattern for rule in self.rules if rule.pattern and not any(map(rule.matches, names))),
        )  # fmt: skip

    def write(self, progress: Progress | None, size: int | None) -> None:
        """Write beside the target and rename; `size` is the predicted one, headers and all."""
        total = size or sum(step.size for step in self.steps)
        done, current = 0, ""

        def advance(count: int) -> None:
            nonlocal done
            done += count
            if progress:
                progress(current, done, total)

        def start(name: str) -> None:
            nonlocal current
            current = name

        assets = {name: bytes(buffer.raw) for name, buffer in self.file.assets.items()}
        tensors = self.outgoing(start)
        atomic = atomic_folder if self.container.writes_folder(self.options) else atomic_file
        with atomic(self.target, advance) as sink, guarded(FormatError, "writing", file=str(self.target)):
            self.container.write(sink, tensors, self.file.index.meta, assets, self.options)

    def outgoing(self, start: Callable[[str], None] | None = None) -> list[Outgoing]:
        """The tensors as the target holds them, their parts as streams; `start` is told each one's name in its turn."""
        tensors = []
        with uncollected():
            for step in self.steps:
                streams = self._streams(step)
                first = next(iter(streams.values()), None)
                if start and first is not None:
                    first.before = partial(start, step.name)
                tensors.append(Outgoing(step.spec, streams))
        return tensors

    def _writable(self) -> Container:
        container = self.known.container(self.format)
        info: Any = self.known.containers[self.format].info
        if not info.can_write:
            can = ", ".join(entry.info.id for entry in self.known.find("container", can_write=True))
            raise FormatError(f"{self.format} cannot be written", code="read-only", hint=f"These can: {can}.")
        return container

    def _selected(self, only: tuple[str, ...]) -> list[TensorSpec]:
        specs = list(self.file.index.tensors.values())
        if not only:
            return specs
        rules = tuple(Rule(pattern, KEEP) for pattern in only)
        chosen = [spec for spec in specs if rule_for(rules, spec.name)]
        if not chosen:
            raise TensorError(
                "no tensor matches",
                file=self.file.name,
                found=", ".join(only),
                code="pattern",
                hint="`squish ls` lists the names.",
            )
        return chosen

    def _decide(self, specs: list[TensorSpec]) -> list[Step]:
        steps, failed = [], []
        general = next((rule.spec for rule in reversed(self.rules) if rule.pattern is None), KEEP)
        with guarded(TensorError, "choosing encodings", file=self.file.name):
            self.chosen = self._chosen(specs, general)
        for spec in specs:
            try:
                with guarded(TensorError, "planning", file=self.file.name, tensor=spec.name):
                    steps.append(self._step(spec))
            except MissingPluginError:
                raise
            except SquishError as error:
                failed.append(error)
        if failed:
            first = failed[0]
            if len(failed) > 1:
                others = ", ".join(error.tensor or "?" for error in failed[1:4])
                more = f" and {len(failed) - 4} more" if len(failed) > 4 else ""
                first.message += f"; the same or another reason stops {others}{more}"
            raise first
        self._check_taken(steps)
        return steps

    def _chosen(self, specs: list[TensorSpec], general: CodecSpec) -> Mapping[str, CodecSpec | str]:
        """What a rule for everything means for each tensor: an encoding, or a reason to keep it."""
        if general == KEEP:
            return {}
        if kind_of(general, self.known) != "policy":
            renamed = {self.rename(spec.name): spec for spec in specs}
            targets = [evolve(spec, name=name) for name, spec in renamed.items()]
            found = self.container.choose(targets, general, self.options)
            return {renamed[name].name: wanted for name, wanted in found.items()}
        ours = [spec for spec in specs if (rule := rule_for(self.rules, spec.name)) and rule.pattern is None]
        return self.known.policy(general.id).choose(
            ours, general.params,
            lambda spec: values_of(self.file, spec, self.file[spec.name].readable()),
            lambda name: expand(CodecSpec(name), self.format, self.known),
        )  # fmt: skip

    def _check_taken(self, steps: list[Step]) -> None:
        """A rule for everything that not one tensor can take is a mistake, not a copy."""
        rules = {step.name: rule_for(self.rules, step.name) for step in steps}
        asked = [step for step in steps if (rule := rules[step.name]) and rule.pattern is None and rule.spec != KEEP]
        if asked and all(step.note.startswith(_KEPT) for step in asked):
            reason, count = Counter(step.note for step in asked).most_common(1)[0]
            rule = rules[asked[0].name]
            assert rule is not None
            raise TensorError(
                f"no tensor can be encoded as {rule.spec}: {reason.removeprefix(_KEPT)}", file=self.file.name,
                found=f"{count} of {len(asked)} tensors with this reason", code="encode",
                hint="Leave the rule out to keep all codes, or ask for another encoding; see `squish codecs`.",
            )  # fmt: skip

    def _step(self, spec: TensorSpec) -> Step:
        rule = rule_for(self.rules, spec.name)
        if rule is None or rule.spec == KEEP:
            return self._keep(spec)
        wanted = rule.spec if rule.pattern is not None else self.chosen.get(spec.name)
        if wanted is None or isinstance(wanted, str):
            return evolve(self._keep(spec), note=_KEPT + (wanted or f"{self.format} does not quantise it"))
        try:
            step = self._encode(spec, wanted)
            who = rule.spec.id if kind_of(rule.spec, self.known) == "policy" else f"the habits of {self.format}"
            note = "" if wanted == rule.spec else f"encoded as {wanted} by {who}"
            return evolve(step, note=note)
        except SquishError as error:
            # A rule for everything leaves alone what its codec cannot take (norms, odd shapes); a named one must hold.
            # What is wrong with the rule itself is wrong for every tensor.
            if rule.pattern is not None or isinstance(error, MissingPluginError) or error.code in ("params", "encode"):
                raise
            return evolve(self._keep(spec), note=_KEPT + error.message)

    def _keep(self, spec: TensorSpec) -> Step:
        if not spec.encodings:
            raise TensorError(spec.problem or "has no readable encoding", tensor=spec.name, code="unreadable")
        refusals = []
        for encoding in spec.encodings:
            answer = self._answer(spec, encoding)
            if isinstance(answer, Refusal):
                refusals.append(answer.why)
                continue
            if _same(answer, encoding, self.known):
                return self._made(spec, "copy", encoding, answer, SAME_BYTES)
            if _wider(answer, encoding):
                return self._made(spec, "widen", encoding, answer, Exactness("values", spec.dtype))
            if answer.codec == encoding.codec:
                return self._made(spec, "encode", encoding, answer, Exactness("values", spec.dtype))
            if answer.codec.id == encoding.codec.id == "dense" and _holds(spec.dtype, answer.codec.params["dtype"]):
                return self._made(spec, "encode", encoding, answer, Exactness("values", spec.dtype))
            if answer.codec.inner == encoding.codec:  # wrapped on request: other values
                return self._made(
                    spec, "encode", encoding, answer, self.known.codec(answer.codec).error_bound(answer.codec.params)
                )
            exactness = repack_exactness(self.file, spec, encoding, answer)
            if exactness is not None:
                return self._made(spec, "repack", encoding, answer, exactness)
            refusals.append(f"its codes do not fit {answer.codec} exactly")
        raise TensorError(
            f"{self.format} cannot hold it: {'; '.join(dict.fromkeys(refusals))}", tensor=spec.name,
            found=str(spec.encodings[0].codec), code="refused",
            hint="Ask for its values with encode= (--encode f32, or another encoding; see `squish formats`).",
        )  # fmt: skip

    def _answer(self, spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
        """What the target says to an encoding; where it knows the codec not, to the same codes as others have them."""
        answer = self.container.accepts(spec, encoding, self.options)
        if not isinstance(answer, Refusal) or self.known.missing(encoding):
            return answer
        codec = self.known.codec(encoding.codec).restated(spec, encoding.codec.params)
        if codec is None:
            return answer
        parts = {role: _part(*held) for role, held in self.known.codec(codec).parts(spec, codec.params).items()}
        return self.container.accepts(spec, Encoding(codec=codec, parts=parts), self.options)

    def _encode(self, spec: TensorSpec, wanted: CodecSpec) -> Step:
        origin = self.file[spec.name].readable()
        value_dtype = self.known.codec(origin.codec).value_dtype(spec, origin.codec.params)
        if not value_dtype.startswith(("f", "bf")):
            raise TensorError("only float tensors are encoded", found=value_dtype, code="dtype")
        if wanted.inner is not None:
            inner = self.known.codec(wanted.inner.id).params_for(spec, wanted.inner.params)
            wanted = evolve(wanted, inner=evolve(wanted.inner, params=inner))
        codec = self.known.codec(wanted)
        if wanted.id != "dense" and len(spec.shape) < 2:
            raise TensorError("a vector is not quantised", found=f"shape {list(spec.shape)}", code="rank")
        params = self.known.encoder(wanted).params_for(spec, wanted.params)
        params = codec.measure(partial(values_of, self.file, spec, origin), spec, params)
        dtype = params["dtype"] if wanted.id == "dense" else codec.value_dtype(spec, params)
        made = evolve(spec, dtype=dtype, encodings=(), problem=None)
        parts = {role: _part(*declared) for role, declared in codec.parts(made, params).items()}
        # A dense tensor's dtype is the tensor's own, not a parameter of how it is stored.
        held = DENSE if wanted.id == "dense" else evolve(wanted, params=params)
        answer = self.container.accepts(made, Encoding(codec=held, parts=parts), self.options)
        if isinstance(answer, Refusal):
            raise TensorError(f"{self.format} cannot hold it: {answer.why}", found=str(wanted), code="refused")
        if wanted.inner is not None and answer.codec.inner is None:
            raise TensorError(f"{self.format} has no place for {wanted.id}", found=str(wanted), code="refused")
        if _same(answer, origin, self.known):
            return self._made(spec, "copy", origin, answer, SAME_BYTES)
        exactness = codec.error_bound(params)
        if wanted.id == "dense":
            exactness = Exactness("values", dtype) if _holds(value_dtype, dtype) else Exactness("bounded")
        return self._made(made, "encode", origin, answer, exactness)

    def _made(self, spec: TensorSpec, action: str, origin: Encoding, target: Encoding, exactness: Exactness) -> Step:
        held = TensorSpec(
            name=self.rename(spec.name), shape=spec.shape, dtype=spec.dtype, encodings=(target,),
            tied_to=spec.tied_to, attrs=spec.attrs, problem=spec.problem,
        )  # fmt: skip
        size = sum(part.nbytes for part in target.parts.values())
        return Step(
            name=spec.name, action=action, source=_shown(self.file.index.tensors[spec.name], origin),
            target=_shown(held, target), stored=origin.stored, size=size, exactness=exactness, spec=held, origin=origin,
        )  # fmt: skip

    def _streams(self, step: Step) -> dict[str, Any]:
        if step.action in ("copy", "widen"):
            return (copied if step.action == "copy" else widened)(self.file, step.origin, step.spec.encodings[0])
        if step.action == "repack":
            return repacked(self.file, step.name, step.spec, step.origin)
        told = partial(self.quality.__setitem__, step.name) if step.exactness.kind == "bounded" else None
        return encoded(self.file, step.name, step.spec, step.origin, told)


def format_for(target: Path, known: Registry) -> str:
    """The writable format that a file name's suffix stands for."""
    writable = known.find("container", can_write=True)
    for entry in writable:
        if any(target.name.lower().endswith(suffix) for suffix in getattr(entry.info, "suffixes", ())):
            return entry.info.id
    if (usual := SUFFIXES.get(target.suffix.lower())) and usual not in known.containers:
        return usual  # not installed: what asks for it says so
    raise FormatError(
        "the target format is not clear from the name", file=str(target), code="format",
        hint=f"Give to=... (--to): {', '.join(entry.info.id for entry in writable)}.",
    )  # fmt: skip


def _same(answer: Encoding, encoding: Encoding, known: Registry) -> bool:
    """Whether the target holds exactly the source's part bytes."""
    kept = {role: (part.dtype, part.shape, part.byteorder) for role, part in encoding.parts.items()}
    parts = {role: (part.dtype, part.shape, part.byteorder) for role, part in answer.parts.items()}
    return kept == parts and known.same_codec(answer.codec, encoding.codec)


def _wider(answer: Encoding, encoding: Encoding) -> bool:
    """Whether the target holds the source's parts, some of them (indices) as wider integers.

    A parameter with the role's name states such a part's dtype.
    """
    if answer.codec.id != encoding.codec.id or set(answer.parts) != set(encoding.parts):
        return False
    pairs = {role: (encoding.parts[role], part) for role, part in answer.parts.items()}
    wider = {role for role, (kept, part) in pairs.items() if kept.dtype != part.dtype}
    rest = [{key: value for key, value in side.codec.params.items() if key not in wider} for side in (answer, encoding)]
    same_form = all((kept.shape, kept.byteorder) == (part.shape, part.byteorder) for kept, part in pairs.values())
    return bool(wider) and rest[0] == rest[1] and same_form and all(
        _widths(pairs[role][0].dtype, pairs[role][1].dtype) for role in wider
    )  # fmt: skip


def _widths(source: Any, target: Any) -> bool:
    """Integers to wider unsigned ones; a negative one is refused when it is met."""
    if not (isinstance(source, str) and isinstance(target, str) and dtypes.known(source) and dtypes.known(target)):
        return False
    return source[0] in "iu" and target[0] == "u" and 8 <= dtypes.bits(source) <= dtypes.bits(target)


def _shown(spec: TensorSpec, encoding: Encoding) -> str:
    return spec.dtype if encoding.codec == DENSE else str(encoding.codec)


def _holds(source: str, target: str) -> bool:
    import numpy as np

    return bool(np.can_cast(dtypes.to_numpy(source), dtypes.to_numpy(target), "safe"))


def _part(dtype: str, shape: tuple[int, ...]) -> Any:
    from squish_core.model import Part

    return Part(dtype=dtype, shape=shape)


def _size_of(target: Path) -> int:
    files = target.rglob("*") if target.is_dir() else [target]
    return sum(path.stat().st_size for path in files if path.is_file())
