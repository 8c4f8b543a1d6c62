"""One chain from encodings and backends: a total order, with reasons for everything that was not taken."""

from __future__ import annotations

import itertools
import json
import pickle
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import toys
from squish_testing import expect_error

import squish_core as squish
from squish_core import api
from squish_core.backends import chain
from squish_core.backends import resolve as module
from squish_core.backends.resolve import resolve
from squish_core.errors import MissingPluginError, SquishError, TensorError
from squish_core.text import format_bytes

DENSE, ROWS = (api.Encoding(codec=api.CodecSpec(name), label=name) for name in ("dense", "toy.rows"))
FLOATS = np.ones((4, 6), np.float32)

EXPLAINED = """\
w
  chosen   toy.box -> dense -> numpy
           fold: decoded to f32 in row panels, from the file's own bytes; 96 B stored, 96 B in memory, 192 B read and written per use
  because  numpy reads and writes 192 B per use, toy.a 1.5 MB
  instead  toy.box -> dense -> toy.a: fold: toy; 1 B stored, 1 B in memory, 1.5 MB read and written per use
  plugins  container toy.box (toys), codec dense (squish-core VERSION), backend numpy (squish-core VERSION)
  not      cpu: not installed (pip install squish-cpu)
  not      metal: not installed (pip install squish-metal)
  not      ane: not installed (pip install squish-ane)
  not      cuda: not installed (pip install squish-cuda)""".replace("VERSION", squish.__version__)  # noqa: E501


def backends(*infos: Any) -> Any:
    return toys.registry(toys.plugin(squish_backends=list(infos)))


def chosen(registry: Any, *encodings: Any, **options: Any) -> tuple[str, str]:
    chain = resolve(registry, "w", "toy.box", encodings or (DENSE,), **options)
    return chain.chosen.backend, chain.chosen.encoding.label


def test_the_formats_own_order_comes_first() -> None:
    registry = backends(toys.backend("toy.a"))
    assert chosen(registry, ROWS, DENSE)[1] == "toy.rows"
    assert chosen(registry, DENSE, ROWS)[1] == "dense"


def test_smallest_orders_by_resident_bytes() -> None:
    registry = backends(toys.backend("toy.big", 9, resident=9), toys.backend("toy.small", resident=0))
    assert chosen(registry)[0] == "toy.big"
    assert chosen(registry, policy="smallest", backend=None)[0] in ("toy.small", "numpy")


def test_exact_prefers_exact_results() -> None:
    registry = backends(toys.backend("toy.rough", 9, exact=False), toys.backend("toy.exact", mode="fold"))
    assert chosen(registry)[0] == "toy.rough"
    assert chosen(registry, policy="exact")[0] != "toy.rough"
    assert chosen(registry, policy=lambda ranked: ranked.preference) == chosen(
        registry, policy=lambda r: (r.preference,)
    )


def test_any_function_is_a_policy() -> None:
    def last(ranked: Any) -> tuple[int]:
        return (-ranked.rank,)

    registry = backends(toys.backend("toy.a"))
    assert chosen(registry, DENSE, ROWS, policy=last)[1] == "toy.rows"
    with expect_error(SquishError, code="policy", expected="spec, smallest, exact", found="'fastest'"):
        chosen(registry, policy="fastest")


@pytest.mark.parametrize(
    ("better", "worse", "because"),
    [
        (
            {"mode": "stream"},
            {"mode": "fold", "preference": 9},
            "works on the stored values directly; {1} would make an f32 copy first",
        ),
        (
            {"mode": "delegate"},
            {"mode": "stream", "preference": 9},
            "its own runtime takes over the whole operation, which is preferred to {1}",
        ),
        (
            {"moved": 1},
            {"moved": 2, "preference": 9},
            "{0} reads and writes 1 B per use of a 256 x 256 matrix, {1} 2 B",
        ),
        ({"preference": 2}, {"preference": 1}, "{0} declares a higher preference than {1}; all else is equal"),
    ],
    ids=["mode", "delegate", "moved", "preference"],
)
def test_ties_fall_to_mode_then_bytes_moved_then_preference(better: Any, worse: Any, because: str) -> None:
    for names in (("toy.a", "toy.b"), ("toy.b", "toy.a")):
        registry = backends(toys.backend(names[0], **better), toys.backend(names[1], **worse))
        chain = resolve(registry, "w", "toy.box", (DENSE,))
        assert chain.chosen.backend == names[0]
        assert chain.because == because.format(*names)


def test_the_reason_tells_of_the_other_encodings_too() -> None:
    chain = resolve(backends(toys.backend("toy.a", mode="stream")), "w", "toy.box", (ROWS, DENSE))
    assert [offer.encoding.label for offer in chain.others[:2]] == ["toy.rows", "dense"]
    first, second = chain.because.split("; ", 1)
    assert first == "the format ranks this encoding before the others it stores"
    assert second == "works on the compressed blocks directly; numpy would decode them to f32 first"


def test_the_reason_is_put_into_words_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(module, "because", lambda *offers, **more: calls.append(offers) or "for fun")
    chain = resolve(backends(toys.backend("toy.a")), "w", "toy.box", (DENSE,))
    assert not calls
    assert "because  for fun" in chain.explain()
    assert (chain.because, len(calls)) == ("for fun", 1)
    again = pickle.loads(pickle.dumps(chain))
    assert (again, again.because) == (chain, "for fun")


def test_each_policy_says_why_an_offer_goes_first() -> None:
    rough, small = toys.backend("toy.rough", exact=False, resident=9), toys.backend("toy.small", resident=-1)
    reasons = {}
    for policy in ("smallest", "exact", lambda ranked: ranked.offer.backend):
        chain = resolve(backends(rough, small), "w", "toy.box", (DENSE,), policy=policy)
        reasons[chain.chosen.backend, chain.policy] = chain.because
    assert reasons == {
        ("toy.small", "smallest"): "it takes less memory than toy.rough when loaded",
        ("toy.small", "exact"): "works on the stored values directly; numpy would make an f32 copy first",
        ("numpy", "<lambda>"): "the caller's policy (<lambda>) prefers it to toy.rough",
    }


def test_the_order_does_not_depend_on_the_order_of_installation() -> None:
    infos = [toys.backend(f"toy.{name}") for name in "abc"]
    orders = set()
    for order in itertools.permutations(infos):
        chain = resolve(backends(*order), "w", "toy.box", (DENSE, ROWS))
        orders.add(tuple((item.backend, item.encoding.label) for item in (chain.chosen, *chain.others)))
    assert len(orders) == 1
    assert next(iter(orders))[0] == ("toy.a", "dense")


def test_a_backend_that_is_not_available_is_refused_with_its_reason() -> None:
    absent = api.BackendInfo(id="toy.absent", title="x", factory="toys:Absent", preference=9)
    failing = api.BackendInfo(id="toy.failing", title="x", factory="toys:Failing", preference=9)
    gone = api.BackendInfo(id="toy.gone", title="x", factory="toys:Gone", preference=9)
    confused = api.BackendInfo(id="toy.confused", title="x", factory="toys:Confused", preference=9)
    chain = resolve(backends(absent, failing, gone, confused), "w", "toy.box", (DENSE,))
    assert chain.chosen.backend == "numpy"
    reasons = {item.backend: item.why for item in chain.refused}
    assert reasons["toy.absent"] == "no such device"
    assert reasons["toy.failing"] == "its probe failed: RuntimeError: driver says no"
    assert "Gone" in reasons["toy.gone"]
    assert reasons["toy.confused"] == "its offer failed: KeyError: 'group_size'"


def test_an_operation_that_is_missing_is_a_reason() -> None:
    registry = backends(toys.backend("toy.a", 9, ops=("dense",)))
    chain = resolve(registry, "w", "toy.box", (DENSE,), op="embed")
    assert chain.chosen.backend == "numpy"
    why = "has no operation 'embed' for this codec and shape"
    assert ("toy.a", why) in [(item.backend, item.why) for item in chain.refused]


def test_only_the_named_backend_is_asked() -> None:
    registry = backends(toys.backend("toy.a", 9))
    assert chosen(registry, backend="numpy")[0] == "numpy"
    with expect_error(MissingPluginError, code="not-installed", hint="pip install squish-metal"):
        chosen(registry, backend="metal")


def test_without_any_offer_the_error_names_the_package_to_install() -> None:
    unknown = api.Encoding(codec=api.CodecSpec("ggml.q4_k"))
    with expect_error(MissingPluginError, code="no-chain", tensor="w", hint="pip install squish-ggml"):
        chosen(toys.registry(), unknown)
    with expect_error(TensorError, code="no-chain", tensor="w"):
        chosen(toys.registry(), api.Encoding(codec=api.CodecSpec("vendor.x")))
    with pytest.raises(TensorError) as caught:
        resolve(toys.registry(), "w", "toy.box", ())
    assert (caught.value.code, caught.value.tensor) == ("unreadable", "w")


def third_party(preference: int = 9, **more: Any) -> Any:
    """A registry with an installed backend of ours and one of a stranger's, which promises more."""
    strange = toys.backend("other.fast", preference=preference, mode="delegate", moved=0)
    points = [
        Point("fast", toys.plugin("fast", squish_backends=[strange]), "other-fast"),
        Point("cpu", toys.plugin("ours", squish_backends=[toys.backend("toy.ours")]), "squish-cpu"),
    ]
    return toys.registry(points=points, **more)


class Point:
    """An entry point of an installed distribution."""

    def __init__(self, name: str, plugin: Any, dist: str) -> None:
        self.name, self.load = name, lambda: plugin
        self.dist = SimpleNamespace(name=dist, version="1")


@pytest.mark.parametrize("policy", ["spec", "smallest", "exact", lambda ranked: ranked.offer.backend != "other.fast"])
def test_a_third_partys_backend_ranks_after_ours(policy: Any) -> None:
    chain = resolve(third_party(), "w", "toy.box", (DENSE,), policy=policy)
    assert chain.others[-1].backend == "other.fast"


def test_the_reason_says_that_a_backend_is_a_third_partys() -> None:
    registry = third_party(plugins="-cpu")
    assert resolve(registry, "w", "toy.box", (DENSE,)).because.startswith("other.fast is a third-party backend")


def test_a_third_partys_backend_that_alone_can_is_taken() -> None:
    backend = toys.backend("other.fast")
    toys.Runner_other_fast.whole = True  # type: ignore[attr-defined]
    codec = api.CodecInfo(id="odd", title="a model for another runtime", factory="toys:Runner", kind="whole")
    registry = toys.registry(
        points=[Point("fast", toys.plugin("fast", squish_codecs=[codec], squish_backends=[backend]), "o")]
    )
    odd = api.Encoding(codec=api.CodecSpec("odd"))
    assert chosen(registry, odd)[0] == "other.fast"


@pytest.mark.parametrize(
    "settings",
    [{"plugins": "+other-fast,+squish-cpu"}, {"plugins": "+fast,+cpu"}, {"prefer": {"other.fast": "other-fast"}},
     {"plugins": "other.fast=other-fast"}, {"plugins": "+other.fast,+cpu"}],
    ids=["allowed", "allowed by its entry point", "preferred", "preferred in the settings", "allowed by its id"],
)  # fmt: skip
def test_a_third_partys_backend_that_is_named_ranks_like_ours(settings: Any) -> None:
    assert chosen(third_party(**settings))[0] == "other.fast"


def test_a_third_partys_backend_is_taken_by_its_name() -> None:
    assert chosen(third_party(), backend="other.fast")[0] == "other.fast"


def test_a_backend_registered_in_the_process_ranks_like_ours() -> None:
    registry = third_party(plugins="-fast")
    registry.register(toys.plugin("mine", squish_backends=[toys.backend("other.mine", preference=9, mode="delegate")]))
    assert chosen(registry)[0] == "other.mine"


def test_packages_that_are_not_installed_are_listed() -> None:
    chain = resolve(toys.registry(), "w", "toy.box", (DENSE,))
    assert {item.backend: item.install for item in chain.refused}["cpu"] == "pip install squish-cpu"


def test_explain_is_readable_text() -> None:
    registry = backends(toys.backend("toy.a", mode="fold", moved=1_500_000))
    chain = squish.open(toys.box({"w": FLOATS}), registry=registry)["w"].plan()
    assert chain.explain() == str(chain) == EXPLAINED
    assert repr(chain) == "<Chain 'w' toy.box -> dense -> numpy mode=fold others=1 refused=4>"


def test_long_parameters_are_listed_once() -> None:
    long = api.CodecSpec("dense", {"word": "u8", "layout": "as it has always been"})
    rows = api.CodecSpec("dense", {"word": "u8", "layout": "as it has never been seen"})
    inner = api.CodecSpec("wrapping", {}, long)
    short = api.CodecSpec("short", {"bits": 4})
    assert chain._brief([inner, short, inner]) == {str(inner): "wrapping(dense)", str(short): "short:bits=4"}
    assert chain._brief([long, rows]) == {
        str(long): str(long),
        str(rows): str(rows),
    }  # nothing else tells them apart

    registry = backends(toys.backend("toy.a", 9))
    lines = resolve(registry, "w", "toy.box", (api.Encoding(codec=long),)).explain().splitlines()
    assert lines[1].startswith("  chosen   toy.box -> dense -> ")
    assert [line for line in lines if str(long) in line] == [f"  codec    {long}"]


def test_filters_are_part_of_the_path() -> None:
    file = squish.open(toys.box({"w": FLOATS}, filters=("toy.xor",)), registry=toys.registry())
    assert "toy.box -> toy.xor -> dense -> numpy" in file["w"].plan().explain()


def test_resolving_without_a_file() -> None:
    registry = toys.registry()
    chain = registry.resolve(container="toy.box", packing="shifted", speed={"slow"})
    assert chain.chosen.encoding.codec.id == "toy.shifted"
    assert chain.target == "toy.box with packing=shifted, speed=slow"
    assert chain.explain()


@pytest.mark.parametrize(
    ("features", "fields"),
    [
        ({"packing": "tight"}, {"code": "feature", "expected": "rows, shifted", "found": "'tight'"}),
        ({"color": "red"}, {"code": "feature", "expected": "packing, speed", "found": "'color'"}),
        ({"packing": {"rows", "shifted"}}, {"code": "feature"}),
        ({"packing": 4}, {"code": "feature", "expected": "rows, shifted", "found": "'4'"}),
        ({"op": "sing"}, {"code": "op", "found": "'sing'"}),
        ({"backend": "metal"}, {"code": "not-installed", "hint": "squish-metal"}),
    ],
)
def test_features_that_are_not_declared_are_refused(features: Any, fields: Any) -> None:
    with expect_error(SquishError, **fields):
        toys.registry().resolve(container="toy.box", **features)


def test_a_format_without_recipes_refuses_in_words() -> None:
    info = api.ContainerInfo(id="toy.bare", title="x", factory="squish_core.formats.base:Container")
    with pytest.raises(SquishError):
        toys.registry(toys.plugin(squish_containers=[info])).resolve(container="toy.bare")
    with expect_error(MissingPluginError, code="not-installed", hint="pip install squish-squizd"):
        toys.registry().resolve(container="squizd", flags={"INT4"})


def test_a_chain_is_json() -> None:
    text = json.dumps(resolve(backends(toys.backend("toy.a")), "w", "toy.box", (DENSE, ROWS)).to_dict())
    assert '"chosen"' in text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (1_234_567, "1.235 MB"), (2e12, "2 TB")]
)
def test_sizes_for_people(count: float, text: str) -> None:
    assert format_bytes(count) == text


def test_options_of_a_backend() -> None:
    """`ID:key=value` asks a backend that was given options; one that takes none says so."""
    registry = backends(toys.backend("toy.a"))
    assert resolve(registry, "w", "toy.box", (DENSE,), backend="toy.a").chosen.mode == "stream"
    assert resolve(registry, "w", "toy.box", (DENSE,), backend="toy.a:mode=fold").chosen.mode == "fold"
    assert resolve(registry, "w", "toy.box", (DENSE,), backend="toy.a").chosen.mode == "stream"
    with expect_error(SquishError, code="backend", found="threads"):
        resolve(registry, "w", "toy.box", (DENSE,), backend="numpy:threads=2")


def test_a_whole_model_is_not_decoded() -> None:
    """A codec of kind "whole" is for another runtime: the NumPy backend refuses it and says so."""
    whole = api.CodecInfo(id="toy.whole", title="a model", factory="toys:Rows", kind="whole")
    registry = toys.registry(toys.plugin(squish_codecs=[whole]))
    encodings = (api.Encoding(codec=api.CodecSpec("toy.whole")), DENSE)
    chain = resolve(registry, "w", "toy.box", encodings)
    assert chain.chosen.encoding is DENSE
    assert any("whole model" in refused.why for refused in chain.refused)
