"""Decide the step for each tensor: copy, widen, repack or encode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from attrs import evolve

from squish_core import dtypes
from squish_core.codecs.allocator import ModelFacts
from squish_core.codecs.base import Codec
from squish_core.codes import ErrorCode
from squish_core.concurrency import Pool
from squish_core.errors import CodecError, MissingPluginError, SquishError, TensorError
from squish_core.file import File
from squish_core.formats.base import WritableContainer
from squish_core.guard import computing
from squish_core.model import (
    DENSE,
    SAME_BYTES,
    CodecSpec,
    Encoding,
    Exactness,
    Part,
    Refusal,
    TensorSpec,
    check_declared,
)
from squish_core.text import counted

from .activations import ActivationStatistics
from .allotment import MeasuredTarget
from .compatible import (
    can_widen,
    encoder_for,
    encoder_problem,
    free_to_encode,
    keeps_codes,
    keeps_values,
    needs_activations,
    same_encoding,
    with_encoder_params,
    without_encoder_params,
    without_statistics,
)
from .mapping.codecs.lora import LORA, codec_below_lora
from .mapping.row_views import column_reason
from .mapping.tensors import wraps_dense
from .overflow import REFUSE
from .planning_data import complete_params, repack_exactness, values_of
from .refusals import Nearest, described, nearest_encodings, refused_codes
from .rules import ALL, KEEP, NEAREST, EncodeRule, every_short_name, expand, kind_of, rule_for, short_names
from .step import KEPT, Step

REQUESTS = 16
"""Tensors of a remote file whose first panels are fetched at once."""
COPIED_CODES = "codes without declared scales: copied as stored, and read as values by the target"
_RULE_ERRORS = (ErrorCode.PARAMS, ErrorCode.ENCODE)
"""Codes of errors in the rule itself, which affect every tensor."""
SizeOf = Callable[[list[Step]], "int | None"]
"""The bytes of a target with these steps; None if they are unknown before it is written."""


class Decision:
    """Decides how a format stores a file's tensors under the rules of `encode=`."""

    def __init__(
        self,
        file: File,
        container: WritableContainer,
        options: Mapping[str, str],
        rules: tuple[EncodeRule, ...],
        statistics: ActivationStatistics | None = None,
        *,
        first_panels: bool = False,
        size_of: SizeOf = lambda steps: None,
    ) -> None:
        self.statistics, self._first_panels, self._size_of = statistics, first_panels, size_of
        self.file, self.registry, self.container, self.format = file, file.registry, container, container.id
        self.options, self.rules = options, rules
        self.is_mapped, self.dtypes = file.original is not file, file.dtypes
        self.encodings: Mapping[str, CodecSpec | str] = {}
        self.narrow: Mapping[str, str] = {}
        self.nearest: set[str] = set()
        """Tensors that a rule `nearest` encodes as other codes."""
        self._nearest: dict[tuple[str, int], list[Nearest]] = {}

    def decide(self, specs: list[TensorSpec]) -> list[Step]:
        """One step for each tensor; SquishError if a tensor cannot be converted."""
        with computing(TensorError, "choosing encodings", file=self.file.name):
            self.narrow = self.container.dense_dtypes(specs, self.options)
            self.encodings = self._choose(specs)
        steps = self._steps(specs)
        self._check_catch_all(steps)
        return steps

    def _steps(self, specs: list[TensorSpec]) -> list[Step]:
        steps: list[Step] = []
        errors: list[tuple[TensorSpec, SquishError]] = []
        for spec, outcome in zip(specs, self._outcomes(specs)):
            if isinstance(outcome, Step):
                steps.append(outcome)
                continue
            rule = rule_for(self.rules, spec.name)
            is_rule_error = rule is not None and rule.spec != KEEP and outcome.code in _RULE_ERRORS
            if is_rule_error or outcome.code == ErrorCode.OPTION:  # the error is not the tensor's
                raise outcome.about_argument() from None
            errors.append((spec, outcome))
        if errors:
            raise self._combined(errors, specs)
        return steps

    def _outcomes(self, specs: list[TensorSpec]) -> Iterator[Step | SquishError]:
        """The step of each tensor, or its error. The first panels of a remote file are fetched several at a time."""

        def outcome(spec: TensorSpec) -> Step | SquishError:
            try:
                with computing(TensorError, "planning", file=self.file.name, tensor=spec.name):
                    return self._step(spec)
            except MissingPluginError:
                raise
            except SquishError as error:
                return error

        if not (self._first_panels and self.file.source.is_remote):
            yield from map(outcome, specs)
            return
        with Pool(REQUESTS) as pool:
            yield from pool.map(outcome, specs)

    def _combined(self, errors: list[tuple[TensorSpec, SquishError]], specs: list[TensorSpec]) -> SquishError:
        """One error for all tensors; grouped by codec if the target cannot store codes that no rule changes."""
        first = errors[0][1]
        if all(error.code == ErrorCode.REFUSED and self._is_kept(spec) for spec, error in errors):
            return refused_codes(self.file, errors, specs, short_names(self.format, self.registry), self._attempt)
        if len(errors) > 1:
            names = ", ".join(error.tensor or "?" for _, error in errors[1:4])
            more = f" and {len(errors) - 4} more" if len(errors) > 4 else ""
            first.message += f"; {names}{more} cannot be converted either"
        return first

    def _attempt(self, spec: TensorSpec, requested: CodecSpec) -> Step:
        return self._encode(spec, expand(requested, self.format, self.registry), REFUSE)

    def _is_kept(self, spec: TensorSpec) -> bool:
        """Return whether a tensor has codes that no rule changes."""
        rule = rule_for(self.rules, spec.name)
        return (rule is None or rule.spec == KEEP) and bool(spec.encodings) and spec.encodings[0].codec.id != "dense"

    def _choose(self, specs: list[TensorSpec]) -> Mapping[str, CodecSpec | str]:
        """Return the encoding of each tensor whose rule leaves a choice, or the reason to keep it."""
        rule_of = {spec.name: rule_for(self.rules, spec.name) for spec in specs}
        encodings: dict[str, CodecSpec | str] = {}
        for rule in sorted(self.rules, key=self._is_allocator):  # which may ask for the size with all other choices
            matches = [spec for spec in specs if rule_of[spec.name] is rule]
            if matches and self._is_allocator(rule):
                encodings |= self._allocate(rule, matches, specs, encodings)
            elif matches and rule.pattern in (None, ALL) and rule.spec not in (KEEP, NEAREST):
                choices = self.container.choose(specs, rule.spec, self.options)  # conventions depend on the whole model
                applied = {spec.name: choices[spec.name] for spec in matches if spec.name in choices}
                # `*` skips vectors, as a rule without a pattern does
                skipped = {spec.name for spec in matches if rule.pattern is None or len(spec.shape) < 2}
                encodings |= {
                    name: choice for name, choice in applied.items() if name in skipped or isinstance(choice, str)
                }
        return encodings

    def _allocate(
        self,
        rule: EncodeRule,
        specs: list[TensorSpec],
        model: list[TensorSpec],
        encodings: Mapping[str, CodecSpec | str],
    ) -> Mapping[str, CodecSpec | str]:
        """Return the choices of an allocator; `encodings` are those of other rules."""
        names = tuple(spec.name for spec in model)
        statistics = self.statistics.names(model) if self.statistics else None
        target = MeasuredTarget(
            self.file,
            [
                expand(CodecSpec(name), self.format, self.registry)
                for name in every_short_name(self.format, self.registry)
            ],
            self._attempt,
            self._leave,
            self.statistics,
            lambda choices: self._size(model, {**encodings, **choices}),
        )
        facts = ModelFacts(names, self.file.metadata, statistics, target)
        try:
            return self.registry.allocator(rule.spec.id).choose(
                specs,
                rule.spec.params,
                lambda spec: values_of(self.file, spec, self.file[spec.name].bound.encoding, "f32"),
                lambda name: expand(CodecSpec(name), self.format, self.registry),
                facts,
            )
        except SquishError as error:
            if error.code in _RULE_ERRORS:
                raise error.about_argument() from None
            raise

    def _size(self, specs: list[TensorSpec], encodings: Mapping[str, CodecSpec | str]) -> int:
        """Return the bytes of the target with these encodings."""
        self.encodings = encodings
        size = self._size_of(self._steps(specs))
        if size is None:
            raise CodecError(
                "the size of this target is known only after it is written",
                code=ErrorCode.PARAMS,
                hint="Use bpw= instead, or write the file uncompressed.",
            )
        return size

    def _is_allocator(self, rule: EncodeRule) -> bool:
        return kind_of(rule.spec, self.registry) == "allocator"

    def _check_catch_all(self, steps: list[Step]) -> None:
        """TensorError for a catch-all rule that applies to no tensor."""
        rules = {step.name: rule_for(self.rules, step.name) for step in steps}
        candidates = [
            step for step in steps if (rule := rules[step.name]) and rule.pattern is None and rule.spec != KEEP
        ]
        if candidates and all(step.note.startswith(KEPT) for step in candidates):
            reason, count = Counter(step.note for step in candidates).most_common(1)[0]
            rule = rules[candidates[0].name]
            assert rule is not None
            raise TensorError(
                f"no tensor can be encoded as {rule.spec}: {reason.removeprefix(KEPT)}",
                file=self.file.name,
                found=f"{count:,} of {counted(len(candidates), 'tensor')} with this reason",
                code=ErrorCode.ENCODE,
                hint="Leave the rule out to keep all codes, or ask for another encoding; see `squish codecs`.",
            )

    def _step(self, spec: TensorSpec) -> Step:
        rule = rule_for(self.rules, spec.name)
        if rule is not None and rule.spec == KEEP and rule.pattern is not None:
            return self._keep(spec)
        if rule is None or rule.spec == KEEP or (rule.pattern is None and spec.name in self.dtypes):
            return self._leave(spec)
        if rule.spec == NEAREST:
            return self._keep_or_encode(spec)
        chosen = rule.pattern is None or self._is_allocator(rule)
        choice = self.encodings.get(spec.name, None if chosen else rule.spec)
        if choice is None or isinstance(choice, str):
            return evolve(self._leave(spec), note=KEPT + (choice or f"{self.format} does not quantize it"))
        encoding, note = self._by_statistics(spec, choice), ""
        if not chosen and (fallback := self.container.fallback(spec, rule.spec)) is not None:
            encoding, note = fallback, f"encoded as {fallback}: {rule.spec} does not fit its shape"
        elif choice != rule.spec:
            origin = rule.spec.id if self._is_allocator(rule) else f"the conventions of {self.format}"
            note = f"encoded as {choice} by {origin}"
        try:
            return evolve(self._encode(spec, encoding, rule.overflow), note=note, overflow=rule.overflow)
        except SquishError as error:
            if not self._may_skip(spec, rule, error):
                raise
            return self._skip(spec, choice, error)

    def _may_skip(self, spec: TensorSpec, rule: EncodeRule, error: SquishError) -> bool:
        """Return whether a rule leaves a tensor that it cannot encode.

        A rule without a pattern skips what its codec cannot encode (norms, odd shapes), and `*` skips vectors. Any
        other rule must apply.
        """
        skips = rule.pattern is None or (rule.pattern == ALL and len(spec.shape) < 2)
        is_rule_error = isinstance(error, MissingPluginError) or error.code in (*_RULE_ERRORS, ErrorCode.OPTION)
        return skips and spec.undeclared is None and not is_rule_error

    def _skip(self, spec: TensorSpec, choice: CodecSpec, error: SquishError) -> Step:
        """Leave a tensor that a rule cannot encode; the target must be able to hold it as stored."""
        try:
            return evolve(self._leave(spec), note=KEPT + error.message)
        except TensorError as refusal:
            detail = "" if error.message == refusal.message else f" ({error.message})"
            refusal.message = f"{refusal.message}; nor as {choice}{detail}"
            raise

    def _leave(self, spec: TensorSpec) -> Step:
        """Keep a tensor that no rule changes; a dense one gets the dtype that the write options prescribe."""
        if (dtype := self.narrow.get(spec.name)) and spec.encodings and spec.encodings[0].codec == DENSE:
            return self._encode(spec, CodecSpec("dense", {"dtype": dtype}), REFUSE)
        return self._keep(spec)

    def _keep_or_encode(self, spec: TensorSpec) -> Step:
        """Keep a tensor, or encode it as the nearest codes that the target can store."""
        try:
            return self._leave(spec)
        except TensorError as error:
            if error.code != ErrorCode.REFUSED or len(spec.shape) < 2:
                raise
            refusal = error
        key = described(self.file, spec), spec.shape[-1]
        if key not in self._nearest:
            aliases = short_names(self.format, self.registry)
            self._nearest[key] = nearest_encodings(self.file, [spec], aliases, self._attempt)
        for nearest in self._nearest[key]:
            try:
                step = self._attempt(spec, CodecSpec(nearest.name))
            except SquishError:
                continue
            self.nearest.add(spec.name)
            return evolve(step, note=f"{nearest.name} is nearest to {key[0]} ({nearest})")
        raise refusal

    def _keep(self, spec: TensorSpec) -> Step:
        if spec.undeclared is not None:
            return self._copy_undeclared(spec)
        if not spec.encodings:
            raise TensorError(spec.problem or "has no readable encoding", tensor=spec.name, code=ErrorCode.UNREADABLE)
        if (stored := codec_below_lora(spec.encodings[0].codec)) is not None:
            return self._encode_changed(spec, stored)
        dtype = self.dtypes.get(
            spec.name, spec.dtype
        )  # the target's engine expects this dtype, which represents every value
        if dtype != spec.dtype or (self.is_mapped and wraps_dense(spec.encodings[0].codec)):
            step = self._encode(spec, CodecSpec("dense", {"dtype": dtype}), REFUSE)
            return evolve(step, exactness=Exactness("values", dtype))
        refusals = []
        for encoding in spec.encodings:
            answer = self._answer_examined(spec, encoding)
            if isinstance(answer, Refusal):
                refusals.append(answer.why)
                continue
            if same_encoding(answer, encoding, self.registry):
                return self._make_step(spec, "copy", encoding, answer, SAME_BYTES)
            if keeps_values(answer.codec, encoding.codec, spec.dtype):
                return self._make_step(spec, "encode", encoding, answer, Exactness("values", spec.dtype))
            if can_widen(answer, encoding):
                return self._make_step(spec, "widen", encoding, answer, Exactness("values", spec.dtype))
            if answer.codec.inner == encoding.codec:  # a write option wraps it: values change
                return self._make_step(spec, "encode", encoding, answer, self.registry.codec(answer.codec).error_bound)
            exactness = repack_exactness(self.file, spec, encoding, answer, first_only=self._first_panels)
            if exactness is not None:
                return self._make_step(spec, "repack", encoding, answer, exactness)
            refusals.append(f"its codes do not fit {answer.codec} exactly")
        if spec.problem:
            refusals.append(spec.problem)
        if reason := column_reason(spec, self.registry):
            refusals.append(reason)
        raise TensorError(
            f"{self.format} cannot hold it: {'; '.join(dict.fromkeys(refusals))}",
            tensor=spec.name,
            found=str(spec.encodings[0].codec),
            code=ErrorCode.REFUSED,
            hint="Decode it with {option:encode=f32}, or choose another encoding that `squish codecs` lists."
            if spec.dtype.startswith(("f", "bf"))
            else "Leave it out: select the other tensors with {option:only=PATTERN}.",
        )

    def _encode_changed(self, spec: TensorSpec, stored: CodecSpec) -> Step:
        """Encode a tensor to whose values an adapter adds as what it was stored as."""
        if stored.id == DENSE.id:
            dtype = self.narrow.get(spec.name) or self.dtypes.get(spec.name, spec.dtype)
            return self._encode(spec, CodecSpec(DENSE.id, {"dtype": dtype}), REFUSE)
        of_codes = self.registry.codec_type(stored.id).data_params
        params = {key: value for key, value in stored.params.items() if key not in of_codes}
        try:
            return self._encode(spec, evolve(stored, params=params), REFUSE)
        except CodecError as error:
            raise TensorError(
                f"is changed by an adapter, and cannot be encoded as it was: {error.message}",
                tensor=spec.name,
                found=str(stored),
                code=ErrorCode.REFUSED,
                hint=f"Choose another encoding for it, such as {{option:encode={spec.name}=f16}}.",
            ) from None

    def _copy_undeclared(self, spec: TensorSpec) -> Step:
        """Copy the bytes of a tensor with undeclared values; raises the tensor's error if the target changes them."""
        for encoding in spec.encodings:
            answer = self.container.accepts(spec, encoding, self.options)
            if not isinstance(answer, Refusal) and same_encoding(answer, encoding, self.registry):
                step = self._make_step(spec, "copy", encoding, answer, SAME_BYTES)
                return step if self.format == self.file.format else evolve(step, note=COPIED_CODES)
        check_declared(spec)
        raise AssertionError("the values are declared")

    def _answer(self, spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
        """Return the target's answer for an encoding, or for its codes if it does not accept the encoding itself."""
        answer = self.container.accepts(spec, encoding, self.options)
        if not isinstance(answer, Refusal) or self.registry.missing(encoding):
            return answer
        layout = self.registry.codec(encoding.codec).code_layout(spec)
        return (layout and self.container.accepts_codes(spec, layout, self.options)) or answer

    def _answer_examined(self, spec: TensorSpec, encoding: Encoding) -> Encoding | Refusal:
        """Return the target's answer for stored codes; only the data show whether they are symmetric."""
        answer = self._answer(spec, encoding)
        if not self.container.tells_symmetric(self.options) or self.registry.missing(encoding):
            return answer
        bound = self.file.bind(spec, encoding)
        codec = bound.codec.examine(bound.parts, spec)
        if codec == encoding.codec:
            return answer
        examined = self._answer(spec, evolve(encoding, codec=codec))
        if isinstance(answer, Refusal) or not same_encoding(answer, encoding, self.registry):
            return answer if isinstance(examined, Refusal) else examined
        is_copy = not isinstance(examined, Refusal) and same_encoding(examined, encoding, self.registry)
        return examined if is_copy else answer

    def _encode(self, spec: TensorSpec, requested: CodecSpec, overflow: str) -> Step:
        bound = self.file[spec.name].bound
        origin, value_dtype = bound.encoding, bound.dtype
        codec, full_codec = self._codec_for(spec, requested, origin, value_dtype, overflow)
        exactness, dtype = codec.error_bound, codec.value_dtype(spec)
        if requested.id == "dense":
            # A dense tensor's dtype belongs to the tensor, not to the codec.
            dtype, full_codec = codec.params["dtype"], DENSE
            exactness = Exactness("values", dtype) if dtypes.holds(dtype, value_dtype) else Exactness("bounded")
        target_spec = evolve(spec, dtype=dtype, encodings=(), problem=None)
        answer = self._answer_encoded(target_spec, codec, full_codec, requested)
        if requested.inner is None and answer.codec.inner is None:
            answer, full_codec = self._rewrap(target_spec, full_codec, answer, origin)
        if same_encoding(answer, origin, self.registry):
            return self._make_step(spec, "copy", origin, answer, SAME_BYTES)
        if keeps_codes(target_spec, full_codec, answer.codec, self.registry):
            return evolve(self._make_step(target_spec, "encode", origin, answer, exactness), encoder=full_codec)
        answer = free_to_encode(answer, full_codec, self.registry)
        encoded_as = with_encoder_params(answer.codec, full_codec, self.registry)
        return self._make_step(target_spec, "encode", origin, answer, exactness, encoded_as)

    def _codec_for(
        self, spec: TensorSpec, requested: CodecSpec, origin: Encoding, value_dtype: str, overflow: str
    ) -> tuple[Codec, CodecSpec]:
        """Return the requested codec and its specification, completed with parameters computed from the values."""
        if not value_dtype.startswith(("f", "bf")):
            raise TensorError("only float tensors are encoded", found=value_dtype, code="dtype")
        if requested.inner is not None:
            inner = self.registry.codec_type(requested.inner.id).params_for(spec, requested.inner.params)
            requested = evolve(requested, inner=evolve(requested.inner, params=inner))
        elif self.registry.codec_type(requested.id).wraps:
            self.registry.codec(requested)  # raises: the codec must wrap another one
        if requested.id != "dense" and len(spec.shape) < 2:
            raise TensorError(
                "a vector is not quantized",
                found=f"shape {list(spec.shape)}",
                code="rank",
                hint="SPEC and *=SPEC skip vectors; after a rule with another pattern, add NAME=keep for them.",
            )
        try:
            params = encoder_for(self.registry, requested, spec).params_for(spec, requested.params)
        except CodecError as error:
            if reason := encoder_problem(self.registry, requested):
                error.message += f"; {reason}"
            raise
        self._check_statistics(spec, requested)
        codec = self.registry.codec(evolve(requested, params=params))
        params = complete_params(codec, self.file, spec, origin, overflow)
        return codec.from_params(params, codec.inner), evolve(requested, params=params)

    def _answer_encoded(self, spec: TensorSpec, codec: Codec, full_codec: CodecSpec, requested: CodecSpec) -> Encoding:
        """Return the encoding in which the target stores what a codec encodes; TensorError if it cannot."""
        parts = {role: _part(*declaration) for role, declaration in codec.parts(spec).items()}
        answer = self._answer(spec, Encoding(codec=without_encoder_params(full_codec, self.registry), parts=parts))
        if isinstance(answer, Refusal):
            reason = f"{self.format} cannot hold it: {answer.why}"
        elif requested.inner is not None and answer.codec.inner is None:
            reason = f"{self.format} has no place for {requested.id}"
        else:
            return answer
        raise TensorError(reason, found=str(requested), code=ErrorCode.REFUSED)

    def _rewrap(
        self, spec: TensorSpec, codec: CodecSpec, answer: Encoding, origin: Encoding
    ) -> tuple[Encoding, CodecSpec]:
        """Keep a lossless wrapper of the source, such as a mask, around the target's encoding.

        Returns the answer and codec unchanged if the source has none, or the target cannot store it.
        """
        wrapper: CodecSpec | None = origin.codec
        while wrapper is not None and wrapper.inner is not None:
            params = self.registry.codec(wrapper).lossless_params
            if params is not None:
                outer = CodecSpec(wrapper.id, params, inner=codec)
                stored = without_encoder_params(outer, self.registry)
                declarations = self.registry.codec(stored).parts(evolve(spec, encodings=()))
                parts = {role: _part(*declaration) for role, declaration in declarations.items()}
                wrapped = self._answer(spec, Encoding(codec=stored, parts=parts))
                if not isinstance(wrapped, Refusal) and wrapped.codec.id == wrapper.id:
                    return wrapped, outer
            wrapper = wrapper.inner
        return answer, codec

    def _by_statistics(self, spec: TensorSpec, requested: CodecSpec) -> CodecSpec:
        """The encoding; without its search by statistics if all of them are zero, because no error would count then.

        TensorError if they are invalid, whatever the rule.
        """
        if self.statistics is None or not needs_activations(requested, self.registry):
            return requested
        if self.statistics.are_zero(spec):
            return without_statistics(requested, self.registry)
        return requested

    def _check_statistics(self, spec: TensorSpec, requested: CodecSpec) -> None:
        if not needs_activations(requested, self.registry):
            return
        if self.statistics is None:
            raise TensorError(
                "this encoding needs activation statistics",
                found=str(requested),
                code=ErrorCode.ENCODE,
                hint="Pass them as {option:activations=FILE}.",
            )
        if self.statistics.of(spec) is None:
            raise TensorError("the statistics file has no entry for it", tensor=spec.name, code="imatrix")

    def _make_step(
        self,
        spec: TensorSpec,
        action: str,
        origin: Encoding,
        target: Encoding,
        exactness: Exactness,
        codec: CodecSpec | None = None,
    ) -> Step:
        codec = codec or target.codec
        target_spec = TensorSpec(
            name=spec.name,
            shape=spec.shape,
            dtype=spec.dtype,
            encodings=(target,),
            tied_to=spec.tied_to,
            attrs=spec.attrs,
            problem=spec.problem,
        )
        size = sum([part.nbytes for part in target.parts.values()])
        return Step(
            name=spec.name,
            action=action,
            source=_label(self.file.index.tensors[spec.name].dtype, origin.codec),
            target=_label(spec.dtype, codec),
            stored=origin.stored,
            size=size,
            exactness=exactness,
            spec=target_spec,
            codec=codec,
            origin=origin,
        )


def _label(dtype: str, codec: CodecSpec) -> str:
    stored = codec_below_lora(codec)
    label = dtype if DENSE in (codec, stored) else str(stored or codec)
    return f"{label} + {LORA}" if stored else label


def _part(dtype: str, shape: tuple[int, ...]) -> Part:
    return Part(dtype=dtype, shape=shape)
