// Products with panels. The activations of a batch are adjacent, for consecutive broadcasts.
#pragma once
#include "columns.h"
#include "int8.h"
#include "panels.h"

namespace ISA {

// Unrolls steps over columns. NEON lacks the registers for what GCC would then load ahead.
#ifdef __aarch64__
#define STEPS _Pragma("GCC unroll 1")
#else
#define STEPS UNROLL
#endif
constexpr int64_t FAR = 8192;  // bytes: sixteen rows side by side are read faster than one

#ifndef __aarch64__
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
#endif

// Activations converted for X, and the sums of each group if weights have offsets.
template <class X> void arrange_panels(const Weights& w, const float* x, void* room, int64_t m) {
    const Prepared<typename X::Number> to(room, w.columns, m);
    for (int64_t v = 0, first = 0; v < m; v++) {
        const int64_t run = abreast(m - first);
        typename X::Number* out = to.codes + first * w.columns + X::step * (v - first);
        float* sums = to.sums + 2 * v * to.padded;
        memset(sums, 0, size_t(to.padded) * sizeof *sums);
        for (int64_t c = 0; c < w.columns; c += 16, out += 16 * run) {
            alignas(64) typename X::Number some[16];
            const F values = load(x + v * w.columns + c);
            X::put(values, some);
            sums[c / w.group_columns] += sum(values);
            for (int i = 0; i < 16; i++) out[i / X::step * X::step * run + i % X::step] = some[i / 8 * 8 + X::order(i % 8)];
        }
        if (v + 1 == first + run) first = v + 1;
    }
}

static INLINE F cells_at(const uint8_t* grid, int32_t type, int64_t first) {
    if (type == U8) return widen_u8(load_bytes(grid + first));
    if (type == F16) return load_half(grid + 2 * first);
    return type == BF16 ? load_bf16(grid + 2 * first) : load(grid + 4 * first);
}

struct NibblePanels {
    static constexpr int bytes = 256;  // of 32 columns
    static INLINE F scale(const Weights& w, int64_t cell) {
        const F scale = cells_at(w.scale, w.scale_type, cell);
        return w.rest ? scale * load_half(w.rest + cell / 128 * 64) : scale;
    }
};

// The activation type, and the accumulation of 32 columns of sixteen rows in `part`: `step` activations are adjacent per vector.
struct AsInt8 : NibblePanels {
    using Number = int8_t;
    static constexpr auto prepare = quantize_all<AffineUnits<8>, true>;
    template <int Count> static constexpr int ways = 1;
    float zero;
    const float* scales;
    int64_t padded;
    INLINE AsInt8(const Weights& w, int64_t, const Prepared<int8_t>& x, int64_t v0)
        : zero(float(w.zero)), scales(x.scales + v0 * x.padded), padded(x.padded) {}
    template <int Count>
    INLINE void add(const uint8_t* at, const int8_t* x, int64_t unit, F (&part)[Count][ways<Count>]) const {
        Whole16 dots[Count];
        UNROLL for (int v = 0; v < Count; v++) dots[v] = whole16(0);
        STEPS for (int k = 0; k < 4; k++) {
            prefetch(at + FAR + 64 * k);
            const Word16 both = read<Word16>(at + 64 * k), low = both & 0x0f0f0f0f, high = both >> 4 & 0x0f0f0f0f;
#ifdef __ARM_FEATURE_DOTPROD
            if constexpr (Count == 4) {
                dot_four(dots, low, x + 32 * k), dot_four(dots, high, x + 32 * k + 16);
                continue;
            }
#endif
            UNROLL for (int v = 0; v < Count; v++) {
                const int8_t* with = x + 8 * k * Count + 4 * v;
                dots[v] = dot4(dot4(dots[v], low, with), high, with + 4 * Count);
            }
        }
        UNROLL for (int v = 0; v < Count; v++) {
            part[v][0] = fma(floats_of(dots[v]), splat(scales[v * padded + unit]), part[v][0]);
        }
    }
};

// The values of the codes in the low four bits of each lane.
struct Values {
#ifdef __AVX512F__
    F table;
    INLINE explicit Values(float zero) : table(widen_u8(counting()) - splat(zero)) {}
    INLINE F operator()(Word16 codes) const { return {_mm512_permutexvar_ps((__m512i)codes, table.v)}; }
#else
    F zero;
    INLINE explicit Values(float zero) : zero(splat(zero)) {}
    INLINE F operator()(Word16 codes) const {
        return floats_of((Whole16)(codes & 15)) - zero;
    }
#endif
};

struct AsF32 : NibblePanels {
    using Number = float;
    static constexpr auto prepare = arrange_panels<AsF32>;
    static constexpr int step = 1;
    // Independent accumulators hide latency; those of four vectors take half of the registers of NEON.
#ifdef __aarch64__
    template <int Count> static constexpr int ways = Count == 1 ? 2 : 1;
#else
    template <int Count> static constexpr int ways = Count == 1 ? 4 : Count == 4 ? 2 : 1;
#endif
    static constexpr float zero = 0;  // included in the values
    static constexpr int order(int i) { return i % 2 * 4 + i / 2; }
    static INLINE void put(F x, float* to) { store(to, x); }
    Values values;
    template <class Prepared> INLINE AsF32(const Weights& w, int64_t, const Prepared&, int64_t) : values(float(w.zero)) {}
    template <int Count>
    INLINE void add(const uint8_t* at, const float* x, int64_t, F (&part)[Count][ways<Count>]) const {
        STEPS for (int k = 0; k < 4; k++) {
            prefetch(at + FAR + 64 * k);
            const Word16 codes = read<Word16>(at + 64 * k);
            UNROLL for (int i = 0; i < 8; i++, x += Count) {
                const F value = values(codes >> 4 * i);
                UNROLL for (int v = 0; v < Count; v++) part[v][i % ways<Count>] = fma(value, splat(x[v]), part[v][i % ways<Count>]);
            }
        }
    }
};

static INLINE void store_rounded(F x, float* to) {  // bf16 as floats
    uint16_t some[16];
    store(some, to_bf16(x));
    store(to, load_bf16(some));
}

#ifdef __AVX512BF16__
struct AsBf16 : NibblePanels {  // bf16, two at a time; codes less `zero` are exact in it, and products in float
    using Number = uint16_t;
    static constexpr auto prepare = arrange_panels<AsBf16>;
    static constexpr int step = 2;
    template <int Count> static constexpr int ways = AsF32::ways<Count>;
    static constexpr float zero = 0;
    static constexpr int order(int i) { return i / 2 % 2 * 4 + i / 4 + i % 2 * 2; }
    static INLINE void put(F x, uint16_t* to) { store(to, to_bf16(x)); }
    __m512i table;  // for both halves of a lane: an index has five bits, the fifth of another code
    INLINE AsBf16(const Weights& w, int64_t, const Prepared<uint16_t>&, int64_t) {
        const __m256i values = to_bf16(widen_u8(counting()) - splat(float(w.zero))).v;
        table = _mm512_inserti64x4(_mm512_castsi256_si512(values), values, 1);
    }
    template <int Count>
    INLINE void add(const uint8_t* at, const uint16_t* x, int64_t, F (&part)[Count][ways<Count>]) const {
        UNROLL for (int k = 0; k < 4; k++) {
            prefetch(at + FAR + 64 * k);
            const __m512i codes = _mm512_loadu_si512(at + 64 * k);
            UNROLL for (int i = 0; i < 4; i++, x += 2 * Count) {
                const __m512bh two = (__m512bh)_mm512_permutexvar_epi16(_mm512_srli_epi16(codes, 4 * i), table);
                UNROLL for (int v = 0; v < Count; v++) {
                    const __m512bh with = (__m512bh)_mm512_set1_epi32(read<int32_t>(x + 2 * v));
                    part[v][i % ways<Count>].v = _mm512_dpbf16_ps(part[v][i % ways<Count>].v, two, with);
                }
            }
        }
    }
};
#else
struct AsBf16 : AsF32 {
    using AsF32::AsF32;
    static constexpr auto prepare = arrange_panels<AsBf16>;
    static INLINE void put(F x, float* to) { store_rounded(x, to); }
};
#endif

// Sixteen rows by Count vectors: y[v] has one lane per row.
template <class X, int Count>
void multiply_panel(const Weights& w, int64_t panel, const Prepared<typename X::Number>& x, int64_t v0, F* y) {
    const X with(w, panel, x, v0);
    const int64_t each = w.group_columns / 32, groups = w.columns / w.group_columns;
    const uint8_t* at = w.data + panel * (w.columns / 32) * X::bytes;
    const typename X::Number* codes = x.codes + v0 * w.columns;
    const float* sums = x.sums + 2 * v0 * x.padded;
    F total[Count];
    UNROLL for (int v = 0; v < Count; v++) total[v] = splat(0);
    for (int64_t g = 0, unit = 0; g < groups; g++) {
        constexpr int ways = X::template ways<Count>;
        F part[Count][ways];
        UNROLL for (int v = 0; v < Count; v++) {
            UNROLL for (int k = 0; k < ways; k++) part[v][k] = splat(0);
            if (with.zero != 0) part[v][0] = splat(-with.zero * sums[2 * v * x.padded + g]);
        }
        for (const int64_t next = unit + each; unit < next; unit++, at += X::bytes, codes += 32 * Count)
            with.template add<Count>(at, codes, unit, part);
        const int64_t cell = (panel * groups + g) * PANEL_ROWS;
        const F scale = X::scale(w, cell);
        UNROLL for (int v = 0; v < Count; v++) {
            for (int k = 1; k < ways; k++) part[v][0] = part[v][0] + part[v][k];
            total[v] = fma(part[v][0], scale, total[v]);
        }
        if (!w.offset) continue;
        F offset = cells_at(w.offset, w.offset_type, cell);
        if (w.rest) offset = offset * load_half(w.rest + cell / 128 * 64 + 32);
        UNROLL for (int v = 0; v < Count; v++) total[v] = fma(offset, splat(sums[2 * v * x.padded + g]), total[v]);
    }
    UNROLL for (int v = 0; v < Count; v++) y[v] = total[v];
}

// The lanes of a panel in the requested rows.
static void keep(F sums, int64_t panel, int64_t row0, int64_t count, float* y) {
    float lanes[PANEL_ROWS];
    store(lanes, sums);
    for (int64_t i = 0; i < PANEL_ROWS; i++) {
        const int64_t row = panel * PANEL_ROWS + i - row0;
        if (row >= 0 && row < count) y[row] = lanes[i];
    }
}

template <class X>
void multiply_panels(const Weights& w, int64_t row0, int64_t count, const void* room, int64_t m, float* y, int64_t y_pitch) {
    const Prepared<typename X::Number> x(room, w.columns, m);
    for (int64_t panel = row0 / PANEL_ROWS; panel * PANEL_ROWS < row0 + count; panel++)
        for (int64_t v = 0, step; v < m; v += step) {
            F sums[8];
            step = abreast(m - v);
            if constexpr (ABREAST == 8)
                if (step == 8) multiply_panel<X, 8>(w, panel, x, v, sums);
            if (step == 4) multiply_panel<X, 4>(w, panel, x, v, sums);
            if (step == 1) multiply_panel<X, 1>(w, panel, x, v, sums);
            for (int64_t k = 0; k < step; k++) keep(sums[k], panel, row0, count, y + (v + k) * y_pitch);
        }
}

template <class X> constexpr Vectors vectors() { return {X::prepare, multiply_panels<X>}; }

}  // namespace ISA
