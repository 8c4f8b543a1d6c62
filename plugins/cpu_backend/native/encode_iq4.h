// Encoders of IQ4_NL and IQ4_XS: 4-bit indices of sixteen non-uniform levels. Bit-identical to ggml_quantize_chunk, with or without
// importance weights. Thirty-two groups of 32 values are searched at a time, one per lane.
#pragma once
#include "encode_k.h"
#include "levels.h"

namespace ISA {

constexpr float IQ4_CODES[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

// The nearest level of `table` for each value, the higher one on ties. Midpoints are exact in float32, so comparing with them
// gives the code of the reference, which compares distances.
template <class Lanes> static INLINE Lanes at_nearest_level(Lanes value, const float table[16]) {
    Lanes entry = splat(table[15]);
    UNROLL for (int i = 14; i >= 0; i--) {
        const Lanes middle = splat((IQ4_LEVELS[i] + IQ4_LEVELS[i + 1]) / 2), lower = splat(table[i]);
        entry = choose(value < middle, lower, entry);
    }
    return entry;
}

struct LevelSums {  // weighted sums over a group: of levels times values, and of squared levels
    W products = splat(0), squares = splat(0);
};

static INLINE LevelSums level_sums(const W value[32], const W weight[32], W inverse) {
    LevelSums sums;
    for (int i = 0; i < 32; i++) {
        const W level = at_nearest_level(inverse * value[i], IQ4_LEVELS), weighted = weight[i] * level;
        sums.products = sums.products + weighted * value[i], sums.squares = sums.squares + weighted * level;
    }
    return sums;
}

// The scale of each lane's group with the least weighted squared error among sixteen guesses.
static INLINE W fit_levels(const W value[32], const W weight[32]) {
    W peak = splat(0), largest = splat(0);
    for (int i = 0; i < 32; i++) {
        const WM larger = peak < absolute(value[i]);
        peak = choose(larger, absolute(value[i]), peak), largest = choose(larger, value[i], largest);
    }
    LevelSums sums = level_sums(value, weight, splat(1) / ((splat(0) - largest) / splat(IQ4_LEVELS[0])));
    W scale = choose(splat(0) < sums.squares, sums.products / sums.squares, splat(0)), best = scale * sums.products;
    for (int guess = -7; guess <= 7; guess++) {
        sums = level_sums(value, weight, splat(float(guess) + IQ4_LEVELS[0]) / largest);
        const WM better = (splat(0) < sums.squares) & (best * sums.squares < sums.products * sums.products);
        scale = choose(better, sums.products / sums.squares, scale), best = choose(better, scale * sums.products, best);
    }
    return choose(peak < splat(nothing), splat(0), scale);
}

// Groups, weights and scales of a panel with blocks of `Block` values.
template <int Block> static INLINE void group_scales(const float* x, const float* columns, bool weighted, float scales[32]) {
    W value[32], weight[32];
    across<32>(x, value);
    if (weighted) weights_of<32, Block>(x, columns, weight);
    else
        for (int i = 0; i < 32; i++) weight[i] = value[i] * value[i];
    store(scales, fit_levels(value, weight));
}

static INLINE void pack_levels(const float* x, float inverse, uint8_t* out) {
    const F by = splat(inverse);
    const B low = narrow(at_nearest_level(by * load(x), IQ4_CODES)), high = narrow(at_nearest_level(by * load(x + 16), IQ4_CODES));
    const B packed = low | left<4>(high);
    memcpy(out, &packed, 16);
}

static void encode_iq4_nl(const float* x, const Importance& importance, uint8_t* out, int64_t blocks) {
    panels<32, 32>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        float scales[32];
        group_scales<32>(x, columns, importance.weights, scales);
        for (int k = 0; k < count; k++, out += 18) {
            store_half(out, scales[k]);
            pack_levels(x + 32 * k, scales[k] != 0 ? 1 / scales[k] : 0, out + 2);
        }
    });
}

// A block: a float16 step, the high two bits of eight scales, their low nibbles, and the codes.
static void encode_iq4_xs(const float* x, const Importance& importance, uint8_t* out, int64_t blocks) {
    panels<4>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        float all_scales[32];
        group_scales<256>(x, columns, importance.weights, all_scales);
        for (int k = 0; k < count; k++, out += 136) {
            const float* scales = all_scales + 8 * k;
            float widest = 0;
            for (int j = 0; j < 8; j++) widest = __builtin_fabsf(scales[j]) > __builtin_fabsf(widest) ? scales[j] : widest;
            const float step = -widest / 32, inverse = step != 0 ? 1 / step : 0;
            uint16_t high = 0;
            memset(out + 4, 0, 4);
            for (int j = 0; j < 8; j++) {
                const int nearest_code = int(nearest(inverse * scales[j]));
                const int code = nearest_code < -32 ? -32 : nearest_code > 31 ? 31 : nearest_code;
                const float scale = step * float(code);
                high = uint16_t(high | (code + 32) >> 4 << 2 * j);
                out[4 + j / 2] = uint8_t(out[4 + j / 2] | ((code + 32) & 15) << 4 * (j % 2));
                pack_levels(x + 256 * k + 32 * j, scale != 0 ? 1 / scale : 0, out + 8 + 16 * j);
            }
            store_half(out, step);
            memcpy(out + 2, &high, 2);
        }
    });
}

}  // namespace ISA
