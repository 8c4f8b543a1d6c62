// Encoders of Q4_0, Q4_1, Q5_0 and Q5_1 with importance weights, bit-identical to ggml_quantize_chunk. Weights are relative to the
// mean square of the whole row, so `x` lies in whole rows of `importance.columns`.
#pragma once
#include "encode_k.h"

namespace ISA {

// Mean square of a row, added in order.
static float mean_square(const float* row, int64_t columns) {
    float sum = 0;
    for (int64_t i = 0; i < columns; i++) sum += row[i] * row[i];
    return sum / float(columns);
}

// Low nibbles of 32 codes, and before them the fifth bits, if there are any.
template <bool Five> static INLINE void pack_codes(const uint8_t* codes, uint8_t* out) {
    if (Five) {
        uint32_t fifth = 0;
        for (int i = 0; i < 32; i++) fifth |= uint32_t(codes[i] >> 4 & 1) << i;
        memcpy(out, &fifth, 4);
    }
    pack_nibbles(codes, codes + 16, out + (Five ? 4 : 0));
}

// Codes 0..`Most`, around zero or above a minimum.
template <int Most, bool Minimum>
static void encode_weighted(const float* x, const Importance& importance, uint8_t* out, int64_t blocks) {
    constexpr bool five = Most == 31;
    constexpr int half = (Most + 1) / 2, header = Minimum ? 4 : 2, size = header + (five ? 20 : 16);
    const float* row = x - importance.at;
    int64_t at = importance.at, left = blocks;
    float square = mean_square(row, importance.columns);
    panels<32, 32>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        float mean[32] = {};
        for (int k = 0; k < count; k++) {
            mean[k] = square, left--, at += 32;
            if (at < importance.columns || !left) continue;
            at = 0, row += importance.columns;
            square = mean_square(row, importance.columns);
        }
        uint8_t codes[1024];
        float scale[32], low[32] = {};
        const W means = {load(mean), load(mean + 16)};
        if (Minimum) {
            W group[32], weight[32];
            Fit fit;
            across<32>(x, group), across<32>(columns, weight);
            for (int i = 0; i < 32; i++) weight[i] = weight[i] * root(means + group[i] * group[i]);
            fit_with_minimum<Most>(group, weight, {-0.9f, 0.05f, 37}, fit);
            searched_codes<Most>(group, fit, codes);
            store(scale, fit.scale), store(low, fit.low);
        } else {
            Around<32> v;
            FitAround fit;
            across<32>(x, v.value), across<32>(columns, v.weight);
            for (int i = 0; i < 32; i++) v.weight[i] = v.weight[i] * root(means + v.value[i] * v.value[i]);
            fit_around_zero<half>(v, true, fit);
            W found[32];
            for (int i = 0; i < 32; i++)
                found[i] = choose(fit.empty, splat(0), within(nearest(fit.best_inverse * v.value[i]), -half, half - 1) + splat(half));
            back<32>(found, codes);
            store(scale, fit.scale);
        }
        for (int k = 0; k < count; k++, out += size) {
            store_half(out, scale[k]);
            if (Minimum) store_half(out + 2, low[k]);
            pack_codes<five>(codes + 32 * k, out + header);
        }
    });
}

// Q5_0 and Q5_1 without importance, as ggml's reference.
template <bool Minimum> static void encode_five(const float* x, uint8_t* out, int64_t blocks) {
    for (int64_t block = 0; block < blocks; block++, x += 32, out += Minimum ? 24 : 22) {
        float low = x[0], high = x[0], widest = 0;
        for (int i = 0; i < 32; i++) {
            low = x[i] < low ? x[i] : low, high = x[i] > high ? x[i] : high;
            widest = __builtin_fabsf(x[i]) > __builtin_fabsf(widest) ? x[i] : widest;
        }
        const float step = Minimum ? (high - low) / 31.0f : widest / -16.0f, inverse = step == 0 ? 0 : 1 / step;
        const float base = Minimum ? low : 0, up = Minimum ? 0.5f : 16.5f;
        uint8_t codes[32];
        for (int i = 0; i < 32; i++) {
            const int code = int((x[i] - base) * inverse + up);
            codes[i] = uint8_t(code < 31 ? code : 31);
        }
        store_half(out, step);
        if (Minimum) store_half(out + 2, low);
        pack_codes<true>(codes, out + (Minimum ? 4 : 2));
    }
}

}  // namespace ISA
