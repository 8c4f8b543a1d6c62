"""Backends answer once for tensors alike; what is kept never outlives a registration or a change of the machine."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import toys
from attrs import evolve
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.backends import answers
from squish_core.backends.answers import kind_of
from squish_core.file import File
from squish_core.plugins.registry import Registry

SHAPES = {"a": (4, 6), "b": (4, 6), "c": (4, 8), "d": (4, 6)}


class Counting(toys.Runner):
    """Notes the tensors of its requests."""

    requests: list[str]

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        assert request.spec is not None
        self.requests.append(request.spec.name)
        return super().offer(request)


class Refusing(Counting):
    """Takes nothing."""

    why = "too new"

    def offer(self, request: api.Request) -> api.Refusal:
        super().offer(request)
        assert request.spec is not None
        return api.Refusal(why=self.why.format(request.spec.name), backend=self.id, encoding=request.encoding)


class Flaky(Counting):
    """Its offer fails, until it does not."""

    def offer(self, request: api.Request) -> api.Offer | api.Refusal:
        if len(self.requests) < 2:
            self.requests.append("failed")
            raise RuntimeError("not yet")
        return super().offer(request)


class Unplugged(Counting):
    """A device that comes and goes."""

    plugged = True

    def probe(self) -> api.Availability:
        return api.Availability(ok=self.plugged, reason="" if self.plugged else "unplugged")


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    Counting.requests = []
    yield
    Unplugged.plugged, Refusing.why = True, "too new"


def registry_of(*kinds: type) -> Registry:
    infos = [
        api.BackendInfo(id=f"toy.{kind.__name__.lower()}", title="", factory=f"{__name__}:{kind.__name__}")
        for kind in kinds
    ]
    return toys.registry(toys.plugin(squish_backends=infos))


def opened(registry: Registry, **settings: Any) -> File:
    tensors = {f"tensor {name}": np.ones(shape, np.float32) for name, shape in SHAPES.items()}
    return squish.open(toys.box(tensors, **settings), registry=registry)


def explained(file: File, **options: Any) -> dict[str, Any]:
    return {name: tensor.plan(**options).to_dict() for name, tensor in file.items()}


def test_backends_answer_once_for_tensors_alike() -> None:
    file = opened(registry_of(Counting))
    for tensor in file.values():
        tensor.plan()
        tensor.plan()
    assert Counting.requests == ["tensor a", "tensor c"]


def test_answers_are_about_the_tensors_own_encoding() -> None:
    file = opened(registry_of(Counting, Refusing), filters=("toy.xor",))
    for tensor in file.values():
        chain = tensor.plan()
        about = [chain.chosen, *chain.others, *(item for item in chain.refused if item.backend == "toy.refusing")]
        assert len(about) == 3
        assert all(answer.encoding is tensor.spec.encodings[0] for answer in about)
        assert (chain.target, chain.spec) == (tensor.name, tensor.spec)


@pytest.mark.parametrize("options", [{}, {"policy": "smallest"}, {"op": "dense"}, {"backend": "numpy"}])
def test_chains_are_those_of_a_registry_that_keeps_nothing(options: dict[str, Any], monkeypatch: Any) -> None:
    file = opened(registry_of(Counting, Refusing))
    explained(file, policy="exact")
    result = explained(file, **options)
    monkeypatch.setattr(answers, "MOST", 0)
    monkeypatch.setattr("squish_core.backends.resolve.keep", lambda *_: None)
    assert result == explained(opened(registry_of(Counting, Refusing)), **options)


def test_a_registration_starts_over() -> None:
    registry = registry_of(Counting)
    file = opened(registry)
    assert {tensor.plan().chosen.backend for tensor in file.values()} == {"toy.counting"}
    registry.register(toys.plugin("later", squish_backends=[toys.backend("toy.later", 9)]))
    assert {tensor.plan().chosen.backend for tensor in file.values()} == {"toy.later"}


def test_a_registration_that_fails_changes_nothing() -> None:
    registry = registry_of(Counting)
    file = opened(registry)
    before = explained(file)
    with pytest.raises(api.SquishError):
        registry.register(toys.plugin("other", squish_backends=[toys.backend("toy.counting", 9)]))
    assert explained(file) == before


def test_a_codec_registered_later_is_used() -> None:
    rows = toys.rows(np.ones((4, 6), np.float32))
    data = toys.box({"one": (rows[0].replace("toy", "late"), *rows[1:]), "two": (rows[0], *rows[1:])})
    registry = registry_of()
    file = squish.open(data, registry=registry)
    with expect_error(api.SquishError, code="no-chain", tensor="one"):
        file["one"].plan()
    info = api.CodecInfo(id="late.rows", title="", factory="toys:Rows")
    registry.register(toys.plugin("late", squish_codecs=[info]))
    assert file["one"].plan().chosen.encoding.codec.id == "late.rows"
    np.testing.assert_array_equal(file["one"].numpy(), file["two"].numpy())


def test_a_backend_that_goes_is_refused_and_taken_again_when_it_returns() -> None:
    file = opened(registry_of(Unplugged))
    chosen, reasons = [], []
    for plugged in (True, False, True):
        Unplugged.plugged = plugged
        chain = file["tensor b"].plan()
        chosen.append(chain.chosen.backend)
        reasons += [item.why for item in chain.refused if item.backend == "toy.unplugged"]
    assert chosen == ["toy.unplugged", "numpy", "toy.unplugged"]
    assert reasons == ["unplugged"]


def test_an_answer_that_names_its_tensor_is_for_it_alone() -> None:
    Refusing.why = "{} is cursed"
    file = opened(registry_of(Refusing))
    for name, tensor in file.items():
        assert f"{name} is cursed" in [item.why for item in tensor.plan().refused]


def test_a_failure_is_not_kept() -> None:
    file = opened(registry_of(Flaky))
    assert [file["tensor a"].plan().chosen.backend for _ in range(3)] == ["numpy", "numpy", "toy.flaky"]


def test_a_callers_policy_is_called_each_time() -> None:
    file, seen = opened(registry_of(Counting)), []

    def policy(ranked: Any) -> int:
        seen.append(ranked)
        return 0

    for _ in range(3):
        file["tensor a"].plan(policy=policy)
    assert len(Counting.requests) == 3
    assert len(seen) >= 6


def test_a_table_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "MOST", 3)
    registry = registry_of(Counting)
    tensors = {f"tensor {size}": np.ones((2, size), np.float32) for size in range(1, 20)}
    file = squish.open(toys.box(tensors), registry=registry)
    for tensor in file.values():
        assert tensor.plan().chosen.backend == "toy.counting"
        assert len(registry.answers) <= 3


SPEC = api.TensorSpec(
    name="w",
    shape=(2, 4),
    dtype="f32",
    encodings=(
        api.Encoding(
            codec=api.CodecSpec("affine", {"bits": 4, "block": [1, 2]}),
            parts={"data": api.Part(dtype="u8", shape=(2, 2), segments=(api.Segment(0, 64, 4),), digest="sha256:00")},
        ),
    ),
)


def changed(**part: Any) -> api.TensorSpec:
    """The spec with another part."""
    (encoding,) = SPEC.encodings
    return evolve(SPEC, encodings=(evolve(encoding, parts={"data": evolve(encoding.parts["data"], **part)}),))


def coded(codec: api.CodecSpec) -> api.TensorSpec:
    """The spec under another codec."""
    return evolve(SPEC, encodings=(evolve(SPEC.encodings[0], codec=codec),))


@pytest.mark.parametrize(
    "other",
    [
        evolve(SPEC, shape=(4, 2)), evolve(SPEC, dtype="f16"), evolve(SPEC, attrs={"note": 1}),
        evolve(SPEC, problem="cut"), evolve(SPEC, encodings=SPEC.encodings * 2),
        evolve(SPEC, encodings=(evolve(SPEC.encodings[0], label="cache"),)),
        changed(dtype="i8"), changed(shape=(4,)), changed(byteorder=">"), changed(data=b"1234"),
        changed(segments=(api.Segment(0, 64, 3),)), changed(segments=(api.Segment(0, 64, 2), api.Segment(0, 66, 2))),
        changed(filters=(api.Filter("zstd"),)),
        coded(api.CodecSpec("affine", {"bits": 4, "block": [2, 1]})), coded(api.CodecSpec("affine", {"bits": 4})),
        coded(api.CodecSpec("affine", {"bits": 4.0, "block": [1, 2]})), coded(api.CodecSpec("affine")),
        coded(evolve(SPEC.encodings[0].codec, inner=api.CodecSpec("dense"))),
    ],
)  # fmt: skip
def test_every_field_a_backend_may_read_separates_kinds(other: api.TensorSpec) -> None:
    assert kind_of(other) != kind_of(SPEC)


def test_names_digests_and_offsets_do_not_separate_kinds() -> None:
    moved = changed(segments=(api.Segment(3, 4096, 4),), digest="sha256:ff")
    assert kind_of(evolve(moved, name="v")) == kind_of(SPEC)


def test_true_and_one_are_different_parameters() -> None:
    assert kind_of(coded(api.CodecSpec("affine", {"x": True}))) != kind_of(coded(api.CodecSpec("affine", {"x": 1})))


def test_parameters_other_than_plain_data_are_resolved_each_time() -> None:
    registry = registry_of(Counting)
    file = opened(registry)
    spec = evolve(file["tensor a"].spec, attrs={"shape": np.ones(3)})
    for _ in range(2):
        assert squish.Tensor(file, spec).plan().chosen.backend == "toy.counting"
    assert len(Counting.requests) == 2
    assert not registry.answers


def test_threads_that_resolve_see_each_registration() -> None:
    registry = registry_of(Counting)
    file = opened(registry)
    registered = ["toy.counting"]
    failures: list[Any] = []
    done = threading.Event()

    def resolving() -> None:
        while not done.is_set():
            oldest = len(registered) - 1
            chosen = file["tensor a"].plan().chosen.backend
            file["tensor a"].numpy()
            order = ["toy.counting", *(f"toy.late{number}" for number in range(1, 40))]
            if order.index(chosen) < oldest:  # what was registered before the question goes first
                failures.append((chosen, oldest))

    threads = [threading.Thread(target=resolving) for _ in range(4)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for thread in threads:
            thread.start()
        for number in range(1, 40):
            info = toys.backend(f"toy.late{number}", number)
            registry.register(toys.plugin(f"late{number}", squish_backends=[info]))
            registered.append(info.id)
            assert file["tensor b"].plan().chosen.backend == info.id
    finally:
        done.set()
        sys.setswitchinterval(interval)
        for thread in threads:
            thread.join()
    assert not failures


def test_tensors_of_any_file_share_one_resolver_until_something_is_registered() -> None:
    registry = registry_of(Counting)
    opened(registry)["tensor a"].plan()
    resolver = registry.resolvers["spec"]
    opened(registry)["tensor b"].plan()
    assert registry.resolvers == {"spec": resolver}
    registry.register(toys.plugin("later", squish_backends=[toys.backend("toy.later", 9)]))
    assert not registry.resolvers


def test_a_wrong_policy_or_a_named_backend_is_not_kept() -> None:
    registry = registry_of(Counting)
    file = opened(registry)
    with pytest.raises(api.UsageError):
        file["tensor a"].plan(policy="best")
    file["tensor a"].plan("numpy")
    assert not registry.resolvers
