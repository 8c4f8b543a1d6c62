"""The kit finds every bug planted in the example plugin, and none in the plugin itself."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import acme_bugs
import acme_format
import pytest
import toys
from attrs import evolve

from squish_core.api import Signature, SquishError
from squish_core.plugins.registry import Registry

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "acme_format"
SLOW = ("test_registering_imports_no_implementation",)
SUITES = {"acme.foo": "TestFoo", "acme.rows": "TestRows", "acme.runs": "TestRuns", "acme.pairs": "TestPairs",
          "acme.memory": "TestMemory"}  # fmt: skip

# bug -> (id of the plugin that has it, the test that finds it)
BUGS = {
    "ShiftedOffset": ("acme.foo", "test_values_are_the_ground_truth"),
    "WrongFloat": ("acme.foo", "test_values_are_the_ground_truth"),
    "WrongSign": ("acme.foo", "test_values_are_the_ground_truth"),
    "WrongByteOrder": ("acme.foo", "test_values_are_the_ground_truth"),
    "Transposed": ("acme.foo", "test_values_are_the_ground_truth"),
    "LostTensor": ("acme.foo", "test_values_are_the_ground_truth"),
    "NoChecksum": ("acme.foo", "test_damage_is_reported"),
    "UnknownChecksum": ("acme.foo", "test_damage_is_reported"),
    "WrongMagic": ("acme.foo", "test_damage_is_reported"),
    "EagerRead": ("acme.foo", "test_opening_reads_no_tensor_bytes"),
    "NeedsThePath": ("acme.foo", "test_a_model_without_a_path_and_a_listing_opens"),
    "UncheckedCount": ("acme.foo", "test_mutants_give_typed_errors_only"),
    "ForeignError": ("acme.foo", "test_truncations_give_typed_errors_only"),
    "Unstable": ("acme.foo", "test_the_index_pickles_and_is_stable"),
    "Unpicklable": ("acme.foo", "test_the_index_pickles_and_is_stable"),
    "FalseAlarm": ("acme.foo", "test_the_sample_is_clean_and_verifies"),
    "Reordered": ("acme.foo", "test_converting_to_itself_keeps_everything"),
    "RandomBytes": ("acme.foo", "test_writing_is_deterministic"),
    "PlainMetadataOnly": ("acme.foo", "test_metadata_of_another_format_is_written_or_dropped"),
    "WrongSize": ("acme.foo", "test_the_image_of_the_plan_is_what_is_written"),
    "ZeroChecksums": ("acme.foo", "test_the_copy_verifies_and_opens_again"),
    "SwallowedError": ("acme.foo", "test_an_interrupted_write_leaves_the_old_file"),
    "WrongPartsOfCodes": ("acme.foo", "test_codes_of_other_formats_are_accepted_in_parts_of_a_codec"),
    "GreedySniff": ("acme.foo", "test_sniffing_reads_at_most_64_kib"),
    "WrongSniff": ("acme.foo", "test_the_signature_identifies_the_format"),
    "FalseBound": ("acme.rows", "test_decoding_gives_the_values_within_the_bound"),
    "FalselyExact": ("acme.rows", "test_decoding_gives_the_values_within_the_bound"),
    "WrongScale": ("acme.rows", "test_decoding_gives_the_values_within_the_bound"),
    "IgnoredRegion": ("acme.rows", "test_a_region_equals_the_slice_of_the_whole"),
    "LeftOut": ("acme.rows", "test_decode_fills_all_of_out"),
    "WrongGrain": ("acme.rows", "test_grain_has_a_step_or_none_per_axis"),
    "PanelScale": ("acme.rows", "test_panels_encode_to_the_same_bytes"),
    "WrongParts": ("acme.rows", "test_parts_match_the_declaration"),
    "WritesParts": ("acme.rows", "test_unaligned_read_only_parts_decode_the_same"),
    "WrongGroup": ("acme.rows", "test_codes_are_in_the_declared_layout"),
    "ForgetsTheLayout": ("acme.rows", "test_codes_are_in_the_declared_layout"),
    "WrongLayout": ("acme.rows", "test_codes_are_in_the_declared_layout"),
    "WrongScaleDtype": ("acme.rows", "test_codes_are_in_the_declared_layout"),
    "ShiftedCodes": ("acme.rows", "test_codes_restore_the_parts_and_the_values"),
    "ReadsEverything": ("acme.pairs", "test_a_row_reads_only_its_bytes"),
    "Bomb": ("acme.runs", "test_a_bomb_costs_no_more_than_the_output"),
    "AcceptsShort": ("acme.runs", "test_a_wrong_size_is_refused"),
    "AcceptsLong": ("acme.runs", "test_a_wrong_size_is_refused"),
    "AcceptsCut": ("acme.runs", "test_every_truncation_is_refused"),
    "WrongRange": ("acme.runs", "test_a_range_equals_the_slice_of_the_content"),
    "LosesChunks": ("acme.runs", "test_encoding_takes_any_chunks_and_is_deterministic"),
    "ForgetsMeasure": ("acme.runs", "test_decoded_size_is_the_size_or_none"),
    "TakesEveryFile": ("acme.pairs", "test_an_undeclared_file_is_not_refined"),
    "ChangesTheBase": ("acme.pairs", "test_refining_is_a_pure_function_of_the_index"),
    "LosesTensors": ("acme.pairs", "test_no_stored_tensor_is_lost"),
    "HidesTheProblem": ("acme.pairs", "test_unreadable_tensors_say_why"),
    "TooLittleMemory": ("acme.memory", "test_resident_cost_covers_a_loaded_weight"),
    "TooMuchMemory": ("acme.memory", "test_resident_cost_covers_a_loaded_weight"),
    "KeepsTwoCopies": ("acme.memory", "test_resident_cost_covers_a_loaded_weight"),
    "WrongStored": ("acme.memory", "test_stored_cost_is_the_number_of_bytes_read"),
    "HalfPrecision": ("acme.memory", "test_dense_equals_the_codec"),
    "TransposedLinear": ("acme.memory", "test_linear_agrees_with_dense"),
    "OffByOneRow": ("acme.memory", "test_embed_gives_rows_of_dense"),
    "IgnoresOut": ("acme.memory", "test_dense_fills_out_with_a_region_in_a_dtype"),
    "SilentRefusal": ("acme.memory", "test_offer_reads_nothing_and_is_stable"),
}
DECLARATIONS = {
    "no signature": (
        "acme.foo",
        {"signatures": (), "suffixes": (".acme",)},
        "test_the_signature_identifies_the_format",
    ),
    "another signature": (
        "acme.foo",
        {"signatures": (Signature(b"ACM!"),)},
        "test_the_signature_identifies_the_format",
    ),
    "a lossless codec": ("acme.rows", {"lossless": True}, "test_decoding_gives_the_values_within_the_bound"),
    "a byte codec that loses bits": ("acme.runs", {"lossless": False}, "test_the_declaration_is_for_a_byte_codec"),
    "values that are no plain data": ("acme.foo", {"features": {"x": {1}}}, "test_the_declaration_is_plain_data"),
}
OF_BUG = {
    "ReadsEverything": {"acme.rows": "acme_bugs:ReadsEverything"},
    "GreedySniff": {"acme.foo": "acme_bugs:GreedySniff"},
}
"""Bugs of another plugin than the one whose suite finds them."""
SNIFFS = ("GreedySniff", "WrongSniff")


def registry(factories: dict[str, str] = {}, **changes: dict[str, Any]) -> Registry:  # noqa: B006
    """The core and the example alone, with other implementations or declarations."""

    def infos(hook: Any) -> list[Any]:
        return [
            evolve(info, factory=factories.get(info.id, info.factory), **changes.get(info.id, {})) for info in hook()
        ]

    hooks = {name: infos(getattr(acme_format, name)) for name in dir(acme_format) if name.startswith("squish_")}
    return Registry("", extra=[toys.plugin("acme-format", **hooks)], entry_points=list)


def suite(name: str, plugins: Registry) -> Any:
    """The example's own suite over another registry, with fewer mutants."""
    base = getattr(example(), SUITES[name])
    return type(base.__name__, (base,), {"registry": cached_property(lambda self: plugins), "mutations": 150})()


def example() -> Any:
    """The example's tests, as a module."""
    if "acme_tests" not in sys.modules:
        spec = importlib.util.spec_from_file_location("acme_tests", EXAMPLE / "tests" / "test_acme_format.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules["acme_tests"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["acme_tests"])
    return sys.modules["acme_tests"]


def failures(tests: Any, only: str | None = None) -> Iterator[str]:
    """Names of the tests that fail, each with what it says."""
    for name in dir(type(tests)):
        test = getattr(type(tests), name)
        marks = {mark.name for mark in getattr(test, "pytestmark", ())}
        if not name.startswith("test_") or name in SLOW or "fuzz" in marks or only not in (None, name):
            continue
        for arguments in calls(tests, test):
            try:
                test(tests, **arguments)
            except pytest.skip.Exception:
                continue
            except (AssertionError, SquishError, pytest.fail.Exception) as error:
                yield f"{name}: {without_folder(error, arguments)}"


def without_folder(error: BaseException, arguments: dict[str, Any]) -> str:
    """The text of an error without the temporary folder, whose name may have digits."""
    return str(error).replace(str(arguments.get("tmp_path", "")), "")


def calls(tests: Any, test: Any) -> Iterator[dict[str, Any]]:
    """The arguments of each run of a test, as pytest would give them."""
    names = test.__code__.co_varnames[1 : test.__code__.co_argcount]
    cases: dict[str, list[str]] = {}

    class Metafunc:
        fixturenames = names

        def parametrize(self, argument: str, values: list[str]) -> None:
            cases[argument] = values

    if hasattr(tests, "pytest_generate_tests"):
        tests.pytest_generate_tests(Metafunc())
    for value in next(iter(cases.values()), [None]):
        with tempfile.TemporaryDirectory() as folder:
            yield {name: Path(folder) if name == "tmp_path" else value for name in names}


@pytest.mark.parametrize("name", SUITES)
def test_the_example_without_a_bug_passes(name: str) -> None:
    assert list(failures(suite(name, registry()))) == []


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_found(bug: str) -> None:
    name, test = BUGS[bug]
    changes = {"acme.foo": {"sniffs": True}} if bug in SNIFFS else {}
    plugins = registry(OF_BUG.get(bug, {name: f"acme_bugs:{bug}"}), **changes)
    assert hasattr(acme_bugs, bug)
    messages = list(failures(suite(name, plugins), test))
    assert messages, f"{test} does not find the bug {bug}"
    assert all(any(letter.isdigit() for letter in text) for text in messages), f"no numbers in {messages}"


@pytest.mark.parametrize("bug", DECLARATIONS)
def test_a_wrong_declaration_is_found(bug: str) -> None:
    name, facts, test = DECLARATIONS[bug]
    assert list(failures(suite(name, registry(**{name: facts})), test))


# what a suite fails to state -> (suite, its changes, the test that asks for it)
UNSTATED = {
    "no values": ("acme.foo", {"values": lambda self: {}}, "test_there_is_ground_truth"),
    "values of a sample that does not exist": (
        "acme.foo", {"values": lambda self: {"large": {"w": None}}}, "test_there_is_ground_truth",
    ),
    "no damaged file": ("acme.foo", {"damaged": lambda self: {}}, "test_there_is_ground_truth"),
    "an unreadable tensor": ("acme.pairs", {"unreadable": lambda self: {}}, "test_the_sample_is_clean_and_verifies"),
    "an unreadable tensor that can be read": (
        "acme.pairs", {"unreadable": lambda self: {"pair": {"w"}, "stray": {"w"}}}, "test_unreadable_tensors_say_why",
    ),
    "no undeclared file": (
        "acme.pairs", {"undeclared": lambda self: {}}, "test_there_is_an_undeclared_file",
    ),
    "samples smaller than what may be read ahead": (
        "acme.foo", {"read_ahead": 1000}, "test_a_sample_is_larger_than_read_ahead",
    ),
}  # fmt: skip


@pytest.mark.parametrize("gap", UNSTATED)
def test_a_suite_that_states_too_little_fails(gap: str) -> None:
    name, changes, test = UNSTATED[gap]
    base = suite(name, registry())
    assert list(failures(type(gap, (type(base),), changes)(), test))


@pytest.mark.parametrize("exact", [True, False])
def test_a_format_known_by_its_suffix_alone_needs_exact_detection_to_be_off(exact: bool, tmp_path: Path) -> None:
    by_suffix = registry(**{"acme.foo": {"signatures": ()}})
    base = suite("acme.foo", by_suffix)
    path = tmp_path / "small.acme"
    path.write_bytes(base.samples()["small"])
    changes = {"samples": lambda self: {"small": path}, "damaged": lambda self: {}, "exact_detection": exact}
    tests = type("BySuffix", (type(base),), changes)()
    assert not list(failures(tests, "test_the_signature_identifies_the_format"))
    messages = list(failures(tests, "test_the_bytes_identify_the_format_whatever_the_name"))
    assert bool(messages) == exact
