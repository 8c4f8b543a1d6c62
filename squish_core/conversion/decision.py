"""Which step converts each tensor: copy, widen, repack or encode, or why none can."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.base import ModelFacts
from squish_core.codes import ErrorCode
from squish_core.conversion.activations import Activations
from squish_core.conversion.compatible import needs_activations, same, wider, with_hints, without_hints
from squish_core.conversion.evidence import complete_params, repack_exactness, values_of
from squish_core.conversion.overflow import REFUSE
from squish_core.conversion.rules import KEEP, Rule, expand, kind_of, rule_for
from squish_core.conversion.step import RuleEffect, Step
from squish_core.errors import CodecError, MissingPluginError, SquishError, TensorError
from squish_core.file import File
from squish_core.formats.base import Container
from squish_core.guard import computing
from squish_core.mapping.mapped import MappedFile
from squish_core.model import DENSE, SAME_BYTES, CodecSpec, Encoding, Exactness, Part, Refusal, TensorSpec

_KEPT = "kept: "
_OF_THE_RULE = (ErrorCode.PARAMS, ErrorCode.ENCODE)
"""Codes of errors that are wrong for every tensor, whichever one a rule was tried on."""


class Decision:
    """What a format makes of a file's tensors under the rules of `encode=`."""

    def __init__(
        self, file: File, container: Container, options: Mapping[str, str], rules: tuple[Rule, ...],
        stats: Activations | None = None,
    ) -> None:  # fmt: skip
        self.stats = stats
        self.file, self.known, self.container, self.format = file, file.registry, container, container.id
        self.options, self.rules = options, rules
        self.dtypes = file.dtypes if isinstance(file, MappedFile) else {}
        self.chosen: Mapping[str, CodecSpec | str] = {}

    def decide(self, specs: list[TensorSpec]) -> list[Step]:
        """One step for each tensor; SquishError where one cannot be had."""
        steps, failed = [], []
        with computing(TensorError, "choosing encodings", file=self.file.name):
            self.chosen = self._chosen(specs)
        for spec in specs:
            try:
                with computing(TensorError, "planning", file=self.file.name, tensor=spec.name):
                    steps.append(self._step(spec))
            except MissingPluginError:
                raise
            except SquishError as error:
                rule = rule_for(self.rules, spec.name)
                blamed = rule is not None and rule.spec != KEEP and error.code in _OF_THE_RULE
                if blamed or error.code == ErrorCode.OPTION:  # of the rule or the format to write, not of this tensor
                    raise error.about_argument() from None
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

    def _chosen(self, specs: list[TensorSpec]) -> Mapping[str, CodecSpec | str]:
        """What rules that leave a choice mean for each tensor: an encoding, or a reason to keep it."""
        ruled = {spec.name: rule_for(self.rules, spec.name) for spec in specs}
        chosen: dict[str, CodecSpec | str] = {}
        for rule in self.rules:
            ours = [spec for spec in specs if ruled[spec.name] is rule]
            if ours and self._is_allocator(rule):
                chosen |= self._allocated(rule, ours, specs)
            elif ours and rule.pattern is None and rule.spec != KEEP:
                found = self.container.choose(specs, rule.spec, self.options)  # habits look at the whole model
                chosen |= {spec.name: found[spec.name] for spec in ours if spec.name in found}
        return chosen

    def _allocated(self, rule: Rule, specs: list[TensorSpec], model: list[TensorSpec]) -> Mapping[str, CodecSpec | str]:
        names = tuple(spec.name for spec in model)
        facts = ModelFacts(names, self.file.metadata, self.stats.names(model) if self.stats else None)
        try:
            return self.known.allocator(rule.spec.id).choose(
                specs, rule.spec.params,
                lambda spec: values_of(self.file, spec, self.file[spec.name].bound.encoding, "f32"),
                lambda name: expand(CodecSpec(name), self.format, self.known),
                facts,
            )  # fmt: skip
        except SquishError as error:
            if error.code in _OF_THE_RULE:
                error.about_argument()
            raise

    def _is_allocator(self, rule: Rule) -> bool:
        return kind_of(rule.spec, self.known) == "allocator"

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
                found=f"{count} of {len(asked)} tensors with this reason", code=ErrorCode.ENCODE,
                hint="Leave the rule out to keep all codes, or ask for another encoding; see `squish codecs`.",
            )  # fmt: skip

    def _step(self, spec: TensorSpec) -> Step:
        rule = rule_for(self.rules, spec.name)
        if rule is None or rule.spec == KEEP or (rule.pattern is None and spec.name in self.dtypes):
            return self._keep(spec)
        wanted = self.chosen.get(spec.name) if rule.pattern is None or self._is_allocator(rule) else rule.spec
        if wanted is None or isinstance(wanted, str):
            return evolve(self._keep(spec), note=_KEPT + (wanted or f"{self.format} does not quantise it"))
        try:
            step = self._encode(spec, wanted, rule.overflow)
            who = rule.spec.id if self._is_allocator(rule) else f"the habits of {self.format}"
            note = "" if wanted == rule.spec else f"encoded as {wanted} by {who}"
            return evolve(step, note=note, overflow=rule.overflow)
        except SquishError as error:
            # A rule for everything leaves alone what its codec cannot take (norms, odd shapes); a named one must hold.
            if rule.pattern is not None or isinstance(error, MissingPluginError) or error.code in _OF_THE_RULE:
                raise
            try:
                return evolve(self._keep(spec), note=_KEPT + error.message)
            except TensorError as kept:
                why = "" if error.message == kept.message else f" ({error.message})"
                kept.message = f"{kept.message}; nor as {wanted}{why}"
                raise

    def _keep(self, spec: TensorSpec) -> Step:
        if not spec.encodings:
            raise TensorError(spec.problem or "has no readable encoding", tensor=spec.name, code=ErrorCode.UNREADABLE)
        if dtype := self.dtypes.get(spec.name):  # that the target's engine wants, and that holds every value
            step = self._encode(spec, CodecSpec("dense", {"dtype": dtype}), REFUSE)
            return evolve(step, exactness=Exactness("values", dtype))
        refusals = []
        for encoding in spec.encodings:
            answer = self._answer(spec, encoding)
            if isinstance(answer, Refusal):
                refusals.append(answer.why)
                continue
            if same(answer, encoding, self.known):
                return self._made(spec, "copy", encoding, answer, SAME_BYTES)
            if answer.codec == encoding.codec == DENSE:
                return self._made(spec, "encode", encoding, answer, Exactness("values", spec.dtype))
            if wider(answer, encoding):
                return self._made(spec, "widen", encoding, answer, Exactness("values", spec.dtype))
            if answer.codec.id == encoding.codec.id == "dense" and dtypes.holds(
                answer.codec.params["dtype"], spec.dtype
            ):
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
            hint="Ask for its values with encode='f32', or another encoding that `squish codecs` lists.",
        )  # fmt: skip

    def _answer(self, spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
        """What the target says to an encoding, or to its codes where it does not take the encoding itself."""
        answer = self.container.accepts(spec, encoding, self.options)
        if not isinstance(answer, Refusal) or self.known.missing(encoding):
            return answer
        layout = self.known.codec(encoding.codec).code_layout(spec, encoding.codec.params)
        return (layout and self.container.accepts_codes(spec, layout, self.options)) or answer

    def _encode(self, spec: TensorSpec, wanted: CodecSpec, overflow: str) -> Step:
        bound = self.file[spec.name].bound
        origin, value_dtype = bound.encoding, bound.dtype
        if not value_dtype.startswith(("f", "bf")):
            raise TensorError("only float tensors are encoded", found=value_dtype, code="dtype")
        if wanted.inner is not None:
            inner = self.known.codec(wanted.inner.id).params_for(spec, wanted.inner.params)
            wanted = evolve(wanted, inner=evolve(wanted.inner, params=inner))
        codec = self.known.codec(wanted)
        if wanted.id != "dense" and len(spec.shape) < 2:
            raise TensorError(
                "a vector is not quantised", found=f"shape {list(spec.shape)}", code="rank",
                hint="A rule without a pattern leaves vectors as they are; after one with, add NAME=keep for them.",
            )  # fmt: skip
        try:
            params = self.known.encoder(wanted).params_for(spec, wanted.params)
        except CodecError as error:
            if lacking := self.known.encoder_missing(wanted):
                error.message += f"; {lacking}"
            raise
        self._check_stats(spec, wanted)
        params = complete_params(codec, self.file, spec, origin, params, overflow)
        dtype = params["dtype"] if wanted.id == "dense" else codec.value_dtype(spec, params)
        made = evolve(spec, dtype=dtype, encodings=(), problem=None)
        parts = {role: _part(*declared) for role, declared in codec.parts(made, params).items()}
        # A dense tensor's dtype is the tensor's own, not a parameter of how it is stored.
        told = DENSE if wanted.id == "dense" else evolve(wanted, params=params)
        held = without_hints(told, self.known)
        answer = self._answer(made, Encoding(codec=held, parts=parts))
        if isinstance(answer, Refusal):
            raise TensorError(f"{self.format} cannot hold it: {answer.why}", found=str(wanted), code="refused")
        if wanted.inner is None and answer.codec.inner is None:
            answer, told = self._rewrapped(made, told, answer, origin)
        if wanted.inner is not None and answer.codec.inner is None:
            raise TensorError(f"{self.format} has no place for {wanted.id}", found=str(wanted), code="refused")
        if same(answer, origin, self.known):
            return self._made(spec, "copy", origin, answer, SAME_BYTES)
        exactness = codec.error_bound(params)
        if wanted.id == "dense":
            exactness = Exactness("values", dtype) if dtypes.holds(dtype, value_dtype) else Exactness("bounded")
        return self._made(made, "encode", origin, answer, exactness, with_hints(answer.codec, told, self.known))

    def _rewrapped(
        self, spec: TensorSpec, codec: CodecSpec, answer: Encoding, origin: Encoding
    ) -> tuple[Encoding, CodecSpec]:
        """The target's answer and codec under the wrapper of the source that changes no value (a mask keeps its
        zeros), where the target has a place for it."""
        wrapper: CodecSpec | None = origin.codec
        while wrapper is not None and wrapper.inner is not None:
            params = self.known.codec(wrapper).lossless_params(wrapper.params)
            if params is not None:
                outer = CodecSpec(wrapper.id, params, inner=codec)
                asked = without_hints(outer, self.known)
                declared = self.known.codec(asked).parts(evolve(spec, encodings=()), params)
                parts = {role: _part(*each) for role, each in declared.items()}
                wrapped = self._answer(spec, Encoding(codec=asked, parts=parts))
                if not isinstance(wrapped, Refusal) and wrapped.codec.id == wrapper.id:
                    return wrapped, outer
            wrapper = wrapper.inner
        return answer, codec

    def _check_stats(self, spec: TensorSpec, wanted: CodecSpec) -> None:
        if not needs_activations(wanted, self.known):
            return
        if self.stats is None:
            raise TensorError(
                "this encoding needs activation statistics", found=str(wanted), code=ErrorCode.ENCODE,
                hint="Give a file of them with activations=FILE.",
            )  # fmt: skip
        if self.stats.of(spec) is None:
            raise TensorError("there are no statistics of its activations", tensor=spec.name, code="stats")

    def _made(
        self, spec: TensorSpec, action: str, origin: Encoding, target: Encoding, exactness: Exactness,
        codec: CodecSpec | None = None,
    ) -> Step:  # fmt: skip
        codec = codec or target.codec
        held = TensorSpec(
            name=spec.name, shape=spec.shape, dtype=spec.dtype, encodings=(target,),
            tied_to=spec.tied_to, attrs=spec.attrs, problem=spec.problem,
        )  # fmt: skip
        size = sum(part.nbytes for part in target.parts.values())
        return Step(
            name=spec.name, action=action, source=_shown(self.file.index.tensors[spec.name], origin),
            target=_shown(held, evolve(target, codec=codec)), stored=origin.stored, size=size, exactness=exactness,
            spec=held, codec=codec, origin=origin,
        )  # fmt: skip


def ineffective_rules(rules: tuple[Rule, ...], steps: Sequence[Step]) -> tuple[RuleEffect, ...]:
    """The rules that left more than half of the bytes they apply to unchanged."""
    effects = []
    for rule in rules:
        ruled = [step for step in steps if rule.spec != KEEP and rule_for(rules, step.name) is rule]
        kept = [step for step in ruled if step.note.startswith(_KEPT)]
        sizes = sum(step.stored for step in kept), sum(step.stored for step in ruled)
        if 2 * sizes[0] > sizes[1]:
            reasons = Counter[str]()
            for step in kept:
                reasons[step.note.removeprefix(_KEPT)] += step.stored
            effects.append(
                RuleEffect(
                    rule=str(rule.spec), kept=len(kept), tensors=len(ruled), kept_size=sizes[0], size=sizes[1],
                    reason=reasons.most_common(1)[0][0],
                )
            )  # fmt: skip
    return tuple(effects)


def note_origin(file: File, step: Step) -> Step:
    """The step, noted where it takes another encoding than opening the file reads: a report is about the former."""
    if len(file.index.tensors[step.name].encodings) < 2:
        return step
    read = file[step.name].bound.encoding
    if read.label == step.origin.label:
        return step
    note = f"converted from {step.origin.label}, while reading the source gives {read.label}"
    return evolve(step, note=f"{step.note}; {note}" if step.note else note)


def _shown(spec: TensorSpec, encoding: Encoding) -> str:
    return spec.dtype if encoding.codec == DENSE else str(encoding.codec)


def _part(dtype: str, shape: tuple[int, ...]) -> Part:
    return Part(dtype=dtype, shape=shape)
