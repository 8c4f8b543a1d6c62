"""Tests of the codes that a format accepts from other formats."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product

import pytest
from attrs import evolve
from squish_convert.targets import writable

from squish_core.codecs.code_layout import CodeLayout
from squish_core.model import Encoding, Refusal, TensorSpec

from .suite import Suite, typed_errors_only

SHAPES = ((64, 256), (3, 64, 256), (256,), (32, 128), (0, 256), ())
LAYOUTS = {
    "a constant zero point": CodeLayout(bits=4, group=(1, 32), scale_dtype="f16", zero=8),
    "biases": CodeLayout(bits=4, group=(1, 64), scale_dtype="f16", offset_kind="bias", offset_dtype="f16"),
    "zero points": CodeLayout(bits=4, group=(1, 128), scale_dtype="f16", offset_kind="zero_point", offset_dtype="u8"),
    "signed": CodeLayout(bits=8, signed=True, group=(1, 32), scale_dtype="f16"),
    "two bits": CodeLayout(bits=2, group=(1, 32), scale_dtype="f32", offset_kind="bias", offset_dtype="f32"),
    "three bits": CodeLayout(bits=3, group=(1, 64), scale_dtype="f16", offset_kind="bias", offset_dtype="f16"),
    "a scale for each row": CodeLayout(bits=8, signed=True, group=(1, 0), scale_dtype="f32"),
    "groups of columns": CodeLayout(bits=4, group=(32, 1), scale_dtype="f16", zero=8),
    "boxes": CodeLayout(bits=4, signed=True, group=(4, 32), scale_dtype="f16"),
    "a table": CodeLayout(bits=2, group=(1, 32), scale_dtype="f32", table=(-1.0, 0.0, 0.5, 1.0)),
    "float8": CodeLayout(bits=8, group=(1, 32), scale_dtype="f8_e8m0", table="f8_e4m3"),
    "a stored table": CodeLayout(bits=4, group=(1, 0), scale_dtype="f32", table="stored"),
}
"""Layouts of codes for matrices; tensors of other ranks have groups of the same columns."""


class AcceptsCodes(Suite):
    """The checks of `WritableContainer.accepts_codes`."""

    def written_with(self) -> Mapping[str, Mapping[str, str]]:
        """Name -> write options under which codes of other formats are offered."""
        return {"defaults": {}}

    def test_codes_of_other_formats_are_accepted_in_parts_of_a_codec(self) -> None:
        """For codes of each layout: parts that their codec declares, or a refusal with a reason, or None."""
        if not self.entry().info.can_write:
            pytest.skip("it is read-only")
        container = writable(self.plugin_id(), self.registry)
        for (name, matrix), shape in product(LAYOUTS.items(), SHAPES):
            spec, layout = TensorSpec(name="w", shape=shape, dtype="f32"), _for_rank(matrix, len(shape))
            for options in self.written_with().values():
                case = f"accepts_codes({name}, shape {list(shape)}, options {dict(options)})"
                with typed_errors_only(case):
                    answer = container.accepts_codes(spec, layout, options)
                self._check_answer(answer, shape, case)

    def _check_answer(self, answer: object, shape: tuple[int, ...], case: str) -> None:
        assert answer is None or isinstance(answer, (Encoding, Refusal)), f"{case} gives {type(answer).__name__}"
        if isinstance(answer, Refusal):
            assert answer.why, f"{case} is a refusal whose reason has {len(answer.why)} characters"
        if not isinstance(answer, Encoding) or self.registry.missing(answer):
            return
        codec = self.registry.codec(answer.codec)
        with typed_errors_only(f"{case}: parts() of {answer.codec}"):
            declared = codec.parts(TensorSpec(name="w", shape=shape, dtype="f32"))
        expected = {role: (dtype, tuple(size)) for role, (dtype, size) in declared.items()}
        actual = {role: (part.dtype, tuple(part.shape)) for role, part in answer.parts.items()}
        assert actual == expected, f"{case}: parts are {actual}, {answer.codec} declares {expected}"
        stored = [role for role, part in answer.parts.items() if part.segments or part.data is not None]
        assert not stored, f"{case}: {len(stored)} parts have bytes before anything is written: {stored}"


def _for_rank(layout: CodeLayout, rank: int) -> CodeLayout:
    return evolve(layout, group=(*(1 for _ in range(rank - 2)), *layout.group)[-rank:] if rank else ())
