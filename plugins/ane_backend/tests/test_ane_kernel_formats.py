"""Kernel formats: the enum and its guards, the five helpers; activation tables."""

import math
import re

import numpy as np
import pytest
from squish_ane.ane import activation, kernel_formats, structures
from squish_ane.ane.activation import ActivationTable
from squish_ane.ane.kernel_formats import KernelFormat
from squish_ane.ane.planner import Weights
from squish_cli import main
from squish_testing import expect_error

import squish_core as squish
from squish_core.api import SquishError


def test_the_enum_has_the_ranges_of_its_guards():
    numbers = range(-40, 80)
    assert [number for number in numbers if kernel_formats.is_palette(number)] == list(range(7, 28))
    assert [number for number in numbers if kernel_formats.is_unity(number)] == [28, 29, 30]
    assert [kernel_formats.kind_of(number) for number in (1, 6, 7, 27, 28, 30, 31)] == [
        "plain",
        "plain",
        "palette",
        "palette",
        "unity",
        "unity",
        "plain",
    ]
    for number in (0, 32, -1):
        with expect_error(SquishError, code="kernel-format", expected="1 to 31", found=number):
            kernel_formats.kind_of(number)


def test_the_range_of_palettes_has_a_number_for_each_palette():
    assert len(set(kernel_formats.PALETTE_FORMATS)) == len(kernel_formats.PALETTES) == 21


@pytest.mark.parametrize(
    ("weights", "depth", "palette", "underlying", "number", "element"),
    [
        (Weights(form="dense", elements=8), 16, None, "f16", 5, "f16"),
        (Weights(form="unity", elements=8), 16, None, "f16", 5, "f16"),
        (Weights(form="sparse", elements=8), 16, None, "f16", 5, "f16"),
        (Weights(form="int8", elements=8, bits=8), 8, None, "i8", 2, "i8"),
        (Weights(form="int8_asymmetric", elements=8, bits=8, signed=False), 8, None, "u8", 3, "u8"),
        (Weights(form="blockwise", elements=8, bits=8, signed=False), 8, None, "u8", 3, "u8"),
        (Weights(form="sparse_int8", elements=8, bits=8), 8, None, "i8", 2, "i8"),
        (Weights(form="f8_e4m3", elements=8, bits=8), 8, None, "f8_e4m3", 16, "f8_e4m3"),
        (Weights(form="palette4", elements=8, bits=4), 4, "lut4_f16", "f16", 8, "u4"),
        (Weights(form="palette8", elements=8, bits=8), 8, "lut8_f16", "f16", 8, "u8"),
        (Weights(form="palette3_6", elements=8, bits=6, codebook="i8"), 6, "lut6_i8", "i8", 8, None),
        (Weights(form="affine4", elements=8, bits=4), 16, None, "f16", 5, "i4"),
        (Weights(form="affine4", elements=8, bits=4, signed=False), 16, None, "f16", 5, "u4"),
        (Weights(form="affine4", elements=8, bits=3), 16, None, "f16", 5, None),
    ],
)
def test_the_five_helpers_of_table_25_1(weights, depth, palette, underlying, number, element):
    kernel = weights.kernel_format
    assert set(kernel_formats.HELPERS.values()) <= set(dir(KernelFormat))
    assert (kernel.bit_depth, kernel.underlying_type, kernel.type_number) == (depth, underlying, number)
    assert weights.element == element
    if palette is None:
        for query in (lambda: kernel.palette_format, lambda: kernel.palette_lut_size(1)):
            with expect_error(SquishError, code="kernel-format", expected="a kernel format of 7 to 27"):
                query()
        return
    assert kernel.palette_format == palette
    assert [kernel.palette_lut_size(count) for count in (1, 3)] == [2 << depth, 3 * (2 << depth)]
    assert kernel in kernel_formats.PALETTE_FORMATS


def test_each_kind_has_its_numbers():
    numbers = {kind: KernelFormat(kind, 8, "f16").numbers for kind in ("plain", "palette", "unity")}
    assert numbers == {"plain": (1, 2, 3, 4, 5, 31), "palette": tuple(range(7, 28)), "unity": (28, 29, 30)}
    assert KernelFormat("plain", 8, "f8_e4m3").numbers == (6,)


def test_an_activation_table_is_43_half_precision_entries():
    table = ActivationTable.of("tanh")
    entries = table.entries()
    assert (entries.dtype, entries.nbytes, len(entries)) == (np.float16, 86, 43)
    assert list(entries[:4]) == [-4, 4, 0, 4]
    assert (entries[4:37] == np.tanh(np.linspace(-4, 4, 33)).astype(np.float16)).all()


def test_values_are_interpolated_between_33_knots_and_clamped_beyond_them():
    knots = np.arange(33.0) ** 2
    table = ActivationTable(domain=(0.0, 32.0), knots=knots)
    x = np.array([0, 1, 1.5, 31, 31.5, 32, 40, -3, np.inf, -np.inf, np.nan], np.float32)
    assert table.evaluate(x).tolist() == [0, 1, 2.5, 961, 992.5, 1024, 1024, 0, 1024, 0, 0]
    assert table.evaluate(np.float32(2.25)).dtype == np.float16


@pytest.mark.parametrize("name", activation.FUNCTIONS)
def test_the_tables_of_functions_are_exact_at_their_knots(name):
    table = ActivationTable.of(name)
    x = np.linspace(*table.domain, 33)
    exact = np.array([activation.FUNCTIONS[name][0](value) for value in x]).astype(np.float16)
    assert (table.evaluate(x) == exact).all()
    assert math.isclose(table.error(name), 0, abs_tol=0.05)


@pytest.mark.parametrize(("domain", "count"), [((0.0, 1.0), 32), ((1.0, 1.0), 33), ((2.0, 1.0), 33)])
def test_other_tables_are_refused(domain, count):
    with expect_error(SquishError, code="activation"):
        ActivationTable(domain=domain, knots=np.zeros(count))


def test_the_registry_states_the_tables_that_plans_show():
    """A declaration imports no implementation, so it repeats their numbers."""
    facts = squish.registry().containers["mlpackage"].info.facts
    numbers = [f"{name}={number}" for name, number in kernel_formats.TYPE_NUMBERS.items()]
    assert facts["type numbers"] == " ".join(numbers)
    assert facts["underlying type"] == ", ".join(kernel_formats.UNDERLYING_TYPES)
    ranges = (kernel_formats.FORMATS, kernel_formats.PALETTES, kernel_formats.UNITIES)
    one, palettes, unities = (f"{each[0]} to {each[-1]}" for each in ranges)
    assert facts["kernel formats"].startswith(f"{one}: palettes {palettes} (f - 7 < 0x15), unity {unities} ")
    sections = structures.Descriptor().sections
    assert re.findall(r"(\w+)(?: \(|,|$)", re.sub(r"\([^)]*\)", "(", facts["descriptor"])) == list(sections)
    for name, table in (("lut", structures.Lut), ("pal", structures.Pal)):
        assert f"{name} ({', '.join(table._fields)})" in facts["descriptor"]
    assert facts["group record"].startswith(f"{len(structures.GroupRecord(offset=0, channels=1).words())} words")
    assert facts["activation table"].startswith(f"{activation.ENTRIES} half-precision entries with {activation.KNOTS}")
    named = re.findall(r"lut\{([\d,]+)\}_\{?(\w+(?:,\w+)*)\}?", facts["palette format"])
    palettes = {
        f"lut{bits}_{kind}" for all_bits, kinds in named for bits in all_bits.split(",") for kind in kinds.split(",")
    }
    assert palettes == {each.palette_format for each in kernel_formats.PALETTE_FORMATS}


def test_the_command_shows_the_tables(capsys):
    pytest.importorskip("typer")
    assert main(("formats", "mlpackage")) == 0
    shown = " ".join(capsys.readouterr().out.split())
    for title, text in squish.registry().containers["mlpackage"].info.facts.items():
        assert f"{title} {text}" in shown
