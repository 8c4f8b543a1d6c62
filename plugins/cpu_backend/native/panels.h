// Codes of 4 bits repacked into panels of sixteen rows, one a lane: a register holds eight columns of each row (k..k+3 in the
// low bits of its bytes, k+4..k+7 in the high ones), so four activations in one broadcast serve all rows and nothing is summed
// across lanes. The scales of a group, and its offsets, are sixteen numbers side by side.
#pragma once
#include "columns.h"
#include "int8.h"

namespace ISA {

constexpr int64_t PANEL_ROWS = 16;

// One row into its lane; `scale` and `offset` are floats of [panel][group][lane].
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
static RepackRow repack_of(int32_t kind) {
    switch (kind) {
        case Q4_0: return repack_row<NibbleUnits<Q4_0>>;
        case Q4_1: return repack_row<NibbleUnits<Q4_1>>;
        case Q4_K: return repack_row<SuperUnits<false>>;
        case AFFINE_4: return repack_row<AffineNibbles>;
        default: return nullptr;
    }
}
static bool repack(const Weights& w, int64_t row0, int64_t count, uint8_t* codes, float* scale, float* offset) {
    const RepackRow row = repack_of(w.kind);
    for (int64_t i = 0; row && i < count; i++) row(w, row0 + i, codes, scale, offset);
    return row;
}

// sums + the products of each lane's four codes with four activations
static INLINE Whole16 dot4(Whole16 sums, Word16 codes, const int8_t* x) {
    [[maybe_unused]] const int32_t four = read<int32_t>(x);
#if defined(__AVX512VNNI__)
    return (Whole16)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(four));
#elif defined(__AVX2__)
    const __m256i with = _mm256_set1_epi32(four), ones = _mm256_set1_epi16(1);
    __m256i half[2];
    memcpy(half, &codes, sizeof half);
    for (__m256i& each : half) each = _mm256_madd_epi16(_mm256_maddubs_epi16(each, with), ones);
    return sums + read<Whole16>(half);
#else
    for (int k = 0; k < 4; k++) sums += (Whole16)(codes >> 8 * k & 0xff) * int32_t(x[k]);
    return sums;
#endif
}

static INLINE F cells_at(const uint8_t* grid, int32_t type, int64_t first) {
    if (type == F16) return load_half(grid + 2 * first);
    return type == BF16 ? load_bf16(grid + 2 * first) : load(grid + 4 * first);
}

// Sixteen rows with Count vectors: y[v] has a lane for each row.
template <int Count> void multiply8_panel(const Weights& w, int64_t panel, const Codes8& x, int64_t v0, F* y) {
    const int64_t each = w.group_columns / 32, groups = w.columns / w.group_columns;
    const uint8_t* at = w.data + panel * w.columns * (PANEL_ROWS / 2);
    const int8_t* codes = x.codes + v0 * w.columns;
    const float *scales = x.scales + v0 * x.padded, *sums = x.sums + 2 * v0 * x.padded;
    const float zero = float(w.zero);
    F total[Count];
    UNROLL for (int v = 0; v < Count; v++) total[v] = splat(0);
    for (int64_t g = 0; g < groups; g++) {
        F part[Count];
        UNROLL for (int v = 0; v < Count; v++) part[v] = splat(-zero * sums[2 * v * x.padded + g]);
        for (int64_t u = 0; u < each; u++, at += 256, codes += 32 * Count, scales++) {
            Whole16 dots[Count] = {};
            UNROLL for (int k = 0; k < 4; k++) {
                prefetch(at + AHEAD + 64 * k);
                const Word16 both = read<Word16>(at + 64 * k), low = both & 0x0f0f0f0f, high = both >> 4 & 0x0f0f0f0f;
                UNROLL for (int v = 0; v < Count; v++) {
                    const int8_t* with = codes + 8 * k * Count + 4 * v;
                    dots[v] = dot4(dot4(dots[v], low, with), high, with + 4 * Count);
                }
            }
            UNROLL for (int v = 0; v < Count; v++) {
                const Float16 dot = __builtin_convertvector(dots[v], Float16);
                part[v] = fma(read<F>(&dot), splat(scales[v * x.padded]), part[v]);
            }
        }
        const int64_t cell = (panel * groups + g) * PANEL_ROWS;
        const F scale = cells_at(w.scale, w.scale_type, cell);
        UNROLL for (int v = 0; v < Count; v++) total[v] = fma(part[v], scale, total[v]);
        if (!w.offset) continue;
        const F offset = cells_at(w.offset, w.offset_type, cell);
        UNROLL for (int v = 0; v < Count; v++) total[v] = fma(offset, splat(sums[2 * v * x.padded + g]), total[v]);
    }
    UNROLL for (int v = 0; v < Count; v++) y[v] = total[v];
}

// The lanes of a panel that are rows asked for.
static void keep(F sums, int64_t panel, int64_t row0, int64_t count, float* y) {
    float lanes[PANEL_ROWS];
    store(lanes, sums);
    for (int64_t i = 0; i < PANEL_ROWS; i++) {
        const int64_t row = panel * PANEL_ROWS + i - row0;
        if (row >= 0 && row < count) y[row] = lanes[i];
    }
}

static void multiply8_panels(const Weights& w, int64_t row0, int64_t count, const int8_t* room, int64_t m, float* y, int64_t y_pitch) {
    const Codes8 x((int8_t*)room, w.columns, m);
    for (int64_t panel = row0 / PANEL_ROWS; panel * PANEL_ROWS < row0 + count; panel++)
        for (int64_t v = 0, step; v < m; v += step) {
            F sums[8];
            step = together(m - v);
            if (step == 8) multiply8_panel<8>(w, panel, x, v, sums);
            else if (step == 4) multiply8_panel<4>(w, panel, x, v, sums);
            else multiply8_panel<1>(w, panel, x, v, sums);
            for (int64_t k = 0; k < step; k++) keep(sums[k], panel, row0, count, y + (v + k) * y_pitch);
        }
}

}  // namespace ISA
