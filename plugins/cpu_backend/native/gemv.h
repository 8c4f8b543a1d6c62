// Matrix-vector products for the codecs of units.h.
#pragma once
#include "six_groups.h"

namespace ISA {

constexpr int64_t PANEL = 64;    // groups with precomputed scales
constexpr int64_t AHEAD = 2048;  // bytes; the hardware prefetcher stops at page boundaries

// Prepared x: values in the codec's order, then the sums of each group, zero-padded to sixteen.
template <class Units> void arrange(const Weights& w, const float* x, float* to) {
    constexpr int block = 32 * Units::units;
    for (int64_t c = 0; c < w.columns; c += block)
        for (int i = 0; i < block; i++) to[c + i] = x[c + Units::order(source(i))];
    float* sums = to + w.columns;
    const int64_t each = Units::group(w), groups = w.columns / 32 / each;
    for (int64_t g = 0; g < groups; g++) {
        F total = splat(0);
        for (int64_t u = 0; u < each; u++, x += 32) total = total + (load(x) + load(x + 16));
        sums[g] = sum(total);
    }
    for (int64_t g = groups; g % 16; g++) sums[g] = 0;
}

template <class Units> struct RowSum {
    const Units codec;
    const uint8_t* at;
    const float* x;
    F even = splat(0), odd = even, a = even, b = even;

    INLINE void next(int unit, F& v0, F& v1, F& x0, F& x1) {
        codec.values(at, unit, v0, v1);
        x0 = load(x), x1 = load(x + 16), x += 32;
    }
    // Units with one scale.
    INLINE void add(const float* scale, int64_t each) {
        F v0, v1, x0, x1, p = splat(0), q = p;
        for (int64_t u = 0; u < each; u++, at += Units::bytes) {
            prefetch(at + AHEAD);
            next(0, v0, v1, x0, x1);
            p = fma(v0, x0, p), q = fma(v1, x1, q);
        }
        even = fma(p, splat(*scale), even), odd = fma(q, splat(*scale), odd);
    }
    INLINE void add_block(const float* scale) {
        F v0, v1, x0, x1;
        UNROLL for (int ahead = 0; ahead < Units::bytes; ahead += 64) prefetch(at + AHEAD + ahead);
        UNROLL for (int unit = 0; unit < Units::units; unit++) {
            next(unit, v0, v1, x0, x1);
            if constexpr (Units::scales == Scales::SAME) {
                const F after = fma(fma(v1, x1, v0 * x0), splat(scale[unit]), even);
                even = odd, odd = after;
            } else if constexpr (Units::scales == Scales::INNER) {
                const F after = fma(fma(v1, x1, v0 * x0), Units::inner(scale, unit), even);
                even = odd, odd = after;
            } else if constexpr (Units::scales == Scales::EACH) {
                even = fma(v0 * x0, splat(scale[2 * unit]), even), odd = fma(v1 * x1, splat(scale[2 * unit + 1]), odd);
            } else if (unit % 2 == 0) {
                a = v0 * x0, b = v1 * x1;
            } else {
                even = fma(fma(v0, x0, a), splat(scale[unit - 1]), even);
                odd = fma(fma(v1, x1, b), splat(scale[unit]), odd);
            }
        }
        at += Units::bytes;
    }
};

template <class Units> float dot_row(const Weights& w, int64_t row, const float* x) {
    constexpr int per = Units::scales == Scales::EACH || Units::scales == Scales::INNER ? 2 : 1;
    const bool lifted = Units::offsets(w);
    const int64_t each = Units::group(w), groups = w.columns / 32 / each;
    const float* sums = x + w.columns;
    alignas(64) float scale[per * PANEL], offset[PANEL];
    RowSum<Units> total = {Units(w), w.data + row * w.pitch, x};
    F lift = splat(0);
    for (int64_t first = 0; first < groups; first += PANEL) {
        const int64_t count = groups - first < PANEL ? groups - first : PANEL;
        Units::factors(w, row, total.at, first, count, scale, offset);
        if (lifted) {
            for (int64_t i = count; i % 16; i++) offset[i] = 0;
            for (int64_t i = 0; i < count; i += 16) lift = fma(load(offset + i), load(sums + first + i), lift);
        }
        if (each == 1) for (int64_t g = 0; g < count; g += Units::units) total.add_block(scale + per * g);
        else for (int64_t g = 0; g < count; g++) total.add(scale + g, each);
    }
    return sum(total.even + total.odd + lift);
}

struct Product {
    void (*arrange)(const Weights& w, const float* x, float* to);
    float (*dot)(const Weights& w, int64_t row, const float* x);
};
template <class Units> constexpr Product product() { return {arrange<Units>, dot_row<Units>}; }

// Null for unsupported codecs and for weights not in units.
static Product product_of(const Weights& w) {
    if (!in_units(w)) return {};
    if (w.zero > 1 << 16 || w.zero < -(1 << 16)) return {};
    switch (w.kind) {
        case Q4_0: return product<NibbleUnits<Q4_0>>();
        case Q4_1: return product<NibbleUnits<Q4_1>>();
        case Q5_0: return product<FiveUnits<Q5_0>>();
        case Q5_1: return product<FiveUnits<Q5_1>>();
        case Q8_0: return product<ByteUnits>();
        case Q4_K: return product<SuperUnits<false>>();
        case Q5_K: return product<SuperUnits<true>>();
        case Q6_K: return product<SixProducts>();
        case IQ4_NL: return product<NamedUnits<IQ4_NL>>();
        case MXFP4: return product<NamedUnits<MXFP4>>();
        case AFFINE_2: return product<AffineUnits<2>>();
        case AFFINE_3: return product<AffineUnits<3>>();
        case AFFINE_4: return product<AffineNibbles>();
        case AFFINE_5: return product<AffineUnits<5>>();
        case AFFINE_6: return product<AffineUnits<6>>();
        case AFFINE_8: return product<AffineUnits<8>>();
        case TABLE_4: return product<NamedNibbles>();
        default: return {};
    }
}

}  // namespace ISA
