"""Ground truth for formats: true values, damaged files, and unreadable tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from attrs import frozen

from squish_core.checking.verify import verify
from squish_core.codes import BUGS
from squish_core.errors import SquishError

from .suite import Suite

if TYPE_CHECKING:
    import numpy as np

    from squish_core.file import File

Sample = bytes | str | Path


@frozen
class Fingerprint:
    """Shape and sha256 (hex) of the values as little-endian f32, for ground truth too large to store.

    Negative zeros may be normalized to zero.
    """

    shape: tuple[int, ...]
    sha256: str


class GroundTruth(Suite):
    """Tests against the ground truth that the suite's author gives for the samples.

    `accuracy`: maximum error relative to the largest true magnitude; 0 compares bit by bit.
    """

    accuracy = 0.0

    def samples(self) -> Mapping[str, Sample]:
        """Sample name -> content of a file, or path of a file or folder."""
        raise NotImplementedError

    def open(self, target: Any) -> File:
        """Open as the format under test."""
        raise NotImplementedError

    def values(self) -> Mapping[str, Mapping[str, np.ndarray | Fingerprint]]:
        """Sample name -> {tensor name: true values}, computed or from another implementation; at least one sample."""
        return {}

    def damaged(self) -> Mapping[str, Sample]:
        """Label -> damaged file, for which `verify` must report an error; at least one."""
        return {}

    def unreadable(self) -> Mapping[str, Collection[str]]:
        """Sample name -> tensors whose values cannot be read; they stay in the Index with a `problem`."""
        return {}

    def test_there_is_ground_truth(self) -> None:
        """Without `values` and `damaged`, a reader that returns wrong values would pass."""
        names = set(self.samples())
        for method, labels in (("values", set(self.values())), ("unreadable", set(self.unreadable()))):
            unknown = sorted(labels - names)
            assert not unknown, f"{method}() names {unknown}, which samples() lacks; it has {sorted(names)}"
        tensors = sum(map(len, self.values().values()))
        assert tensors, f"values() gives 0 tensors for {len(names)} samples; give those of at least one sample"
        damaged = len(self.damaged())
        assert damaged, f"damaged() gives {damaged} files for {len(names)} samples; give one that verify must report"

    def test_values_are_the_ground_truth(self, sample: str) -> None:
        """dtype, shape and every value of the tensors in `values` are right."""
        truth = self.values().get(sample)
        if truth is None:
            pytest.skip(f"values() has no sample {sample!r}")
        with self.open(self.samples()[sample]) as file:
            missing = sorted(set(truth) - set(file))
            assert not missing, f"{sample}: the file lacks {missing}; it lists {len(file)} tensors: {sorted(file)[:8]}"
            for name, expected in truth.items():
                assert_values(file[name].numpy(), expected, self.accuracy, f"{sample}: {name}")

    def test_damage_is_reported(self, damage: str) -> None:
        """`verify(deep=True)` reports a typed error for each damaged file."""
        target = self.damaged()[damage]
        report = verify(target, deep=True, format=getattr(self, self.kind), registry=self.registry)
        bugs = [problem for problem in report.problems if problem.code in BUGS]
        assert not bugs, f"damaged file {damage!r}: {len(bugs)} problems are the plugin's own: {bugs[0]}"
        checked = f"{report.tensors} tensors, {report.decoded} decoded, {report.digests} digests checked"
        assert not report.ok, f"damaged file {damage!r} verifies as ok ({checked})"

    def test_unreadable_tensors_say_why(self, sample: str) -> None:
        """Unreadable tensors have a `problem`, keep their stored parts, and raise a typed error."""
        names = set(self.unreadable().get(sample, ()))
        with self.open(self.samples()[sample]) as file:
            problematic = {name for name in file if file[name].spec.problem}
            lists = (
                f"{len(problematic)} tensors have a problem {sorted(problematic)}, unreadable() lists {sorted(names)}"
            )
            assert problematic == names, f"{sample}: {lists}"
            for name in names:
                file[name].parts()
                error = refusal(file[name].numpy, f"{sample}: {name} has a problem, and numpy()")
                assert error.code not in BUGS, f"{sample}: {name}: reading fails with code {error.code!r}: {error}"
            for name in set(file) - names:
                encodings = file[name].spec.encodings
                assert encodings, f"{sample}: {name}: 0 encodings, but no `problem`"


def refusal(call: Callable[[], Any], what: str) -> SquishError:
    """Return the typed error of a call that must fail."""
    try:
        result = call()
    except SquishError as error:
        return error
    raise AssertionError(f"{what} gives {getattr(result, 'shape', result)!r} instead of 1 typed error")


def assert_values(actual: np.ndarray, expected: np.ndarray | Fingerprint, accuracy: float, what: str) -> None:
    """Assert equal dtype and shape, and values equal bit by bit or within `accuracy` of the largest one."""
    import numpy as np

    if isinstance(expected, Fingerprint):
        values = actual.astype("<f4")
        digests = [hashlib.sha256(array.tobytes()).hexdigest() for array in (values, values + np.float32(0))]
        message = f"{what}: shape {actual.shape}, sha256 of the values {digests[0]}; the truth: {expected}"
        assert actual.shape == expected.shape, message
        assert expected.sha256 in digests, message
        return
    assert actual.dtype == expected.dtype, f"{what}: dtype is {actual.dtype}, the true one is {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: shape is {actual.shape}, the true one is {expected.shape}"
    if actual.tobytes() == expected.tobytes():
        return
    with np.errstate(invalid="ignore"):
        difference = np.abs(actual.astype(np.float64) - expected.astype(np.float64))
        error = float(np.max(difference, initial=0))
        allowed = accuracy * float(np.max(np.abs(expected.astype(np.float64)), initial=0))
    if accuracy and error <= allowed:
        return
    flat = [array.reshape(-1) for array in (actual, expected)]
    itemsize = actual.dtype.itemsize
    rows = [np.frombuffer(array.tobytes(), np.uint8).reshape(-1, itemsize) for array in flat]
    wrong = np.flatnonzero((rows[0] != rows[1]).any(axis=1))
    first = int(wrong[0])
    raise AssertionError(
        f"{what}: {len(wrong)} of {actual.size} values differ, the first at flat index {first}: "
        f"{flat[0][first]!r}, the true one is {flat[1][first]!r} (largest error {error:.6g}, allowed {allowed:.6g})"
    )
