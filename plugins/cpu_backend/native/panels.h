// 4-bit codes in panels of sixteen rows, one per lane: a register holds eight columns of each row (k..k+3 in the low nibbles,
// k+4..k+7 in the high ones), so one broadcast of four activations serves all rows, without horizontal sums. Scales and
// offsets of a group are sixteen adjacent numbers. For Q4_K they are bytes, and `rest` has sixteen float16 factors for the
// scales of eight groups, and sixteen for the offsets. All other panels are the codec `panels` of squish_codecs and may be
// stored in a file.
#pragma once
#include "units.h"

namespace ISA {

constexpr int64_t PANEL_ROWS = 16;

// The six-bit scales and minima of Q4_K; panels store their factors separately.
struct Nested : SuperUnits<false> {
    using SuperUnits<false>::SuperUnits;
    static void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale, float* offset) {
        uint8_t packed[16];
        for (int64_t i = 0; i < count; i += 8, at += bytes) {
            six_bits(at + 4, packed, packed + 8);
            for (int k = 0; k < 8; k++) scale[i + k] = packed[k], offset[i + k] = packed[8 + k];
        }
    }
};

// Writes one row to its lane; `scale` and `offset` are floats [panel][group][lane].
template <class Units>
void repack_row(const Weights& w, int64_t row, uint8_t* codes, float* scale, float* offset) {
    constexpr bool shuffled = Units::units == 1 && Units::order(1) == 2;
    const Units codec(w);
    const uint8_t* at = w.data + row * w.pitch;
    const int64_t groups = w.columns / 32 / Units::group(w), lane = row % PANEL_ROWS;
    const int64_t cell = row / PANEL_ROWS * groups * PANEL_ROWS + lane;
    alignas(64) float some[PANEL], less[PANEL] = {};
    for (int64_t first = 0; first < groups; first += PANEL) {
        const int64_t count = groups - first < PANEL ? groups - first : PANEL;
        Units::factors(w, row, at + first * Units::group(w) / Units::units * Units::bytes, first, count, some, less);
        for (int64_t g = 0; g < count; g++) {
            scale[cell + (first + g) * PANEL_ROWS] = some[g];
            if (offset) offset[cell + (first + g) * PANEL_ROWS] = less[g];
        }
    }
    uint8_t* to = codes + row / PANEL_ROWS * w.columns * (PANEL_ROWS / 2) + 4 * lane;
    for (int64_t c = 0; c < w.columns; c += 32 * Units::units, at += Units::bytes)
        for (int unit = 0; unit < Units::units; unit++, to += 256) {
            B both[2];
            codec.codes(at, unit, both[0], both[1]);
            uint8_t in_place[32], plain[32];
            memcpy(in_place, both, 32);
            for (int i = 0; i < 32; i++) plain[shuffled ? Units::order(i) : i] = in_place[i];
            for (int i = 0; i < 16; i++) to[i / 4 * 64 + i % 4] = uint8_t(plain[i / 4 * 8 + i % 4] | plain[i / 4 * 8 + i % 4 + 4] << 4);
        }
}

using RepackRow = void (*)(const Weights& w, int64_t row, uint8_t* codes, float* scale, float* offset);
static RepackRow repack_nibbles_of(const Weights& w) {
    switch (w.kind) {
        case Q4_0: return repack_row<NibbleUnits<Q4_0>>;
        case Q4_1: return repack_row<NibbleUnits<Q4_1>>;
        case Q4_K: return repack_row<Nested>;
        case AFFINE_4: return repack_row<AffineNibbles>;
        default: return nullptr;
    }
}

// Reads one row from its lane.
struct PanelRow {
    template <class Sink> static INLINE void run(const Weights& w, int64_t row, int64_t c0, int64_t c1, Sink& sink) {
        if (w.offset) run_lane(w, row, c0, c1, AffineMap<BIAS>(w), sink);
        else run_lane(w, row, c0, c1, AffineMap<NO_OFFSET>(w), sink);
    }

    template <class Map, class Sink>
    static INLINE void run_lane(const Weights& w, int64_t row, int64_t c0, int64_t c1, Map map, Sink& sink) {
        const int64_t panel = row / PANEL_ROWS, lane = row % PANEL_ROWS, groups = w.columns / w.group_columns;
        const uint8_t* at = w.data + (panel * w.columns + c0) * (PANEL_ROWS / 2) + 4 * lane;
        for (int64_t c = c0, stop; c < c1;) {
            const int64_t group = c / w.group_columns, cell = (panel * groups + group) * PANEL_ROWS + lane;
            map.scale = splat(widened(w.scale, w.scale_type, nullptr, cell));
            if constexpr (Map::offsets) map.offset = splat(widened(w.offset, w.offset_type, nullptr, cell));
            stop = (group + 1) * w.group_columns < c1 ? (group + 1) * w.group_columns : c1;
            for (; c < stop; c += 16, at += 128) sink.put(c - c0, map(pair(eight(at), eight(at + 64))));
        }
    }

    static INLINE uint64_t eight(const uint8_t* at) {
        const uint64_t codes = read<uint32_t>(at);
        return (codes | codes << 28) & 0x0f0f0f0f0f0f0f0f;
    }
};

}  // namespace ISA
