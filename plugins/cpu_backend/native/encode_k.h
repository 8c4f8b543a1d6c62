// Encoders of Q4_K, Q5_K and Q6_K, bit-identical to ggml's reference (ggml_quantize_chunk), with or without importance weights.
// Thirty-two groups are searched at a time, one per lane; each lane adds in the order of the reference, so sums are
// bit-identical.
#pragma once
#include "wide.h"

namespace ISA {

constexpr float nothing = 1e-15f;  // groups with smaller magnitudes become zero

struct Fit {  // of thirty-two groups
    W scale, low, weights;     // the sum of weights
    W best_inverse, best_low;  // parameters of the best codes
    WM wide;                   // lanes with at least two distinct values
};

struct Guesses {  // width of a group in steps: `most` + first, increased by delta
    float first, delta;
    int count;
};

// Scale and minimum of `Size` values per lane: the direct guess, then others, each solved by weighted least squares and judged
// by weighted squares or magnitudes. Like in the reference, a better guess also moves the minimum for the next ones.
template <int Most, int Size = 32, bool Magnitudes = false>
static INLINE void fit_with_minimum(const W x[Size], const W weight[Size], const Guesses& guesses, Fit& fit) {
    W low = x[0], high = x[0], sum_w = weight[0], sum_x = sum_w * x[0];
    for (int i = 1; i < Size; i++) {
        low = least(x[i], low), high = most(x[i], high);
        sum_w = sum_w + weight[i], sum_x = sum_x + weight[i] * x[i];
    }
    low = choose(splat(0) < low, splat(0), low);  // a minimum of -0 stays
    fit.wide = low < high, fit.weights = sum_w;
    W inverse = splat(Most) / (high - low), scale = splat(1) / inverse, best = splat(0);
    W best_inverse = inverse, best_low = low;
    for (int i = 0; i < Size; i++) {
        const W miss = scale * within(nearest(inverse * (x[i] - low)), 0, Most) + low - x[i];
        best = best + weight[i] * (Magnitudes ? absolute(miss) : miss * miss);
    }
    for (int step = 0; step < guesses.count; step++) {
        inverse = splat(guesses.first + guesses.delta * float(step) + Most) / (high - low);
        W codes[Size], sum_l = splat(0), sum_l2 = splat(0), sum_xl = splat(0);
        for (int i = 0; i < Size; i++) {
            codes[i] = within(nearest(inverse * (x[i] - low)), 0, Most);
            const W weighted = weight[i] * codes[i];
            sum_l = sum_l + weighted, sum_l2 = sum_l2 + weighted * codes[i], sum_xl = sum_xl + weighted * x[i];
        }
        const W determinant = sum_w * sum_l2 - sum_l * sum_l;
        W this_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant;
        W this_low = (sum_l2 * sum_x - sum_l * sum_xl) / determinant;
        const WM above = splat(0) < this_low;
        this_scale = choose(above, sum_xl / sum_l2, this_scale), this_low = choose(above, splat(0), this_low);
        W error = splat(0);
        for (int i = 0; i < Size; i++) {
            const W miss = this_scale * codes[i] + this_low - x[i];
            error = error + weight[i] * (Magnitudes ? absolute(miss) : miss * miss);
        }
        const WM better = (splat(0) < determinant) & (error < best);
        best_inverse = choose(better, inverse, best_inverse), best_low = choose(better, low, best_low);
        best = choose(better, error, best), scale = choose(better, this_scale, scale), low = choose(better, this_low, low);
    }
    fit.scale = choose(fit.wide, scale, splat(0)), fit.low = low;
    fit.best_inverse = best_inverse, fit.best_low = best_low;
}

// The codes of the search; most are recomputed with the stored scales.
template <int Most, int Size = 32> static void searched_codes(const W x[Size], const Fit& fit, uint8_t* codes) {
    W found[Size];
    for (int i = 0; i < Size; i++) {
        const W code = within(nearest(fit.best_inverse * (x[i] - fit.best_low)), 0, Most);
        found[i] = choose(fit.wide, code, splat(0));
    }
    back<Size>(found, codes);
}

static INLINE void store_half(uint8_t* at, float value) {
    const uint16_t half = float_to_half(value);
    memcpy(at, &half, 2);
}

// Codes 0..63 of the eight scales (or minima) of a block, and the step between them.
static INLINE float six_bit_codes(const float* values, const float*, uint8_t codes[8]) {
    float largest = 0;
    for (int j = 0; j < 8; j++) largest = values[j] > largest ? values[j] : largest;
    const float inverse = largest > 0 ? 63.0f / largest : 0;
    for (int j = 0; j < 8; j++) {
        const uint8_t code = uint8_t(int(nearest(inverse * values[j])));
        codes[j] = code < 63 ? code : 63;
    }
    return largest / 63.0f;
}

// The same for `Count` scales, codes 0..`Most` and weighted least squares: the best of nine guesses, then single-code moves
// while they help.
template <int Count, int Most> static float scale_codes_weighted(const float* values, const float* weights, uint8_t codes[Count]) {
    float largest = 0, inverse = 0, least_error = 0;
    for (int j = 0; j < Count; j++) largest = values[j] > largest ? values[j] : largest;
    memset(codes, 0, Count);
    if (largest < nothing) return 0;
    const auto code_of = [&](float value) {
        const int code = int(nearest(value));
        return code < Most ? code : Most;
    };
    for (int guess = 0; guess < 9; guess++) {  // the direct guess, then up to 0.4 steps away
        const int tenths = guess == 0 ? 0 : guess <= 4 ? guess - 5 : guess - 4;
        const float this_inverse = (0.1f * float(tenths) + float(Most)) / largest, step = 1 / this_inverse;
        float error = 0;
        for (int j = 0; j < Count; j++) {
            const int code = code_of(this_inverse * values[j]);
            const float miss = values[j] - step * float(guess ? code : uint8_t(code));
            error += weights[j] * miss * miss;
        }
        if (guess == 0 || error < least_error) least_error = error, inverse = this_inverse;
    }
    float sum_xl = 0, sum_l2 = 0;
    for (int j = 0; j < Count; j++) {
        const int code = code_of(inverse * values[j]);
        codes[j] = uint8_t(code);
        sum_xl += weights[j] * values[j] * float(code), sum_l2 += weights[j] * float(code) * float(code);
    }
    bool moved = true;
    for (int round = 0; round < 5 && moved; round++) {
        moved = false;
        for (int j = 0; j < Count; j++) {
            const float weight = weights[j], weighted = weight * values[j];
            float xl = sum_xl - weighted * float(codes[j]), l2 = sum_l2 - weight * float(codes[j]) * float(codes[j]);
            if (!(xl > 0 && l2 > 0)) continue;
            const int code = code_of(values[j] * l2 / xl);
            if (code == codes[j]) continue;
            xl += weighted * float(code), l2 += weight * float(code) * float(code);
            if (!(xl * xl * sum_l2 > sum_xl * sum_xl * l2)) continue;
            codes[j] = uint8_t(code), sum_xl = xl, sum_l2 = l2, moved = true;
        }
    }
    return sum_l2 > 0 ? sum_xl / sum_l2 : 0;
}

// Writes the header of a Q4_K or Q5_K block, and its codes with the stored scales; if a scale is 0, the codes of the search
// are kept.
template <int Most, class Searched>
static INLINE void finish_block(const float* x, float d, float dmin, const uint8_t scales[8], const uint8_t minima[8], uint8_t* out,
                                uint8_t* codes, Searched searched) {
    uint8_t* packed = out + 4;
    store_half(out, d), store_half(out + 2, dmin);
    for (int j = 0; j < 4; j++) {
        packed[j] = uint8_t(scales[j] | scales[j + 4] >> 4 << 6);
        packed[j + 4] = uint8_t(minima[j] | minima[j + 4] >> 4 << 6);
        packed[j + 8] = uint8_t((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
    }
    d = half_to_float(read<uint16_t>(out)), dmin = half_to_float(read<uint16_t>(out + 2));
    if (d == 0 || memchr(scales, 0, 8)) searched(codes);
    for (int j = 0; j < 8; j++) {
        const float step = d * float(scales[j]), lift = dmin * float(minima[j]);
        for (int i = 32 * j; step != 0 && i < 32 * j + 32; i += 16) {
            const B bytes = narrow(within(nearest((load(x + i) + splat(lift)) / splat(step)), 0, Most));
            memcpy(codes + i, &bytes, 16);
        }
    }
}

// 16 bytes with the low nibbles of `low`, and of `high` above.
static INLINE void pack_nibbles(const uint8_t* low, const uint8_t* high, uint8_t* out) {
    const B packed = (load_bytes(low) & splat_byte(15)) | (left<4>(load_bytes(high)) & splat_byte(0xf0));
    memcpy(out, &packed, 16);
}

static INLINE void pack_block(const uint8_t* codes, uint8_t* out, bool five) {
    for (int i = 0; five && i < 32; i += 16) {
        B fifth = splat_byte(0);
        for (int j = 7; j >= 0; j--) fifth = left<1>(fifth) | (right<4>(load_bytes(codes + 32 * j + i)) & splat_byte(1));
        memcpy(out + 16 + i, &fifth, 16);
    }
    out += five ? 48 : 16;
    for (int at = 0; at < 256; at += 64)
        for (int i = 0; i < 32; i += 16, out += 16) pack_nibbles(codes + at + i, codes + at + 32 + i, out);
}

struct Importance {  // per column of a matrix with whole blocks per row; or null
    const float* weights;
    int64_t columns, at;  // column of the next block
};

// `Count` blocks of `Size` values at a time, and their weights; the rest of an incomplete last panel is unused.
template <int Count, int Size = 256, class Function>
static INLINE void panels(const float* x, Importance importance, int64_t blocks, Function function) {
    float rest[Size * Count] = {}, weights[Size * Count];
    for (; blocks > 0; blocks -= Count, x += Size * Count) {
        const int count = blocks < Count ? int(blocks) : Count;
        if (count < Count) memcpy(rest, x, size_t(count) * Size * 4);
        for (int k = 0; importance.weights && k < Count; k++) {
            memcpy(weights + Size * k, importance.weights + importance.at, Size * 4);
            importance.at = (importance.at + Size) % importance.columns;
        }
        function(count < Count ? rest : x, weights, count);
    }
}

// The reference's weights for groups of `Size` in blocks of `Block`: column importance times a weight of the value relative to
// `times` its block; without importance, relative to its group.
template <int Size = 32, int Block = 256>
static INLINE void weights_of(const float* x, const float* columns, W weight[Size], float times = 2) {
    constexpr int blocks = 32 * Size / Block;
    float squares[blocks] = {}, mean[32];
    for (int i = 0; i < Block; i++)
        for (int k = 0; k < blocks; k++) squares[k] += x[Block * k + i] * x[Block * k + i];
    for (int k = 0; k < 32; k++) mean[k] = times * squares[k * Size / Block] / Block;
    W value[Size];
    across<Size>(x, value), across<Size>(columns, weight);
    for (int i = 0; i < Size; i++) weight[i] = weight[i] * root(W{load(mean), load(mean + 16)} + value[i] * value[i]);
}
static INLINE void weights_of(const W x[32], W weight[32]) {
    W squares = splat(0);
    for (int i = 0; i < 32; i++) squares = squares + x[i] * x[i];
    const W average = root(squares / splat(32));
    for (int i = 0; i < 32; i++) weight[i] = average + absolute(x[i]);
}

template <int Most>
static void encode_with_minima(const float* x, const Importance& importance, uint8_t* out, int64_t blocks, Guesses guesses) {
    constexpr int size = Most == 31 ? 176 : 144;
    const auto six_bits = importance.weights ? scale_codes_weighted<8, 63> : six_bit_codes;
    if (importance.weights) guesses = {-0.9f, 0.05f, 37};
    panels<4>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        W group[32], weight[32];
        Fit fit;
        across<32>(x, group);
        if (importance.weights) weights_of(x, columns, weight);
        else weights_of(group, weight);
        fit_with_minimum<Most>(group, weight, guesses, fit);
        float scale[32], minimum[32], worth[32];
        store(scale, fit.scale), store(minimum, splat(0) - fit.low), store(worth, fit.weights);
        for (int k = 0; k < count; k++, out += size) {
            uint8_t codes[256], scales[8], minima[8];
            const float d = six_bits(scale + 8 * k, worth + 8 * k, scales), dmin = six_bits(minimum + 8 * k, worth + 8 * k, minima);
            finish_block<Most>(x + 256 * k, d, dmin, scales, minima, out, codes, [&](uint8_t* to) {
                uint8_t all[1024];
                searched_codes<Most>(group, fit, all);
                memcpy(to, all + 256 * k, 256);
            });
            pack_block(codes, out, Most == 31);
        }
    });
}

struct FitAround {  // of thirty-two groups
    W scale = splat(0), best = splat(-1), best_inverse;
    WM empty;
};

template <int Size = 16> struct Around {  // values of each lane
    W value[Size], weight[Size], weighted[Size], largest;
};

// One guess of a scale for codes -Half..Half - 1, `tenths` of a step from the direct guess. (Values less than half a step below
// -Half need no clamp.)
template <int Half, bool Below, int Size> static INLINE void attempt(const Around<Size>& v, int tenths, FitAround& fit) {
    const W inverse = splat(-(Half + 0.1f * float(tenths))) / v.largest;
    W sum_lx = splat(0), sum_l2 = splat(0);
    for (int i = 0; i < Size; i++) {
        W code = least(nearest(inverse * v.value[i]), splat(Half - 1));
        if (Below) code = most(code, splat(-Half));
        sum_lx = sum_lx + v.weighted[i] * code, sum_l2 = sum_l2 + v.weight[i] * code * code;
    }
    const W solved = sum_lx / sum_l2;
    const WM better = (splat(0) < sum_l2) & (fit.best * sum_l2 < sum_lx * sum_lx);
    fit.best_inverse = choose(better, inverse, fit.best_inverse);
    fit.scale = choose(better, solved, fit.scale), fit.best = choose(better, solved * sum_lx, fit.best);
}

// The direct guess of scales for codes -Half..Half - 1 around zero, and others up to 0.9 steps away.
template <int Half, int Size> static INLINE void fit_around_zero(Around<Size>& v, bool weighted, FitAround& fit) {
    W peak = splat(0);
    v.largest = splat(0);
    for (int i = 0; i < Size; i++) {
        const W value = v.value[i];
        const WM larger = peak < absolute(value);
        peak = choose(larger, absolute(value), peak), v.largest = choose(larger, value, v.largest);
        if (!weighted) v.weight[i] = value * value;
        v.weighted[i] = v.weight[i] * value;
    }
    fit.best_inverse = splat(-Half) / v.largest;
    attempt<Half, false>(v, 0, fit);
    fit.best = most(fit.best, splat(0));  // only accept improvements from here
    for (int tenths = -9; tenths < 5; tenths += tenths == -1 ? 2 : 1) attempt<Half, false>(v, tenths, fit);
    for (int tenths = 5; tenths < 10; tenths++) attempt<Half, true>(v, tenths, fit);
    fit.empty = peak < splat(nothing);
    fit.scale = choose(fit.empty, splat(0), fit.scale);
}

static INLINE void pack_q6_k(const uint8_t* codes, uint8_t* out) {
    for (int half = 0; half < 2; half++, codes += 128)
        for (int i = 0; i < 32; i += 16) {
            const uint8_t* c = codes + i;
            pack_nibbles(c, c + 64, out + 64 * half + i), pack_nibbles(c + 32, c + 96, out + 64 * half + 32 + i);
            const B high = (right<4>(load_bytes(c)) & splat_byte(3)) | (right<2>(load_bytes(c + 32)) & splat_byte(12)) |
                           (load_bytes(c + 64) & splat_byte(48)) | (left<2>(load_bytes(c + 96)) & splat_byte(192));
            memcpy(out + 128 + 32 * half + i, &high, 16);
        }
}

static void encode_q6_k(const float* x, const Importance& importance, uint8_t* out, int64_t blocks) {
    panels<2>(x, importance, blocks, [&](const float* x, const float* columns, int count) {
        Around<> v;
        FitAround fit;
        across<16>(x, v.value);
        if (importance.weights) across<16>(columns, v.weight);
        fit_around_zero<32>(v, importance.weights, fit);
        float all_scales[32];
        store(all_scales, fit.scale);
        for (int k = 0; k < count; k++, out += 210) {
            const float *from = x + 256 * k, *scales = all_scales + 16 * k;
            const uint32_t magnitude = as_bits(peak(absolute(load(scales))));
            uint32_t widest = magnitude;
            for (int j = 15; j >= 0; j--) widest = (as_bits(scales[j]) & 0x7fffffff) == magnitude ? as_bits(scales[j]) : widest;
            if (as_float(magnitude) < nothing) {
                memset(out, 0, 210);
                continue;
            }
            const float inverse = -128.0f / as_float(widest);
            store_half(out + 208, 1 / inverse);
            const float d = half_to_float(read<uint16_t>(out + 208));
            const B stored = narrow(least(nearest(load(scales) * splat(inverse)), splat(127)));
            memcpy(out + 192, &stored, 16);
            uint8_t codes[512];
            if (d == 0 || memchr(out + 192, 0, 16)) {  // keep the codes of the search if a scale is 0
                W found[16];
                for (int i = 0; i < 16; i++) found[i] = choose(fit.empty, splat(0), within(nearest(fit.best_inverse * v.value[i]), -32, 31) + splat(32));
                back<16>(found, codes);
                memmove(codes, codes + 256 * k, 256);
            }
            for (int j = 0; j < 16; j++) {
                const float step = d * float(int8_t(out[192 + j]));
                if (step == 0) continue;
                const B bytes = narrow(within(nearest(load(from + 16 * j) / splat(step)), -32, 31) + splat(32));
                memcpy(codes + 16 * j, &bytes, 16);
            }
            pack_q6_k(codes, out);
        }
    });
}

}  // namespace ISA
