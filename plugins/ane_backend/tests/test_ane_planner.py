"""The chapter's numbers, and every cell of the tables."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from squish_ane.ane import activation, facts, kernel_formats, planner, structures
from squish_ane.ane.planner import Consumer, Weights, plan
from squish_testing import expect_error

from squish_core.api import SquishError, UsageError

quick = settings(max_examples=50, deadline=None, derandomize=True, database=None)


def test_sparse_at_63_percent_zeros_moves_043_of_dense():
    """Chapter 25, sparsity datapath: about 0.43 times the dense weight bytes."""
    count = 1024 * 1024
    cost = plan(Weights(form="sparse", elements=count, nonzero=round(0.37 * count)), "H13")
    assert cost.mode == "stream"
    assert cost.nbytes / cost.dense == pytest.approx(1 / 16 + 0.37, abs=1e-5)
    assert round(cost.nbytes / cost.dense, 2) == 0.43


def test_codebook_sizes_match_the_chapter():
    assert kernel_formats.codebook_bytes(4) == 32
    assert kernel_formats.codebook_bytes(8) == 512
    assert kernel_formats.codebook_bytes(4) + activation.BYTES == 32 + 86


def test_folded_weights_split_at_64_kib_and_streamed_ones_at_16_mib():
    count = 64 << 10  # elements: 128 KiB dense
    assert plan(Weights(form="int8", elements=count), "H13").pieces == 2
    assert plan(Weights(form="int8", elements=count), "H14").pieces == 1
    assert plan(Weights(form="int8", elements=17 << 20), "H14").pieces == 2


@pytest.mark.parametrize(
    ("form", "modes"),
    [
        ("dense", "dense"), ("int8", "fold stream"), ("int8_asymmetric", "illegal stream"), ("palette4", "stream"),
        ("unity", "dense"), ("palette8", "stream"), ("palette_many", "illegal stream"),
        ("palette3_6", "illegal stream"), ("palette1_2", "illegal"), ("sparse", "stream"),
        ("sparse_palette", "illegal fold stream"),
        ("sparse_int8", "fold"),
        ("blockwise", "fold fold stream"), ("affine4", "fold"),
        ("f8_e4m3", "illegal illegal illegal illegal illegal stream"), ("f8_e5m2", "fold"),
    ],
)  # fmt: skip
def test_every_cell_matches_the_tables_and_messages_name_the_generation(form, modes):
    """Tables 25.2 and 25.5, by generation; the last mode applies to all later ones."""
    expected = modes.split()
    for at, generation in enumerate(facts.GENERATIONS):
        mode = expected[min(at, len(expected) - 1)]
        weights = Weights(form=form, elements=4096, channels=64, bits=4, block=32, nonzero=100)
        assert facts.cell(form, generation).mode == mode
        if mode == "illegal":
            with expect_error(SquishError, code="illegal") as caught:
                plan(weights, generation)
            assert f"for {generation}: " in caught.value.message
        else:
            assert plan(weights, generation).mode == mode


def test_every_row_has_a_cell_with_evidence_per_generation():
    for row in facts.ROWS.values():
        assert len(row.cells) == len(facts.GENERATIONS)
        assert {cell.evidence for cell in row.cells} <= {"measured", "stated", "predicted", "unstated"}
        assert row.source


def test_measured_cells_are_only_on_measured_silicon():
    """Silicon was only measured on the M1, M2 Pro and M5."""
    for row in facts.ROWS.values():
        for generation in ("H15", "H16", "H18"):
            assert row.cells[facts.GENERATIONS.index(generation)].evidence != "measured"


@pytest.mark.parametrize(
    ("gate", "first"), [(0x48F, "H13"), (0x529, "H13"), (0x528, "H14"), (0x520, "H15"), (0x52D, "H18")]
)
def test_gates_match_the_chapter(gate, first):
    generations = [generation for generation in facts.GENERATIONS if facts.is_set(gate, generation)]
    assert generations == list(facts.GENERATIONS[facts.GENERATIONS.index(first) :])


@pytest.mark.parametrize(
    ("consumer", "why"),
    [
        (Consumer(stride=2), "stride"), (Consumer(dilation=2), "dilation"), (Consumer(overlapping=True), "overlap"),
        (Consumer(mutable=True), "mutable"),
    ],
)  # fmt: skip
def test_the_consumer_of_a_weight_affects_the_mode(consumer, why):
    cost = plan(Weights(form="palette4", elements=4096, bits=4), "H13", consumer)
    assert cost.mode == "fold"
    assert cost.nbytes == 2 * 4096
    assert why in cost.why


@pytest.mark.parametrize(
    ("weights", "nbytes"),
    [
        (Weights(form="dense", elements=100), 200),
        (Weights(form="palette4", elements=101, bits=4), 51 + 32),
        (Weights(form="palette4", elements=100, bits=4, vector_size=2), 25 + 64),
        (Weights(form="palette_many", elements=100, bits=4, codebooks=4), 50 + 128),
        (Weights(form="int8", elements=100, channels=10), 120),
        (Weights(form="sparse", elements=100, nonzero=9), 13 + 18),
        (Weights(form="blockwise", elements=128, block=32), 128 + 8),
        (Weights(form="f8_e4m3", elements=100), 100),
    ],
)  # fmt: skip
def test_every_form_has_its_size(weights, nbytes):
    assert weights.nbytes == nbytes


@quick
@given(st.integers(-40, 80))
def test_vector_sizes_match_the_mask(value):
    assert structures.is_vector_size(value) == (value in (1, 2, 4, 5))


def test_the_memory_engine_converts_e5m2_but_not_e4m3():
    assert [at for at in range(32) if structures.converts_to_half(at)] == [4, 5, 6, 7, 8, 9, 10, 11, 13]


@pytest.mark.parametrize("size", [0, 3, 6, 7])
def test_a_vector_size_outside_the_mask_is_refused(size):
    with expect_error(SquishError, code="vector-size", expected="1, 2, 4 or 5"):
        plan(Weights(form="palette4", elements=120, bits=4, vector_size=size), "H17")


def test_a_group_record_is_fourteen_words():
    """Table 25.3: offset, channels, ten addresses and two flags."""
    groups = structures.group_records(channels=10, cores=4, stride=128)
    assert [(record.offset, record.channels) for record in groups] == [(0, 3), (128, 3), (256, 3), (384, 1)]
    assert groups[1].words() == (128, 3, *[-1] * 10, 0, 0)
    assert structures.Descriptor(ocgs=groups).sections["ocgs"] == 4 * 14 * 4


def test_a_descriptor_has_six_sections_and_the_tuples_of_listing_25_1():
    descriptor = structures.Descriptor(
        lut=structures.Lut(5, 16, 86), pal=structures.Pal("lut4_f16", 4, 2, 64), scale=128, bias=64, weights=2048
    )
    assert descriptor.sections == {"lut": 86, "pal": 64, "ocgs": 0, "scale": 128, "bias": 64, "weights": 2048}
    assert descriptor.tables == {
        "lut": {"typeno": 5, "bitdepth": 16, "lut_bytes": 86},
        "pal": {"palette_format": "lut4_f16", "bitdepth": 4, "num_luts": 2, "lut_bytes": 64},
    }
    assert structures.Descriptor().tables == {}


def test_stream_registers_are_evenly_spaced():
    for at, stream in enumerate(structures.STREAMS.values()):
        assert (stream.enable, stream.base, stream.relocation) == (0x5548 + 16 * at, 0x554C + 16 * at, 0x1554 + 4 * at)


def test_descriptor_version_five_lacks_the_encoders_of_table_25_5():
    for form in ("sparse_palette", "palette_many", "int8_asymmetric", "palette3_6"):
        assert facts.cell(form, "H13").mode == "illegal"


def test_type_numbers_and_element_codes_match_the_chapter():
    """Chapter 25: type numbers in descriptors; element codes of float8 forms."""
    assert kernel_formats.TYPE_NUMBERS == {"i8": 2, "u8": 3, "f16": 5, "lut": 8, "u4": 9, "f8_e4m3": 16, "i4": 23}
    assert not structures.converts_to_half(structures.ELEMENT_CODES["f8_e4m3"])
    assert structures.converts_to_half(structures.ELEMENT_CODES["f8_e5m2"])


@pytest.mark.parametrize("bits", [4, 6, 8])
def test_codebooks_of_integers_have_fewer_than_256_entries(bits):
    weights = Weights(form="palette8" if bits == 8 else "palette4", elements=120, bits=bits, codebook="i8")
    if bits == 8:
        with expect_error(SquishError, code="codebook", expected="fewer than 256", found=256):
            plan(weights, "H17")
    else:
        assert plan(weights, "H17").mode == "stream"
    assert [entries for entries in (0, 1, 16, 255, 256) if kernel_formats.is_quantized_palette(entries)] == [1, 16, 255]


def test_a_dense_weight_over_64_kib_is_split():
    """The dense cap (field 0x200) is 64 KiB on the M1; streamed weights have the relaxed cap (0x210)."""
    whole = (64 << 10) // 2
    assert [plan(Weights(form="dense", elements=count), "H13").pieces for count in (whole, whole + 1)] == [1, 2]
    assert plan(Weights(form="palette4", elements=whole + 1, bits=4), "H13").pieces == 1
    assert (facts.CAP_DENSE, facts.CAP_STREAMED) == (64 << 10, 16 << 20)


def test_sparse_size_is_a_sixteenth_plus_the_density():
    """Listing 25.3, over densities."""
    for kept in range(0, 4097, 64):
        weights = Weights(form="sparse", elements=4096, nonzero=kept)
        assert weights.nbytes / 8192 == 1 / 16 + kept / 4096


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, ""), ({"form": "sparse"}, "sparse"), ({"form": "unity"}, "unity"), ({"kernel": (1, 1)}, "3 x 3"),
        ({"stride": 2}, "stride"), ({"depth": 6}, "depth"),
    ],
)  # fmt: skip
def test_winograd_conditions(changes, why):
    allowed, reason = structures.winograd(**{"kernel": (3, 3), "stride": 1, "form": "dense", "channels": 8, **changes})
    assert allowed == (not why)
    assert why in reason


def test_winograd_needs_enough_work():
    for unit, floor in structures.WINOGRAD_FLOORS.items():
        allowed, reason = structures.winograd(kernel=(3, 3), stride=1, form="dense", channels=0, unit=unit)
        assert not allowed
        assert f"of {floor}" in reason


def test_skipping_zeros_scales_cycles():
    assert structures.cycles_after_skipping(1000, 0.63) == pytest.approx(370)
    assert structures.cycles_after_skipping(1000, 0.5, 0.5) == pytest.approx(250)


@pytest.mark.parametrize("kernel", [(1,), (3,), (3, 3), (5, 1), (4, 4)])
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("padding", "size"), [(0, 0), (0, 9), (1, 9), (2, 4), (3, 1)])
def test_implicit_zeros_are_those_of_a_convolution_written_out(kernel, stride, padding, size):
    """A stride of s takes s phases, whose kernel is filled with zeros; padded taps multiply zeros."""
    nonzero = 1.0
    for taps in kernel:
        phases = np.zeros(-(-taps // stride) * stride)
        phases[:taps] = 1
        row = np.pad(np.ones(size), padding)
        windows = [row[at : at + taps] for at in range(0, len(row) - taps + 1, stride)] if size else []
        nonzero *= phases.mean() * (np.mean(windows) if windows else 1)
    assert structures.implicit_zeros(kernel, stride=stride, padding=padding, size=size) == pytest.approx(1 - nonzero)


@pytest.mark.parametrize(("name", "generation"), [("M1", "H13"), ("m5", "H17"), ("h15", "H15"), ("H13g", "H13")])
def test_devices_map_to_generations(name, generation):
    assert planner.generation_of(name) == generation


def test_an_unknown_device_error_lists_the_devices():
    with expect_error(
        UsageError,
        code="backend",
        found="'A19'",
        expected="M1, M2, M3, M4, M5, A13, A14, A15, A16, A17, A18, H13, H14, H15, H16, H17, H18",
    ):
        planner.generation_of("A19")


@pytest.mark.parametrize("number", range(13, 19))
def test_the_books_names_of_the_generations_are_devices(number):
    """It calls H14, the M2, A14."""
    assert planner.generation_of(f"A{number}") == planner.generation_of(f"a{number}") == f"H{number}"
    assert planner.cores_of(f"A{number}") == planner.cores_of("M1")


@pytest.mark.parametrize("form", facts.ROWS)
@pytest.mark.parametrize("generation", facts.GENERATIONS)
def test_a_form_streams_only_where_all_its_gates_are_set(form, generation):
    row = facts.ROWS[form]
    if facts.cell(form, generation).mode == "stream":
        assert row.gates
        assert all(facts.is_set(gate, generation) for gate in row.gates)


def test_a_closed_gate_folds_a_palette(monkeypatch):
    weights = planner.Weights(form="palette4", elements=4096, bits=4)
    monkeypatch.setattr(facts, "GATES", {**facts.GATES, facts.PALETTE_GATE: "H14"})
    verdict = planner.plan(weights, "H13")
    assert (verdict.mode, verdict.nbytes) == ("fold", 8192)
    assert "the byte 0x529 is not set" in verdict.why
