// The search of squish_codecs.affine for narrower ranges (`search=mse`), bit-identical: sixteen groups at a time, one per lane,
// with errors summed in NumPy's order.
#pragma once
#include "encode_affine.h"

namespace ISA {

// Interleaved groups: [i] holds value i of each; missing groups repeat the first.
static INLINE void across(const float* x, int64_t size, int64_t count, F* values) {
    for (int64_t i = 0; i < size; i += 16) {
        for (int64_t k = 0; k < 16; k++) values[i + k] = load(x + (k < count ? k : 0) * size + i);
        transpose(values + i);
    }
}

// Sums `count` numbers like numpy.add.reduce: eight at a time, pairwise from 128 on.
static F added(const F* x, int64_t count) {
    if (count > 128) {
        const int64_t half = count / 16 * 8;
        return added(x, half) + added(x + half, count - half);
    }
    F sums[8];
    UNROLL for (int k = 0; k < 8; k++) sums[k] = x[k];
    int64_t i = 8;
    for (; i + 8 <= count; i += 8)
        UNROLL for (int k = 0; k < 8; k++) sums[k] = sums[k] + x[i + k];
    F sum = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
    for (; i < count; i++) sum = sum + x[i];
    return sum;
}

// Quantization: steps from the zero point or bias, clamped to the range of codes.
template <int Offset> struct Steps {
    F scale, bias, zero, low, high;
    INLINE Steps(const Affine& a, F scale, F offset) : scale(scale), bias(offset) {
        const int reach = reach_of(a);
        zero = Offset == NO_OFFSET ? splat(float(a.zero)) : Offset == ZERO_POINT ? offset : splat(0);
        low = Offset == NO_OFFSET ? splat(float(-reach)) : splat(float(a.low)) - zero;
        high = Offset == NO_OFFSET ? splat(float(reach)) : splat(float(a.high)) - zero;
    }
    INLINE F of(F value) const { return nearest(least(most((Offset == BIAS ? value - bias : value) / scale, low), high)); }
    INLINE F code(F value) const { return of(value) + zero; }
    // The squared error of a value decoded with the stored scale and offset.
    INLINE F error(F value, F stored_scale, F stored_bias) const {
        const F found = of(value) * stored_scale, gap = (Offset == BIAS ? found + stored_bias : found) - value;
        return gap * gap;
    }
};

// `part` / 20 of each range, around its center.
static INLINE Range narrowed(const Range& whole, int part) {
    Range ends;
    eights(whole, [&](D8 low, D8 high, int k) {
        const D8 middle = (low + high) / 2.0, half = part / 20.0 * ((high - low) / 2.0);
        low = middle - half, high = middle + half;
        memcpy(ends.low + k, &low, 64), memcpy(ends.high + k, &high, 64);
    });
    return ends;
}

constexpr int64_t SEARCHED = 256;  // largest group size; also defined in Python

// The best grid of sixteen groups, its scales and offsets as they are stored; false if one is not finite.
template <int Offset> static bool search(const Affine& a, const F* values, Grid& best) {
    F squares[SEARCHED], low = values[0], high = values[0], rest = splat(0);
    for (int64_t i = 0; i < a.size; i++) {
        rest = rest + (values[i] - values[i]);
        low = least(low, values[i]), high = most(high, values[i]);
    }
    if (!finite(rest)) return false;
    Grid grid = {};
    store(grid.low, low), store(grid.high, high);
    Range whole;
    for (int k = 0; k < 16; k++) whole.low[k] = grid.low[k] + 0.0, whole.high[k] = grid.high[k] + 0.0;  // turns -0 into 0
    F smallest = splat(0);
    for (int part = 20; part >= 9; part--) {
        uint8_t scales[64], offsets[64];
        const Range ends = part == 20 ? whole : narrowed(whole, part);
        for (int k = 0; k < 16; k++) grid.low[k] = float(ends.low[k]), grid.high[k] = float(ends.high[k]);
        if (!fit<Offset>(a, ends, 16, grid, scales, offsets)) return false;
        const Steps<Offset> steps(a, load(grid.scale), load(grid.offset));
        const F scale = load(grid.stored_scale), offset = load(grid.stored_offset);
        for (int64_t i = 0; i < a.size; i++) squares[i] = steps.error(values[i], scale, offset);
        const F error = squares[0] + added(squares + 1, a.size - 1);
        const M better = error < smallest;
        const auto take = [&](float* to, const float* from) { store(to, choose(better, load(from), load(to))); };
        if (part == 20) {
            best = grid, smallest = error;
            continue;
        }
        smallest = choose(better, error, smallest);
        take(best.scale, grid.scale), take(best.stored_scale, grid.stored_scale);
        take(best.offset, grid.offset), take(best.stored_offset, grid.stored_offset);
    }
    return true;
}

template <int Offset> static bool search_groups(const Affine& a, const float* x, int64_t groups, uint8_t* data, uint8_t* scale,
                                                uint8_t* offset) {
    F values[SEARCHED];
    uint8_t codes[16 * SEARCHED];
    float same[16];
    Grid best;
    for (int64_t g = 0; g < groups; g += 16) {
        const int64_t count = groups - g < 16 ? groups - g : 16;
        across(x, a.size, count, values);
        if (!search<Offset>(a, values, best)) return false;
        for (int64_t k = 0; k < count; k++) {
            const Steps<Offset> steps(a, splat(best.scale[k]), splat(best.offset[k]));
            for (int64_t i = 0; i < a.size; i += 16) {
                const B bytes = narrow(steps.code(load(x + k * a.size + i)));
                memcpy(codes + k * a.size + i, &bytes, 16);
            }
        }
        pack_codes(a.bits, codes, count * a.size, data);
        store_as(a.scale_type, NEAREST, best.stored_scale, same, scale + g * size_of(a.scale_type), count);
        if (Offset == BIAS) store_as(a.offset_type, NEAREST, best.stored_offset, same, offset + g * size_of(a.offset_type), count);
        for (int64_t k = 0; Offset == ZERO_POINT && k < count; k++) offset[g + k] = uint8_t(int(best.offset[k]));
        x += count * a.size, data += count * a.size / 8 * a.bits;
    }
    return true;
}

// False if a value, scale or bias is not finite.
static bool encode_affine(const Affine& a, const float* x, int64_t groups, uint8_t* data, uint8_t* scale, uint8_t* offset) {
    const auto encode = [&](auto plain, auto searched) { return (a.search ? searched : plain)(a, x, groups, data, scale, offset); };
    if (a.offset == NO_OFFSET) return encode(encode_groups<NO_OFFSET>, search_groups<NO_OFFSET>);
    if (a.offset == ZERO_POINT) return encode(encode_groups<ZERO_POINT>, search_groups<ZERO_POINT>);
    return encode(encode_groups<BIAS>, search_groups<BIAS>);
}

}  // namespace ISA
