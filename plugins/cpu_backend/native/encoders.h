// Encoders of GGML blocks, bit-identical to ggml's reference (ggml_quantize_chunk).
#pragma once
#include "encode_float4.h"
#include "encode_iq4.h"
#include "encode_legacy.h"
#include "encode_q2_q3_k.h"

namespace ISA {

// Rounds half away from zero; exact, unlike adding 0.5.
static INLINE F rounded_away(F a) {
    const F part = whole(a), rest = a - part;
    return part + whole(rest + rest);
}

static void encode_q8_0(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 34) {
        const F a = load(x), b = load(x + 16);
        const float step = peak(most(absolute(a), absolute(b))) / 127.0f, inverse = step == 0 ? 0 : 1 / step;
        store_half(out, step);
        const B low = narrow(rounded_away(a * splat(inverse))), high = narrow(rounded_away(b * splat(inverse)));
        memcpy(out + 2, &low, 16), memcpy(out + 18, &high, 16);
    }
}

static INLINE void store_nibbles(uint8_t* at, F low, F high) {
    const B packed = narrow(least(low, splat(15))) | left<4>(narrow(least(high, splat(15))));
    memcpy(at, &packed, 16);
}

static void encode_q4_0(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 18) {
        const F a = load(x), b = load(x + 16), none = splat(0);
        const float above = peak(most(a, b)), below = peak(most(none - a, none - b));
        float value = above > below ? above : -below;  // the largest magnitude, the first on ties
        if (above == below && above == 0) value = 0;
        else if (above == below)
            for (int i = 31; i >= 0; i--) value = x[i] == above || -x[i] == above ? x[i] : value;
        const float step = value / -8.0f, inverse = step == 0 ? 0 : 1 / step;
        store_half(out, step);
        store_nibbles(out + 2, a * splat(inverse) + splat(8.5f), b * splat(inverse) + splat(8.5f));
    }
}

static void encode_q4_1(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += 20) {
        const F a = load(x), b = load(x + 16), none = splat(0);
        float low = -peak(none - least(a, b));
        if (low == 0)  // of signed zeros, the first
            for (int i = 31; i >= 0; i--) low = x[i] == 0 ? x[i] : low;
        const float high = peak(most(a, b));
        const float step = high > low ? (high - low) / 15.0f : 0, inverse = step == 0 ? 0 : 1 / step;
        store_half(out, step), store_half(out + 2, low);
        const F base = splat(low), by = splat(inverse), up = splat(0.5f);
        store_nibbles(out + 4, (a - base) * by + up, (b - base) * by + up);
    }
}

static INLINE bool finite(F a) { return all(absolute(a) < splat(__builtin_inff())); }
static INLINE bool finite(const float* x, int64_t count) {
    F rest = splat(0);  // x - x is 0, or NaN for non-finite values
    for (int64_t i = 0; i < count; i += 16) rest = rest + (load(x + i) - load(x + i));
    return finite(rest);
}

// The largest magnitude of each group of `size` values, a multiple of sixteen; false if a value is not finite.
static bool largest_of_groups(const float* x, int64_t groups, int64_t size, float* out) {
    for (int64_t group = 0; group < groups; group++) out[group] = peak(largest_magnitude(x + group * size, size));
    return finite(x, groups * size);
}

// Values and bytes of a block.
struct BlockSize { int64_t elements, bytes; };
static BlockSize block_size(int32_t kind) {
    switch (kind) {
        case Q4_0: return {32, 18};
        case Q4_1: return {32, 20};
        case Q5_0: return {32, 22};
        case Q5_1: return {32, 24};
        case Q8_0: return {32, 34};
        case IQ4_NL: return {32, 18};
        case IQ4_XS: return {256, 136};
        case MXFP4: return {32, 17};
        case NVFP4: return {64, 36};
        case Q2_K: return {256, 84};
        case Q3_K: return {256, 110};
        case Q4_K: return {256, 144};
        case Q5_K: return {256, 176};
        default: return {256, 210};
    }
}

// By number of the block type in weights.h; false if a value is not finite (its block is then invalid).
static bool encode(int32_t kind, const float* x, const float* importance, int64_t first, int64_t columns, uint8_t* out,
                   int64_t blocks) {
    const auto [elements, bytes] = block_size(kind);
    const int64_t panel = 4096 / elements;  // blocks that stay in the L1 cache between check and search
    for (int64_t at = 0; at < blocks; at += panel) {
        const int64_t count = blocks - at < panel ? blocks - at : panel;
        const float* from = x + at * elements;
        const Importance weights = {importance, columns, importance ? (first + at) * elements % columns : 0};
        uint8_t* to = out + at * bytes;
        if (!finite(from, count * elements)) return false;
        switch (kind) {
            case Q4_0: importance ? encode_weighted<15, false>(from, weights, to, count) : encode_q4_0(from, to, count); break;
            case Q4_1: importance ? encode_weighted<15, true>(from, weights, to, count) : encode_q4_1(from, to, count); break;
            case Q5_0: importance ? encode_weighted<31, false>(from, weights, to, count) : encode_five<false>(from, to, count); break;
            case Q5_1: importance ? encode_weighted<31, true>(from, weights, to, count) : encode_five<true>(from, to, count); break;
            case Q8_0: encode_q8_0(from, to, count); break;
            case IQ4_NL: encode_iq4_nl(from, weights, to, count); break;
            case IQ4_XS: encode_iq4_xs(from, weights, to, count); break;
            case MXFP4: encode_mxfp4(from, to, count); break;
            case NVFP4: encode_nvfp4(from, to, count); break;
            case Q2_K: encode_q2_k(from, weights, to, count); break;
            case Q3_K: encode_q3_k(from, weights, to, count); break;
            case Q4_K: encode_with_minima<15>(from, weights, to, count, {-1.0f, 0.1f, 21}); break;
            case Q5_K: encode_with_minima<31>(from, weights, to, count, {-0.5f, 0.1f, 16}); break;
            default: encode_q6_k(from, weights, to, count);
        }
    }
    return true;
}

}  // namespace ISA
