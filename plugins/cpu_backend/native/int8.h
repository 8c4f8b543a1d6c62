// Products with int8 activations: per 32 activations a scale, max|x| / 127, and codes rounded to nearest. A weight is code *
// scale + offset with an 8-bit code, so the sum of a group is an exact integer sum.
#pragma once
#include "encoders.h"
#include "gemv.h"

namespace ISA {

// Converted activations of several vectors. `scales` has `padded` numbers per vector, one per 32 columns; `sums` has twice as
// many, one per weight group with its own offset.
template <class Number> struct Prepared {
    Number* codes;
    float *scales, *sums;
    int64_t columns, padded;

    Prepared(const void* room, int64_t columns, int64_t m)
        : codes((Number*)room), columns(columns), padded((columns + 511) / 512 * 16) {
        scales = (float*)(codes + m * columns), sums = scales + m * padded;
    }
};
using Codes8 = Prepared<int8_t>;

// Batches of vectors: 8, then 4, then single ones.
static INLINE int64_t together(int64_t left) { return left >= 8 ? 8 : left >= 4 ? 4 : 1; }

// The same for panels.
#ifdef __aarch64__
constexpr int64_t ABREAST = 4;  // the sums of eight vectors would take all registers
#else
constexpr int64_t ABREAST = 8;
#endif
static INLINE int64_t abreast(int64_t left) { return together(left < ABREAST ? left : ABREAST); }

// Columns per sum: 16 (Q6_K), 32, or a group of several 32.
template <class Units> struct GroupSums {
    static INLINE void add(const Weights& w, float* sums, int64_t, int64_t u, float& scale, F low, F high) {
        if (Units::scales == Scales::EACH) sums[2 * u] = scale * sum(low), sums[2 * u + 1] = scale * sum(high);
        else sums[u / Units::group(w)] += scale * sum(low + high);
    }
};

// Mixed: the codes of a batch are interleaved by four columns.
template <class Units, bool Mixed = false, class Sums = GroupSums<Units>>
void quantize_all(const Weights& w, const float* x, void* room, int64_t m) {
    const Codes8 to(room, w.columns, m);
    constexpr bool shuffled = Units::units == 1 && Units::order(1) == 2;
    const int64_t units = w.columns / 32;
    for (int64_t v = 0, first = 0; v < m; v++) {
        const int64_t run = Mixed ? abreast(m - first) : 1;
        int8_t* out = to.codes + first * w.columns + 4 * (v - first);
        float *scales = to.scales + v * to.padded, *sums = to.sums + 2 * v * to.padded;
        memset(scales, 0, size_t(to.padded) * sizeof *scales);
        memset(sums, 0, size_t(to.padded) * 2 * sizeof *sums);
        for (int64_t u = 0; u < units; u++, x += 32) {
            const F a = load(x), b = load(x + 16);
            float scale = peak(most(absolute(a), absolute(b))) / 127.0f;
            const float inverse = scale < 0x1p-127f ? 0 : 1 / scale;  // of a smaller scale it is infinite
            const F low = nearest(a * splat(inverse)), high = nearest(b * splat(inverse));
            const B bytes[2] = {narrow(low), narrow(high)};
            int8_t codes[32];
            memcpy(codes, bytes, 32);
            if (shuffled) for (int i = 0; i < 32; i++) out[i / 4 * 4 * run + i % 4] = codes[Units::order(i)];
            else for (int i = 0; i < 32; i += 4) memcpy(out + i * run, codes + i, 4);
            out += 32 * run;
            Sums::add(w, sums, to.padded, u, scale, low, high);
            scales[u] = scale;
        }
        if (v + 1 == first + run) first = v + 1;
    }
}

// Products of one row with Count vectors.
template <class Units, int Count> struct RowSum8 {
    static constexpr int per = Units::scales == Scales::EACH ? 2 : 1;
    static constexpr bool eight = Units::bytes >= 32 * Units::units;  // codes of 8 bits
#ifdef __AVX512VNNI__
    static constexpr bool wide = Units::units == 8;
    using Sum = std::conditional_t<wide, F, Sum8>;
#else
    using Sum = Sum8;
#endif
    const Units codec;
    const uint8_t* at;
    const int8_t* x;
    int64_t columns;
    Sum even[Count] = {}, odd[Count] = {};

    INLINE B codes(int unit, B& high) {
        B low;
        codec.codes(at, unit, low, high);
        return low;
    }
    // `scale` is the product of weight and activation scales, PANEL * per for each vector.
    INLINE void add_block(const float* scale) {
        UNROLL for (int ahead = 0; ahead < Units::bytes; ahead += 64) prefetch(at + AHEAD + ahead);
#ifdef __AVX512VNNI__
        if constexpr (wide) {
            UNROLL for (int quarter = 0; quarter < 4; quarter++, x += 64, scale += 2 * per) {
                const Wide both = codec.wide(at, quarter);
                UNROLL for (int v = 0; v < Count; v++) {
                    const F next = add_products(both, x + v * columns, spread<32 / per>(scale + v * PANEL * per), even[v]);
                    even[v] = odd[v], odd[v] = next;
                }
            }
            at += Units::bytes;
            return;
        } else
#endif
        UNROLL for (int unit = 0; unit < Units::units; unit++, x += 32) {
            B high;
            const B low = codes(unit, high);
            UNROLL for (int v = 0; v < Count; v++) {
                const float* s = scale + v * PANEL * per + unit * per;
                const int8_t* with = x + v * columns;
                Sum next;
                if constexpr (per == 2) next = add_products<eight>(low, high, with, s[0], s[1], even[v]);
                else next = add_products<eight>(low, high, with, s[0], even[v]);
                even[v] = odd[v], odd[v] = next;
            }
        }
        at += Units::bytes;
    }
    // Several units with one scale; `scales` are activation scales, `padded` per vector.
    INLINE void add(float scale, const float* scales, int64_t padded, int64_t each) {
        Sum8 part[Count] = {};
        for (int64_t u = 0; u < each; u++, at += Units::bytes, x += 32) {
            prefetch(at + AHEAD);
            B high;
            const B low = codes(0, high);
            UNROLL for (int v = 0; v < Count; v++)
                part[v] = add_products<eight>(low, high, x + v * columns, scales[v * padded + u], part[v]);
        }
        UNROLL for (int v = 0; v < Count; v++) even[v] = fma(part[v], scale, even[v]);
    }
};

template <class Units, int Count>
void multiply8_row(const Weights& w, int64_t row, const Codes8& x, int64_t v0, float* y, int64_t y_pitch) {
    constexpr int per = RowSum8<Units, Count>::per;
    const float zero = Units::zero_code(w);
    const bool offsets = Units::offsets(w), lifted = offsets || zero != 0;
    const int64_t each = Units::group(w), groups = w.columns / 32 / each;
    const float *scales = x.scales + v0 * x.padded, *sums = x.sums + 2 * v0 * x.padded;
    alignas(64) float scale[per * PANEL], offset[per * PANEL], both[Count * per * PANEL];
    RowSum8<Units, Count> total = {Units(w), w.data + row * w.pitch, x.codes + v0 * w.columns, w.columns};
    F lift[Count];
    UNROLL for (int v = 0; v < Count; v++) lift[v] = splat(0);
    for (int64_t first = 0; first < groups; first += PANEL) {
        const int64_t count = groups - first < PANEL ? groups - first : PANEL;
        if constexpr (per == 2) Units::factors8(total.at, count, scale);
        else Units::factors(w, row, total.at, first, count, scale, offset);
        for (int64_t i = per * count; i % 16; i++) scale[i] = offset[i] = 0;
        for (int64_t i = 0; i < per * count; i += 16) {
            const F s = load(scale + i), fixed = s * splat(-zero), o = offsets ? load(offset + i) + fixed : fixed;
            UNROLL for (int v = 0; v < Count; v++) {
                if (lifted) lift[v] = fma(o, load(sums + 2 * v * x.padded + per * first + i), lift[v]);
                if (each > 1) continue;
                const float* with = scales + v * x.padded + first;
                float* to = both + v * per * PANEL + i;
                if constexpr (per == 1) store(to, s * load(with + i));
                else store(to, s * doubled(with + i / 2));
            }
        }
        if (each == 1) for (int64_t g = 0; g < count; g += Units::units) total.add_block(both + per * g);
        else if constexpr (Units::units == 1)
            for (int64_t g = 0; g < count; g++) total.add(scale[g], scales + (first + g) * each, x.padded, each);
    }
    UNROLL for (int v = 0; v < Count; v++) y[v * y_pitch] = sum(total.even[v], total.odd[v]) + sum(lift[v]);
}

template <class Units>
void multiply8_rows(const Weights& w, int64_t row0, int64_t count, const void* room, int64_t m, float* y, int64_t y_pitch) {
    const Codes8 x(room, w.columns, m);
    for (int64_t i = 0; i < count; i++)  // a row stays in the cache for all vectors
        for (int64_t v = 0; v < m;) {
            float* to = y + v * y_pitch + i;
            if (together(m - v) == 8) multiply8_row<Units, 8>(w, row0 + i, x, v, to, y_pitch), v += 8;
            else if (together(m - v) == 4) multiply8_row<Units, 4>(w, row0 + i, x, v, to, y_pitch), v += 4;
            else multiply8_row<Units, 1>(w, row0 + i, x, v, to, y_pitch), v += 1;
        }
}

// Converts activations once per call, and multiplies rows by them.
struct Vectors {
    void (*prepare)(const Weights& w, const float* x, void* room, int64_t m);
    void (*multiply)(const Weights& w, int64_t row, int64_t count, const void* room, int64_t m, float* y, int64_t y_pitch);
};
template <class Units> constexpr Vectors vectors8() { return {quantize_all<Units>, multiply8_rows<Units>}; }

// For kinds whose 32 weights have 8-bit codes and one or two scales; null for other kinds and for weights not in units.
static Vectors vectors8_of(const Weights& w) {
    if (!in_units(w)) return {};
    switch (w.kind) {
        case Q4_0: return vectors8<NibbleUnits<Q4_0>>();
        case Q4_1: return vectors8<NibbleUnits<Q4_1>>();
        case Q5_0: return vectors8<FiveUnits<Q5_0>>();
        case Q5_1: return vectors8<FiveUnits<Q5_1>>();
        case Q8_0: return vectors8<ByteUnits>();
        case Q4_K: return vectors8<SuperUnits<false>>();
        case Q5_K: return vectors8<SuperUnits<true>>();
        case Q6_K: return vectors8<SixUnits>();
        case AFFINE_2: return vectors8<AffineUnits<2>>();
        case AFFINE_3: return vectors8<AffineUnits<3>>();
        case AFFINE_4: return vectors8<AffineNibbles>();
        case AFFINE_5: return vectors8<AffineUnits<5>>();
        case AFFINE_6: return vectors8<AffineUnits<6>>();
        case AFFINE_8: return vectors8<AffineUnits<8>>();
        default: return {};
    }
}

}  // namespace ISA
