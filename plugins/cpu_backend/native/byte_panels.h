// Panels of sixteen rows, one per lane, with codes of 8 bits (BYTE_PANELS) or 6 (SIX_PANELS, of Q6_K). In order of columns:
// a register of bytes holds four columns of each row. Six bits are four registers of nibbles as in panels.h, then two of the
// upper bits of sixteen columns each, two bits per column.
#pragma once
#include "panel_products.h"

namespace ISA {

static INLINE int32_t whole_sum(F codes) {  // 0 of NaN
    const float total = sum(codes);
    return total == total ? int32_t(total) : 0;
}

// The codes of four columns, and their integer products: sums + codes . x - `centre` * (the sum of x).
struct EightBitPanels {
    static constexpr int32_t kind = BYTE_PANELS;
    static constexpr int bytes = 512, runs = 1;  // of 32 columns; runs with a scale of their own
#if defined(__AVX2__) && !defined(__AVX512VNNI__)
    static constexpr int32_t centre = 128;
    static INLINE Whole16 dot(Whole16 sums, Word16 codes, const int8_t* x) {  // two products of a byte do not fit in 16 bits
        const __m256i with = _mm256_set1_epi32(read<int32_t>(x)), ones = _mm256_set1_epi16(1);
        codes ^= 0x80808080;
        __m256i half[2];
        memcpy(half, &codes, sizeof half);
        for (__m256i& each : half)
            each = _mm256_madd_epi16(_mm256_maddubs_epi16(_mm256_abs_epi8(each), _mm256_sign_epi8(with, each)), ones);
        return sums + read<Whole16>(half);
    }
#elif defined(__aarch64__)
    static constexpr int32_t centre = 128;  // codes are signed bytes
    static INLINE Whole16 dot(Whole16 sums, Word16 codes, const int8_t* x) { return dot4(sums, codes ^ 0x80808080, x); }
#else
    static constexpr int32_t centre = 0;
    static INLINE Whole16 dot(Whole16 sums, Word16 codes, const int8_t* x) { return dot4(sums, codes, x); }
#endif
    static INLINE Word16 four(const uint8_t* at, int k) { return read<Word16>(at + 64 * k); }
    static INLINE F scale(const Weights& w, int64_t cell) { return cells_at(w.scale, w.scale_type, cell); }
};
struct SixBitPanels {
    static constexpr int32_t kind = SIX_PANELS, centre = 0;
    static constexpr int bytes = 384, runs = 2;
    static INLINE Whole16 dot(Whole16 sums, Word16 codes, const int8_t* x) { return dot4(sums, codes, x); }
    static INLINE Word16 four(const uint8_t* at, int k) {
        const Word16 low = read<Word16>(at + 64 * (k / 2)), above = read<Word16>(at + 256 + 64 * (k / 4));
        const Word16 upper = k % 4 == 0 ? above << 4 : k % 4 == 1 ? above << 2 : k % 4 == 2 ? above : above >> 2;
        return ((k % 2 ? low >> 4 : low) & 0x0f0f0f0f) | (upper & 0x30303030);
    }
    static INLINE F scale(const Weights& w, int64_t cell) { return load_half(w.rest + 2 * cell); }
};

// ---- repack

// Writes one row to its lane; scales and offsets are floats [panel][group][lane].
template <class Panels, class Units>
void repack_bytes(const Weights& w, int64_t row, uint8_t* codes, float* scale, float* offset) {
    const Units codec(w);
    const uint8_t* at = w.data + row * w.pitch;
    const int64_t groups = w.columns / 32 / Units::group(w) * Panels::runs, lane = row % PANEL_ROWS;
    const int64_t cell = row / PANEL_ROWS * groups * PANEL_ROWS + lane;
    alignas(64) float some[2 * PANEL], less[PANEL] = {};
    for (int64_t first = 0; first < groups; first += PANEL) {
        const int64_t count = groups - first < PANEL ? groups - first : PANEL;
        const uint8_t* from = at + first / Panels::runs * Units::group(w) / Units::units * Units::bytes;
        Units::factors(w, row, from, first, count, some, less);
        for (int64_t g = 0; g < count; g++) {
            scale[cell + (first + g) * PANEL_ROWS] = some[g];
            if (offset) offset[cell + (first + g) * PANEL_ROWS] = less[g];
        }
    }
    uint8_t* to = codes + row / PANEL_ROWS * (w.columns / 32) * Panels::bytes + 4 * lane;
    for (int64_t c = 0; c < w.columns; c += 32 * Units::units, at += Units::bytes)
        for (int unit = 0; unit < Units::units; unit++, to += Panels::bytes) {
            B both[2];
            uint8_t code[32];
            codec.codes(at, unit, both[0], both[1]);
            memcpy(code, both, 32);
            if (Panels::kind == BYTE_PANELS) {
                for (int i = 0; i < 32; i++) to[i / 4 * 64 + i % 4] = code[i];
                continue;
            }
            for (int i = 0; i < 16; i++) {
                const uint8_t* pair = code + i / 4 * 8 + i % 4;
                to[i / 4 * 64 + i % 4] = uint8_t((pair[0] & 15) | (pair[4] & 15) << 4);
            }
            for (int i = 0; i < 8; i++) {
                const uint8_t* each = code + i / 4 * 16 + i % 4;
                to[256 + i / 4 * 64 + i % 4] =
                    uint8_t(each[0] >> 4 | each[4] >> 4 << 2 | each[8] >> 4 << 4 | each[12] >> 4 << 6);
            }
        }
}

// The integer scales of Q6_K, for sixteen columns each; panels store their factor separately.
struct NestedSixBits : SixUnits {
    using SixUnits::SixUnits;
    static void factors(const Weights&, int64_t, const uint8_t* at, int64_t, int64_t count, float* scale, float*) {
        for (int64_t i = 0; i < count; i += 16, at += bytes) store(scale + i, widen_i8(load_bytes(at + 192)));
    }
};

static RepackRow repack_bytes_of(const Weights& w) {
    switch (w.kind) {
        case Q8_0: return repack_bytes<EightBitPanels, ByteUnits>;
        case Q6_K: return repack_bytes<SixBitPanels, NestedSixBits>;
        case AFFINE_8: return repack_bytes<EightBitPanels, AffineUnits<8>>;
        default: return nullptr;
    }
}
static bool repack(const Weights& w, int64_t row0, int64_t count, uint8_t* codes, float* scale, float* offset) {
    RepackRow row = in_units(w) ? repack_nibbles_of(w) : nullptr;
    if (!row && in_units(w)) row = repack_bytes_of(w);
    for (int64_t i = 0; row && i < count; i++) row(w, row0 + i, codes, scale, offset);
    return row;
}

// ---- products

// Adds to a unit's sums the part of their group, and stores what its integer sums start with: minus the zero point times the
// sum of the activations' codes.
template <class Panels> struct UnitSums {
    static INLINE void add(const Weights& w, float* sums, int64_t padded, int64_t u, float& scale, F low, F high) {
        const float total = sum(low + high);
        const int32_t zero = Panels::centre - w.zero, each[2] = {zero * whole_sum(low), zero * whole_sum(high)};
        const int32_t both = each[0] + each[1];
        if (Panels::runs == 2) memcpy(sums + 2 * u, each, sizeof each);
        else memcpy(sums + padded + u, &both, sizeof both), sums[u / (w.group_columns / 32)] += scale * total;
        if (total != total) scale = total;  // integers have no NaN
    }
};

template <class Panels> struct PanelBase {
    static constexpr int bytes = Panels::bytes;
    static constexpr float zero = 0;  // included in the values, or in what the sums start with
    template <int Count> static constexpr int ways = 1;
    const uint8_t* inner;
    PanelBase(const Weights& w, int64_t panel) : inner(w.scale + panel * w.columns) {}
    static INLINE F scale(const Weights& w, int64_t cell) { return Panels::scale(w, cell); }
    INLINE F run_scale(int64_t unit, int run) const { return widen_i8(load_bytes(inner + 32 * unit + 16 * run)); }
};

template <class Panels> struct BytesAsInt8 : PanelBase<Panels> {
    using Number = int8_t;
    static constexpr auto prepare = quantize_all<AffineUnits<8>, true, UnitSums<Panels>>;
    const float *scales, *starts;
    int64_t padded;
    INLINE BytesAsInt8(const Weights& w, int64_t panel, const Prepared<int8_t>& x, int64_t v0)
        : PanelBase<Panels>(w, panel), scales(x.scales + v0 * x.padded), starts(x.sums + 2 * v0 * x.padded), padded(x.padded) {
        if (Panels::runs == 1) starts += padded;
    }
    template <int Count> INLINE void add(const uint8_t* at, const int8_t* x, int64_t unit, F (&part)[Count][1]) const {
        constexpr int runs = Panels::runs;
        UNROLL for (int ahead = 0; ahead < Panels::bytes; ahead += 64) prefetch(at + FAR + ahead);
        UNROLL for (int run = 0; run < runs; run++) {
            Whole16 dots[Count];
            UNROLL for (int v = 0; v < Count; v++)
                dots[v] = whole16(read<int32_t>(starts + 2 * v * padded + runs * unit + run));
            UNROLL for (int k = 8 / runs * run; k < 8 / runs * (run + 1); k++) {
                const Word16 codes = Panels::four(at, k);
#ifdef __ARM_FEATURE_DOTPROD
                if constexpr (Count == 4) {
                    dot_four(dots, codes ^ (0x01010101u * uint32_t(Panels::centre)), x + 16 * k);
                    continue;
                }
#endif
                UNROLL for (int v = 0; v < Count; v++) dots[v] = Panels::dot(dots[v], codes, x + 4 * k * Count + 4 * v);
            }
            UNROLL for (int v = 0; v < Count; v++) {
                F sum = floats_of(dots[v]);
                if (runs == 2) sum = sum * this->run_scale(unit, run);  // exact: below 2^24
                part[v][0] = fma(sum, splat(scales[v * padded + unit]), part[v][0]);
            }
        }
    }
};

// Activations in float32, or rounded to bf16 and multiplied as float32.
template <class Panels, bool Rounded> struct BytesAsF32 : PanelBase<Panels> {
    using Number = float;
    static constexpr auto prepare = arrange_panels<BytesAsF32>;
    static constexpr int step = 1;
    static constexpr int order(int i) { return i; }
    static INLINE void put(F x, float* to) { Rounded ? store_rounded(x, to) : store(to, x); }
    F least;
    INLINE BytesAsF32(const Weights& w, int64_t panel, const Prepared<float>&, int64_t)
        : PanelBase<Panels>(w, panel), least(splat(float(w.zero))) {}
    template <int Count> INLINE void add(const uint8_t* at, const float* x, int64_t unit, F (&part)[Count][1]) const {
        constexpr int runs = Panels::runs;
        UNROLL for (int run = 0; run < runs; run++) {
            F total[Count];
            UNROLL for (int v = 0; v < Count; v++) total[v] = splat(0);
            UNROLL for (int k = 8 / runs * run; k < 8 / runs * (run + 1); k++) {
                const Word16 codes = Panels::four(at, k);
                UNROLL for (int i = 0; i < 4; i++) {
                    const F value = floats_of((Whole16)(codes >> 8 * i & 255)) - least;
                    UNROLL for (int v = 0; v < Count; v++) total[v] = fma(value, splat(x[(4 * k + i) * Count + v]), total[v]);
                }
            }
            UNROLL for (int v = 0; v < Count; v++)
                part[v][0] = runs == 2 ? fma(total[v], this->run_scale(unit, run), part[v][0]) : part[v][0] + total[v];
        }
    }
};

template <class Panels> static Vectors byte_panels(int32_t type) {
    return type == I8 ? vectors<BytesAsInt8<Panels>>()
           : type == BF16 ? vectors<BytesAsF32<Panels, true>>() : vectors<BytesAsF32<Panels, false>>();
}

// For activations of `type`; null if unsupported for `w`.
static Vectors vectors_of(const Weights& w, int32_t type) {
    if (w.kind == BYTE_PANELS) return byte_panels<EightBitPanels>(type);
    if (w.kind == SIX_PANELS) return byte_panels<SixBitPanels>(type);
    if (w.kind == PANELS) return type == I8 ? vectors<AsInt8>() : type == BF16 ? vectors<AsBf16>() : vectors<AsF32>();
    return type == I8 ? vectors8_of(w) : Vectors{};
}

}  // namespace ISA
