// Encoders of Q2_K and Q3_K, bit-identical to ggml_quantize_chunk, with or without importance weights. A block has sixteen groups
// of 16 values; the groups of two blocks are searched at a time, one per lane.
#pragma once
#include "encode_k.h"

namespace ISA {

// Packs 256 2-bit codes: a byte holds four codes, 32 apart.
static INLINE void pack_pairs(const uint8_t* codes, uint8_t* out) {
    for (int half = 0; half < 2; half++, codes += 128, out += 32)
        for (int i = 0; i < 32; i++)
            out[i] = uint8_t((codes[i] & 3) | (codes[i + 32] & 3) << 2 | (codes[i + 64] & 3) << 4 | (codes[i + 96] & 3) << 6);
}

// Codes of 16 values with the stored scale and minimum.
static INLINE void codes_under(const float* x, float step, float lift, int low, int high, uint8_t* codes) {
    const B bytes = narrow(within(nearest((load(x) + splat(lift)) / splat(step)), float(low), float(high)) - splat(float(low)));
    memcpy(codes, &bytes, 16);
}

// Codes 0..15 of sixteen scales or minima, and the step between them.
static INLINE float four_bit_codes(const float* values, const float*, uint8_t codes[16]) {
    float largest = 0;
    for (int j = 0; j < 16; j++) largest = values[j] > largest ? values[j] : largest;
    const float inverse = largest > 0 ? 15.0f / largest : 0;
    for (int j = 0; j < 16; j++) codes[j] = uint8_t(int(nearest(inverse * values[j])));
    return largest / 15.0f;
}

// A block: scale and minimum codes in nibbles, the value codes, and two float16 steps.
static void encode_q2_k(const float* x, const Importance& importance, uint8_t* out, int64_t blocks) {
    const auto four_bits = importance.weights ? scale_codes_weighted<16, 15> : four_bit_codes;
    panels<2>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        W group[16], weight[16];
        Fit fit;
        across<16>(x, group);
        if (importance.weights) {
            weights_of<16>(x, columns, weight, 1);
            fit_with_minimum<3, 16>(group, weight, {-0.9f, 0.05f, 37}, fit);
        } else {
            for (int i = 0; i < 16; i++) weight[i] = absolute(group[i]);
            fit_with_minimum<3, 16, true>(group, weight, {-0.5f, 0.1f, 16}, fit);
        }
        float scale[32], minimum[32], worth[32];
        store(scale, fit.scale), store(minimum, splat(0) - fit.low), store(worth, fit.weights);
        uint8_t codes[512];
        searched_codes<3, 16>(group, fit, codes);
        for (int k = 0; k < count; k++, out += 84) {
            uint8_t scales[16], minima[16];
            store_half(out + 80, four_bits(scale + 16 * k, worth + 16 * k, scales));
            store_half(out + 82, four_bits(minimum + 16 * k, worth + 16 * k, minima));
            const float d = half_to_float(read<uint16_t>(out + 80)), dmin = half_to_float(read<uint16_t>(out + 82));
            for (int j = 0; j < 16; j++) {
                out[j] = uint8_t(scales[j] | minima[j] << 4);
                const float step = d * float(out[j] & 15);
                if (step == 0) continue;  // keep the codes of the search
                codes_under(x + 256 * k + 16 * j, step, dmin * float(out[j] >> 4), 0, 3, codes + 256 * k + 16 * j);
            }
            pack_pairs(codes + 256 * k, out + 16);
        }
    });
}

// Scales for codes -4..3 without importance: the direct guess, then single-code moves while they help. A lane without
// moves does not change in later rounds.
static INLINE W fit_by_moves(const W value[16], W codes[16]) {
    W peak = splat(0), largest = splat(0), weight[16], weighted[16], sum_lx = splat(0), sum_l2 = splat(0);
    for (int i = 0; i < 16; i++) {
        const WM larger = peak < absolute(value[i]);
        peak = choose(larger, absolute(value[i]), peak), largest = choose(larger, value[i], largest);
    }
    const W inverse = splat(-4) / largest;
    for (int i = 0; i < 16; i++) {
        codes[i] = within(nearest(inverse * value[i]), -4, 3);
        weight[i] = value[i] * value[i], weighted[i] = weight[i] * value[i];
        sum_lx = sum_lx + weighted[i] * codes[i], sum_l2 = sum_l2 + weight[i] * codes[i] * codes[i];
    }
    for (int round = 0; round < 5; round++)
        for (int i = 0; i < 16; i++) {
            W lx = sum_lx - weighted[i] * codes[i], l2 = sum_l2 - weight[i] * codes[i] * codes[i];
            const W code = within(nearest(value[i] * l2 / lx), -4, 3);
            const WM moves = (splat(0) < lx) & (splat(0) < absolute(code - codes[i]));
            lx = lx + weighted[i] * code, l2 = l2 + weight[i] * code * code;
            const WM better = moves & (splat(0) < l2) & (sum_lx * sum_lx * l2 < lx * lx * sum_l2);
            codes[i] = choose(better, code, codes[i]), sum_lx = choose(better, lx, sum_lx), sum_l2 = choose(better, l2, sum_l2);
        }
    const WM empty = peak < splat(nothing);
    for (int i = 0; i < 16; i++) codes[i] = choose(empty, splat(0), codes[i] + splat(4));
    return choose(empty, splat(0), choose(splat(0) < sum_l2, sum_lx / sum_l2, splat(0)));
}

// The same with importance: the best of nineteen guesses. `worth` is the sum of the weights of each group.
static INLINE W fit_by_guesses(const float* x, const float* columns, W codes[16], W& worth) {
    Around<> v;
    FitAround fit;
    across<16>(x, v.value), weights_of<16>(x, columns, v.weight), worth = v.weight[0];
    for (int i = 1; i < 16; i++) worth = worth + v.weight[i];
    fit_around_zero<4>(v, true, fit);
    for (int i = 0; i < 16; i++)
        codes[i] = choose(fit.empty, splat(0), within(nearest(fit.best_inverse * v.value[i]), -4, 3) + splat(4));
    return fit.scale;
}

// Codes 0..63 of sixteen scales around 32, and the step between them.
static INLINE float signed_codes(const float* scales, const float*, uint8_t codes[16]) {
    float widest = 0;
    for (int j = 0; j < 16; j++) widest = __builtin_fabsf(scales[j]) > __builtin_fabsf(widest) ? scales[j] : widest;
    memset(codes, 0, 16);
    if (widest == 0) return 0;
    const float inverse = -32.0f / widest;
    for (int j = 0; j < 16; j++) {
        const int code = int(nearest(inverse * scales[j]));
        codes[j] = uint8_t((code < 31 ? code : 31) + 32);
    }
    return 1 / inverse;
}

// The same for the least weighted squares, among nineteen guesses.
static float signed_codes_weighted(const float* scales, const float* worth, uint8_t codes[16]) {
    float widest = 0, best = 0, step = 0;
    for (int j = 0; j < 16; j++) widest = __builtin_fabsf(scales[j]) > __builtin_fabsf(widest) ? scales[j] : widest;
    memset(codes, 0, 16);
    if (__builtin_fabsf(widest) < nothing) return 0;
    for (int guess = 0; guess < 19; guess++) {  // the direct guess, then up to 0.9 steps away
        const int tenths = guess == 0 ? 0 : guess <= 9 ? guess - 10 : guess - 9;
        const float inverse = -(32 + 0.1f * float(tenths)) / widest;
        uint8_t shifted[16];
        float sum_lx = 0, sum_l2 = 0;
        for (int j = 0; j < 16; j++) {
            const int nearest_code = int(nearest(inverse * scales[j]));
            const int code = nearest_code < -32 ? -32 : nearest_code > 31 ? 31 : nearest_code;
            shifted[j] = uint8_t(code + 32);
            sum_lx += worth[j] * scales[j] * float(code), sum_l2 += worth[j] * float(code) * float(code);
        }
        if (guess == 0 ? false : !(sum_l2 > 0 && sum_lx * sum_lx > best * sum_l2)) continue;
        step = sum_l2 != 0 ? sum_lx / sum_l2 : 0, best = step * sum_lx;
        memcpy(codes, shifted, 16);
    }
    return step;
}

// A block: the third bits of all codes, their lower two bits, sixteen 6-bit scales, and a float16 step.
static INLINE void pack_q3_k(const uint8_t codes[256], const uint8_t scales[16], uint8_t* out) {
    memset(out, 0, 32), memset(out + 96, 0, 12);
    for (int i = 0; i < 256; i++) out[i % 32] = uint8_t(out[i % 32] | codes[i] >> 2 << i / 32);
    pack_pairs(codes, out + 32);
    for (int j = 0; j < 16; j++) {
        uint8_t &low = out[96 + j % 8], &high = out[104 + j % 4];
        low = uint8_t(low | (scales[j] & 15) << 4 * (j / 8)), high = uint8_t(high | scales[j] >> 4 << 2 * (j / 4));
    }
}

static void encode_q3_k(const float* x, const Importance& importance, uint8_t* out, int64_t blocks) {
    const auto scale_codes = importance.weights ? signed_codes_weighted : signed_codes;
    panels<2>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        W value[16], found[16], scale, weights = splat(0);
        across<16>(x, value);
        scale = importance.weights ? fit_by_guesses(x, columns, found, weights) : fit_by_moves(value, found);
        float all_scales[32], worth[32];
        uint8_t codes[512];
        store(all_scales, scale), store(worth, weights), back<16>(found, codes);
        for (int k = 0; k < count; k++, out += 110) {
            uint8_t scales[16];
            store_half(out + 108, scale_codes(all_scales + 16 * k, worth + 16 * k, scales));
            const float d = half_to_float(read<uint16_t>(out + 108));
            for (int j = 0; j < 16; j++) {
                const float step = d * float(scales[j] - 32);
                if (step == 0) continue;  // keep the codes of the search
                codes_under(x + 256 * k + 16 * j, step, 0, -4, 3, codes + 256 * k + 16 * j);
            }
            pack_q3_k(codes + 256 * k, scales, out);
        }
    });
}

}  // namespace ISA
